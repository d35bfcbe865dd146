import torch
from torch import nn

from cloze.train.optimization import make_optimizer, optimizer_tensors, restore_optimizer, set_rate


def make_module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))


def test_epsilon_is_that_of_the_settings() -> None:
    module = torch.nn.Linear(2, 2)
    assert make_optimizer(module, 1e-3, 0.01).defaults["eps"] == 1e-8
    assert make_optimizer(module, 1e-3, 0.01, epsilon=1e-6).defaults["eps"] == 1e-6


def test_vectors_do_not_decay_and_frozen_parameters_are_left_out() -> None:
    module = make_module()
    module[3].weight.requires_grad_(False)  # type: ignore[index]
    decayed, others = make_optimizer(module, 1e-3, 0.01).param_groups
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.01, 0.0)
    assert [tuple(parameter.shape) for parameter in decayed["params"]] == [(5, 4), (3, 4)]
    assert [tuple(parameter.shape) for parameter in others["params"]] == [(3,), (3,), (3,), (2,)]


def advance(module: nn.Module, optimizer: torch.optim.AdamW, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        module(torch.tensor([step % 5, 1])).square().sum().backward()
        set_rate(optimizer, 0.01 * (step + 1))
        optimizer.step()


def test_state_survives_the_way_through_tensors() -> None:
    module, restored = make_module(), make_module()
    optimizer = make_optimizer(module, 1e-3, 0.01)
    advance(module, optimizer, range(3))
    restored.load_state_dict(module.state_dict())
    tensors = optimizer_tensors(optimizer)
    assert {name.partition(".")[2] for name in tensors} == {"step", "exp_avg", "exp_avg_sq"}
    other = make_optimizer(restored, 1e-3, 0.01)
    restore_optimizer(other, tensors)
    advance(module, optimizer, range(3, 6))
    advance(restored, other, range(3, 6))
    for one, two in zip(module.parameters(), restored.parameters(), strict=True):
        assert torch.equal(one, two)
    # Six steps each; if both shared their moments, the counter would be nine.
    assert {int(tensor) for name, tensor in tensors.items() if name.endswith(".step")} == {6}
