"""Properties of the encoder for any weights: attention visibility, padding, gradients and initialization."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from cloze.model import Bert, BertConfig
from cloze.model.building_blocks import activation
from cloze.model.encoder import attention_weights
from cloze.model.losses import masked_word_logits, masked_word_loss, next_sentence_loss
from tests.model.made import SMALL, assert_close, random_bert

Batch = tuple[Tensor, Tensor, Tensor]
LENGTHS = torch.tensor([9, 4, 6])


@pytest.fixture
def batch() -> Batch:
    """Ids, segments and mask of three texts, padded with random ids that must not matter."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(1, SMALL.vocab_size, (3, 9), generator=generator)
    segments = torch.randint(0, SMALL.segments, (3, 9), generator=generator)
    return ids, segments, torch.arange(9) < LENGTHS[:, None]


def test_explicit_attention_equals_the_fused_kernel(batch: Batch) -> None:
    encoder = random_bert().encoder
    for mask in (batch[2], None):
        fused = encoder(*batch[:2], mask)
        explicit = encoder(*batch[:2], mask, keep_attentions=True)
        assert fused.attentions == fused.states == ()
        assert_close(explicit.last, fused.last)


def test_bfloat16_on_a_cpu_is_trained_without_the_fused_kernel(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 training on a CPU avoids the fused kernel, whose backward pass is slower; the states agree."""
    encoder = random_bert().encoder
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch.no_grad():
            fused = encoder(*batch).last
        monkeypatch.setattr(functional, "scaled_dot_product_attention", None)
        written_out = encoder(*batch).last
    assert torch.nn.functional.cosine_similarity(written_out[batch[2]], fused[batch[2]], dim=-1).min() > 0.999
    with pytest.raises(TypeError):  # float32 uses the fused kernel
        encoder(*batch)


def test_attention_rows_sum_to_one_over_real_tokens(batch: Batch) -> None:
    output = random_bert().encoder(*batch, keep_attentions=True)
    assert len(output.attentions) == SMALL.layers
    for weights in output.attentions:
        assert_close(weights.sum(-1), torch.ones(3, SMALL.heads, 9))
        assert not weights.transpose(-1, 1)[~batch[2]].any()  # (B, T, from, heads): padding gets no attention
        assert (weights.transpose(-1, 1)[batch[2]] > 0).all()


def test_padding_changes_nothing(batch: Batch) -> None:
    model, (ids, segments, mask) = random_bert(), batch
    together = model(ids, segments, mask).last
    for row, length in enumerate(LENGTHS):
        alone = model(ids[row : row + 1, :length], segments[row : row + 1, :length]).last[0]
        assert_close(together[row, :length], alone)


def test_every_parameter_gets_a_gradient(batch: Batch) -> None:
    model, (ids, segments, mask) = random_bert(heads=["mlm", "nsp"]), batch
    last = model(ids, segments, mask).last
    words = masked_word_loss(masked_word_logits(model, last, torch.tensor([1, 10, 20])), torch.tensor([5, 6, 7]))
    loss = words + next_sentence_loss(model, last, torch.tensor([0, 1, 0]))[0]
    loss.backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 1e-8, name
    # Only the decoder updates the row of [PAD]; looking up padding contributes no gradient.
    lookup = random_bert()
    lookup(torch.zeros_like(ids), segments).last.square().sum().backward()
    gradient = lookup.encoder.embeddings.token.weight.grad
    assert gradient is not None
    assert not gradient[SMALL.pad_id].any()


def test_three_lookups_are_one_matrix_product(batch: Batch) -> None:
    """[one-hot token, one-hot segment, one-hot position] times the stacked tables equals the summed look-ups."""
    table, (ids, segments, _) = random_bert().encoder.embeddings, batch
    positions = torch.arange(9).expand(3, 9)
    one_hot = torch.cat(
        [
            functional.one_hot(ids, SMALL.vocab_size),
            functional.one_hot(segments, SMALL.segments),
            functional.one_hot(positions, SMALL.positions),
        ],
        dim=-1,
    ).float()
    stacked = torch.cat([table.token.weight, table.segment.weight, table.position.weight])
    assert_close(table.norm(one_hot @ stacked), table(ids, segments))


def test_chosen_positions_give_the_same_logits_and_loss(batch: Batch) -> None:
    model, (ids, segments, mask) = random_bert(heads=["mlm"]), batch
    last = model(ids, segments, mask).last
    positions = torch.tensor([1, 5, 9, 12, 23])
    chosen = masked_word_logits(model, last, positions)
    full = model.heads["mlm"](last)
    assert_close(chosen, full.flatten(0, 1)[positions])
    labels = torch.full((27,), -100)
    labels[positions] = targets = torch.tensor([3, 14, 15, 9, 2])
    expected = functional.cross_entropy(full.flatten(0, 1), labels)
    assert_close(masked_word_loss(chosen, targets), expected)


def test_nothing_chosen_is_no_loss_and_no_gradient(batch: Batch) -> None:
    model = random_bert(heads=["mlm"])
    nothing = torch.zeros(0, dtype=torch.long)
    loss = masked_word_loss(masked_word_logits(model, model(*batch).last, nothing), nothing)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss == 0
    assert not model.encoder.embeddings.token.weight.grad.any()  # type: ignore[union-attr]


def test_gelu_is_exact() -> None:
    values = torch.linspace(-5, 5, 101, dtype=torch.float64)
    exact = torch.tensor([x * (1 + math.erf(x / math.sqrt(2))) / 2 for x in values.tolist()], dtype=torch.float64)
    torch.testing.assert_close(activation("gelu")(values), exact, atol=1e-12, rtol=0)
    assert (activation("gelu_new")(values) - exact).abs().max() > 1e-4  # the tanh approximation is a different function


def test_fresh_weights() -> None:
    config = BertConfig(vocab_size=2000, hidden_size=64, layers=2, heads=2, feedforward_size=128, positions=64)
    model = Bert.fresh(config, ["mlm", "nsp"], seed=1)
    # A normal distribution truncated at two standard deviations retains 0.8796 of its deviation.
    expected = 0.8796 * config.initial_deviation
    for name, parameter in model.named_parameters():
        if "norm.weight" in name:
            assert (parameter == 1).all(), name
        elif parameter.ndim == 1:
            assert (parameter == 0).all(), name
        else:
            assert parameter.abs().max() <= 2 * config.initial_deviation, name
            spread = 5 / math.sqrt(2 * parameter.numel())  # five standard errors of a standard deviation
            assert parameter.std().item() == pytest.approx(expected, rel=spread + 0.02), name
    assert not model.encoder.embeddings.token.weight[config.pad_id].any()


def test_same_seed_same_weights() -> None:
    first, again, other = (Bert.fresh(SMALL, ["mlm"], seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    matrices = [name for name, tensor in first.items() if tensor.ndim == 2]
    assert not any(torch.equal(first[name], other[name]) for name in matrices)


@pytest.mark.parametrize("length", [1, 31, 32, 45, 64])
def test_attention_in_bfloat16_is_rounded_once(length: int) -> None:
    """bfloat16 attention weights equal the float32 softmax of the same scores, rounded once, by either method."""
    torch.manual_seed(0)
    query, key = torch.randn(2, 2, 3, length, 8).bfloat16()
    mask = torch.ones(2, 1, 1, length, dtype=torch.bool)
    mask[1, ..., length // 2 + 1 :] = False
    weights = attention_weights(query, key, mask)
    scores = (query * 8**-0.5 @ key.transpose(-2, -1)).float().masked_fill(~mask, float("-inf"))
    assert weights.dtype == torch.bfloat16
    torch.testing.assert_close(weights, scores.softmax(-1).bfloat16(), rtol=2**-7, atol=1e-6)
    assert (weights[1, ..., length // 2 + 1 :] == 0).all()
