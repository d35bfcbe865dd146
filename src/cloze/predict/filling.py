"""The best words for blanks, each blank on its own (Devlin et al. 2019, section 3.1).

Dimensions: M blanks of a batch, V vocabulary.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cloze.predict.batching import Batch
from cloze.predict.results import Filled
from cloze.text import Encoding

if TYPE_CHECKING:
    from cloze.predict.model import Model

# Blanks that are compared with the vocabulary at once: a row of it for each of a batch's tokens would be 250 MB.
_HELD = 128


@torch.inference_mode()
def fill_blanks(model: "Model", encodings: Sequence[Encoding], top: int) -> list[list[list[Filled]]]:
    """The best words for each ``[MASK]`` of each sequence."""

    def step(batch: Batch) -> list[list[list[Filled]]]:
        blanks = batch.ids == model.tokenizer.mask_id
        needed = blanks.flatten().nonzero().flatten()
        states = model.bert(batch.ids, batch.segments, batch.mask, needed).last[blanks]  # (M, H)
        words = iter([words for part in states.split(_HELD) for words in _best(model, part, top)])
        return [[next(words) for _ in range(count)] for count in blanks.sum(1).tolist()]

    return model.run(encodings, step)


def _best(model: "Model", states: Tensor, top: int) -> list[list[Filled]]:
    probabilities = model.bert.heads["mlm"](states).softmax(-1)  # (M, V)
    # The table may have more rows than there are pieces.
    best = probabilities[:, : model.tokenizer.size].topk(min(top, model.tokenizer.size))
    return [
        [Filled(model.tokenizer.piece(piece), value) for value, piece in zip(values, pieces, strict=True)]
        for values, pieces in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]
