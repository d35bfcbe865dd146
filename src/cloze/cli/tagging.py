"""``cloze tag``."""

import json as json_format
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from cloze.cli.console import print_json, print_table, tell_written
from cloze.cli.inputs import gather_texts
from cloze.cli.outputs import ROW_FILES, beside, check_ending, write_rows
from cloze.cli.predictions import HERE, Place
from cloze.models import SHIPPED_MODEL
from cloze.tasks.source import RowSettings

if TYPE_CHECKING:
    from cloze.predict import Model, Tagged
    from cloze.tasks.columns import Sentences

# Files with a word a line.
COLUMNS = {".conll", ".conllu", ".iob", ".iob2", ".bio", ".bioes"}


@dataclass(frozen=True)
class Asked:
    """Texts, or sentences as words, and what stood beside them."""

    texts: Sequence[str] | Sequence[Sequence[str]]
    fields: Sequence[Mapping[str, object]] = ()  # the columns of a table
    columns: "Sentences | None" = None  # of a column file
    order: Sequence[int] = field(default_factory=list)


def tag(
    texts: Annotated[list[str] | None, Parameter(help="Texts; standard input, a line each, if none are given.")] = None,
    /,
    *,
    model: str = SHIPPED_MODEL,
    input: Path | None = None,  # noqa: A002 (the flag's name is fixed)
    output: Path | None = None,
    text: str = RowSettings.text,
    json: bool = False,
    machine: Place = HERE,
) -> None:
    """Tag the words of texts, and find the names in them, with a fine-tuned model.

    Args:
        model: A fine-tuned model folder or run, or a hub name.
        input: A file: a text a line; CSV, TSV, JSONL or Parquet; or a word a line (.conll). Its columns are kept.
        output: Where to write: .jsonl, .csv, .tsv, or .conll with a word and its tag a line.
        text: The column with the texts; in JSONL and Parquet these may be lists of words. Of a word a line, its number.
        json: Print JSON.
    """
    if output is not None:
        check_ending(output, (*ROW_FILES, ".conll"))
    asked = _gather(texts, input, text)
    loaded = machine.load(model)
    found = _tag(loaded, asked)
    if output is not None and output.suffix == ".conll":
        _write_columns(output, asked, found)
    elif output is not None:
        write_rows(output, _rows(asked, found, flat=output.suffix != ".jsonl"))
    elif json:
        for row in _rows(asked, found, flat=False):
            print_json(row)
    else:
        _show(loaded, found)
    if output is not None:
        tell_written(output, len(found), json, entities=sum(len(one.entities) for one in found))


def _gather(texts: Sequence[str] | None, path: Path | None, column: str) -> Asked:
    if path is not None and not texts and COLUMNS & set(path.suffixes):
        from cloze.tasks.columns import column_number, read_columns

        word = 1 if column == RowSettings.text else column_number("text", column, path)
        found = read_columns(path, tagged=False, word=word)
        order = [sentence.order for sentence in found.sentences]
        return Asked([sentence.words for sentence in found.sentences], columns=found, order=order)
    if path is not None and not texts:
        from cloze.tasks.tag import is_word_table, take_word_lists

        lists = take_word_lists(path, column) if is_word_table(path) else None
        if lists is not None:
            return Asked(*lists)
    inputs = gather_texts(texts, path, text=column)
    return Asked(inputs.texts, inputs.fields)


def _tag(model: "Model", asked: Asked) -> "list[Tagged]":
    """Sentences of a file that has documents are read together, if the model was trained that way."""
    from cloze.predict.tagging import tag_texts
    from cloze.tasks.tag import group_neighbours

    together = asked.columns is not None and model.task is not None and model.task.context
    return tag_texts(model, asked.texts, group_neighbours(asked.order) if together else None)


def _rows(asked: Asked, found: "Sequence[Tagged]", *, flat: bool) -> list[dict[str, object]]:
    """A row a text, beside the columns that it had; ``flat`` for files whose cells are texts."""
    kept = asked.fields or [{"text": one.text} for one in found]
    answers = []
    for one in found:
        words, tags = [word.text for word in one.words], [word.tag for word in one.words]
        entities = [asdict(entity) for entity in one.entities]
        answer: dict[str, object] = {"words": words, "tags": tags, "entities": entities}
        if flat:
            told = json_format.dumps(entities, ensure_ascii=False)
            answer = {"words": " ".join(words), "tags": " ".join(tags), "entities": told}
        answers.append(answer)
    return beside(kept, answers)


def _write_columns(path: Path, asked: Asked, found: "Sequence[Tagged]") -> None:
    from cloze.files import replaced_file
    from cloze.tasks.columns import columns_text

    tags = [[word.tag for word in one.words] for one in found]
    if asked.columns is not None:
        beside = [[one.words, one.between] for one in asked.columns.sentences]
    else:
        beside = [[[word.text for word in one.words]] for one in found]
    sentences = [[*columns, told] for columns, told in zip(beside, tags, strict=True)]
    marked = asked.columns is not None and asked.columns.marked
    with replaced_file(path) as temporary:
        temporary.write_text(columns_text(sentences, asked.order if marked else None), encoding="utf-8")


def _show(model: "Model", found: "Sequence[Tagged]") -> None:
    """The entities of each text; its words, where the tags tell of none."""
    from cloze.tasks.entities import are_entities

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
