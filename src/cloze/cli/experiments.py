"""Experiments with models: ``cloze demo``, ``cloze compare``, ``cloze heads`` and ``cloze inspect``."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cloze.cli.console import Machine, Reporter, print_json, print_table
from cloze.cli.outputs import check_file, check_folder
from cloze.comparison.settings import CompareSettings
from cloze.errors import ConfigError
from cloze.inspect.settings import HeadSettings
from cloze.models import SHIPPED_MODEL


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


def compare(
    texts: Annotated[list[Path], Parameter(help="Text files.")],
    /,
    *,
    out: Path,
    fresh: bool = False,
    settings: Annotated[CompareSettings, Parameter(name="*")] = CompareSettings(),  # noqa: B008 (frozen)
    machine: Annotated[Machine, Parameter(name="*")] = Machine(),  # noqa: B008
    json: bool = False,
) -> None:
    """Compare architectures, or variants of BERT, with one text, vocabulary and budget.

    It pre-trains one row after the other and evaluates all on blanks, grammatical minimal pairs and
    tasks. Re-running the same command resumes it. A page shows the results with their intervals, and
    what they support and what they do not.

    Args:
        out: The folder of the comparison.
        fresh: Start over, discarding the contents of the folder.
        json: Print JSON.
    """
    check_folder(out)
    from cloze.comparison.compare import compare as run
    from cloze.comparison.report import COST_HEADER, PAGE, cost_rows, score_rows
    from cloze.comparison.results import RESULTS, SECONDS
    from cloze.files import read_json

    with Reporter() as reporter:
        run(texts, out, settings=settings, device=machine.use(), fresh=fresh, progress=reporter)
    facts, seconds, page = read_json(out / RESULTS), read_json(out / SECONDS), out / PAGE
    if json:
        print_json({"page": str(page), **facts, "seconds": seconds})
        return
    header, *rows = score_rows(facts)
    print_table(header, rows)
    print_table(COST_HEADER, cost_rows(facts, seconds))
    for title, lines in facts["conclusions"].items():
        print(f"{title}:{'' if lines else ' nothing'}")
        for line in lines:
            print(f"- {line}")
    print(f"page: {page}")


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


# -- attention heads ---------------------------------------------------------------------------------------------------


HERE, HEADS = Machine(), HeadSettings()


def heads(
    texts: Annotated[list[Path], Parameter(help="Text files, with a blank line between documents.")],
    /,
    *,
    model: str = SHIPPED_MODEL,
    out: Path = Path("heads"),
    related: Path | None = None,
    settings: Annotated[HeadSettings, Parameter(name="*")] = HEADS,
    json: bool = False,
    machine: Annotated[Machine, Parameter(name="*")] = HERE,
) -> None:
    """Score every attention head for six patterns over a corpus, each against its null distribution.

    The patterns are attention to the next token, the previous token, the same or related tokens, the same tokens in the
    other sentence, tokens that predict the current one, and separators. Attention to the token itself and broad
    attention are reported as well.

    Args:
        model: A model folder, or a hub name.
        out: The folder for heads.json, heads.png and heads.svg.
        related: A file of related words, one group per line, in addition to words with similar vectors.
        json: Print the contents of heads.json.
    """
    from cloze.corpus.documents import read_documents
    from cloze.inspect.relations import read_related
    from cloze.inspect.survey import survey_heads
    from cloze.inspect.survey_report import HEADER, example_lines, summary_lines, survey_json, table_rows, write_survey
    from cloze.predict import load
    from cloze.tasks.tables import is_table

    for path in filter(is_table, texts):  # otherwise, its lines would be treated as text
        raise ConfigError(f"{path}: is a table; expected plain text, with a blank line between documents")
    check_folder(out)
    groups = None if related is None else read_related(related)
    loaded = load(model, device=machine.use())
    with Reporter() as reporter:
        survey = survey_heads(loaded, read_documents(texts), settings, groups=groups, progress=reporter)
    write_survey(survey, model, out)
    if json:
        print_json(survey_json(survey, model))
        return
    print_table(HEADER, table_rows(survey), title=f"{model}: {survey.sequences:,} sequences, {survey.tokens:,} tokens")
    print_table(("label", "strongest in", "example"), example_lines(survey))
    print("\n".join([*summary_lines(survey), f"{out}: heads.json, heads.png, heads.svg"]))


def inspect(
    first: str | None = None,
    second: str | None = None,
    /,
    *,
    model: str = SHIPPED_MODEL,
    out: Path,
    heads: Path | None = None,
    json: bool = False,
    machine: Annotated[Machine, Parameter(name="*")] = HERE,
) -> None:
    """Write a page that shows the attention over a text or a pair of texts, as one file that works offline.

    It shows the attention of every word, head by head; the weights as a matrix; all heads with their patterns; and the
    nearest neighbours of each word, layer by layer. If the model has a masked-LM head, it also shows the predictions
    of each layer; [MASK] in a text is a blank.

    Args:
        first: The text; by default, an example pair of texts.
        second: The second text of a pair, to show the attention between the two.
        model: A model folder, or a hub name.
        out: The file to write, such as page.html.
        heads: The heads.json that 'cloze heads' wrote for this model, to colour the heads by pattern.
        json: Print JSON.
    """
    check_file(out, flag="--out")
    from cloze.inspect.views.data import build_view, default_texts, trace_forward
    from cloze.inspect.views.page import write_page
    from cloze.predict import load

    loaded = load(model, device=machine.use())
    texts = default_texts(loaded) if first is None else (first, second)
    trace = trace_forward(loaded, *texts)
    size = write_page(build_view(trace, name=Path(model).name, heads_file=heads), out)
    tokens, cut = len(trace.encoding.tokens), trace.encoding.dropped
    if json:
        print_json({"page": str(out), "bytes": size, "tokens": tokens, "cut": cut})
    else:
        rest = f" ({cut} more exceed the maximum length and were truncated)" if cut else ""
        print(f"{out}: {tokens} tokens{rest}, {size / 1e6:.1f} MB; open it in a browser")
