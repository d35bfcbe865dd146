"""Text -> ids: vocabulary, tokenizer, sentences and words. Nothing here knows of tensors."""

from cloze.text.encoding import Encoding, Pieces
from cloze.text.segmentation import WordSplitter, encode_words, word_numbers
from cloze.text.sentences import sentence_spans, split_sentences
from cloze.text.tokenizer import Tokenizer
from cloze.text.truncation import encode_long, window_places
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
    "window_places",
    "word_numbers",
    "write_vocabulary",
]
