import csv
import json
import logging
import os
import random
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertForSequenceClassification

from cloze.checkpoint import ModelFolder, load_folder, save_folder
from cloze.errors import CheckpointError, ConfigError, DataError
from cloze.model import Bert
from cloze.predict import Evaluation, Model, evaluate, evaluate_examples, load
from cloze.progress import Interrupted
from cloze.tasks.examples import Examples
from cloze.tasks.kind import TaskKind
from cloze.tasks.registry import read_task
from cloze.tasks.rows import Source
from cloze.tasks.tagging.sequences import ENTITY_METRICS, PLAIN_METRICS
from cloze.text import Tokenizer
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.settings import FinetuneSettings
from cloze.train.run import Run
from tests.corpus.texts import WORDS
from tests.train.made import Listener, interrupted_at, make_bert
from tests.train.pretraining.test_pretrain import weights

FAST = FinetuneSettings(epochs=1, batch_size=8, max_length=16, learning_rate=1e-3)
LEARNING = FinetuneSettings(epochs=6, batch_size=8, max_length=16, learning_rate=3e-3, dropout=0.0)

Rows = list[dict[str, str]]


def make_rows(count: int, seed: int = 0) -> Rows:
    """Return texts that each contain one of two words, which is also the label."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        label = ("winter", "garden")[number % 2]
        words = [word for word in draw.sample(WORDS, 6) if word not in {"winter", "garden"}]
        words.insert(draw.randrange(len(words)), label)
        rows.append({"text": " ".join(words), "label": label, "extra": str(number)})
    return rows


def write(path: Path, rows: Rows) -> Path:
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def learned(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("learned")
    source = Source(
        "classify", write(folder / "train.csv", make_rows(160)), write(folder / "dev.csv", make_rows(40, 1))
    )
    return run_finetuning(source, base, folder / "run", settings=LEARNING)


def test_separable_labels_are_learned(learned: Path) -> None:
    results = json.loads((learned / "eval_results.json").read_text(encoding="utf-8"))
    assert results.keys() == {"accuracy", "macro_f1", "rows", "intervals", "by_label", "baseline"}
    assert results["rows"] == 40
    assert results["accuracy"] > 0.9
    # The run is evaluated after every epoch of 20 steps.
    metrics = [json.loads(line) for line in (learned / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["step"] for row in metrics if "dev_accuracy" in row] == [20, 40, 60, 80, 100, 120]
    assert metrics[-1]["dev_accuracy"] == results["accuracy"]
    assert not (learned / "checkpoints").exists()
    card = (learned / "model" / "README.md").read_text(encoding="utf-8")
    assert "answers: garden, winter" in card
    run_settings = json.loads((learned / "run.json").read_text(encoding="utf-8"))
    assert (
        f"- from: {run_settings['model']}\n- rows: classify, {run_settings['data']} ({run_settings['content'][:12]})\n"
        in card
    )
    assert "On 40 dev rows:" in card
    assert f"accuracy: {results['accuracy']:.4f}" in card


def test_transformers_load_it_and_agree(learned: Path) -> None:
    model = BertForSequenceClassification.from_pretrained(learned / "model").eval()  # type: ignore[no-untyped-call]
    assert model.config.id2label == {0: "garden", 1: "winter"}
    texts = [row["text"] for row in make_rows(6, seed=2)]
    encoded = AutoTokenizer.from_pretrained(learned / "model")(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        theirs = model(**encoded).logits.numpy()
    assert np.abs(theirs - load(learned).logits(texts)).max() < 1e-5
    assert np.abs(theirs).max() > 0.5


@pytest.mark.parametrize("ending", [".tsv", ".jsonl"])
def test_forms_of_files_give_one_model(base: Path, tmp_path: Path, ending: str) -> None:
    rows, dev = make_rows(24), make_rows(8, 1)
    runs = [
        run_finetuning(
            Source("classify", write(tmp_path / f"train{end}", rows), write(tmp_path / f"dev{end}", dev)),
            base,
            tmp_path / f"run{end}",
            settings=FAST,
        )
        for end in (".csv", ending)
    ]
    assert weights(runs[0]) == weights(runs[1])


def test_seed_decides_the_model(base: Path, tmp_path: Path) -> None:
    source = Source("classify", write(tmp_path / "train.csv", make_rows(40)))
    seeds = {"first": 0, "again": 0, "other": 1}
    settings = FinetuneSettings(1, 8, max_length=16, learning_rate=1e-3)
    models = {
        name: weights(run_finetuning(source, base, tmp_path / name, settings=replace(settings, seed=seed)))
        for name, seed in seeds.items()
    }
    assert models["first"] == models["again"]
    assert models["first"] != models["other"]


def test_interrupted_and_resumed_gives_the_same_model(base: Path, tmp_path: Path) -> None:
    source = Source("classify", write(tmp_path / "train.csv", make_rows(40)))
    whole = run_finetuning(source, base, tmp_path / "whole", settings=FAST)
    with pytest.raises(Interrupted, match="stopped and saved at step 3"), interrupted_at(2):
        run_finetuning(source, base, tmp_path / "run", settings=FAST)
    assert weights(run_finetuning(source, base, tmp_path / "run", settings=FAST)) == weights(whole)


def test_numbers_of_pairs_are_learned(base: Path, tmp_path: Path) -> None:
    draw = random.Random(0)
    rows = [
        {"one": draw.choice(WORDS), "two": word, "score": str({"winter": 1.0, "garden": -1.0}[word])}
        for word in draw.choices(["winter", "garden"], k=160)
    ]
    source = Source(
        "regress", write(tmp_path / "train.csv", rows), write(tmp_path / "dev.csv", rows[:30]), "one", "two", "score"
    )
    run = run_finetuning(source, base, tmp_path / "run", settings=LEARNING)
    results = json.loads((run / "eval_results.json").read_text(encoding="utf-8"))
    assert results.keys() == {"pearson", "spearman", "mse", "rows", "intervals", "baseline"}
    assert results["pearson"] > 0.9
    values = load(run).regress(["river", "river"], ["winter", "garden"])
    assert values[0] > 0.5 > -0.5 > values[1]
    assert BertForSequenceClassification.from_pretrained(run / "model").config.problem_type == "regression"


def test_published_folder_is_read_by_its_name(base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "glue" / "MRPC"
    folder.mkdir(parents=True)
    for split, count in (("train", 16), ("dev", 6)):
        lines = [
            f'{number % 2}\t{number}\t{number + 1}\tThe "old captain sees.\tThe captain, old, sees.\n'
            for number in range(count)
        ]
        header = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
        (folder / f"{split}.tsv").write_text(header + "".join(lines), encoding="utf-8")
    run = run_finetuning(Source("mrpc", tmp_path / "glue"), base, tmp_path / "run", settings=FAST)
    results = json.loads((run / "eval_results.json").read_text(encoding="utf-8"))
    assert list(results) == ["f1", "accuracy", "rows", "degenerate", "intervals", "by_label", "baseline"]
    assert results["degenerate"].startswith("predicts "), "equal rows have equal predictions"
    assert results["rows"] == 6
    assert load_folder(run).task is not None
    assert load_folder(run).task.names == ("0", "1")  # type: ignore[union-attr]


def test_without_dev_file_a_tenth_of_the_rows_is_kept(base: Path, tmp_path: Path) -> None:
    listener = Listener()
    source = Source("classify", write(tmp_path / "train.csv", make_rows(40)))
    run = run_finetuning(source, base, tmp_path / "run", settings=FAST, progress=listener)
    assert "no dev (--dev) file: 4 of the training rows, a tenth, are held out" in listener.said
    assert json.loads((run / "eval_results.json").read_text(encoding="utf-8"))["rows"] == 4


def test_long_texts_are_cut_and_counted(base: Path, tmp_path: Path) -> None:
    listener = Listener()
    source = Source("classify", write(tmp_path / "train.csv", make_rows(40)))
    settings = FinetuneSettings(1, 8, max_length=4, learning_rate=1e-3)
    run_finetuning(source, base, tmp_path / "run", settings=settings, progress=listener)
    assert listener.said[-1] == "36 of 36 training texts are longer than 4 tokens and are cut"


def test_model_without_pooler_is_told(data: Path, tmp_path: Path) -> None:
    save_folder(ModelFolder(Bert.fresh(make_bert(data).config, seed=1), Tokenizer.from_folder(data)), tmp_path / "bare")
    listener = Listener()
    source = Source("classify", write(tmp_path / "train.csv", make_rows(40)))
    run = run_finetuning(source, tmp_path / "bare", tmp_path / "run", settings=FAST, progress=listener)
    assert (
        "the head uses the mean of the token states (the model has no pooler); pooling='cls' (--pooling cls) for "
        "[CLS] with a pooler"
    ) in listener.said
    assert load_folder(run).model.pooling == "mean"
    with_cls = replace(FAST, pooling="cls")
    run = run_finetuning(source, tmp_path / "bare", tmp_path / "cls", settings=with_cls, progress=listener)
    assert "the model has no pooler; a new one starts at random" in listener.said
    assert load_folder(run).model.pooler is not None


def test_finished_run_returns_at_once_and_fresh_starts_over(base: Path, tmp_path: Path) -> None:
    source = Source("classify", write(tmp_path / "train.csv", make_rows(40)))
    run = run_finetuning(source, base, tmp_path / "run", settings=FAST)
    before, listener = (run / "model" / "config.json").stat().st_mtime_ns, Listener()
    run_finetuning(source, base, run, settings=FAST, progress=listener)
    assert listener.said[-1] == f"{run}: already finished; use fresh=True (--fresh) to start over"
    assert (run / "model" / "config.json").stat().st_mtime_ns == before
    run_finetuning(source, base, run, settings=FAST, fresh=True)
    assert (run / "model" / "config.json").stat().st_mtime_ns > before


def test_changed_rows_are_another_run(base: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "train.csv", make_rows(40))
    run = run_finetuning(Source("classify", path), base, tmp_path / "run", settings=FAST)
    write(path, [*make_rows(40), {"text": "slowly", "label": "third", "extra": ""}])
    with pytest.raises(
        ConfigError,
        match=r"labels was \['garden', 'winter'\] and is now \['garden', 'third', 'winter'\]; "
        "rows was 36 and is now 37",
    ):
        run_finetuning(Source("classify", path), base, run, settings=FAST)


def test_corrected_labels_are_another_run(base: Path, tmp_path: Path) -> None:
    rows = make_rows(40)
    path = write(tmp_path / "train.csv", rows)
    run = run_finetuning(Source("classify", path), base, tmp_path / "run", settings=FAST)
    run_finetuning(Source("classify", path), base, run, settings=FAST)
    write(path, [rows[0] | {"label": "garden" if rows[0]["label"] == "winter" else "winter"}, *rows[1:]])
    with pytest.raises(ConfigError, match=r"content was '[0-9a-f]{32}' and is now"):
        run_finetuning(Source("classify", path), base, run, settings=FAST)
    # A run of an earlier version, which did not record this, is resumed.
    recorded = json.loads((run / "run.json").read_text(encoding="utf-8"))
    del recorded["content"]
    (run / "run.json").write_text(json.dumps(recorded), encoding="utf-8")
    assert run_finetuning(Source("classify", path), base, run, settings=FAST) == run


def test_dev_rows_are_scored_and_not_those_of_training(base: Path, tmp_path: Path) -> None:
    dev = write(tmp_path / "dev.csv", make_rows(7, 1))
    source = Source("classify", write(tmp_path / "train.csv", make_rows(40)), dev)
    run = run_finetuning(source, base, tmp_path / "run", settings=FAST)
    assert evaluate(run, source).places == [f"{dev}:{line}" for line in range(2, 9)]
    with pytest.raises(ConfigError, match="your own files have no split 'test'; leave it out"):
        evaluate(run, source, split="test")


@pytest.mark.parametrize(("tags", "metrics"), [("B-X O", ENTITY_METRICS), ("NOUN VERB", PLAIN_METRICS)])
def test_a_tagger_is_scored_by_the_metrics_of_its_fine_tuning(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tags: str, metrics: tuple[str, ...]
) -> None:
    first, second = tags.split()
    path = tmp_path / "rows.txt"
    path.write_text(f"winter {first}\ngarden {second}\n\n" * 20, encoding="utf-8")
    source = Source("tag", path, path)
    run = run_finetuning(source, base, tmp_path / "run", settings=FAST)
    results = json.loads((run / "eval_results.json").read_text(encoding="utf-8"))
    requested = []

    def watched(model: Model, kind: TaskKind, examples: Examples, metrics: Sequence[str]) -> Evaluation:
        requested.append(metrics)
        return evaluate_examples(model, kind, examples, metrics)

    monkeypatch.setattr("cloze.predict.evaluation.evaluate_examples", watched)
    scores = evaluate(run, source).metrics
    assert requested == [read_task(source).metrics] == [metrics]
    assert scores == {name: results[name] for name in scores}
    assert set(metrics) <= scores.keys()


def test_a_tagger_of_characters_is_recorded_as_one(base: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    for rows, by_characters in (("苹 B-X\n果 I-X\nA O\n1 O\n\n", True), ("苹 B-X\n果园 I-X\nA1 O\n\n", False)):
        path.write_text(rows * 20, encoding="utf-8")
        model = load(run_finetuning(Source("tag", path), base, tmp_path / "run", settings=FAST, fresh=True))
        assert model.task is not None
        assert model.task.characters is by_characters
        found = [word.text for word in model.tag(["苹果 iPhone12"])[0].words]
        assert found == (list("苹果iPhone12") if by_characters else ["苹", "果", "iPhone12"])


def test_a_signal_is_heard_while_dev_rows_are_scored(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source("classify", write(tmp_path / "a.csv", make_rows(40)), write(tmp_path / "b.csv", make_rows(8, 1)))
    logits = Model.logits

    def interrupted(self: Model, *texts: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return logits(self, *texts)

    monkeypatch.setattr(Model, "logits", interrupted)
    with pytest.raises(Interrupted, match="stopped and saved at step 5"):
        run_finetuning(source, base, tmp_path / "run", settings=FAST)
    monkeypatch.undo()
    again = run_finetuning(source, base, tmp_path / "run", settings=FAST)
    whole = run_finetuning(source, base, tmp_path / "whole", settings=FAST)
    assert weights(again) == weights(whole)
    assert [row["step"] for row in Run(again).metrics() if "dev_accuracy" in row] == [5]


def test_mistakes_are_found_before_the_folder_is_made(base: Path, tmp_path: Path) -> None:
    good = write(tmp_path / "train.csv", make_rows(40))
    odd = write(tmp_path / "dev.csv", [*make_rows(2), {"text": "river", "label": "wintre", "extra": ""}])
    mistakes = [
        (Source("classify", good, odd), base, r"dev\.csv:4: label 'wintre' .*did you mean 'winter'"),
        (Source("classify", good, label="lable"), base, "has no column 'lable'.*did you mean 'label'"),
        (Source("clasify", good), base, "unknown task 'clasify'; did you mean 'classify'"),
        (Source("classify", write(tmp_path / "few.csv", make_rows(9))), base, "9 rows are too few.*give dev"),
        (Source("classify", good), tmp_path / "nowhere", "nowhere: no such folder"),
    ]
    for source, model, message in mistakes:
        with pytest.raises((DataError, ConfigError, CheckpointError), match=message):
            run_finetuning(source, model, tmp_path / "run", settings=FAST)
    with pytest.raises(ConfigError, match="max_length is 65, but the model accepts at most 64 tokens"):
        run_finetuning(Source("classify", good), base, tmp_path / "run", settings=FinetuneSettings(max_length=65))
    assert not (tmp_path / "run").exists()


def test_length_and_dropout_go_with_the_model(base: Path, tmp_path: Path) -> None:
    source = Source("classify", write(tmp_path / "train.csv", make_rows(40)))
    tuned = load_folder(
        run_finetuning(source, base, tmp_path / "run", settings=replace(FAST, max_length=9, dropout=0.25))
    )
    assert tuned.tokenizer.max_length == 9
    assert (tuned.model.config.dropout, tuned.model.config.attention_dropout) == (0.25, 0.25)


def test_length_beyond_what_the_base_reads_is_told(base: Path, tmp_path: Path) -> None:
    folder = load_folder(base)
    save_folder(replace(folder, tokenizer=folder.tokenizer.with_max_length(12)), tmp_path / "short")
    source = Source("classify", write(tmp_path / "train.csv", make_rows(40)))
    listener = Listener()
    run = run_finetuning(source, tmp_path / "short", tmp_path / "run", settings=FAST, progress=listener)
    assert "the model accepts at most 12 tokens" in listener.said
    assert load_folder(run).tokenizer.max_length == 12


@pytest.mark.parametrize("calibrate", [False, True])
def test_cut_dev_texts_are_reported_once(
    base: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, calibrate: bool
) -> None:
    train, dev = write(tmp_path / "train.csv", make_rows(40)), write(tmp_path / "dev.csv", make_rows(10, seed=1))
    settings = replace(FAST, epochs=3, max_length=6, calibrate=calibrate)
    listener = Listener()
    with caplog.at_level(logging.WARNING, logger="cloze"):
        run_finetuning(Source("classify", train, dev), base, tmp_path / "run", settings=settings, progress=listener)
    assert [message for message in caplog.messages if "were cut" in message] == [
        "10 of 10 texts are longer than 6 tokens and were cut"
    ]
    assert "40 of 40 training texts are longer than 6 tokens and are cut" in listener.said


def test_texts_that_the_vocabulary_does_not_fit_are_reported(base: Path, tmp_path: Path) -> None:
    rows = [{**row, "text": f"{row['text']} ☃ ☂ ☃"} for row in make_rows(16)]
    listener = Listener()
    source = Source("classify", write(tmp_path / "train.csv", rows), write(tmp_path / "dev.csv", make_rows(4)))
    run_finetuning(source, base, tmp_path / "run", settings=FAST, progress=listener)
    assert any(line.startswith("training texts: ") and "of the tokens are [UNK]" in line for line in listener.said)
