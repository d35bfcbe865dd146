"""Training in float32 and in bfloat16."""

import json
from pathlib import Path

import pytest
import torch

from cloze.checkpoint import load_folder
from cloze.errors import ConfigError
from cloze.train import optimization as precision_module
from cloze.train.optimization import Precision, measure_peak
from cloze.train.pretraining.pretrain import pretrain
from cloze.train.settings import PrecisionName, PretrainSettings

CPU = torch.device("cpu")


def losses(data: Path, out: Path, precision: PrecisionName) -> list[float]:
    settings = PretrainSettings(
        preset="tiny", steps=20, batch_size=4, max_length=24, learning_rate=1e-3, precision=precision
    )
    run = pretrain(data, out, settings=settings)
    weights = load_folder(run / "model").model.state_dict().values()
    assert all(tensor.dtype == torch.float32 and tensor.isfinite().all() for tensor in weights)
    rows = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [row["loss"] for row in rows if "loss" in row]


def test_bfloat16_learns_like_float32(data: Path, tmp_path: Path) -> None:
    exact, rounded = (losses(data, tmp_path / name, name) for name in ("fp32", "bf16"))
    assert len(exact) >= 2
    assert rounded != exact
    assert rounded == pytest.approx(exact, abs=0.05)


@pytest.mark.parametrize("fast", [True, False])
def test_auto_is_bfloat16_where_that_is_fast(monkeypatch: pytest.MonkeyPatch, fast: bool) -> None:
    monkeypatch.setattr(precision_module, "has_fast_bf16", lambda _: fast)
    assert Precision.choose("auto", CPU).name == ("bf16" if fast else "fp32")
    assert Precision.choose("bf16", CPU).name == "bf16"
    assert Precision.choose("fp32", CPU).name == "fp32"


def test_unknown_precision() -> None:
    with pytest.raises(ConfigError, match=r"^unknown precision 'fp8'; expected auto, fp32 or bf16$"):
        Precision.choose("fp8", CPU)  # type: ignore[arg-type]


@pytest.mark.parametrize("bf16", [True, False])
def test_peak_is_a_number_of_operations(bf16: bool) -> None:
    assert measure_peak(Precision(bf16), seconds=0.01) > 1e6
