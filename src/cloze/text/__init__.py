"""Text -> ids: vocabulary, tokenizer and sentences. Nothing here knows of tensors."""

from cloze.text.sentences import split_sentences
from cloze.text.tokenizer import Encoding, Tokenizer
from cloze.text.vocabulary import MASK, SPECIAL, learn_pieces, read_vocabulary, write_vocabulary

__all__ = [
    "MASK",
    "SPECIAL",
    "Encoding",
    "Tokenizer",
    "learn_pieces",
    "read_vocabulary",
    "split_sentences",
    "write_vocabulary",
]
