"""Entities and phrases of a dictionary, chosen as a whole and before words (Sun et al. 2019, section 3.3)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cloze.corpus.plans import Flags, Ids
from cloze.corpus.sequences import Sequences
from cloze.errors import DataError
from cloze.text import Tokenizer
from cloze.text.encoding import Mark
from cloze.text.oov.phrases import Phrase, Phrases
from cloze.text.oov.word_lists import read_entities, read_word_list

Entities = tuple[tuple[int, ...], ...]

_ENTITY = Mark("entity")


class EntityFinder:
    """Looks for entities in sequences: at word starts, from the left, the longest that there is."""

    def __init__(self, entities: Entities) -> None:
        self._phrases = Phrases(Phrase(ids, ids, _ENTITY) for ids in entities)

    def join(self, sequences: Sequences, budget: Ids) -> tuple[Flags, Flags]:
        """Make each entity one word: (B, T) where words start then, and where entities do.

        One that is larger than the budget of its sequence could never be chosen; its words stay words.
        """
        starts, entities = sequences.starts.copy(), np.zeros_like(sequences.starts)
        rows: list[list[int]] = sequences.ids.tolist()
        for row, places in enumerate(self._phrases.places(rows)):
            flags = sequences.starts[row]
            for match in self._phrases.find(rows[row], places, flags.__getitem__, _no_words) if places else ():
                if match.stop - match.start <= budget[row]:
                    starts[row, match.start + 1 : match.stop] = False
                    entities[row, match.start] = True
        return starts, entities


def _no_words(_start: int, _stop: int) -> None:
    return None


def read_entity_table(path: Path, tokenizer: Tokenizer) -> Entities:
    """Read an entity a line, of a table the first column, or JSONL with a key ``surface``, as sequences of ids.

    Those that the vocabulary cannot read are left out.
    """
    if ".jsonl" in path.suffixes:
        surfaces: Sequence[str] = [row.entity.surface for row in read_entities(path)]
    else:
        surfaces = [row.word for row in read_word_list(path)]
    known = {tuple(ids) for ids in tokenizer.encode_ids(surfaces) if ids and tokenizer.unknown_id not in ids}
    if not known:
        raise DataError(f"{path}: the vocabulary can read none of its {len(surfaces)} entities; give others")
    return tuple(sorted(known))
