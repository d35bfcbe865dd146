"""The words that entity and correction masking need, from files or from the corpus itself."""

from pathlib import Path

from cloze.corpus.entities import read_entity_table
from cloze.corpus.masking import WordTables
from cloze.corpus.settings import Masking
from cloze.corpus.shards import Corpus
from cloze.corpus.similar import SimilarTable, learn_similar_table, read_similar_table
from cloze.text import Tokenizer
from cloze.text.characters import is_ideograph


def open_word_tables(
    data: Path, tokenizer: Tokenizer, masking: Masking, entities: Path | None, similar: Path | None, seed: int
) -> WordTables:
    """Those of one way of masking; similar words are learned if no file has them."""
    if masking == "entity" and entities is not None:
        return WordTables(entities=read_entity_table(entities, tokenizer))
    if masking == "correction":
        if similar is not None:
            table = read_similar_table(similar, tokenizer)
            return WordTables(similar=table, characters=_characters(table, tokenizer))
        return WordTables(similar=learn_similar_table(Corpus.open(data), tokenizer, seed))
    return WordTables()


def _characters(table: SimilarTable, tokenizer: Tokenizer) -> frozenset[int]:
    """Chinese characters of a list; learned tables are of words that mean alike, and tell of no mistakes."""
    singles = ((word[0], tokenizer.pieces[word[0]]) for word in table if len(word) == 1)
    return frozenset(number for number, piece in singles if len(piece) == 1 and is_ideograph(piece))
