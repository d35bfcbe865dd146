"""Frozen features (section 5.3 of the paper): the encoder stays frozen, and a small reader feeds its states to a head.

The features are the last layer, the last four concatenated, or all layers and the embeddings mixed with learned weights
(ELMo, Peters et al., 2018). The head reads them directly, or through a two-layer BiLSTM, as in the paper's table 7.

Dimensions: B sequences, T tokens, H hidden size, K states that are read, F feature width, S LSTM width.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from cloze.model.building_blocks import EncoderOutput, initialise
from cloze.model.config import BertConfig
from cloze.options import FeatureHead, Features

# The ``encode`` method of a backbone.
Encode = Callable[..., EncoderOutput]


class Reader(nn.Module):
    """Frozen states -> the input of a head: one vector per token, or one per text for pooled heads.

    The states are the same in every epoch and may be cached in ``kept``; the cache is used in training and is not part
    of the model.
    """

    kept: Mapping[bytes, Tensor]  # key of a row -> its states, (K, T, H)

    def __init__(self, config: BertConfig, reads: Features, head: FeatureHead, size: int, pools: bool) -> None:
        super().__init__()
        self.reads, self.pools = reads, pools
        self.count = {"last": 1, "last4": min(4, config.layers + 1), "mix": config.layers + 1}[reads]
        self.weights = nn.Parameter(torch.zeros(self.count)) if reads == "mix" else None
        self.scale = nn.Parameter(torch.ones(1)) if reads == "mix" else None
        width = config.hidden_size * (1 if reads == "mix" else self.count)
        self.lstm = None
        if head == "lstm":
            self.lstm = nn.LSTM(width, size, num_layers=2, bidirectional=True, batch_first=True)
        self.width = width if self.lstm is None else 2 * size  # F
        self.kept = {}

    def start(self, deviation: float, generator: torch.Generator) -> None:
        """Initialise: equal weights for all states, a random LSTM."""
        initialise(self, deviation, generator)
        if self.lstm is not None:
            for parameter in self.lstm.parameters():
                # PyTorch's default initialisation, drawn from the given generator.
                nn.init.uniform_(parameter, -(self.lstm.hidden_size**-0.5), self.lstm.hidden_size**-0.5, generator)
        if self.weights is not None and self.scale is not None:
            nn.init.zeros_(self.weights)
            nn.init.ones_(self.scale)

    def forward(self, encode: Encode, ids: Tensor, segments: Tensor, mask: Tensor | None) -> Tensor:
        """(B, T) ids, segments and mask -> (B, T, F), or (B, 1, F) if it pools."""
        states = self._kept_states(ids, segments, mask) if self.training and self.kept else None
        if states is None:
            states = self.states(encode, ids, segments, mask)
        return self.read(states, torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool())

    def read(self, states: Tensor, real: Tensor) -> Tensor:
        """Combine the selected states: (B, K, T, H), (B, T) -> (B, T, F), or (B, 1, F) if it pools."""
        read = self._side_by_side(states)
        if self.lstm is not None:
            read = _through(self.lstm, read, real)
        if not self.pools:
            return read
        # A frozen [CLS] has not learned to summarise the text: the mean of all tokens carries more.
        weights = real.unsqueeze(-1).to(read.dtype)
        return (read * weights).sum(1, keepdim=True) / weights.sum(1, keepdim=True).clamp(min=1)

    @torch.no_grad()
    def states(self, encode: Encode, ids: Tensor, segments: Tensor, mask: Tensor | None) -> Tensor:
        """Run the frozen backbone and return the states that are read, (B, K, T, H)."""
        return self.choose(encode(ids, segments, mask, keep_states=self.needs_states))

    @property
    def needs_states(self) -> bool:
        """Whether the backbone must return the states of all layers."""
        return self.reads != "last"

    def choose(self, output: EncoderOutput) -> Tensor:
        """Select the states that are read from the output of a backbone: (B, K, T, H)."""
        return torch.stack(output.states[-self.count :] if output.states else [output.last], 1)

    def _side_by_side(self, states: Tensor) -> Tensor:
        """Mix or concatenate the states: (B, K, T, H) -> (B, T, H) or (B, T, K H)."""
        if self.weights is None or self.scale is None:
            return states.transpose(1, 2).flatten(2)
        return self.scale * torch.einsum("k,bkth->bth", self.weights.softmax(0), states)

    def _kept_states(self, ids: Tensor, segments: Tensor, mask: Tensor | None) -> Tensor | None:
        """Return the cached states of a batch, zero at padding; None if a row is not cached."""
        lengths = [ids.shape[1]] * len(ids) if mask is None else mask.sum(1).tolist()
        rows = zip(ids.tolist(), segments.tolist(), lengths, strict=True)
        cached = [self.kept.get(key(row[:length], kinds[:length])) for row, kinds, length in rows]
        known = [states for states in cached if states is not None]
        if len(known) < len(cached):
            return None
        batch = known[0].new_zeros(len(known), self.count, ids.shape[1], known[0].shape[-1])
        for row, states in zip(batch, known, strict=True):
            row[:, : states.shape[1]] = states
        return batch


def key(ids: list[int], segments: list[int]) -> bytes:
    """Return the cache key of a row: its states follow from these ids and segments."""
    return torch.tensor([ids, segments]).numpy().tobytes()


def _through(lstm: nn.LSTM, read: Tensor, real: Tensor) -> Tensor:
    """Run an LSTM: (B, T, F) -> (B, T, 2 S); each sequence ends at its own length, whatever the others are."""
    packed = pack_padded_sequence(read, real.sum(1).cpu(), batch_first=True, enforce_sorted=False)
    output, _ = pad_packed_sequence(lstm(packed)[0], batch_first=True, total_length=read.shape[1])
    return output
