"""Tasks of CLUE (Xu et al. 2020) other than text classification: idioms, multiple choice, entities, question answering.

Each is read from the folder that its archive unpacks to (``chid_public``), from a folder with several of these, or from
a file. The tasks that label texts or pairs of texts are in ``classification.published``.

- ChID: passages with blanks ``#idiom000378#``, ten candidate idioms, and the answers in a separate file.
- C3: ``[[lines of the document], [{"question", "choice", "answer"}], id]``; dialogues (d) and mixed texts (m).
- CLUENER: ``{"text", "label": {"name": {"叶老桂": [[9, 11]]}}}`` with the first and last character of each entity.
- DRCD, CMRC 2018: the format of SQuAD.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from cloze.errors import DataError
from cloze.files import RowError
from cloze.tasks.answering.examples import find_file, look_for, read_json_file, read_squad
from cloze.tasks.choice.kind import Choice, Choices, checked_options
from cloze.tasks.classification.published import clue_folders, find_home
from cloze.tasks.examples import LabelSet, Read
from cloze.tasks.kind import PlacedTexts
from cloze.tasks.rows import OnBadRow, Source
from cloze.tasks.tables import Record, open_table
from cloze.tasks.tagging.columns import Sentence, Sentences
from cloze.tasks.tagging.kind import tag_examples
from cloze.tasks.tagging.sequences import OUTSIDE

logger = logging.getLogger("cloze")

Value = TypeVar("Value")

# All tasks of CLUE, with the names that their folders may have.
CLUE: dict[str, tuple[str, ...]] = {
    name: tuple(folder for one in (name, *others) for folder in clue_folders(one))
    for name, others in {
        "afqmc": (),
        "tnews": (),
        "iflytek": (),
        "cmnli": (),
        "ocnli": (),
        "wsc": ("cluewsc2020",),
        "csl": (),
        "cmrc": ("cmrc2018",),
        "drcd": (),
        "chid": (),
        "c3": (),
        "cluener": ("cluener2020",),
    }.items()
}
FILES = {"train": "train.json", "dev": "dev.json", "test": "test.json"}
DRCD = {"train": "DRCD_training.json", "dev": "DRCD_dev.json", "test": "DRCD_test.json"}
C3_PARTS = ("m", "d")

_BLANK = re.compile("#idiom\\d+#")
_THIS_BLANK, _OTHER_BLANK = "____", "……"
# Characters of a passage on either side of a blank; with idiom and special tokens, this is 128 tokens.
_AROUND = 55


def find_task_folder(name: str, folder: Path) -> Path:
    """Return the folder of a CLUE task: a subfolder of ``folder``, or ``folder`` itself."""
    return find_home(folder, CLUE[name])


def has_splits(name: str, folder: Path) -> bool:
    """Return whether the task's folder exists and has training and dev files."""
    home = find_task_folder(name, folder)
    if home == folder:
        return False
    names = [path.name for path in home.iterdir()]
    return all(any(word in file for file in names) for word in ("train", "dev"))


def _at_home(source: Source, name: str) -> Source:
    return replace(source, data=find_task_folder(name, source.path)) if source.path.is_dir() else source


def read_clue_squad(files: Mapping[str, str], source: Source, split: str, labels: LabelSet | None) -> Read:
    """Read a split of CMRC 2018 or DRCD, under its own file names (``files``) or those of CLUE."""
    home = _at_home(source, source.task.lower())
    return read_squad(_squad_names(files, home), True, home, split, labels)


def read_other_clue_questions(files: Mapping[str, str], source: Source) -> list[PlacedTexts]:
    """Return the questions of all splits other than train and dev whose files exist."""
    home = _at_home(source, source.task.lower())
    names = _squad_names(files, home)
    splits = [split for split in names if split not in ("train", "dev") and look_for(home.data, names[split])]
    examples = [read_squad(names, True, home, split, None).examples for split in splits]
    return [placed for rows in examples for placed in zip(rows.places, rows.documents(), strict=True)]


def _squad_names(files: Mapping[str, str], source: Source) -> Mapping[str, str]:
    plain = {split: f"{split}.json" for split in files}
    found = [names for names in (files, plain) if any(look_for(source.path, name) for name in names.values())]
    return found[0] if found else files


def read_clue(name: str, source: Source, split: str, labels: LabelSet | None) -> Read:
    """Read a split of ChID, C3 or CLUENER."""
    if split == "test":
        raise DataError(f"{name}: the labels of its test rows are not published; only dev rows can be scored")
    return _READERS[name](_at_home(source, name), split, labels)


