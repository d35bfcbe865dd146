"""The few-label method: a linear head at its optimum, pairs built from labels, comparison with fine-tuning."""

import json
import os
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import StandardScaler

from cloze.checkpoint import ModelFolder, load_folder, save_folder
from cloze.cli import main
from cloze.errors import CheckpointError, ConfigError
from cloze.model import Bert
from cloze.predict import load
from cloze.progress import Interrupted
from cloze.tasks.registry import read_task
from cloze.tasks.rows import Source
from cloze.text import Tokenizer
from cloze.train.finetuning import few_labels
from cloze.train.finetuning.defaults import is_compared
from cloze.train.finetuning.few_labels import (
    CHOICE,
    Array,
    Loss,
    StageProgress,
    choose_strength,
    fit_head,
    label_pairs,
    standardize,
)
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.objective import TaskBatches
from cloze.train.finetuning.search import search
from cloze.train.finetuning.settings import FinetuneSettings, SearchSettings
from cloze.train.run import Run
from tests.train.finetuning.test_finetune import FAST, make_rows, write
from tests.train.made import Listener, interrupted_at, make_bert
from tests.train.pretraining.test_pretrain import weights

FEW = FinetuneSettings(few=True, max_length=16)
CONTRASTIVE = replace(FEW, contrastive=True, batch_size=8, learning_rate=1e-3, precision="fp32")


def make_vectors(rows: int = 60, size: int = 12, labels: int = 3) -> tuple[Array, Any]:
    """Return vectors of different scales, and labels that depend on them with noise."""
    draw = np.random.default_rng(0)
    vectors = draw.normal(size=(rows, size)) * draw.uniform(0.1, 5, size) + draw.normal(size=size)
    outputs = vectors @ draw.normal(size=(size, labels)) / 5 + draw.normal(size=(rows, labels))
    return vectors, outputs


@pytest.fixture
def source(tmp_path: Path) -> Source:
    train, dev = write(tmp_path / "train.csv", make_rows(40)), write(tmp_path / "dev.csv", make_rows(20, 1))
    return Source("classify", train, dev)


@pytest.fixture
def embedder(data: Path, tmp_path: Path) -> Path:
    """A folder with mean pooling and an untrained pooler."""
    model = Bert.fresh(make_bert(data).config, pooler=True, seed=1)
    save_folder(ModelFolder(model, Tokenizer.from_folder(data)), tmp_path / "embedder")
    return tmp_path / "embedder"


# -- the head ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strength", [1e-4, 0.01, 1.0, 30.0])
@pytest.mark.parametrize("labels", [2, 3, 5])
@pytest.mark.parametrize("balanced", [False, True])
def test_head_is_the_optimum_of_scikit_learn(strength: float, labels: int, balanced: bool) -> None:
    vectors, outputs = make_vectors(labels=labels)
    targets = outputs.argmax(1)
    scaled = StandardScaler().fit_transform(vectors)
    counts = np.bincount(targets, minlength=labels)
    label_weights = len(targets) / (labels * counts) if balanced else np.ones(labels)
    class_weight = "balanced" if balanced else None
    expected = LogisticRegression(C=strength, tol=1e-10, max_iter=20_000, class_weight=class_weight)
    expected.fit(scaled, targets)

    standardized, fold = standardize(vectors)
    head = fit_head(standardized, np.eye(labels)[targets], Loss("index", label_weights), strength)
    if labels == 2:  # scikit-learn has one weight vector, the difference of the two vectors of cloze
        assert head.weight[1] - head.weight[0] == pytest.approx(expected.coef_[0], abs=1e-4)
        assert head.bias[1] - head.bias[0] == pytest.approx(expected.intercept_[0], abs=1e-4)
    else:
        assert head.weight == pytest.approx(expected.coef_, abs=1e-4)
        assert head.bias - head.bias.mean() == pytest.approx(expected.intercept_ - expected.intercept_.mean(), abs=1e-4)
    assert fold(head)(vectors) == pytest.approx(head(standardized), abs=1e-10), "the folded head is equivalent"
    assert (fold(head)(vectors).argmax(1) == expected.predict(scaled)).all()


