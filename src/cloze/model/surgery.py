"""Models from models: the same encoder under other heads, or with more words."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from cloze.model.bert import Bert, HeadName

# Where the vector of a new word starts: at the mean of its pieces' vectors, or anywhere.
WordStart = Literal["pieces", "random"]


def with_heads(
    model: Bert,
    heads: Collection[HeadName],
    *,
    labels: int = 2,
    keep: bool,
    seed: int,
    dropout: float | None = None,
) -> Bert:
    """The same encoder and pooler with these heads; what is not there yet starts at random.

    ``keep`` takes over the heads that are there already, for training that goes on; without it all of them start anew,
    for training on another task.
    """
    config = model.config if dropout is None else replace(model.config, dropout=dropout, attention_dropout=dropout)
    changed = Bert.fresh(config, heads, labels=labels, pooler=model.pooler is not None, seed=seed)
    state = changed.state_dict()
    known = {
        name: tensor
        for name, tensor in model.state_dict().items()
        if name in state and (keep or not name.startswith("heads."))
    }
    changed.load_state_dict(state | known)
    return changed


def missing_heads(model: Bert, heads: Collection[HeadName]) -> list[HeadName]:
    """Which of these heads a model lacks."""
    return [name for name in heads if name not in model.heads]


def with_words(model: Bert, pieces: Mapping[int, Sequence[int]], *, start: WordStart = "pieces", seed: int = 0) -> Bert:
    """The same model with new words.

    ``pieces`` gives each new row of the table, and each new bias of the masked-word head, the old rows whose mean it
    starts from. The table grows where it must; all other rows stay what they are.
    """
    size = max([model.config.vocab_size, *(row + 1 for row in pieces)])
    changed = Bert(
        replace(model.config, vocab_size=size), model.head_names, labels=model.labels, pooler=model.pooler is not None
    )
    generator = torch.Generator().manual_seed(seed)
    state = model.state_dict()
    # The masked-word head decodes with the embedding itself, so that its output vectors start likewise.
    for name in ("encoder.embeddings.token.weight", "heads.mlm.bias"):
        if name in state:
            deviation = model.config.initial_deviation if name.endswith("weight") else 0.0
            fresh = None if start == "pieces" else (deviation, generator)
            state[name] = _with_rows(state[name], size, pieces, fresh)
    changed.load_state_dict(state)
    return changed.train(model.training)


def _with_rows(
    table: Tensor, size: int, pieces: Mapping[int, Sequence[int]], fresh: tuple[float, torch.Generator] | None
) -> Tensor:
    """Grow a table of (V, ...) to ``size`` rows and set those of new words."""
    grown = torch.cat([table, table.new_zeros(size - len(table), *table.shape[1:])])
    for row, old in pieces.items():
        if fresh is None:
            grown[row] = table[list(old)].mean(0)
        else:
            deviation, generator = fresh
            grown[row] = deviation * torch.randn(table.shape[1:], generator=generator)
    return grown
