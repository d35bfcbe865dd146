"""The losses of pre-training (appendix A.2 of the paper, and those of ALBERT and SpanBERT) and of the tasks.

Dimensions: B sequences, T tokens, H hidden size, V vocabulary, M chosen positions in the batch; N rows of a task.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from cloze.model.backbone import Backbone
from cloze.model.heads import HeadName
from cloze.options import IGNORED


def masked_word_logits(model: Backbone, last: Tensor, positions: Tensor) -> Tensor:
    """Logits of the chosen positions alone: (B, T, H), flat positions (M,) -> (M, V).

    Six tokens of seven were not chosen; leaving them out of the widest product is the largest single saving of
    pre-training, and changes no number.
    """
    return model.heads["mlm"](last.flatten(0, 1)[positions])  # type: ignore[no-any-return]


def masked_word_loss(logits: Tensor, targets: Tensor, total: int | None = None) -> Tensor:
    """Mean cross-entropy over all chosen positions of the batch; zero, with a gradient, where none was chosen.

    For a part of a batch, ``total`` is the number of positions in all of its parts: their losses then add up.
    """
    summed = functional.cross_entropy(logits.float(), targets, reduction="sum")
    return summed / max(1, targets.numel() if total is None else total)


def span_boundary_logits(model: Backbone, last: Tensor, boundaries: Tensor) -> Tensor:
    """Logits of masked tokens by the edges of their spans: (B, T, H), boundaries (M, 3) -> (M, V).

    A row of ``boundaries`` has the flat position of the token before the span, that of the one after it, and the place
    of the target in the span, from 0.
    """
    states = last.flatten(0, 1)
    before, after, places = boundaries.unbind(-1)
    # Looked up, not indexed: a token may be the edge of several spans, and threads would add up their gradients in any
    # order.
    edges = (functional.embedding(some, states) for some in (before, after))
    return model.heads["sbo"](*edges, places)  # type: ignore[no-any-return]


def next_sentence_loss(
    model: Backbone, last: Tensor, is_random: Tensor, total: int | None = None, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Loss of "does B follow A" and the logits (B, 2); target 1 is a random B."""
    return _pair_loss(model, "nsp", last, is_random, total, mask)


def sentence_order_loss(
    model: Backbone, last: Tensor, is_swapped: Tensor, total: int | None = None, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Loss of "are A and B in their order" (ALBERT, section 3.1) and the logits (B, 2); target 1 is a swapped pair."""
    return _pair_loss(model, "sop", last, is_swapped, total, mask)


def _pair_loss(
    model: Backbone, head: HeadName, last: Tensor, labels: Tensor, total: int | None, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    logits = model.heads[head](model.pooled(last, mask))
    summed = functional.cross_entropy(logits.float(), labels, reduction="sum")
    return summed / (len(labels) if total is None else total), logits


# What a place that is no answer has for a logit: no chance at all, and a difference of two such is zero.
IMPOSSIBLE = -1e4


def task_logits(
    model: Backbone, head: HeadName, last: Tensor, sizes: Sequence[int], real: Tensor | None = None
) -> Tensor:
    """What a task head says, with the alternatives in the last dimension.

    ``sizes`` tells how many rows of the batch belong to each item: the options of a choice, one elsewhere. ``real`` is
    (B, T), true at tokens: padding is never an answer, in whatever company a text was read.

    - sequence: (N, labels)
    - token: (N, T, labels)
    - span: (N, 2, T), the places of start and end
    - choice: (items, most options), those that an item has not at minus infinity
    """
    if head == "token":
        return model.heads["token"](last)  # type: ignore[no-any-return]
    if head == "span":
        places = torch.stack(model.heads["span"](last), 1)
        return places if real is None else places.masked_fill(~real[:, None], IMPOSSIBLE)
    scores: Tensor = model.heads[head](model.pooled(last, real))
    if head == "sequence":
        return scores
    return nn.utils.rnn.pad_sequence(
        list(torch.split(scores, list(sizes))), batch_first=True, padding_value=float("-inf")
    )


def task_loss(logits: Tensor, targets: Tensor, total: int, weights: Tensor | None = None) -> Tensor:
    """A part's share of the loss of a batch that has ``total`` targets: the shares of all parts add up to their mean.

    Indices are one of the alternatives each (``IGNORED``: none is asked), numbers (N,) are squared errors, and numbers
    (N, labels) are yes or no for each label. ``weights`` says how much each label counts.
    """
    if not targets.is_floating_point():
        flat, wanted = logits.float().flatten(0, -2), targets.flatten()
        summed = functional.cross_entropy(flat, wanted, weights, ignore_index=IGNORED, reduction="sum")
    elif targets.ndim == 1:
        summed = functional.mse_loss(logits.squeeze(-1).float(), targets, reduction="sum")
    else:
        summed = functional.binary_cross_entropy_with_logits(
            logits.float(), targets, pos_weight=weights, reduction="sum"
        )
    return summed / max(1, total)
