"""``cloze tag``."""

import json as json_format
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from cloze.cli.classifying import HERE, Place
from cloze.cli.console import print_json, print_table, tell_written
from cloze.cli.inputs import Survey, cut_parts, gather_texts, read_parts
from cloze.cli.outputs import ROW_FILES, beside, check_ending, join_parts, write_rows
from cloze.cli.streaming import Tally, stream_parts
from cloze.models import SHIPPED_MODEL
from cloze.tasks.source import RowSettings

if TYPE_CHECKING:
    from cloze.predict import Model, Tagged
    from cloze.tasks.tagging.columns import Columns, Sentences

# Files with a word a line.
COLUMNS = {".conll", ".conllu", ".iob", ".iob2", ".bio", ".bioes"}


@dataclass(frozen=True)
class Asked:
    """Texts, or sentences as words, and what stood beside them."""

    texts: Sequence[str] | Sequence[Sequence[str]]
    fields: Sequence[Mapping[str, object]] = ()  # the columns of a table
    columns: "Sentences | None" = None  # of a column file
    order: Sequence[int] = field(default_factory=list)

    @property
    def kept(self) -> Sequence[Mapping[str, object]]:
        """What stands beside each answer: the columns of a table, else the text."""
        from cloze.tasks.tagging.examples import join_words

        return self.fields or [{"text": text if isinstance(text, str) else join_words(text)[0]} for text in self.texts]


def tag(
    texts: Annotated[list[str] | None, Parameter(help="Texts; standard input, a line each, if none are given.")] = None,
    /,
    *,
    model: str = SHIPPED_MODEL,
    input: Path | None = None,  # noqa: A002 (the flag's name is fixed)
    output: Path | None = None,
    text: str = RowSettings.text,
    fresh: bool = False,
    json: bool = False,
    machine: Place = HERE,
) -> None:
    """Tag the words of texts, and find the names in them, with a fine-tuned model.

    Args:
        model: A fine-tuned model folder or run, or a hub name.
        input: A file: a text a line; CSV, TSV, JSONL or Parquet; or a word a line (.conll). Its columns are kept.
        output: Where to write: .jsonl, .csv, .tsv, or .conll with a word and its tag a line; if it was stopped, the
            same command goes on.
        text: The column with the texts; in JSONL and Parquet these may be lists of words. Of a word a line, its number.
        fresh: Begin anew in place of going on.
        json: Print JSON.
    """
    if output is not None:
        check_ending(output, (*ROW_FILES, ".conll"))
    if input is not None and output is not None and not texts and not _is_piped_table(input):
        _tag_file(machine.load(model), input, output, text, fresh=fresh, json=json)
        return
    asked = _gather(texts, input, text)
    loaded = machine.load(model)
    found = _tag(loaded, asked)
    if output is not None:
        _write(output, asked, found)
        tell_written(output, len(found), json, entities=_count_entities(found))
    elif json:
        for row in _rows(asked, found, flat=False):
            print_json(row)
    else:
        _show(loaded, found)


def _is_piped_table(path: Path) -> bool:
    """Whether it takes the first row to know how a file is read, and there is no reading it a second time."""
    from cloze.tasks.tagging.examples import is_word_table

    return path.is_fifo() and is_word_table(path)


def _gather(texts: Sequence[str] | None, path: Path | None, column: str) -> Asked:
    if path is not None and not texts and COLUMNS & set(path.suffixes):
        from cloze.tasks.tagging.columns import read_columns

        return _of_columns(read_columns(path, tagged=False, word=_word_column(path, column)))
    if path is not None and not texts:
        from cloze.tasks.tagging.examples import is_word_table, take_word_lists

        lists = take_word_lists(path, column) if is_word_table(path) else None
        if lists is not None:
            return Asked(*lists)
    inputs = gather_texts(texts, path, text=column)
    return Asked(inputs.texts, inputs.fields)


def _word_column(path: Path, column: str) -> int:
    """The number of the column with the words, where a word stands on a line."""
    from cloze.tasks.tagging.columns import column_number

    return 1 if column == RowSettings.text else column_number("text", column, path)


def _of_columns(found: "Sentences") -> Asked:
    order = [sentence.order for sentence in found.sentences]
    return Asked([sentence.words for sentence in found.sentences], columns=found, order=order)


def _read(path: Path, column: str, rows: int, *, together: bool) -> Iterator[Asked]:
    """A file, so many rows at a time; the sentences of a document are in one part where they are read together."""
    from cloze.tasks.tagging.columns import read_column_parts
    from cloze.tasks.tagging.examples import each_word_list, has_word_lists, is_word_table

    if COLUMNS & set(path.suffixes):
        word = _word_column(path, column)
        yield from map(_of_columns, read_column_parts(path, rows, whole=together, word=word))
    elif is_word_table(path) and has_word_lists(path, column):
        for part in cut_parts(each_word_list(path, column), rows):
            yield Asked([words for words, _ in part], [fields for _, fields in part])
    else:
        for inputs in read_parts(path, rows, text=column):
            yield Asked(inputs.texts, inputs.fields)


