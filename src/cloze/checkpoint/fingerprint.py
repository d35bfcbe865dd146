"""What tells a model from all that answer otherwise."""

import hashlib

import torch
from torch import Tensor

from cloze.checkpoint.folder import ModelFolder


def fingerprint(folder: ModelFolder) -> str:
    """The SHA-256 of all that decides a model's answers: weights, adapters, words, labels, and how vectors are made."""
    digest = hashlib.sha256()
    embedding = folder.embedding
    for said in (folder.model.config, folder.tokenizer.settings, folder.task, embedding.pooling, embedding.normalize):
        digest.update(f"{said!r}\n".encode())
    for name, tensor in sorted(folder.model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        digest.update(_bytes(tensor))
    for projection in embedding.projections:
        digest.update(f"{projection.activation} {tuple(projection.weight.shape)}\n".encode())
        digest.update(_bytes(projection.weight))
        digest.update(_bytes(projection.bias))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
