"""How a vocabulary fares on a text: the rungs that its words stand on, and the words worth adding.

What a word would save is known exactly, since an added word changes the tokens of that very word and of no
other: the list by savings is the best choice of any length.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cloze.progress import Progress, Silent
from cloze.text.characters import MAX_WINDOW, windows
from cloze.text.encoding import RUNGS, Pieces, Rung, unmarked_rung, word_spans
from cloze.text.tokenizer import Tokenizer
from cloze.text.vocabulary import CONTINUATION
from cloze.text.wordpiece import build_normalizer

_BATCH = 250_000  # characters


@dataclass(frozen=True)
class Candidate:
    """A word worth adding: how often it comes, how many tokens it is now, and what adding it would save in all.

    That is tokens; a word that is given up saves as many as its characters would take, and two at the least.
    """

    word: str
    count: int
    pieces: int
    saves: int


@dataclass(frozen=True)
class Coverage:
    """What became of a text's words."""

    words: int
    tokens: int
    rungs: dict[Rung, int]
    unknown: list[tuple[str, int]]  # what was given up, the most frequent first
    candidates: list[Candidate]

    @property
    def pieces_per_word(self) -> float:
        """Tokens a word; 1 would be a vocabulary that knows every word whole."""
        return self.tokens / max(self.words, 1)

    @property
    def unknown_rate(self) -> float:
        """Share of words that are, or hold, an ``[UNK]``."""
        return self.rungs["unknown"] / max(self.words, 1)

    def pieces_per_word_with(self, count: int) -> float:
        """Tokens a word if the best ``count`` candidates were added."""
        saved = sum(one.count * (one.pieces - 1) for one in self.candidates[:count])
        return (self.tokens - saved) / max(self.words, 1)


def measure_coverage(
    texts: Iterable[str], tokenizer: Tokenizer, *, minimum: int = 5, progress: Progress | None = None
) -> Coverage:
    """Read a text with a tokenizer; words that come less often than ``minimum`` are not worth adding."""
    counts = _Counts(tokenizer)
    listener = progress if progress is not None else Silent()
    characters = 0
    for batch in _batches(texts, tokenizer.settings.chinese):
        for text, pieces in zip(batch, tokenizer.encode_pieces(batch), strict=True):
            counts.add(text, pieces)
        characters += sum(map(len, batch))
        listener.advance("characters read", characters, None)
    return counts.summary(minimum)


def _batches(texts: Iterable[str], chinese: bool) -> Iterator[list[str]]:
    batch: list[str] = []
    characters = 0
    for text in texts:
        for start, end, _ in windows(text, MAX_WINDOW, chinese=chinese):
            batch.append(text[start:end])
            characters += end - start
            if characters > _BATCH:
                yield batch
                batch, characters = [], 0
    if batch:
        yield batch


class _Counts:
    """Words counted: those without a mark by their ids, the others by their rung, form and number of tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._normalizer = build_normalizer(tokenizer.settings, chinese=False)
        self._plain: Counter[tuple[int, ...]] = Counter()
        self._marked: Counter[tuple[Rung, str, int]] = Counter()

    def add(self, text: str, pieces: Pieces) -> None:
        ids, marks = pieces.ids, pieces.marks
        starts = self._tokenizer.word_starts(ids)
        unknown = self._tokenizer.unknown_id
        if marks is None and unknown not in ids:
            self._plain.update(tuple(ids[start:stop]) for start, stop in word_spans(starts, None))
            return
        for start, stop in word_spans(starts, marks):
            mark = marks[start] if marks is not None else None
            if mark is None and ids[start] != unknown:
                self._plain[tuple(ids[start:stop])] += 1
                continue
            form = text[pieces.offsets[start][0] : pieces.offsets[stop - 1][1]]
            rung: Rung = mark.rung if mark is not None else "unknown"
            self._marked[rung, self._normalise(form), stop - start] += 1

    def _normalise(self, form: str) -> str:
        return " ".join(str(self._normalizer.normalize_str(form)).split()) or form

    def summary(self, minimum: int) -> Coverage:
        rungs: Counter[Rung] = Counter(dict.fromkeys(RUNGS, 0))
        added = self._tokenizer.added_ids
        for ids, count in self._plain.items():
            rungs[unmarked_rung(ids, is_unknown=False, added=added)] += count
        for (rung, _, _), count in self._marked.items():
            rungs[rung] += count
        tokens = sum(len(ids) * count for ids, count in self._plain.items())
        tokens += sum(size * count for (_, _, size), count in self._marked.items())
        unknown = [(form, count) for (rung, form, _), count in self._marked.items() if rung == "unknown"]
        return Coverage(
            words=sum(rungs.values()),
            tokens=tokens,
            rungs=dict(rungs),
            unknown=sorted(unknown, key=lambda item: (-item[1], item[0])),
            candidates=sorted(self._candidates(minimum), key=lambda one: (-one.saves, one.word)),
        )

    def _candidates(self, minimum: int) -> Iterator[Candidate]:
        pieces, longest = self._tokenizer.pieces, self._tokenizer.settings.longest_word
        for ids, count in self._plain.items():
            if len(ids) > 1 and count >= minimum:
                word = "".join(pieces[number].removeprefix(CONTINUATION) for number in ids)
                if _is_worth(word, longest):
                    yield Candidate(word, count, len(ids), count * (len(ids) - 1))
        for (rung, form, size), count in self._marked.items():
            if rung not in ("entity", "added") and count >= minimum and _is_worth(form, longest):
                spelled = max(size, len(form) if rung == "unknown" else 0, 2)
                yield Candidate(form, count, size, count * (spelled - 1))


def _is_worth(word: str, longest: int) -> bool:
    """Whether a word may be added, and means something: numbers come in endless variety and in pieces of their own."""
    return len(word) <= longest and any(map(str.isalpha, word))
