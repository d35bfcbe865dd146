import gzip
import lzma
from pathlib import Path

import pytest

from cloze.errors import DataError
from cloze.tasks.tagging.columns import (
    Sentences,
    columns_text,
    find_layout,
    iter_column_texts,
    read_column_parts,
    read_columns,
)

CONLL = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER

-DOCSTART- -X- O O

BRUSSELS NNP I-NP I-LOC
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def words(found: Sentences) -> list[list[str]]:
    return [sentence.words for sentence in found.sentences]


def test_columns_as_published(tmp_path: Path) -> None:
    path = write(tmp_path / "eng.train", CONLL)
    found = read_columns(path)
    assert words(found) == [["EU", "rejects"], ["Peter", "Blackburn"], ["BRUSSELS"]]
    assert [sentence.tags for sentence in found.sentences] == [["I-ORG", "O"], ["I-PER", "I-PER"], ["I-LOC"]]
    assert found.sentences[0].between == ["NNP\tI-NP", "VBZ\tI-VP"]
    assert [sentence.place for sentence in found.sentences] == [f"{path}:3", f"{path}:6", f"{path}:11"]
    assert found.sentences[1].place_of(1) == f"{path}:7"
    assert found.marked
    first, second, third = (sentence.order for sentence in found.sentences)
    assert second == first + 1
    assert third > second + 1, "the end of a document skips a number"


@pytest.mark.parametrize("text", ["a X\nb Y\n\nc X\n", "a\tX\nb\tY\n\n\n\nc\tX", "a  X\r\n b X \r\n \t\r\nc X\r\n"])
def test_ways_to_part_columns_and_sentences(tmp_path: Path, text: str) -> None:
    found = read_columns(write(tmp_path / "rows.txt", text))
    assert words(found) == [["a", "b"], ["c"]]
    assert not found.marked
    assert found.sentences[1].order == found.sentences[0].order + 1


def test_compressed_files_are_read_alike(tmp_path: Path) -> None:
    plain = read_columns(write(tmp_path / "rows.txt", CONLL))
    for path, opened in ((tmp_path / "rows.txt.xz", lzma.open), (tmp_path / "rows.txt.gz", gzip.open)):
        with opened(path, "wt", encoding="utf-8") as file:
            file.write(CONLL)
        assert words(read_columns(path)) == words(plain)


def test_white_space_of_other_kinds_is_a_word(tmp_path: Path) -> None:
    found = read_columns(write(tmp_path / "rows.txt", "中 B-LOC\n\u3000 O\n\u00a0 O\n\x85 O\n"))
    assert words(found) == [["中", "\u3000", "\u00a0", "\x85"]]


def test_a_cell_between_tabs_may_hold_spaces(tmp_path: Path) -> None:
    assert words(read_columns(write(tmp_path / "rows.tsv", "New York\tB-LOC\nis\tO\n"))) == [["New York", "is"]]


def test_a_document_may_begin_without_a_blank_line(tmp_path: Path) -> None:
    found = read_columns(write(tmp_path / "rows.txt", "-DOCSTART-\na X\n-DOCSTART- (2)\nb X\n"))
    assert words(found) == [["a"], ["b"]]
    assert found.sentences[1].place.endswith(":4")


def test_words_alone_are_read_where_no_tag_is_asked(tmp_path: Path) -> None:
    found = read_columns(write(tmp_path / "rows.conll", "a\nb\n\nc\n"), tagged=False)
    assert (words(found), found.sentences[0].tags, found.sentences[0].between) == ([["a", "b"], ["c"]], [], ["", ""])
    found = read_columns(write(tmp_path / "rows.conll", "a NN O\n"), tagged=False)
    assert found.sentences[0].between == ["NN\tO"]


