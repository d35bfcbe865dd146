"""``cloze correct``, and ``cloze evaluate correction``."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from cyclopts import Parameter

from cloze.cli.console import Machine, print_json, print_scores, print_table
from cloze.cli.inputs import Inputs, Texts, read_arguments
from cloze.cli.jobs import OPTIONS, Options, Row, TextPrediction, run_prediction
from cloze.cli.outputs import write_rows
from cloze.cli.resumable import file_identity
from cloze.tasks.correction.kind import CORRECTION_NAME, CorrectionSettings
from cloze.tasks.rows import RowSettings

if TYPE_CHECKING:
    from cloze.predict import Corrected, Model

SETTINGS = CorrectionSettings()


@dataclass(frozen=True)
class Correct(TextPrediction["Corrected"]):
    """Corrections of texts."""

    slow: ClassVar[bool] = True

    settings: CorrectionSettings = SETTINGS

    def predictor(self, model: "Model") -> "Callable[[Inputs], Sequence[Corrected]]":
        """Return a function that corrects one part; the corrector is created only once, since that takes time."""
        from cloze.predict.corrector import Corrector
        from cloze.predict.preprocessing import require_head

        require_head(model.bert, "mlm")
        corrector = Corrector(model, self.settings)
        return lambda part: corrector.correct(part.texts)

    def predict(self, model: "Model", part: Inputs) -> "Sequence[Corrected]":
        """Correct each text."""
        return self.predictor(model)(part)

    def kept(self, part: Inputs) -> Sequence[Mapping[str, object]]:
        """Return the columns of the file; the text itself is written as ``source`` in any case."""
        return part.fields or [{} for _ in part.texts]

    def to_row(self, result: "Corrected") -> Row:
        """Return the text before and after, and its corrections."""
        return correction_row(result)

    def to_json(self, part: Inputs, results: "Sequence[Corrected]") -> Iterable[Row]:  # noqa: ARG002
        """Return the same rows as for a file, without the columns of the input."""
        return map(correction_row, results)

    def counts(self, results: "Sequence[Corrected]") -> Mapping[str, int]:
        """Return the number of corrected texts."""
        return {"corrected": sum(bool(result.corrections) for result in results)}

    def identity(self, model: "Model") -> dict[str, Any]:
        """Return the settings for this model, with hashes of files, which may change under the same name."""
        settings = asdict(self.settings.completed(model.correcting))
        for name in ("similar", "protect"):
            settings[name] = None if settings[name] is None else file_identity(settings[name])
        identity = super().identity(model)
        del identity["settings"]
        return identity | settings

    def print_table(self, model: "Model", part: Inputs, results: "Sequence[Corrected]") -> None:  # noqa: ARG002
        """Print each corrected text with its corrections."""
        rows = [
            (
                result.target,
                ", ".join(f"{one.wrong} -> {one.right} ({one.confidence:.2f})" for one in result.corrections),
            )
            for result in results
        ]
        print_table(("text", "corrections"), rows)


def correct(
    texts: Texts = None,
    /,
    *,
    settings: Annotated[CorrectionSettings, Parameter(name="*")] = SETTINGS,
    text: str = Correct.text,
    options: Options = OPTIONS,
) -> None:
    """Find characters or words that are unlikely in their context, and correct them.

    Args:
        texts: Texts to correct; by default, the lines of standard input.
        text: The column with the texts.
    """
    run_prediction(Correct(text=text, settings=settings), read_arguments(texts, options.input), options)


def correction_row(corrected: "Corrected") -> Row:
    """Return a text before and after correction, its (wrong, right, position) triples, and their confidences."""
    return {
        "source": corrected.source,
        "target": corrected.target,
        "errors": [list(error) for error in corrected.errors],
        "confidences": [round(correction.confidence, 4) for correction in corrected.corrections],
    }


def evaluate_correction(
    data: Path,
    model: str,
    out: Path | None,
    rows: RowSettings,
    settings: CorrectionSettings,
    machine: Machine,
    json: bool,
) -> None:
    """Evaluate corrections of texts with mistakes against the correct texts."""
    from cloze.files import replace_json
    from cloze.predict import Evaluation, load
    from cloze.tasks.correction.examples import correction_columns, read_corrections
    from cloze.tasks.correction.metrics import CorrectedRows, score_corrections

    header = rows.source(CORRECTION_NAME, data).header(data)
    expected = read_corrections(data, *correction_columns(rows.text, rows.label), rows.on_bad_row, header)
    corrections = load(model, device=machine.use()).correct(expected.sources, settings)
    corrected = [correction.target for correction in corrections]
    evaluation = Evaluation(
        score_corrections(expected.sources, expected.targets, corrected),
        corrected,
        expected.places,
        skipped=expected.skipped,
        rows=CorrectedRows(expected.sources, expected.targets, corrected),
    )
    results = evaluation.results()
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        replace_json(out / "eval_results.json", results)
        pairs = zip(expected.places, expected.targets, corrections, strict=True)
        predictions = [
            {"row": place, **correction_row(correction), "expected": target} for place, target, correction in pairs
        ]
        write_rows(out / "predictions.jsonl", predictions)
    print_json(results) if json else print_scores(results)