@pytest.mark.parametrize("strength", [1e-3, 0.1, 10.0])
def test_heads_of_numbers_and_of_several_labels_are_optima_as_well(strength: float) -> None:
    vectors, outputs = make_vectors()
    ridge = Ridge(alpha=1 / strength, tol=1e-10).fit(vectors, outputs[:, 0])
    head = fit_head(vectors, outputs[:, :1], Loss("number", np.ones(1)), strength)
    assert head.weight[0] == pytest.approx(ridge.coef_, abs=1e-4)
    assert head.bias[0] == pytest.approx(ridge.intercept_, abs=1e-4)

    flags = (outputs > 0).astype(float)
    each = OneVsRestClassifier(LogisticRegression(C=strength, tol=1e-10, max_iter=20_000)).fit(vectors, flags)
    head = fit_head(vectors, flags, Loss("flags", np.ones(3)), strength)
    assert head.weight == pytest.approx(np.concatenate([one.coef_ for one in each.estimators_]), abs=1e-4)


def test_start_changes_nothing_but_the_time() -> None:
    vectors, outputs = make_vectors()
    goals, loss = np.eye(3)[outputs.argmax(1)], Loss("index", np.ones(3))
    start = fit_head(vectors, goals, loss, 0.01)
    assert fit_head(vectors, goals, loss, 1.0, start).weight == pytest.approx(
        fit_head(vectors, goals, loss, 1.0).weight, abs=1e-5
    )


def test_constant_features_are_kept_at_zero() -> None:
    vectors, outputs = make_vectors()
    vectors[:, 3] = 0.1
    standardized, fold = standardize(vectors)
    head = fit_head(standardized, np.eye(3)[outputs.argmax(1)], Loss("index", np.ones(3)), 1.0)
    assert np.isfinite(fold(head).weight).all()
    assert fold(head).weight[:, 3] == pytest.approx(0, abs=1e-12)


def test_strength_has_the_lowest_loss_on_held_out_rows() -> None:
    vectors, outputs = make_vectors()
    vectors = StandardScaler().fit_transform(vectors)
    targets = outputs.argmax(1)
    folds = [list(range(fold, 60, 5)) for fold in range(5)]
    losses = []
    for strength in few_labels.STRENGTHS:
        total = 0.0
        for fold in folds:
            rest = np.setdiff1d(np.arange(60), fold)
            model = LogisticRegression(C=strength, tol=1e-8, max_iter=20_000).fit(vectors[rest], targets[rest])
            total -= np.log(model.predict_proba(vectors[fold])[np.arange(len(fold)), targets[fold]]).sum()
        losses.append(total)
    chosen = choose_strength(vectors, np.eye(3)[targets], Loss("index", np.ones(3)), folds)
    assert chosen == few_labels.STRENGTHS[int(np.argmin(losses))]
    assert chosen not in (few_labels.STRENGTHS[0], few_labels.STRENGTHS[-1]), "the optimum is inside the range"


# -- pairs -------------------------------------------------------------------------------------------------------------


def test_pairs_are_balanced_and_depend_on_the_seed_only() -> None:
    labels = [0] * 10 + [1] * 5 + [2] * 3
    pairs = label_pairs(labels, 4, seed=1)
    assert Counter(target for _, _, target in pairs) == {1.0: 18 * 4, 0.0: 18 * 4}
    assert set(Counter(row for row, _, _ in pairs).values()) == {8}
    assert all(one != other and (labels[one] == labels[other]) == bool(target) for one, other, target in pairs)
    assert pairs == label_pairs(labels, 4, seed=1)
    assert pairs != label_pairs(labels, 4, seed=2)


