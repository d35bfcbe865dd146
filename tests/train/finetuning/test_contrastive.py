"""Contrastive losses and gradient caching, compared with ``sentence-transformers`` and with explicit computations."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
)
from torch import Tensor
from torch.nn import functional

from cloze.checkpoint import EmbeddingSettings
from cloze.predict import Model, load
from cloze.predict.embeddings.pooling import mean_pool
from cloze.progress import Silent
from cloze.tasks.retrieval.kind import TrainingPairs
from cloze.text import Tokenizer
from cloze.train.finetuning.contrastive import (
    ContrastiveBatches,
    ContrastiveObjective,
    contrast,
    default_chunk_tokens,
    margin_mse,
)
from cloze.train.finetuning.retriever import encode_rows
from tests.model.made import SMALL, WORDS, assert_close, model_folder, saved

ROWS = 6
CPU = torch.device("cpu")


def make_pairs(rows: int = ROWS, negatives: int = 1, seed: int = 0) -> TrainingPairs:
    """Return rows of random words, all different and of different lengths."""
    generator = np.random.default_rng(seed)

    def text(longest: int) -> str:
        return " ".join(generator.choice(WORDS[:8], generator.integers(2, longest)))

    return TrainingPairs(
        [f"word{row} {text(4)}" for row in range(rows)],
        [f"word{row} {text(20)}" for row in range(rows)],
        [tuple(f"word{row + rows * (1 + one)} {text(12)}" for one in range(negatives)) for row in range(rows)],
    )


def make_batches(pairs: TrainingPairs, tokenizer: Tokenizer, chunk_tokens: int = 10_000, **given: Any) -> Any:
    rows = encode_rows(pairs, tokenizer, EmbeddingSettings(), Silent())
    options = {"batch_size": len(pairs), "negatives": 1, "seed": 0} | given
    return ContrastiveBatches(rows, chunk_tokens=chunk_tokens, pad_id=tokenizer.pad_id, device=CPU, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model without dropout."""
    config = replace(SMALL, dropout=0.0, attention_dropout=0.0)
    return saved(model_folder(config=config), tmp_path_factory.mktemp("contrastive") / "model")


def make_objective(model: Model, **options: Any) -> ContrastiveObjective:
    objective = ContrastiveObjective(model.bert, lambda last, batch: mean_pool(last, batch.real), 0.05, **options)
    return objective.train()


