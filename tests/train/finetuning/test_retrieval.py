"""``finetune retrieval`` and ``finetune rerank``: runs that learn and resume, folders for other libraries, mistakes."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import CrossEncoder, SentenceTransformer
from torch.nn import functional

import cloze
from cloze.errors import ConfigError, DataError
from cloze.hardware import AvailableMemory
from cloze.predict import load
from cloze.progress import Interrupted
from cloze.tasks.rows import Source
from cloze.train.finetuning.contrastive import ContrastiveBatches
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.reranker import RerankBatches, ranking_loss
from cloze.train.finetuning.retriever import MOST_DEV_PASSAGES, read_ranking
from cloze.train.finetuning.settings import FinetuneSettings, RankingSettings
from tests.model.made import SMALL, WORDS, assert_close, model_folder, saved
from tests.train.made import Listener, interrupted_at

QUICK = FinetuneSettings(epochs=1, batch_size=8, max_length=20, learning_rate=1e-3, seed=1)
CHUNKS = RankingSettings(chunk_tokens=50)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    contents = model_folder(config=replace(SMALL, layers=2))
    return saved(contents, tmp_path_factory.mktemp("retrieval") / "base")


def make_rows(count: int = 40, seed: int = 0, negatives: int = 2) -> list[dict[str, Any]]:
    """Return rows in which query and passage share a rare word."""
    draw, rows = random.Random(seed), []
    for number in range(count):
        others = draw.sample(range(30), negatives)
        rows.append(
            {
                "query": f"word{number % 30} {' '.join(draw.sample(WORDS[:8], 2))}",
                "positive": f"{' '.join(draw.sample(WORDS[:8], 4))} word{number % 30}",
                "negatives": [f"{' '.join(draw.sample(WORDS[:8], 4))} word{other}" for other in others],
            }
        )
    return rows


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def weights(run: Path) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in load_file(run / "model" / "model.safetensors").items()}


# -- retrieval ---------------------------------------------------------------------------------------------------------


def test_retrieval_learns(base: Path, tmp_path: Path) -> None:
    dev = make_rows(30, seed=9)
    run = cloze.finetune(
        *("retrieval", make_rows(120), dev),
        model=base,
        out=tmp_path / "run",
        epochs=6,
        batch_size=20,
        learning_rate=1e-2,
        dropout=0.0,
        patience=6,
        temperature=0.1,
    )
    before = [row for row in run.history if "dev_ndcg@10" in row]
    assert len(before) == 6
    assert run.metrics["ndcg@10"] == max(row["dev_ndcg@10"] for row in before) > before[0]["dev_ndcg@10"] + 0.1
    assert run.results["baseline"]["name"] == "BM25"
    assert {"ndcg@10", "mrr@10", "recall@10", "recall@100"} <= set(run.intervals)
    assert run.model.embedding.normalize


def test_prompts_and_dimensions_are_saved_and_used(base: Path, tmp_path: Path) -> None:
    settings = RankingSettings(query_prompt="the ", document_prompt="a ", dimensions="4, 8")
    source = Source("retrieval", write(tmp_path / "rows.jsonl", make_rows()))
    run = run_finetuning(source, base, tmp_path / "run", settings=QUICK, similarity=settings)
    model, theirs = load(run), SentenceTransformer(str(run / "model"))
    assert model.embedding.prompts == {"query": "the ", "document": "a "}
    assert model.embedding.dimensions == (8, 4)
    assert_close(model.embed(["cat"], prompt="query"), theirs.encode_query(["cat"]))
    assert_close(model.embed(["cat"], prompt="document"), theirs.encode_document(["cat"]))
    again = run_finetuning(source, run, tmp_path / "again", settings=QUICK)
    assert load(again).embedding.prompts == model.embedding.prompts
    other = run_finetuning(source, base, tmp_path / "other", settings=QUICK)
    assert weights(other) != weights(run)


def test_an_interrupted_run_resumes_bit_by_bit(base: Path, tmp_path: Path) -> None:
    source = Source("retrieval", write(tmp_path / "rows.jsonl", make_rows()))
    settings = replace(QUICK, epochs=2, save_every=1)
    whole = run_finetuning(source, base, tmp_path / "whole", settings=settings, similarity=CHUNKS)
    with interrupted_at(6, ContrastiveBatches), pytest.raises(Interrupted):
        run_finetuning(source, base, tmp_path / "parts", settings=settings, similarity=CHUNKS)
    parts = run_finetuning(source, base, tmp_path / "parts", settings=settings, similarity=CHUNKS)
    assert weights(parts) == weights(whole)


def test_a_step_beyond_the_memory_names_the_size_of_a_chunk(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source("retrieval", write(tmp_path / "rows.jsonl", make_rows()))
    # Enough to read the weights, but not for the gradients and moments of a step.
    there = AvailableMemory(9 * load(base).bert.parameter_count(), "a made limit")
    monkeypatch.setattr("cloze.hardware.available_memory", lambda: there)
    with pytest.raises(ConfigError, match=r"\(a made limit\); use a smaller .*, a smaller chunk_tokens") as caught:
        run_finetuning(source, base, tmp_path / "run", settings=QUICK, similarity=CHUNKS)
    assert "accumulate" not in str(caught.value)


@pytest.mark.parametrize("task", ["retrieval", "rerank"])
def test_low_rank_adapters_are_merged(task: str, base: Path, tmp_path: Path) -> None:
    source = Source(task, write(tmp_path / "rows.jsonl", make_rows()))
    settings = replace(QUICK, adapter="lora", adapter_size=2)
    run = run_finetuning(source, base, tmp_path / "run", settings=settings)
    changed = {name for name, tensor in weights(run).items() if tensor != weights_of(base).get(name)}
    encoder = {name for name in changed if "encoder.layer" in name}
    assert encoder
    assert all("query.weight" in name or "value.weight" in name for name in encoder)
    assert {name for name in changed - encoder if "classifier" not in name and "pooler" not in name} == set()
    model = load(run)
    if task == "retrieval":
        assert_close(model.embed(["the cat"]), SentenceTransformer(str(run / "model")).encode(["the cat"]))
    else:
        assert model.is_cross_encoder


def weights_of(folder: Path) -> dict[str, bytes]:
    found = load_file(folder / "model.safetensors")
    # A model with a task head has its parameters under "bert.".
    return {f"{prefix}{name}": one.numpy().tobytes() for prefix in ("", "bert.") for name, one in found.items()}


def test_margins_of_a_teacher_are_learned(base: Path, tmp_path: Path) -> None:
    rows = make_rows(60)
    for row in rows:
        row |= {"positive_score": 4.0, "negative_scores": [-3.0, -5.0]}
    settings = RankingSettings(objective="margin-mse", negatives=2)
    quick = replace(QUICK, epochs=8, learning_rate=1e-2, dropout=0.0)
    source = Source("retrieval", write(tmp_path / "rows.jsonl", rows))
    run = run_finetuning(source, base, tmp_path / "run", settings=quick, similarity=settings)
    history = [json.loads(row) for row in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = [row["loss"] for row in history if "loss" in row]
    assert losses[-1] < 0.7 * losses[0]


def test_queries_are_held_out_with_all_of_their_rows(tmp_path: Path) -> None:
    rows = [{"query": f"q{number // 2}", "positive": f"p{number}"} for number in range(80)]
    data = read_ranking(Source("retrieval", write(tmp_path / "rows.jsonl", rows)))
    assert len(data.dev.queries) == 4
    assert not set(data.dev.queries.values()) & set(data.train.queries)
    assert len(data.train) == 72
    assert set(data.dev.documents.values()) == {row["positive"] for row in rows}
    assert all(len(data.dev.relevant(query)) == 2 for query in data.dev.answerable)
    assert data.notes == ("no dev (--dev) file: the rows of 4 of the queries, a tenth, are held out",)


def test_large_dev_sets_are_searched_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"query": f"q{number}", "positive": f"p{number}"} for number in range(40)]
    assert MOST_DEV_PASSAGES == 10_000
    monkeypatch.setattr("cloze.train.finetuning.retriever.MOST_DEV_PASSAGES", 15)
    data = read_ranking(Source("retrieval", write(tmp_path / "rows.jsonl", rows)))
    assert len(data.dev.documents) == 15
    assert data.notes[-1] == "dev queries are searched among 15 of 40 passages, a sample"


# -- rerank ------------------------------------------------------------------------------------------------------------


def test_ranking_losses_by_hand() -> None:
    scores = torch.tensor([[2.0, -1.0, 0.5], [0.3, 1.0, 9.0]])
    real = torch.tensor([[True, True, True], [True, True, False]])
    sigmoid = torch.sigmoid
    lists = [
        functional.cross_entropy(scores[:1], torch.tensor([0])),
        functional.cross_entropy(scores[1:, :2], torch.tensor([0])),
    ]
    assert_close(ranking_loss(scores, real, "listwise"), sum(lists))
    pairs = [
        -(sigmoid(torch.tensor(3.0)).log() + sigmoid(torch.tensor(1.5)).log()) / 2,
        -sigmoid(torch.tensor(-0.7)).log(),
    ]
    assert_close(ranking_loss(scores, real, "pairwise"), sum(pairs))
    points = [
        functional.binary_cross_entropy_with_logits(scores[0], torch.tensor([1.0, 0.0, 0.0])),
        functional.binary_cross_entropy_with_logits(scores[1, :2], torch.tensor([1.0, 0.0])),
    ]
    assert_close(ranking_loss(scores, real, "pointwise"), sum(points))


@pytest.mark.parametrize("objective", ["listwise", "pairwise", "pointwise"])
def test_rerank_learns_and_resumes(objective: Any, base: Path, tmp_path: Path) -> None:
    source = Source(
        "rerank", write(tmp_path / "rows.jsonl", make_rows(60)), write(tmp_path / "dev.jsonl", make_rows(30, 9))
    )
    settings = replace(QUICK, epochs=2, save_every=1, learning_rate=3e-3)
    chosen = RankingSettings(objective=objective)
    listener = Listener()
    whole = run_finetuning(source, base, tmp_path / "whole", settings=settings, similarity=chosen, progress=listener)
    assert (
        "60 of 60 rows have fewer than 4 negatives and get random passages of other rows; cloze mine finds "
        in "".join(listener.said)
    )
    with interrupted_at(9, RerankBatches), pytest.raises(Interrupted):
        run_finetuning(source, base, tmp_path / "parts", settings=settings, similarity=chosen)
    parts = run_finetuning(source, base, tmp_path / "parts", settings=settings, similarity=chosen)
    assert weights(parts) == weights(whole)
    model, theirs = load(whole), CrossEncoder(str(whole / "model"))
    assert model.task is not None
    assert (model.task.kind, theirs.num_labels) == ("rerank", 1)
    texts = ["the cat sat on a mat", "a dog", "word3 ran"]
    assert_close(model.rerank_scores(["word3"] * 3, texts), theirs.predict([("word3", text) for text in texts]))
    results = json.loads((whole / "eval_results.json").read_text(encoding="utf-8"))
    assert results["baseline"]["name"] == "BM25"
    history = [json.loads(row) for row in (whole / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["dev_ndcg@10"] for row in history if "dev_ndcg@10" in row][-1] == pytest.approx(results["ndcg@10"])


def test_parts_of_a_batch_have_the_same_passages(base: Path) -> None:
    from cloze.tasks.retrieval.examples import read_training_pairs

    model = load(base)
    rows = read_training_pairs(make_rows(10))
    batches = RerankBatches(rows, model.tokenizer, 6, 3, 0, torch.device("cpu"))
    whole, parts = batches.at(0), [batches.at(0, part, 2) for part in range(2)]
    assert whole is not None
    texts = [row[: int(real.sum())].tolist() for row, real in zip(whole.inputs.ids, whole.inputs.real, strict=True)]
    found = []
    for part in parts:
        assert part is not None
        found += [row[: int(real.sum())].tolist() for row, real in zip(part.inputs.ids, part.inputs.real, strict=True)]
    assert found == texts
    assert whole.sizes == (4,) * 6
    assert whole.counts == {"targets": 6}
    tokens, longest = batches.largest_part(1)
    assert tokens >= whole.token_count * 0.7
    assert longest <= model.tokenizer.max_length
    assert [batches.at(step, 0, 8) is None for step in range(2)] == [False, False]
    assert batches.at(1, 7, 8) is None


def test_a_reranker_continues_with_its_head(base: Path, tmp_path: Path) -> None:
    source = Source("rerank", write(tmp_path / "rows.jsonl", make_rows()))
    first = run_finetuning(source, base, tmp_path / "first", settings=QUICK)
    head = load(first).bert.heads["sequence"].state_dict()
    frozen = replace(QUICK, learning_rate=1e-12)
    second = run_finetuning(source, first, tmp_path / "second", settings=frozen)
    for name, tensor in load(second).bert.heads["sequence"].state_dict().items():
        assert_close(tensor, head[name])


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "ranking", "complaint"),
    [
        (
            {"accumulate": 2},
            {},
            r"accumulate is 2, but retrieval compares all texts of a batch with each other; use a s",
        ),
        ({"adapter": "houlsby"}, {}, r"adapter is 'houlsby', which cannot be merged into the model; use 'lora'"),
        ({"adapter": "lora", "freeze_layers": 1}, {}, r"adapter and freeze_layers exclude each other"),
        ({"few": True}, {}, r"few is True, which training for retrieval does not support; leave it out"),
        (
            {},
            {"negatives": 3},
            r"negatives is 3, but the rows have at most 2 negatives; use at most that, or find more",
        ),
        (
            {},
            {"objective": "margin-mse"},
            r"objective is 'margin-mse', which learns a teacher's scores .* have no scores",
        ),
        (
            {},
            {"objective": "listwise"},
            r"objective \(--objective\) is 'listwise', which is not one of retrieval; choose",
        ),
        ({}, {"objective": "margin-mse", "symmetric": True}, r"symmetric applies to the objective contrastive, not to"),
        ({}, {"dimensions": "512"}, r"dimensions is '512', but the vectors have 16 values; use at most that"),
        ({}, {"vectors": "middle"}, r"unknown pooling 'middle'"),
    ],
)
def test_settings_that_do_not_fit(
    settings: dict[str, Any], ranking: dict[str, Any], complaint: str, base: Path, tmp_path: Path
) -> None:
    source = Source("retrieval", write(tmp_path / "rows.jsonl", make_rows()))
    with pytest.raises((ConfigError, DataError), match=f"^{complaint}"):
        run_finetuning(
            *(source, base, tmp_path / "run"),
            settings=replace(QUICK, **settings),
            similarity=RankingSettings(**ranking),
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"negatives": -1}, "negatives is -1; expected at least 0"),
        ({"chunk_tokens": 0}, "chunk_tokens is 0; expected at least 1"),
        ({"dimensions": "many"}, "dimensions is 'many'; expected numbers separated by commas, as in 256,128"),
    ],
)
def test_values_out_of_range(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"^{complaint}$"):
        RankingSettings(**values)


def test_settings_of_other_tasks_are_refused(base: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", make_rows())
    for task, values, complaint in (
        ("rerank", {"symmetric": True}, "symmetric is True, which only applies to retrieval; leave it out"),
        ("similarity", {"negatives": 2}, "negatives is 2, which only applies to retrieval and rerank; leave it out"),
        (
            "rerank",
            {"negatives": 0},
            "negatives is 0, so there is nothing to compare the relevant passage with; use at ",
        ),
    ):
        with pytest.raises(ConfigError, match=f"^{complaint}"):
            run_finetuning(
                Source(task, path), base, tmp_path / "run", settings=QUICK, similarity=RankingSettings(**values)
            )
    with pytest.raises(DataError, match=r"all rows have the same passage; expected at least a few hundred passages$"):
        run_finetuning(
            Source("retrieval", [{"query": f"q{row}", "positive": "a"} for row in range(30)]), base, tmp_path / "run"
        )
    assert np.array_equal(load(base).embed(["the cat"]), load(base).embed(["the cat"]))
