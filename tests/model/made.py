"""Small random models and vocabularies."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch

from cloze.checkpoint import ModelFolder, TaskLabels, save_folder
from cloze.model import Backbone, Bert, BertConfig, HeadName
from cloze.model.adapters import Attachment, attach
from cloze.text import SPECIAL, Tokenizer

SMALL = BertConfig(vocab_size=60, hidden_size=16, layers=3, heads=2, feedforward_size=24, positions=32)
WORDS = ["the", "cat", "sat", "on", "a", "mat", "dog", "ran", "##s", "##ing", ".", ",", "[", "]", "sep", "猫", "坐"]


def vocabulary(size: int) -> list[str]:
    """Return a vocabulary of this size: the special tokens, some words, and synthetic pieces."""
    pieces = [*SPECIAL, *WORDS]
    return [*pieces, *(f"word{index}" for index in range(size - len(pieces)))][:size]


def random_bert(
    config: BertConfig = SMALL, heads: Collection[HeadName] = (), *, labels: int = 2, pooler: bool | None = None
) -> Bert:
    """Return a model in which every parameter, including biases and norms, is random and large enough to matter."""
    model = Bert(config, heads, labels=labels, pooler=pooler).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.1 * noise if "norm.weight" in name else 0.3 * noise)
    return model


ATTACHED = {"houlsby": Attachment("houlsby", "token", 2, 4), "lora": Attachment("lora", "token", 2, 4)}


def attached_bert(config: BertConfig, way: str) -> Bert:
    """Return a random model, with a random attachment if ``way`` names one."""
    model = random_bert(config)
    if way in ATTACHED:
        attach(model, ATTACHED[way], seed=1)
        generator = torch.Generator().manual_seed(5)
        for parameter in model.requires_grad_().parameters():  # parameters that start at zero would hide errors
            parameter.data.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def model_folder(
    heads: Collection[HeadName] = (),
    *,
    config: BertConfig = SMALL,
    labels: int = 2,
    task: TaskLabels | None = None,
    pooler: bool | None = None,
) -> ModelFolder:
    """Return a random model with a matching tokenizer."""
    tokenizer = Tokenizer.from_vocabulary(
        vocabulary(config.vocab_size), lowercase=True, max_length=min(config.positions, 32)
    )
    return ModelFolder(random_bert(config, heads, labels=labels, pooler=pooler), tokenizer, task)


def saved(contents: ModelFolder, folder: Path) -> Path:
    """Save a model and return the folder."""
    save_folder(contents, folder)
    return folder


def assert_close(ours: Any, theirs: Any) -> None:
    """Compare with a tolerance of 1e-5: a different summation order changes results by less, an error by more."""
    torch.testing.assert_close(torch.as_tensor(ours), torch.as_tensor(theirs), atol=1e-5, rtol=0.0, check_dtype=False)


def assert_same_weights(ours: Backbone, expected: Backbone) -> None:
    """Require bit-identical weights under the same names."""
    tensors = expected.state_dict()
    assert ours.state_dict().keys() == tensors.keys()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in ours.state_dict().items())


# Nearly every combination of heads that a folder may have.
EVERY_HEADS: list[list[HeadName]] = [
    [],
    ["mlm"],
    ["nsp"],
    ["mlm", "nsp"],
    ["mlm", "sop", "sbo"],
    ["sequence"],
    ["token"],
    ["span"],
    ["choice"],
]


def peak_memory(work: Callable[[], object]) -> int:
    """Return the peak bytes of the tensors that a function allocates, from the profiler's allocations."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    total = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        total += event.nbytes()
        peak = max(peak, total)
    return peak
