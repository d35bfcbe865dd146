"""AdamW as BERT uses it: no decay on biases and LayerNorm, a linear warm-up, a linear way back to zero."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim import AdamW

BETAS = (0.9, 0.999)
EPSILON = 1e-8


def make_optimizer(module: nn.Module, rate: float, weight_decay: float) -> AdamW:
    """An optimizer of every parameter that is not frozen."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    # Matrices and embeddings have two dimensions; biases and LayerNorm have one, and shrinking those helps nobody.
    groups = [
        {
            "params": [parameter for parameter in parameters if parameter.ndim > 1],
            "weight_decay": weight_decay,
        },
        {"params": [parameter for parameter in parameters if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=rate, betas=BETAS, eps=EPSILON, fused=True)


def rate_at(step: int, steps: int, warmup: int, peak: float) -> float:
    """The learning rate of a step, counted from 0: up to the peak over the warm-up, then down to zero at the end."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * max(0, steps - step) / max(1, steps - warmup)


def set_rate(optimizer: AdamW, rate: float) -> None:
    """Use this learning rate from now on."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def optimizer_tensors(optimizer: AdamW) -> dict[str, Tensor]:
    """The moments of every parameter as flat names, for a file that holds tensors alone."""
    state: Mapping[int, Mapping[str, Tensor]] = optimizer.state_dict()["state"]
    return {f"{index}.{name}": tensor for index, values in state.items() for name, tensor in values.items()}


def restore_optimizer(optimizer: AdamW, tensors: Mapping[str, Tensor]) -> None:
    """The inverse of ``optimizer_tensors``."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = torch.clone(tensor)
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
