"""A survey: every head of a model over a corpus, with scores, nulls, labels and examples.

Layers and heads count from zero, as in ``Attention.weights``. Dimensions: L layers, A heads, T tokens.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from cloze.errors import RequestError
from cloze.inspect.patterns import PATTERNS, Layout, Pattern, make_layout
from cloze.inspect.relations import Groups, Measure, Relatedness, influences, measure_of, strongest
from cloze.inspect.scoring import Scores, Tally, main_label, passing
from cloze.inspect.sequences import Example, Sample, best_sequences, draw_samples, make_example, shown_names
from cloze.inspect.settings import FEWEST_SEQUENCES, HeadSettings
from cloze.model.batch import collate
from cloze.predict.batching import batches
from cloze.predict.model import Model
from cloze.progress import Progress, Silent
from cloze.text import Encoding


@dataclass(frozen=True)
class HeadReport:
    """What is said of one head; all ``labels`` that hold, the strongest first, which is ``label``."""

    layer: int
    head: int
    labels: tuple[str, ...]
    examples: tuple[Example, ...]

    @property
    def label(self) -> str:
        """The one label that describes it best."""
        return main_label(self.labels)


@dataclass(frozen=True)
class Survey:
    """What a survey found; the columns of ``scores`` are the heads in the order of ``reports``."""

    layers: int
    heads: int
    settings: HeadSettings
    scores: Scores
    reports: tuple[HeadReport, ...]
    sequences: int
    tokens: int
    measure: Measure
    measured: int  # sequences on which the words that predict were measured

    @property
    def labels(self) -> list[list[str]]:
        """The label of every head, by layer."""
        names = [report.label for report in self.reports]
        return [names[start : start + self.heads] for start in range(0, len(names), self.heads)]

    @property
    def counts(self) -> dict[str, int]:
        """How many heads bear each label, among others or alone; patterns that no head has are there with 0."""
        found = Counter(label for report in self.reports for label in report.labels)
        return {name: found[name] for name in (*PATTERNS, "broad")} | {
            "mixed": sum(not report.labels for report in self.reports)
        }

    @property
    def unmeasured(self) -> list[Pattern]:
        """Patterns for which the corpus had no targets."""
        return [name for name, row in zip(PATTERNS, self.scores.score, strict=True) if np.isnan(row).all()]


def survey_heads(
    model: Model,
    documents: Iterable[Sequence[str]],
    settings: HeadSettings | None = None,
    *,
    groups: Groups | None = None,
    progress: Progress | None = None,
) -> Survey:
    """Score every head over documents, which are lists of paragraphs; ``groups`` are words that are related."""
    settings, progress = settings or HeadSettings(), progress or Silent()
    if model.bert.reader is not None:
        raise RequestError("this model reads frozen states, whose heads are those of its base; survey the base")
    samples = draw_samples(
        documents,
        model.tokenizer,
        count=settings.sequences,
        length=settings.length,
        paired=model.bert.config.segments > 1,
        seed=settings.seed,
    )
    samples.sort(key=lambda sample: len(sample.encoding.ids))  # the order in which batches take them
    layouts, measured = lay_out(model, samples, settings, groups, progress)
    tally = Tally(settings)
    for index, weights in attentions(model, samples):
        tally.add(weights, layouts[index])
        progress.advance("sequences", index + 1, len(samples))
    return _report(model, samples, layouts, tally, measured)


def lay_out(
    model: Model, samples: Sequence[Sample], settings: HeadSettings, groups: Groups | None, progress: Progress
) -> tuple[list[Layout], int]:
    """What the patterns need to know of each sequence, and on how many of them prediction was measured."""
    vectors = model.bert.encoder.embeddings.token.weight.detach().float().cpu().numpy()
    encodings = [sample.encoding for sample in samples]
    related = Relatedness(vectors, encodings, settings.related_share, groups, settings.seed)
    chosen = _spread(encodings, settings)
    predictive = {}
    for done, index in enumerate(chosen, start=1):
        predictive[index] = strongest(influences(model, encodings[index]), settings.predictive_top)
        progress.advance("words that predict", done, len(chosen))
    layouts = [
        make_layout(sample.encoding, related.matrix(sample.encoding, sample.words), predictive.get(index))
        for index, sample in enumerate(samples)
    ]
    return layouts, len(chosen)


@torch.inference_mode()
def attentions(model: Model, samples: Sequence[Sample]) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield the index of each sequence and the attention of all heads in it, (L A, T, T), the shortest first."""
    encodings = [sample.encoding for sample in samples]
    for indices in batches([len(encoding.ids) for encoding in encodings]):
        batch = collate([encodings[index] for index in indices], model.tokenizer.pad_id, model.device)
        output = model.bert.encoder(batch.ids, batch.segments, batch.mask, keep_attentions=True)
        whole = torch.cat(output.attentions, 1).float().cpu().numpy()  # L of (B, A, T, T) -> (B, L A, T, T)
        for index, weights in zip(indices, whole, strict=True):
            length = len(encodings[index].ids)
            yield index, weights[:, :length, :length]


def agreement(first: Survey, second: Survey) -> float:
    """The share of heads that bear the same label in two surveys of one model."""
    pairs = zip(first.reports, second.reports, strict=True)
    return float(np.mean([one.label == other.label for one, other in pairs]))


def _spread(encodings: Sequence[Encoding], settings: HeadSettings) -> list[int]:
    """Sequences to measure prediction on: of those that are short enough, some of every length."""
    short = [index for index, one in enumerate(encodings) if len(one.ids) <= settings.predictive_length]
    count = settings.predictive_sequences
    among = short if len(short) >= min(count, FEWEST_SEQUENCES) else list(range(min(count, len(encodings))))
    places = np.linspace(0, len(among) - 1, min(count, len(among))).round().astype(int)
    return [among[place] for place in places]


def _report(model: Model, samples: Sequence[Sample], layouts: Sequence[Layout], tally: Tally, measured: int) -> Survey:
    """Put the parts together."""
    config, scores = model.bert.config, tally.finish()
    labels = passing(scores, tally.settings)
    chosen = [
        [(name, index) for name in names for index in best_sequences(tally, head, name, tally.settings.examples)]
        for head, names in enumerate(shown_names(labels, scores))
    ]
    shown = sorted({index for pairs in chosen for _, index in pairs})
    again = attentions(model, [samples[index] for index in shown])
    weights = {shown[place]: one.copy() for place, one in again}  # a part of its batch's, which it would hold
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
        settings=tally.settings,
        scores=scores,
        reports=reports,
        sequences=len(samples),
        tokens=sum(len(sample.encoding.ids) for sample in samples),
        measure=measure_of(model),
        measured=measured,
    )
