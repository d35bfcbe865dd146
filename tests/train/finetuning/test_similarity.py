"""Contrastive training: the loss compared with ``sentence-transformers``, and runs that learn and resume."""

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import (
    CoSENTLoss,
    CosineSimilarityLoss,
    MultipleNegativesRankingLoss,
)

from cloze.checkpoint import load_folder
from cloze.errors import ConfigError, DataError
from cloze.model.surgery import with_heads
from cloze.predict import evaluate, load
from cloze.predict.embeddings.pooling import find_pool
from cloze.progress import Interrupted
from cloze.tasks.examples import Item
from cloze.tasks.rows import Source
from cloze.tasks.similarity.kind import ScoredPairs
from cloze.train.finetuning.contrastive import contrast
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.objective import TaskBatches
from cloze.train.finetuning.settings import FinetuneSettings, SimilaritySettings
from cloze.train.finetuning.similarity import (
    PairObjective,
    SimilarityData,
    cosent,
    finetune_similarity,
    read_similarity,
)
from tests.corpus.texts import WORDS, make_documents
from tests.model.made import assert_close, saved
from tests.train.made import Listener, interrupted_at, save_deep

QUICK = FinetuneSettings(epochs=1, batch_size=8, max_length=24, learning_rate=1e-3, seed=1)
TEXTS = [sentence for document in make_documents(40) for sentence in document]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("similarity") / "text.txt"
    path.write_text("\n".join(TEXTS[:120]) + "\n", encoding="utf-8")
    return path


def weights(run: Path) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in load_file(run / "model" / "model.safetensors").items()}


def results(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "eval_results.json").read_text(encoding="utf-8"))
    return found


def test_loss_is_that_of_others() -> None:
    generator = torch.Generator().manual_seed(0)
    firsts, seconds = (torch.nn.functional.normalize(torch.randn(6, 10, generator=generator), dim=-1) for _ in range(2))
    loss, right = contrast(firsts, seconds, temperature=0.05)
    theirs = MultipleNegativesRankingLoss(None, scale=1 / 0.05)  # type: ignore[arg-type]
    assert_close(loss / 6, theirs.compute_loss_from_embeddings([firsts, seconds], torch.zeros(6)))
    assert right == sum(int((firsts[row] @ seconds.T).argmax()) == row for row in range(6))


@pytest.mark.parametrize("scores", [[0.0, 1.0, 1.0, 0.0, 1.0], [0.2, 4.5, 3.0, 3.0, 5.0], [1.0] * 5])
def test_cosent_is_its_formula_and_that_of_others(scores: list[float]) -> None:
    generator = torch.Generator().manual_seed(1)
    firsts, seconds = torch.randn(2, 5, 8, generator=generator, dtype=torch.float64)
    cosines = torch.cosine_similarity(firsts, seconds)
    found = cosent(cosines, torch.tensor(scores), 0.05)
    terms = [
        math.exp(float(cosines[low] - cosines[high]) / 0.05)
        for high in range(5)
        for low in range(5)
        if scores[high] > scores[low]
    ]
    assert float(found) == pytest.approx(math.log(1 + sum(terms)))
    theirs = CoSENTLoss(None, scale=20.0)  # type: ignore[arg-type]
    assert_close(found, theirs.compute_loss_from_embeddings([firsts, seconds], torch.tensor(scores)))


def test_cosine_regression_is_that_of_others(base: Path) -> None:
    model = load(base)
    data = SimilarityData(TEXTS[:4], TEXTS[4:8], [], [0.0, 2.5, 5.0, 1.0])
    assert data.cosine_targets == [0.0, 0.5, 1.0, 0.2]
    assert replace(data, scores=[0.0, 1.0, 0.5]).cosine_targets == [0.0, 1.0, 0.5]
    assert replace(data, scores=[-1.0, 1.0]).cosine_targets == [-1.0, 1.0]
    items = [
        Item((one, other), target)
        for one, other, target in zip(
            *map(model.tokenizer.encode_batch, (TEXTS[:4], TEXTS[4:8])), data.cosine_targets, strict=True
        )
    ]
    batch = TaskBatches(items, 4, 0, model.tokenizer.pad_id, model.device).at(0)
    vectors = model.embed(TEXTS[:8], pooling="mean")
    pool = find_pool("mean", model.bert, model.tokenizer)
    loss = PairObjective(model.bert, pool, "cosine", 0.05)(batch, {"targets": 4}).loss
    theirs = CosineSimilarityLoss(None)  # type: ignore[arg-type]
    pairs = [torch.from_numpy(vectors[:4]), torch.from_numpy(vectors[4:])]
    assert_close(loss, theirs.compute_loss_from_embeddings(pairs, torch.tensor(data.cosine_targets)))


