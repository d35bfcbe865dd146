"""Vocabulary coverage of a text: the OOV ladder levels that resolve its words, and the best words to add.

The tokens saved by adding a word can be computed exactly, because only the tokens of that word change. Therefore the
first N candidates by saved tokens are the best N words to add.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cloze.progress import Progress, Silent
from cloze.text.boundaries import MAX_WINDOW, windows
from cloze.text.encoding import RUNGS, Pieces, Rung, build_normalizer, unmarked_rung, word_spans
from cloze.text.tokenizer import Tokenizer
from cloze.text.vocabulary import CONTINUATION

_BATCH_CHARACTERS = 250_000
# Number of texts, and of characters of each, that are searched for [UNK].
_SAMPLED_TEXTS, _SAMPLED_CHARACTERS = 1000, 2000
# Fraction of [UNK] tokens that causes a warning; the second applies if at least the third fraction of a script is
# missing from the vocabulary.
_NOTICEABLE, _NOTICEABLE_SCRIPT, _LACKING = 0.05, 0.01, 0.5
_EXAMPLES = 5


@dataclass(frozen=True)
class Candidate:
    """A candidate for addition to the vocabulary.

    Attributes:
        word: The normalised word.
        count: Number of occurrences.
        pieces: Current number of tokens per occurrence.
        saves: Total number of tokens saved by adding the word. For an ``[UNK]``, one token per character is assumed,
            but at least 2.
    """

    word: str
    count: int
    pieces: int
    saves: int


@dataclass(frozen=True)
class Coverage:
    """Statistics of how the words of a text were tokenized."""

    words: int
    tokens: int
    rungs: dict[Rung, int]
    unknown: list[tuple[str, int]]  # words with [UNK], most frequent first
    candidates: list[Candidate]

    @property
    def pieces_per_word(self) -> float:
        """Tokens per word (fertility); 1 if the vocabulary has every word."""
        return self.tokens / max(self.words, 1)

    @property
    def unknown_rate(self) -> float:
        """Fraction of words with an ``[UNK]``."""
        return self.rungs["unknown"] / max(self.words, 1)

    def pieces_per_word_with(self, count: int) -> float:
        """Return the tokens per word after adding the best ``count`` candidates."""
        saved = sum(candidate.count * (candidate.pieces - 1) for candidate in self.candidates[:count])
        return (self.tokens - saved) / max(self.words, 1)


def measure_coverage(
    texts: Iterable[str], tokenizer: Tokenizer, *, minimum: int = 5, progress: Progress | None = None
) -> Coverage:
    """Measure how a tokenizer covers texts; candidates occur at least ``minimum`` times."""
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
            if characters > _BATCH_CHARACTERS:
                yield batch
                batch, characters = [], 0
    if batch:
        yield batch


class _Counts:
    """Word counts: by ids for words without a mark, otherwise by level, normalised form and number of tokens."""

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
            candidates=sorted(self._candidates(minimum), key=lambda candidate: (-candidate.saves, candidate.word)),
        )

    def _candidates(self, minimum: int) -> Iterator[Candidate]:
        pieces, longest = self._tokenizer.pieces, self._tokenizer.settings.longest_word
        for ids, count in self._plain.items():
            if len(ids) > 1 and count >= minimum:
                word = "".join(pieces[number].removeprefix(CONTINUATION) for number in ids)
                if _is_worth_adding(word, longest):
                    yield Candidate(word, count, len(ids), count * (len(ids) - 1))
        for (rung, form, size), count in self._marked.items():
            if rung not in ("entity", "added") and count >= minimum and _is_worth_adding(form, longest):
                spelled = max(size, len(form) if rung == "unknown" else 0, 2)
                yield Candidate(form, count, size, count * (spelled - 1))


def _is_worth_adding(word: str, longest: int) -> bool:
    """Return whether a word may be added: it is not too long and has a letter, because numbers are too diverse."""
    return len(word) <= longest and any(map(str.isalpha, word))


def unknown_note(tokenizer: Tokenizer, texts: Sequence[str]) -> str | None:
    """Return a one-line warning if many tokens of texts, or most of a script that they use, are ``[UNK]``.

    Args:
        tokenizer: The tokenizer of the model.
        texts: The texts. If there are many, a sample is checked.

    Returns:
        The fraction of ``[UNK]``, the most frequent examples and a remedy; None if the vocabulary fits.
    """
    sample = [text[:_SAMPLED_CHARACTERS] for text in texts[:: -(-len(texts) // _SAMPLED_TEXTS) or 1]]
    encoded = tokenizer.encode_pieces(sample)
    unknown = sum(pieces.ids.count(tokenizer.unknown_id) for pieces in encoded)
    if not unknown:
        return None
    forms, lacking = _unknown_forms(tokenizer, sample, encoded)
    share = unknown / sum(map(len, encoded))
    if share < _NOTICEABLE and not (lacking and share >= _NOTICEABLE_SCRIPT):
        return None
    examples = ", ".join(form[:20] for form, _ in forms.most_common(_EXAMPLES))
    script = f"; the vocabulary lacks most {lacking} characters" if lacking else ""
    return (
        f"{share:.1%} of the tokens are [UNK], which the model cannot tell apart ({examples}{script}): use a model "
        "whose vocabulary fits these texts, or add words with cloze extend"
    )


def _unknown_forms(
    tokenizer: Tokenizer, texts: Sequence[str], encoded: Sequence[Pieces]
) -> tuple[Counter[str], str | None]:
    """Count the words that are ``[UNK]``; also return the script of most of them if the vocabulary lacks it."""
    forms: Counter[str] = Counter()
    scripts: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}  # key: whether the token is [UNK]
    for text, pieces in zip(texts, encoded, strict=True):
        for number, (start, end) in zip(pieces.ids, pieces.offsets, strict=True):
            is_unknown = number == tokenizer.unknown_id
            form = text[start:end]
            if is_unknown:
                forms[form] += 1
            if not form.isascii():
                scripts[is_unknown][_script(form)] += 1
    script, count = max(scripts[True].items(), key=lambda item: item[1], default=("", 0))
    is_lacking = script and count >= _LACKING * (count + scripts[False][script]) and 2 * count >= forms.total()
    return forms, script if is_lacking else None


def _script(form: str) -> str:
    """Return the script of the first non-ASCII letter, from its Unicode name; empty if there is none."""
    letter = next((letter for letter in form if letter.isalpha() and not letter.isascii()), None)
    name = "" if letter is None else unicodedata.name(letter, "").partition(" ")[0]
    return {"CJK": "Chinese"}.get(name, name.capitalize())
