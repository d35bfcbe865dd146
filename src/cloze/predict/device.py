"""On which device a model computes."""

import torch

from cloze.errors import ConfigError


def choose_device(name: str | None) -> torch.device:
    """The device with this name, or the best one that is there."""
    if name is None:
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        probe = torch.zeros(1, device=name)
        probe.item()  # fails on "meta", which has no memory
        return probe.device
    # ImportError: some devices are packages of their own.
    except (RuntimeError, AssertionError, ImportError) as error:
        raise ConfigError(f"device {name!r} is not to be had here; use 'cpu', or leave --device out") from error