def test_row_alone_with_its_label_has_no_pair_of_that_label() -> None:
    pairs = label_pairs([0, 0, 1], 2, seed=0)
    assert Counter((row, target) for row, _, target in pairs) == {
        (0, 1.0): 2,
        (0, 0.0): 2,
        (1, 1.0): 2,
        (1, 0.0): 2,
        (2, 0.0): 2,
    }


# -- runs --------------------------------------------------------------------------------------------------------------


def test_run_is_an_ordinary_folder(embedder: Path, source: Source, tmp_path: Path) -> None:
    listener = Listener()
    run = run_finetuning(source, embedder, tmp_path / "run", settings=FEW, progress=listener)
    (line,) = [output for output in listener.said if output.startswith("few labels: ")]
    assert line.startswith("few labels: logistic regression on sentence vectors, C ")
    assert line.endswith(" by 5-fold cross-validation of 40 rows")
    assert line.removeprefix("few labels: ") in (run / "model" / "README.md").read_text("utf-8")
    assert not any("learning rate" in output for output in listener.said), "there are no training steps"
    # The encoder equals the base model's; logits equal a scikit-learn head on its vectors.
    before, after = load_folder(embedder).model.state_dict(), load_folder(run).model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in after if name.startswith("encoder."))
    texts = [row["text"] for row in make_rows(40)]
    targets = [row["label"] for row in make_rows(40)]
    strength = float(line.split(" C ")[1].split()[0])
    vectors = load(embedder).embed(texts, pooling="mean")
    scaler = StandardScaler().fit(vectors)
    exact = min(few_labels.STRENGTHS, key=lambda one: abs(np.log(one / strength)))
    expected = LogisticRegression(C=exact, tol=1e-10, max_iter=20_000).fit(scaler.transform(vectors), targets)
    probabilities = [label.probabilities["winter"] for label in load(run).classify(texts)]
    assert probabilities == pytest.approx(expected.predict_proba(scaler.transform(vectors))[:, 1], abs=1e-4)
    assert {"accuracy", "macro_f1", "rows", "intervals", "baseline"} <= json.loads(
        (run / "eval_results.json").read_text("utf-8")
    ).keys()


def test_training_starts_at_the_linear_optimum(embedder: Path, source: Source, tmp_path: Path) -> None:
    listener = Listener()
    settings = FinetuneSettings(linear_start=True, epochs=1, learning_rate=1e-12, max_length=16)
    run = run_finetuning(source, embedder, tmp_path / "run", settings=settings, progress=listener)
    (line,) = [
        output for output in listener.said if output.startswith("the head starts as logistic regression on sentence")
    ]
    strength = float(line.split(": C ")[1].split(",")[0])
    assert strength in few_labels.STARTING_STRENGTHS
    assert line.endswith("fitted to 40 rows")
    texts = [row["text"] for row in make_rows(40)]
    vectors = load(embedder).embed(texts, pooling="mean")
    scaled = StandardScaler().fit(vectors).transform(vectors)
    expected = LogisticRegression(C=strength, tol=1e-10, max_iter=20_000)
    expected.fit(scaled, [row["label"] for row in make_rows(40)])
    probabilities = [label.probabilities["winter"] for label in load(run).classify(texts)]
    assert probabilities == pytest.approx(expected.predict_proba(scaled)[:, 1], abs=1e-4)


