"""Survey the attention heads of a model over a corpus: scores, null distributions, labels and examples.

Sequences are drawn from documents: pairs of neighbouring sentences, as in pre-training, or single sentences for models
with one segment. The sequences that illustrate a head's labels best become its examples.

Layers and heads count from zero, as in ``Attention.weights``. Dimensions: B sequences, L layers, A heads, K heads of
all layers, P patterns, S sequences, T tokens.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from cloze.errors import DataError, RequestError
from cloze.inspect import FEWEST_SEQUENCES, HeadSettings
from cloze.inspect.patterns import (
    PATTERNS,
    Layout,
    Pattern,
    ScoreAccumulator,
    Scores,
    assign_labels,
    main_label,
    make_layout,
    targets,
)
from cloze.inspect.relations import (
    InfluenceMeasure,
    Relatedness,
    WordGroups,
    influence_measure,
    masking_influences,
    top_influences,
)
from cloze.model.batch import batches, collate
from cloze.predict.model import Model
from cloze.predict.results import row_entropy
from cloze.progress import Progress, Silent
from cloze.text import Encoding, Tokenizer, split_sentences
from cloze.text.encoding import Word

# Draw from this many paragraphs per requested sequence, since the first page of a book does not represent the book.
_PARAGRAPHS_PER_SEQUENCE = 20
# With fewer ordinary tokens, a head has too few tokens to attend to.
_FEWEST_TOKENS = 6
# Added to the number of targets when ranking examples, because one hit out of one is weaker evidence than nine out of
# ten.
_SMOOTHING = 2.0


@dataclass(frozen=True)
class Sample:
    """One encoded sequence, its words and its texts."""

    text: str
    pair: str | None
    encoding: Encoding
    words: Sequence[Word]


def draw_samples(
    documents: Iterable[Sequence[str]], tokenizer: Tokenizer, *, count: int, length: int, paired: bool, seed: int
) -> list[Sample]:
    """Draw sequences from documents.

    Every sequence of the first documents is drawn with the same probability.

    Args:
        documents: Lists of paragraphs.
        tokenizer: The model's tokenizer.
        count: Number of sequences; fewer if the text has no more.
        length: Maximum tokens per sequence.
        paired: Draw pairs of neighbouring sentences; single sentences otherwise, or if the text has too few pairs.
        seed: Random seed.

    Raises:
        DataError: The text has fewer than ``FEWEST_SEQUENCES`` usable sequences.
    """
    sentences = [
        [sentence for paragraph in document for sentence in split_sentences(paragraph)]
        for document in _first_documents(documents, count)
    ]
    pairs: list[tuple[str, str | None]] = [
        (document[index], document[index + 1]) for document in sentences for index in range(0, len(document) - 1, 2)
    ]
    if not paired or len(pairs) < FEWEST_SEQUENCES:
        pairs = [(sentence, None) for document in sentences for sentence in document]
    length = min(length, tokenizer.max_length)
    samples: list[Sample] = []
    for index in np.random.default_rng(seed).permutation(len(pairs)):
        text, pair = pairs[index]
        encoding = tokenizer(text, pair, max_length=length)
        if sum(source is not None for source in encoding.sources) >= _FEWEST_TOKENS:
            samples.append(Sample(text, pair, encoding, tokenizer.words(encoding, text, pair)))
        if len(samples) == count:
            break
    if len(samples) < FEWEST_SEQUENCES:
        raise DataError(
            f"{len(samples)} sequences of {_FEWEST_TOKENS} tokens or more in the text; "
            f"expected at least {FEWEST_SEQUENCES}, and hundreds are better: give more text"
        )
    return samples


def _first_documents(documents: Iterable[Sequence[str]], count: int) -> Iterator[Sequence[str]]:
    """Yield documents until they have enough paragraphs together; the last one is truncated."""
    remaining = count * _PARAGRAPHS_PER_SEQUENCE
    for document in documents:
        paragraphs = list(islice(document, remaining))
        yield paragraphs
        remaining -= len(paragraphs)
        if remaining <= 0:
            return


@dataclass(frozen=True)
class Example:
    """One token of a sequence and the attention of one head from it."""

    pattern: str  # the illustrated label; for a head without labels, the pattern with the highest strength
    tokens: tuple[str, ...]
    segments: tuple[int, ...]
    origin: int  # index of the attending token
    weights: tuple[float, ...]  # attention from it to each token
    targets: tuple[int, ...]  # the pattern's targets; empty for broad attention
    share: float  # fraction of the attention on the targets


def example_labels(labels: Sequence[tuple[str, ...]], scores: Scores) -> list[tuple[str, ...]]:
    """Return the labels to illustrate for each head: its own, or the pattern with the highest strength."""
    nearest = np.nan_to_num(scores.strength, nan=-np.inf).argmax(0)
    return [names or (PATTERNS[nearest[head]],) for head, names in enumerate(labels)]


def best_sequences(accumulator: ScoreAccumulator, head: int, name: str, count: int) -> list[int]:
    """Return the indices of the sequences that illustrate a head's label best, best first."""
    if name in PATTERNS:
        pattern = PATTERNS.index(name)
        masses, counts = accumulator.masses[:, pattern, head], accumulator.counts[:, pattern]
    else:
        masses, counts = accumulator.evenness[:, head], accumulator.tokens
    order = np.argsort(-masses / (counts + _SMOOTHING), kind="stable")[:count]
    return [int(index) for index in order if counts[index] > 0]


