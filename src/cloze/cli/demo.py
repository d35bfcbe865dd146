"""``cloze demo``."""

from pathlib import Path

from cloze.cli.console import Reporter, print_json, print_table


def demo(*, out: Path = Path("runs/demo"), json: bool = False) -> None:
    """Go the whole way on bundled public-domain text, in about five minutes on two cores.

    It learns a vocabulary, pre-trains a small model, fills blanks, fine-tunes it on
    "are these words in order?", compares with the same model not pre-trained, and
    writes a page. Interrupted, it goes on where it stopped.

    Args:
        out: The folder for everything that it makes.
        json: Print JSON.
    """
    from cloze.demo.report import write_report
    from cloze.demo.results import DemoSettings, recorded_results

    results = recorded_results(out, DemoSettings())
    if results is None:
        from cloze.demo.flow import run_demo

        with Reporter() as reporter:
            results = run_demo(out, reporter)
    page = write_report(results, out)
    accuracies, margin = results.accuracies, results.margin
    if json:
        print_json({"page": str(page), "accuracies": accuracies, "margin": vars(margin), "seconds": results.seconds})
        return
    blanks = [(blank.sentence, blank.word, " ".join(token for token, _ in blank.trained)) for blank in results.blanks]
    print_table(("blank", "was", "the model's five best"), blanks)
    rows = [
        (f"seed {seed}", f"{one:.1%}", f"{other:.1%}", f"{100 * (one - other):+.1f}")
        for seed, (one, other) in enumerate(zip(accuracies["pretrained"], accuracies["scratch"], strict=True))
    ]
    print_table(("are these words in order?", "pre-trained", "from scratch", "points"), rows)
    print(
        f"pre-training brings {100 * margin.mean:+.1f} points (95 % interval {100 * margin.low:+.1f} to "
        f"{100 * margin.high:+.1f}); counting words gets {results.baseline:.1%}"
    )
    print(f"model: {out / 'pretraining' / 'model'}\npage:  {page}")
