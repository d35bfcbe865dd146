"""What a student minimises: its distance from the labels, and from what its teacher says, thinks and looks at.

Answers are compared at a temperature (Hinton et al., 2015), hidden states and attention layer by layer (Sun et al.,
2019, "Patient knowledge distillation"; Jiao et al., 2020, "TinyBERT").

Dimensions: B sequences, T tokens, H hidden size, A heads, L layers; N items.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from cloze.model import Backbone, EncoderOutput, HeadName
from cloze.model.building_blocks import initialise
from cloze.model.losses import task_logits, task_loss
from cloze.options import IGNORED
from cloze.train.distillation.settings import DistillSettings
from cloze.train.finetuning.objective import TaskBatch, TaskBatches, count_targets
from cloze.train.loop import ObjectiveOutput

# Below this an attention weight is nothing: padding has exactly 0, whose logarithm is none.
_LEAST = 1e-9


@dataclass(frozen=True)
class DistillBatch:
    """A batch of which some rows may have no labels: they are told by their targets, which are none."""

    task: TaskBatch

    @property
    def known(self) -> Tensor:
        """The items with labels, (N,)."""
        targets = self.task.targets
        there = ~targets.isnan() if targets.is_floating_point() else targets.ne(IGNORED)
        return there if there.ndim == 1 else there.any(-1)

    @property
    def asked(self) -> Tensor:
        """Where an answer is asked for, with a label or without, as the targets are laid out."""
        targets = self.task.targets
        # A label for each token, or two places of an answer; elsewhere an item without a label is asked as well.
        if targets.ndim == 2 and not targets.is_floating_point():
            return targets.ne(IGNORED)
        return torch.ones_like(targets, dtype=torch.bool)

    @property
    def read(self) -> Tensor:
        """The real tokens of the items with labels, (B, T)."""
        sizes = torch.tensor(self.task.sizes, device=self.known.device)
        return self.task.inputs.real & self.known.repeat_interleave(sizes)[:, None]

    @property
    def counts(self) -> Mapping[str, int]:
        """What the losses are means over."""
        return {
            "targets": count_targets(self.task.targets[self.known]),
            "asked": int(self.asked.sum()),
            "tokens": int(self.read.sum()),
        }

    @property
    def token_count(self) -> int:
        """Real tokens, padding not counted."""
        return self.task.token_count


class DistillBatches:
    """The batches of a task, for a student."""

    def __init__(self, batches: TaskBatches) -> None:
        self._batches = batches
        self.steps_per_epoch = batches.steps_per_epoch

    def at(self, step: int, part: int = 0, parts: int = 1, progress: float = 0.0) -> DistillBatch:
        """A part of the batch of a step, counted from 0."""
        return DistillBatch(self._batches.at(step, part, parts, progress))


class DistillObjective(nn.Module):
    """The sum of four losses, each by its weight; those whose weight is 0 are not computed."""

    def __init__(self, student: Backbone, teacher: Backbone, head: HeadName, settings: DistillSettings) -> None:
        super().__init__()
        self.model, self.head, self.settings = student, head, settings
        # A tuple hides the teacher from PyTorch: it is neither trained nor part of a checkpoint.
        self._teacher = (teacher.eval(),)
        self._states = settings.states_weight > 0
        self._attention = compares_attention(student, teacher, settings)
        self._places = match_layers(student.config.layers, teacher.config.layers)
        widths = student.config.hidden_size, teacher.config.hidden_size
        self.to_teacher = nn.Linear(*widths) if self._states and widths[0] != widths[1] else None
        if self.to_teacher is not None:
            generator = torch.Generator().manual_seed(settings.seed)
            # Wide enough for states of the student's size to arrive with the teacher's.
            initialise(self.to_teacher, widths[0] ** -0.5, generator)

    def forward(self, batch: DistillBatch, totals: Mapping[str, int]) -> ObjectiveOutput:
        """This part's share of the losses of a batch."""
        settings, task, known = self.settings, batch.task, batch.known
        said, output = self._ask(self.model, task)
        losses = {}
        if settings.labels_weight:
            losses["labels"] = task_loss(said[known], task.targets[known], totals["targets"])
        if settings.logits_weight or self._states or self._attention:
            with torch.no_grad():
                taught, shown = self._ask(self._teacher[0], task)
            if settings.logits_weight:
                losses["logits"] = answer_loss(said, taught, batch, totals["asked"], settings.temperature)
            if self._states:
                losses["states"] = self._states_loss(output, shown, batch.read) / max(1, totals["tokens"])
            if self._attention:
                losses["attention"] = self._attention_loss(output, shown, batch.read) / max(1, totals["tokens"])
        weighted = [getattr(settings, f"{name}_weight") * loss for name, loss in losses.items()]
        return ObjectiveOutput(torch.stack(weighted).sum(), {f"{name}_loss": loss for name, loss in losses.items()})

    def _ask(self, model: Backbone, task: TaskBatch) -> tuple[Tensor, EncoderOutput]:
        """What a model says, and the states and attention that it came to it by."""
        inputs, reader = task.inputs, model.reader
        output: EncoderOutput = model.encoder(
            inputs.ids,
            inputs.segments,
            inputs.mask,
            keep_states=self._states or (reader is not None and reader.needs_states),
            keep_attentions=self._attention,
        )
        # A teacher may read frozen states: those that are compared are the very ones that it reads.
        read = output.last if reader is None else reader.read(reader.choose(output), inputs.real)
        return task_logits(model, self.head, read, task.sizes, inputs.real), output

    def _states_loss(self, output: EncoderOutput, shown: EncoderOutput, read: Tensor) -> Tensor:
        """The squared difference of a state's numbers, a mean over layers and numbers, summed over tokens."""
        total = output.last.new_zeros(())
        for layer, place in enumerate(self._places, start=1):
            own = output.states[layer][read]  # (tokens, H)
            mapped = own if self.to_teacher is None else self.to_teacher(own)
            wanted = shown.states[place][read]
            total = total + functional.mse_loss(mapped, wanted, reduction="sum") / wanted.shape[-1]
        return total / len(self._places)

    def _attention_loss(self, output: EncoderOutput, shown: EncoderOutput, read: Tensor) -> Tensor:
        """KL of the student's attention from its teacher's, a mean over layers and heads, summed over tokens."""
        total = output.last.new_zeros(())
        for layer, place in enumerate(self._places):
            own = output.attentions[layer].transpose(1, 2)[read]  # (B, A, T, T) -> (tokens, A, T)
            wanted = shown.attentions[place - 1].transpose(1, 2)[read]
            difference = wanted.clamp(min=_LEAST).log() - own.clamp(min=_LEAST).log()
            total = total + (wanted * difference).sum() / wanted.shape[1]
        return total / len(self._places)


