"""Why a model gives an output: integrated gradients summed per word, occlusion, and deletion curves.

The explained function f is the log-odds of a label, log(p / (1 - p)), or the number of a regression. It depends on the
embeddings x of the tokens, which are compared with those of a baseline b: the same sequence with ``[MASK]`` (or
``[PAD]``) in place of every word. Integrated gradients (Sundararajan et al. 2017) attribute to token i

    (x_i - b_i) . integral over a from 0 to 1 of df/dx_i (b + a (x - b))

By the completeness axiom, the attributions sum to f(x) - f(b). The integral is approximated by Gauss-Legendre
quadrature; the number of steps is doubled until the sum is accurate enough, and the remaining difference is reported.

Two checks need no gradients. Occlusion replaces one word at a time by the baseline and measures the change of f. A
deletion curve removes the words in the order of their attributions: the probability should fall faster than in random
order.

Interpolated embeddings belong to no token of the vocabulary. So a batch is computed with a table of embeddings of its
own, one row per token, in place of the model's, and ids that count its rows. Splitting, padding and packing of ids
inside the model then work as usual.

Dimensions: B sequences, T tokens, E embedding width, L outputs of the head.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from cloze.errors import RequestError
from cloze.model import Backbone, HeadName
from cloze.model.batch import batch_limits, collate
from cloze.model.losses import task_logits
from cloze.options import Reference
from cloze.predict.base_model import BaseModel
from cloze.text import Encoding

Floats = NDArray[np.float64]

# The number of steps is doubled from the first to the last until the sum of the attributions is within the tolerance,
# relative to f(x) - f(b) if that is above 1.
FIRST_STEPS, MOST_STEPS, TOLERANCE = 16, 256, 0.01
# Deletion curves: fractions of the words that are removed, and the number of random orders.
FRACTIONS = tuple(step / 10 for step in range(11))
RANDOM_ORDERS = 5
# Tokens per batch with gradients, as a multiple of those of a prediction.
_GRADIENT_BATCH = 4


@dataclass(frozen=True)
class WordAttribution:
    """A word, its position in characters of its text, and how much it adds to the explained output.

    Attributes:
        part: 0 for the text, 1 for the second text of a pair.
        value: Integrated gradients, summed over the word's tokens.
        occlusion: The drop of the output without the word; None unless it was computed.
    """

    text: str
    start: int
    end: int
    part: int
    value: float
    occlusion: float | None = None


@dataclass(frozen=True)
class Explanation:
    """Why a text has a label, or a word or entity its tag.

    Attributes:
        row: Index of the text.
        texts: The text, and the second one of a pair.
        label: The explained label or tag; None for a number.
        span: For tags: start and end of the word or entity in characters.
        words: The words with their attributions.
        output: The log-odds of the label (the mean over the words of an entity), or the number.
        baseline: The output for the baseline.
        steps: Number of steps of the integral.
        deletion: Probability of the label (or the number) with 0, 10, ... 100 % of the words removed, those that
            support the output most first; None unless it was computed.
        random_deletion: The same in random order, averaged over several orders.
    """

    row: int
    texts: tuple[str, ...]
    label: str | None
    span: tuple[int, int] | None
    words: tuple[WordAttribution, ...]
    output: float
    baseline: float
    steps: int
    deletion: tuple[float, ...] | None = None
    random_deletion: tuple[float, ...] | None = None

    @property
    def probability(self) -> float | None:
        """The probability of the label; None for a number."""
        return None if self.label is None else float(_sigmoid(np.array(self.output)))

    @property
    def delta(self) -> float:
        """The convergence delta: the sum of the attributions minus (output - baseline), 0 for an exact integral."""
        return sum(word.value for word in self.words) - (self.output - self.baseline)

    @property
    def agreement(self) -> float | None:
        """Spearman correlation of attributions and occlusion; None without occlusion or with under three words."""
        from scipy.stats import spearmanr  # deferred: slow to import

        drops = [word.occlusion for word in self.words if word.occlusion is not None]
        values = [word.value for word in self.words]
        if len(drops) < 3 or len(set(drops)) < 2 or len(set(values)) < 2:
            return None
        return float(spearmanr(values, drops).statistic)


class Place(NamedTuple):
    """The tokens of a word in one of the windows of a text."""

    window: int
    start: int
    stop: int


@dataclass(frozen=True)
class Subject:
    """An output to explain: the windows that it is computed from, the words in them, and the function."""

    row: int
    texts: tuple[str, ...]
    label: str | None
    span: tuple[int, int] | None
    head: HeadName
    windows: Sequence[Encoding]
    words: Sequence[WordAttribution]  # with a value of 0
    places: Sequence[Sequence[Place]]  # the tokens of each word
    output: Callable[[Sequence[Tensor]], Tensor]  # outputs of the head for each window -> f, a scalar


# -- the computation ---------------------------------------------------------------------------------------------------


class _Head(nn.Module):
    """A head on its backbone, as one module, so that the embedding table can be replaced for one call."""

    def __init__(self, bert: Backbone) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, head: HeadName, ids: Tensor, segments: Tensor, mask: Tensor | None) -> Tensor:
        """Return the logits of a head: (B, L) of a pooled head, (B, T, L) of a head on tokens."""
        if head == "sequence":
            logits: Tensor = self.bert.heads[head](self.bert.head_input(head, ids, segments, mask))
            return logits.float()
        return task_logits(self.bert, head, self.bert(ids, segments, mask).last, ()).float()


@dataclass(frozen=True)
class _Row:
    """One sequence whose ids are rows of the batch's own table."""

    ids: list[int]
    segments: list[int]


