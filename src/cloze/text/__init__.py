"""Text -> ids: vocabulary, tokenizer, sentences and words. Nothing here knows of tensors."""

from cloze.text.pieces import Encoding
from cloze.text.sentences import sentence_spans, split_sentences
from cloze.text.tokenizer import Tokenizer
from cloze.text.vocabulary import MASK, SPECIAL, learn_pieces, read_vocabulary, write_vocabulary
from cloze.text.words import WordSplitter, encode_words, word_numbers

__all__ = [
    "MASK",
    "SPECIAL",
    "Encoding",
    "Tokenizer",
    "WordSplitter",
    "encode_words",
    "learn_pieces",
    "read_vocabulary",
    "sentence_spans",
    "split_sentences",
    "word_numbers",
    "write_vocabulary",
]
