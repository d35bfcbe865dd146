"""The first rung: normalising, splitting and matching, which are the work of the ``tokenizers`` library."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import tokenizers
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from cloze.text.vocabulary import CONTINUATION, UNKNOWN

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
