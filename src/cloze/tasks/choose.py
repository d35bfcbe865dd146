"""Prompts with options, of which one fits (section 4.4 of the paper): rows -> a sequence for every option."""

from collections.abc import Sequence
from dataclasses import dataclass

from cloze.tasks.items import Item, Rows
from cloze.text import Encoding, Tokenizer


@dataclass(frozen=True)
class Choice:
    """One row; ``target`` is the index of the option that fits, None where the row does not tell."""

    place: str
    prompt: str
    options: tuple[str, ...]
    target: int | None = None

    @property
    def texts(self) -> list[str]:
        """What is asked, and about what."""
        return [self.prompt, *self.options]


class Choices(Rows[Choice]):
    """What a model is trained, scored or asked on; rows may differ in the number of their options."""


def choice_items(examples: Choices, tokenizer: Tokenizer) -> list[Item]:
    """What a model trains on: the prompt with each option, and which of them fits."""
    encoded = encode_options(tokenizer, [row.prompt for row in examples.rows], [row.options for row in examples.rows])
    targets = [row.target for row in examples.rows]
    assert None not in targets, "training rows tell what fits"
    return [Item(tuple(one), target) for one, target in zip(encoded, targets, strict=True) if target is not None]


def encode_options(
    tokenizer: Tokenizer, prompts: Sequence[str], options: Sequence[Sequence[str]]
) -> list[list[Encoding]]:
    """``[CLS] prompt [SEP] option [SEP]`` for every option of every prompt."""
    firsts = [prompt for prompt, own in zip(prompts, options, strict=True) for _ in own]
    encoded = iter(tokenizer.encode_batch(firsts, [option for own in options for option in own]))
    return [[next(encoded) for _ in own] for own in options]
