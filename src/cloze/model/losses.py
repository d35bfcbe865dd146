"""Losses of pre-training (appendix A.2 of the BERT paper, ALBERT, SpanBERT) and of fine-tuning tasks.

Dimensions: B sequences, T tokens, H hidden size, V vocabulary, M chosen positions in the batch, N examples of a task.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from cloze.model.backbone import Backbone
from cloze.model.heads import HeadName
from cloze.options import IGNORED


def masked_word_logits(model: Backbone, last: Tensor, positions: Tensor, head: HeadName = "mlm") -> Tensor:
    """Return the MLM or LM logits of only the chosen positions: (B, T, H), flat positions (M,) -> (M, V).

    About six of seven tokens are not chosen. Leaving them out of the widest matrix product is the largest single saving
    in pre-training and does not change the loss.
    """
    return model.heads[head](last.flatten(0, 1)[positions])  # type: ignore[no-any-return]


def masked_word_loss(logits: Tensor, targets: Tensor, total: int | None = None) -> Tensor:
    """Return the mean cross-entropy over all chosen positions, or a differentiable zero if there are none.

    For a micro-batch, ``total`` is the number of chosen positions in the whole batch, so that the losses of its
    micro-batches add up to the mean.
    """
    summed = functional.cross_entropy(logits.float(), targets, reduction="sum")
    return summed / max(1, targets.numel() if total is None else total)


def span_boundary_logits(model: Backbone, last: Tensor, boundaries: Tensor) -> Tensor:
    """Return the logits of masked tokens given the boundaries of their spans: (B, T, H), boundaries (M, 3) -> (M, V).

    A row of ``boundaries`` holds the flat position of the token before the span, the flat position of the token after
    it, and the offset of the target within the span.
    """
    states = last.flatten(0, 1)
    before, after, places = boundaries.unbind(-1)
    # An embedding lookup, not an index: a token may bound several spans, and the gradient of an index is summed by
    # threads in no fixed order.
    edges = (functional.embedding(some, states) for some in (before, after))
    return model.heads["sbo"](*edges, places)  # type: ignore[no-any-return]


def next_sentence_loss(
    model: Backbone, last: Tensor, is_random: Tensor, total: int | None = None, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the next-sentence loss and the logits, (B, 2); target 1 means that B is a random sentence."""
    return _pair_loss(model, "nsp", last, is_random, total, mask)


def sentence_order_loss(
    model: Backbone, last: Tensor, is_swapped: Tensor, total: int | None = None, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the sentence-order loss (ALBERT, section 3.1) and the logits, (B, 2); target 1 means a swapped pair."""
    return _pair_loss(model, "sop", last, is_swapped, total, mask)


def relation_loss(
    model: Backbone, last: Tensor, relations: Tensor, total: int | None = None, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the relation loss and the logits, (B, 3); targets: 0 follows, 1 other document, 2 same document."""
    return _pair_loss(model, "relation", last, relations, total, mask)


def _pair_loss(
    model: Backbone, head: HeadName, last: Tensor, labels: Tensor, total: int | None, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    logits = model.heads[head](model.pooled(last, mask))
    summed = functional.cross_entropy(logits.float(), labels, reduction="sum")
    return summed / (len(labels) if total is None else total), logits


# Logit of positions that cannot be an answer. It is finite, so that the difference of two such logits is 0, not NaN.
IMPOSSIBLE = -1e4


def task_logits(
    model: Backbone, head: HeadName, last: Tensor, sizes: Sequence[int], real: Tensor | None = None
) -> Tensor:
    """Return the logits of a task head, with the classes in the last dimension.

    Args:
        model: A model with this head.
        head: Name of the head.
        last: Last hidden states, (B, T, H).
        sizes: Number of batch rows per example: the number of options for a choice, otherwise one.
        real: True at real tokens, (B, T). Padding is never an answer, so results do not depend on the rest of a batch.

    Returns:
        - sequence: (N, labels)
        - token: (N, T, labels)
        - span: (N, 2, T), start and end positions
        - choice: (N, C), where C is the largest number of options; missing options are minus infinity
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
    """Return the contribution of a micro-batch to the mean loss over the ``total`` targets of its batch.

    Integer targets use cross-entropy (``IGNORED`` targets are skipped), float targets of shape (N,) use squared error,
    and float targets of shape (N, labels) use binary cross-entropy per label. ``weights`` are the label weights.
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
