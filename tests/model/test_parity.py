"""The same weights in ``transformers`` and in cloze: equal intermediate values, loss and gradients."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from cloze.checkpoint import load_folder
from cloze.checkpoint.names import hugging_face_names, joined
from cloze.model import Backbone
from cloze.model.losses import masked_word_logits, masked_word_loss, next_sentence_loss
from cloze.text import write_vocabulary
from tests.model.made import assert_close, vocabulary

ORACLE: Any = transformers  # transformers is only partly typed
IGNORED = -100  # label of positions that are not masked


@dataclass(frozen=True)
class Case:
    """One random model in both libraries, and a batch for them."""

    ours: Backbone
    theirs: Any
    ids: Tensor  # (B, T)
    segments: Tensor  # (B, T)
    mask: Tensor  # (B, T)
    labels: Tensor  # (B, T), IGNORED at positions that are not masked
    is_random: Tensor  # (B,)

    def their_output(self) -> Any:
        return self.theirs(
            input_ids=self.ids,
            token_type_ids=self.segments,
            attention_mask=self.mask.long(),
            labels=self.labels,
            next_sentence_label=self.is_random,
            output_hidden_states=True,
            output_attentions=True,
        )


@pytest.fixture(params=range(10))
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    generator = torch.Generator().manual_seed(request.param)

    def draw(low: int, high: int, shape: tuple[int, ...] = ()) -> Any:
        numbers = torch.randint(low, high + 1, shape, generator=generator)
        return numbers if shape else int(numbers)

    heads = draw(1, 6)
    config = ORACLE.BertConfig(
        vocab_size=draw(30, 300),
        hidden_size=heads * draw(3, 12),
        num_hidden_layers=draw(1, 4),
        num_attention_heads=heads,
        intermediate_size=draw(5, 90),
        max_position_embeddings=draw(20, 60),
        type_vocab_size=draw(1, 4),
        hidden_act=["gelu", "gelu", "gelu_new", "relu"][draw(0, 3)],
        layer_norm_eps=[1e-12, 1e-5][draw(0, 1)],
        attn_implementation="eager",  # the only implementation that returns attention weights
    )
    theirs = ORACLE.BertForPreTraining(config).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.1 * noise if "LayerNorm.weight" in name else 0.15 * noise)
    theirs.save_pretrained(tmp_path)
    write_vocabulary(tmp_path / "vocab.txt", vocabulary(config.vocab_size))
    loaded = load_folder(tmp_path)
    assert loaded.notes == ()

    batch, length = draw(1, 5), draw(4, 20)
    lengths = draw(2, length, (batch,))
    lengths[0] = length
    ids = draw(0, config.vocab_size - 1, (batch, length))
    chosen = torch.rand(batch, length, generator=generator) < 0.3
    chosen[:, 1] = True
    mask = torch.arange(length) < lengths[:, None]
    return Case(
        loaded.model,
        theirs,
        ids,
        draw(0, config.type_vocab_size - 1, (batch, length)),
        mask,
        torch.where(chosen & mask, ids, IGNORED),
        draw(0, 1, (batch,)),
    )


@torch.no_grad()
def test_forward(case: Case) -> None:
    theirs = case.their_output()
    ours = case.ours.encoder(case.ids, case.segments, case.mask, keep_states=True, keep_attentions=True)
    assert len(ours.states) == len(theirs.hidden_states) == case.ours.config.layers + 1
    for our_state, their_state in zip(ours.states, theirs.hidden_states, strict=True):
        assert_close(our_state, their_state)
    for our_weights, their_weights in zip(ours.attentions, theirs.attentions, strict=True):
        assert_close(our_weights, their_weights)
    pooled = case.ours.pooled(ours.last, None)
    assert_close(pooled, case.theirs.bert.pooler(theirs.hidden_states[-1]))
    assert_close(case.ours.heads["mlm"](ours.last), theirs.prediction_logits)
    assert_close(case.ours.heads["nsp"](pooled), theirs.seq_relationship_logits)


def test_loss_and_gradients(case: Case) -> None:
    """The training loss and its gradients agree: masked positions only, with the fused attention kernel."""
    expected = case.their_output().loss
    expected.backward()
    last = case.ours(case.ids, case.segments, case.mask).last
    positions = (case.labels.flatten() != IGNORED).nonzero().flatten()
    words = masked_word_loss(masked_word_logits(case.ours, last, positions), case.labels.flatten()[positions])
    loss = words + next_sentence_loss(case.ours, last, case.is_random)[0]
    loss.backward()  # type: ignore[no-untyped-call]
    assert_close(loss, expected)
    their_gradients = {name: parameter.grad for name, parameter in case.theirs.named_parameters()}
    used: set[str] = set()
    for name, parameter in case.ours.named_parameters():
        names = hugging_face_names(name)
        used.update(names)
        assert_close(parameter.grad, joined(their_gradients[part] for part in names))
    assert used == set(their_gradients)
