import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest

from cloze.corpus.documents import read_documents, read_lines
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


@pytest.mark.parametrize("ending", COMPRESSORS)
def test_documents_are_the_same_whatever_the_compression(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"text.txt{ending}"
    path.write_bytes(COMPRESSORS[ending](TEXT.encode()))
    assert list(read_documents([path])) == [["One.", "Two — zwei, 二."], ["Three."]]


def test_mark_and_carriage_returns_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "windows.txt"
    path.write_bytes(b"\xef\xbb\xbfOne.\r\nTwo.\r\n\r\nThree.\r\n")
    assert list(read_documents([path])) == [["One.", "Two."], ["Three."]]


def test_end_of_file_ends_a_document(tmp_path: Path) -> None:
    paths = [tmp_path / "a.txt", tmp_path / "b.txt"]
    paths[0].write_text("One.", encoding="utf-8")
    paths[1].write_text("Two.\n", encoding="utf-8")
    assert list(read_documents(paths)) == [["One."], ["Two."]]


@pytest.mark.parametrize("text", ["", "\n\n", " \n\t\n"])
def test_file_without_text_has_no_documents(tmp_path: Path, text: str) -> None:
    path = tmp_path / "blank.txt"
    path.write_text(text, encoding="utf-8")
    assert list(read_documents([path])) == []


def test_bad_bytes_are_named_by_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(b"fine\n\ncaf\xe9 au lait\n")
    with pytest.raises(DataError, match=r"latin\.txt:3: not valid UTF-8 at byte 3 of the line; convert the file"):
        list(read_lines(path))


def test_missing_file_is_named(tmp_path: Path) -> None:
    for name in ("nowhere.txt", "nowhere.txt.gz", "nowhere.txt.zst"):
        with pytest.raises(DataError, match=f"{name}: no such file"):
            list(read_lines(tmp_path / name))


def test_folder_is_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is a folder; name the text files in it"):
        list(read_lines(tmp_path))


@pytest.mark.parametrize("ending", [".gz", ".xz", ".zst"])
def test_cut_or_foreign_archive_is_refused(tmp_path: Path, ending: str) -> None:
    whole = COMPRESSORS[ending]("".join(f"line {number * 7919}\n" for number in range(2000)).encode())
    path = tmp_path / f"text{ending}"
    damages = [whole[: len(whole) // 2], b"plain text"]
    if ending != ".zst":  # whose checksum is optional
        damages.append(whole[:100] + bytes(60) + whole[160:])
    for damaged in damages:
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=f"text{ending}: "):
            list(read_lines(path))