def compares_attention(student: Backbone, teacher: Backbone, settings: DistillSettings) -> bool:
    """Whether heads are to look where the teacher's do; there must be as many of them."""
    return settings.attention_weight > 0 and student.config.heads == teacher.config.heads


def match_layers(student: int, teacher: int) -> list[int]:
    """The teacher's layer, counted from 1, that each of the student's is to be like: evenly, the last like the last."""
    return [-(-number * teacher // student) for number in range(1, student + 1)]


def answer_loss(said: Tensor, taught: Tensor, batch: DistillBatch, total: int, temperature: float) -> Tensor:
    """A part's share of how far a student's answers are from its teacher's, in a batch with ``total`` answers.

    The square of the temperature makes up for gradients that shrink with it (Hinton et al., 2015, section 2).
    """
    targets, asked = batch.task.targets, batch.asked
    said, taught = said.float(), taught.float()
    if not targets.is_floating_point():
        logs = (said[asked] / temperature).log_softmax(-1)
        wanted = (taught[asked] / temperature).softmax(-1)
        # Options that an item has not are at minus infinity, and 0 times that would be no number.
        summed = -(wanted * logs.masked_fill(logs.isinf(), 0.0)).sum() * temperature**2
    elif targets.ndim == 1:
        summed = functional.mse_loss(said, taught, reduction="sum")
    else:
        wanted = (taught / temperature).sigmoid()
        scaled = functional.binary_cross_entropy_with_logits(said / temperature, wanted, reduction="sum")
        summed = scaled * temperature**2
    return summed / max(1, total)
