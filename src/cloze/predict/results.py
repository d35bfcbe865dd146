"""Results of the pre-training heads and of the encoder; those of fine-tuned heads are in ``cloze.tasks``."""

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cloze.tasks.classification.decoding import Label, Labels
from cloze.tasks.tagging.decoding import Tagged
from cloze.text.boundaries import count_characters, count_words

if TYPE_CHECKING:
    from cloze.checkpoint import ModelFolder
    from cloze.predict.base_model import BaseModel
    from cloze.predict.model import Model

_SHOWN_LABELS = 10


class Filled(NamedTuple):
    """A word for a blank, with its probability."""

    token: str
    probability: float


@dataclass(frozen=True)
class FilledTogether:
    """A word for each blank of a text, chosen jointly, and their joint log-probability."""

    tokens: tuple[str, ...]
    log_probability: float
    text: str  # the text with its blanks filled


@dataclass(frozen=True)
class Generated:
    """A continued text, with the log-probability of its new tokens under the model."""

    text: str  # the beginning, as the tokenizer reads it, and the continuation
    continuation: str
    tokens: tuple[str, ...]  # the new tokens
    log_probability: float
    ended: bool  # the model predicted the end of a sequence; otherwise, the number of tokens was reached


@dataclass(frozen=True)
class Score:
    """The score of a text: each token's log-probability, given all other tokens, or all tokens before it.

    The sum is the pseudo-log-likelihood of a masked language model (Salazar et al. 2020), or the log-likelihood of a
    left-to-right model.
    """

    text: str
    tokens: tuple[str, ...]
    log_probabilities: tuple[float, ...]

    @property
    def total(self) -> float:
        """The pseudo-log-likelihood or log-likelihood."""
        return sum(self.log_probabilities, 0.0)

    @property
    def perplexity(self) -> float | None:
        """The (pseudo-)perplexity: exp of the mean negative log-probability of a token; None without tokens."""
        return float(np.exp(-self.total / len(self.tokens))) if self.tokens else None

    @property
    def loss_per_word(self) -> float | None:
        """The negative log-probability per word, which is comparable between vocabularies, unlike that per token."""
        return (0.0 - self.total) / max(1, count_words(self.text)) if self.tokens else None

    @property
    def loss_per_character(self) -> float | None:
        """The negative log-probability per character, without whitespace, in nats; divide by log(2) for bits."""
        return (0.0 - self.total) / max(1, count_characters(self.text)) if self.tokens else None


@dataclass(frozen=True)
class Ranked:
    """A document for a query: its position among the given ones, counted from 0, its score, and the text."""

    index: int
    score: float
    document: str


@dataclass(frozen=True)
class Correction:
    """One correction: the written word, its replacement, its position and the confidence."""

    wrong: str
    right: str
    position: int
    confidence: float


@dataclass(frozen=True)
class Corrected:
    """A text, its corrected form, and the corrections."""

    source: str
    target: str
    corrections: tuple[Correction, ...]

    @property
    def errors(self) -> list[tuple[str, str, int]]:
        """The corrections as triples (wrong, right, position)."""
        return [(correction.wrong, correction.right, correction.position) for correction in self.corrections]


@dataclass(frozen=True)
class Attention:
    """Attention weights, ``weights[layer, head, from, to]``; each row sums to one."""

    tokens: list[str]
    segments: list[int]
    weights: NDArray[np.float32]  # (L, A, T, T)
    # The model and the texts, for views that need more than the weights.
    origin: "tuple[Model, str, str | None] | None" = field(default=None, repr=False, compare=False)

    def block(self, source: int, target: int) -> NDArray[np.float32]:
        """Return the weights from the tokens of one segment to those of another, (L, A, from, to).

        Segments are counted from 0: ``block(0, 1)`` has the weights from the first text to the second.
        """
        segments = np.array(self.segments)
        return self.weights[:, :, segments == source][..., segments == target]

    @property
    def entropy(self) -> NDArray[np.float32]:
        """The entropy of each token's attention in nats, (L, A, T): 0 for one target, log T for uniform weights."""
        return row_entropy(self.weights)

    @property
    def distance(self) -> NDArray[np.float32]:
        """The mean attention distance of each token, in tokens, (L, A, T)."""
        return row_distance(self.weights, np.arange(len(self.tokens)))


def row_entropy(weights: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the entropy of each row in nats: (..., T) -> (...)."""
    entropy: NDArray[np.float32] = -(weights * np.log(np.maximum(weights, 1e-30))).sum(-1)
    return entropy


def row_distance(weights: NDArray[np.float32], positions: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the mean distance in tokens from each row's position: (..., N, T), positions (N,) -> (..., N)."""
    distances = np.abs(positions[:, None] - np.arange(weights.shape[-1]))
    distance: NDArray[np.float32] = (weights * distances).sum(-1)
    return distance


def results_to_columns(results: Any) -> dict[str, list[Any]]:
    """Return the columns that a prediction adds to a data frame."""
    if isinstance(results, np.ndarray):
        return {"vector": results.tolist()} if results.ndim == 2 else {"prediction": results.tolist()}
    match results:
        case [Label(), *_]:
            return {
                "prediction": [result.label for result in results],
                "probability": [result.probability for result in results],
                **({"reason": [one.reason for one in results]} if any(one.reason for one in results) else {}),
            }
        case [Labels(), *_]:
            return {"prediction": [list(result.labels) for result in results]}
        case [Tagged(), *_]:
            return {
                "tags": [[word.tag for word in result.words] for result in results],
                "entities": [[asdict(entity) for entity in result.entities] for result in results],
            }
        case [Score(), *_]:
            return {
                "log_likelihood": [result.total for result in results],
                "perplexity": [result.perplexity for result in results],
            }
        case [Corrected(), *_]:
            return {"corrected": [result.target for result in results]}
    return {"prediction": list(results)}


def describe_model(model: "BaseModel", folder: "ModelFolder") -> str:
    """Describe a model in a few lines: name, architecture, size, task, labels, maximum length, pooling, precision."""
    config, task = model.bert.config, model.task
    name = "" if folder.place is None else str(folder.place)
    millions = f"{model.bert.parameter_count() / 1e6:.1f}M parameters"
    size = f"{config.layers} layers, hidden size {config.hidden_size}, {millions}"
    lines = [f"Model({name!r})", f"  architecture: {model.bert.model_type}, {size}"]
    lines.append(f"  heads: {', '.join(model.heads) or 'none'}")
    if task is not None:
        shown = ", ".join(task.names[:_SHOWN_LABELS]) + (", ..." if len(task.names) > _SHOWN_LABELS else "")
        lines.append(f"  task: {task.kind}" + (f", {len(task.names)} labels: {shown}" if task.names else ""))
    elif model.correcting is not None:
        lines.append(f"  task: correction, from a confidence of {model.correcting:g}")
    lines.append(f"  reads: at most {model.tokenizer.max_length} tokens; {model.tokenizer.size:,} pieces")
    pooling = f"{model.embedding.pooling}{', normalized' if model.embedding.normalize else ''}"
    lines.append(f"  vectors: {pooling}; computes in {model.precision} on {model.device}")
    return "\n".join(lines)
