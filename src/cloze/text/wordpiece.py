"""The WordPiece engine: normalization, splitting and matching by the ``tokenizers`` library.

``text/tokenizer.py`` encodes texts with ``build_engine``. ``measure_fit`` measures how well a newly learned vocabulary
fits its text: into how many pieces its words are split.
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
    """Build the engine of a vocabulary, without special tokens: ``[SEP]`` in a text is ordinary text."""
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
    """Build the normalizer, which cleans and lowercases text; ``chinese`` puts spaces around ideographs."""
    return BertNormalizer(
        clean_text=True,
        handle_chinese_chars=chinese,
        strip_accents=settings.strip_accents,
        lowercase=settings.lowercase,
    )


@dataclass(frozen=True)
class Fit:
    """How a vocabulary splits the words of a text; shares are of word occurrences."""

    words: int
    """Number of words."""
    distinct_words: int
    """Number of distinct words."""
    one_piece: float
    """Share of words that are a single piece."""
    unknown: float
    """Share of words that are [UNK]."""
    pieces_per_word: float
    """Mean pieces per word; [UNK] counts as one."""

    @property
    def coverage(self) -> float:
        """Share of words that are not [UNK]."""
        return 1 - self.unknown


def measure_fit(counts: WordCounts, pieces: Sequence[str]) -> Fit:
    """Split every counted word as the tokenizer does; words too rare to be kept in the counts are not included."""
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
