"""LoRA (Hu et al., 2021): a change of the weights that has a low rank, and so few numbers.

The change goes to the projections of query and value, as in the paper's experiments, which found nothing better at the
same number of parameters. Once trained it can be added to the weights themselves, and then costs nothing.

Dimensions: B sequences, T tokens, H hidden size, R rank.
"""

import torch
from torch import Tensor, nn

from cloze.model.config import BertConfig
from cloze.model.encoder import SelfAttention


class LowRank(nn.Module):
    """What is added to query, key and value side by side: up(down(x)) times alpha / R; nothing to the key."""

    def __init__(self, config: BertConfig, rank: int, alpha: float) -> None:
        super().__init__()
        self.scale = alpha / rank
        width = config.hidden_size
        self.query_down, self.query_up = _pair(width, rank)
        self.value_down, self.value_up = _pair(width, rank)

    def start(self, deviation: float, generator: torch.Generator) -> None:
        """One of the two at random and the other at zero, so that the start is the base to the bit."""
        for down in (self.query_down, self.value_down):
            nn.init.normal_(down.weight, std=deviation, generator=generator)
        for up in (self.query_up, self.value_up):
            nn.init.zeros_(up.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        """(B, T, H) -> (B, T, 3 H)."""
        query = self.query_up(self.query_down(hidden))
        value = self.value_up(self.value_down(hidden))
        return self.scale * torch.cat([query, torch.zeros_like(query), value], -1)

    def weight(self) -> Tensor:
        """The change as one matrix, (3 H, H)."""
        query = self.query_up.weight @ self.query_down.weight
        value = self.value_up.weight @ self.value_down.weight
        return self.scale * torch.cat([query, torch.zeros_like(query), value])


def _pair(width: int, rank: int) -> tuple[nn.Linear, nn.Linear]:
    return nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)


@torch.no_grad()
def merge(attention: SelfAttention) -> None:
    """Make the change part of the weights."""
    if isinstance(attention.low_rank, LowRank):
        attention.query_key_value.weight += attention.low_rank.weight()
        attention.low_rank = None