def make_example(weights: NDArray[np.float32], sample: Sample, layout: Layout, name: str) -> Example:
    """Build an example from the token that illustrates a label best.

    Args:
        weights: The attention of one head, (T, T).
        sample: The sequence.
        layout: Its layout.
        name: The label.
    """
    has_targets = name in PATTERNS
    pattern_targets = targets(layout)[PATTERNS.index(name)] if has_targets else np.zeros_like(layout.related)
    shares = (weights * pattern_targets).sum(-1)
    clarity = shares if has_targets else row_entropy(weights)
    origin = int(np.where(layout.ordinary, clarity, -1.0).argmax())
    return Example(
        pattern=name,
        tokens=tuple(sample.encoding.tokens),
        segments=tuple(sample.encoding.segments),
        origin=origin,
        weights=tuple(round(float(weight), 4) for weight in weights[origin]),
        targets=tuple(int(index) for index in np.flatnonzero(pattern_targets[origin])),
        share=round(float(shares[origin]), 4),
    )


@dataclass(frozen=True)
class HeadReport:
    """The labels of one head, strongest first, with examples."""

    layer: int
    head: int
    labels: tuple[str, ...]
    examples: tuple[Example, ...]

    @property
    def label(self) -> str:
        """Return the strongest label, or "mixed"."""
        return main_label(self.labels)


