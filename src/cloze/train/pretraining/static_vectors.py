"""Static vectors from a prepared corpus: skip-gram with negative sampling (word2vec) and GloVe.

Both learn one vector per word piece from the pieces around it. Skip-gram (Mikolov et al., 2013) predicts the pieces in
a window from the piece in its middle, against a few random pieces; ``gensim`` trains it. GloVe (Pennington et al.,
2014) counts how often pieces occur within a window, weighted by 1 / distance, and fits dot products to the logarithms
of the counts by weighted least squares:

    sum over pairs of f(X) (w_i . c_j + b_i + d_j - log X_ij)^2,   f(X) = min(1, (X / 100) ^ 0.75)

The vectors are w + c. Deviations: AdaGrad updates batches of pairs instead of single pairs. The number of pairs in
memory is bounded; beyond it, the rarest are dropped.

The amount of training is a number of epochs, of tokens (``steps`` of ``batch_size`` x ``max_length``, as for other
backbones), or of hours. A run that is interrupted starts again from the beginning.

Dimensions: V vocabulary, H vector size, N tokens of a block, P pairs.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cloze import __version__
from cloze.checkpoint import EmbeddingSettings, ModelFolder
from cloze.corpus.settings import LONGEST
from cloze.corpus.shards import Corpus, read_manifest
from cloze.errors import ConfigError
from cloze.model.config import preset
from cloze.model.static import StaticConfig, StaticVectors
from cloze.progress import Progress
from cloze.text import Tokenizer
from cloze.train.run import Run, open_run
from cloze.train.settings import PretrainSettings

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

# Tokens that are processed together. gensim truncates lists of more than 10,000 words.
_BLOCK, _LIST = 200_000, 10_000
# Defaults of the original programs: epochs, window, learning rate.
_DEFAULTS = {"word2vec": (5, 5, 0.025), "glove": (15, 10, 0.05)}
_NEGATIVES, _SUBSAMPLING = 5, 1e-3
# GloVe: pairs in memory (16 bytes each), pairs per update, and the weighting function.
MOST_PAIRS, _UPDATE = 20_000_000, 4096
_FULL_COUNT, _POWER = 100.0, 0.75
# With a time limit, the share of it that GloVe may spend on counting.
_COUNTING = 1 / 3


@dataclass(frozen=True)
class Budget:
    """When the training ends: after a number of tokens, or of seconds."""

    tokens: float
    seconds: float | None
    start: float

    @classmethod
    def of(cls, settings: PretrainSettings, corpus: Corpus) -> "Budget":
        """Return the budget of a run that starts now."""
        epochs, _, _ = _DEFAULTS[settings.backbone]
        tokens = float((settings.epochs or epochs) * corpus.token_count)
        if settings.steps is not None:
            tokens = float(settings.steps * settings.batch_size * settings.max_length)
        seconds = None if settings.hours is None else 3600 * settings.hours
        return cls(tokens, seconds, time.monotonic())

    def progress(self, tokens: float) -> float:
        """Return the completed fraction of the training."""
        if self.seconds is not None:
            return min(1.0, self.elapsed / self.seconds)
        return min(1.0, tokens / self.tokens)

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.start


def pretrain_static(
    data: Path, out: Path, recorded: Mapping[str, Any], settings: PretrainSettings, progress: Progress, *, fresh: bool
) -> Path:
    """Train static vectors on a prepared corpus; see ``pretrain``."""
    if settings.backbone == "word2vec":
        require_gensim()
    with open_run(out, recorded, fresh=fresh) as run:
        if not run.report_finished(progress):
            run.rewind(0)  # an interrupted training starts again
            train_static(run, data, Tokenizer.from_folder(data), settings, progress)
        return run.folder


def train_static(run: Run, data: Path, tokenizer: Tokenizer, settings: PretrainSettings, progress: Progress) -> None:
    """Train the vectors of a run and write its model folder."""
    corpus = Corpus.open(data)
    train = _train_word2vec if settings.backbone == "word2vec" else _train_glove
    vectors, facts = train(corpus, tokenizer, settings, run, progress)
    config = StaticConfig(vocab_size=tokenizer.size, hidden_size=vectors.shape[1], pad_id=tokenizer.pad_id)
    model = StaticVectors(config)
    with torch.no_grad():
        model.embedding.weight.copy_(torch.from_numpy(vectors))
    run.write_results(facts)
    card = _card(model, tokenizer, settings, facts, read_manifest(data))
    embedding = EmbeddingSettings(pooling="mean_words")
    run.finish(ModelFolder(model.eval(), tokenizer.with_max_length(LONGEST), embedding=embedding, card=card))


def vector_size(settings: PretrainSettings) -> int:
    """Return the size of the vectors: ``hidden_size``, or that of the preset."""
    return settings.hidden_size or preset(settings.preset).hidden_size


def require_gensim() -> None:
    """Raise ``ConfigError`` if gensim is not installed."""
    try:
        import gensim  # noqa: F401
    except ImportError as error:
        raise ConfigError("word2vec needs gensim; install it with: pip install 'cloze-bert[vectors]'") from error


def blocks(corpus: Corpus, seed: int, size: int = _BLOCK) -> Iterator[list[Ids]]:
    """Yield the documents of one epoch in random order, in blocks of about ``size`` tokens."""
    block: list[Ids] = []
    count = 0
    for document in np.random.default_rng(seed).permutation(corpus.document_count).tolist():
        first, last = corpus.documents[document], corpus.documents[document + 1]
        ids = np.asarray(corpus.read(int(corpus.sentences[first]), int(corpus.sentences[last])), np.int64)
        block.append(ids)
        count += len(ids)
        if count >= size:
            yield block
            block, count = [], 0
    if block:
        yield block


def count_pieces(corpus: Corpus, size: int) -> Ids:
    """Return how often each piece occurs: (V,)."""
    counts = np.zeros(size, np.int64)
    for start in range(0, corpus.token_count, 2**20):
        counts += np.bincount(corpus.read(start, min(start + 2**20, corpus.token_count)), minlength=size)
    return counts


def _train_word2vec(
    corpus: Corpus, tokenizer: Tokenizer, settings: PretrainSettings, run: Run, progress: Progress
) -> tuple[Floats, dict[str, float]]:
    """Return the vectors of skip-gram with negative sampling, (V, H), zero for pieces that do not occur."""
    from gensim.models import Word2Vec

    _, window, usual = _DEFAULTS["word2vec"]
    rate = _rate(settings, usual)
    counts = count_pieces(corpus, tokenizer.size)
    # One worker: with several, the order of updates and so the vectors would differ between runs.
    model = Word2Vec(
        vector_size=vector_size(settings), window=settings.window or window, min_count=1, sg=1, hs=0, workers=1,
        negative=_NEGATIVES, sample=_SUBSAMPLING, alpha=rate, min_alpha=rate / 250, seed=settings.seed, sorted_vocab=0,
    )  # fmt: skip
    pieces = np.array(tokenizer.pieces, object)
    model.build_vocab_from_freq({pieces[number]: int(counts[number]) for number in np.flatnonzero(counts)})
    budget, seen, number = Budget.of(settings, corpus), 0, 0
    while budget.progress(seen) < 1:
        for block in blocks(corpus, settings.seed + number):
            done, tokens = budget.progress(seen), sum(map(len, block))
            # By the clock, the rate at the end of a block is not known: it is that of its start.
            after = done if budget.seconds is not None else budget.progress(seen + tokens)
            texts = [pieces[ids[at : at + _LIST]].tolist() for ids in block for at in range(0, len(ids), _LIST)]
            rates = (max(rate * (1 - at), rate / 250) for at in (done, after))
            start_alpha, end_alpha = rates
            model.train(
                texts, total_examples=len(texts), total_words=tokens, epochs=1, start_alpha=start_alpha,
                end_alpha=end_alpha,
            )  # fmt: skip
            seen += tokens
            _report(run, progress, budget, seen)
            if budget.progress(seen) >= 1:
                break
        number += 1
    vectors = np.zeros((tokenizer.size, model.vector_size), np.float32)
    for number in np.flatnonzero(counts).tolist():
        vectors[number] = model.wv[pieces[number]]
    return vectors, _facts(budget, seen)


def _train_glove(
    corpus: Corpus, tokenizer: Tokenizer, settings: PretrainSettings, run: Run, progress: Progress
) -> tuple[Floats, dict[str, float]]:
    """Return the vectors of GloVe, (V, H), zero for pieces that do not occur."""
    epochs, window, usual = _DEFAULTS["glove"]
    budget = Budget.of(settings, corpus)
    counter, seen = PairCounter(tokenizer.size, settings.window or window), 0
    for block in blocks(corpus, settings.seed):
        counter.add(block)
        seen += sum(map(len, block))
        progress.advance("counting pairs (tokens)", seen, corpus.token_count)
        late = budget.seconds is not None and budget.elapsed > _COUNTING * budget.seconds
        if late or (settings.steps is not None and seen >= budget.tokens):
            break
    first, second, counts = counter.pairs()
    # With a number of tokens, the pairs are read as often as the tokens would have been.
    rounds = settings.epochs or epochs
    if settings.steps is not None:
        rounds = max(1, round(budget.tokens / seen))
    fit = GloveFit(tokenizer.size, vector_size(settings), _rate(settings, usual), settings.seed)
    number, loss = 0, float("nan")
    while (budget.progress(0) < 1) if budget.seconds is not None else (number < rounds):
        loss = fit.epoch(first, second, counts, until=None if budget.seconds is None else budget.start + budget.seconds)
        number += 1
        run.log(number, seconds=round(budget.elapsed, 1), tokens_seen=seen, loss=loss)
        progress.advance("fitting (epochs)", number, rounds if budget.seconds is None else None, loss=loss)
    vectors = fit.vectors()
    vectors[count_pieces(corpus, tokenizer.size) == 0] = 0.0
    return vectors, _facts(budget, seen) | {"pairs": float(len(counts)), "loss": loss}


class PairCounter:
    """Counts of pairs of pieces within a window, weighted by 1 / distance; symmetric, so i <= j is stored."""

    def __init__(self, size: int, window: int, most: int = MOST_PAIRS) -> None:
        self._size, self._window, self._most = size, window, most
        self._keys, self._counts = np.zeros(0, np.int64), np.zeros(0, np.float64)
        self._waiting: list[tuple[Ids, NDArray[np.float64]]] = []

    def add(self, documents: list[Ids]) -> None:
        """Count the pairs of a block; pairs do not cross documents."""
        ids = np.concatenate(documents)  # (N,)
        owner = np.repeat(np.arange(len(documents)), [len(document) for document in documents])
        keys, weights = [], []
        for distance in range(1, self._window + 1):
            same = owner[:-distance] == owner[distance:]
            left, right = ids[:-distance][same], ids[distance:][same]
            keys.append(np.minimum(left, right) * self._size + np.maximum(left, right))
            weights.append(np.full(len(left), 1 / distance))
        self._waiting.append(_sum_equal(np.concatenate(keys), np.concatenate(weights)))
        # Merged once there is as much to merge as is stored, so that every pair is merged a few times only.
        if sum(len(keys) for keys, _ in self._waiting) > max(len(self._keys), 2**20):
            self._merge()

    def _merge(self) -> None:
        parts = [(self._keys, self._counts), *self._waiting]
        keys, counts = _sum_equal(np.concatenate([part[0] for part in parts]), np.concatenate([p[1] for p in parts]))
        if len(keys) > self._most:
            kept = np.sort(np.argpartition(-counts, self._most)[: self._most])
            keys, counts = keys[kept], counts[kept]
        self._keys, self._counts, self._waiting = keys, counts, []

    def pairs(self) -> tuple[Ids, Ids, NDArray[np.float64]]:
        """Return both pieces of each pair and its count, each (P,)."""
        self._merge()
        return self._keys // self._size, self._keys % self._size, self._counts


def _sum_equal(keys: Ids, weights: NDArray[np.float64]) -> tuple[Ids, NDArray[np.float64]]:
    """Return the distinct keys in ascending order with the sums of their weights."""
    distinct, places = np.unique(keys, return_inverse=True)
    return distinct, np.bincount(places, weights, minlength=len(distinct)).astype(np.float64, copy=False)


class GloveFit:
    """The parameters of GloVe and their AdaGrad accumulators."""

    def __init__(self, size: int, width: int, rate: float, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._rate = rate
        # Tables of words and contexts, (V, H), and their biases, (V, 1); as in the original, uniform in +-0.5 / H.
        self.words, self.contexts, self.word_biases, self.context_biases = (
            (torch.rand(size, columns, generator=self._generator) - 0.5) / width for columns in (width, width, 1, 1)
        )
        tables = (self.words, self.contexts, self.word_biases, self.context_biases)
        self._sums = {id(table): torch.ones_like(table) for table in tables}  # squared gradients, from 1

    def epoch(self, first: Ids, second: Ids, counts: NDArray[np.float64], until: float | None = None) -> float:
        """Visit all pairs once in random order, or until a time; return the mean weighted squared error."""
        order = torch.randperm(len(counts), generator=self._generator)
        logs, total, seen = torch.from_numpy(np.log(counts)).float(), 0.0, 0
        shares = torch.from_numpy(np.minimum(1.0, (counts / _FULL_COUNT) ** _POWER)).float()
        left, right = torch.from_numpy(first), torch.from_numpy(second)
        for part in torch.split(order, _UPDATE):
            # Counts are symmetric, but stored once: which piece is the context is drawn.
            swapped = torch.rand(len(part), generator=self._generator) < 0.5
            one, other = torch.where(swapped, right[part], left[part]), torch.where(swapped, left[part], right[part])
            total += self._update(one, other, logs[part], shares[part])
            seen += len(part)
            if until is not None and time.monotonic() >= until:
                break
        return total / seen

    def _update(self, words: Tensor, contexts: Tensor, logs: Tensor, shares: Tensor) -> float:
        """Apply one AdaGrad step to a batch of pairs, (P,); return the sum of the weighted squared errors."""
        word, context = self.words[words], self.contexts[contexts]  # (P, H)
        biases = (self.word_biases[words] + self.context_biases[contexts])[:, 0]
        errors = (word * context).sum(1) + biases - logs  # (P,)
        weighted = (shares * errors)[:, None]  # (P, 1), half of the gradient, as in the original code
        for table, rows, gradients in (
            (self.words, words, weighted * context),
            (self.contexts, contexts, weighted * word),
            (self.word_biases, words, weighted),
            (self.context_biases, contexts, weighted),
        ):
            self._descend(table, rows, gradients)
        return float((shares * errors * errors).sum())

    def _descend(self, table: Tensor, rows: Tensor, gradients: Tensor) -> None:
        distinct, places = torch.unique(rows, return_inverse=True)
        summed = gradients.new_zeros(len(distinct), table.shape[1]).index_add_(0, places, gradients)
        squares = self._sums[id(table)]
        squares[distinct] += summed * summed
        table[distinct] -= self._rate * summed / squares[distinct].sqrt()

    def vectors(self) -> Floats:
        """Return the sums of the word and context vectors, (V, H)."""
        summed: Floats = (self.words + self.contexts).numpy()
        return summed


def _rate(settings: PretrainSettings, usual: float) -> float:
    """Return the learning rate: the usual one of the method, unless another one than the default is set."""
    return usual if settings.learning_rate == PretrainSettings.learning_rate else settings.learning_rate


def _report(run: Run, progress: Progress, budget: Budget, seen: int) -> None:
    run.log(seen, seconds=round(budget.elapsed, 1), tokens_seen=seen)
    total = None if budget.seconds is not None else round(budget.tokens)
    progress.advance("training (tokens)", seen if total is None else min(seen, total), total)


def _facts(budget: Budget, seen: int) -> dict[str, float]:
    return {"hours": budget.elapsed / 3600, "tokens_seen": float(seen)}


def _card(
    model: StaticVectors,
    tokenizer: Tokenizer,
    settings: PretrainSettings,
    facts: Mapping[str, float],
    manifest: Mapping[str, Any],
) -> str:
    name = "skip-gram with negative sampling (word2vec)" if settings.backbone == "word2vec" else "GloVe"
    train = manifest["splits"]["train"]
    return (
        f"# {model.title}, size {model.config.hidden_size}\n\n"
        f"Trained with cloze {__version__} by {name}, one vector per word piece.\n\n"
        f"- vectors: {tokenizer.size:,}\n"
        f"- text: {train['tokens']:,} tokens in {train['documents']:,} documents\n"
        f"- training: {facts['hours']:.2f} hours, {int(facts['tokens_seen']):,} tokens read, seed {settings.seed}\n"
    )
