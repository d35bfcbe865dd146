"""BERT, from raw text to a running service.

The public API consists of the names in ``__all__``. Importing ``cloze`` is fast, because torch and other large packages
are imported only when one of these names is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cloze.hardware import avoid_hidden_tiles

__version__ = "0.2.0"

__all__ = [
    "AdaptSettings",
    "ClozeError",
    "CompareSettings",
    "DistillSettings",
    "FinetuneRun",
    "FinetuneSettings",
    "Hit",
    "Index",
    "IndexSettings",
    "Model",
    "PrepareSettings",
    "PretrainSettings",
    "SearchSettings",
    "Source",
    "TextDistillSettings",
    "VocabularySettings",
    "adapt",
    "compare",
    "convert",
    "distill",
    "evaluate",
    "extend",
    "find_label_errors",
    "finetune",
    "index",
    "load",
    "open_index",
    "prepare",
    "pretrain",
    "search",
    "show",
    "suggest",
    "train_vocabulary",
]

avoid_hidden_tiles()

# The module of each public name.
_HOMES = {
    "load": "cloze.predict",
    "Model": "cloze.predict",
    "evaluate": "cloze.predict",
    "index": "cloze.predict.search.building",
    "open_index": "cloze.predict.search.index",
    "Index": "cloze.predict.search.index",
    "Hit": "cloze.predict.search.query",
    "IndexSettings": "cloze.options",
    "show": "cloze.inspect.views.page",
    "train_vocabulary": "cloze.corpus.learn_vocabulary",
    "prepare": "cloze.corpus.preparation.prepare",
    "pretrain": "cloze.train.pretraining.pretrain",
    "finetune": "cloze.train.finetuning.python_api",
    "search": "cloze.train.finetuning.search",
    "adapt": "cloze.train.finetuning.python_api",
    "distill": "cloze.train.finetuning.python_api",
    "FinetuneRun": "cloze.train.finetuning.python_api",
    "compare": "cloze.comparison.compare",
    "find_label_errors": "cloze.train.finetuning.label_quality",
    "suggest": "cloze.train.finetuning.label_quality",
    "convert": "cloze.checkpoint.convert",
    "extend": "cloze.checkpoint.convert",
    "VocabularySettings": "cloze.corpus.settings",
    "PrepareSettings": "cloze.corpus.settings",
    "PretrainSettings": "cloze.train.settings",
    "FinetuneSettings": "cloze.train.finetuning.settings",
    "SearchSettings": "cloze.train.finetuning.settings",
    "AdaptSettings": "cloze.train.distillation.settings",
    "CompareSettings": "cloze.comparison.settings",
    "DistillSettings": "cloze.train.distillation.settings",
    "TextDistillSettings": "cloze.train.distillation.settings",
    "MiningSettings": "cloze.tasks.retrieval.kind",
    "mine_negatives": "cloze.predict.mining",
    "Source": "cloze.tasks.rows",
    "RetrievalData": "cloze.tasks.retrieval.kind",
    "TrainingPairs": "cloze.tasks.retrieval.kind",
    "read_retrieval": "cloze.tasks.retrieval.examples",
    "read_training_pairs": "cloze.tasks.retrieval.examples",
    "ClozeError": "cloze.errors",
}

if TYPE_CHECKING:
    from cloze.checkpoint.convert import convert as convert
    from cloze.checkpoint.convert import extend as extend
    from cloze.comparison.compare import compare as compare
    from cloze.comparison.settings import CompareSettings as CompareSettings
    from cloze.corpus.learn_vocabulary import train_vocabulary as train_vocabulary
    from cloze.corpus.preparation.prepare import prepare as prepare
    from cloze.corpus.settings import PrepareSettings as PrepareSettings
    from cloze.corpus.settings import VocabularySettings as VocabularySettings
    from cloze.errors import ClozeError as ClozeError
    from cloze.inspect.views.page import show as show
    from cloze.options import IndexSettings as IndexSettings
    from cloze.predict import Model as Model
    from cloze.predict import evaluate as evaluate
    from cloze.predict import load as load
    from cloze.predict.mining import mine_negatives as mine_negatives
    from cloze.predict.search.building import index as index
    from cloze.predict.search.index import Index as Index
    from cloze.predict.search.index import open_index as open_index
    from cloze.predict.search.query import Hit as Hit
    from cloze.tasks.retrieval.examples import read_retrieval as read_retrieval
    from cloze.tasks.retrieval.examples import read_training_pairs as read_training_pairs
    from cloze.tasks.retrieval.kind import MiningSettings as MiningSettings
    from cloze.tasks.retrieval.kind import RetrievalData as RetrievalData
    from cloze.tasks.retrieval.kind import TrainingPairs as TrainingPairs
    from cloze.tasks.rows import Source as Source
    from cloze.train.distillation.settings import AdaptSettings as AdaptSettings
    from cloze.train.distillation.settings import DistillSettings as DistillSettings
    from cloze.train.distillation.settings import TextDistillSettings as TextDistillSettings
    from cloze.train.finetuning.label_quality import find_label_errors as find_label_errors
    from cloze.train.finetuning.label_quality import suggest as suggest
    from cloze.train.finetuning.python_api import FinetuneRun as FinetuneRun
    from cloze.train.finetuning.python_api import adapt as adapt
    from cloze.train.finetuning.python_api import distill as distill
    from cloze.train.finetuning.python_api import finetune as finetune
    from cloze.train.finetuning.search import search as search
    from cloze.train.finetuning.settings import FinetuneSettings as FinetuneSettings
    from cloze.train.finetuning.settings import SearchSettings as SearchSettings
    from cloze.train.pretraining.pretrain import pretrain as pretrain
    from cloze.train.settings import PretrainSettings as PretrainSettings


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'cloze' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*_HOMES, "__version__"])
