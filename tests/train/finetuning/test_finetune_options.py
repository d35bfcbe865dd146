"""Options of fine-tuning: rare labels, early stopping, calibration, long texts, several labels."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor
from transformers import BertForSequenceClassification

from cloze.checkpoint import load_folder
from cloze.errors import ConfigError
from cloze.hardware import AvailableMemory
from cloze.model import encoder
from cloze.predict import load
from cloze.progress import Interrupted
from cloze.tasks.classification.kind import CLASSIFY, MULTILABEL, REGRESS, LabelledTexts
from cloze.tasks.examples import LabelSet
from cloze.tasks.registry import TaskData
from cloze.tasks.rows import Source
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.objective import balanced_weights
from cloze.train.finetuning.settings import FinetuneSettings
from cloze.train.finetuning.trainable import check_kind
from cloze.train.run import Run
from tests.corpus.texts import WORDS
from tests.train.finetuning.test_finetune import FAST, LEARNING, make_rows, write
from tests.train.made import Listener, interrupted_at
from tests.train.pretraining.test_pretrain import weights


def results(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "eval_results.json").read_text(encoding="utf-8"))
    return found


# -- several labels per text -------------------------------------------------------------------------------------------


def several(path: Path, count: int, seed: int = 0) -> Path:
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        labels = [word for word in ("winter", "garden", "river") if draw.random() < 0.4]
        words = [word for word in draw.sample(WORDS, 5) if word not in {"winter", "garden", "river"}] + labels
        draw.shuffle(words)
        rows.append({"text": " ".join(words), "label": labels if path.suffix == ".jsonl" else "|".join(labels)})
    return write(path, rows)  # type: ignore[arg-type]


@pytest.mark.parametrize("ending", [".jsonl", ".csv"])
def test_any_number_of_labels_is_learned(base: Path, tmp_path: Path, ending: str) -> None:
    source = Source(
        "multilabel",
        several(tmp_path / f"a{ending}", 300),
        several(tmp_path / f"b{ending}", 60, 1),
    )
    run = run_finetuning(source, base, tmp_path / "run", settings=replace(LEARNING, epochs=40, learning_rate=2e-3))
    assert results(run)["micro_f1"] > 0.85
    model = load(run)
    both, neither = model.classify_all(["the winter and the garden", "house and time"])
    assert both.labels == ("garden", "winter")
    assert neither.labels == ()
    assert both.probabilities["garden"] > 0.5 > both.probabilities["river"]
    theirs = BertForSequenceClassification.from_pretrained(run / "model")
    assert theirs.config.problem_type == "multi_label_classification"


# -- rare labels -------------------------------------------------------------------------------------------------------


def test_balanced_weights_by_hand() -> None:
    rows = LabelledTexts(list("abcdef"), None, [0, 0, 0, 0, 0, 1], [""] * 6)
    data = TaskData(CLASSIFY, ("accuracy",), LabelSet(("x", "y")), rows, rows)
    assert balanced_weights(data).tolist() == pytest.approx([6 / 10, 6 / 2])
    flags = replace(rows, targets=[(1.0, 0.0)] * 4 + [(0.0, 1.0)] * 2)
    assert balanced_weights(replace(data, kind=MULTILABEL, train=flags)).tolist() == [0.5, 2.0]
    with pytest.raises(ConfigError, match="class_weights apply only to classification; the task here is regress"):
        check_kind(REGRESS, FinetuneSettings(class_weights="balanced"))


def test_balanced_weights_help_a_rare_label(base: Path, tmp_path: Path) -> None:
    common = [row for row in make_rows(400) if row["label"] == "winter"]
    rare = [row for row in make_rows(400, 3) if row["label"] == "garden"][:12]
    rows = common + rare
    random.Random(0).shuffle(rows)
    source = Source("classify", write(tmp_path / "a.csv", rows), write(tmp_path / "b.csv", make_rows(60, 1)))
    settings = FinetuneSettings(epochs=3, batch_size=8, max_length=16, learning_rate=2e-3)
    plain = run_finetuning(source, base, tmp_path / "plain", settings=settings)
    even = run_finetuning(source, base, tmp_path / "even", settings=replace(settings, class_weights="balanced"))
    texts = [row["text"] for row in rare]
    predicted = [[one.probabilities["garden"] for one in load(run).classify(texts)] for run in (plain, even)]
    assert min(predicted[1]) > 2 * max(predicted[0]), predicted


# -- early stopping ----------------------------------------------------------------------------------------------------


def test_patience_stops_and_keeps_the_best(base: Path, tmp_path: Path) -> None:
    source = Source("classify", write(tmp_path / "a.csv", make_rows(80)), write(tmp_path / "b.csv", make_rows(40, 1)))
    settings = replace(LEARNING, epochs=30, patience=2)
    run = run_finetuning(source, base, tmp_path / "run", settings=settings)
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    scores = [row["dev_accuracy"] for row in metrics if "dev_accuracy" in row]
    assert len(scores) < 30, "it stopped"
    assert len(scores) - 1 - scores.index(max(scores)) == 2
    assert results(run)["accuracy"] == max(scores), "the best weights are saved, not the last"
    assert not (run / "best.safetensors").exists()


def test_early_stopping_survives_a_resumption(base: Path, tmp_path: Path) -> None:
    source = Source("classify", write(tmp_path / "a.csv", make_rows(80)), write(tmp_path / "b.csv", make_rows(40, 1)))
    settings = replace(LEARNING, epochs=30, patience=2, save_every=7)
    whole = run_finetuning(source, base, tmp_path / "whole", settings=settings)
    for stop in (9, 23):  # in the last step of an epoch, and in the middle of one
        with pytest.raises(Interrupted), interrupted_at(stop):
            run_finetuning(source, base, tmp_path / "parts", settings=settings)
    run_finetuning(source, base, tmp_path / "parts", settings=settings)
    assert weights(tmp_path / "parts") == weights(whole)
    assert results(tmp_path / "parts") == results(whole)


# -- calibration -------------------------------------------------------------------------------------------------------


def test_calibration_travels_with_the_folder(base: Path, tmp_path: Path) -> None:
    source = Source("classify", write(tmp_path / "a.csv", make_rows(80)), write(tmp_path / "b.csv", make_rows(40, 1)))
    run = run_finetuning(source, base, tmp_path / "run", settings=replace(LEARNING, epochs=2, calibrate=True))
    found, model = results(run), load(run)
    assert model.task is not None
    assert model.task.temperature == found["temperature"] != 1.0
    assert model.task.threshold == found["threshold"]
    texts = [row["text"] for row in make_rows(20, 2)]
    logits = torch.from_numpy(model.logits(texts))
    expected = (logits / found["temperature"]).softmax(-1)[:, 1]
    predicted = model.classify(texts)
    assert [one.probabilities["winter"] for one in predicted] == pytest.approx(expected.tolist(), abs=1e-6)
    assert [one.label for one in predicted] == ["winter" if one >= found["threshold"] else "garden" for one in expected]
    plain = run_finetuning(source, base, tmp_path / "plain", settings=replace(LEARNING, epochs=2))
    assert weights(run) == weights(plain), "calibration changes no weight"


def test_calibration_of_numbers_is_refused(base: Path, tmp_path: Path) -> None:
    rows = [{"text": row["text"], "label": str(number)} for number, row in enumerate(make_rows(30))]
    source = Source("regress", write(tmp_path / "a.csv", rows))
    with pytest.raises(ConfigError, match="calibrate applies only to classification"):
        run_finetuning(source, base, tmp_path / "run", settings=replace(FAST, calibrate=True))
    assert not (tmp_path / "run").exists(), "rejected before any work starts"


# -- long texts --------------------------------------------------------------------------------------------------------


def test_windows_cover_text_that_truncation_loses(base: Path, tmp_path: Path) -> None:
    """Windows include a decisive word beyond the maximum length; truncation loses it."""

    def with_late_word(rows: list[dict[str, str]]) -> list[dict[str, str]]:
        return [{"text": " ".join(["the"] * 30 + [row["label"]]), "label": row["label"]} for row in rows]

    source = Source(
        "classify",
        write(tmp_path / "a.csv", with_late_word(make_rows(80))),
        write(tmp_path / "b.csv", with_late_word(make_rows(20, 1))),
    )
    listener = Listener()
    scores = {}
    for how in ("cut", "head-tail", "windows"):
        settings = replace(LEARNING, epochs=8, learning_rate=1e-3, long_texts=how)
        run = run_finetuning(source, base, tmp_path / how, settings=settings, progress=listener)
        scores[how] = results(run)["accuracy"]
        model = load(run)
        assert model.task is not None
        assert model.task.long_texts == how, "prediction uses the setting of training"
    assert scores["cut"] <= 0.6
    assert scores["head-tail"] == scores["windows"] == 1.0
    assert "80 of 80 training texts are longer than 16 tokens and are cut" in listener.said


@pytest.mark.parametrize(
    ("kind", "changed", "message"),
    [
        ("tag", {"long_texts": "windows"}, "the task here is tag, which processes long texts in windows by itself"),
        ("choose", {"long_texts": "head-tail"}, "the task here is choose, where options are cut"),
        (
            "classify",
            {"stride": 64},
            "stride applies only to question answering over long contexts; the task here is classify",
        ),
        ("tag", {"longest_answer": 50}, "longest_answer applies only to question answering; the task here is tag"),
    ],
)
def test_settings_without_effect_are_rejected(
    base: Path, tmp_path: Path, kind: str, changed: dict[str, Any], message: str
) -> None:
    contents = {
        "tag": ("a.conll", "door O\nAnna B-PER\n"),
        "choose": ("a.csv", "text,options,label\ndoor,a|b,A\n"),
        "classify": ("a.csv", "text,label\ndoor,x\nwindow,y\n"),
    }
    path = tmp_path / contents[kind][0]
    path.write_text(contents[kind][1], encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        run_finetuning(Source(kind, path, path), base, tmp_path / "run", settings=replace(FAST, **changed))
    assert not (tmp_path / "run").exists()


# Gradient accumulation and activation checkpointing


def trained(base: Path, source: Source, out: Path, settings: FinetuneSettings) -> tuple[list[float], dict[str, Tensor]]:
    """Return the logged losses and the weights of a run."""
    run = Run(run_finetuning(source, base, out, settings=settings))
    losses = [row["loss"] for row in run.metrics() if "loss" in row]
    return losses, {name: tensor.clone() for name, tensor in load_folder(run.folder).model.state_dict().items()}


@pytest.mark.parametrize("changes", [{}, {"mean_teacher": 1.0, "teacher_decay": 0.5}], ids=["plain", "mean teacher"])
def test_accumulation_changes_nothing(base: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    """Gradient accumulation gives the same result even if the last batch has four rows for five parts."""
    source = Source("classify", write(tmp_path / "train.csv", make_rows(20)), write(tmp_path / "dev.csv", make_rows(8)))
    settings = replace(FAST, epochs=7, dropout=0.0, learning_rate=1e-4, precision="fp32", **changes)
    losses, weights = trained(base, source, tmp_path / "whole", settings)
    parts_losses, parts_weights = trained(base, source, tmp_path / "parts", replace(settings, accumulate=5))
    assert len(losses) >= 2
    assert parts_losses == pytest.approx(losses, abs=1e-6)
    for name, tensor in weights.items():
        torch.testing.assert_close(parts_weights[name], tensor, atol=1e-5, rtol=0)


def test_checkpointing_changes_nothing(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With dropout, recomputation uses the same masks. Checkpointing may be enabled when a run is resumed."""
    calls: list[int] = []
    checkpoint = torch.utils.checkpoint.checkpoint

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        return checkpoint(*arguments, **options)

    monkeypatch.setattr(encoder, "checkpoint", counted)
    source = Source("classify", write(tmp_path / "train.csv", make_rows(16)), write(tmp_path / "dev.csv", make_rows(8)))
    settings = replace(FAST, epochs=2, dropout=0.1, precision="fp32")
    losses, weights = trained(base, source, tmp_path / "plain", settings)
    assert not calls
    again_losses, again_weights = trained(base, source, tmp_path / "again", replace(settings, checkpointing=True))
    assert calls
    assert again_losses == pytest.approx(losses, abs=1e-6)
    for name, tensor in weights.items():
        torch.testing.assert_close(again_weights[name], tensor, atol=1e-6, rtol=0)
    assert "checkpointing" not in json.loads((tmp_path / "again" / "run.json").read_text("utf-8"))


