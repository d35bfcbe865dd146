"""Distillation loss: distance to the labels and to the teacher's logits, hidden states and attention.

Logits are compared at a temperature (Hinton et al., 2015), hidden states and attention layer by layer (Sun et al.,
2019, "Patient knowledge distillation"; Jiao et al., 2020, "TinyBERT").

Dimensions: B sequences, T tokens, H hidden size, A heads, L layers; N items.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from cloze.model import Backbone, BertConfig, EncoderOutput, HeadName
from cloze.model.building_blocks import initialise
from cloze.model.cost import count_activations
from cloze.model.losses import task_logits, task_loss
from cloze.options import IGNORED
from cloze.train.distillation.settings import DistillSettings
from cloze.train.finetuning.objective import TaskBatch, TaskBatches, count_targets
from cloze.train.loop import ObjectiveOutput

# Lower bound of attention weights: they are exactly 0 at padding, which has no logarithm.
_MIN_ATTENTION = 1e-9
_FLOAT = 4  # bytes


@dataclass(frozen=True)
class DistillBatch:
    """A batch in which some rows may have no labels; their targets are IGNORED or NaN."""

    task: TaskBatch

    @property
    def labelled(self) -> Tensor:
        """True at the items with labels, (N,)."""
        targets = self.task.targets
        present = ~targets.isnan() if targets.is_floating_point() else targets.ne(IGNORED)
        return present if present.ndim == 1 else present.any(-1)

    @property
    def predicted(self) -> Tensor:
        """True at the targets that the model predicts, with or without a label; has the shape of the targets."""
        targets = self.task.targets
        # One label per token, or start and end of an answer. Other targets are predicted for unlabelled items too.
        if targets.ndim == 2 and not targets.is_floating_point():
            return targets.ne(IGNORED)
        return torch.ones_like(targets, dtype=torch.bool)

    @property
    def labelled_tokens(self) -> Tensor:
        """True at the non-padding tokens of the items with labels, (B, T)."""
        sizes = torch.tensor(self.task.sizes, device=self.labelled.device)
        return self.task.inputs.real & self.labelled.repeat_interleave(sizes)[:, None]

    @property
    def counts(self) -> Mapping[str, int]:
        """The numbers of targets, predictions and tokens over which the losses are averaged."""
        return {
            "targets": count_targets(self.task.targets[self.labelled]),
            "predicted": int(self.predicted.sum()),
            "tokens": int(self.labelled_tokens.sum()),
        }

    @property
    def token_count(self) -> int:
        """The number of tokens without padding."""
        return self.task.token_count


class DistillBatches:
    """The batches of a task for distillation."""

    def __init__(self, batches: TaskBatches) -> None:
        self._batches = batches
        self.steps_per_epoch = batches.steps_per_epoch

    def at(self, step: int, part: int = 0, parts: int = 1, progress: float = 0.0) -> DistillBatch | None:
        """Return one of ``parts`` parts of the batch of a step; steps and parts are counted from 0."""
        batch = self._batches.at(step, part, parts, progress)
        return None if batch is None else DistillBatch(batch)

    def largest_part(self, parts: int) -> tuple[int, int]:
        """Return the tokens of the largest part of a batch and of the longest sequence."""
        return self._batches.largest_part(parts)


class DistillObjective(nn.Module):
    """The weighted sum of four losses: labels, logits, states and attention. Those with weight 0 are not computed."""

    def __init__(self, student: Backbone, teacher: Backbone, head: HeadName, settings: DistillSettings) -> None:
        super().__init__()
        self.model, self.head, self.settings = student, head, settings
        # The tuple hides the teacher from PyTorch, so that it is neither trained nor saved in checkpoints.
        self._teacher = (teacher.eval(),)
        self._states = settings.states_weight > 0
        self._attention = compares_attention(student, teacher, settings)
        self._teacher_layers = match_layers(student.config.layers, teacher.config.layers)
        widths = student.config.hidden_size, teacher.config.hidden_size
        self.to_teacher = nn.Linear(*widths) if self._states and widths[0] != widths[1] else None
        if self.to_teacher is not None:
            generator = torch.Generator().manual_seed(settings.seed)
            # With this standard deviation, the mapped states have the scale of the originals.
            initialise(self.to_teacher, widths[0] ** -0.5, generator)

    def forward(self, batch: DistillBatch, totals: Mapping[str, int]) -> ObjectiveOutput:
        """Return this part's share of the losses of a batch."""
        settings, task, labelled = self.settings, batch.task, batch.labelled
        logits, output = self._run(self.model, task)
        losses = {}
        if settings.labels_weight:
            losses["labels"] = task_loss(logits[labelled], task.targets[labelled], totals["targets"])
        if settings.logits_weight or self._states or self._attention:
            with torch.no_grad():
                teacher_logits, teacher_output = self._run(self._teacher[0], task)
            if settings.logits_weight:
                losses["logits"] = logits_loss(logits, teacher_logits, batch, totals["predicted"], settings.temperature)
            if self._states:
                losses["states"] = self._states_loss(output, teacher_output, batch.labelled_tokens) / max(
                    1, totals["tokens"]
                )
            if self._attention:
                losses["attention"] = self._attention_loss(output, teacher_output, batch.labelled_tokens) / max(
                    1, totals["tokens"]
                )
        weighted = [getattr(settings, f"{name}_weight") * loss for name, loss in losses.items()]
        return ObjectiveOutput(torch.stack(weighted).sum(), {f"{name}_loss": loss for name, loss in losses.items()})

    def _run(self, model: Backbone, task: TaskBatch) -> tuple[Tensor, EncoderOutput]:
        """Return the logits and the encoder's output, with hidden states and attention if they are compared."""
        inputs, reader = task.inputs, model.reader
        output: EncoderOutput = model.encoder(
            inputs.ids,
            inputs.segments,
            inputs.mask,
            keep_states=self._states or (reader is not None and reader.needs_states),
            keep_attentions=self._attention,
        )
        # A teacher's head may read frozen states; compare the states that the head reads.
        read = output.last if reader is None else reader.read(reader.choose(output), inputs.real)
        return task_logits(model, self.head, read, task.sizes, inputs.real), output

    def _states_loss(self, output: EncoderOutput, teacher_output: EncoderOutput, tokens: Tensor) -> Tensor:
        """Return the squared error of the hidden states, averaged over layers and dimensions, summed over tokens."""
        total = output.last.new_zeros(())
        for layer, teacher_layer in enumerate(self._teacher_layers, start=1):
            states = output.states[layer][tokens]  # (tokens, H)
            mapped = states if self.to_teacher is None else self.to_teacher(states)
            wanted = teacher_output.states[teacher_layer][tokens]
            total = total + functional.mse_loss(mapped, wanted, reduction="sum") / wanted.shape[-1]
        return total / len(self._teacher_layers)

    def _attention_loss(self, output: EncoderOutput, teacher_output: EncoderOutput, tokens: Tensor) -> Tensor:
        """Return the KL divergence of the attention, averaged over layers and heads, summed over tokens."""
        total = output.last.new_zeros(())
        for layer, teacher_layer in enumerate(self._teacher_layers):
            attention = output.attentions[layer].transpose(1, 2)[tokens]  # (B, A, T, T) -> (tokens, A, T)
            wanted = teacher_output.attentions[teacher_layer - 1].transpose(1, 2)[tokens]
            difference = wanted.clamp(min=_MIN_ATTENTION).log() - attention.clamp(min=_MIN_ATTENTION).log()
            total = total + (wanted * difference).sum() / wanted.shape[1]
        return total / len(self._teacher_layers)


