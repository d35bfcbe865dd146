"""Folders <-> models: the HF layout, TensorFlow bundles, hub names, and the state of a training."""

from cloze.checkpoint.config_file import TaskKind, TaskLabels
from cloze.checkpoint.embedding_files import POOLINGS, EmbeddingSettings, Pooling
from cloze.checkpoint.folder import RUN_MODEL, ModelFolder, load_folder, save_folder
from cloze.checkpoint.hub import find_source
from cloze.checkpoint.state import StateStore, TrainingState

__all__ = [
    "POOLINGS",
    "RUN_MODEL",
    "EmbeddingSettings",
    "ModelFolder",
    "Pooling",
    "StateStore",
    "TaskKind",
    "TaskLabels",
    "TrainingState",
    "find_source",
    "load_folder",
    "save_folder",
]
