"""How well a vocabulary fits the text that it was learned from: into how many pieces its words fall."""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenizers.models import WordPiece

from cloze.text.vocabulary import CONTINUATION, UNKNOWN
from cloze.text.word_counts import LONGEST_WORD, WordCounts


@dataclass(frozen=True)
class Fit:
    """Figures of a text's words, each as often as it occurs."""

    words: int
    """Words of the text."""
    distinct_words: int
    """Different ones among them."""
    one_piece: float
    """Share of words that have an entry of their own."""
    unknown: float
    """Share of words that are [UNK]."""
    pieces_per_word: float
    """[UNK] is one piece."""

    @property
    def coverage(self) -> float:
        """Share of words that can be spelled."""
        return 1 - self.unknown


def measure_fit(counts: WordCounts, pieces: Sequence[str]) -> Fit:
    """Cut each different word as the tokenizer does; words that counting left out for their rarity are not seen."""
    model = WordPiece(
        {piece: number for number, piece in enumerate(pieces)},
        unk_token=UNKNOWN,
        continuing_subword_prefix=CONTINUATION,
        max_input_chars_per_word=LONGEST_WORD,
    )
    seen = unknown = total = counts.too_long
    one_piece = 0
    for word, count in counts:
        found = model.tokenize(word)
        seen += count
        total += count * len(found)
        if found[0].value == UNKNOWN:
            unknown += count
        elif len(found) == 1:
            one_piece += count
    return Fit(counts.words, counts.different, one_piece / seen, unknown / seen, total / seen)
