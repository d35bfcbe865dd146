"""Tiny models that memorize a few sentences within a second of training."""

from collections.abc import Sequence

import torch

from cloze.checkpoint import ModelFolder
from cloze.model import Bert, BertConfig
from cloze.predict import Model
from cloze.text import SPECIAL, Tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyz"

Example = tuple[list[int], list[int]]  # input ids and target ids; -100 means no target


def make_tokenizer(words: Sequence[str], max_length: int = 32) -> Tokenizer:
    """Return a tokenizer with these words, and with letters to spell all others."""
    pieces = [*SPECIAL, *dict.fromkeys([*words, ".", *LETTERS, *(f"##{letter}" for letter in LETTERS)])]
    return Tokenizer.from_vocabulary(pieces, lowercase=True, max_length=max_length)


def teach(tokenizer: Tokenizer, examples: Sequence[Example], steps: int = 150) -> Model:
    """Return a tiny model trained on these examples."""
    config = BertConfig(
        tokenizer.size,
        hidden_size=48,
        layers=2,
        heads=2,
        feedforward_size=96,
        positions=32,
        dropout=0.0,
        attention_dropout=0.0,
    )
    bert = Bert.fresh(config, ["mlm"], seed=3).train()
    longest = max(len(seen) for seen, _ in examples)
    ids = torch.tensor([seen + [tokenizer.pad_id] * (longest - len(seen)) for seen, _ in examples])
    labels = torch.tensor([targets + [-100] * (longest - len(targets)) for _, targets in examples])
    mask = ids != tokenizer.pad_id
    optimizer = torch.optim.Adam(bert.parameters(), 3e-3)
    for _ in range(steps):
        last = bert(ids, torch.zeros_like(ids), mask).last
        has_target = labels != -100
        loss = torch.nn.functional.cross_entropy(bert.heads["mlm"](last[has_target]), labels[has_target])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return Model(ModelFolder(bert.eval(), tokenizer))


def hide_each(tokenizer: Tokenizer, sentences: Sequence[str]) -> list[Example]:
    """Return each sentence with each of its tokens masked in turn."""
    examples = []
    for ids in (encoding.ids for encoding in tokenizer.encode_batch(sentences)):
        for place in range(1, len(ids) - 1):
            seen = [tokenizer.mask_id if index == place else piece for index, piece in enumerate(ids)]
            examples.append((seen, [piece if index == place else -100 for index, piece in enumerate(ids)]))
    return examples