def count_step_activations(
    student: BertConfig, teacher: BertConfig, settings: DistillSettings, batch: int, length: int
) -> int:
    """Return the peak bytes of a step's activations: the student's, the teacher's, and those of the comparisons.

    The teacher needs no gradients: in memory are one layer at a time, and the states and attention to compare.
    """
    tokens = batch * length
    square = _FLOAT * batch * length * length
    attention = settings.attention_weight > 0 and student.heads == teacher.heads
    widest = max(2 * _FLOAT * tokens * teacher.feedforward_size, 2 * square * teacher.heads)
    teacher_layer = 5 * _FLOAT * tokens * teacher.hidden_size + widest
    stored = compared = 0
    if settings.states_weight > 0:
        stored += _FLOAT * tokens * teacher.hidden_size * (teacher.layers + 1)
        # The teacher's and the student's states, and the student's before the mapping to the teacher's width.
        mapped = student.hidden_size if student.hidden_size != teacher.hidden_size else 0
        compared += student.layers * _FLOAT * tokens * (2 * teacher.hidden_size + mapped)
    if attention:
        stored += square * teacher.heads * teacher.layers
        # Both distributions, the student's clamped one and the difference of logarithms; three gradients in the
        # backward pass.
        compared += (4 * student.layers + 3) * square * teacher.heads
    beside = stored + max(teacher_layer, compared)
    # Without heads, because every state of the last layer may be compared.
    count = partial(count_activations, student, (), batch, length, explicit=attention or student.attention_dropout > 0)
    if not settings.checkpointing:
        return count() + beside
    between = _FLOAT * tokens * student.hidden_size * (student.layers + 2)
    return max(
        count(checkpointing=True), between + (square * student.heads * student.layers if attention else 0) + beside
    )


def compares_attention(student: Backbone, teacher: Backbone, settings: DistillSettings) -> bool:
    """Return whether attention is compared, which needs the same number of heads in both models."""
    return settings.attention_weight > 0 and student.config.heads == teacher.config.heads


def match_layers(student: int, teacher: int) -> list[int]:
    """Return the teacher's layer, counted from 1, for each student layer: evenly spaced, last matched with last."""
    return [-(-number * teacher // student) for number in range(1, student + 1)]


def logits_loss(logits: Tensor, teacher_logits: Tensor, batch: DistillBatch, total: int, temperature: float) -> Tensor:
    """Return a part's share of the distance between the logits, for a batch with ``total`` predictions.

    Gradients shrink with the square of the temperature, so the loss is multiplied by it (Hinton et al., 2015, section
    2).
    """
    targets, predicted = batch.task.targets, batch.predicted
    logits, teacher_logits = logits.float(), teacher_logits.float()
    if not targets.is_floating_point():
        logs = (logits[predicted] / temperature).log_softmax(-1)
        wanted = (teacher_logits[predicted] / temperature).softmax(-1)
        # Missing choices have logit -inf, and 0 * -inf would be NaN.
        summed = -(wanted * logs.masked_fill(logs.isinf(), 0.0)).sum() * temperature**2
    elif targets.ndim == 1:
        summed = functional.mse_loss(logits, teacher_logits, reduction="sum")
    else:
        wanted = (teacher_logits / temperature).sigmoid()
        scaled = functional.binary_cross_entropy_with_logits(logits / temperature, wanted, reduction="sum")
        summed = scaled * temperature**2
    return summed / max(1, total)
