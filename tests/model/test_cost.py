"""Estimated parameters, FLOPs and memory, compared with real models."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from cloze.errors import ConfigError
from cloze.model import PRESETS, Bert, BertConfig, HeadName, first_positions, preset
from cloze.model.cost import count_activations, count_flops, count_parameters, estimate
from cloze.model.losses import (
    masked_word_logits,
    masked_word_loss,
    next_sentence_loss,
    span_boundary_logits,
)
from tests.model.made import EVERY_HEADS, peak_memory

SHAPE = BertConfig(vocab_size=500, hidden_size=64, layers=3, heads=4, feedforward_size=256, positions=64)
CONFIGS = {
    "bert": SHAPE,
    "albert": replace(SHAPE, embedding_size=24, shared_layers=True),
    "factorised": replace(SHAPE, embedding_size=64),
}
BATCH, LENGTH, CHOSEN = 4, 64, 32


@pytest.mark.parametrize("heads", EVERY_HEADS, ids=lambda heads: " ".join(heads) or "none")
@pytest.mark.parametrize(
    "config",
    [
        *(preset(name) for name in PRESETS),
        *CONFIGS.values(),
        preset("base", 30000, embedding_size=128, shared_layers=True),
    ],
    ids=[*PRESETS, *CONFIGS, "albert-base"],
)
def test_parameters(config: BertConfig, heads: list[HeadName]) -> None:
    with torch.device("meta"):
        assert count_parameters(config, heads, labels=5) == Bert(config, heads, labels=5).parameter_count()
        with_pooler = Bert(config, heads, labels=5, pooler=True).parameter_count()
    assert count_parameters(config, heads, labels=5, pooler=True) == with_pooler


def test_albert_base_has_its_published_size() -> None:
    config = preset("base", 30000, embedding_size=128, shared_layers=True)
    assert round(count_parameters(config, pooler=True) / 1e6) == 12  # table 1 of the paper


def step(model: Bert) -> None:
    """Run the forward and backward pass with all heads."""
    ids = torch.randint(1, 500, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))
    chosen = torch.arange(CHOSEN) * 8 + 1
    needed = {"mlm": chosen, "mlm nsp": torch.cat([first_positions(ids), chosen])}.get(" ".join(model.heads))
    last = model(ids, torch.zeros_like(ids), None, needed).last
    loss = masked_word_loss(masked_word_logits(model, last, chosen), ids.flatten()[chosen])
    if "nsp" in model.heads:
        loss = loss + next_sentence_loss(model, last, torch.zeros(BATCH, dtype=torch.long))[0]
    if "sbo" in model.heads:
        boundaries = torch.stack([chosen, chosen + 2, torch.zeros_like(chosen)], dim=-1)
        loss = loss + masked_word_loss(span_boundary_logits(model, last, boundaries), ids.flatten()[chosen])
    loss.backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("heads", [["mlm"], ["mlm", "nsp"], ["mlm", "sbo"]], ids=" ".join)
@pytest.mark.parametrize("name", CONFIGS)
def test_arithmetic(name: str, heads: list[HeadName], checkpointing: bool) -> None:
    model = Bert.fresh(CONFIGS[name], heads).train()
    model.encoder.checkpointing = checkpointing
    with FlopCounterMode(display=False) as counter:
        step(model)
    share = CHOSEN / (BATCH * LENGTH)
    counted = counter.get_total_flops() / (BATCH * LENGTH)
    expected = count_flops(CONFIGS[name], heads, LENGTH, chosen=share, checkpointing=checkpointing)
    # Nearly exact: the estimate omits the two outputs of the sentence head.
    assert counted == pytest.approx(expected, rel=1e-4)


def highest(config: BertConfig, heads: list[HeadName], checkpointing: bool) -> int:
    """Return the peak tensor bytes of a step, from the profiler's allocations; gradients are allocated before."""
    model = Bert.fresh(config, heads).train()
    model.encoder.checkpointing = checkpointing
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return peak_memory(lambda: step(model))


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("heads", [["mlm", "nsp"], ["mlm", "sbo"]], ids=" ".join)
@pytest.mark.parametrize("name", CONFIGS)
def test_memory(name: str, heads: list[HeadName], dropout: float, checkpointing: bool) -> None:
    config = replace(CONFIGS[name], layers=6, dropout=dropout, attention_dropout=dropout)
    expected = count_activations(
        config,
        heads,
        BATCH,
        LENGTH,
        chosen=CHOSEN / (BATCH * LENGTH),
        explicit=dropout > 0,
        checkpointing=checkpointing,
    )
    # With checkpointing, temporary buffers dominate, and their estimate is less accurate.
    assert expected == pytest.approx(highest(config, heads, checkpointing), rel=0.1 if checkpointing else 0.035)


def test_estimate_puts_it_together() -> None:
    config = preset("base")
    whole = estimate(config, ["mlm", "nsp"], batch=2, length=512)
    assert whole.parameters == count_parameters(config, ["mlm", "nsp"])
    assert whole.weight_bytes == whole.gradient_bytes == 4 * whole.parameters
    assert whole.optimizer_bytes == 8 * whole.parameters
    # Rule of thumb: six FLOPs per layer parameter and token; attention and the masked-LM head add to that.
    layers = 12 * (4 * 768 * 768 + 2 * 768 * 3072)
    assert 6 * layers < whole.flops_per_token < 7.5 * layers
    assert whole.total_bytes == 16 * whole.parameters + whole.activation_bytes
    less = estimate(config, ["mlm", "nsp"], batch=2, length=512, checkpointing=True)
    assert less.activation_bytes < whole.activation_bytes / 4
    assert less.flops_per_token > whole.flops_per_token
    fused = estimate(config, ["mlm", "nsp"], batch=2, length=512, explicit=False)
    assert fused.activation_bytes < 0.6 * whole.activation_bytes


@pytest.mark.parametrize(("batch", "length"), [(0, 8), (1, 0), (1, 513)])
def test_impossible_shapes(batch: int, length: int) -> None:
    with pytest.raises(
        ConfigError,
        match=rf"^batch {batch} and length {length}; expected at least one sequence of 1 to 512 tokens$",
    ):
        estimate(preset("tiny"), [], batch=batch, length=length)
