import random
from pathlib import Path

import pytest

from cloze.corpus.documents import CorpusSlice, FileRange, Paragraph, ParagraphReader
from cloze.corpus.preparation.shard_plan import gather, survey


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Documents of many sizes, separated by different kinds of blank lines."""
    draw = random.Random(0)
    blank = ["\n", " \n", "\r\n", "\n\n\n", "\u3000\n", "\t \n"]
    texts = ("".join(f"Line {draw.random()}.\n" for _ in range(draw.randint(1, 9))) for _ in range(300))
    path = tmp_path / "text.txt"
    path.write_bytes("".join(text + draw.choice(blank) for text in texts).encode())
    return path


def all_paragraphs(path: Path, size: int) -> list[Paragraph]:
    reader = ParagraphReader([path], "text", False)
    parts = gather(survey(path, 0, "text", size), size)
    found = [paragraph for part in parts for _, paragraph in reader.read(part)]
    reader.close()
    return found


@pytest.mark.parametrize("size", [1, 100, 1000, 7777])
def test_parts_are_the_text_whatever_their_size(path: Path, size: int) -> None:
    assert all_paragraphs(path, size) == all_paragraphs(path, 10**9)
    assert len(all_paragraphs(path, size)) > 1000


def test_slices_adjoin_and_begin_with_documents(path: Path) -> None:
    slices = survey(path, 3, "text", 1000)
    data = path.read_bytes()
    assert [one.range.start for one in slices] == [0, *(one.range.stop for one in slices[:-1])]
    assert slices[-1].range.stop == len(data)
    assert {one.file for one in slices} == {3}
    for one in slices:
        assert one.size == one.range.stop - one.range.start
        assert one.range.first == 1 + data[: one.range.start].count(b"\n")
        before = data[: one.range.start].decode().split("\n")
        assert one.range.start == 0 or not before[-2].strip()
    assert all(1000 <= one.size < 1500 for one in slices[:-1])


def test_a_long_line_is_never_cut_by_a_part(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_bytes(b"x " * 2**20 + b"\n" + b" " * 2**20 + b"\n" + b"\n" + b"y\n")
    assert [one.range for one in survey(path, 0, "text", 10)] == [
        FileRange(0, 3 * 2**20 + 3, 1),
        FileRange(3 * 2**20 + 3, 3 * 2**20 + 5, 4),
    ]


def test_reported_total_is_the_file_size(path: Path) -> None:
    reported: list[int] = []
    survey(path, 0, "text", 1000, reported.append)
    assert sum(reported) == path.stat().st_size


def test_small_slices_go_together() -> None:
    sizes = [100, 3, 3, 3, 3, 60, 3, 49, 50, 1]
    slices = [CorpusSlice(number, FileRange(0, size, 1), size) for number, size in enumerate(sizes)]
    assert [[one.size for one in part] for part in gather(slices, 100)] == [
        [100],
        [3, 3, 3, 3, 60],
        [3, 49],
        [50],
        [1],
    ]
    assert gather([], 100) == []