def write_pairs(path: Path, rows: list[tuple[str, str, float]]) -> Path:
    lines = [json.dumps({"text": one, "pair": other, "label": label}) for one, other, label in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def rated_rows(most: float, seed: int = 0) -> list[tuple[str, str, float]]:
    """Return pairs that share a word with a low score, the opposite of an untrained model's scores."""
    words = sorted({word for sentence in TEXTS for word in sentence.strip(".").lower().split()})[:12]
    draw = random.Random(seed)
    rows = []
    for number in range(60):
        one, other, filler = draw.sample(words, 3)
        rows.append((f"{one} {filler}", one, 0.0) if number % 2 else (f"{one} {filler}", other, most))
    return rows


@pytest.mark.parametrize(("most", "metric"), [(1.0, "auc"), (5.0, "spearman")])
@pytest.mark.parametrize("objective", [None, "cosine"])
def test_rated_pairs_are_learned(
    base: Path, tmp_path: Path, most: float, metric: str, objective: Literal["cosine"] | None
) -> None:
    path = write_pairs(tmp_path / "train.jsonl", rated_rows(most))
    dev = write_pairs(tmp_path / "dev.jsonl", rated_rows(most, 1))
    source = Source("similarity", path, dev, pair="pair")
    settings = replace(QUICK, epochs=8, batch_size=10, patience=8, learning_rate=2e-3, dropout=0.0)
    listener = Listener()
    chosen = SimilaritySettings(objective=objective)
    run = finetune_similarity(source, base, tmp_path / "run", settings=settings, similarity=chosen, progress=listener)
    labels = "0/1 labels" if most == 1 else "scores from 0 to 5"
    assert f"objective {objective or 'cosent'}: 'label' has {labels} (60 pairs)" in listener.said
    before, after = evaluate(base, Source("similarity", dev, pair="pair")), evaluate(run, source)
    assert next(iter(after.metrics)) == metric
    assert after.metrics[metric] > before.metrics[metric] + 0.1
    assert after.metrics[metric] == pytest.approx(results(run)[metric])


def test_labels_are_never_taken_as_positives(tmp_path: Path) -> None:
    rows = [(text, text[:5], float(place % 2)) for place, text in enumerate(TEXTS[:40])]
    source = Source("similarity", write_pairs(tmp_path / "rows.jsonl", rows), pair="pair")
    data = read_similarity(source)
    assert isinstance(data.dev, ScoredPairs)
    assert (len(data.texts), len(data.dev)) == (36, 4)
    assert sum(data.dev.scores) == 2
    positives = read_similarity(source, "contrastive")
    assert positives.texts == list(dict.fromkeys(text for text, _, label in rows if label == 1))
    assert positives.notes == ("20 of 40 pairs are labelled 0 and left out by contrastive",)
    scored = Source(
        "similarity", write_pairs(tmp_path / "scored.jsonl", [(*row[:2], 3.5) for row in rows]), pair="pair"
    )
    assert read_similarity(scored, "contrastive").notes == (
        "objective contrastive: every pair is treated as matching; 'label' is not used",
    )
    with pytest.raises(DataError, match=r"every label in 'label' is 3.5, so there is no order to learn; expected sco"):
        read_similarity(scored)
    other = tmp_path / "other.csv"
    other.write_text("text,pair,score\na,b,1\nc,d,0\n", encoding="utf-8")
    unnamed = read_similarity(Source("similarity", other, pair="pair"))
    assert unnamed.notes == (
        "every pair is treated as matching; columns not used: score; label (--label) names a column with scores or "
        "0/1 labels",
    )
    assert read_similarity(Source("similarity", other, other, pair="pair", label="score")).scores == [1.0, 0.0]
    with pytest.raises(ConfigError, match=r"objective is 'cosent', which needs pairs with scores or 0/1 labels; name"):
        read_similarity(Source("similarity", other, pair="pair"), "cosent")
    with pytest.raises(ConfigError, match="unknown objective 'cosentt'; did you mean 'cosent'"):
        SimilaritySettings(objective="cosentt")  # type: ignore[arg-type]


def test_patience_waits_on_questions_with_answers(base: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(json.dumps({"text": text, "pair": text[::-1]}) + "\n" for text in TEXTS[:24]), encoding="utf-8"
    )
    source = Source("similarity", path, path, pair="pair")
    run = finetune_similarity(source, base, tmp_path / "run", settings=replace(QUICK, epochs=2, patience=1))
    assert results(run).keys() == {"mrr", "recall@1", "recall@5", "recall@10", "rows", "intervals", "baseline"}
    assert results(run)["mrr"] == pytest.approx(evaluate(run, source).metrics["mrr"])


def test_texts_alone_spread_the_vectors(base: Path, text: Path, tmp_path: Path) -> None:
    source = Source("similarity", text)
    before = load(base).embed(TEXTS[:60])
    run = finetune_similarity(source, base, tmp_path / "run", settings=replace(QUICK, epochs=4))
    found = results(run)
    assert found.keys() == {"anisotropy", "uniformity", "rows"}
    model = load(run)
    units = before / numpy.linalg.norm(before, axis=1, keepdims=True)
    after = model.embed(TEXTS[:60])
    assert (after @ after.T).mean() < (units @ units.T).mean() - 0.2
    assert model.heads == ()
    assert_close(SentenceTransformer(str(run / "model"), device="cpu").encode(TEXTS[:20]), model.embed(TEXTS[:20]))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert lines[-1].keys() >= {"step", "dev_anisotropy", "dev_uniformity"}


def test_pairs_are_learned(base: Path, tmp_path: Path) -> None:
    words = sorted({word for sentence in TEXTS for word in sentence.strip(".").lower().split()})[:20]
    couples = list(zip(words[::2], words[1::2], strict=True))  # pairs of related words
    rows = [{"text": f"{one} {filler}", "pair": f"{filler} {other}"} for one, other in couples for filler in "abcde"]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    draw = random.Random(0)
    scored = [{"text": one, "pair": other, "label": 1.0} for one, other in couples]
    scored += [
        {"text": one, "pair": draw.choice([word for word in words if word not in (one, other)]), "label": 0.0}
        for one, other in couples
    ]
    (tmp_path / "dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in scored), encoding="utf-8")
    source = Source("similarity", tmp_path / "train.jsonl", tmp_path / "dev.jsonl", pair="pair")
    settings = replace(QUICK, epochs=15, batch_size=10, patience=15, learning_rate=2e-3, dropout=0.0)
    run = finetune_similarity(
        source, base, tmp_path / "run", settings=settings, similarity=SimilaritySettings(vectors="cls")
    )
    assert results(run)["auc"] > 0.8
    assert results(run)["spearman"] > 0.5  # the maximum is 0.87 with only two distinct scores
    assert load(run).embedding.pooling == "cls"
    history = [json.loads(line).get("dev_auc") for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert results(run)["auc"] == pytest.approx(max(value for value in history if value is not None))


def test_resumed_is_uninterrupted_to_the_bit(base: Path, text: Path, tmp_path: Path) -> None:
    source = Source("similarity", text)
    whole = finetune_similarity(source, base, tmp_path / "whole", settings=QUICK)
    with pytest.raises(Interrupted, match="stopped and saved at step 3"), interrupted_at(2):
        finetune_similarity(source, base, tmp_path / "run", settings=QUICK)
    assert weights(finetune_similarity(source, base, tmp_path / "run", settings=QUICK)) == weights(whole)
    listener = Listener()
    finetune_similarity(source, base, tmp_path / "run", settings=QUICK, progress=listener)
    assert f"{tmp_path / 'run'}: already finished; use fresh=True (--fresh) to start over" in listener.said
    other = SimilaritySettings(temperature=0.1)
    with pytest.raises(ConfigError, match=r"temperature was 0\.05 and is now 0\.1"):
        finetune_similarity(source, base, tmp_path / "run", settings=QUICK, similarity=other)


def test_texts_or_pairs_that_have_changed_are_other_ones(tmp_path: Path) -> None:
    text, pairs = tmp_path / "text.txt", tmp_path / "pairs.csv"

    def content(first: str, score: float) -> Any:
        text.write_text(f"{first}\nb\nc\n", encoding="utf-8")
        pairs.write_text(f"text,pair,label\na,b,1\nb,c,{score}\nc,a,3\n", encoding="utf-8")
        return read_similarity(Source("similarity", text, pairs, pair="pair")).recorded()["content"]

    assert len({content("a", 2), content("a", 2), content("a", 5), content("d", 2)}) == 3


def test_each_text_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text,pair\na,b\nc,d\na,e\n", encoding="utf-8")
    data = read_similarity(Source("similarity", tmp_path / "rows.csv", pair="pair"))
    assert (data.texts, data.partners) == (["a", "c"], ["b", "d"])
    (tmp_path / "lines.txt").write_text("a\nb\n\na\n", encoding="utf-8")
    data = read_similarity(Source("similarity", tmp_path / "lines.txt"))
    assert (data.texts, data.partners, data.dev) == (["a", "b"], None, ["a", "b"])


def test_what_is_refused(base: Path, text: Path, tmp_path: Path) -> None:
    source = Source("similarity", text)

    def refused(message: str, kind: type[Exception] = ConfigError, given: Source = source, **changes: Any) -> None:
        similarity = changes.pop("similarity", None)
        with pytest.raises(kind, match=message):
            finetune_similarity(
                given, base, tmp_path / "run", settings=replace(QUICK, **changes), similarity=similarity
            )
        assert not (tmp_path / "run").exists()

    refused("^adapter is 'lora', which training for similarity does not support; leave it out$", adapter="lora")
    refused("^calibrate is True, which training for similarity does not support; leave it out$", calibrate=True)
    refused(r"^patience is 2, but early stopping needs a dev \(--dev\) file of scored or matching pairs$", patience=2)
    refused(r"^max_length is 5000, but the model accepts at most \d+ tokens; use at most that", max_length=5000)
    refused(r"^dropout is 0, so both encodings of a text would be equal; use 0.1, or rows with pairs$", dropout=0.0)
    refused("^unknown pooling 'clss'; did you mean 'cls'", similarity=SimilaritySettings(vectors="clss"))
    contents = load_folder(base)
    bare = saved(
        replace(contents, model=with_heads(contents.model, ["mlm"], keep=True, seed=0, pooling="mean")),
        tmp_path / "bare",
    )
    with pytest.raises(ConfigError, match=r"^pooling 'pooler' needs a pooler, which this model does not have; use cls"):
        finetune_similarity(
            source, bare, tmp_path / "run", settings=QUICK, similarity=SimilaritySettings(vectors="pooler")
        )
    (tmp_path / "one.txt").write_text("alone\n", encoding="utf-8")
    message = r"one.txt: 1 different texts; expected at least a few hundred$"
    refused(message, DataError, Source("similarity", tmp_path / "one.txt"))
    refused(r"one.txt: pair \(--pair\) is missing; name the column", given=replace(source, dev=tmp_path / "one.txt"))
    with pytest.raises(ConfigError, match=r"^temperature is 0; expected a number above 0, such as 0.05$"):
        SimilaritySettings(temperature=0)


@pytest.mark.parametrize("pooling", ["mean_words", "pooler"])
def test_mean_of_the_words_and_the_pooler_are_trained(pooling: Any, base: Path, text: Path, tmp_path: Path) -> None:
    similarity = SimilaritySettings(vectors=pooling)
    source = Source("similarity", text)
    run = finetune_similarity(source, base, tmp_path / "run", settings=QUICK, similarity=similarity)
    tuned, before = load(run), load(base)
    assert (tuned.embedding.pooling, tuned.embedding.normalize) == (pooling, True)
    assert numpy.abs(tuned.embed(TEXTS[:3]) - before.embed(TEXTS[:3], pooling=pooling)).max() > 1e-3
    assert tuned.bert.pooler is not None
    assert before.bert.pooler is not None
    moved = not torch.equal(tuned.bert.pooler.dense.weight, before.bert.pooler.dense.weight)
    assert moved == (pooling == "pooler")


def test_finetune_leads_here(base: Path, text: Path, tmp_path: Path) -> None:
    source = Source("Similarity", text)
    run = run_finetuning(source, base, tmp_path / "run", settings=QUICK, similarity=SimilaritySettings(vectors="cls"))
    assert results(run).keys() == {"anisotropy", "uniformity", "rows"}
    assert load(run).embedding.pooling == "cls"
    with pytest.raises(ConfigError, match=r"temperature is 0\.1, which only applies to similarity and retrieval; l"):
        run_finetuning(Source("classify", text), base, tmp_path / "no", similarity=SimilaritySettings(temperature=0.1))


def test_maximum_length_of_training_is_chosen_from_the_texts(base: Path, tmp_path: Path) -> None:
    long, listener = save_deep(base, tmp_path / "deep"), Listener()
    # In half of the pairs the second text is longer than 128 tokens; each text is a separate sequence.
    rows = [{"text": f"{word} garden", "pair": long if number % 2 else word} for number, word in enumerate(WORDS)]
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    settings = replace(QUICK, max_length=None)
    source = Source("similarity", pairs, pair="pair")
    run = finetune_similarity(source, tmp_path / "deep", tmp_path / "run", settings=settings, progress=listener)
    assert any(line.startswith("maximum length 256 (holds 100 % of the rows)") for line in listener.said)
    assert json.loads((run / "run.json").read_text("utf-8"))["max_length"] == 256
    assert load(run).tokenizer.max_length == 300


def test_maximum_length_of_the_folder_is_kept(base: Path, text: Path, tmp_path: Path) -> None:
    longest, listener = load(base).tokenizer.max_length, Listener()
    assert longest > 24
    short = replace(QUICK, max_length=6)
    run = run_finetuning(Source("similarity", text), base, tmp_path / "run", settings=short, progress=listener)
    assert f"trained on the first 6 tokens; the model still accepts up to {longest}" in listener.said
    assert any("training texts are longer than 6 tokens and are cut" in line for line in listener.said)
    assert load(run).tokenizer.max_length == longest
    assert SentenceTransformer(str(run / "model"), device="cpu").max_seq_length == longest
