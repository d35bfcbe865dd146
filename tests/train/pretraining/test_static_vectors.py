"""word2vec and GloVe: training, folders, and the vectors in other libraries."""

import builtins
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gensim.models import Word2Vec
from sentence_transformers import SentenceTransformer

import cloze
from cloze.checkpoint import load_folder
from cloze.corpus.shards import Corpus
from cloze.errors import ConfigError, RequestError
from cloze.model import StaticVectors
from cloze.options import STATIC_BACKBONES, BackboneName
from cloze.tasks.rows import Source
from cloze.text import Tokenizer
from cloze.train.finetuning.finetune import run_finetuning
from cloze.train.finetuning.settings import FinetuneSettings
from cloze.train.pretraining.plan import plan
from cloze.train.pretraining.pretrain import pretrain
from cloze.train.pretraining.static_vectors import GloveFit, PairCounter, blocks, count_pieces
from cloze.train.settings import PretrainSettings, read_recipe

SETTINGS = PretrainSettings(backbone="word2vec", hidden_size=16, epochs=2, seed=3)


@pytest.fixture(scope="module", params=STATIC_BACKBONES)
def trained(request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = replace(SETTINGS, backbone=request.param)
    return pretrain(data, tmp_path_factory.mktemp(request.param) / "run", settings=settings)


def test_a_run_holds_one_vector_per_piece(trained: Path, data: Path) -> None:
    contents = load_folder(trained)
    assert isinstance(contents.model, StaticVectors)
    assert contents.model.config.hidden_size == 16
    counts = count_pieces(Corpus.open(data), contents.tokenizer.size)
    norms = contents.model.embedding.weight.norm(dim=1)
    assert ((norms > 0).numpy() == (counts > 0)).all()
    results = json.loads((trained / "eval_results.json").read_text(encoding="utf-8"))
    assert results["tokens_seen"] == Corpus.open(data).token_count * (2 if "pairs" not in results else 1)
    assert contents.card is not None
    assert contents.card.startswith("# Static vectors, size 16")


def test_the_same_settings_give_the_same_vectors(trained: Path, data: Path, tmp_path: Path) -> None:
    recorded = json.loads((trained / "run.json").read_text(encoding="utf-8"))
    again = pretrain(data, tmp_path / "again", settings=replace(SETTINGS, backbone=recorded["backbone"]))
    assert (again / "model" / "model.safetensors").read_bytes() == (
        trained / "model" / "model.safetensors"
    ).read_bytes()
    with pytest.raises(ConfigError, match="epochs was 2 and is now 3"):
        pretrain(data, again, settings=replace(SETTINGS, backbone=recorded["backbone"], epochs=3))


def test_sentence_transformers_reads_the_same_vectors(trained: Path) -> None:
    texts = ["the winter house stood by the river.", "a garden", "stone, stone!", ""]
    theirs = SentenceTransformer(str(trained / "model"), device="cpu")
    assert type(theirs[0]).__name__ == "StaticEmbedding"
    np.testing.assert_allclose(cloze.load(trained).embed(texts), theirs.encode(texts), atol=1e-6)


def test_vectors_do_not_depend_on_context(trained: Path) -> None:
    model = cloze.load(trained)
    one, two = model.word("house", "the house"), model.word("house", "a house by the river")
    np.testing.assert_array_equal(one, two)
    with pytest.raises(RequestError, match="a model of type 'static' has no attention weights"):
        model.attend("house")
    with pytest.raises(RequestError, match="no 'mlm' head"):
        model.fill("a [MASK]")
    with pytest.raises(RequestError, match="no 'lm' head"):
        model.generate("a house")


@pytest.mark.parametrize("frozen", ["last", None])
def test_a_head_on_the_mean_is_finetuned(frozen: Any, trained: Path, tmp_path: Path) -> None:
    rows = [("winter house", "cold"), ("garden river", "warm")] * 12
    for name in ("train", "dev"):
        lines = ["text,label", *(f"{text},{label}" for text, label in rows)]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    settings = FinetuneSettings(epochs=12, batch_size=8, max_length=16, learning_rate=5e-2, dropout=0.0, frozen=frozen)
    source = Source("classify", tmp_path / "train.csv", tmp_path / "dev.csv")
    tuned = cloze.load(run_finetuning(source, trained, tmp_path / "run", settings=settings))
    assert [one.label for one in tuned.classify(["winter house", "garden river"])] == ["cold", "warm"]


def test_pairs_are_counted_by_distance() -> None:
    documents = [np.array([1, 2, 3, 1]), np.array([3]), np.array([2, 2])]
    counter = PairCounter(5, window=2)
    counter.add(documents)
    counter.add(documents[:1])
    first, second, counts = counter.pairs()
    found = {(int(i), int(j)): float(x) for i, j, x in zip(first, second, counts, strict=True)}
    expected: dict[tuple[int, int], float] = {}
    for document in [*documents, documents[0]]:
        for at, one in enumerate(document.tolist()):
            for distance in (1, 2):
                if at + distance < len(document):
                    key = (min(one, int(document[at + distance])), max(one, int(document[at + distance])))
                    expected[key] = expected.get(key, 0.0) + 1 / distance
    assert found == pytest.approx(expected)


def test_pairs_in_memory_are_bounded() -> None:
    counter = PairCounter(100, window=3, most=50)
    counter.add([np.random.default_rng(0).integers(0, 100, 2000), np.zeros(500, np.int64)])
    first, second, counts = counter.pairs()
    assert len(counts) == 50
    assert first[0] == second[0] == 0
    assert counts.max() == counts[0]


def test_an_update_is_a_step_of_adagrad_on_the_squared_error() -> None:
    fit, reference = GloveFit(6, 4, 0.05, seed=1), GloveFit(6, 4, 0.05, seed=1)
    tables = [reference.words, reference.contexts, reference.word_biases, reference.context_biases]
    leaves = [table.clone().requires_grad_() for table in tables]
    words, contexts = torch.tensor([0, 1, 1, 5]), torch.tensor([2, 2, 3, 5])
    logs, shares = torch.tensor([0.5, 1.0, -0.2, 2.0]), torch.tensor([0.1, 1.0, 0.5, 0.7])
    errors = (leaves[0][words] * leaves[1][contexts]).sum(1) + leaves[2][words][:, 0] + leaves[3][contexts][:, 0] - logs
    torch.autograd.backward((shares * errors**2 / 2).sum())
    torch.optim.Adagrad(leaves, lr=0.05, initial_accumulator_value=1.0, eps=0.0).step()
    fit._update(words, contexts, logs, shares)
    for ours, expected in zip((fit.words, fit.contexts, fit.word_biases, fit.context_biases), leaves, strict=True):
        torch.testing.assert_close(ours, expected.detach())


def test_glove_fits_the_logarithms_of_counts() -> None:
    fit = GloveFit(8, 8, 0.2, seed=0)
    first, second = (np.array(rows) for rows in zip(*[(i, j) for i in range(8) for j in range(i, 8)], strict=True))
    counts = np.exp(np.random.default_rng(1).normal(3, 1, len(first)))
    losses = [fit.epoch(first, second, counts) for _ in range(300)]
    assert losses[-1] < 0.02 * losses[0]


def test_an_epoch_visits_every_token_once(data: Path) -> None:
    corpus = Corpus.open(data)
    read = np.concatenate([ids for block in blocks(corpus, seed=1, size=500) for ids in block])
    assert len(read) == corpus.token_count
    np.testing.assert_array_equal(np.bincount(read, minlength=200), count_pieces(corpus, 200))


def test_word2vec_learns_as_gensim_alone(data: Path, tmp_path: Path) -> None:
    """With one block per epoch, the vectors are those of gensim on the same documents."""
    settings = PretrainSettings(backbone="word2vec", hidden_size=8, epochs=1, seed=2)
    run = pretrain(data, tmp_path / "run", settings=settings)
    contents = load_folder(run)
    tokenizer, corpus = Tokenizer.from_folder(data), Corpus.open(data)
    texts = [[tokenizer.piece(number) for number in ids.tolist()] for block in blocks(corpus, 2) for ids in block]
    counts = count_pieces(corpus, tokenizer.size)
    theirs = Word2Vec(vector_size=8, window=5, min_count=1, sg=1, workers=1, alpha=0.025, min_alpha=1e-4, seed=2,
                      sorted_vocab=0, negative=5, sample=1e-3)  # fmt: skip
    theirs.build_vocab_from_freq(
        {tokenizer.piece(number): int(counts[number]) for number in np.flatnonzero(counts).tolist()}
    )
    theirs.train(texts, total_examples=len(texts), total_words=int(counts.sum()), epochs=1)
    table = contents.model.token_table.weight.detach().numpy()
    for number in np.flatnonzero(counts).tolist():
        np.testing.assert_array_equal(table[number], theirs.wv[tokenizer.piece(number)])


def test_budgets_in_steps_and_hours(data: Path, tmp_path: Path) -> None:
    for name in STATIC_BACKBONES:
        settings = PretrainSettings(backbone=name, hidden_size=4, steps=2, batch_size=4, max_length=16)
        results = pretrain(data, tmp_path / f"{name}-steps", settings=settings) / "eval_results.json"
        assert json.loads(results.read_text(encoding="utf-8"))["tokens_seen"] >= 128
        timed = PretrainSettings(backbone=name, hidden_size=4, hours=1e-4)
        pretrain(data, tmp_path / f"{name}-hours", settings=timed)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"backbone": "word2vec", "masking": "word"},
            "masking is word, but it does not apply to the backbone word2vec",
        ),
        ({"backbone": "glove", "layers": 3}, "layers is 3, but it does not apply to the backbone glove"),
        ({"backbone": "glove", "window": 0}, "window is 0; expected at least 1, and the backbone word2vec or glove"),
        ({"epochs": 3}, "epochs is 3; expected at least 1, and the backbone word2vec or glove"),
    ],
)
def test_settings_that_do_not_apply_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PretrainSettings(**values)


def test_what_does_not_apply_is_refused(data: Path, base: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="word2vec is trained from scratch by one process: omit model"):
        pretrain(data, tmp_path / "run", model=base, settings=SETTINGS)
    with pytest.raises(ConfigError, match="cannot be planned"):
        plan(data, settings=SETTINGS)
    names: list[BackboneName] = ["word2vec", "glove"]
    assert [PretrainSettings(**read_recipe(name)).backbone for name in names] == names


def test_missing_gensim_is_reported_before_a_folder_is_created(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **more: Any) -> Any:
        if name.startswith("gensim"):
            raise ImportError(name)
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        ConfigError, match=r"word2vec needs gensim; install it with: pip install 'cloze-bert\[vectors\]'"
    ):
        pretrain(data, tmp_path / "run", settings=SETTINGS)
    assert not (tmp_path / "run").exists()