def read_clue_test(name: str, source: Source) -> list[PlacedTexts]:
    """Return the texts of the test rows, which have no labels; none if the file is missing."""
    home = _at_home(source, name)
    if not home.data.is_dir() or look_for(home.data, FILES["test"]) is None:
        return []
    examples = _READERS[name](home, "test", None).examples
    return list(zip(examples.places, examples.documents(), strict=True))


def _read_chid(source: Source, split: str, labels: LabelSet | None) -> Read:  # noqa: ARG001
    """Read a split of ChID: one row per blank."""
    path = find_file(source, split, FILES)
    answers = {} if split == "test" else _read_idiom_answers(path)
    with closing(open_table(path)) as table:
        records = chain.from_iterable(map(_blanks, table))
        rows, skipped = _gather(records, lambda record: _idiom_choice(record, answers, split), path, source.on_bad_row)
    return Read(Choices(rows, skipped))


def _read_idiom_answers(path: Path) -> dict[str, Any]:
    name = path.name.replace(".json", "_answer.json", 1).removesuffix(".gz").removesuffix(".xz")
    found = look_for(path.parent, name)
    if found is None:
        raise DataError(f"{path.parent} has no {name}, the answers to {path.name}; expected ChID as CLUE publishes it")
    answers = read_json_file(found, "ChID")
    if not isinstance(answers, dict):
        raise DataError(f"{found}: expected an object with an answer per blank, such as " + '{"#idiom000378#": 0}')
    return answers


def _blanks(record: Record) -> Iterator[Record]:
    """Yield a record for each blank in the passages of a line."""
    content = record.cells.get("content")
    passages = [content] if isinstance(content, str) else content
    if not isinstance(passages, list) or not all(isinstance(passage, str) for passage in passages):
        raise DataError(f"{record.place}: 'content' is {content!r:.40}; expected a list of passages")
    for passage in passages:
        for blank in _BLANK.finditer(passage):
            before, after = (
                _BLANK.sub(_OTHER_BLANK, side) for side in (passage[: blank.start()], passage[blank.end() :])
            )
            prompt = before[-_AROUND:] + _THIS_BLANK + after[:_AROUND]
            cells = {"blank": blank[0], "prompt": prompt, "candidates": record.cells.get("candidates")}
            yield Record(f"{record.place}:{blank[0]}", cells)


def _idiom_choice(record: Record, answers: Mapping[str, Any], split: str) -> Choice:
    candidates = record.cells["candidates"]
    options = checked_options(candidates if isinstance(candidates, list) else [], record.place)
    prompt = str(record.cells["prompt"])
    if split == "test":
        return Choice(record.place, prompt, options)
    answer = answers.get(str(record.cells["blank"]))
    if type(answer) is not int or not 0 <= answer < len(options):
        raise RowError(f"{record.place}: the answer is {answer!r:.40}; expected a number from 0 to {len(options) - 1}")
    return Choice(record.place, prompt, options, answer)


def _read_c3(source: Source, split: str, labels: LabelSet | None) -> Read:  # noqa: ARG001
    """Read a split of C3: one row per question; the document is the prompt, an option is the question with a choice."""
    paths = _c3_files(source, split)
    records = chain.from_iterable(map(_c3_questions, paths))
    rows, skipped = _gather(records, lambda record: _c3_choice(record, split), paths[0], source.on_bad_row)
    return Read(Choices(rows, skipped))


def _c3_files(source: Source, split: str) -> list[Path]:
    if split == "test" or not source.path.is_dir() or (split == "dev" and source.dev is not None):
        return [find_file(source, split, FILES)]
    names = [(f"{part}-{split}.json", f"c3-{part}-{split}.json") for part in C3_PARTS]
    found = [path for both in names for name in both if (path := look_for(source.path, name)) is not None]
    if not found:
        raise DataError(f"{source.path} has no m-{split}.json or d-{split}.json; expected C3 as published")
    return found


def _c3_questions(path: Path) -> Iterator[Record]:
    documents = read_json_file(path, "C3")
    for number, entry in enumerate(documents if isinstance(documents, list) else [documents], start=1):
        place = f"{path}:{number}"
        if not isinstance(entry, list) or len(entry) < 2 or not all(isinstance(part, list) for part in entry[:2]):
            raise DataError(
                f"{place}: {entry!r:.40} is not a document with questions; expected [[lines], [questions], id]"
            )
        for index, question in enumerate(entry[1], start=1):
            cells = question if isinstance(question, dict) else {}
            yield Record(f"{place}: question {index}", {**cells, "document": entry[0]})


