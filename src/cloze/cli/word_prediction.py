"""Predictions per word: ``cloze tag`` and ``cloze correct``, and ``cloze evaluate correction``.

``cloze tag`` reads texts, tables or column files with one word per line, and writes rows or a column file.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from cyclopts import Parameter

from cloze.cli import inputs
from cloze.cli.console import Machine, print_json, print_scores, print_table
from cloze.cli.inputs import Inputs, Survey, Texts, read_arguments, split_parts
from cloze.cli.jobs import OPTIONS, Options, Prediction, PredictionOptions, Row, TextPrediction, run_prediction
from cloze.cli.outputs import ROW_FILES, beside, join_parts, write_rows
from cloze.resumable import file_identity
from cloze.tasks.correction.kind import CORRECTION_NAME, CorrectionSettings
from cloze.tasks.rows import RowSettings

if TYPE_CHECKING:
    from cloze.predict import Corrected, Model, Tagged
    from cloze.tasks.tagging.columns import Columns, Sentences


# Suffixes of column files: one word per line, a blank line between sentences.
COLUMN_FILES = {".conll", ".conllu", ".iob", ".iob2", ".bio", ".bioes"}


@dataclass(frozen=True)
class TagOptions(PredictionOptions):
    """Options of ``cloze tag``, which also supports column files."""

    input: Path | None = None
    """A file: one text per line; CSV, TSV, JSONL or Parquet; or one word per line (.conll). Columns are copied."""
    output: Path | None = None
    """Where to write: .jsonl, .csv, .tsv, or .conll (word and tag per line). Re-running the command resumes it."""


@dataclass(frozen=True)
class Sequences:
    """Texts, or sentences as lists of words, with the columns of their rows."""

    texts: Sequence[str] | Sequence[Sequence[str]]
    fields: Sequence[Mapping[str, object]] = ()  # the columns of a table
    columns: "Sentences | None" = None  # the sentences of a column file
    order: Sequence[int] = ()

    @property
    def kept(self) -> Sequence[Mapping[str, object]]:
        """Return the columns to write next to each prediction: those of a table, or else the text."""
        from cloze.tasks.tagging.kind import join_words

        return self.fields or [{"text": text if isinstance(text, str) else join_words(text)[0]} for text in self.texts]

    @property
    def marks_documents(self) -> bool:
        """Return whether the column file has lines that start documents."""
        return self.columns is not None and self.columns.marked

    @classmethod
    def from_columns(cls, columns: "Sentences") -> "Sequences":
        """Return the sentences of a column file."""
        order = [sentence.order for sentence in columns.sentences]
        return cls([sentence.words for sentence in columns.sentences], columns=columns, order=order)

    @classmethod
    def from_texts(cls, texts: inputs.Inputs) -> "Sequences":
        """Return running texts."""
        return cls(texts.texts, texts.fields)


@dataclass(frozen=True)
class Tag(Prediction[Sequences, "Tagged"]):
    """The tags of words, and the entities they mark."""

    output_formats: ClassVar[tuple[str, ...]] = (*ROW_FILES, ".conll")

    text: str = RowSettings.text

    def can_read_in_parts(self, path: Path) -> bool:
        """Return False for a piped table: its first row determines its format, but a pipe cannot be read twice."""
        from cloze.tasks.tagging.kind import is_word_table

        return not (path.is_fifo() and is_word_table(path))

    def read_file(self, path: Path) -> Sequences:
        """Read a whole file."""
        if COLUMN_FILES & set(path.suffixes):
            from cloze.tasks.tagging.columns import read_columns

            return Sequences.from_columns(read_columns(path, tagged=False, word=self._word_column(path)))
        from cloze.tasks.tagging.kind import is_word_table, read_word_list_column

        word_lists = read_word_list_column(path, self.text) if is_word_table(path) else None
        if word_lists is not None:
            return Sequences(*word_lists)
        return Sequences.from_texts(inputs.read_file(path, text=self.text))

    def read_parts(self, model: "Model", path: Path, rows: int) -> Iterator[Sequences]:
        """Read a file, ``rows`` rows at a time; a document stays whole if the model uses it as context."""
        from cloze.tasks.tagging.columns import read_column_parts
        from cloze.tasks.tagging.kind import has_word_lists, is_word_table, iter_word_lists

        if COLUMN_FILES & set(path.suffixes):
            whole, word = _uses_context(model), self._word_column(path)
            yield from map(Sequences.from_columns, read_column_parts(path, rows, whole=whole, word=word))
        elif is_word_table(path) and has_word_lists(path, self.text):
            for part in split_parts(iter_word_lists(path, self.text), rows):
                yield Sequences([words for words, _ in part], [fields for _, fields in part])
        else:
            yield from map(Sequences.from_texts, inputs.read_parts(path, rows, text=self.text))

    def _word_column(self, path: Path) -> int:
        """Return the number of the column with the words in a column file."""
        from cloze.tasks.tagging.columns import column_number

        return 1 if self.text == RowSettings.text else column_number("text", self.text, path)

    def predict(self, model: "Model", part: Sequences) -> "list[Tagged]":
        """Tag the words, with neighbouring sentences as context if the model was trained that way."""
        from cloze.tasks.tagging.decoding import tag_texts
        from cloze.tasks.tagging.kind import group_neighbours

        together = part.columns is not None and _uses_context(model)
        return tag_texts(model, part.texts, group_neighbours(part.order) if together else None)

    def to_row(self, result: "Tagged") -> Row:
        """Return the words, their tags and the entities."""
        return {
            "words": [word.text for word in result.words],
            "tags": [word.tag for word in result.words],
            "entities": [asdict(entity) for entity in result.entities],
        }

    def counts(self, results: "Sequence[Tagged]") -> Mapping[str, int]:
        """Return the number of entities."""
        return {"entities": sum(len(result.entities) for result in results)}

    def write(self, path: Path, part: Sequences, results: "Sequence[Tagged]", survey: Survey | None = None) -> None:
        """Write rows, or a column file."""
        if path.suffix != ".conll":
            columns = survey.columns if survey else ()
            rows = map(self.to_row, results)
            # CSV and TSV have no lists: words and tags are separated by spaces.
            answers = list(rows if path.suffix == ".jsonl" else map(_flatten, rows))
            write_rows(path, beside(part.kept, answers, columns), columns)
            return
        from cloze.files import replaced_file
        from cloze.tasks.tagging.columns import columns_text

        text = columns_text(_columns(part, results), part.order if part.marks_documents else None)
        with replaced_file(path) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def write_part(self, path: Path, part: Sequences, results: "Sequence[Tagged]", survey: Survey | None) -> None:
        """Write the file of one part; for a column file, as JSON, because a later part may determine the separator."""
        if path.suffix != ".conll":
            self.write(path, part, results, survey)
            return
        from cloze.files import replace_json_lines

        order: Sequence[int | None] = part.order or [None] * len(results)
        sentences = zip(_columns(part, results), order, strict=True)
        replace_json_lines(
            path,
            ({"columns": columns, "order": number, "marked": part.marks_documents} for columns, number in sentences),
        )

    def join(self, parts: Sequence[Path], path: Path) -> None:
        """Join the files of all parts."""
        (_join_columns if path.suffix == ".conll" else join_parts)(parts, path)

    def print_table(self, model: "Model", part: Sequences, results: "Sequence[Tagged]") -> None:  # noqa: ARG002
        """Print the entities of each text, or its words if the tags do not mark entities."""
        from cloze.tasks.tagging.sequences import have_entity_prefixes

        if model.task is not None and have_entity_prefixes(model.task.names):
            entities = [
                (number, entity.text, entity.label, f"{entity.probability:.4f}", entity.start, entity.end)
                for number, result in enumerate(results, start=1)
                for entity in result.entities
            ]
            print_table(("text", "entity", "label", "probability", "start", "end"), entities)
            return
        words = [
            (number, word.text, word.tag, f"{word.probability:.4f}")
            for number, result in enumerate(results, start=1)
            for word in result.words
        ]
        print_table(("text", "word", "tag", "probability"), words)


def tag(
    texts: Texts = None,
    /,
    *,
    text: str = Tag.text,
    options: Annotated[TagOptions, Parameter(name="*")] = TagOptions(),
) -> None:
    """Tag the words of texts, and find the entities in them, with a fine-tuned model.

    Args:
        texts: Texts to tag; by default, the lines of standard input.
        text: The column with the texts (in JSONL and Parquet, also lists of words); for column files, the column
            number.
    """
    arguments = read_arguments(texts, options.input)
    run_prediction(Tag(text), None if arguments is None else Sequences.from_texts(arguments), options)


def _uses_context(model: "Model") -> bool:
    return model.task is not None and model.task.context


def _flatten(row: Row) -> Row:
    entities = json.dumps(row["entities"], ensure_ascii=False)
    return {"words": " ".join(row["words"]), "tags": " ".join(row["tags"]), "entities": entities}


def _columns(part: Sequences, results: "Sequence[Tagged]") -> "list[Columns]":
    """Return the columns of each sentence: words, the other columns of a column file, tags."""
    if part.columns is not None:
        kept = [[sentence.words, sentence.between] for sentence in part.columns.sentences]
    else:
        kept = [[[word.text for word in result.words]] for result in results]
    tags = [[word.tag for word in result.words] for result in results]
    return [[*columns, sentence_tags] for columns, sentence_tags in zip(kept, tags, strict=True)]


def _join_columns(parts: Sequence[Path], path: Path) -> None:
    """Write one column file from the contents of all parts, which are read three times, one sentence at a time."""
    from cloze.files import replaced_file
    from cloze.tasks.tagging.columns import find_layout, iter_column_texts

    def sentences() -> Iterator[dict[str, Any]]:
        for part in parts:
            with part.open(encoding="utf-8") as file:
                yield from map(json.loads, file)

    layout = find_layout(sentence["columns"] for sentence in sentences())
    # The starts of documents are marked in the whole file or not at all.
    marked = any(sentence["marked"] for sentence in sentences())
    order = (sentence["order"] for sentence in sentences()) if marked else None
    with replaced_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(iter_column_texts((sentence["columns"] for sentence in sentences()), order, layout))


# -- cloze correct -----------------------------------------------------------------------------------------------------


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