def test_many_rows_start_from_a_sample(
    embedder: Path, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(few_labels, "STARTING_ROWS", 16)
    listener = Listener()
    settings = replace(FAST, linear_start=True)
    run_finetuning(source, embedder, tmp_path / "run", settings=settings, progress=listener)
    assert any(output.endswith("fitted to 14 rows") for output in listener.said)


def test_linear_start_is_refused_where_it_means_nothing(embedder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="linear_start and frozen exclude each other"):
        FinetuneSettings(linear_start=True, frozen="last")
    (tmp_path / "tags.txt").write_text("winter B-X\nriver O\n\n" * 20, "utf-8")
    settings = FinetuneSettings(linear_start=True, max_length=16)
    with pytest.raises(
        ConfigError, match="linear_start applies only to classification and regression; the task here is tag"
    ):
        run_finetuning(Source("tag", tmp_path / "tags.txt"), embedder, tmp_path / "run", settings=settings)


def test_sentence_transformers_gives_the_logits(embedder: Path, source: Source, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    run = run_finetuning(source, embedder, tmp_path / "run", settings=FEW)
    texts = [row["text"] for row in make_rows(6, 2)]
    theirs = SentenceTransformer(str(run / "model"), device="cpu").encode(texts)
    assert theirs == pytest.approx(load(run).logits(texts), abs=1e-4)


def test_pooler_is_read_where_the_settings_say_so(base: Path, source: Source, tmp_path: Path) -> None:
    assert load_folder(run_finetuning(source, base, tmp_path / "mean", settings=FEW)).model.pooling == "mean"
    run = run_finetuning(source, base, tmp_path / "cls", settings=replace(FEW, pooling="cls"))
    assert load_folder(run).model.pooler is not None


@pytest.mark.parametrize("task", ["multilabel", "regress"])
def test_other_kinds_of_labels(embedder: Path, tmp_path: Path, task: str) -> None:
    rows = [
        row | {"label": row["label"] if task == "multilabel" else str(number % 2)}
        for number, row in enumerate(make_rows(40))
    ]
    path = write(tmp_path / "rows.csv", rows)
    listener = Listener()
    run = run_finetuning(Source(task, path, path), embedder, tmp_path / "run", settings=FEW, progress=listener)
    name = "logistic" if task == "multilabel" else "ridge"
    assert any(output.startswith(f"few labels: {name} regression on sentence vectors") for output in listener.said)
    results = Run(run).results()
    assert results["micro_f1" if task == "multilabel" else "pearson"] > 0.7


def test_windows_and_pairs_of_texts(embedder: Path, tmp_path: Path) -> None:
    rows = [row | {"pair": row["text"][::-1]} for row in make_rows(40)]
    path = write(tmp_path / "rows.csv", rows)
    settings = replace(FEW, long_texts="windows", max_length=8, class_weights="balanced")
    run = run_finetuning(Source("classify", path, path), embedder, tmp_path / "windows", settings=settings)
    assert Run(run).results()["accuracy"] > 0.7
    run = run_finetuning(Source("classify", path, path, pair="pair"), embedder, tmp_path / "pairs", settings=FEW)
    assert len(load(run).classify(["river"], ["house"])) == 1


def test_resumed_contrastive_training_has_the_same_weights(
    embedder: Path, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(few_labels, "PAIRS", 160)
    listener = Listener()
    straight = run_finetuning(source, embedder, tmp_path / "straight", settings=CONTRASTIVE, progress=listener)
    assert any(output.startswith("contrastive training: 160 pairs of 40 rows, 1 epochs") for output in listener.said)
    with interrupted_at(7), pytest.raises(Interrupted, match="stopped and saved at step"):
        run_finetuning(source, embedder, tmp_path / "killed", settings=CONTRASTIVE)
    resumed = run_finetuning(source, embedder, tmp_path / "killed", settings=CONTRASTIVE)
    assert weights(straight) == weights(resumed)
    before, after = load_folder(embedder).model.state_dict(), load_folder(straight).model.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in after if name.startswith("encoder."))
    assert [row["dev_accuracy"] for row in Run(straight).metrics() if "dev_accuracy" in row] == [
        Run(straight).results()["accuracy"]
    ]


def test_folds_of_a_search(embedder: Path, tmp_path: Path) -> None:
    source = Source("classify", write(tmp_path / "train.csv", make_rows(40)))
    plan = SearchSettings(folds=2)
    run = search(source, embedder, tmp_path / "run", settings=FEW, search_settings=plan)
    assert "logistic regression" in (run / "model" / "README.md").read_text("utf-8")
    for plan, message in (
        (SearchSettings(seeds=2), "seeds only applies to fine-tuning; the head of few has no random start"),
        (SearchSettings(grid=True), "grid only applies to fine-tuning; the head of few has no learning rate"),
    ):
        with pytest.raises(ConfigError, match=message):
            search(source, embedder, tmp_path / "bad", settings=FEW, search_settings=plan)


# -- the choice --------------------------------------------------------------------------------------------------------


def test_automatic_choice_is_reported_and_recorded(embedder: Path, source: Source, tmp_path: Path) -> None:
    listener = Listener()
    run = run_finetuning(
        source, embedder, tmp_path / "run", settings=FinetuneSettings(max_length=16), progress=listener
    )
    record = json.loads((run / CHOICE).read_text("utf-8"))
    (line,) = [output for output in listener.said if "overrides" in output and output.startswith("few labels")]
    few, tuned = (f"{100 * record['scores'][name]:.1f} %" for name in ("few", "fine_tuning"))
    used, flag = ("former", "few=False (--no-few)") if record["few"] else ("latter", "few=True (--few)")
    assert line == (
        f"few labels: linear head on sentence vectors {few}, fine-tuning {tuned} (accuracy of 14 held-out training "
        f"rows, one of 3 folds): using the {used}; {flag} overrides"
    )
    assert record["few"] == (record["scores"]["few"] > record["scores"]["fine_tuning"])
    assert not (run / "comparison").exists()
    recorded = json.loads((run / "run.json").read_text("utf-8"))
    assert recorded["few"] is None


def choose(few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace both scores of the comparison, so that one of them wins."""
    real = few_labels.choose_few

    def choose_few(run: Run, data: Any, fit: Any, finetune: Any, progress: Any) -> bool:
        def tune(fold: Any, folder: Path) -> float:
            finetune(fold, folder)
            return float(not few)

        return real(run, data, lambda _: float(few), tune, progress)

    monkeypatch.setattr("cloze.train.finetuning.finetune.choose_few", choose_few)


def test_fitted_head_of_the_comparison_is_that_of_the_setting(
    embedder: Path, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose(True, monkeypatch)
    settings = FinetuneSettings(max_length=16)
    run = run_finetuning(source, embedder, tmp_path / "auto", settings=settings)
    explicit = run_finetuning(source, embedder, tmp_path / "explicit", settings=replace(settings, few=True))
    assert weights(run) == weights(explicit)
    assert not (run / "comparison").exists()
    assert "by 5-fold cross-validation" in (run / "model" / "README.md").read_text("utf-8")


def test_fine_tuning_continues_from_the_comparison(
    embedder: Path, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fine-tuning continues from the model of the comparison, on all rows, for the last third of the updates."""
    choose(False, monkeypatch)
    listener = Listener()
    settings = FinetuneSettings(max_length=16, precision="fp32")
    run = run_finetuning(source, embedder, tmp_path / "auto", settings=settings, progress=listener)
    steps = [int(row["step"]) for row in Run(run).metrics() if "loss" in row]
    # 40 rows: 20 epochs of 2 updates on the 26 rows that are not held out, then 7 epochs of 3 updates on all.
    assert (steps[0], steps[-1]) == (10 - 40, 7 * 3)
    assert 0 in steps
    plain = run_finetuning(source, embedder, tmp_path / "plain", settings=replace(settings, few=False))
    updates = max(row["step"] for row in Run(plain).metrics())
    assert steps[-1] - (steps[0] - 10) <= updates + 3, "at most an epoch more than without the comparison"
    card = (run / "model" / "README.md").read_text("utf-8")
    assert "20 epochs, batch size 16, learning rate 0.001" in card
    assert "then 7 epochs with the rows that were held out to compare methods" in card
    assert not (run / "comparison").exists()
    assert len(listener.said) == len(set(listener.said)), "the comparison repeats no message"
    rows = make_rows(40)
    labels = [label.label for label in load(run).classify([row["text"] for row in rows])]
    assert sum(label == row["label"] for label, row in zip(labels, rows, strict=True)) >= 36, "of the training rows"


def test_comparison_without_a_model_falls_back_to_all_rows(
    embedder: Path, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of an earlier version, whose comparison model was deleted, trains on all rows from the start."""
    monkeypatch.setattr("cloze.train.finetuning.finetune.choose_few", lambda *_: False)
    settings = FinetuneSettings(max_length=16)
    run = run_finetuning(source, embedder, tmp_path / "auto", settings=settings)
    explicit = run_finetuning(source, embedder, tmp_path / "explicit", settings=replace(settings, few=False))
    assert weights(run) == weights(explicit)


@pytest.mark.parametrize("rows", [26, 40])  # row counts: of the comparison (26) and of all rows (40)
def test_interrupted_run_continues_in_either_stage(
    embedder: Path, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    choose(False, monkeypatch)
    settings = FinetuneSettings(max_length=16, precision="fp32")
    straight = run_finetuning(source, embedder, tmp_path / "straight", settings=settings)
    folder, at = tmp_path / "killed", TaskBatches.at

    def disturbed(batches: TaskBatches, step: int, *rest: Any) -> Any:
        if step == 5 and len(batches.items) == rows:
            os.kill(os.getpid(), signal.SIGINT)
        return at(batches, step, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TaskBatches, "at", disturbed)
        with pytest.raises(Interrupted):
            run_finetuning(source, embedder, folder, settings=settings)
    assert (folder / CHOICE).exists() == (rows == 40)
    assert (folder / "comparison").is_dir()
    resumed = run_finetuning(source, embedder, folder, settings=settings)
    assert (resumed / CHOICE).read_text("utf-8") == (straight / CHOICE).read_text("utf-8")
    assert weights(resumed) == weights(straight)
    assert [row["step"] for row in Run(resumed).metrics()] == [row["step"] for row in Run(straight).metrics()]


def test_choice_is_made_once(embedder: Path, source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = FinetuneSettings(max_length=16)
    run = run_finetuning(source, embedder, tmp_path / "run", settings=settings)
    record = json.loads((run / CHOICE).read_text("utf-8"))
    scores = {"few": 0.9, "fine_tuning": 0.1}
    (run / CHOICE).write_text(json.dumps(record | {"few": True, "scores": scores}), "utf-8")
    (run / "model").rename(tmp_path / "model")
    listener = Listener()
    run_finetuning(source, embedder, tmp_path / "run", settings=settings, progress=listener)
    assert any("linear head on sentence vectors 90.0 %, fine-tuning 10.0 %" in output for output in listener.said)
    assert "logistic" in (run / "model" / "README.md").read_text("utf-8")


def test_what_is_compared(tmp_path: Path) -> None:
    data = read_task(Source("classify", write(tmp_path / "train.csv", make_rows(60))))
    assert is_compared(data, FinetuneSettings())
    assert is_compared(data, FinetuneSettings(seed=3, pooling="mean", class_weights="balanced", max_length=64))
    chosen: list[dict[str, Any]] = [{"epochs": 3}, {"learning_rate": 1e-4}, {"adapter": "lora"}, {"frozen": "last"}]
    chosen += [{"few": True}, {"few": False}, {"patience": 2}, {"augment": "edits"}, {"freeze_layers": 1}]
    for values in chosen:
        assert not is_compared(data, FinetuneSettings(**values))
    assert not is_compared(replace(data, train=data.train.select(range(29))), FinetuneSettings())
    many = read_task(Source("classify", write(tmp_path / "many.csv", make_rows(560))))
    assert not is_compared(many, FinetuneSettings()), "with 504 rows, the methods are not compared"


def test_messages_of_the_comparison_are_left_out() -> None:
    seen: list[str] = []

    class Watching(Listener):
        def advance(self, stage: str, done: int, total: int | None, **figures: float) -> None:
            seen.append(f"{stage} {done}/{total} {figures}")

    listener = Watching()
    StageProgress(listener).advance("training", 1, 3, loss=0.5)
    StageProgress(listener).say("twice")
    assert (seen, listener.said) == (["comparison: training 1/3 {'loss': 0.5}"], [])


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"adapter": "lora"}, "adapter is 'lora', but few fits a linear head"),
        ({"frozen": "last"}, "frozen is 'last', but few fits a linear head"),
        ({"augment": "edits"}, "augment is 'edits', but few fits a linear head"),
        ({"mean_teacher": 1.0, "contrastive": True}, "mean_teacher is 1.0, but few fits"),
        ({"epochs": 3}, "epochs is 3, but the head of few is fitted without training steps"),
        ({"patience": 3}, "patience is 3, .*leave it out, or add contrastive"),
    ],
)
def test_refused_settings(embedder: Path, source: Source, tmp_path: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run_finetuning(source, embedder, tmp_path / "run", settings=FinetuneSettings(few=True, **values))
    assert not (tmp_path / "run").exists()


def test_refused_tasks(embedder: Path, tmp_path: Path) -> None:
    rows = [row | {"label": "1"} for row in make_rows(20)]
    path = write(tmp_path / "rows.csv", rows)
    with pytest.raises(
        ConfigError, match="contrastive applies only to rows with one label each; the task here is regress"
    ):
        run_finetuning(Source("regress", path), embedder, tmp_path / "run", settings=CONTRASTIVE)
    with pytest.raises(ConfigError, match="few is True, which training for similarity does not support"):
        run_finetuning(Source("similarity", path), embedder, tmp_path / "run", settings=FinetuneSettings(few=True))
    tags = write(tmp_path / "tags.jsonl", [{"text": "a b", "label": "O O"}])
    tags.write_text('{"tokens": ["a", "b"], "tags": ["O", "B-X"]}\n' * 20, "utf-8")
    with pytest.raises(ConfigError, match="few applies only to classification and regression; the task here is tag"):
        run_finetuning(
            Source("tag", tags, text="tokens", label="tags"),
            embedder,
            tmp_path / "run",
            settings=FinetuneSettings(few=True),
        )
    with pytest.raises(ConfigError, match="contrastive trains the vectors that few uses; set few as well"):
        FinetuneSettings(contrastive=True)


def test_damaged_model_is_refused(data: Path, source: Source, tmp_path: Path) -> None:
    model = make_bert(data)
    with torch.no_grad():
        model.encoder.embeddings.norm.weight[0] = float("nan")
    save_folder(ModelFolder(model, Tokenizer.from_folder(data)), tmp_path / "damaged")
    with pytest.raises(CheckpointError, match="holds 1 of 32 values that are NaN or infinite"):
        run_finetuning(source, tmp_path / "damaged", tmp_path / "run", settings=FEW)


def test_flags(embedder: Path, source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "finetune",
        "classify",
        str(source.data),
        "--dev",
        str(source.dev),
        "--model",
        str(embedder),
        "--max-length",
        "16",
    ]

    def run(*flags: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as exit_:
            main([*command, *flags])
        return int(exit_.value.code or 0), capsys.readouterr().err

    code, output = run("--out", str(tmp_path / "few"), "--few")
    assert code == 0
    assert "few labels: logistic regression on sentence vectors" in output
    code, output = run("--out", str(tmp_path / "full"), "--no-few")
    assert code == 0
    assert "few labels" not in output
    assert json.loads((tmp_path / "full" / "run.json").read_text("utf-8"))["few"] is False
    code, output = run("--out", str(tmp_path / "both"), "--few", "--no-few")
    assert code != 0
    assert "--few and --no-few exclude each other" in output
