"""Experiments with models: ``cloze demo``, ``compare``, ``heads``, ``inspect``, ``explain`` and ``suggest``."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from cloze.cli.console import Machine, Reporter, print_json, print_table, print_written, shorten
from cloze.cli.inputs import TEXT_COLUMN, Texts, gather_texts, read_file, with_pair
from cloze.cli.outputs import ROW_FILES, beside, check_file, check_folder, check_not_input, write_rows
from cloze.comparison.settings import CompareSettings
from cloze.errors import ConfigError
from cloze.inspect import HeadSettings
from cloze.models import SHIPPED_MODEL
from cloze.options import Reference

if TYPE_CHECKING:
    from cloze.predict.integrated_gradients import Explanation, Faithfulness


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


def explain(
    texts: Texts = None,
    /,
    *,
    model: str = SHIPPED_MODEL,
    input: Path | None = None,  # noqa: A002 (the flag)
    text: str = TEXT_COLUMN,
    pair: str | None = None,
    label: str | None = None,
    baseline: Reference = "mask",
    check: bool = False,
    out: Path | None = None,
    json: bool = False,
    machine: Annotated[Machine, Parameter(name="*")] = HERE,
) -> None:
    """Show why a fine-tuned model gives a text its label: what each word adds to the log-odds (integrated gradients).

    Works with classify, multilabel, regress and tag; for tags, every entity is explained. The values of all words add
    up to the output minus that of the baseline, except for the convergence delta.

    Args:
        texts: Texts to explain; by default, the lines of standard input.
        model: A fine-tuned model folder or run, or a hub name.
        input: A file with one text per line, or a CSV, TSV, JSONL or Parquet file.
        text: The column with the texts.
        pair: The column with the second texts of pairs; with texts as arguments, the second text itself.
        label: The label to explain; by default, those that the model predicts.
        baseline: What a text is compared with: mask or pad tokens in place of every word.
        check: Also compute occlusion and deletion curves against random order, which takes longer.
        out: A page with coloured words to write, such as why.html; it works offline.
        json: Print JSON, one line per explanation.
    """
    if out is not None:
        check_file(out, (".html",), flag="--out")
    from cloze.inspect.views.page import explanation_row, write_explanations
    from cloze.predict import load
    from cloze.predict.integrated_gradients import faithfulness

    inputs = gather_texts(texts, input, text=text, pair=pair)
    inputs = inputs if input is not None else with_pair(inputs, pair) or inputs
    loaded = load(model, device=machine.use())
    with Reporter() as reporter:
        found = loaded.explain(
            inputs.texts, inputs.pairs, label=label, baseline=baseline, check=check, progress=reporter
        )
    measured = faithfulness(found)
    if out is not None:
        size = write_explanations(found, measured, Path(model).name, out)
    if json:
        for why in found:
            print_json(explanation_row(why))
        return
    for why in found:
        print_table(_explanation_header(why), _explanation_rows(why), title=shorten(" / ".join(why.texts)))
    print(*_summary(found, measured), sep="\n")
    if out is not None:
        print(f"{out}: {len(found)} explanations, {size / 1e3:.0f} kB; open it in a browser")


def _explanation_header(why: "Explanation") -> tuple[str, ...]:
    name = f"value {why.output:.4f}" if why.label is None else f"{why.label} {why.probability:.4f}"
    place = "" if why.span is None else f" ({why.texts[0][slice(*why.span)]})"
    return (f"{name}{place}", "attribution", *(["occlusion"] if _has_occlusion(why) else []))


def _explanation_rows(why: "Explanation") -> Iterator[tuple[str, ...]]:
    """Yield the words with the largest attributions first."""
    for word in sorted(why.words, key=lambda word: -abs(word.value)):
        occlusion = [] if word.occlusion is None else [f"{word.occlusion:+.4f}"]
        yield word.text, f"{word.value:+.4f}", *occlusion


def _has_occlusion(why: "Explanation") -> bool:
    return any(word.occlusion is not None for word in why.words)


def _summary(found: "Sequence[Explanation]", measured: "Faithfulness | None") -> Iterator[str]:
    """Yield the lines below the tables: the convergence and the checks."""
    if not found:
        yield "nothing to explain: the model predicts no entity in these texts"
        return
    worst = max(found, key=lambda why: abs(why.delta))
    yield f"convergence delta at most {abs(worst.delta):.4f}, with {worst.steps} steps"
    if measured is None:
        return
    gain, low, high = measured.gain
    yield (
        f"deletion curve: {gain:+.4f} below random order (95 % interval {low:+.4f} to {high:+.4f}), lower for "
        f"{100 * measured.better:.0f} % of {measured.texts} explanations"
    )
    if measured.agreement is not None:
        yield f"rank correlation with occlusion: {measured.agreement:.2f} on average"


def suggest(
    rows: Annotated[Path, Parameter(help="Unlabelled rows: one text per line, or a CSV, TSV, JSONL or Parquet file.")],
    /,
    *,
    model: str,
    count: int = 50,
    text: str = TEXT_COLUMN,
    pair: str | None = None,
    output: Path | None = None,
    seed: int = 0,
    json: bool = False,
    machine: Annotated[Machine, Parameter(name="*")] = HERE,
) -> None:
    """Suggest which unlabelled rows to label next: those that the model is unsure about, and that differ.

    Args:
        model: A model folder or run fine-tuned with classify, multilabel or tag.
        count: Number of rows to suggest.
        text: The column with the texts.
        pair: The column with the second texts of pairs.
        output: The file to write, with all columns of the rows: .jsonl, .csv or .tsv.
        seed: Random seed of the draw.
        json: Print JSON, one line per row.
    """
    if output is not None:
        check_file(output, ROW_FILES)
        check_not_input(output, rows, given="the file of rows")
    from cloze.train.finetuning.label_quality import suggest as run

    inputs = read_file(rows, text=text, pair=pair)
    found = run(inputs.texts, inputs.pairs, model=model, count=count, seed=seed, device=machine.use())
    kept = [inputs.kept[one.row] for one in found]
    columns = [{"prediction": one.prediction, "uncertainty": one.uncertainty} for one in found]
    if output is not None:
        write_rows(output, beside(kept, columns))
        print_written(output, len(found), json)
    elif json:
        for row in beside(kept, columns):
            print_json(row)
    else:
        table = [(f"{one.uncertainty:.4f}", one.prediction, shorten(one.text)) for one in found]
        print_table(("uncertainty", "prediction", "text"), table)