def _c3_choice(record: Record, split: str) -> Choice:
    question, choices, answer = (record.cells.get(name) for name in ("question", "choice", "answer"))
    if not isinstance(question, str) or not isinstance(choices, list):
        raise RowError(f"{record.place}: expected an object with question, choice and answer")
    lines = record.cells["document"]
    prompt = "\n".join(map(str, lines)) if isinstance(lines, list) else str(lines)
    checked = checked_options(choices, record.place)
    options = tuple(f"{question}{choice}" for choice in checked)
    if split == "test":
        return Choice(record.place, prompt, options)
    if str(answer).strip() not in checked:
        raise RowError(f"{record.place}: the answer is {answer!r:.40}, which is none of the choices")
    return Choice(record.place, prompt, options, checked.index(str(answer).strip()))


def _read_cluener(source: Source, split: str, labels: LabelSet | None) -> Read:
    """Read a split of CLUENER as characters with BIO tags; the test rows have no tags."""
    path = find_file(source, split, FILES)
    on_bad_row = source.on_bad_row or "stop"
    overlapping = 0

    def make(record: Record) -> Sentence:
        nonlocal overlapping
        text, tags, left_out = _entity_tags(record, labelled=split != "test")
        overlapping += left_out
        kept = [place for place, character in enumerate(text) if not character.isspace()]
        line = int(record.place.rpartition(":")[2])
        words = [text[place] for place in kept]
        return Sentence(path, line, line, words, [tags[place] for place in kept], [""] * len(words), one_line=True)

    with closing(open_table(path)) as table:
        sentences, skipped = _gather(table, make, path, on_bad_row)
    if overlapping:
        logger.warning("%s: %d entities overlap a longer one and are left out", path, overlapping)
    if split == "test":
        labels = LabelSet((OUTSIDE,))
    return tag_examples(path, Sentences(sentences, skipped=skipped), labels, on_bad_row)


def _entity_tags(record: Record, *, labelled: bool) -> tuple[str, list[str], int]:
    """Return the text of a record, a tag per character, and the number of dropped entities that overlap another."""
    text, entities = record.cells.get("text"), record.cells.get("label", None if labelled else {})
    if not isinstance(text, str) or not text.strip() or not isinstance(entities, dict):
        raise RowError(f"{record.place}: expected a text and " + 'a label such as {"name": {"叶老桂": [[9, 11]]}}')
    tags, left_out = [OUTSIDE] * len(text), 0
    for start, stop, name in sorted(_entity_spans(record, text, entities), key=lambda span: (span[0] - span[1], span)):
        if any(tag != OUTSIDE for tag in tags[start:stop]):
            left_out += 1
            continue
        tags[start:stop] = [f"B-{name}", *[f"I-{name}"] * (stop - start - 1)]
    return text, tags, left_out


def _entity_spans(record: Record, text: str, entities: Mapping[str, Any]) -> Iterator[tuple[int, int, str]]:
    for name, surfaces in entities.items():
        for surface, spans in (surfaces if isinstance(surfaces, dict) else {"": surfaces}).items():
            for span in spans if isinstance(spans, list) else [spans]:
                whole = isinstance(span, list) and len(span) == 2 and all(type(end) is int for end in span)
                if not whole or not surface or text[max(0, span[0]) : span[1] + 1] != surface:
                    raise RowError(
                        f"{record.place}: {name} {surface!r:.40} is at {span!r:.20}, but the text there differs; "
                        "expected its first and last character, counted from 0"
                    )
                yield span[0], span[1] + 1, name


def _gather(
    records: Iterable[Record], make: Callable[[Record], Value], path: Path, on_bad_row: OnBadRow | None
) -> tuple[list[Value], int]:
    """Convert the valid records; return them with the number of invalid ones."""
    good: list[Value] = []
    skipped, problem = 0, ""
    for record in records:
        try:
            good.append(make(record))
        except RowError as error:
            if on_bad_row != "skip":
                raise
            skipped, problem = skipped + 1, problem or str(error)
    if not good:
        reason = f"all {skipped} rows are bad; the first: {problem}" if skipped else "it has no rows"
        raise DataError(f"{path}: {reason}")
    return good, skipped


_READERS: dict[str, Callable[[Source, str, LabelSet | None], Read]] = {
    "chid": _read_chid,
    "c3": _read_c3,
    "cluener": _read_cluener,
}
