"""Small text edits: what may change, how much, and that no text becomes empty."""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from cloze.errors import DataError
from cloze.tasks.correction.examples import cased_like
from cloze.train.finetuning.augmentation import Editor, changes_of, edit_rows, read_synonyms

TEXT = "The river, cold and grey, ran past the old mill; nobody had crossed it since the winter of that year."
SIMILAR = {"river": ["stream", "brook"], "old": ["ancient"], "winter": ["autumn"]}


def generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def edits(text: str, similar: dict[str, list[str]], count: int = 300) -> list[str | None]:
    editor = Editor(similar)
    return [editor.edit(text, generator(seed)) for seed in range(count)]


def words(text: str) -> list[str]:
    return re.findall(r"[\w'-]+", text)


def test_same_generator_same_text() -> None:
    assert edits(TEXT, SIMILAR, 40) == edits(TEXT, SIMILAR, 40)
    assert len(set(edits(TEXT, SIMILAR, 40))) > 20


def test_every_change_is_small_and_of_one_kind() -> None:
    before = Counter(words(TEXT))
    total = len(words(TEXT))
    allowed = changes_of(total, 0.1)
    assert allowed == 2
    kinds = Counter[str]()
    for text in edits(TEXT, SIMILAR):
        assert text is not None
        assert text != TEXT
        lost, new = before - Counter(words(text)), Counter(words(text)) - before
        kind = {(0, 0): "swapped", (2, 0): "lost", (0, 2): "doubled", (2, 2): "similar"}[lost.total(), new.total()]
        kinds[kind] += 1
        if kind == "similar":
            assert lost.keys() <= {"river", "old", "winter"}
            assert new.keys() <= {"stream", "brook", "ancient", "autumn"}
        if kind == "swapped":
            assert sum(one != other for one, other in zip(words(text), words(TEXT), strict=True)) <= 2
        if kind == "doubled":
            assert new.keys() <= before.keys()
        assert re.sub(r"[\w\s'-]", "", text) == ",,;.", "punctuation stays in place"
    assert len(kinds) == 4
    assert min(kinds.values()) > 300 / 4 / 2


def test_share_of_a_long_text() -> None:
    text = " ".join(f"word{number}" for number in range(200))
    for edited in edits(text, {}, 60):
        assert edited is not None
        kept = set(words(edited)) & set(words(text))
        assert len(kept) in (180, 200)
        moved = sum(one != other for one, other in zip(words(edited), words(text), strict=False))
        if len(words(edited)) == 200:
            assert 2 <= moved <= 20


@pytest.mark.parametrize("text", ["river", "a", "old river", "?!", "", "  ", "a a", "...", "don't", "12"])
def test_edited_texts_are_changed_and_not_empty(text: str) -> None:
    for edited in edits(text, SIMILAR, 50):
        if edited is not None:
            assert words(edited)
            assert edited != text
    if not words(text):
        assert set(edits(text, SIMILAR, 5)) == {None}
    if text == "river":
        assert set(edits(text, SIMILAR, 50)) == {"stream", "brook", "river river"}


def test_words_are_whole() -> None:
    assert Editor({}).words("Don't stop: well-known 3rd _x_, ok?") == ["Don't", "stop", "well-known", "3rd", "x", "ok"]
    assert Editor({}).words("我喜欢北京, really") == ["我", "喜欢", "北京", "really"]
    assert {edited for edited in edits("我喜欢北京", {"喜欢": ["爱"]}) if edited and " " in edited} == set()
    assert "我爱北京" in edits("我喜欢北京", {"喜欢": ["爱"]})


def test_capitals_stay() -> None:
    assert cased_like("River", "stream") == "Stream"
    assert cased_like("river", "stream") == "stream"
    edited = set(edits("River", SIMILAR, 50))
    assert edited == {"Stream", "Brook", "River River"}


def test_no_double_space_after_a_deleted_word() -> None:
    edited = set(edits("one, two three.", {}, 200))
    assert {"one, three.", "one, two.", ", two three."} <= edited


def test_rows_are_edited_text_by_text() -> None:
    rows = [("the old river", "?"), ("!", "..."), ("winter", "mill")]
    made = edit_rows(rows, Editor(SIMILAR), 3, lambda copy, row: np.random.default_rng([copy, row]))
    assert [row for row, _ in made] == [0, 2, 0, 2, 0, 2]
    assert all(texts[1] == "?" for row, texts in made if row == 0), "a text that cannot be edited is unchanged"
    assert made == edit_rows(rows, Editor(SIMILAR), 3, lambda copy, row: np.random.default_rng([copy, row]))


def test_synonyms_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "synonyms.txt"
    path.write_text("River\tstream brook river\n\nold\tancient\nriver\tbeck\n", encoding="utf-8")
    assert read_synonyms(path) == {"river": ["stream", "brook", "beck"], "old": ["ancient"]}
    path.write_text("river\tstream\nold ancient\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"synonyms.txt:2: 'old ancient'; expected a word, a tab, and space-sep"):
        read_synonyms(path)
    path.write_text("river\triver\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"synonyms.txt: contains no word with a synonym"):
        read_synonyms(path)
    with pytest.raises(DataError, match="nowhere"):
        read_synonyms(tmp_path / "nowhere")
