"""The kind ``choose``: which of several options fits a prompt (section 4.4 of the paper).

Rows -> prompts with options -> training items, one sequence per option. Files: SWAG and ARC as published, and the
user's own tables.

- SWAG: train.csv and val.csv; the prompt is ``sent1``, an option is the start of the second sentence with an ending.
- ARC: the published JSONL, or CSV without a header (question, four options, answer). Answers are letters or, in some
  exams, numbers from 1. The widely used CSV lacks the options of some questions, or the right option of five: by
  default these rows are skipped and counted.
- Own tables: options are columns, or a list in one column. The right option is given by its letter (A is the first),
  its number from 0, or its text; a row in which these could mean different options is refused.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cloze.errors import DataError, format_option
from cloze.files import RowError
from cloze.progress import Progress
from cloze.tasks.answering.examples import find_file, look_for
from cloze.tasks.examples import ExampleList, Item, LabelSet, Read
from cloze.tasks.in_memory import TableSource
from cloze.tasks.kind import PlacedTexts, ReadingOptions, TaskKind, deferred
from cloze.tasks.rows import SEVERAL, OnBadRow, Row, RowFile, Source, read_rows
from cloze.text import Encoding, Tokenizer


@dataclass(frozen=True)
class Choice:
    """One row; ``target`` is the index of the right option, None without a label."""

    place: str
    prompt: str
    options: tuple[str, ...]
    target: int | None = None

    @property
    def texts(self) -> list[str]:
        """The prompt and its options."""
        return [self.prompt, *self.options]


class Choices(ExampleList[Choice]):
    """Rows of prompts with options, whose number may differ between rows."""


def choice_items(examples: Choices, tokenizer: Tokenizer) -> list[Item]:
    """Return one item per row: the prompt with each option, and the index of the right one."""
    encoded = encode_options(tokenizer, [row.prompt for row in examples.rows], [row.options for row in examples.rows])
    targets = [row.target for row in examples.rows]
    assert None not in targets, "training rows have labels"
    return [Item(tuple(one), target) for one, target in zip(encoded, targets, strict=True) if target is not None]


def encode_options(
    tokenizer: Tokenizer, prompts: Sequence[str], options: Sequence[Sequence[str]]
) -> list[list[Encoding]]:
    """Encode ``[CLS] prompt [SEP] option [SEP]`` for every option of every prompt."""
    firsts = [prompt for prompt, own in zip(prompts, options, strict=True) for _ in own]
    encoded = iter(tokenizer.encode_batch(firsts, [option for own in options for option in own]))
    return [[next(encoded) for _ in own] for own in options]


SWAG = {"train": "train.csv", "dev": "val.csv"}
SWAG_ENDINGS = ("ending0", "ending1", "ending2", "ending3")
ARC_COLUMNS = ("question", "A", "B", "C", "D", "answer")
ARC_SETS = ("ARC-Easy", "ARC-Challenge")
ARC_SPLITS = {"train": "Train", "dev": "Dev", "test": "Test"}


def read_swag(source: Source, split: str, labels: LabelSet | None) -> Read:  # noqa: ARG001
    """Read a split of SWAG."""
    rows = read_rows(
        find_file(source, split, SWAG), text="sent1", label="label", on_bad_row=source.on_bad_row or "stop"
    )
    return Read(_gather(rows, _swag_choice, source.on_bad_row))


def read_arc(source: Source, split: str, labels: LabelSet | None) -> Read:  # noqa: ARG001
    """Read a split of ARC, from a folder with one of its two sets or from a file."""
    on_bad_row = source.on_bad_row or "skip"
    path = find_file(source, split, arc_files(source.path))
    if ".jsonl" in path.suffixes:
        return Read(
            _gather(read_rows(path, text="id", label="answerKey", on_bad_row=on_bad_row), _arc_json, on_bad_row)
        )
    rows = read_rows(path, text="question", label="answer", header=ARC_COLUMNS, on_bad_row=on_bad_row)
    return Read(_gather(rows, _arc_choice, on_bad_row))


def read_own_choices(source: Source, split: str, labels: LabelSet | None) -> Read:  # noqa: ARG001
    """Read the user's own table with named columns."""
    path = source.rows_of(split)
    rows = read_rows(
        path,
        text=source.text,
        label=source.label,
        on_bad_row=source.on_bad_row or "stop",
        header=source.header(path),
    )
    columns = option_columns(source.options)
    return Read(_gather(rows, lambda row: _own_choice(row, columns, source.label), source.on_bad_row))


