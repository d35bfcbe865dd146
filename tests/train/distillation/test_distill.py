"""Distillation: students, runs, reports, and rows without labels."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoTokenizer, BertForSequenceClassification

from cloze.checkpoint import ModelFolder, TaskLabels, find_source, load_any, load_folder, save_folder
from cloze.errors import CheckpointError, ClozeError, ConfigError, DataError, RequestError
from cloze.files import RowError
from cloze.hardware import AvailableMemory
from cloze.model import Bert, HeadName
from cloze.model.cost import count_activations
from cloze.options import AdapterKind, Features
from cloze.predict import evaluate, load
from cloze.progress import Interrupted
from cloze.tasks.classification.kind import CLASSIFY, LabelledTexts
from cloze.tasks.examples import LabelSet
from cloze.tasks.registry import TaskData
from cloze.tasks.rows import Source
from cloze.text import Tokenizer
from cloze.train.distillation.distill import distill, share_kept
from cloze.train.distillation.settings import DistillSettings
from cloze.train.distillation.students import make_student, read_unlabelled, with_layers
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.settings import FinetuneSettings
from cloze.train.run import Run
from tests.model.made import SMALL
from tests.train.finetuning.test_finetune import LEARNING, make_rows, write
from tests.train.finetuning.test_finetune_options import several
from tests.train.finetuning.test_trainable import write_tags
from tests.train.made import Listener, interrupted_at, make_bert
from tests.train.pretraining.test_pretrain import weights
from tests.train.test_parity_choose import make_choices

QUICK = DistillSettings(epochs=1, batch_size=8, learning_rate=1e-3)


@pytest.fixture(scope="module")
def deep(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained model of four layers."""
    folder = tmp_path_factory.mktemp("deep") / "model"
    config = replace(make_bert(data).config, layers=4, initial_deviation=0.1)
    save_folder(ModelFolder(Bert.fresh(config, ("mlm", "nsp"), seed=1), Tokenizer.from_folder(data)), folder)
    return folder


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Source:
    folder = tmp_path_factory.mktemp("rows")
    train, dev = write(folder / "train.csv", make_rows(160)), write(folder / "dev.csv", make_rows(40, 1))
    return Source("classify", train, dev)


