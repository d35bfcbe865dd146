import logging
import lzma
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import cloze
from cloze.cli import main

DEMO = Path(cloze.__file__).parent / "demo" / "data"


@dataclass(frozen=True)
class Result:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The single line of an error message without its prefix; notes about [UNK] tokens are ignored."""
        (line,) = [line for line in self.err.splitlines() if "of the tokens are [UNK]" not in line]
        return line.removeprefix("cloze: error: ")


Cloze = Callable[..., Result]


@pytest.fixture(autouse=True)
def quiet_neighbours() -> Iterator[None]:
    """Restore the library's logger and the number of threads, which the command line changes."""
    logger = logging.getLogger("cloze")
    handlers, propagate, threads = logger.handlers, logger.propagate, torch.get_num_threads()
    torch.set_num_threads(1)  # with such small models, additional threads only wait for each other
    yield
    logger.handlers, logger.propagate = handlers, propagate
    torch.set_num_threads(threads)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Cloze:
    """Run a command in this process."""

    def call(*words: object) -> Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([str(word) for word in words])
        captured = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return Result(end.value.code, captured.out, captured.err)

    return call


def quietly(*words: object) -> None:
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    assert end.value.code == 0


@dataclass(frozen=True)
class Way:
    """The folders of all pipeline stages, each named after the command that creates it; read-only."""

    text: Path
    vocabulary: Path
    data: Path
    pretrained: Path
    tuned: Path
    rows: Path


@pytest.fixture(scope="session")
def way(tmp_path_factory: pytest.TempPathFactory) -> Way:
    """All stages from text to a fine-tuned model, on a small part of the bundled text."""
    folder = tmp_path_factory.mktemp("way")
    way = Way(*(folder / name for name in ("text.txt", "vocabulary", "data", "pretrained", "tuned", "rows.tsv")))
    with lzma.open(DEMO / "books.txt.xz", "rt", encoding="utf-8") as file:
        chapters = file.read(400_000).split("\n\n")
    way.text.write_text("\n\n".join(chapter[:1500] for chapter in chapters), encoding="utf-8")
    lines = (DEMO / "authors_train.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    way.rows.write_text("".join(lines[:61]), encoding="utf-8")
    torch.set_num_threads(1)
    quietly("vocab", way.text, "--out", way.vocabulary, "--size", 500)
    quietly("prepare", way.text, "--vocab", way.vocabulary, "--out", way.data, "--held-out", 0.2)
    small = ("--batch", 4, "--length", 32)
    quietly("pretrain", way.data, "--preset", "tiny", "--steps", 20, *small, "--out", way.pretrained)
    quietly("finetune", "classify", way.rows, "--model", way.pretrained, "--epochs", 1, *small, "--out", way.tuned)
    return way