def _tag_file(model: "Model", source: Path, output: Path, text: str, *, fresh: bool, json: bool) -> None:
    """Tag a file of any size into another."""
    tally, together = Tally(output), _reads_together(model)

    def read(rows: int) -> Iterator[Asked]:
        return _read(source, text, rows, together=together)

    def write(part: Asked, path: Path, survey: Survey | None) -> None:
        found = _tag(model, part)
        tally.note(path, {"entities": _count_entities(found)})
        if path.suffix == ".conll" and path != output:
            _write_column_part(path, part, found)
        else:
            _write(path, part, found, survey.columns if survey else ())

    def join(parts: Sequence[Path], path: Path) -> None:
        tally.add_up(parts)
        (_join_columns if path.suffix == ".conll" else join_parts)(parts, path)

    count = stream_parts(model, source, output, read, write, join=join, settings={"text": text}, fresh=fresh)
    tell_written(output, count, json, **tally.counts)


def _reads_together(model: "Model") -> bool:
    return model.task is not None and model.task.context


def _tag(model: "Model", asked: Asked) -> "list[Tagged]":
    """Sentences of a file that has documents are read together, if the model was trained that way."""
    from cloze.predict.tagging import tag_texts
    from cloze.tasks.tagging.examples import group_neighbours

    together = asked.columns is not None and _reads_together(model)
    return tag_texts(model, asked.texts, group_neighbours(asked.order) if together else None)


def _count_entities(found: "Sequence[Tagged]") -> int:
    return sum(len(one.entities) for one in found)


def _rows(
    asked: Asked, found: "Sequence[Tagged]", columns: Sequence[str] = (), *, flat: bool
) -> list[dict[str, object]]:
    """A row a text, beside the columns that it had; ``flat`` for files whose cells are texts."""
    answers = []
    for one in found:
        words, tags = [word.text for word in one.words], [word.tag for word in one.words]
        entities = [asdict(entity) for entity in one.entities]
        answer: dict[str, object] = {"words": words, "tags": tags, "entities": entities}
        if flat:
            told = json_format.dumps(entities, ensure_ascii=False)
            answer = {"words": " ".join(words), "tags": " ".join(tags), "entities": told}
        answers.append(answer)
    return beside(asked.kept, answers, columns)


def _write(path: Path, asked: Asked, found: "Sequence[Tagged]", columns: Sequence[str] = ()) -> None:
    """Write what was found; ``columns`` are those of the whole file, where this is a part of it."""
    if path.suffix != ".conll":
        write_rows(path, _rows(asked, found, columns, flat=path.suffix != ".jsonl"), columns)
        return
    from cloze.files import replaced_file
    from cloze.tasks.tagging.columns import columns_text

    marked = asked.columns is not None and asked.columns.marked
    text = columns_text(_columns(asked, found), asked.order if marked else None)
    with replaced_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _columns(asked: Asked, found: "Sequence[Tagged]") -> "list[Columns]":
    """Each sentence as its columns: words, what stood beside them in a column file, tags."""
    tags = [[word.tag for word in one.words] for one in found]
    if asked.columns is not None:
        kept = [[one.words, one.between] for one in asked.columns.sentences]
    else:
        kept = [[[word.text for word in one.words]] for one in found]
    return [[*columns, told] for columns, told in zip(kept, tags, strict=True)]


def _write_column_part(path: Path, asked: Asked, found: "Sequence[Tagged]") -> None:
    """Keep what a part of a column file will hold: how its cells are parted, the last part may decide."""
    from cloze.files import replace_json_lines

    marked = asked.columns is not None and asked.columns.marked
    order: Sequence[int | None] = asked.order or [None] * len(found)
    sentences = zip(_columns(asked, found), order, strict=True)
    replace_json_lines(path, ({"columns": columns, "order": number, "marked": marked} for columns, number in sentences))


def _join_columns(parts: Sequence[Path], path: Path) -> None:
    """Make one column file of what was kept; it is read three times, a sentence at a time."""
    from cloze.files import replaced_file
    from cloze.tasks.tagging.columns import column_texts, find_layout

    def sentences() -> Iterator[dict[str, Any]]:
        for part in parts:
            with part.open(encoding="utf-8") as file:
                yield from map(json_format.loads, file)

    layout = find_layout(one["columns"] for one in sentences())
    # Where documents begin is said of all of a file, or of none.
    marked = any(one["marked"] for one in sentences())
    order = (one["order"] for one in sentences()) if marked else None
    with replaced_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(column_texts((one["columns"] for one in sentences()), order, layout))


def _show(model: "Model", found: "Sequence[Tagged]") -> None:
    """The entities of each text; its words, where the tags tell of none."""
    from cloze.tasks.tagging.entities import are_entities

    if model.task is not None and are_entities(model.task.names):
        entities = [
            (number, entity.text, entity.label, f"{entity.probability:.4f}", entity.start, entity.end)
            for number, one in enumerate(found, start=1)
            for entity in one.entities
        ]
        print_table(("text", "entity", "label", "probability", "start", "end"), entities)
        return
    words = [
        (number, word.text, word.tag, f"{word.probability:.4f}")
        for number, one in enumerate(found, start=1)
        for word in one.words
    ]
    print_table(("text", "word", "tag", "probability"), words)
