"""Extractive question answering (sections 4.2 and 4.3 of the paper): read the data, build windows with targets.

The readers accept SQuAD 1.1, SQuAD 2.0 and CMRC 2018 as published (a folder or a single file, plain or compressed),
other files in the same JSON format, and tables. A location is ``file:id`` in JSON, and ``file:line`` in tables. If an
answer is not at its recorded offset, its nearest occurrence close to the offset is used: some of CMRC's offsets are off
by one or two.

A sequence is the question followed by as much of the context as fits; a long context is split into overlapping windows.
The targets of a window are the first and the last token of the answer, or 0 and 0, the [CLS] token, if the window does
not contain the whole answer. If no window does, the question is trained as unanswerable, and this is reported.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cloze.errors import DataError, RequestError, format_option
from cloze.files import BROKEN_ARCHIVE, COMPRESSED, RowError, open_file
from cloze.progress import Progress
from cloze.tasks.examples import ExampleList, Item, LabelSet, Read
from cloze.tasks.in_memory import TableSource
from cloze.tasks.rows import Columns, OnBadRow, RowFile, Source, make_row, read_rows
from cloze.tasks.tables import Record, table_ending
from cloze.text import Encoding, Pieces, Tokenizer, window_spans

# As in the original code.
LONGEST_QUESTION = 64
STRIDE = 128

NOWHERE = (0, 0)


@dataclass(frozen=True)
class Question:
    """One row. ``answers`` has all acceptable answers; it is empty if the context has no answer.

    ``span`` is the position, in characters, of the first answer that occurs in the context.
    """

    place: str
    id: str
    question: str
    context: str
    answers: tuple[str, ...] = ()
    span: tuple[int, int] | None = None

    @property
    def texts(self) -> list[str]:
        """The question and its context."""
        return [self.question, self.context]


class Questions(ExampleList[Question]):
    """The rows of a question-answering task."""


@dataclass(frozen=True)
class Window:
    """A question with a part of its context."""

    encoding: Encoding
    first: int  # index of the first context token in the encoding
    place: tuple[int, int]  # start and stop of the window's tokens within the context


@dataclass(frozen=True)
class Reading:
    """A question and its context, encoded as one or more windows."""

    offsets: list[tuple[int, int]]  # start and end of each context token, in characters
    windows: list[Window]

    def tokens_of(self, span: tuple[int, int]) -> tuple[int, int]:
        """Return the first and last context token of a span of characters; last < first if there is none."""
        first = bisect_right(self.offsets, span[0], key=lambda offset: offset[1])
        return first, bisect_left(self.offsets, span[1], key=lambda offset: offset[0]) - 1


def answer_items(
    examples: Questions, tokenizer: Tokenizer, stride: int = STRIDE, progress: Progress | None = None
) -> list[Item]:
    """Return the training items: every window of every context, with the first and last token of the answer."""
    questions = [row.question for row in examples.rows]
    contexts = [row.context for row in examples.rows]
    items, lost = list[Item](), 0
    for row, reading in zip(examples.rows, read_contexts(tokenizer, questions, contexts, stride), strict=True):
        tokens = None if row.span is None else reading.tokens_of(row.span)
        targets = [find_target(window, tokens) for window in reading.windows]
        items += [Item((window.encoding,), target) for window, target in zip(reading.windows, targets, strict=True)]
        lost += tokens is not None and all(target == NOWHERE for target in targets)
    if lost and progress is not None:
        progress.say(
            f"{lost} of {len(examples)} training questions have an answer that no window of {tokenizer.max_length} "
            "tokens contains; they are trained as unanswerable: use a larger max_length or a smaller stride"
        )
    return items


def find_target(window: Window, tokens: tuple[int, int] | None) -> tuple[int, int]:
    """Return the answer's tokens as positions in a window; NOWHERE if the window does not contain all of them."""
    if tokens is None or not window.place[0] <= tokens[0] <= tokens[1] < window.place[1]:
        return NOWHERE
    shift = window.first - window.place[0]
    return tokens[0] + shift, tokens[1] + shift