@dataclass(frozen=True)
class Survey:
    """The results of a survey; the columns of ``scores`` are the heads in the order of ``reports``."""

    layers: int
    heads: int
    settings: HeadSettings
    scores: Scores
    reports: tuple[HeadReport, ...]
    sequences: int
    tokens: int
    measure: InfluenceMeasure
    measured: int  # sequences on which predictive words were measured

    @property
    def labels(self) -> list[list[str]]:
        """Return the label of every head, by layer."""
        names = [report.label for report in self.reports]
        return [names[start : start + self.heads] for start in range(0, len(names), self.heads)]

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of heads per label, including labels that no head has."""
        heads_by_label = Counter(label for report in self.reports for label in report.labels)
        return {name: heads_by_label[name] for name in (*PATTERNS, "broad")} | {
            "mixed": sum(not report.labels for report in self.reports)
        }

    @property
    def unmeasured(self) -> list[Pattern]:
        """Return the patterns for which the corpus had no targets."""
        return [name for name, row in zip(PATTERNS, self.scores.score, strict=True) if np.isnan(row).all()]


def survey_heads(
    model: Model,
    documents: Iterable[Sequence[str]],
    settings: HeadSettings | None = None,
    *,
    groups: WordGroups | None = None,
    progress: Progress | None = None,
) -> Survey:
    """Score and label every attention head over a corpus.

    Args:
        model: The model.
        documents: Lists of paragraphs.
        settings: How heads are scored.
        groups: Words that always count as related, from ``read_related``.
        progress: Receives the progress.

    Raises:
        RequestError: The model is a head on the frozen states of another model.
        DataError: The documents have too few sequences.
    """
    settings, progress = settings or HeadSettings(), progress or Silent()
    if model.bert.reader is not None:
        raise RequestError(
            "this model uses the frozen states of a base model, which has the attention heads; survey the base"
        )
    samples = draw_samples(
        documents,
        model.tokenizer,
        count=settings.sequences,
        length=settings.max_length,
        paired=model.bert.config.segments > 1,
        seed=settings.seed,
    )
    samples.sort(key=lambda sample: len(sample.encoding.ids))  # the order in which batches are built
    layouts, measured = build_layouts(model, samples, settings, groups, progress)
    accumulator = ScoreAccumulator(settings)
    for index, weights in iter_attentions(model, samples):
        accumulator.add(weights, layouts[index])
        progress.advance("sequences", index + 1, len(samples))
    return _report(model, samples, layouts, accumulator, measured)


def build_layouts(
    model: Model, samples: Sequence[Sample], settings: HeadSettings, groups: WordGroups | None, progress: Progress
) -> tuple[list[Layout], int]:
    """Return the layout of every sequence, and the number of sequences on which predictive words were measured."""
    vectors = model.bert.token_table.weight.detach().float().cpu().numpy()
    encodings = [sample.encoding for sample in samples]
    related = Relatedness(vectors, encodings, settings.related_share, groups, settings.seed)
    measured = _measured_sequences(encodings, settings)
    predictive = {}
    for done, index in enumerate(measured, start=1):
        predictive[index] = top_influences(masking_influences(model, encodings[index]), settings.predictive_top)
        progress.advance("predictive words", done, len(measured))
    layouts = [
        make_layout(sample.encoding, related.matrix(sample.encoding, sample.words), predictive.get(index))
        for index, sample in enumerate(samples)
    ]
    return layouts, len(measured)


@torch.inference_mode()
def iter_attentions(model: Model, samples: Sequence[Sample]) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield the index of each sequence and the attention of all heads, (L A, T, T), shortest sequences first."""
    encodings = [sample.encoding for sample in samples]
    for indices in batches([len(encoding.ids) for encoding in encodings]):
        batch = collate([encodings[index] for index in indices], model.tokenizer.pad_id, model.device)
        output = model.bert.encode(batch.ids, batch.segments, batch.mask, keep_attentions=True)
        attention = torch.cat(output.attentions, 1).float().cpu().numpy()  # L of (B, A, T, T) -> (B, L A, T, T)
        for index, weights in zip(indices, attention, strict=True):
            length = len(encodings[index].ids)
            yield index, weights[:, :length, :length]


def agreement(first: Survey, second: Survey) -> float:
    """Return the fraction of heads with the same label in two surveys of one model."""
    pairs = zip(first.reports, second.reports, strict=True)
    return float(np.mean([report.label == other.label for report, other in pairs]))


def _measured_sequences(encodings: Sequence[Encoding], settings: HeadSettings) -> list[int]:
    """Choose the sequences on which predictive words are measured: short ones, evenly spread over the lengths."""
    short = [index for index, encoding in enumerate(encodings) if len(encoding.ids) <= settings.predictive_length]
    count = settings.predictive_sequences
    candidates = short if len(short) >= min(count, FEWEST_SEQUENCES) else list(range(min(count, len(encodings))))
    ranks = np.linspace(0, len(candidates) - 1, min(count, len(candidates))).round().astype(int)
    return [candidates[rank] for rank in ranks]


def _report(
    model: Model,
    samples: Sequence[Sample],
    layouts: Sequence[Layout],
    accumulator: ScoreAccumulator,
    measured: int,
) -> Survey:
    """Label the heads, choose their examples and build the survey."""
    config, settings, scores = model.bert.config, accumulator.settings, accumulator.finish()
    labels = assign_labels(scores, settings)
    chosen = [
        [
            (name, index)
            for name in names
            for index in best_sequences(accumulator, head, name, accumulator.settings.examples)
        ]
        for head, names in enumerate(example_labels(labels, scores))
    ]
    shown = sorted({index for pairs in chosen for _, index in pairs})
    # Copied, because a view would keep the attention of its whole batch in memory.
    second_pass = iter_attentions(model, [samples[index] for index in shown])
    weights = {shown[rank]: attention.copy() for rank, attention in second_pass}
    reports = tuple(
        HeadReport(
            *divmod(number, config.heads),
            labels[number],
            tuple(
                make_example(weights[index][number], samples[index], layouts[index], name)
                for name, index in chosen[number]
            ),
        )
        for number in range(config.layers * config.heads)
    )
    return Survey(
        layers=config.layers,
        heads=config.heads,
        settings=settings,
        scores=scores,
        reports=reports,
        sequences=len(samples),
        tokens=sum(len(sample.encoding.ids) for sample in samples),
        measure=influence_measure(model),
        measured=measured,
    )
