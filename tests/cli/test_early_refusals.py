"""Every command that writes rejects an impossible output before it reads or computes anything."""

from pathlib import Path

import numpy as np
import pytest

from cloze.cli import COMMANDS, build
from cloze.cli.console import SHOWN_CHARACTERS, shorten
from tests.cli.conftest import Cloze, Way

# Required arguments of the commands. None of the files exist, so any work would fail with a different error.
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "compare": ("missing.txt",),
    "vocab": ("missing.txt",),
    "coverage": ("missing.txt",),
    "prepare": ("missing.txt", "--vocab", "missing"),
    "pretrain": ("missing",),
    "finetune": ("classify", "missing.csv"),
    "distill": ("classify", "missing.csv", "--model", "missing"),
    "adapt": ("--domain", "missing.txt", "--task", "classify", "missing.csv"),
    "evaluate": ("classify", "missing.csv"),
    "suggest": ("missing.txt", "--model", "missing"),
    "fill": ("a [MASK]", "--model", "missing"),
    "score": ("a text", "--model", "missing"),
    "generate": ("a text", "--model", "missing"),
    "correct": ("a text", "--model", "missing"),
    "follows": ("a text", "another", "--model", "missing"),
    "embed": ("a text", "--model", "missing"),
    "rerank": ("--input", "missing.jsonl", "--model", "missing"),
    "mine": ("missing.csv", "--model", "missing"),
    "classify": ("a text", "--model", "missing"),
    "tag": ("a text", "--model", "missing"),
    "answer": ("a question", "a context", "--model", "missing"),
    "choose": ("a prompt", "one", "two", "--model", "missing"),
    "inspect": ("a text", "--model", "missing"),
    "explain": ("a text", "--model", "missing"),
    "heads": ("missing.txt",),
    "quantize": ("--model", "missing"),
    "export": ("--model", "missing"),
}
# Suffixes of the files that are not rows; names of folders may have any.
ENDINGS = {"coverage": ".tsv", "explain": ".html"}
WHITENING = ("--model", "missing", "--whiten", "missing.txt")
FLAGS = [
    (command, flag)
    for command in COMMANDS
    for argument in build(command).assemble_argument_collection()
    for flag in argument.names
    if flag in ("--out", "--output")
]


def arguments_of(command: str, flag: str) -> tuple[str, ...]:
    return WHITENING if (command, flag) == ("embed", "--out") else ARGUMENTS.get(command, ())


@pytest.mark.parametrize(("command", "flag"), FLAGS)
def test_refused_before_any_work(command: str, flag: str, run: Cloze, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("kept", encoding="utf-8")
    place = blocked / "new" / f"out{ENDINGS.get(command, '.jsonl')}"
    result = run(command, *arguments_of(command, flag), flag, place)
    assert (result.code, result.complaint) == (2, f"{flag} {place}: {blocked} is a file; choose another folder")
    assert blocked.read_text(encoding="utf-8") == "kept"


@pytest.mark.parametrize(("command", "flag"), [case for case in FLAGS if case[1] == "--output"])
def test_output_file_is_not_a_folder_nor_of_an_unknown_format(
    command: str, flag: str, run: Cloze, tmp_path: Path
) -> None:
    folder = tmp_path / f"out{ENDINGS.get(command, '.jsonl')}"
    folder.mkdir()
    assert "this is a folder; name a file in it" in run(command, *arguments_of(command, flag), flag, folder).complaint
    odd = run(command, *arguments_of(command, flag), flag, tmp_path / "out.xyz")
    assert (odd.code, "expected" in odd.complaint) == (2, True)


def test_converted_model_has_a_place(run: Cloze, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    assert f"{blocked} is a file" in run("convert", "missing", blocked / "new").complaint


def test_folders_of_an_output_file_are_created(run: Cloze, way: Way, tmp_path: Path) -> None:
    output = tmp_path / "new" / "folder" / "vectors.npy"
    assert run("embed", "a text", "--model", way.pretrained, "--output", output).code == 0
    assert np.load(output).shape == (1, 128)
    texts = tmp_path / "texts.txt"
    texts.write_text("one text\nanother text\n", encoding="utf-8")
    output = tmp_path / "other" / "folder" / "vectors.npy"
    assert run("embed", "--input", texts, "--model", way.pretrained, "--output", output).code == 0
    assert np.load(output).shape == (2, 128)


def test_unwritable_file_is_refused(run: Cloze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "rows.jsonl"
    output.touch()
    monkeypatch.setattr("os.access", lambda path, _: Path(path) != output)
    complaint = run("score", "a text", "--model", "missing", "--output", output).complaint
    assert complaint == f"{output}: is write-protected; make it writable, or choose another location"


def test_texts_are_cut_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "word " * 40
    assert shorten(text) == text
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert shorten(text) == text[: SHOWN_CHARACTERS - 1] + "…"
    assert shorten(text[:SHOWN_CHARACTERS]) == text[:SHOWN_CHARACTERS]


@pytest.mark.parametrize("command", ["score", "embed"])
def test_piped_tables_have_whole_texts(command: str, run: Cloze, way: Way) -> None:
    text = "the door was open and nobody was there " * 4
    assert text.strip() in run(command, text.strip(), "--model", way.pretrained).out
