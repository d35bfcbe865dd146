import gzip
import lzma
from collections.abc import Callable
from contextlib import closing
from itertools import groupby
from pathlib import Path

import pyarrow
import pytest

import cloze.corpus.documents as module
from cloze.corpus.documents import (
    FileRange,
    TextStream,
    cut_paragraph,
    format_of,
    read_documents,
    read_lines,
    read_text,
)
from cloze.errors import DataError


def compress_zstd(data: bytes) -> bytes:
    return bytes(pyarrow.compress(data, codec="zstd", asbytes=True))


TEXT = "One.\nTwo — zwei, 二.\n\n\n  \nThree.\n"
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": compress_zstd,
}


def documents_of_file(path: Path, size: int, start: int = 0, first: int = 1) -> dict[int, list[str]]:
    """Return the paragraphs by the line number at which their document starts."""
    with closing(TextStream(path)) as stream:
        found = list(read_text(stream, FileRange(start, size, first)))
    return {number: [one.text for one in group] for number, group in groupby(found, lambda one: one.document)}


def documents(path: Path, data: bytes, start: int = 0) -> dict[int, list[str]]:
    """Write a file and read its documents."""
    path.write_bytes(COMPRESSORS[path.suffix if path.suffix in COMPRESSORS else ""](data))
    return documents_of_file(path, len(data), start, 1 + data[:start].count(b"\n"))


