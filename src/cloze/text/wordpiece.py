"""The WordPiece engine: normalization, splitting and matching with the ``tokenizers`` library.

``text/tokenizer.py`` encodes texts with ``build_engine``. ``measure_fit`` reports how well a newly learned vocabulary
fits its text: the number of pieces per word.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tokenizers
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from cloze.text.vocabulary import CONTINUATION, UNKNOWN
from cloze.text.word_counts import LONGEST_WORD, WordCounts

if TYPE_CHECKING:
    from cloze.text.tokenizer_files import TokenizerSettings


def build_engine(settings: "TokenizerSettings", ids: Mapping[str, int]) -> tokenizers.Tokenizer:
    """Build the engine of a vocabulary without special tokens, so ``[SEP]`` in a text is ordinary text."""
    model = WordPiece(
        dict(ids),
        unk_token=UNKNOWN,
        continuing_subword_prefix=CONTINUATION,
        max_input_chars_per_word=settings.longest_word,
    )
    engine = tokenizers.Tokenizer(model)
    engine.normalizer = build_normalizer(settings, chinese=settings.chinese)
    engine.pre_tokenizer = BertPreTokenizer()
    return engine


def build_normalizer(settings: "TokenizerSettings", *, chinese: bool) -> BertNormalizer:
    """Build the normalizer, which cleans and lowercases text; with ``chinese`` it puts spaces around ideographs."""
    return BertNormalizer(
        clean_text=True,
        handle_chinese_chars=chinese,
        strip_accents=settings.strip_accents,
        lowercase=settings.lowercase,
    )


@dataclass(frozen=True)
class Fit:
    """Statistics of how a vocabulary splits the words of a text, weighted by word frequency."""

    words: int
    """Number of words."""
    distinct_words: int
    """Number of distinct words."""
    one_piece: float
    """Fraction of words that are a single piece."""
    unknown: float
    """Fraction of words that are [UNK]."""
    pieces_per_word: float
    """Mean number of pieces per word; [UNK] is one piece."""

    @property
    def coverage(self) -> float:
        """Fraction of words that are not [UNK]."""
        return 1 - self.unknown


def measure_fit(counts: WordCounts, pieces: Sequence[str]) -> Fit:
    """Split every counted word with the tokenizer's algorithm. Rare words that were dropped are not included."""
    model = WordPiece(
        {piece: number for number, piece in enumerate(pieces)},
        unk_token=UNKNOWN,
        continuing_subword_prefix=CONTINUATION,
        max_input_chars_per_word=LONGEST_WORD,
    )
    seen = unknown = total = counts.too_long
    one_piece = 0
    for word, count in counts:
        tokens = model.tokenize(word)
        seen += count
        total += count * len(tokens)
        if tokens[0].value == UNKNOWN:
            unknown += count
        elif len(tokens) == 1:
            one_piece += count
    return Fit(counts.words, counts.different, one_piece / seen, unknown / seen, total / seen)