@pytest.fixture(scope="module")
def teacher(deep: Path, rows: Source, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_finetuning(rows, deep, tmp_path_factory.mktemp("teacher") / "run", settings=replace(LEARNING, epochs=8))


@pytest.fixture(scope="module")
def learned(teacher: Path, rows: Source, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = replace(QUICK, epochs=6, learning_rate=2e-3, layers=2)
    return distill(rows, teacher, tmp_path_factory.mktemp("student") / "run", settings=settings)


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


# -- results -----------------------------------------------------------------------------------------------------------


def test_student_learns_and_the_report_tells(learned: Path, teacher: Path, rows: Source) -> None:
    report, results = read(learned / "distillation.json"), read(learned / "eval_results.json")
    assert results["accuracy"] > 0.9
    assert report["metric"] == "accuracy"
    large, small = report["teacher"], report["student"]
    assert (large["layers"], small["layers"]) == (4, 2)
    assert large["scores"]["accuracy"] == read(teacher / "eval_results.json")["accuracy"]
    assert small["scores"] == {name: results[name] for name in ("accuracy", "macro_f1")}
    assert report["kept"] == results["accuracy"] / large["scores"]["accuracy"]
    # The difference is paired by dev row, from the predictions of the saved models.
    assert rows.dev is not None
    found = [evaluate(load(folder), Source("classify", rows.dev)) for folder in (learned, teacher)]
    difference = found[0].gain_over(found[1])
    assert difference is not None
    assert report["difference"] == {"gain": difference.value, "interval": [difference.low, difference.high]}
    assert difference.value == pytest.approx(results["accuracy"] - large["scores"]["accuracy"])
    assert large["parameters"] == load(teacher).bert.parameter_count()
    assert small["parameters"] == load(learned).bert.parameter_count() < large["parameters"]
    assert large["bytes"] == 4 * large["parameters"]
    assert small["bytes"] == (learned / "model" / "model.safetensors").stat().st_size
    assert min(large["rows_per_second"], small["rows_per_second"]) > 0
    assert {path.name for path in learned.iterdir()} >= {"model", "run.json", "metrics.jsonl", "curves.png"}
    assert not (learned / "checkpoints").exists()
    assert not (learned / "model.partial").exists()
    assert f"Distilled from {teacher}" in (learned / "model" / "README.md").read_text(encoding="utf-8")
    logged = [json.loads(line) for line in (learned / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {"labels_loss", "logits_loss", "states_loss", "attention_loss"} <= logged[0].keys()
    assert sum("dev_accuracy" in row for row in logged) == 6


def test_transformers_load_the_student_and_agree(learned: Path) -> None:
    model = BertForSequenceClassification.from_pretrained(learned / "model").eval()  # type: ignore[no-untyped-call]
    assert model.config.num_hidden_layers == 2
    assert model.config.id2label == {0: "garden", 1: "winter"}
    texts = [row["text"] for row in make_rows(6, seed=2)]
    encoded = AutoTokenizer.from_pretrained(learned / "model")(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        theirs = model(**encoded).logits.numpy()
    assert np.abs(theirs - load(learned).logits(texts)).max() < 1e-5
    assert load(learned).tokenizer.max_length == 16, "as long as its teacher's"


def test_share_of_nothing_is_none() -> None:
    assert share_kept(0.45, 0.9) == pytest.approx(0.5)
    assert share_kept(0.4, 0.0) is None


def test_resumed_is_uninterrupted_to_the_bit(teacher: Path, rows: Source, tmp_path: Path) -> None:
    # A student of another width needs a projection to the teacher's states, which must be saved as well.
    settings = replace(QUICK, preset="tiny")
    whole = distill(rows, teacher, tmp_path / "whole", settings=settings)
    with pytest.raises(Interrupted, match="stopped and saved at step 3"), interrupted_at(2):
        distill(rows, teacher, tmp_path / "run", settings=settings)
    names = set[str]()
    for path in (tmp_path / "run" / "checkpoints").rglob("*.safetensors"):
        with safe_open(path, "pt") as file:
            names |= set(file.keys())
    assert any("to_teacher" in name for name in names)
    assert not any("layers.3." in name for name in names), "the teacher is not saved with it"
    assert weights(distill(rows, teacher, tmp_path / "run", settings=settings)) == weights(whole)
    listener = Listener()
    distill(rows, teacher, tmp_path / "run", settings=settings, progress=listener)
    assert f"{tmp_path / 'run'}: already finished; use fresh=True (--fresh) to start over" in listener.said
    with pytest.raises(ConfigError, match=r"temperature was 2\.0 and is now 4\.0"):
        distill(rows, teacher, tmp_path / "run", settings=replace(settings, temperature=4.0))


def test_run_cut_off_while_saving_ends_the_same(
    teacher: Path, rows: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloze.train.distillation.distill.compare", lambda *_: pytest.fail("cut off"))
    with pytest.raises(pytest.fail.Exception):
        distill(rows, teacher, tmp_path / "run", settings=QUICK)
    monkeypatch.undo()
    assert not (tmp_path / "run" / "model").exists()
    distill(rows, teacher, tmp_path / "run", settings=QUICK)
    assert load(tmp_path / "run").task is not None
    assert weights(tmp_path / "run") == weights(distill(rows, teacher, tmp_path / "again", settings=QUICK))


# -- students ----------------------------------------------------------------------------------------------------------


def test_student_starts_from_layers_of_its_teacher(teacher: Path) -> None:
    contents = load_folder(teacher)
    large = contents.model.state_dict()
    for take, layers in (("first", [0, 1]), ("alternate", [1, 3])):
        small = make_student(contents, DistillSettings(layers=2, take=take))  # type: ignore[arg-type]
        for name, tensor in small.state_dict().items():
            for new, old in enumerate(layers):
                name = name.replace(f"layers.{new}.", f"layers.old {old}.")
            assert torch.equal(tensor, large[name.replace("old ", "")])
    usual = make_student(contents, DistillSettings()).config
    assert usual.layers == 2, "half of them"
    assert usual.dropout == usual.attention_dropout == 0.0
    assert make_student(contents, DistillSettings(dropout=0.3)).config.attention_dropout == 0.3


def test_layers_that_are_one_are_gone_through_less_often() -> None:
    shared = replace(SMALL, embedding_size=8, shared_layers=True, layers=6)
    large = Bert.fresh(shared, ["sequence"], seed=1)
    small = with_layers(large, [1, 3, 5], "sequence")
    assert small.config.layers == 3
    assert all(torch.equal(tensor, large.state_dict()[name]) for name, tensor in small.state_dict().items())


def test_new_student_has_the_vocabulary_and_the_labels(teacher: Path) -> None:
    contents = load_folder(teacher)
    small = make_student(contents, DistillSettings(preset="tiny"))
    assert (small.config.hidden_size, small.config.vocab_size) == (128, contents.model.config.vocab_size)
    assert (small.config.positions, small.head_names, small.labels) == (64, ("sequence",), 2)


def test_another_model_can_be_the_student(base: Path, teacher: Path, rows: Source, tmp_path: Path) -> None:
    contents, other = load_folder(teacher), load_folder(base).model.state_dict()
    small = make_student(contents, DistillSettings(student=str(base)))
    assert small.head_names == ("sequence",)
    name = "encoder.layers.1.expand.weight"
    assert torch.equal(small.state_dict()[name], other[name])
    run = distill(rows, teacher, tmp_path / "run", settings=replace(QUICK, student=str(base), dropout=0.3))
    assert load(run).bert.config.layers == 2
    assert load(run).bert.config.dropout == contents.model.config.dropout != 0.3, "needed for further training"
    # A student that was trained on the task keeps its head.
    again = make_student(contents, DistillSettings(student=str(run)))
    name = "heads.sequence.output.weight"
    assert torch.equal(again.state_dict()[name], load(run).bert.state_dict()[name])


def test_heads_that_differ_are_told(teacher: Path, rows: Source, tmp_path: Path) -> None:
    listener = Listener()
    config = replace(load_folder(teacher).model.config, heads=4, layers=1)
    save_folder(ModelFolder(Bert.fresh(config, seed=1), load_folder(teacher).tokenizer), tmp_path / "other")
    settings = replace(QUICK, student=str(tmp_path / "other"))
    run = distill(rows, teacher, tmp_path / "run", settings=settings, progress=listener)
    assert "the student has 4 heads and the teacher 2: attention is not compared" in listener.said
    first = json.loads((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert "attention_loss" not in first


def test_students_that_cannot_be_are_refused(data: Path, teacher: Path, tmp_path: Path) -> None:
    contents = load_folder(teacher)
    with pytest.raises(ConfigError, match="layers is 5, but the teacher has 4; expected at most as many"):
        make_student(contents, DistillSettings(layers=5))
    config, tokenizer = make_bert(data).config, contents.tokenizer

    def refused(message: str, model: Bert, words: Tokenizer) -> None:
        save_folder(ModelFolder(model, words), tmp_path / "other")
        with pytest.raises(ConfigError, match=message):
            make_student(contents, DistillSettings(student=str(tmp_path / "other")))

    cased = Tokenizer.from_vocabulary(tokenizer.pieces, lowercase=False)
    refused("its vocabulary differs from the teacher's .* or it tokenizes texts differently", Bert.fresh(config), cased)
    fewer = Tokenizer.from_vocabulary(tokenizer.pieces[:-1], lowercase=True)
    refused("its vocabulary differs", Bert.fresh(replace(config, vocab_size=fewer.size)), fewer)
    short = tokenizer.with_max_length(8)
    refused("accepts at most 8 tokens, but the teacher accepts 16", Bert.fresh(replace(config, positions=8)), short)
    refused("supports 1 segments, but the teacher supports 2", Bert.fresh(replace(config, segments=1)), tokenizer)
    with pytest.raises(CheckpointError, match="no such folder"):
        make_student(contents, DistillSettings(student=str(tmp_path / "nowhere")))


# -- kinds of tasks ----------------------------------------------------------------------------------------------------


def make_source(kind: str, folder: Path) -> Source:
    """Write a few rows of each kind, for training and evaluation."""
    if kind == "multilabel":
        return Source(kind, several(folder / "a.csv", 60), several(folder / "b.csv", 20, 1))
    if kind == "tag":
        return Source(kind, write_tags(folder / "a.txt", 60, 0), write_tags(folder / "b.txt", 20, 1))
    paths = []
    for name, count, seed in (("a", 60, 0), ("b", 20, 1)):
        found: list[dict[str, Any]] = [dict(row) for row in make_rows(count, seed)]
        if kind == "regress":
            found = [{"text": row["text"], "label": float(len(row["text"]))} for row in found]
        elif kind == "answer":
            found = [
                {"question": "when", "context": row["text"], "answer": row["label"], "id": row["extra"]}
                for row in found
            ]
        elif kind == "choose":
            found = [
                {"text": row.prompt, "options": list(row.options), "label": row.target}
                for row in make_choices(count, seed, (2, 4))
            ]
        paths.append(write(folder / f"{name}.jsonl", found))
    return Source(kind, paths[0], paths[1])


@pytest.mark.parametrize("kind", ["multilabel", "regress", "tag", "answer", "choose"])
def test_every_kind_is_distilled(deep: Path, tmp_path: Path, kind: str) -> None:
    source = make_source(kind, tmp_path)
    tuning = FinetuneSettings(epochs=2, batch_size=8, max_length=32, learning_rate=1e-3)
    teacher_run = run_finetuning(source, deep, tmp_path / "teacher", settings=tuning)
    run = distill(source, teacher_run, tmp_path / "run", settings=replace(QUICK, epochs=2))
    report = read(run / "distillation.json")
    assert report["student"]["layers"] == 2
    model = load(run)
    assert model.task is not None
    assert model.task.kind == kind
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    found = [row["states_loss"] for row in logged if "states_loss" in row]
    assert found[-1] < found[0]


@pytest.mark.parametrize("adapter", ["lora", "houlsby"])
def test_student_of_a_teacher_with_an_adapter(adapter: AdapterKind, deep: Path, rows: Source, tmp_path: Path) -> None:
    tuned = replace(LEARNING, adapter=adapter, adapter_size=2)
    teacher_run = run_finetuning(rows, deep, tmp_path / "teacher", settings=tuned)
    run = distill(rows, teacher_run, tmp_path / "run", settings=QUICK)
    student, report = load(run), read(run / "distillation.json")
    assert student.bert.config.layers == 2
    assert not [name for name in student.bert.state_dict() if "adapter" in name or "low_rank" in name]
    # The teacher is the whole model, not only its base.
    assert report["teacher"]["scores"]["accuracy"] == pytest.approx(Run(teacher_run).results()["accuracy"])


@pytest.mark.parametrize("reads", ["last4", "mix"])
def test_student_of_a_reader_of_frozen_states(reads: Features, deep: Path, rows: Source, tmp_path: Path) -> None:
    teacher_run = run_finetuning(
        rows, deep, tmp_path / "teacher", settings=replace(LEARNING, learning_rate=1e-2, frozen=reads)
    )
    # Train on the teacher's logits alone, so that everything the student learns comes from them.
    settings = replace(QUICK, epochs=6, learning_rate=2e-3, labels_weight=0.0)
    run = distill(rows, teacher_run, tmp_path / "run", settings=settings)
    student, report = load_folder(run).model, read(run / "distillation.json")
    assert (student.config.layers, student.head_names, student.reader) == (2, ("sequence",), None)
    assert report["teacher"]["scores"]["accuracy"] == pytest.approx(Run(teacher_run).results()["accuracy"])
    assert report["teacher"]["parameters"] == load(teacher_run).bert.parameter_count()
    texts = [row["text"] for row in make_rows(60, seed=2)]
    answers = [[answer.label for answer in load(one).classify(texts)] for one in (teacher_run, run)]
    assert len(set(answers[0])) == 2
    assert np.mean([one == other for one, other in zip(*answers, strict=True)]) > 0.9


def test_tagger_that_learns_from_an_lstm_on_frozen_states(deep: Path, tmp_path: Path) -> None:
    source = make_source("tag", tmp_path)
    tuned = FinetuneSettings(
        epochs=8, batch_size=8, max_length=32, learning_rate=1e-2, frozen="mix", feature_head="lstm"
    )
    teacher_run = run_finetuning(source, deep, tmp_path / "teacher", settings=tuned)
    settings = replace(QUICK, epochs=8, learning_rate=1e-2, labels_weight=0.0)
    run = distill(source, teacher_run, tmp_path / "run", settings=settings)
    report = read(run / "distillation.json")
    assert report["teacher"]["scores"]["f1"] == pytest.approx(Run(teacher_run).results()["f1"])
    assert report["student"]["scores"]["f1"] > 0.8
    (winter,) = load(run).tag([next(row["text"] for row in make_rows(20, seed=2) if row["label"] == "winter")])
    assert [(entity.text, entity.label) for entity in winter.entities] == [("winter", "X")]
    assert not [name for name in load(run).bert.state_dict() if "reader" in name]


@pytest.mark.parametrize("pooled", [True, False])
def test_student_of_a_reader_starts_without_what_is_attached(
    pooled: bool, deep: Path, base: Path, rows: Source, tmp_path: Path
) -> None:
    plain = load_folder(deep)
    heads: tuple[HeadName, ...] = ("nsp",) if pooled else ()
    save_folder(replace(plain, model=Bert.fresh(plain.model.config, heads, seed=3)), tmp_path / "base")
    teacher_run = run_finetuning(
        rows, tmp_path / "base", tmp_path / "teacher", settings=replace(LEARNING, epochs=1, frozen="last4")
    )
    contents, large = load_any(teacher_run), load_folder(tmp_path / "base").model.state_dict()
    small = make_student(contents, DistillSettings(layers=2)).state_dict()
    for name in ("expand.weight", "attention.output.weight"):
        for new, old in enumerate((1, 3)):
            assert torch.equal(small[f"encoder.layers.{new}.{name}"], large[f"encoder.layers.{old}.{name}"])
    assert torch.equal(small["encoder.embeddings.token.weight"], large["encoder.embeddings.token.weight"])
    # The teacher's head used unpooled states; the student's new head uses the existing pooler or, without one, the
    # mean.
    assert small["heads.sequence.output.weight"].shape == (2, plain.model.config.hidden_size)
    assert small["heads.sequence.output.weight"].abs().max() > 0
    assert ("pooler.dense.weight" in small) == pooled
    if pooled:
        assert torch.equal(small["pooler.dense.weight"], large["pooler.dense.weight"])
    again = make_student(contents, DistillSettings(layers=2)).state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in small.items())
    for who in ({"preset": "tiny"}, {"student": str(base)}):
        assert make_student(contents, DistillSettings(**who)).head_names == ("sequence",)  # type: ignore[arg-type]


@pytest.mark.parametrize("way", [{"adapter": "lora"}, {"frozen": "last"}], ids=["lora", "frozen"])
def test_run_knows_what_is_attached_to_its_teacher(
    way: dict[str, Any], base: Path, rows: Source, tmp_path: Path
) -> None:
    tuned = replace(LEARNING, epochs=1, **way)
    teacher_run = run_finetuning(rows, base, tmp_path / "teacher", settings=tuned)
    with pytest.raises(Interrupted), interrupted_at(2):
        distill(rows, teacher_run, tmp_path / "run", settings=QUICK)
    run_finetuning(rows, base, tmp_path / "teacher", settings=replace(tuned, seed=1), fresh=True)
    with pytest.raises(ConfigError, match=r"teacher was '[0-9a-f]{64}' and is now '[0-9a-f]{64}'"):
        distill(rows, teacher_run, tmp_path / "run", settings=QUICK)


def test_what_was_fitted_to_the_teacher_is_not_the_students(deep: Path, rows: Source, tmp_path: Path) -> None:
    tuned = replace(LEARNING, epochs=1, calibrate=True, long_texts="head-tail")
    teacher_run = run_finetuning(rows, deep, tmp_path / "teacher", settings=tuned)
    assert load(teacher_run).task != TaskLabels("classify", ("garden", "winter"), "head-tail")
    run = distill(rows, teacher_run, tmp_path / "run", settings=QUICK)
    assert load(run).task == TaskLabels("classify", ("garden", "winter"), "head-tail")


# -- rows --------------------------------------------------------------------------------------------------------------


def test_rows_are_held_to_the_labels_of_the_teacher(teacher: Path, tmp_path: Path) -> None:
    """Rows with only some of the teacher's labels are encoded with the teacher's label IDs."""
    some = [row for row in make_rows(60) if row["label"] == "winter"]
    dev = write(tmp_path / "dev.csv", make_rows(20, 1))
    run = distill(Source("classify", write(tmp_path / "a.csv", some), dev), teacher, tmp_path / "run", settings=QUICK)
    task = load(run).task
    assert task is not None
    assert task.names == ("garden", "winter")
    strange = write(tmp_path / "b.csv", [{**row, "label": "wintr"} for row in some])
    with pytest.raises(RowError, match=r"b.csv:2: label 'wintr' is not among the 2 labels of training.*'winter'"):
        distill(Source("classify", strange, dev), teacher, tmp_path / "other", settings=QUICK)
    assert not (tmp_path / "other").exists()


def test_rows_without_labels_are_learned_from(teacher: Path, rows: Source, tmp_path: Path) -> None:
    few = replace(rows, data=write(tmp_path / "few.csv", make_rows(8, 5)))
    more = make_rows(100, 7)
    (tmp_path / "more.txt").write_text("\n\n".join(row["text"] for row in more) + "\n", encoding="utf-8")
    table = write(tmp_path / "more.csv", [{"text": row["text"]} for row in more])
    listener = Listener()
    runs = [
        distill(few, teacher, tmp_path / f"run{path.suffix}", unlabelled=path, settings=QUICK, progress=listener)
        for path in (tmp_path / "more.txt", table)
    ]
    assert "100 rows without labels are used as well" in listener.said
    assert weights(runs[0]) == weights(runs[1])
    alone = distill(few, teacher, tmp_path / "alone", settings=QUICK)
    assert weights(runs[0]) != weights(alone)
    assert read(runs[0] / "run.json")["unlabelled_rows"] == 100
    table.write_text('text\nthe river\n" "\nthe garden\n', encoding="utf-8")
    skipping = replace(few, on_bad_row="skip")
    distill(skipping, teacher, tmp_path / "some", unlabelled=table, settings=QUICK, progress=listener)
    assert "2 rows without labels are used as well; 1 bad ones were skipped" in listener.said
    (step,) = [json.loads(line) for line in (alone / "metrics.jsonl").read_text("utf-8").splitlines()[:1]]
    assert step["step"] == 1, "eight rows are one batch"


def test_rows_without_labels_that_teach_nothing_are_refused(
    base: Path, teacher: Path, rows: Source, tmp_path: Path
) -> None:
    (tmp_path / "more.txt").write_text("the river\n", encoding="utf-8")
    settings = replace(QUICK, logits_weight=0.0)
    with pytest.raises(ConfigError, match="logits_weight is 0, but rows without labels contribute to no other loss"):
        distill(rows, teacher, tmp_path / "run", unlabelled=tmp_path / "more.txt", settings=settings)
    (tmp_path / "empty.txt").write_text("\n \n", encoding="utf-8")
    with pytest.raises(DataError, match=r"empty.txt contains no text; expected one text per line"):
        distill(rows, teacher, tmp_path / "run", unlabelled=tmp_path / "empty.txt", settings=QUICK)
    tuning = FinetuneSettings(epochs=1, batch_size=8, max_length=16)
    tags = make_source("tag", tmp_path)
    tagger = run_finetuning(tags, base, tmp_path / "tagger", settings=tuning)
    with pytest.raises(
        ConfigError,
        match="rows without labels are supported only for classification and regression; the task here is tag",
    ):
        distill(tags, tagger, tmp_path / "run", unlabelled=tmp_path / "more.txt", settings=QUICK)
    pairs = write(tmp_path / "pairs.csv", [{**row, "other": "the river"} for row in make_rows(40)])
    source = Source("classify", pairs, pair="other")
    paired = run_finetuning(source, base, tmp_path / "paired", settings=tuning)
    with pytest.raises(
        DataError, match="the rows of this task are pairs of texts; give a table with the columns of both"
    ):
        distill(source, paired, tmp_path / "run", unlabelled=tmp_path / "more.txt", settings=QUICK)
    assert not (tmp_path / "run").exists()
    distill(source, paired, tmp_path / "run", unlabelled=pairs, settings=QUICK)


def test_rows_without_labels_of_a_published_task_have_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "more.tsv"
    path.write_text("#1 String\t#2 String\na river\tb river\n", encoding="utf-8")
    rows = LabelledTexts(["a"], ["b"], [0], ["x:1"])
    data = TaskData(CLASSIFY, ("f1",), LabelSet(("0", "1")), rows, rows)
    found = read_unlabelled(path, Source("mrpc", tmp_path), data)
    assert (found.texts, found.pairs) == (["a river"], ["b river"])


def test_teacher_of_another_task_is_refused(base: Path, teacher: Path, rows: Source, tmp_path: Path) -> None:
    with pytest.raises(
        RequestError, match="regress needs a teacher fine-tuned to regress; this one is fine-tuned to classify"
    ):
        distill(replace(rows, task="regress"), teacher, tmp_path / "run", settings=QUICK)
    with pytest.raises(RequestError, match="needs a teacher fine-tuned to classify; this one has the heads: mlm, nsp"):
        distill(rows, base, tmp_path / "run", settings=QUICK)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 2, "preset": "mini"}, "layers and preset exclude each other; each defines the student"),
        ({"student": "x", "preset": "mini"}, "preset and student exclude each other"),
        ({"take": "first", "preset": "mini"}, "take is 'first', but a preset takes no layers of the teacher"),
        ({"take": "first", "student": "x"}, "take is 'first', but a student takes no layers"),
        ({"layers": 0}, "layers is 0; expected at least 1"),
        ({"states_weight": -1.0}, "states_weight is -1.0; expected a number of at least 0"),
        ({"attention_weight": float("nan")}, "attention_weight is nan; expected a number"),
        (
            {"labels_weight": 0.0, "logits_weight": 0.0},
            "labels_weight and logits_weight are both 0, so the student's head",
        ),
        ({"temperature": 0.0}, "temperature is 0.0; expected a number above 0"),
        ({"epochs": 0}, "epochs is 0; expected at least 1"),
        ({"learning_rate": 3.0}, "learning_rate is 3.0; expected a learning rate such as 1e-4"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ClozeError, match=message):
        DistillSettings(**changes)


@pytest.mark.parametrize("changes", [{"accumulate": 3}, {"checkpointing": True}], ids=str)
def test_less_memory_gives_the_same_student(
    teacher: Path, rows: Source, tmp_path: Path, changes: dict[str, Any]
) -> None:
    settings = replace(QUICK, epochs=1, batch_size=16, learning_rate=1e-4)
    losses = []
    for name, one in {"plain": settings, "less": replace(settings, **changes)}.items():
        run = Run(distill(rows, teacher, tmp_path / name, settings=one))
        losses.append([row["loss"] for row in run.metrics() if "loss" in row])
    assert losses[0]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_texts_that_the_vocabulary_does_not_fit_are_told(teacher: Path, tmp_path: Path) -> None:
    rows = [{"text": f"漢字 {row['text'].split()[0]} 仮名", "label": row["label"]} for row in make_rows(40)]
    listener = Listener()
    source = Source("classify", write(tmp_path / "train.csv", rows))
    distill(source, teacher, tmp_path / "run", settings=QUICK, progress=listener)
    assert any(line.startswith("training texts: ") and "of the tokens are [UNK]" in line for line in listener.said)


def test_distillation_that_does_not_fit_into_memory_is_refused(
    teacher: Path, rows: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Distillation that does not fit into memory is rejected, even if the student alone would fit."""
    settings = replace(QUICK, layers=1)
    student = make_student(load_any(find_source(teacher)), settings)
    alone = count_activations(student.config, student.head_names, settings.batch_size, 16, chosen=1.0, explicit=False)
    size = round(1.1 * (12 * student.parameter_count() + alone))
    monkeypatch.setattr("cloze.hardware.available_memory", lambda: AvailableMemory(size, "a made limit"))
    with pytest.raises(ConfigError, match=r"a step of .* needs about .* \(a made limit\);"):
        distill(rows, teacher, tmp_path / "run", settings=settings)
    distill(rows, teacher, tmp_path / "parts", settings=replace(settings, accumulate=settings.batch_size))
