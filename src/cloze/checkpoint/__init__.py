"""Read and write model folders (Hugging Face layout, TensorFlow checkpoints, hub models) and training checkpoints."""

from cloze.checkpoint.adapter_folder import any_fingerprint, base_files, load_any, save_adapter
from cloze.checkpoint.folder import (
    RUN_MODEL,
    AdapterInfo,
    ModelFolder,
    find_model,
    load_folder,
    save_folder,
    weights_fingerprint,
)
from cloze.checkpoint.pooling_files import POOLINGS, EmbeddingSettings, Pooling
from cloze.checkpoint.training_state import StateStore, TrainingState
from cloze.models import find_source
from cloze.tasks.kind import TaskLabels

__all__ = [
    "POOLINGS",
    "RUN_MODEL",
    "AdapterInfo",
    "EmbeddingSettings",
    "ModelFolder",
    "Pooling",
    "StateStore",
    "TaskLabels",
    "TrainingState",
    "any_fingerprint",
    "base_files",
    "find_model",
    "find_source",
    "load_any",
    "load_folder",
    "save_adapter",
    "save_folder",
    "weights_fingerprint",
]
