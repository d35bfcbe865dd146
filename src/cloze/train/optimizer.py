"""AdamW as BERT uses it: no decay on biases and LayerNorm."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from cloze.train.team import share, whole

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


def set_rate(optimizer: AdamW, rate: float) -> None:
    """Use this learning rate from now on."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def optimizer_tensors(optimizer: AdamW) -> dict[str, Tensor]:
    """The moments of every parameter as flat names, for a file that holds tensors alone."""
    state: Mapping[int, Mapping[str, Tensor]] = optimizer.state_dict()["state"]
    return {f"{index}.{name}": whole(tensor) for index, values in state.items() for name, tensor in values.items()}


def restore_optimizer(optimizer: AdamW, tensors: Mapping[str, Tensor]) -> None:
    """The inverse of ``optimizer_tensors``."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        index, _, name = key.partition(".")
        held = torch.clone(tensor)
        if tensor.ndim:  # the count of steps is a number of its own
            held = share(held, parameters[int(index)])
        state.setdefault(int(index), {})[name] = held
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
