"""``cloze demo``."""

from pathlib import Path

from cloze.cli.console import Reporter, print_json, print_table
from cloze.cli.outputs import check_folder


def demo(*, out: Path = Path("runs/demo"), json: bool = False) -> None:
    """Run all steps on bundled public-domain text, in about seven minutes on two cores.

    It learns a vocabulary, pre-trains a small model, fills blanks, fine-tunes on the question
    "are these words in order?", compares the result with the same model trained from scratch and
    with the shipped model, and writes a report page. Re-running the same command resumes it.

    Args:
        out: The folder for all results.
        json: Print JSON.
    """
    check_folder(out)
    from cloze.demo.html_report import write_report
    from cloze.demo.results_file import DemoSettings, load_results

    results = load_results(out, DemoSettings())
    if results is None:
        from cloze.demo.flow import run_demo

        with Reporter() as reporter:
            results = run_demo(out, reporter)
    page = write_report(results, out)
    accuracies, margin = results.accuracies, results.margin
    if json:
        print_json(
            {
                "page": str(page),
                "accuracies": accuracies,
                "margin": vars(margin),
                "second": {"shipped": results.second.shipped, "own": results.second.own},
                "seconds": results.seconds,
            }
        )
        return
    blanks = [(blank.sentence, blank.word, " ".join(token for token, _ in blank.trained)) for blank in results.blanks]
    print_table(("blank", "original", "five best predictions"), blanks)
    rows = [
        (f"seed {seed}", f"{pretrained:.1%}", f"{scratch:.1%}", f"{100 * (pretrained - scratch):+.1f}")
        for seed, (pretrained, scratch) in enumerate(zip(accuracies["pretrained"], accuracies["scratch"], strict=True))
    ]
    print_table(("are these words in order?", "pre-trained", "from scratch", "points"), rows)
    print(
        f"pre-training gains {100 * margin.mean:+.1f} points (95 % interval {100 * margin.low:+.1f} to "
        f"{100 * margin.high:+.1f}); the word-count baseline has {results.baseline:.1%}"
    )
    second = results.second
    print(
        f"second chapter: on unseen sentences, the shipped model {second.name} has an accuracy of "
        f"{_mean(second.shipped):.1%}, the model trained here {_mean(second.own):.1%}"
    )
    print(f"model: {out / 'pretraining' / 'model'}\npage:  {page}")


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
