"""Fine-tuning in bfloat16: which parts use it, and which remain in float32."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from cloze.checkpoint import load_folder
from cloze.errors import ConfigError
from cloze.model.losses import IMPOSSIBLE
from cloze.options import IGNORED
from cloze.predict.evaluation import evaluate_examples
from cloze.progress import Interrupted
from cloze.tasks.rows import Source
from cloze.train import optimization as precision_module
from cloze.train.finetuning import finetune as module
from cloze.train.finetuning.contrastive import contrast
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.objective import TaskObjective, logits_distance
from cloze.train.finetuning.settings import FinetuneSettings
from tests.train.finetuning.test_finetune import FAST, LEARNING, make_rows, write
from tests.train.made import Listener, interrupted_at
from tests.train.pretraining.test_pretrain import weights


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source("classify", write(tmp_path / "a.csv", make_rows(96)), write(tmp_path / "b.csv", make_rows(24, 1)))


def rows(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def test_bfloat16_learns_like_float32(base: Path, source: Source, tmp_path: Path) -> None:
    runs = {
        name: run_finetuning(source, base, tmp_path / name, settings=replace(LEARNING, precision=name))
        for name in ("fp32", "bf16")
    }
    exact, rounded = ([row["loss"] for row in rows(run) if "loss" in row] for run in runs.values())
    assert rounded != exact
    assert rounded == pytest.approx(exact, abs=0.1)
    assert {tensor.dtype for tensor in load_folder(runs["bf16"] / "model").model.state_dict().values()} == {
        torch.float32
    }
    # The score after the last epoch equals the score of the saved model.
    reported = [row["dev_accuracy"] for row in rows(runs["bf16"]) if "dev_accuracy" in row]
    assert reported[-1] == json.loads((runs["bf16"] / "eval_results.json").read_text("utf-8"))["accuracy"]


def test_layers_are_bfloat16_and_heads_and_scores_are_not(
    base: Path, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, set[Any]] = {"training": set(), "scoring": set(), "logits": set()}
    score, ask = evaluate_examples, TaskObjective.logits

    def watched_score(*given: Any) -> Any:
        seen["scoring"].add(torch.is_autocast_enabled("cpu"))
        return score(*given)

    def watched_logits(self: TaskObjective, batch: Any) -> torch.Tensor:
        found = ask(self, batch)
        seen["training"].add(torch.is_autocast_enabled("cpu"))
        seen["logits"].add((found.dtype, torch.equal(found.bfloat16().float(), found)))
        return found

    monkeypatch.setattr(module, "evaluate_examples", watched_score)
    monkeypatch.setattr(TaskObjective, "logits", watched_logits)
    run_finetuning(source, base, tmp_path / "run", settings=replace(FAST, precision="bf16"))
    assert seen == {"training": {True}, "scoring": {False}, "logits": {(torch.float32, False)}}


def test_auto_is_the_faster_precision_but_frozen_states_are_float32(
    base: Path, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision_module, "has_fast_bf16", lambda _: True)
    reported = list[str]()
    for number, settings in enumerate((FAST, replace(FAST, frozen="last"), replace(FAST, precision="fp32"))):
        run = run_finetuning(source, base, tmp_path / str(number), settings=settings)
        reported += re.findall("computed in (.*)", (run / "model" / "README.md").read_text(encoding="utf-8"))
    assert reported == ["bf16", "fp32", "fp32"]
    with pytest.raises(ConfigError, match=r"^precision is bf16, but frozen states are computed once, in fp32; leave"):
        FinetuneSettings(frozen="last", precision="bf16")
    with pytest.raises(ConfigError, match=r"^unknown precision 'fp8'; expected auto, fp32 or bf16$"):
        FinetuneSettings(precision="fp8")  # type: ignore[arg-type]


def test_resumed_is_uninterrupted_to_the_bit(base: Path, source: Source, tmp_path: Path) -> None:
    settings = replace(FAST, precision="bf16")
    whole = run_finetuning(source, base, tmp_path / "whole", settings=settings)
    with interrupted_at(5), pytest.raises(Interrupted):
        run_finetuning(source, base, tmp_path / "parts", settings=settings)
    listener = Listener()
    parts = run_finetuning(source, base, tmp_path / "parts", settings=settings, progress=listener)
    assert any("resuming at step" in line for line in listener.said)
    assert weights(parts) == weights(whole)


def test_cosines_are_never_rounded() -> None:
    vectors = functional.normalize(torch.randn(2, 8, 32, generator=torch.Generator().manual_seed(0)), dim=-1)
    expected, _ = contrast(vectors[0], vectors[1], 0.05)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(contrast(vectors[0], vectors[1], 0.05)[0], expected)


def test_mean_teacher_loss_does_not_depend_on_the_batch() -> None:
    student_logits, teacher_logits = torch.randn(2, 1, 2, 5, generator=torch.Generator().manual_seed(0))
    alone = logits_distance(student_logits, teacher_logits, torch.tensor([[1, 2]]), 2)
    one, other = (functional.pad(answer, (0, 7), value=IMPOSSIBLE) for answer in (student_logits, teacher_logits))
    assert torch.equal(logits_distance(one, other, torch.tensor([[1, 2]]), 2), alone)
    assert logits_distance(one, other, torch.tensor([[IGNORED, 2]]), 1).item() > 0