def read_prompts(source: Source, path: TableSource) -> Choices:
    """Read the prompts and options of the user's own table; labels are ignored."""
    rows = read_rows(path, text=source.text, on_bad_row=source.on_bad_row or "stop", header=source.header(path))
    columns = option_columns(source.options)
    return _gather(rows, lambda row: Choice(row.place, row.text, _options(row, columns)), source.on_bad_row)


def each_unlabelled_choice(path: Path, text: str, options: str) -> Iterator[tuple[Choice, Mapping[str, object]]]:
    """Yield each prompt with its options, and all columns of its row, while the file is read."""
    columns = option_columns(options)
    for row in read_rows(path, text=text):
        yield Choice(row.place, row.text, _options(row, columns)), row.fields


def option_columns(names: str) -> tuple[str, ...]:
    """Split a comma-separated list of column names."""
    return tuple(name for part in names.split(",") if (name := part.strip()))


def arc_files(folder: Path) -> dict[str, str]:
    """Return the published file name of each split, for the set of ARC in this folder."""
    found = [name for name in ARC_SETS if folder.is_dir() and any(folder.glob(f"{name}-*.jsonl*"))]
    if len(found) > 1:
        raise DataError(
            f"{folder} has files of both {' and '.join(ARC_SETS)}; name a file, and another as {format_option('dev')}"
        )
    return {split: f"{(found or ARC_SETS)[0]}-{name}.jsonl" for split, name in ARC_SPLITS.items()}


def _swag_choice(row: Row) -> Choice:
    start, endings = row.fields.get("sent2") or "", _options(row, SWAG_ENDINGS)
    options = tuple(f"{start} {ending}".strip() for ending in endings)
    return Choice(row.place, row.text, options, _number(row.label or "", len(options), row.place))


def _arc_choice(row: Row) -> Choice:
    options = _options(row, ARC_COLUMNS[1:5])
    return Choice(row.place, row.text, options, _key(row.label or "", "ABCD"[: len(options)], row.place))


def _arc_json(row: Row) -> Choice:
    question = row.fields.get("question")
    stem = question.get("stem") if isinstance(question, dict) else None
    choices = question.get("choices") if isinstance(question, dict) else None
    if not isinstance(stem, str) or not isinstance(choices, list) or not all(isinstance(one, dict) for one in choices):
        raise RowError(f"{row.place}: 'question' is {question!r:.40}; expected an object with stem and choices")
    options = checked_options([one.get("text") for one in choices], row.place)
    return Choice(
        row.place, stem, options, _key(row.label or "", [str(one.get("label")) for one in choices], row.place)
    )


def _own_choice(row: Row, columns: Sequence[str], label: str) -> Choice:
    options = _options(row, columns)
    value = row.fields[label]
    if isinstance(value, int) and not isinstance(value, bool):
        return Choice(row.place, row.text, options, _number(str(value), len(options), row.place))
    return Choice(row.place, row.text, options, _named(row.label or "", options, row.place))


