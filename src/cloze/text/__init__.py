"""Text -> ids: vocabulary, tokenizer and sentences. Nothing here knows of tensors."""

from cloze.text.sentences import split_sentences
from cloze.text.tokenizer import Encoding, Tokenizer
from cloze.text.vocabulary import MASK, SPECIAL, read_vocabulary, train_vocabulary, write_vocabulary

__all__ = [
    "MASK",
    "SPECIAL",
    "Encoding",
    "Tokenizer",
    "read_vocabulary",
    "split_sentences",
    "train_vocabulary",
    "write_vocabulary",
]
