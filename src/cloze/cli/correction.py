"""``cloze correct``, and ``cloze evaluate correction``."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from cloze.cli.classifying import HERE, Place, Texts
from cloze.cli.console import Machine, print_json, print_table, tell_written
from cloze.cli.inputs import Inputs, gather_texts, read_parts
from cloze.cli.outputs import ROW_FILES, beside, check_ending, write_rows
from cloze.cli.streaming import SLOW_ROWS, Answer, answer_file, file_state
from cloze.models import SHIPPED_MODEL
from cloze.tasks.correction.settings import CorrectionSettings
from cloze.tasks.source import RowSettings

if TYPE_CHECKING:
    from cloze.predict import Corrected, Model

SETTINGS = CorrectionSettings()


def correct(
    texts: Texts = None,
    /,
    *,
    model: str = SHIPPED_MODEL,
    settings: Annotated[CorrectionSettings, Parameter(name="*")] = SETTINGS,
    input: Path | None = None,  # noqa: A002 (the flag's name is fixed)
    output: Path | None = None,
    text: str = "text",
    fresh: bool = False,
    json: bool = False,
    machine: Place = HERE,
) -> None:
    """Find characters or words that are unlikely where they stand, and correct them.

    Args:
        model: A model folder with the head of pre-training, or a hub name.
        input: A file: a text a line, or CSV, TSV, JSONL or Parquet; its columns are kept in the output.
        output: Where to write the rows: .jsonl, .csv or .tsv; if it was stopped, the same command goes on.
        text: The column with the texts.
        fresh: Begin anew in place of going on.
        json: Print JSON.
    """
    if output is not None:
        check_ending(output, ROW_FILES)
    if input is not None and output is not None and not texts:
        _correct_file(machine.load(model), input, output, text, settings, fresh=fresh, json=json)
        return
    inputs = gather_texts(texts, input, text=text)
    corrected = machine.load(model).correct(inputs.texts, settings)
    if output is not None:
        kept = inputs.fields or [{} for _ in inputs.texts]
        write_rows(output, beside(kept, [told(one) for one in corrected]))
        tell_written(output, len(corrected), json, corrected=sum(bool(one.corrections) for one in corrected))
    elif json:
        for one in corrected:
            print_json(told(one))
    else:
        rows = [(one.target, ", ".join(_shown(one))) for one in corrected]
        print_table(("text", "corrections"), rows)


def _correct_file(
    model: "Model",
    source: Path,
    output: Path,
    text: str,
    settings: CorrectionSettings,
    *,
    fresh: bool,
    json: bool,
) -> None:
    """Correct a file of any size into another."""
    from cloze.predict.correction.corrector import Corrector
    from cloze.predict.inputs import need_head

    need_head(model.bert, "mlm")
    corrector = Corrector(model, settings)

    def read(rows: int) -> Iterator[Inputs]:
        for part in read_parts(source, rows, text=text):
            # The text itself is told as "source", and needs no column beside.
            yield replace(part, fields=part.fields or [{} for _ in part.texts])

    def say(part: Inputs) -> list[Answer]:
        return [told(one) for one in corrector.correct(part.texts)]

    asked = asdict(settings.completed(model.correcting))
    for name in ("similar", "protect"):  # which may have changed under their names
        asked[name] = None if asked[name] is None else file_state(asked[name])
    answer_file(
        model,
        source,
        output,
        read,
        say,
        settings={"text": text, **asked},
        fresh=fresh,
        json=json,
        rows=SLOW_ROWS,
        counts={"corrected": lambda answer: bool(answer["errors"])},
    )


def told(corrected: "Corrected") -> dict[str, Any]:
    """A text, the same corrected, the triples of what was wrong, what is right and where, and how sure that is."""
    return {
        "source": corrected.source,
        "target": corrected.target,
        "errors": [list(error) for error in corrected.errors],
        "confidences": [round(one.confidence, 4) for one in corrected.corrections],
    }


def _shown(corrected: "Corrected") -> list[str]:
    return [f"{one.wrong} -> {one.right} ({one.confidence:.2f})" for one in corrected.corrections]


def evaluate_correction(
    data: Path,
    model: str,
    out: Path | None,
    rows: RowSettings,
    settings: CorrectionSettings,
    machine: Machine,
    json: bool,
) -> None:
    """Score a model on texts with mistakes and the same without."""
    from cloze.files import replace_json
    from cloze.predict import load
    from cloze.tasks.correction.files import correction_columns, read_corrections
    from cloze.tasks.correction.metrics import score_corrections

    wanted = read_corrections(data, *correction_columns(rows.text, rows.label), rows.on_bad_row)
    made = load(model, device=machine.use()).correct(wanted.sources, settings)
    results = score_corrections(wanted.sources, wanted.targets, [one.target for one in made])
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        replace_json(out / "eval_results.json", results | {"rows": len(made)})
        pairs = zip(wanted.places, wanted.targets, made, strict=True)
        write_rows(
            out / "predictions.jsonl", [{"row": place, **told(one), "expected": gold} for place, gold, one in pairs]
        )
    if json:
        print_json(results | {"rows": len(made)})
    else:
        print_table(("metric", "value"), [(name, f"{value:.4f}") for name, value in results.items()])
