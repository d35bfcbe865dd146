from pathlib import Path

import numpy as np
import pytest

from cloze.corpus.masking import STREAMS, Masker, budgets
from cloze.corpus.sampling import Sequences
from cloze.corpus.settings import MaskSettings
from cloze.corpus.word_tables import EntityFinder, WordTables, read_entity_table
from cloze.errors import DataError
from cloze.text import Tokenizer
from tests.corpus.made_corpora import FIRST_ENDING, FIRST_WORD, made_tokenizer

TOKENIZER = made_tokenizer()
A, B, C, D = range(FIRST_WORD, FIRST_WORD + 4)
END = FIRST_ENDING
FILLER = FIRST_WORD + 100


def sequence(*ids: int, width: int = 0) -> Sequences:
    """Return one sequence between special tokens, filled with other words."""
    filled = [*ids, *[FILLER] * (width - len(ids))]
    row = np.array([[TOKENIZER.cls_id, *filled, TOKENIZER.sep_id]])
    free = np.ones_like(row, bool)
    free[0, [0, -1]] = False
    return Sequences(row, np.zeros_like(row), np.array([row.shape[1]]), free, row < FIRST_ENDING)


def found(entities: tuple[tuple[int, ...], ...], sequences: Sequences, budget: int = 9) -> list[tuple[int, int]]:
    """Return the start and end of the entities in a sequence, not counting [CLS]."""
    starts, heads = EntityFinder(entities).join(sequences, np.array([budget]))
    edges = np.append(np.flatnonzero(starts[0]), starts.shape[1])
    return [(int(place) - 1, int(edges[edges > place][0]) - 1) for place in np.flatnonzero(heads[0])]


def test_longest_entity_is_found_at_word_starts() -> None:
    entities = ((A, B), (A, B, C), (D,), (B, C))
    assert found(entities, sequence(A, B, C, D)) == [(0, 3), (3, 4)]
    assert found(entities, sequence(D, A, B, D)) == [(0, 1), (1, 3), (3, 4)]
    assert found(entities, sequence(FILLER, B, C, B)) == [(1, 3)]
    assert found(entities, sequence(FILLER, A, C)) == []


def test_entity_does_not_end_inside_a_word() -> None:
    assert found(((A, B),), sequence(A, B, END)) == []
    assert found(((A, B, END),), sequence(A, B, END)) == [(0, 3)]
    assert found(((A, B),), sequence(A, B)) == [(0, 2)]  # a special token follows


def test_entity_larger_than_the_budget_stays_words() -> None:
    assert found(((A, B, C),), sequence(A, B, C, D), budget=3) == [(0, 3)]
    assert found(((A, B, C),), sequence(A, B, C, D), budget=2) == []


def test_entities_are_chosen_first_and_as_a_whole() -> None:
    sequences = sequence(FILLER, A, B, C, FILLER, FILLER, D, width=60)
    masking = Masker(TOKENIZER, MaskSettings("entity"), WordTables(entities=((A, B, C), (D,))))
    budget = int(budgets(sequences.lengths, 0.15)[0])
    for seed in range(50):
        chosen = masking(sequences, np.random.default_rng(seed).random((1, STREAMS, 62))).positions
        assert {2, 3, 4, 7} <= set(chosen.tolist())
        assert len(chosen) == budget  # other words use the rest of the budget


def test_entities_share_a_budget_too_small_for_all() -> None:
    sequences = sequence(*[A, B, C] * 20)
    masking = Masker(TOKENIZER, MaskSettings("entity"), WordTables(entities=((A, B, C),)))
    places = set()
    for seed in range(50):
        chosen = masking(sequences, np.random.default_rng(seed).random((1, STREAMS, 62))).positions
        assert len(chosen) == 9  # the budget is round(62 * 0.15)
        assert (chosen.reshape(3, 3) - chosen.reshape(3, 3)[:, :1] == [0, 1, 2]).all()
        assert (chosen.reshape(3, 3)[:, 0] % 3 == 1).all()
        places.update(chosen.tolist())
    assert places == set(range(1, 61))


@pytest.fixture
def reader() -> Tokenizer:
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "new", "york", "city", "##er"]
    return Tokenizer.from_vocabulary(pieces, lowercase=True)


def test_entities_are_read_as_ids(reader: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "entities.txt"
    path.write_text("New York\nNew Yorker\tperson\n\nAtlantis\nnew york\n", encoding="utf-8")
    assert read_entity_table(path, reader) == ((5, 6), (5, 6, 8))
    lines = tmp_path / "entities.jsonl"
    lines.write_text('{"surface": "York City", "words": "city", "type": "place"}\n', encoding="utf-8")
    assert read_entity_table(lines, reader) == ((6, 7),)


def test_entities_that_nobody_can_read_are_told(reader: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "entities.txt"
    path.write_text("Atlantis\nThule\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"entities\.txt: the vocabulary can encode none of its 2 entities; use other"):
        read_entity_table(path, reader)
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"entities\.txt: contains no words"):
        read_entity_table(path, reader)
