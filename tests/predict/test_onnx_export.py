"""ONNX graphs: onnxruntime computes the same results without cloze."""

import sys
from pathlib import Path

import numpy
import onnxruntime
import pytest
import torch

from cloze.errors import ConfigError
from cloze.model import HeadName
from cloze.model.losses import task_logits
from cloze.predict.loading import export_onnx
from cloze.text import Tokenizer
from tests.model.made import model_folder


@pytest.mark.parametrize("head", ["sequence", "span"])
def test_the_same_numbers(head: HeadName, tmp_path: Path) -> None:
    contents = model_folder([head])
    graph = export_onnx(contents, tmp_path / "onnx")
    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    source = numpy.random.default_rng(1)
    for count, length in ((1, 1), (3, 7), (5, 32)):
        ids = source.integers(0, 60, (count, length))
        segments = source.integers(0, 2, (count, length))
        mask = numpy.ones_like(ids)
        mask[-1, length // 2 + 1 :] = 0
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
        states, logits = session.run(None, given)
        with torch.inference_mode():
            last = contents.model(*map(torch.from_numpy, (ids, segments)), torch.from_numpy(mask).bool()).last
            expected = task_logits(contents.model, head, last, [1] * count)
        real = mask.astype(bool)
        expected_array = expected.numpy().transpose(0, 2, 1)[real] if head == "span" else expected.numpy()
        numpy.testing.assert_allclose(states[real], last.numpy()[real], atol=1e-4)
        numpy.testing.assert_allclose(logits[real] if head == "span" else logits, expected_array, atol=1e-4)
    assert Tokenizer.from_folder(tmp_path / "onnx").pieces == contents.tokenizer.pieces


def test_without_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError, match=r"^cloze export needs the onnx packages; install them with: pip install "):
        export_onnx(model_folder(), tmp_path / "onnx")
