"""Small edits of a text that preserve its label (Wei and Zou, 2019, "EDA: easy data augmentation").

A text is split into words and the gaps between them. Words are swapped, deleted, duplicated or replaced with synonyms;
punctuation and spaces stay where they were. All random choices come from the generator that is passed.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cloze.errors import DataError
from cloze.files import Lines, open_file
from cloze.text import WordSplitter
from cloze.text.characters import is_ideograph

# Fraction of the words of a text to edit, at least one: the paper's recommendation for all but the smallest data sets.
SHARE = 0.1

# Letters and digits, with apostrophes and hyphens inside a word: don't, well-known.
_RUN = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")

Similar = Mapping[str, Sequence[str]]  # lower-case word -> similar words


@dataclass
class _Words:
    """A text as words and gaps: gap, word, gap, word, ..., gap."""

    words: list[str]
    gaps: list[str]

    def joined(self) -> str:
        pairs = zip(self.gaps, self.words, strict=False)
        return "".join(part for pair in pairs for part in pair) + self.gaps[-1]

    def copy(self) -> "_Words":
        return _Words(list(self.words), list(self.gaps))


class Editor:
    """Creates edited copies of texts."""

    def __init__(self, similar: Similar, share: float = SHARE) -> None:
        """Create an editor; ``similar`` maps a word to its possible replacements."""
        self._similar, self._share = similar, share
        self._splitter = WordSplitter()

    def words(self, text: str) -> list[str]:
        """Return the words of a text that can be edited, without punctuation."""
        return self._split(text).words

    def edit(self, text: str, generator: np.random.Generator) -> str | None:
        """Return a copy of a text with one kind of edit; None if no kind of edit changes it."""
        split = self._split(text)
        count = changes_of(len(split.words), self._share)
        for number in generator.permutation(4):
            change = (self._replace, _swap, _delete, _insert)[number]
            changed = split.copy()
            change(changed, count, generator)
            edited = changed.joined()
            if edited != text and edited.strip():
                return edited
        return None

    def _split(self, text: str) -> _Words:
        spans = [span for found in _RUN.finditer(text) for span in self._parts(text, *found.span())]
        edges = [0, *(edge for span in spans for edge in span), len(text)]
        gaps = [text[edges[index] : edges[index + 1]] for index in range(0, len(edges), 2)]
        return _Words([text[slice(*span)] for span in spans], gaps)

    def _parts(self, text: str, start: int, end: int) -> list[tuple[int, int]]:
        """Return the spans of the words in a run of letters: one, or those of the word splitter for Chinese."""
        run = text[start:end]
        if not any(map(is_ideograph, run)):
            return [(start, end)]
        return [(start + first, start + last) for first, last in self._splitter.spans(run)]

    def _replace(self, split: _Words, count: int, generator: np.random.Generator) -> None:
        """Replace some words with similar ones."""
        known = [place for place, word in enumerate(split.words) if self._similar.get(word.lower())]
        for place in _some(known, count, generator):
            word = split.words[place]
            others = self._similar[word.lower()]
            split.words[place] = cased_like(word, others[int(generator.integers(len(others)))])


def changes_of(words: int, share: float) -> int:
    """Return how many of ``words`` words to edit."""
    return max(1, round(share * words))


def cased_like(word: str, other: str) -> str:
    """Return ``other``, capitalized if ``word`` is."""
    return other[:1].upper() + other[1:] if word[:1].isupper() else other


def _some(places: Sequence[int], count: int, generator: np.random.Generator) -> list[int]:
    chosen = generator.permutation(len(places))[:count]
    return [places[int(index)] for index in chosen]


def _swap(split: _Words, count: int, generator: np.random.Generator) -> None:
    """Swap pairs of words; each word is in at most one pair."""
    places = _some(range(len(split.words)), max(2, count // 2 * 2), generator)
    for one, other in zip(places[::2], places[1::2], strict=False):
        split.words[one], split.words[other] = split.words[other], split.words[one]


def _delete(split: _Words, count: int, generator: np.random.Generator) -> None:
    """Delete some words, never all of them, with the space before each."""
    lost = _some(range(len(split.words)), min(count, len(split.words) - 1), generator)
    for place in sorted(lost, reverse=True):
        del split.words[place]
        before, after = split.gaps[place], split.gaps[place + 1]
        split.gaps[place : place + 2] = [(before.rstrip() if place else before) + (after if place else after.lstrip())]


def _insert(split: _Words, count: int, generator: np.random.Generator) -> None:
    """Insert copies of some words before other words."""
    for _ in range(min(count, len(split.words))):
        word = split.words[int(generator.integers(len(split.words)))]
        place = int(generator.integers(len(split.words)))
        split.words.insert(place, word)
        split.gaps.insert(place + 1, "" if is_ideograph(word[-1]) else " ")


def read_synonyms(path: Path) -> dict[str, list[str]]:
    """Read lines with a word, a tab and its space-separated synonyms; the relation is not made symmetric."""
    found: dict[str, list[str]] = {}
    with open_file(path) as stream:
        lines = Lines(path, stream)
        for line in lines:
            word, _, others = line.partition("\t")
            if not line.strip():
                continue
            if not word.strip() or not others.strip():
                raise DataError(f"{lines.place}: {line[:50]!r}; expected a word, a tab, and space-separated synonyms")
            own = word.strip().lower()
            found.setdefault(own, []).extend(other for other in others.split() if other.lower() != own)
    if not any(found.values()):
        raise DataError(f"{path}: contains no word with a synonym; expected a word, a tab, and synonyms on each line")
    return found


def edit_rows(
    texts: Sequence[tuple[str, ...]],
    editor: Editor,
    copies: int,
    generator_of: Callable[[int, int], np.random.Generator],
) -> list[tuple[int, tuple[str, ...]]]:
    """Return ``copies`` edited copies of each row with the row's index; every text of a row is edited if possible."""
    result = []
    for copy in range(copies):
        for row, parts in enumerate(texts):
            generator = generator_of(copy, row)
            edited = [editor.edit(part, generator) for part in parts]
            if any(part is not None for part in edited):
                pairs = zip(edited, parts, strict=True)
                result.append((row, tuple(old if new is None else new for new, old in pairs)))
    return result
