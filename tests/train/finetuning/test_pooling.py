"""Pooling of a fine-tuned model's head: chosen by the folder, overridden by the settings, rejected elsewhere."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

from cloze.checkpoint import EmbeddingSettings, ModelFolder, load_any, load_folder, save_folder
from cloze.cli import main
from cloze.errors import ConfigError
from cloze.model import Bert
from cloze.options import HeadPooling
from cloze.predict import load
from cloze.serve.models import made_for_vectors
from cloze.tasks.rows import Source
from cloze.text import Tokenizer
from cloze.train.finetuning import trainable
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.settings import FinetuneSettings
from tests.train.finetuning.test_finetune import FAST, LEARNING, make_rows, write
from tests.train.made import Listener, make_bert


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source("classify", write(tmp_path / "train.csv", make_rows(40)))


@pytest.fixture
def embedder(data: Path, tmp_path: Path) -> Path:
    """A folder for sentence vectors like MiniLM's: mean pooling, and an untrained pooler."""
    model = Bert.fresh(make_bert(data).config, pooler=True, seed=1)
    save_folder(ModelFolder(model, Tokenizer.from_folder(data)), tmp_path / "embedder")
    return tmp_path / "embedder"


def test_folder_that_pools_by_mean_gets_a_head_on_the_mean(embedder: Path, source: Source, tmp_path: Path) -> None:
    listener = Listener()
    run = run_finetuning(source, embedder, tmp_path / "run", settings=FAST, progress=listener)
    message = (
        "the head uses the mean of the token states (as this folder pools); pooling='cls' (--pooling cls) for [CLS] "
        "with a pooler"
    )
    assert message in listener.said
    assert load_folder(run).model.pooling == "mean"
    assert "`SentenceTransformer(folder).encode` returns the logits" in (run / "model" / "README.md").read_text("utf-8")


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("few", [True, False])
def test_vectors_are_normalized_as_those_of_the_base(
    data: Path, source: Source, tmp_path: Path, pooling: HeadPooling, normalize: bool, few: bool
) -> None:
    model = Bert.fresh(make_bert(data).config, pooler=True, seed=1)
    settings = EmbeddingSettings("mean", normalize=normalize)
    save_folder(ModelFolder(model, Tokenizer.from_folder(data), None, settings), tmp_path / "embedder")
    chosen = FinetuneSettings(few=True, max_length=16, pooling=pooling) if few else replace(FAST, pooling=pooling)
    run = run_finetuning(source, tmp_path / "embedder", tmp_path / "run", settings=chosen)
    texts = [row["text"] for row in make_rows(4, seed=9)]
    tuned = load(run)
    found, lengths = tuned.embed(texts), np.linalg.norm(tuned.embed(texts), axis=1)
    assert np.allclose(lengths, 1, atol=1e-5) == normalize
    assert load_folder(run).embedding == settings
    card = (run / "model" / "README.md").read_text("utf-8")
    assert ("`cloze.load(folder).embed` returns vectors of length 1." in card) == normalize
    # sentence-transformers computes the same vectors, or the logits of a head on the mean.
    theirs = SentenceTransformer(str(run / "model"), device="cpu").encode(texts)
    expected = tuned.logits(texts) if pooling == "mean" else found
    assert np.allclose(theirs, expected, atol=1e-5)
    # The vectors equal the mean of the encoder states computed by transformers.
    encoder = AutoModel.from_pretrained(run / "model", add_pooling_layer=False).eval()
    encoded = AutoTokenizer.from_pretrained(run / "model")(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        states = encoder(**encoded).last_hidden_state
    weights = encoded["attention_mask"].unsqueeze(-1).float()
    means = (states * weights).sum(1) / weights.sum(1)
    reference = torch.nn.functional.normalize(means, dim=-1) if normalize else means
    assert np.allclose(found, reference.numpy(), atol=1e-5)


def test_normalized_classifier_is_not_made_for_vectors(data: Path, source: Source, tmp_path: Path) -> None:
    model = Bert.fresh(make_bert(data).config, pooler=True, seed=1)
    contents = ModelFolder(model, Tokenizer.from_folder(data), None, EmbeddingSettings("mean", normalize=True))
    save_folder(contents, tmp_path / "embedder")
    run = run_finetuning(source, tmp_path / "embedder", tmp_path / "run", settings=FAST)
    assert made_for_vectors(load(tmp_path / "embedder"))
    assert not made_for_vectors(load(run))


def test_pooling_of_the_base_is_kept_by_a_head_on_cls(base: Path, source: Source, tmp_path: Path) -> None:
    contents = replace(load_folder(base), embedding=EmbeddingSettings("cls", normalize=True))
    save_folder(contents, tmp_path / "embedder")
    run = run_finetuning(source, tmp_path / "embedder", tmp_path / "run", settings=FAST)
    assert load_folder(run).embedding == EmbeddingSettings("cls", normalize=True)
    texts = [row["text"] for row in make_rows(4, seed=9)]
    theirs = SentenceTransformer(str(run / "model"), device="cpu").encode(texts)
    assert np.allclose(theirs, load(run).embed(texts), atol=1e-5)


def make_pairs(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Return pairs of texts; those with the label "same" share a word."""
    draw = random.Random(seed)
    words = ["winter", "river", "stone", "light"]
    rows = []
    for number in range(count):
        word = draw.choice(words)
        other = word if number % 2 else draw.choice([one for one in words if one != word])
        rows.append({"text": f"the {word}", "pair": f"a {other}", "label": "same" if number % 2 else "other"})
    return rows


def test_pairs_are_compared_by_a_folder_that_pools_by_mean(embedder: Path, base: Path, tmp_path: Path) -> None:
    source = Source("classify", write(tmp_path / "pairs.csv", make_pairs(40)), pair="pair")
    for start, expected in ((embedder, "separate"), (base, "cls")):
        listener = Listener()
        run = run_finetuning(source, start, tmp_path / f"run-{start.name}", settings=FAST, progress=listener)
        assert load_folder(run).model.pooling == expected
        note = any("the two texts of a pair are encoded separately" in note for note in listener.said)
        assert note == (expected == "separate")
    card = (tmp_path / "run-embedder" / "model" / "README.md").read_text("utf-8")
    assert "`AutoModelForSequenceClassification` rejects the head" in card
    joint = run_finetuning(source, embedder, tmp_path / "joint", settings=replace(FAST, pooling="mean"))
    assert load_folder(joint).model.pooling == "mean"


def test_many_pairs_are_encoded_as_one_sequence(
    embedder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainable, "_FEW_PAIRS", 20)
    source = Source("classify", write(tmp_path / "pairs.csv", make_pairs(40)), pair="pair")
    assert load_folder(run_finetuning(source, embedder, tmp_path / "run", settings=FAST)).model.pooling == "mean"


def test_comparing_head_learns(embedder: Path, tmp_path: Path) -> None:
    train, dev = write(tmp_path / "train.csv", make_pairs(160)), write(tmp_path / "dev.csv", make_pairs(40, 1))
    source = Source("classify", train, dev, pair="pair")
    for name, settings in (
        ("steps", replace(LEARNING, pooling="separate")),
        ("few", FinetuneSettings(few=True, max_length=16)),
    ):
        run = run_finetuning(source, embedder, tmp_path / name, settings=settings)
        assert load_folder(run).model.pooling == "separate"
        assert json.loads((run / "eval_results.json").read_text("utf-8"))["accuracy"] > 0.9


def test_comparing_head_of_adapters(embedder: Path, tmp_path: Path) -> None:
    source = Source("classify", write(tmp_path / "pairs.csv", make_pairs(40)), pair="pair")
    run = run_finetuning(source, embedder, tmp_path / "run", settings=replace(FAST, adapter="lora", adapter_size=4))
    assert json.loads((run / "model" / "adapter.json").read_text("utf-8"))["pooling"] == "separate"
    assert len(load(run).classify(["river"], ["stone"])) == 1


def test_comparison_is_refused_without_pairs(embedder: Path, source: Source, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pooling is 'separate', which compares the two texts of a pair; these rows"):
        run_finetuning(source, embedder, tmp_path / "run", settings=replace(FAST, pooling="separate"))
    with pytest.raises(ConfigError, match="pooling is 'separate', but contrastive trains on pairs of rows"):
        FinetuneSettings(few=True, contrastive=True, pooling="separate")


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_settings_decide(embedder: Path, base: Path, source: Source, tmp_path: Path, pooling: HeadPooling) -> None:
    for start in (embedder, base):  # the second has a pooler that was trained on next-sentence prediction
        listener = Listener()
        settings = replace(FAST, pooling=pooling)
        run = run_finetuning(source, start, tmp_path / f"run-{start.name}", settings=settings, progress=listener)
        assert load_folder(run).model.pooling == pooling
        assert not any("mean of the token states" in note for note in listener.said)
        assert json.loads((run / "run.json").read_text("utf-8"))["pooling"] == pooling


def test_head_on_the_mean_learns(base: Path, tmp_path: Path) -> None:
    train, dev = write(tmp_path / "train.csv", make_rows(160)), write(tmp_path / "dev.csv", make_rows(40, 1))
    settings = replace(LEARNING, pooling="mean")
    run = run_finetuning(Source("classify", train, dev), base, tmp_path / "run", settings=settings)
    assert json.loads((run / "eval_results.json").read_text("utf-8"))["accuracy"] > 0.9
    again = run_finetuning(Source("classify", train, dev), run / "model", tmp_path / "again", settings=FAST)
    assert load_folder(again).model.pooling == "mean", "the folder's head was fine-tuned on the mean"


@pytest.mark.parametrize("adapter", ["houlsby", "lora"])
def test_adapters_read_the_mean_too(embedder: Path, source: Source, tmp_path: Path, adapter: Any) -> None:
    run = run_finetuning(source, embedder, tmp_path / "run", settings=replace(FAST, adapter=adapter, adapter_size=4))
    about = json.loads((run / "model" / "adapter.json").read_text("utf-8"))
    assert (about["pooling"], about["pooler"]) == ("mean", False)
    assert load_any(run).model.pooling == "mean"
    assert len(load(run).classify(["river"])) == 1
    settings = replace(FAST, adapter=adapter, adapter_size=4, pooling="cls")
    run = run_finetuning(source, embedder, tmp_path / "cls", settings=settings)
    assert load_any(run).model.pooler is not None


def test_refused_where_nothing_is_pooled(base: Path, tmp_path: Path) -> None:
    (tmp_path / "tags.txt").write_text("winter B-X\nriver O\n\n" * 20, "utf-8")
    settings = replace(FAST, pooling="mean")
    with pytest.raises(
        ConfigError,
        match="pooling applies only to classification, regression and multiple choice; the task here is tag",
    ):
        run_finetuning(Source("tag", tmp_path / "tags.txt"), base, tmp_path / "run", settings=settings)
    row = {"question": "who", "context": "the winter", "answers": {"text": ["winter"], "answer_start": [4]}}
    (tmp_path / "answers.jsonl").write_text(
        "".join(f"{json.dumps(row | {'id': str(number)})}\n" for number in range(20)), "utf-8"
    )
    with pytest.raises(
        ConfigError,
        match="pooling applies only to classification, regression and multiple choice; the task here is answer",
    ):
        run_finetuning(Source("answer", tmp_path / "answers.jsonl"), base, tmp_path / "run", settings=settings)
    assert not (tmp_path / "run").exists()


def test_refused_with_frozen_states_and_for_similarity(base: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="pooling is 'mean', but frozen is 'last', whose head pools the states differently"
    ):
        FinetuneSettings(pooling="mean", frozen="last")
    rows = write(tmp_path / "pairs.csv", make_rows(8))
    with pytest.raises(ConfigError, match="pooling is 'mean', which training for similarity does not support"):
        run_finetuning(Source("similarity", rows), base, tmp_path / "run", settings=replace(FAST, pooling="mean"))


def test_flag_of_the_command_line(base: Path, tmp_path: Path) -> None:
    rows = str(write(tmp_path / "train.csv", make_rows(40)))
    flags = ["--epochs", "1", "--max-length", "16", "--pooling", "mean", "--out", str(tmp_path / "run")]
    with pytest.raises(SystemExit) as stopped:
        main(["finetune", "classify", rows, "--model", str(base), *flags])
    assert stopped.value.code == 0
    assert load_folder(tmp_path / "run").model.pooling == "mean"