@dataclass(frozen=True)
class Explainer:
    """Computes attributions for a model.

    Attributes:
        model: The model.
        reference: The token of the baseline.
    """

    model: BaseModel
    reference: Reference = "mask"

    @cached_property
    def _head(self) -> _Head:
        return _Head(self.model.bert)

    @cached_property
    def _table_name(self) -> str:
        """The name of the token embeddings among the parameters."""
        table = self.model.bert.token_table.weight
        return next(name for name, parameter in self._head.named_parameters() if parameter is table)

    @cached_property
    def _reference_vector(self) -> Tensor:
        """The embedding of the baseline's token, (E,)."""
        tokenizer = self.model.tokenizer
        index = tokenizer.mask_id if self.reference == "mask" else tokenizer.pad_id
        return self.model.bert.token_table.weight.detach()[index]

    def explain(self, subject: Subject, *, check: bool = False) -> Explanation:
        """Explain one output; with ``check``, compute occlusion and deletion curves as well."""
        text = [self.model.bert.token_table.weight.detach()[window.ids] for window in subject.windows]
        baseline = self._remove(subject, text, range(len(subject.words)))
        output, reference = self._outputs(subject, [text, baseline])
        steps, values = FIRST_STEPS, self.integrate(subject, text, baseline, FIRST_STEPS)
        tolerance = TOLERANCE * max(1.0, abs(output - reference))
        while abs(values.sum() - (output - reference)) > tolerance and steps < MOST_STEPS:
            steps *= 2
            values = self.integrate(subject, text, baseline, steps)
        words = [replace(word, value=float(value)) for word, value in zip(subject.words, values, strict=True)]
        explanation = Explanation(
            subject.row, subject.texts, subject.label, subject.span, tuple(words), output, reference, steps
        )
        return self._check(subject, text, explanation) if check and words else explanation

    def integrate(self, subject: Subject, text: list[Tensor], baseline: list[Tensor], steps: int) -> Floats:
        """Return the integrated gradients of each word by Gauss-Legendre quadrature."""
        points, weights = np.polynomial.legendre.leggauss(steps)  # on [-1, 1]
        sums = [torch.zeros_like(window) for window in text]
        for chunk in self._chunks(subject, steps):
            shares = [(float(points[point]) + 1) / 2 for point in chunk]
            variants = [
                [low + share * (high - low) for low, high in zip(baseline, text, strict=True)] for share in shares
            ]
            with torch.enable_grad():
                table, outputs = self._forward(subject, variants, gradients=True)
                scale = torch.tensor([weights[point] / 2 for point in chunk], device=table.device)
                (gradient,) = torch.autograd.grad((torch.stack(outputs) * scale).sum(), table)
            at = self._offset
            for _ in chunk:
                for number, window in enumerate(text):
                    sums[number] += gradient[at : at + len(window)]
                    at += len(window)
        tokens = [
            ((high - low) * total).sum(-1).double().cpu().numpy()
            for low, high, total in zip(baseline, text, sums, strict=True)
        ]
        return np.array([sum(tokens[at.window][at.start : at.stop].sum() for at in word) for word in subject.places])

    @property
    def _offset(self) -> int:
        """The first row of a batch's table that is in use: the row of [PAD], which gets no gradient, is not."""
        return self.model.tokenizer.pad_id + 1

    def _chunks(self, subject: Subject, count: int) -> Iterator[range]:
        """Yield ranges of variants that fit into one batch."""
        tokens = sum(len(window.ids) for window in subject.windows)
        size = max(1, _GRADIENT_BATCH * batch_limits(self.model.device)[0] // tokens)
        yield from (range(start, min(start + size, count)) for start in range(0, count, size))

    def _forward(
        self, subject: Subject, variants: Sequence[list[Tensor]], *, gradients: bool = False
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the batch's table and f of each variant, given as the embeddings of each window."""
        embeddings = [window for variant in variants for window in variant]  # of (T, E)
        unused = embeddings[0].new_zeros(self._offset, embeddings[0].shape[1])
        table = torch.cat([unused, *embeddings]).requires_grad_(gradients)
        rows, at = list[_Row](), self._offset
        for variant in variants:
            for window, vectors in zip(subject.windows, variant, strict=True):
                rows.append(_Row(list(range(at, at + len(vectors))), window.segments))
                at += len(vectors)
        batch = collate(rows, self.model.tokenizer.pad_id, self.model.device)
        arguments = (subject.head, batch.ids, batch.segments, batch.mask)
        logits = functional_call(self._head, {self._table_name: table}, arguments)
        if not bool(torch.isfinite(logits).all()):
            raise RequestError("the scores of this model are not finite numbers; check its training")
        count = len(subject.windows)
        return table, [subject.output(logits[count * index :][:count]) for index in range(len(variants))]

    @torch.inference_mode()
    def _outputs(self, subject: Subject, variants: Sequence[list[Tensor]]) -> list[float]:
        """Return f of each variant."""
        outputs: list[float] = []
        for chunk in self._chunks(subject, len(variants)):
            outputs += [float(one) for one in self._forward(subject, [variants[index] for index in chunk])[1]]
        return outputs

    def _remove(self, subject: Subject, text: list[Tensor], words: Sequence[int]) -> list[Tensor]:
        """Return the embeddings with some words replaced by the baseline."""
        changed = [window.clone() for window in text]
        for word in words:
            for place in subject.places[word]:
                changed[place.window][place.start : place.stop] = self._reference_vector
        return changed

    def _check(self, subject: Subject, text: list[Tensor], explanation: Explanation) -> Explanation:
        """Add occlusion and deletion curves to an explanation."""
        count = len(explanation.words)
        without = self._outputs(subject, [self._remove(subject, text, [word]) for word in range(count)])
        words = [
            replace(word, occlusion=explanation.output - output)
            for word, output in zip(explanation.words, without, strict=True)
        ]
        draw = np.random.default_rng([explanation.row, count])
        orders = [np.argsort([-word.value for word in words], kind="stable")]
        orders += [draw.permutation(count) for _ in range(RANDOM_ORDERS)]
        removed = [order[: round(fraction * count)].tolist() for order in orders for fraction in FRACTIONS]
        outputs = np.array(self._outputs(subject, [self._remove(subject, text, some) for some in removed]))
        curves = (outputs if explanation.label is None else _sigmoid(outputs)).reshape(len(orders), len(FRACTIONS))
        return replace(
            explanation,
            words=tuple(words),
            deletion=tuple(curves[0].tolist()),
            random_deletion=tuple(curves[1:].mean(0).tolist()),
        )


def _sigmoid(values: Floats) -> Floats:
    shares: Floats = 1 / (1 + np.exp(-np.clip(values, -500, 500)))
    return shares


# -- faithfulness ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Faithfulness:
    """Deletion curves averaged over texts, and how much lower the one in order of attribution is.

    Attributes:
        texts: Number of explanations.
        deletion: Mean curve with the words removed in the order of their attributions.
        random_deletion: Mean curve in random order.
        gain: Mean difference of the areas under both curves, with its 95 % interval over texts (bootstrap); above 0,
            the attributions find the words that matter better than chance.
        better: Fraction of the texts with a lower curve than in random order.
        agreement: Mean Spearman correlation with occlusion, over the texts that have one.
    """

    texts: int
    deletion: tuple[float, ...]
    random_deletion: tuple[float, ...]
    gain: tuple[float, float, float]
    better: float
    agreement: float | None


def faithfulness(explanations: Sequence[Explanation]) -> Faithfulness | None:
    """Summarize the deletion curves of explanations that were computed with ``check``; None without any."""
    pairs = [(why.deletion, why.random_deletion) for why in explanations if why.deletion and why.random_deletion]
    if not pairs:
        return None
    curves = np.array(pairs, np.float64)  # (N, 2, fractions)
    gains: Floats = np.asarray(np.trapezoid(curves[:, 1] - curves[:, 0], FRACTIONS, axis=1))
    draws = np.random.default_rng(0).integers(0, len(gains), (2000, len(gains)))
    low, high = np.quantile(gains[draws].mean(1), (0.025, 0.975))
    agreements = [why.agreement for why in explanations if why.agreement is not None]
    means = curves.mean(0)
    return Faithfulness(
        len(pairs),
        tuple(means[0].tolist()),
        tuple(means[1].tolist()),
        (float(gains.mean()), float(low), float(high)),
        float((gains > 0).mean()),
        float(np.mean(agreements)) if agreements else None,
    )
