"""Random models of other architectures in ``transformers`` and in cloze, and the comparison of both."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cloze.checkpoint import ModelFolder, load_folder, save_folder
from cloze.checkpoint.names import hugging_face_names, joined, layout_of, normalised
from cloze.model import Backbone, BertConfig, HeadName
from cloze.model.losses import masked_word_logits, masked_word_loss
from cloze.text import Tokenizer, write_vocabulary
from tests.model.made import assert_close, vocabulary

IGNORED = -100


class Draws:
    """Random numbers from a seed."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def number(self, low: int, high: int) -> int:
        """Return a number from ``low`` to ``high``."""
        return int(torch.randint(low, high + 1, (), generator=self.generator))

    def numbers(self, low: int, high: int, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor of numbers from ``low`` to ``high``."""
        return torch.randint(low, high + 1, shape, generator=self.generator)

    def one_of(self, *values: Any) -> Any:
        """Return one of the values."""
        return values[self.number(0, len(values) - 1)]

    def fill(self, theirs: Any) -> Any:
        """Give every parameter a random value that is large enough to matter, and return the model."""
        with torch.no_grad():
            for name, parameter in theirs.named_parameters():
                noise = torch.randn(parameter.shape, generator=self.generator)
                is_norm = name.lower().endswith("norm.weight")
                parameter.copy_(1 + 0.1 * noise if is_norm else 0.15 * noise)
        return theirs.eval()


@dataclass(frozen=True)
class Inputs:
    """A random padded batch, with labels at some tokens."""

    ids: Tensor  # (B, T)
    segments: Tensor  # (B, T)
    mask: Tensor  # (B, T)
    labels: Tensor  # (B, T), IGNORED at most tokens

    @classmethod
    def of(cls, draws: Draws, vocab_size: int, segments: int, *, longest: int = 20) -> "Inputs":
        """Draw a batch."""
        batch, length = draws.number(1, 5), draws.number(4, longest)
        lengths = draws.numbers(2, length, (batch,))
        lengths[0] = length
        mask = torch.arange(length) < lengths[:, None]
        ids = draws.numbers(0, vocab_size - 1, (batch, length))
        chosen = torch.rand(batch, length, generator=draws.generator) < 0.3
        chosen[:, 1] = True
        kinds = draws.numbers(0, max(0, segments - 1), (batch, length))
        return cls(ids, kinds, mask, torch.where(chosen & mask, ids, IGNORED))

    @property
    def positions(self) -> Tensor:
        """Flat positions of the labels, (M,)."""
        return (self.labels.flatten() != IGNORED).nonzero().flatten()

    def word_loss(self, ours: Backbone) -> Tensor:
        """Return the loss of our model."""
        last = ours.word_states(self.ids, self.segments, self.mask, self.positions)
        return masked_word_loss(masked_word_logits(ours, last, self.positions), self.labels.flatten()[self.positions])

    def assert_states(self, ours: tuple[Tensor, ...], theirs: Any) -> None:
        """Compare the states of all layers at real tokens; padding is never read."""
        assert len(ours) == len(theirs)
        for our_state, their_state in zip(ours, theirs, strict=True):
            assert_close(our_state[self.mask], their_state[self.mask])


def load_theirs(theirs: Any, folder: Path) -> Backbone:
    """Save a model of ``transformers`` and load it in cloze."""
    theirs.save_pretrained(folder)
    write_vocabulary(folder / "vocab.txt", vocabulary(theirs.config.vocab_size))
    loaded = load_folder(folder)
    assert not [note for note in loaded.notes if "not used" in note]
    return loaded.model


def random_model(kind: type[Backbone], config: BertConfig, heads: Collection[HeadName] = (), *, labels: int = 3) -> Any:
    """Return a model of cloze in which every parameter is random and large enough to matter."""
    return Draws(7).fill(kind.fresh(config, heads, labels=labels))


def save_ours(model: Backbone, folder: Path) -> Path:
    """Save a model with a matching tokenizer."""
    tokenizer = Tokenizer.from_vocabulary(vocabulary(model.config.vocab_size), lowercase=True, max_length=20)
    save_folder(ModelFolder(model, tokenizer), folder)
    return folder


def assert_gradients(ours: Backbone, theirs: Any) -> None:
    """Compare the gradients of all parameters after a backward pass in both libraries."""
    layout = layout_of(ours.model_type)
    expected = {normalised(name, layout): parameter.grad for name, parameter in theirs.named_parameters()}
    used: set[str] = set()
    for name, parameter in ours.named_parameters():
        names = hugging_face_names(name, layout)
        used.update(names)
        gradients = [expected[part] for part in names]
        if parameter.grad is None:
            assert all(gradient is None or not gradient.any() for gradient in gradients), name
        else:
            assert_close(parameter.grad, joined(gradients))
    assert used == set(expected)