def read_contexts(
    tokenizer: Tokenizer, questions: Sequence[str], contexts: Sequence[str], stride: int = STRIDE
) -> Iterator[Reading]:
    """Yield the windows of each question and its context.

    Windows are ``stride`` tokens apart, but at most half of a window's room for context. An answer that is no longer
    than the other half is therefore contained in one of them.
    """
    if tokenizer.content_length(2) < 2:
        raise RequestError(f"length is {tokenizer.max_length}; a question and its context need at least 5 tokens")
    # Many questions have the same context, which is encoded once.
    distinct = list(dict.fromkeys(contexts))
    read = dict(zip(distinct, tokenizer.encode_pieces(distinct), strict=True))
    for question, context in zip(tokenizer.encode_pieces(questions), contexts, strict=True):
        pieces = read[context]
        yield Reading(pieces.offsets, _windows(tokenizer, question, pieces, stride))


def plan_windows(
    tokenizer: Tokenizer, question: int, context: int, stride: int = STRIDE
) -> tuple[int, list[tuple[int, int]]]:
    """Return how many of a question's tokens are kept, and the start and stop of each window in its context."""
    room = tokenizer.content_length(2)
    # In short sequences, the question must leave half of the room to the context.
    kept = min(question, LONGEST_QUESTION, max(room // 2, room - context))
    room -= kept
    return kept, window_spans(context, room, max(1, min(stride, room // 2)))


def _windows(tokenizer: Tokenizer, question: Pieces, context: Pieces, stride: int) -> list[Window]:
    count, places = plan_windows(tokenizer, len(question), len(context), stride)
    kept = replace(question.slice(0, count), unread=question.unread + len(question) - count)
    first = len(kept) + 2  # after [CLS], the question and [SEP]
    return [Window(tokenizer.assemble(kept, context.slice(*place)), first, place) for place in places]


SQUAD = {"train": "train-v1.1.json", "dev": "dev-v1.1.json"}
SQUAD2 = {"train": "train-v2.0.json", "dev": "dev-v2.0.json"}
CMRC = {"train": "cmrc2018_train.json", "dev": "cmrc2018_dev.json", "trial": "cmrc2018_trial.json"}

# An answer is searched within this many characters of its recorded offset.
NEARBY = 100
# The training set of SQuAD 2.0 has 42 MB; something far larger is a mistake or an attack.
LARGEST_JSON = 2**30

Found = tuple[Any, int | None]  # the text of an answer, and its recorded offset
AnswersOf = Callable[[Record], list[Found]]


def read_squad(
    files: Mapping[str, str],
    always: bool,
    source: Source,
    split: str,
    labels: LabelSet | None,  # noqa: ARG001
) -> Read:
    """Read a split of published files; with ``always``, every question must have an answer."""
    path = find_file(source, split, files)
    make = partial(_question, _json_answers, always=always, trained=split == "train")
    return Read(_gather(json_questions(path), make, path, source.on_bad_row))


def read_own_questions(source: Source, split: str, labels: LabelSet | None) -> Read:  # noqa: ARG001
    """Read the user's own questions: a file in SQuAD's JSON format, or a table with named columns."""
    path = source.rows_of(split)
    cells = partial(_cell_answers, _named(source.label, "label", "answer"))
    return Read(_read_own(source, path, _json_answers, cells))


def read_unanswered(source: Source, path: TableSource) -> Questions:
    """Read the questions of a file in the format of the user's own, ignoring its answers."""
    return _read_own(source, path, lambda _: [], lambda _: [])


def _read_own(source: Source, path: TableSource, of_json: AnswersOf, of_cells: AnswersOf) -> Questions:
    if isinstance(path, Path) and table_ending(path) == ".json":
        return _gather(json_questions(path), partial(_question, of_json), path, source.on_bad_row)
    rows = read_rows(
        path,
        text=_named(source.text, "text", "question"),
        pair=source.pair or "context",
        on_bad_row=source.on_bad_row or "stop",
        header=source.header(path),
    )
    gathered = _gather(_table_questions(rows), partial(_question, of_cells), path, source.on_bad_row)
    return Questions(gathered.rows, gathered.skipped + rows.skipped)


def find_file(source: Source, split: str, files: Mapping[str, str]) -> Path:
    """Return the file of a split: that of --dev, the data if it is a file, or the published one in its folder."""
    if split == "dev" and source.dev_path is not None:
        return source.dev_path
    if not source.path.is_dir():
        return source.path
    if split not in files:
        raise DataError(f"{source.task} has no split {split!r}; choose one of: {', '.join(files)}")
    found = look_for(source.path, files[split])
    if found is not None:
        return found
    raise DataError(
        f"{source.data} has no {files[split]} (nor .gz, .xz, .zst of it); expected {source.task} as published, or one "
        f"file as the data and another as {format_option('dev')}"
    )


def look_for(folder: Path, name: str) -> Path | None:
    """Return a file of a folder, plain or compressed; None if it does not exist."""
    spelled = (folder / f"{name}{ending}" for ending in ("", *COMPRESSED))
    return next((path for path in spelled if path.is_file()), None)


def json_questions(path: Path) -> Iterator[Record]:
    """Yield the questions of a file in SQuAD's format, each with its context."""
    for number, article in enumerate(_list(read_json_file(path, "SQuAD"), "data", str(path))):
        for part, paragraph in enumerate(_list(article, "paragraphs", f"{path}: data[{number}]")):
            place = f"{path}: data[{number}].paragraphs[{part}]"
            for index, question in enumerate(_list(paragraph, "qas", place)):
                if not isinstance(question, dict):
                    raise DataError(f"{place}.qas[{index}] is {question!r:.40}; expected an object with a question")
                name = str(question.get("id", f"{number}-{part}-{index}"))
                yield Record(f"{path}:{name}", {**question, "id": name, "context": paragraph.get("context")})


def _json_answers(record: Record) -> list[Found]:
    answers = record.cells.get("answers", [])
    if record.cells.get("is_impossible") is True:
        return []
    if not isinstance(answers, list) or not all(isinstance(one, dict) for one in answers):
        raise RowError(
            f"{record.place}: 'answers' is {answers!r:.40}; expected a list of objects with text and answer_start"
        )
    return [(one.get("text"), _whole_number(one.get("answer_start"), record.place)) for one in answers]


def _table_questions(rows: RowFile) -> Iterator[Record]:
    for row in rows:
        own: dict[str, object] = {"id": str(row.fields.get("id", row.place)), "question": row.text, "context": row.pair}
        yield Record(row.place, {**row.fields, **own})


def _cell_answers(column: str, record: Record) -> list[Found]:
    """Return the answers of a table row: a text, a list, or the object in which ``datasets`` stores SQuAD's answers."""
    cells, answers = record.cells, record.cells.get("answers")
    if column in cells:
        texts, starts = cells[column], cells.get("answer_start")
    elif isinstance(answers, dict):
        texts, starts = answers.get("text"), answers.get("answer_start")
    else:
        raise RowError(
            f"{record.place}: this row has no {column!r}; it has: {', '.join(cells)}; name the column of "
            f"the answers with {format_option('label')}"
        )
    if not isinstance(texts, list):
        texts, starts = [texts], [starts]
    starts = [None] * len(texts) if starts is None else starts
    if not isinstance(starts, list) or len(starts) != len(texts):
        raise RowError(f"{record.place}: 'answer_start' is {starts!r:.40}; expected a list of {len(texts)} numbers")
    found = zip(texts, starts, strict=True)
    return [(text, _whole_number(start, record.place)) for text, start in found if text not in (None, "")]


def _whole_number(value: object, place: str) -> int | None:
    if value is None or value == "":
        return None
    try:
        return int(value)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, OverflowError) as error:
        raise RowError(
            f"{place}: 'answer_start' is {value!r:.40}; expected the number of characters before the answer"
        ) from error


def _gather(
    records: Iterable[Record], make: Callable[[Record], Question], path: TableSource, on_bad_row: OnBadRow | None
) -> Questions:
    """Convert the valid records, and count the others."""
    rows: dict[str, Question] = {}
    skipped, problem = 0, ""
    for record in records:
        try:
            row = make(record)
            if row.id in rows:
                raise RowError(
                    f"{record.place}: another question has the id {row.id!r}; give each question a unique id"
                )
        except RowError as error:
            if on_bad_row != "skip":
                raise
            skipped, problem = skipped + 1, problem or str(error)
            continue
        rows[row.id] = row
    if not rows:
        why = f"all {skipped} questions are bad; the first: {problem}" if skipped else "it has no question"
        raise DataError(f"{path}: {why}")
    return Questions(list(rows.values()), skipped)


def _question(answers_of: AnswersOf, record: Record, *, always: bool = False, trained: bool = True) -> Question:
    """Convert a record to a row; with ``trained``, its answer must occur in the context."""
    row = make_row(record, Columns("question", "context"))
    context = row.pair or ""
    answers = answers_of(record)
    if not answers and always:
        raise RowError(
            f"{record.place}: this question has no answer; use squad2 or answer for such questions, or pass "
            f"{format_option('on_bad_row', 'skip')}"
        )
    for text, _ in answers:
        if not isinstance(text, str) or not text.strip():
            raise RowError(f"{record.place}: an answer is {text!r:.40}; expected a text that occurs in the context")
    spans = [locate(text, start, context) for text, start in answers]
    span = next((span for span in spans if span is not None), None)
    if answers and span is None and trained:
        text, start = answers[0]
        where = "in the context" if start is None else f"at character {start} of the context, nor nearby"
        raise RowError(
            f"{record.place}: the answer {text[:40]!r} does not occur {where}; correct it, or pass "
            f"{format_option('on_bad_row', 'skip')}"
        )
    return Question(record.place, str(record.cells["id"]), row.text, context, tuple(text for text, _ in answers), span)


def locate(text: str, start: int | None, context: str) -> tuple[int, int] | None:
    """Return the position of an answer: at ``start``, else the nearest close to it; anywhere if ``start`` is None."""
    if start is None:
        nearest = context.find(text)
    elif start >= 0 and context.startswith(text, start):
        nearest = start
    else:
        before = context.rfind(text, max(0, start - NEARBY), max(0, start) + len(text))
        after = context.find(text, max(0, start), max(0, start + NEARBY) + len(text))
        nearest = min((before, after), key=lambda place: abs(place - start) if place >= 0 else len(context) + NEARBY)
    return None if nearest < 0 else (nearest, nearest + len(text))


def _named(given: str, usual: str, own: str) -> str:
    """Return the column named by a flag or, if it has its default, the usual column of questions."""
    return own if given == usual else given


def read_json_file(path: Path, form: str) -> Any:
    """Read a JSON file that may be compressed; ``form`` is the name of the expected format."""
    try:
        with open_file(path) as stream:
            content = stream.read(LARGEST_JSON + 1)
    except BROKEN_ARCHIVE as error:
        raise DataError(f"{path}: cannot be decompressed ({error}); it is damaged or cut short") from error
    if len(content) > LARGEST_JSON:
        raise DataError(f"{path}: more than {LARGEST_JSON // 2**20} MB; expected a file in the format of {form}")
    try:
        return json.loads(content)
    # UnicodeDecodeError and too many digits are ValueErrors as well; deep nesting exhausts the recursion limit.
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({str(error)[:80]}); expected a file in the format of {form}") from error


def _list(value: Any, name: str, place: str) -> list[Any]:
    found = value.get(name) if isinstance(value, dict) else None
    if not isinstance(found, list):
        raise DataError(f"{place}: {name!r} is {found!r:.40}; expected a list, as in the format of SQuAD")
    return found