def test_accumulation_that_cannot_be(base: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="accumulate is 9, more than the 8 rows of a batch"):
        replace(FAST, accumulate=9)
    with pytest.raises(ConfigError, match="checkpointing and frozen exclude each other"):
        FinetuneSettings(checkpointing=True, frozen="last")
    (tmp_path / "texts.txt").write_text("\n".join(row["text"] for row in make_rows(20)), encoding="utf-8")
    source = Source("similarity", tmp_path / "texts.txt")
    with pytest.raises(ConfigError, match="accumulate is 2, but contrastive compares all texts of a batch with each"):
        run_finetuning(source, base, tmp_path / "run", settings=replace(FAST, accumulate=2))
    assert not (tmp_path / "run").exists()


def test_fine_tuning_that_does_not_fit_into_memory_is_refused(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source("classify", write(tmp_path / "train.csv", make_rows(40)), write(tmp_path / "dev.csv", make_rows(8)))
    parameters = 12 * load_folder(base).model.parameter_count()
    there = AvailableMemory(round(1.1 * parameters) + 150_000, "a made limit")
    monkeypatch.setattr("cloze.hardware.available_memory", lambda: there)
    message = (
        r"a step of 8 rows of up to \d+ tokens in 1 parts \(gradients and moments .*\) needs about .* \(a made limit\);"
    )
    with pytest.raises(ConfigError, match=message):
        run_finetuning(source, base, tmp_path / "run", settings=FAST)
    for name, settings in {"parts": replace(FAST, accumulate=8), "frozen": replace(FAST, frozen="last")}.items():
        run_finetuning(source, base, tmp_path / name, settings=settings)


def test_last_four_of_fewer_layers_are_refused(base: Path, tmp_path: Path) -> None:
    assert load_folder(base).model.config.layers < 4
    source = Source("classify", write(tmp_path / "train.csv", make_rows(20)))
    with pytest.raises(ConfigError, match=r"frozen is 'last4', but .* has \d layers, so that the embeddings would be"):
        run_finetuning(source, base, tmp_path / "run", settings=replace(FAST, frozen="last4"))
    assert not (tmp_path / "run").exists()