def _options(row: Row, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the options of a row: one per column, where the last ones may be empty, or all in one column."""
    for name in columns:
        if name not in row.fields:
            raise RowError(
                f"{row.place}: this row has no {name!r}; it has: {', '.join(row.fields)}; name the column or columns "
                f"of the options with {format_option('options')}"
            )
    if len(columns) > 1:
        cells = [row.fields[name] for name in columns]
        while cells and cells[-1] in (None, ""):
            cells.pop()
        return checked_options(cells, row.place)
    value = row.fields[columns[0]]
    return checked_options(value if isinstance(value, list) else str(value).split(SEVERAL), row.place)


def checked_options(options: Sequence[object], place: str) -> tuple[str, ...]:
    """Return the options of a row as texts; raise ``RowError`` unless there are at least two."""
    texts = tuple(option.strip() for option in options if isinstance(option, str) and option.strip())
    if len(texts) != len(options):
        raise RowError(f"{place}: the options are {list(options)!r:.60}; expected non-empty texts")
    if len(texts) < 2:
        raise RowError(f"{place}: {len(texts)} options; expected at least 2 (in one column, separated by |)")
    return texts


def _number(label: str, count: int, place: str) -> int:
    if not label.isdecimal() or int(label) >= count:
        raise RowError(f"{place}: label {label!r} is none of the {count} options; expected 0 to {count - 1}")
    return int(label)


def _key(label: str, keys: Sequence[str], place: str) -> int:
    """Return the index of the option with this key; some exams use numbers from 1 instead of letters."""
    if label in keys:
        return keys.index(label)
    if label.isdecimal() and 1 <= int(label) <= len(keys):
        return int(label) - 1
    raise RowError(f"{place}: label {label!r} is none of the {len(keys)} options; expected {', '.join(keys)}")


def _named(label: str, options: Sequence[str], place: str) -> int:
    """Return the index of the option that a label means by letter, number or text."""
    meant = {index for index, option in enumerate(options) if option == label}
    if label.isdecimal() and int(label) < len(options):
        meant.add(int(label))
    if len(label) == 1 and label.isascii() and label.isalpha() and ord(label.upper()) - ord("A") < len(options):
        meant.add(ord(label.upper()) - ord("A"))
    if len(meant) == 1:
        return meant.pop()
    if not meant:
        raise RowError(
            f"{place}: label {label!r:.40} is none of the {len(options)} options; expected a letter from A, "
            "a number from 0, or the text of an option"
        )
    raise RowError(
        f"{place}: label {label!r:.40} may mean the options {', '.join(map(str, sorted(meant)))} (counted from 0); "
        "identify the option in another way: by letter, number or text"
    )


def _gather(rows: RowFile, make: Callable[[Row], Choice], on_bad_row: OnBadRow | None) -> Choices:
    """Convert the valid rows, and count the others."""
    good: list[Choice] = []
    skipped, problem = 0, ""
    for row in rows:
        try:
            good.append(make(row))
        except RowError as error:
            if on_bad_row != "skip":
                raise
            skipped, problem = skipped + 1, problem or str(error)
    if not good:
        raise DataError(f"{rows.path}: all {skipped} rows are bad; the first: {problem}")
    return Choices(good, skipped + rows.skipped)


def _items(
    examples: Choices,
    tokenizer: Tokenizer,
    options: ReadingOptions,  # noqa: ARG001
    progress: Progress,  # noqa: ARG001
) -> list[Item]:
    return choice_items(examples, tokenizer)


def _read_texts(source: Source, path: Path) -> list[PlacedTexts]:
    return [(row.place, row.texts) for row in read_prompts(source, path).rows]


def read_arc_test(source: Source) -> list[PlacedTexts]:
    """Return the test questions of ARC; empty if the file is missing."""
    if look_for(source.path, arc_files(source.path)["test"]) is None:
        return []
    examples = read_arc(source, "test", None).examples
    return list(zip(examples.places, examples.documents(), strict=True))


_decoded = partial(deferred, "cloze.tasks.choice.decoding")
_baseline = partial(deferred, "cloze.tasks.baselines")

CHOOSE = TaskKind(
    name="choose",
    summary="Choose which of several options fits a prompt.",
    operation="choose",
    head="choice",
    inputs="options",
    targets="index",
    metrics=("accuracy",),
    read=read_own_choices,
    items=_items,
    evaluate=_decoded("evaluate_choices"),
    baseline=_baseline("fit_overlap"),
    floor=_baseline("expect_chance"),
    respond=_decoded("respond"),
    columns=("text", "label", "options"),
    read_texts=_read_texts,
    long_inputs="where options are cut",
    cuts_texts=True,
    answers="one of the options",
)
