"""Texts -> sequences, with what can be said against them: all that is done before a model is asked, and needs none.

So it can be done in another thread than the one that computes, and a text whose tokens were counted need not be read
again.

What a folder must have for a question, and what to say where it has not.
"""

from collections.abc import Sequence

from cloze.checkpoint import TaskLabels
from cloze.errors import RequestError
from cloze.kinds import LongTexts
from cloze.model import Bert, HeadName
from cloze.predict.fill_mask import TokenWindow, find_blanks, token_windows
from cloze.tasks.answering.examples import plan_windows
from cloze.tasks.tagging.windows import read_words
from cloze.text import Encoding, Tokenizer, encode_long
from cloze.text.encoding import word_stretches


def read_texts(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    how: LongTexts = "cut",
    *,
    segments: int = 2,
) -> list[list[Encoding]]:
    """The sequences of each text, or pair of texts, for a model that tells so many segments apart."""
    if isinstance(texts, str) or isinstance(pairs, str):
        raise RequestError("one text was given where a list of texts was expected; put it into a list")
    if pairs is not None and len(pairs) != len(texts):
        raise RequestError(f"{len(texts)} texts, but {len(pairs)} pairs; one for each was expected")
    if pairs is not None and segments < 2:
        raise RequestError("this model tells no second text from a first (it has one segment); give single texts")
    return encode_long(tokenizer, texts, pairs, how)


def read_blanks(tokenizer: Tokenizer, texts: Sequence[str], top: int) -> list[Encoding]:
    """The sequence of each text, all of whose ``[MASK]`` are in it; ``top`` words are wanted for each."""
    if isinstance(texts, str):
        raise RequestError("one text was given where a list of texts was expected; put it into a list")
    return [find_blanks(tokenizer, text, top)[0] for text in texts]


def count_windows(tokenizer: Tokenizer, question: int, context: int) -> tuple[int, bool]:
    """The tokens of all windows in which a question of so many and its context are read; and whether it is cut."""
    kept, places = plan_windows(tokenizer, question, context)
    special = tokenizer.max_length - tokenizer.room(2)
    return sum(kept + special + stop - start for start, stop in places), kept < question


def count_words(tokenizer: Tokenizer, sentences: Sequence[Sequence[str]]) -> list[int]:
    """The tokens of sentences that are words; a word of which nothing is left is read as one, too."""
    return [sum(map(len, words)) for words in read_words(tokenizer, sentences)]


def count_corrected(tokenizer: Tokenizer, texts: Sequence[str], *, seen: bool) -> list[int]:
    """The tokens that are computed at the most to correct each text, which is ``seen`` as it stands or word by word."""
    return [
        sum(_passes(tokenizer, window, seen=seen) * len(window.encoding.ids) for window in windows)
        for windows in token_windows(tokenizer, texts)
    ]


def _passes(tokenizer: Tokenizer, window: TokenWindow, *, seen: bool) -> int:
    """How often a window is read: at once or for each word, and for words in pieces more often, however it is seen."""
    starts = tokenizer.word_starts(window.encoding.ids)
    stretches = word_stretches(starts, window.encoding.marks)
    sizes = [stop - start for start, stop in stretches if start in window.places]
    alone = 0 if seen else sizes.count(1)
    return max(1, seen + alone + sum(1 + size for size in sizes if size > 1))


# Where a head comes from.
REMEDY = "load a folder that has one"
REMEDIES: dict[HeadName, str] = {
    "sequence": f"{REMEDY}, or make one with cloze finetune classify",
    "span": f"{REMEDY}, or make one with cloze finetune answer",
    "choice": f"{REMEDY}, or make one with cloze finetune choose",
}


def need_head(bert: Bert, head: HeadName) -> None:
    """Refuse to go on without this head."""
    if head not in bert.heads:
        there = ", ".join(bert.head_names) or "none"
        raise RequestError(f"this model has no {head!r} head (its heads: {there}); {REMEDIES.get(head, REMEDY)}")


def need_task(bert: Bert, task: TaskLabels | None, kind: str) -> TaskLabels:
    """What the outputs of the sequence head mean, if it was trained for this kind of task."""
    need_head(bert, "sequence")
    if task is None or task.kind != kind:
        raise RequestError(f"this model was not trained to {kind}; its head does: {task.kind if task else 'nothing'}")
    return task
