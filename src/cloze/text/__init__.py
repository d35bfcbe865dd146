"""Text -> ids: vocabulary, tokenizer, sentences and words. Nothing here knows of tensors."""

from cloze.text.long_texts import encode_long, window_places
from cloze.text.pieces import Encoding, Pieces
from cloze.text.sentences import sentence_spans, split_sentences
from cloze.text.tokenizer import Tokenizer
from cloze.text.vocabulary import MASK, SPECIAL, learn_pieces, read_vocabulary, write_vocabulary
from cloze.text.words import WordSplitter, encode_words, word_numbers

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