MISTAKES = {
    "a X\nb\n": "'b' stands alone; expected a word and its tag, separated by a space or a tab",
    "a\tX\n\tB-PER\n": "the tag 'B-PER' has no word before it; expected a word, then its tag",
    "a\tX\nb\t\n": "the word 'b' has no tag after its last tab; write one, such as O",
    "a X\nb Y Z\n": "3 columns, but the lines before have 2; give every word the same columns, and put a blank line "
    "between sentences",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_bad_lines_stop_or_cost_their_sentence(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "rows.txt", text)
    with pytest.raises(DataError) as caught:
        read_columns(path)
    assert str(caught.value) == f"{path}:2: {MISTAKES[text]}"
    path = write(tmp_path / "rows.txt", f"c X\n\n{text}\nd X\n")
    found = read_columns(path, on_bad_row="skip")
    assert (words(found), found.skipped) == ([["c"], ["d"]], 1)
    path = write(tmp_path / "rows.txt", f"c X\n\n{text}")
    assert read_columns(path, on_bad_row="skip").skipped == 1, "also at the end of the file"
    assert [sentence.order for sentence in found.sentences] == [0, 2], (
        "neighbours of a skipped sentence are not adjacent"
    )


def test_a_line_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_bytes(b"a X\n\nb X\n\xff X\nc X\n\nd X\n")
    with pytest.raises(DataError, match=r"rows.txt:4: byte 1 \(0xff\) is not UTF-8"):
        read_columns(path)
    found = read_columns(path, on_bad_row="skip")
    assert (words(found), found.skipped) == ([["a"], ["d"]], 1)


def test_files_without_a_good_sentence(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.txt", "\n-DOCSTART-\n\n")
    with pytest.raises(DataError) as caught:
        read_columns(path)
    assert str(caught.value) == f"{path}: contains no sentences; expected a word and its tag per line"
    write(path, "a\n\nb\n")
    with pytest.raises(DataError) as caught:
        read_columns(path, on_bad_row="skip")
    assert str(caught.value) == (
        f"{path}: all 2 sentences are bad; the first: {path}:1: 'a' stands alone; expected a word and its tag, "
        "separated by a space or a tab"
    )


def test_columns_are_written_as_they_were_read(tmp_path: Path) -> None:
    found = read_columns(write(tmp_path / "rows.txt", CONLL))
    columns = [[one.words, one.between, one.tags] for one in found.sentences]
    text = columns_text(columns, [one.order for one in found.sentences])
    assert text == CONLL.replace("-X-", "O") + "\n"
    assert columns_text(columns[:1]) == "EU NNP I-NP I-ORG\nrejects VBZ I-VP O\n\n"


def test_a_word_with_a_space_is_written_between_tabs() -> None:
    # An empty cell keeps its column, so that the file can be parsed again.
    assert columns_text([[["Paris", "is"], ["", "V"], ["X", "O"]], [["a"], [""], ["O"]]]) == (
        "Paris _ X\nis V O\n\na _ O\n\n"
    )
    assert columns_text([[["New York", "is"], ["", ""], ["X", "O"]], [["a\nb"], ["Y"]]]) == (
        "New York\tX\nis\tO\n\na b\tY\n\n"
    )


# -- columns by number -------------------------------------------------------------------------------------------------

UNIVERSAL = (
    "# newdoc\n# sent_id = 1\n# text = EU rejects #\n1\tEU\tPROPN\tNNP\n2\trejects\tVERB\tVBZ\n3\t#\tSYM\t#\n\n"
    "# text = He left\n1\tHe\tPRON\tPRP\n2\tleft\tVERB\tVBD\n"
)


@pytest.mark.parametrize(("tag", "expected"), [(2, ["NNP", "VBZ"]), (-3, ["NNP", "VBZ"]), (3, ["I-NP", "I-VP"])])
def test_any_column_may_hold_the_tags(tmp_path: Path, tag: int, expected: list[str]) -> None:
    (first, *_) = read_columns(write(tmp_path / "eng.train", CONLL), tag=tag).sentences
    assert (first.words, first.tags) == (["EU", "rejects"], expected)
    assert all(one.split("\t")[-1] == last for one, last in zip(first.between, ["I-ORG", "O"], strict=True))


def test_treebanks_have_numbers_first_and_comments(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.conllu", UNIVERSAL)
    found = read_columns(path, word=2, tag=3)
    assert words(found) == [["EU", "rejects", "#"], ["He", "left"]]
    assert found.sentences[0].tags == ["PROPN", "VERB", "SYM"]
    assert found.sentences[0].between[0] == "1\tNNP"
    assert [sentence.place for sentence in found.sentences] == [f"{path}:4", f"{path}:9"]
    assert words(read_columns(path, tagged=False, word=2)) == words(found)
    write(path, "-DOCSTART-\n\n" + UNIVERSAL)
    assert words(read_columns(path, word=2)) == words(found)


@pytest.mark.parametrize("text", ["# SYM O\nEU NNP B-ORG\n", "EU NNP B-ORG\n# SYM O\n", "#\tO\nEU\tO\n", "# O\n# O\n"])
def test_a_mark_that_is_a_word_is_no_comment(tmp_path: Path, text: str) -> None:
    (found,) = words(read_columns(write(tmp_path / "rows.txt", text)))
    assert "#" in found
    assert len(found) == 2


WRONG_COLUMNS = {
    (1, 4): (":1", "3 columns, so there is no label=4 (--label 4); give a column that every line has"),
    (-4, 2): (":1", "3 columns, so there is no text=-4 (--text -4); give a column that every line has"),
    (1, -3): (":1", "text=1 (--text 1) and label=-3 (--label -3) are the same column here; give different ones"),
    (2, 3): (":2", "the tag 'Y' has no word in column 2; expected a word, then its tag"),
    (1, 2): (":2", "the word 'b' has no tag in column 2; write one, such as O"),
}


@pytest.mark.parametrize("numbers", WRONG_COLUMNS)
def test_columns_that_a_line_lacks(tmp_path: Path, numbers: tuple[int, int]) -> None:
    path = write(tmp_path / "rows.txt", "a\tN\tX\nb\t\tY\n\nc\tN\tZ\n")
    line, message = WRONG_COLUMNS[numbers]
    with pytest.raises(DataError) as caught:
        read_columns(path, word=numbers[0], tag=numbers[1])
    assert str(caught.value) == f"{path}{line}: {message}"


def test_a_line_that_is_shorter_than_the_others_lacks_the_column(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.txt", "a N X\nb N\n\nc N Y\n")
    with pytest.raises(DataError, match=r"rows.txt:2: 2 columns, so there is no label=3 \(--label 3\)"):
        read_columns(path, tag=3)
    found = read_columns(path, tag=3, on_bad_row="skip")
    assert (words(found), found.skipped) == ([["c"]], 1)


def test_sentences_in_parts(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.txt", "a x\n\nb x\n\nc x\n\n-DOCSTART- -X-\n\nd x\n\ne x\n\n-DOCSTART- -X-\n")
    parts = list(read_column_parts(path, 2, whole=False))
    assert [[one.words for one in part.sentences] for part in parts] == [[["a"], ["b"]], [["c"], ["d"]], [["e"]]]
    assert [part.marked for part in parts] == [False, True, True]
    parts = list(read_column_parts(path, 2, whole=True))
    assert [[one.words for one in part.sentences] for part in parts] == [[["a"], ["b"], ["c"]], [["d"], ["e"]]]
    assert [one for part in parts for one in part.sentences] == read_columns(path, tagged=False).sentences
    with pytest.raises(DataError, match=r"contains no sentences; expected a word and its tag per line$"):
        list(read_column_parts(write(tmp_path / "empty.txt", "\n"), 2, whole=True))


def test_lines_of_sentences_one_by_one(tmp_path: Path) -> None:
    found = read_columns(write(tmp_path / "rows.txt", CONLL)).sentences
    columns, order = [[one.words, one.between, one.tags] for one in found], [one.order for one in found]
    for sentences in (columns, [*columns[:-1], [["New York"], ["NNP\tI-NP"], ["I-LOC"]]]):
        texts = list(iter_column_texts(iter(sentences), iter(order), find_layout(iter(sentences))))
        assert len(texts) == len(sentences)
        assert "".join(texts) == columns_text(sentences, order)
