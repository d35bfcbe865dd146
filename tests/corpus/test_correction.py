"""Wrong characters within Chinese words, for masking by correction."""

from pathlib import Path

import numpy as np

from cloze.corpus.word_tables import WordTables, open_word_tables, replace_with_similar
from cloze.text import Tokenizer

TOKENIZER = Tokenizer.from_vocabulary(
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"朋友有又右天气汽ab", "in", "on"], lowercase=True
)


def read_tables(folder: Path, lines: str) -> WordTables:
    path = folder / "similar.txt"
    path.write_text(lines, encoding="utf-8")
    return open_word_tables(folder, TOKENIZER, "correction", None, path, seed=0)


def mistaken(words: list[str], tables: WordTables, draws: np.ndarray) -> tuple[list[str], list[bool]]:
    ids = [TOKENIZER.encode_ids([word])[0] for word in words]
    targets = np.asarray([one for word in ids for one in word])
    heads = np.repeat(np.cumsum([0, *map(len, ids)][:-1]), [len(word) for word in ids])
    fates, random_pieces = np.zeros(len(targets), np.uint8), np.full(len(targets), TOKENIZER.id("a"))
    seen, missing = replace_with_similar(targets, heads, fates, draws, tables.similar, tables.characters, random_pieces)
    return [TOKENIZER.pieces[one] for one in seen], missing.tolist()


def test_one_character_of_a_word_is_replaced_by_a_confusable_one(tmp_path: Path) -> None:
    tables = read_tables(tmp_path, "友\t有 又 右\n气\t汽\nin\ton\n")
    found = {
        "".join(mistaken(["朋友"], tables, np.asarray([0.3, draw]))[0])
        for draw in np.linspace(0, 1, 50, endpoint=False)
    }
    assert found == {"朋有", "朋又", "朋右"}  # no list contains its first character


def test_any_character_may_be_replaced(tmp_path: Path) -> None:
    tables = read_tables(tmp_path, "友\t有\n朋\t天\n")
    seen = [mistaken(["朋友"], tables, np.asarray([draw, 0.0])) for draw in (0.2, 0.7)]
    assert seen == [(["天", "友"], [False, False]), (["朋", "有"], [False, False])]


def test_listed_words_precede_characters_and_random_words_follow(tmp_path: Path) -> None:
    tables = read_tables(tmp_path, "天气\t天汽\n天\t又\n")
    seen, missing = mistaken(["天气", "朋友"], tables, np.zeros(4))
    assert (seen, missing) == (["天", "汽", "a", "a"], [False, False, True, True])


def test_letters_are_mistaken_by_whole_words_only(tmp_path: Path) -> None:
    assert read_tables(tmp_path, "a\tb\nin\ton\n天\t气\n").characters == {TOKENIZER.id("天")}
