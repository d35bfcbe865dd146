from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cloze.comparison.settings import CompareSettings
from tests.corpus.texts import as_text, make_documents


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty short documents."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(as_text(make_documents(60)), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of two labels."""
    path = tmp_path_factory.mktemp("rows") / "rows.tsv"
    lines = [
        f"{word} the old {noun}\t{label}" for word, label in (("good", "pos"), ("bad", "neg")) for noun in "abcdefgh"
    ]
    path.write_text("text\tlabel\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def small(rows: Path) -> CompareSettings:
    """A comparison of a few steps: two ranked rows, a variant with one seed, and a task."""
    return CompareSettings(
        backbones="bert,gpt",
        vary="mix:1",
        tasks=f"classify={rows}:{rows}",
        steps=20,
        trials=2,
        preset="tiny",
        max_length=24,
        batch_size=4,
        vocabulary=150,
        held_out=0.4,
        blanks=40,
        pairs=16,
        epochs=1,
        precision="fp32",
    )
