import random
from pathlib import Path

import pytest

from cloze.corpus.documents import Paragraph, PartReader, Segment, Span
from cloze.corpus.preparation.shard_plan import gather, survey


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Documents of all sizes, with blank lines of all kinds between them."""
    draw = random.Random(0)
    blank = ["\n", " \n", "\r\n", "\n\n\n", "\u3000\n", "\t \n"]
    texts = ("".join(f"Line {draw.random()}.\n" for _ in range(draw.randint(1, 9))) for _ in range(300))
    path = tmp_path / "text.txt"
    path.write_bytes("".join(text + draw.choice(blank) for text in texts).encode())
    return path


def everything(path: Path, size: int) -> list[Paragraph]:
    reader = PartReader([path], "text", False)
    parts = gather(survey(path, 0, "text", size), size)
    found = [paragraph for part in parts for _, paragraph in reader.read(part)]
    reader.close()
    return found


@pytest.mark.parametrize("size", [1, 100, 1000, 7777])
def test_parts_are_the_text_whatever_their_size(path: Path, size: int) -> None:
    assert everything(path, size) == everything(path, 10**9)
    assert len(everything(path, size)) > 1000


def test_segments_adjoin_and_begin_with_documents(path: Path) -> None:
    segments = survey(path, 3, "text", 1000)
    data = path.read_bytes()
    assert [one.span.start for one in segments] == [0, *(one.span.stop for one in segments[:-1])]
    assert segments[-1].span.stop == len(data)
    assert {one.file for one in segments} == {3}
    for one in segments:
        assert one.size == one.span.stop - one.span.start
        assert one.span.first == 1 + data[: one.span.start].count(b"\n")
        before = data[: one.span.start].decode().split("\n")
        assert one.span.start == 0 or not before[-2].strip()
    assert all(1000 <= one.size < 1500 for one in segments[:-1])


def test_a_long_line_is_never_cut_by_a_part(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    path.write_bytes(b"x " * 2**20 + b"\n" + b" " * 2**20 + b"\n" + b"\n" + b"y\n")
    assert [one.span for one in survey(path, 0, "text", 10)] == [
        Span(0, 3 * 2**20 + 3, 1),
        Span(3 * 2**20 + 3, 3 * 2**20 + 5, 4),
    ]


def test_told_is_the_size_of_the_file(path: Path) -> None:
    told: list[int] = []
    survey(path, 0, "text", 1000, told.append)
    assert sum(told) == path.stat().st_size


def test_small_segments_go_together() -> None:
    sizes = [100, 3, 3, 3, 3, 60, 3, 49, 50, 1]
    segments = [Segment(number, Span(0, size, 1), size) for number, size in enumerate(sizes)]
    assert [[one.size for one in part] for part in gather(segments, 100)] == [
        [100],
        [3, 3, 3, 3, 60],
        [3, 49],
        [50],
        [1],
    ]
    assert gather([], 100) == []
