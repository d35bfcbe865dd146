"""Losses of distillation on raw text: sentence vectors, attention relations, or hidden states.

- vectors: the student's pooled vector equals the teacher's, for any two models;
- relations: scaled dot products between the queries of all tokens, between their keys and between their values, in one
  layer of each model (MiniLMv2; Wang et al., 2021). Heads are regrouped, so that width and number of heads may differ;
- hidden: the embeddings and the hidden states of evenly matched layers (TinyBERT; Jiao et al., 2020).

The last two compare token by token, so both models must encode a text as the same ids.

Dimensions: B texts, T tokens, H hidden size, K size of a vector, R relation heads, D width of a relation head.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from cloze.errors import ConfigError
from cloze.model import Backbone, BertConfig
from cloze.model.batch import Batch
from cloze.model.bert import require_bert
from cloze.model.building_blocks import initialise
from cloze.model.cost import count_activations
from cloze.predict.embeddings.pooling import Pool
from cloze.train.distillation.objective import match_layers
from cloze.train.distillation.raw_text import TextBatch
from cloze.train.distillation.settings import TextDistillSettings, TextObjective
from cloze.train.loop import ObjectiveOutput

_MOST_RELATION_HEADS = 48  # as for the base models of the paper
# Teachers up to this number of layers teach their last one; deeper ones a lower layer, as in the paper (21 of 24).
_LAST_LAYER_UP_TO, _UPPER_MIDDLE = 12, 7 / 8
_MASKED = -1e4  # score of padding: its weight is exactly 0 in float32, and its logarithm is finite
_FLOAT = 4  # bytes


def make_projection(inputs: int, outputs: int, seed: int) -> nn.Linear:
    """Return a linear map that preserves the scale of its inputs; the seed determines its weights."""
    projection = nn.Linear(inputs, outputs)
    initialise(projection, inputs**-0.5, torch.Generator().manual_seed(seed))
    return projection


class VectorObjective(nn.Module):
    """The distance between the student's vectors and the teacher's, which are part of the batch."""

    def __init__(
        self, student: Backbone, pool: Pool, settings: TextDistillSettings, *, width: int, target: int, normalize: bool
    ) -> None:
        """Create the objective.

        Args:
            student: The student.
            pool: Its pooling.
            settings: The distance, and the seed of the projection.
            width: The size of its pooled vectors.
            target: The size of the teacher's vectors; if it differs, a projection is learned.
            normalize: Whether vectors have length 1.
        """
        super().__init__()
        self.model, self._pool, self._normalize = student, pool, normalize
        self._distance = settings.distance
        self.projection = None if width == target else make_projection(width, target, settings.seed)

    def vectors(self, inputs: Batch) -> Tensor:
        """Return the student's vectors, (B, K)."""
        last = self.model(inputs.ids, inputs.segments, inputs.mask).last
        vectors = self._pool(last, inputs).float()
        with torch.autocast(last.device.type, enabled=False):
            if self.projection is not None:
                vectors = self.projection(vectors)
            return functional.normalize(vectors, dim=-1) if self._normalize else vectors

    def forward(self, batch: TextBatch, totals: Mapping[str, int]) -> ObjectiveOutput:
        """Return this part's share of the loss, and of the mean cosine."""
        assert batch.targets is not None
        vectors, share = self.vectors(batch.inputs), 1 / max(1, totals["texts"])
        cosines = functional.cosine_similarity(vectors, batch.targets, dim=-1)
        return ObjectiveOutput(
            self.distances(vectors, batch.targets).sum() * share, {"cosine": cosines.detach().sum() * share}
        )

    def distances(self, vectors: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each text: (B, K), (B, K) -> (B,)."""
        if self._distance == "cosine":
            return 1 - functional.cosine_similarity(vectors, targets, dim=-1)
        return functional.mse_loss(vectors, targets, reduction="none").mean(-1)


class TokenObjective(nn.Module):
    """Base class of the losses that compare tokens: the sum over the tokens of a batch, divided by their number."""

    def __init__(self, student: Backbone, teacher: Backbone) -> None:
        super().__init__()
        self.model = student
        # The tuple hides the teacher from PyTorch, so that it is neither trained nor saved in checkpoints.
        self._teacher = (teacher.eval(),)

    @abstractmethod
    def distances(self, inputs: Batch) -> Tensor:
        """Return the loss of each text, summed over its tokens: (B, T) -> (B,)."""

    def forward(self, batch: TextBatch, totals: Mapping[str, int]) -> ObjectiveOutput:
        """Return this part's share of the loss."""
        return ObjectiveOutput(self.distances(batch.inputs).sum() / max(1, totals["tokens"]))

    def states(self, inputs: Batch) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return the states of all layers of the student and of the teacher, embeddings first, (B, T, H) each."""
        student = self.model.encode(inputs.ids, inputs.segments, inputs.mask, keep_states=True).states
        with torch.no_grad():
            teacher = self._teacher[0].encode(inputs.ids, inputs.segments, inputs.mask, keep_states=True).states
        return student, teacher


class RelationObjective(TokenObjective):
    """KL divergence of the query, key and value relations of the student's last layer from those of the teacher."""

    def __init__(self, student: Backbone, teacher: Backbone, settings: TextDistillSettings) -> None:
        super().__init__(require_bert(student, "relations"), require_bert(teacher, "relations"))
        self.layer = relation_layer(teacher.config, settings.teacher_layer)
        self.heads = relation_heads(student.config, teacher.config, settings.relation_heads)

    def distances(self, inputs: Batch) -> Tensor:
        """Return the divergence of each text, summed over tokens and the three relations, averaged over heads."""
        student, teacher = self.states(inputs)
        depth = self.model.config.layers
        ours = _projections(self.model, depth, student[depth - 1])
        with torch.no_grad():
            theirs = _projections(self._teacher[0], self.layer, teacher[self.layer - 1])
        total = ours[0].new_zeros(len(inputs.ids), dtype=torch.float32)
        with torch.autocast(total.device.type, enabled=False):
            for one, other in zip(ours, theirs, strict=True):
                arguments = one.float(), other.float(), self.heads, inputs.real
                # Only queries, keys and values are stored, because the relations, (B, R, T, T), are much larger.
                total = total + (
                    checkpoint(relation_divergence, *arguments, use_reentrant=False)
                    if torch.is_grad_enabled()
                    else relation_divergence(*arguments)
                )
        return total


def relation_divergence(student: Tensor, teacher: Tensor, heads: int, real: Tensor) -> Tensor:
    """Return the KL divergence of the student's relations from the teacher's (equation 3 of MiniLMv2).

    Args:
        student: Queries, keys or values of the student, (B, T, H).
        teacher: Those of the teacher, (B, T, H').
        heads: Number of relation heads R.
        real: True at real tokens, (B, T).

    Returns:
        The divergence of each text, summed over its tokens and averaged over the heads, (B,).
    """
    logs, wanted = log_relations(student, heads, real), log_relations(teacher, heads, real)  # (B, R, T, T)
    divergence = functional.kl_div(logs, wanted, reduction="none", log_target=True).sum(-1)  # (B, R, T)
    return (divergence.mean(1) * real).sum(-1)


def log_relations(states: Tensor, heads: int, real: Tensor) -> Tensor:
    """Return the logarithm of the relations between tokens: (B, T, H) -> (B, R, T, T)."""
    batch, length, width = states.shape
    by_head = states.view(batch, length, heads, width // heads).transpose(1, 2)  # (B, R, T, D)
    scores = by_head @ by_head.transpose(-2, -1) / math.sqrt(width // heads)
    return scores.masked_fill(~real[:, None, None, :], _MASKED).log_softmax(-1)


def _projections(model: Backbone, layer: int, states: Tensor) -> tuple[Tensor, ...]:
    """Return queries, keys and values of a layer, counted from 1, for its input states: (B, T, H) -> 3 of (B, T, H)."""
    layers = model.encoder.layers  # a single one if layers are shared
    projected: Tensor = layers[(layer - 1) % len(layers)].attention.query_key_value(states)
    return projected.chunk(3, dim=-1)


def relation_layer(teacher: BertConfig, given: int | None) -> int:
    """Return the layer of the teacher whose relations are compared, counted from 1."""
    if given is None:
        return teacher.layers if teacher.layers <= _LAST_LAYER_UP_TO else round(_UPPER_MIDDLE * teacher.layers)
    if given > teacher.layers:
        raise ConfigError(f"teacher_layer is {given}, but the teacher has {teacher.layers} layers")
    return given


def relation_heads(student: BertConfig, teacher: BertConfig, given: int | None) -> int:
    """Return the number of relation heads, which divides both hidden sizes."""
    common = math.gcd(student.hidden_size, teacher.hidden_size)
    if given is None:
        return max(heads for heads in range(1, _MOST_RELATION_HEADS + 1) if common % heads == 0)
    if common % given:
        raise ConfigError(
            f"relation_heads is {given}; expected a divisor of both hidden sizes, {student.hidden_size} and "
            f"{teacher.hidden_size}"
        )
    return given


class HiddenObjective(TokenObjective):
    """Squared error of the embeddings and the hidden states, each through a learned map if the widths differ."""

    def __init__(self, student: Backbone, teacher: Backbone, settings: TextDistillSettings) -> None:
        super().__init__(student, teacher)
        self._layers = [0, *match_layers(student.config.layers, teacher.config.layers)]
        widths = student.config.hidden_size, teacher.config.hidden_size
        count = 0 if widths[0] == widths[1] else len(self._layers)
        self.projections = nn.ModuleList(make_projection(*widths, settings.seed + number) for number in range(count))

    def distances(self, inputs: Batch) -> Tensor:
        """Return the error of each text, summed over tokens, averaged over compared states and dimensions."""
        student, teacher = self.states(inputs)
        total = torch.zeros(inputs.ids.shape, device=inputs.ids.device)  # (B, T)
        for number, (states, layer) in enumerate(zip(student, self._layers, strict=True)):
            mapped = self.projections[number](states) if len(self.projections) else states
            total = total + (mapped.float() - teacher[layer].float()).square().mean(-1)
        return (total * inputs.real).sum(-1) / len(self._layers)


def count_text_activations(
    student: BertConfig,
    teacher: BertConfig,
    objective: TextObjective,
    settings: TextDistillSettings,
    batch: int,
    length: int,
) -> int:
    """Return the peak bytes of a step's activations: the student's, and those of the teacher and the comparison."""
    explicit = student.attention_dropout > 0 or settings.precision == "bf16"
    own = count_activations(student, (), batch, length, explicit=explicit, checkpointing=settings.checkpointing)
    if objective == "vectors":
        return own
    states = _FLOAT * batch * length * (teacher.layers + 1) * teacher.hidden_size
    layer = _FLOAT * batch * length * (5 * teacher.hidden_size + 2 * teacher.feedforward_size)
    if objective == "hidden":
        return own + states + max(layer, _FLOAT * batch * length * 3 * teacher.hidden_size * (student.layers + 1))
    heads = relation_heads(student, teacher, settings.relation_heads)
    projections = 3 * _FLOAT * batch * length * (student.hidden_size + teacher.hidden_size)
    # Both logarithms, their difference, its exponential and two gradients.
    return own + states + max(layer, projections + 6 * _FLOAT * batch * heads * length**2)
