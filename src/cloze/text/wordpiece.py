"""The first rung: normalising, splitting and matching, which are the work of the ``tokenizers`` library.

How well a vocabulary fits the text that it was learned from: into how many pieces its words fall.
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
    """Build the engine of a vocabulary, without any special token: a text that reads ``[SEP]`` is a text."""
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
    """Build what lowers and cleans text; ``chinese`` puts spaces around ideographs."""
    return BertNormalizer(
        clean_text=True,
        handle_chinese_chars=chinese,
        strip_accents=settings.strip_accents,
        lowercase=settings.lowercase,
    )


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