@pytest.mark.parametrize("ending", COMPRESSORS)
def test_documents_are_the_same_whatever_the_compression(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"text.txt{ending}"
    assert documents(path, TEXT.encode()) == {1: ["One.", "Two — zwei, 二."], 6: ["Three."]}
    assert list(read_lines(path)) == ["One.", "Two — zwei, 二.", "", "", "", "Three."]
    assert list(read_documents([path, path])) == [["One.", "Two — zwei, 二."], ["Three."]] * 2


@pytest.mark.parametrize("ending", COMPRESSORS)
def test_a_span_is_read_from_its_place_on(tmp_path: Path, ending: str) -> None:
    data = TEXT.encode()
    assert documents(tmp_path / f"text.txt{ending}", data, data.index(b"Three")) == {6: ["Three."]}


@pytest.mark.parametrize("ending", COMPRESSORS)
def test_a_stream_goes_forward_and_back(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"text.txt{ending}"
    path.write_bytes(COMPRESSORS[ending](b"".join(b"line %06d\n" % number for number in range(300_000))))
    with closing(TextStream(path)) as stream:
        for number in (7, 299_999, 0, 150_000, 150_001):
            stream.go_to(12 * number)
            assert stream.readline(100) == b"line %06d\n" % number
        with pytest.raises(
            DataError, match=r"text\.txt.*: ends at byte [34],[06]00,000, but had 4,000,00[01] when the work started"
        ):
            list(read_text(stream, FileRange(4_000_000, 4_000_001, 1)))


def test_mark_and_carriage_returns_are_no_text(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbfOne.\r\nTwo.\r\n\r\nThree.\r\n"
    assert list(documents(tmp_path / "windows.txt", data).values()) == [["One.", "Two."], ["Three."]]


@pytest.mark.parametrize("text", ["", "\n\n", " \n\t\n", "\u3000\n"])
def test_file_without_text_has_no_documents(tmp_path: Path, text: str) -> None:
    assert documents(tmp_path / "blank.txt", text.encode()) == {}


def test_bad_bytes_are_named_by_line(tmp_path: Path) -> None:
    for data in (b"fine\n\ncaf\xe9 au lait\n", b"fine\n\ncaf\xe9"):
        message = r"latin\.txt:3: not valid UTF-8 at byte 3 of the line; convert the file"
        with pytest.raises(DataError, match=message):
            documents(tmp_path / "latin.txt", data)
        with pytest.raises(DataError, match=message):
            list(read_lines(tmp_path / "latin.txt"))


def test_missing_file_is_named(tmp_path: Path) -> None:
    for name in ("nowhere.txt", "nowhere.txt.gz", "nowhere.txt.zst"):
        with pytest.raises(DataError, match=f"{name}: no such file"):
            list(read_lines(tmp_path / name))
        with pytest.raises(DataError, match=f"{name}: no such file"):
            TextStream(tmp_path / name).go_to(0)


def test_folder_is_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is a folder; name the text files in it"):
        list(read_lines(tmp_path))


@pytest.mark.parametrize("ending", [".gz", ".xz", ".zst"])
def test_cut_or_foreign_archive_is_refused(tmp_path: Path, ending: str) -> None:
    text = "".join(f"line {number * 7919}\n" for number in range(2000)).encode()
    whole = COMPRESSORS[ending](text)
    path = tmp_path / f"text{ending}"
    damages = [whole[: len(whole) // 2], b"plain text"]
    if ending != ".zst":  # in .zst files, checksums are optional
        damages.append(whole[:100] + bytes(60) + whole[160:])
    for damaged in damages:
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=f"text{ending}: "):
            list(read_lines(path))
        with pytest.raises(DataError, match=f"text{ending}: "):
            documents_of_file(path, len(text))


# Lines without an end


@pytest.fixture
def short_paragraphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_PARAGRAPH", 200)
    monkeypatch.setattr(module, "_SEARCHED_FOR_CUT", 100)


@pytest.mark.usefixtures("short_paragraphs")
@pytest.mark.parametrize("end", ["", "\n", "\nNext line.\n"])
def test_long_lines_are_cut_where_sentences_end(tmp_path: Path, end: str) -> None:
    sentences = [f"Sentence {number} über 二 is here." for number in range(100)]
    (found,) = documents(tmp_path / "long.txt", (" ".join(sentences) + end).encode()).values()
    assert " ".join(found) == " ".join(sentences) + (" Next line." if "Next" in end else "")
    assert max(map(len, found)) <= 200
    assert min(map(len, found[:-2])) > 90
    assert {part[-5:] for part in found} <= {"here.", "line."}


@pytest.mark.usefixtures("short_paragraphs")
def test_long_lines_without_spaces_lose_nothing(tmp_path: Path) -> None:
    text = "字" * 1234
    (found,) = documents(tmp_path / "long.txt", text.encode()).values()
    assert "".join(found) == text
    assert max(map(len, found)) == 200
    assert list(cut_paragraph(text)) == found


@pytest.mark.usefixtures("short_paragraphs")
def test_long_blank_lines_end_documents(tmp_path: Path) -> None:
    data = b"One.\n" + b" " * 1000 + b"\nTwo.\n" + b" " * 1000 + b"Two too.\n"
    assert documents(tmp_path / "long.txt", data) == {1: ["One."], 3: ["Two.", "Two too."]}


@pytest.mark.usefixtures("short_paragraphs")
@pytest.mark.parametrize("place", [3, 199, 200, 777])
def test_bad_bytes_in_long_lines_are_named_by_place(tmp_path: Path, place: int) -> None:
    data = bytearray(b"x" * 1000)
    data[place] = 0xE9
    with pytest.raises(DataError, match=f"long.txt:2: not valid UTF-8 at byte {place} of the line"):
        documents(tmp_path / "long.txt", b"One.\n" + bytes(data))


@pytest.mark.usefixtures("short_paragraphs")
def test_a_file_may_not_end_inside_a_character(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"long.txt:1: not valid UTF-8 at byte 300 of the line"):
        documents(tmp_path / "long.txt", b"x" * 300 + "字".encode()[:2])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.txt", "text"),
        ("a.gz", "text"),
        ("jsonl", "jsonl"),
        ("a.jsonl", "jsonl"),
        ("a.JSONL.ZST", "jsonl"),
        ("a.b.parquet", "parquet"),
        ("a.json", "jsonl"),
        ("a.ndjson.gz", "jsonl"),
    ],
)
def test_formats_go_by_name(name: str, kind: str) -> None:
    assert format_of(Path(name)) == kind
