"""Examples of extractive question answering (sections 4.2 and 4.3 of the paper): windows with start and end targets.

A sequence is the question followed by as much of the context as fits; a long context is read in overlapping windows.
The targets of a window are the first and the last token of the answer, or 0 and 0, the [CLS] token, if it does not
contain the whole answer. If no window does, the question is trained as unanswerable, and this is reported.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cloze.errors import RequestError
from cloze.progress import Progress
from cloze.tasks.examples import ExampleList, Item
from cloze.text import Encoding, Pieces, Tokenizer, window_spans

# As in the original.
LONGEST_QUESTION = 64
STRIDE = 128

NOWHERE = (0, 0)


@dataclass(frozen=True)
class Question:
    """One row: ``answers`` has every answer that counts as right, none where the context has none.

    ``span`` is where the first of them stands that stands anywhere, in characters.
    """

    place: str
    id: str
    question: str
    context: str
    answers: tuple[str, ...] = ()
    span: tuple[int, int] | None = None

    @property
    def texts(self) -> list[str]:
        """What is asked, and about what."""
        return [self.question, self.context]


class Questions(ExampleList[Question]):
    """What a model is trained or scored on."""


@dataclass(frozen=True)
class Window:
    """A question with a stretch of its context."""

    encoding: Encoding
    first: int  # the token of the encoding at which the context begins
    place: tuple[int, int]  # which of the context's tokens are in it


@dataclass(frozen=True)
class Reading:
    """A question and its context as a model reads them."""

    offsets: list[tuple[int, int]]  # of each token of the context, in characters
    windows: list[Window]

    def tokens_of(self, span: tuple[int, int]) -> tuple[int, int]:
        """The first and last token of the context that stand at these characters; last < first if none does."""
        first = bisect_right(self.offsets, span[0], key=lambda offset: offset[1])
        return first, bisect_left(self.offsets, span[1], key=lambda offset: offset[0]) - 1


def answer_items(
    examples: Questions, tokenizer: Tokenizer, stride: int = STRIDE, progress: Progress | None = None
) -> list[Item]:
    """What a model trains on: every window of every context, with the first and last token of the answer."""
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
            "tokens holds whole; they are trained as if they had none: a larger length or a smaller stride holds more"
        )
    return items


def find_target(window: Window, tokens: tuple[int, int] | None) -> tuple[int, int]:
    """Where the tokens of an answer are in a window; NOWHERE if it does not hold all of them."""
    if tokens is None or not window.place[0] <= tokens[0] <= tokens[1] < window.place[1]:
        return NOWHERE
    shift = window.first - window.place[0]
    return tokens[0] + shift, tokens[1] + shift


def read_contexts(
    tokenizer: Tokenizer, questions: Sequence[str], contexts: Sequence[str], stride: int = STRIDE
) -> Iterator[Reading]:
    """Yield what a model reads of each question and its context.

    Windows lie ``stride`` tokens apart, or half of what a window has room for if that is less: an answer that is no
    longer than the other half is therefore whole in one of them.
    """
    if tokenizer.content_length(2) < 2:
        raise RequestError(f"length is {tokenizer.max_length}; a question and its context need at least 5 tokens")
    # Many questions are asked of one context.
    distinct = list(dict.fromkeys(contexts))
    read = dict(zip(distinct, tokenizer.encode_pieces(distinct), strict=True))
    for question, context in zip(tokenizer.encode_pieces(questions), contexts, strict=True):
        pieces = read[context]
        yield Reading(pieces.offsets, _windows(tokenizer, question, pieces, stride))


def plan_windows(
    tokenizer: Tokenizer, question: int, context: int, stride: int = STRIDE
) -> tuple[int, list[tuple[int, int]]]:
    """How many of a question's tokens are kept, and which of its context's each window has."""
    room = tokenizer.content_length(2)
    # Where sequences are short, the question must leave the context its half.
    kept = min(question, LONGEST_QUESTION, max(room // 2, room - context))
    room -= kept
    return kept, window_spans(context, room, max(1, min(stride, room // 2)))


def _windows(tokenizer: Tokenizer, question: Pieces, context: Pieces, stride: int) -> list[Window]:
    count, places = plan_windows(tokenizer, len(question), len(context), stride)
    kept = replace(question.slice(0, count), unread=question.unread + len(question) - count)
    first = len(kept) + 2  # behind [CLS], the question and [SEP]
    return [Window(tokenizer.assemble(kept, context.slice(*place)), first, place) for place in places]
