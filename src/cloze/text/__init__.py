"""From text to ids: vocabulary, tokenizer, sentences and words. This package does not depend on torch."""

from cloze.text.boundaries import sentence_spans, split_sentences
from cloze.text.encoding import Encoding, Pieces, window_spans
from cloze.text.segmentation import WordSplitter, encode_words, word_indices
from cloze.text.tokenizer import Tokenizer, encode_long
from cloze.text.vocabulary import MASK, SPECIAL, learn_pieces, read_vocabulary, write_vocabulary

__all__ = [
    "MASK",
    "SPECIAL",
    "Encoding",
    "Pieces",
    "Tokenizer",
    "WordSplitter",
    "encode_long",
    "encode_words",
    "learn_pieces",
    "read_vocabulary",
    "sentence_spans",
    "split_sentences",
    "window_spans",
    "word_indices",
    "write_vocabulary",
]
