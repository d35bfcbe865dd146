"""Models from models: the same encoder under other heads."""

from collections.abc import Collection
from dataclasses import replace

from cloze.model.bert import Bert, HeadName


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