def gradients(objective: ContrastiveObjective, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    objective.zero_grad()
    torch.manual_seed(3)
    loss = objective(batch, batch.counts).loss
    loss.backward()
    return loss.detach(), {name: one.grad.clone() for name, one in objective.named_parameters() if one.grad is not None}


def texts_of(pairs: TrainingPairs) -> list[list[str]]:
    """Return the texts in the columns of sentence-transformers."""
    return [pairs.queries, pairs.positives, *map(list, zip(*pairs.negatives, strict=True))]


def their_features(model: SentenceTransformer, pairs: TrainingPairs) -> list[Any]:
    return [model.preprocess(column) for column in texts_of(pairs)]


# -- losses ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("symmetric", [False, True])
def test_loss_is_that_of_sentence_transformers(symmetric: bool, folder: Path) -> None:
    model, pairs = load(folder), make_pairs(negatives=0 if symmetric else 1)
    batch = make_batches(pairs, model.tokenizer).at(0)
    both: Any = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"}
    theirs = SentenceTransformer(str(folder), device="cpu")
    kind = MultipleNegativesRankingLoss(theirs, scale=20.0, **(both if symmetric else {}))
    expected = kind(their_features(theirs, pairs), None)
    output = make_objective(model, symmetric=symmetric)(batch, batch.counts)
    assert_close(output.loss, expected)
    assert 0 <= float(output.metrics["accuracy"]) <= 1


def test_matryoshka_is_that_of_sentence_transformers(folder: Path) -> None:
    model, pairs = load(folder), make_pairs()
    batch = make_batches(pairs, model.tokenizer).at(0)
    theirs = SentenceTransformer(str(folder), device="cpu")
    loss = MatryoshkaLoss(theirs, MultipleNegativesRankingLoss(theirs, scale=20.0), [16, 8, 4])
    expected = loss(their_features(theirs, pairs), None)
    assert_close(make_objective(model, sizes=(None, 8, 4))(batch, batch.counts).loss, expected / 3)


def test_cached_gradients_are_those_of_sentence_transformers(folder: Path) -> None:
    model, pairs = load(folder), make_pairs()
    batch = make_batches(pairs, model.tokenizer, 30).at(0)
    assert len(batch.chunks) > 3
    loss, ours = gradients(make_objective(model), batch)
    theirs = SentenceTransformer(str(folder), device="cpu")
    cached = CachedMultipleNegativesRankingLoss(theirs, scale=20.0, mini_batch_size=2)
    theirs.train()
    expected = cached(their_features(theirs, pairs), None)
    expected.backward()
    assert_close(loss, expected.detach())
    named = {name: one.grad for name, one in theirs.named_parameters() if one.grad is not None}
    table = next(one for name, one in named.items() if name.endswith("word_embeddings.weight"))
    assert_close(ours["model.encoder.embeddings.token.weight"], table)
    assert len(ours) > 10
    total = sum(float(one.square().sum()) for one in ours.values())
    assert total == pytest.approx(sum(float(one.square().sum()) for one in named.values()), rel=1e-4)


def test_training_steps_are_those_of_sentence_transformers(folder: Path) -> None:
    model, pairs = load(folder), make_pairs(24)
    batches = make_batches(pairs, model.tokenizer, 60, batch_size=8)
    objective, theirs = make_objective(model), SentenceTransformer(str(folder), device="cpu")
    loss = MultipleNegativesRankingLoss(theirs, scale=20.0)
    ours = torch.optim.AdamW(objective.parameters(), 1e-3)
    other = torch.optim.AdamW(theirs.parameters(), 1e-3)
    order = encode_rows(pairs, model.tokenizer, EmbeddingSettings(), Silent()).queries.tolist()
    for step in range(6):
        batch = batches.at(step)
        chosen = batches.batch_rows(step)
        part = pairs.select([order.index(order[row]) for row in chosen])
        ours.zero_grad()
        found = objective(batch, batch.counts).loss
        found.backward()
        ours.step()
        other.zero_grad()
        expected = loss(their_features(theirs, part), None)
        expected.backward()
        other.step()
        assert float(found.detach()) == pytest.approx(float(expected.detach()), abs=1e-4)


def test_margins_by_hand() -> None:
    generator = torch.Generator().manual_seed(0)
    queries, documents = (functional.normalize(torch.randn(size, 4, generator=generator), dim=-1) for size in (2, 4))
    columns = torch.tensor([[0, 2, 1], [1, 3, 0]])
    scores = torch.tensor([[5.0, 1.0, 2.0], [3.0, 4.0, float("nan")]])
    cosines = queries @ documents.T / 0.05
    first = [(cosines[0, 0] - cosines[0, 2] - 4) ** 2, (cosines[0, 0] - cosines[0, 1] - 3) ** 2]
    expected = (first[0] + first[1]) / 2 + (cosines[1, 1] - cosines[1, 3] + 1) ** 2
    assert_close(margin_mse(queries, documents, 0.05, columns, scores) / expected, 1.0)


# -- duplicates --------------------------------------------------------------------------------------------------------


def test_documents_that_answer_a_query_are_not_its_negatives(folder: Path) -> None:
    tokenizer = load(folder).tokenizer
    pairs = TrainingPairs(
        ["the cat", "the cat", "a dog", "on"],
        ["a mat", "sat", "a mat", "word9"],
        [("the cat", "sat"), (), ("ran",), ("a mat",)],
    )
    batch = make_batches(pairs, tokenizer, negatives=2).at(0)
    documents = len(batch.order) - 4
    assert documents == 4  # a mat, sat, ran, word9; the copy of the query and the other answer are not negatives
    lines = {
        (int(batch.targets[row]), tuple(batch.ignored[row].tolist())): int(batch.ignored[row].sum()) for row in range(4)
    }
    # Both rows of "the cat" ignore the answer of the other one; no row ignores its own.
    assert sorted(lines.values()) == [0, 0, 1, 1]
    assert not any(bool(batch.ignored[row, batch.targets[row]]) for row in range(4))
    vectors = functional.normalize(torch.randn(4 + documents, 5, generator=torch.Generator().manual_seed(1)), dim=-1)
    loss, _ = contrast(vectors[:4], vectors[4:], 0.05, batch.targets, batch.ignored)
    cosines = vectors[:4] @ vectors[4:].T / 0.05
    expected = torch.zeros(())
    for row in range(4):
        kept = [column for column in range(documents) if not batch.ignored[row, column]]
        expected = expected + torch.logsumexp(cosines[row, kept], 0) - cosines[row, batch.targets[row]]
    assert_close(loss, expected)


def test_symmetric_loss_ignores_other_queries_of_a_document(folder: Path) -> None:
    model = load(folder)
    pairs = TrainingPairs(["the cat", "a dog", "on"], ["a mat", "a mat", "sat"], [(), (), ()])
    batch = make_batches(pairs, model.tokenizer).at(0)
    vectors = torch.randn(len(batch.order), 5, generator=torch.Generator().manual_seed(2))
    ordered = functional.normalize(vectors[batch.order], dim=-1)
    cosines = ordered[:3] @ ordered[3:].T / 0.05
    forward = functional.cross_entropy(cosines, batch.targets, reduction="sum")
    back = torch.zeros(())
    for row in range(3):
        own = batch.targets[row]
        others = [one for one in range(3) if one == row or batch.targets[one] != own]
        back = back + torch.logsumexp(cosines[others, own], 0) - cosines[row, own]
    found = make_objective(model, symmetric=True).loss(vectors, batch, {"targets": 1}).loss
    assert_close(found, (forward + back) / 2)


# -- gradient caching --------------------------------------------------------------------------------------------------


def test_chunks_hold_all_texts(folder: Path) -> None:
    tokenizer, pairs = load(folder).tokenizer, make_pairs()
    whole, parts = (make_batches(pairs, tokenizer, tokens).at(0) for tokens in (10_000, 25))
    assert (len(whole.chunks), whole.token_count) == (1, parts.token_count)
    assert all(int(chunk.real.sum()) <= 25 for chunk in parts.chunks)
    rows = [[row[real].tolist() for row, real in zip(one.ids, one.real, strict=True)] for one in parts.chunks]
    flat = [row for chunk in rows for row in chunk]
    expected = [tokenizer(text).ids for column in texts_of(pairs)[:1] for text in column]
    assert sorted(flat[place] for place in parts.order[:ROWS]) == sorted(expected)
    assert sorted(map(len, flat)) == list(map(len, flat))


@pytest.mark.parametrize("options", [{}, {"symmetric": True}, {"sizes": (None, 4)}])
def test_caching_changes_no_gradient(options: dict[str, Any], folder: Path) -> None:
    model, pairs = load(folder), make_pairs()
    objective = make_objective(model, **options)
    whole, parts = (gradients(objective, make_batches(pairs, model.tokenizer, tokens).at(0)) for tokens in (10_000, 30))
    assert_close(whole[0], parts[0])
    for name, gradient in whole[1].items():
        assert_close(parts[1][name], gradient)


def test_dropout_is_the_same_in_both_passes() -> None:
    """Encode all chunks once, with the seeds of caching, and compute the gradient of everything at once."""
    model, pairs = Model(model_folder(config=replace(SMALL, dropout=0.3, attention_dropout=0.3))), make_pairs()
    batch = make_batches(pairs, model.tokenizer, 40).at(0)
    objective = make_objective(model)
    cached, found = gradients(objective, batch)
    again, same = gradients(objective, batch)
    assert torch.equal(cached, again)
    assert all(torch.equal(found[name], same[name]) for name in found)
    objective.zero_grad()
    vectors = []
    for index, chunk in enumerate(batch.chunks):
        seed = np.random.SeedSequence([3, index]).generate_state(1, np.uint64)[0] >> np.uint64(1)
        torch.manual_seed(int(seed))
        vectors.append(objective._encode(chunk))
    loss = objective.loss(torch.cat(vectors), batch, batch.counts).loss
    loss.backward()  # type: ignore[no-untyped-call]
    assert_close(cached, loss.detach())
    for name, parameter in objective.named_parameters():
        if parameter.grad is not None:
            assert_close(found[name], parameter.grad)


def test_bfloat16_is_used_in_both_passes(folder: Path) -> None:
    model, pairs = load(folder), make_pairs()
    objective, batch = make_objective(model), make_batches(pairs, model.tokenizer, 40).at(0)
    exact, _ = gradients(objective, batch)
    used = []
    objective.model.encoder.register_forward_hook(lambda *_: used.append(torch.is_autocast_enabled("cpu")))
    with torch.autocast("cpu", torch.bfloat16):
        loss = objective(batch, batch.counts).loss
    loss.backward()
    assert used == [True] * (2 * len(batch.chunks) - 1)
    assert float(loss.detach()) == pytest.approx(float(exact), rel=0.1)


def test_negatives_are_drawn_anew_in_every_epoch(folder: Path) -> None:
    tokenizer, pairs = load(folder).tokenizer, make_pairs(4, negatives=5)
    batches = make_batches(pairs, tokenizer, negatives=2)
    drawn = [sorted(map(tuple, batches.at(epoch).chunks[0].ids.tolist())) for epoch in (0, 1, 0)]
    assert drawn[0] == drawn[2] != drawn[1]
    assert len(drawn[0]) == 4 * 4
    assert batches.largest_part(1)[0] >= batches.at(0).token_count


def test_chunks_of_larger_models_are_smaller() -> None:
    small, large = (default_chunk_tokens(Model(model_folder(config=replace(SMALL, layers=one))).bert) for one in (1, 3))
    assert small > large > 1000
