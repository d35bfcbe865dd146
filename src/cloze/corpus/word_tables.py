"""The words that entity and correction masking need, from files or from the corpus itself."""

from pathlib import Path

from cloze.corpus.entities import read_entity_table
from cloze.corpus.masking import WordTables
from cloze.corpus.settings import Masking
from cloze.corpus.shards import Corpus
from cloze.corpus.similar import learn_similar_table, read_similar_table
from cloze.text import Tokenizer


def open_word_tables(
    data: Path, tokenizer: Tokenizer, masking: Masking, entities: Path | None, similar: Path | None, seed: int
) -> WordTables:
    """Those of one way of masking; similar words are learned if no file has them."""
    if masking == "entity" and entities is not None:
        return WordTables(entities=read_entity_table(entities, tokenizer))
    if masking == "correction":
        if similar is not None:
            return WordTables(similar=read_similar_table(similar, tokenizer))
        return WordTables(similar=learn_similar_table(Corpus.open(data), tokenizer, seed))
    return WordTables()
