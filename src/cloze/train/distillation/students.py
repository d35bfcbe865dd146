"""The student to distil into: some layers of the teacher, a new model, or another model with the same vocabulary.

Also reads rows without labels, which the teacher labels for the student.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cloze.checkpoint import ModelFolder, find_source, load_folder
from cloze.checkpoint.folder import usual_pooling
from cloze.corpus.documents import read_lines
from cloze.errors import ConfigError, DataError
from cloze.model import Backbone, Bert, BertConfig, HeadName, preset
from cloze.model.surgery import with_heads
from cloze.options import HeadPooling
from cloze.tasks.classification.examples import LabelledTexts
from cloze.tasks.in_memory import TableSource
from cloze.tasks.registry import TaskData, find_published, head_of
from cloze.tasks.rows import Source, read_rows
from cloze.tasks.tables import is_table
from cloze.text import Tokenizer
from cloze.text.tokenizer_files import TokenizerSettings
from cloze.train.distillation.settings import DistillSettings, Take

_LAYER = re.compile(r"encoder\.layers\.(\d+)\.")


def make_student(teacher: ModelFolder, settings: DistillSettings) -> Backbone:
    """Return a student with a single head, for the teacher's task."""
    assert teacher.task is not None
    head = head_of(teacher.task.kind)
    if settings.student is not None:
        return _from_folder(teacher, settings.student, settings)
    config = teacher.model.config
    if settings.preset is not None:
        shape = preset(
            settings.preset,
            config.vocab_size,
            positions=config.positions,
            segments=config.segments,
            pad_id=config.pad_id,
        )
        new = Bert.fresh(
            _with_dropout(replace(shape, head_pooling=teacher.model.pooling), settings.dropout),
            (head,),
            labels=teacher.model.labels,
            seed=settings.seed,
        )
        return new.eval()
    layers = max(1, config.layers // 2) if settings.layers is None else settings.layers
    if layers > config.layers:
        raise ConfigError(f"layers is {layers}, but the teacher has {config.layers}; expected at most as many")
    chosen = layers_to_take(config.layers, layers, settings.take or "alternate")
    if teacher.model.reader is None:
        return with_layers(teacher.model, chosen, head, settings.dropout)
    # The teacher's head is on frozen states, which have another width and bypass the pooler: a new head is needed.
    headless = with_layers(teacher.model, chosen, None, settings.dropout)
    pooling: HeadPooling = "mean" if headless.pooler is None else "cls"
    labels, seed = teacher.model.labels, settings.seed
    return with_heads(headless, (head,), labels=labels, keep=False, seed=seed, pooling=pooling).eval()


def layers_to_take(teacher: int, student: int, take: Take) -> list[int]:
    """Return the teacher layers that the student starts from, counted from 0."""
    if take == "first":
        return list(range(student))
    return [(number + 1) * teacher // student - 1 for number in range(student)]


def with_layers(
    model: Backbone, layers: Sequence[int], head: HeadName | None, dropout: float | None = None
) -> Backbone:
    """Return a model with some layers of another, its embeddings, its pooler, and at most one of its heads."""
    config = _with_dropout(replace(model.config, layers=len(layers), head_pooling=model.pooling), dropout)
    smaller = Bert(config, () if head is None else (head,), labels=model.labels, pooler=model.pooler is not None)
    places = {str(old): new for new, old in enumerate(layers)}
    state = {}
    for name, tensor in model.state_dict().items():
        layer = _LAYER.match(name)
        if layer is None or config.shared_layers:
            state[name] = tensor
        elif layer[1] in places:
            state[f"encoder.layers.{places[layer[1]]}.{name[layer.end() :]}"] = tensor
    smaller.load_state_dict({name: state[name] for name in smaller.state_dict()})
    return smaller.eval()


def _from_folder(teacher: ModelFolder, name: str, settings: DistillSettings) -> Backbone:
    """Load another model as student, with a new head unless it was fine-tuned on the same task and labels."""
    found = load_folder(find_source(name))
    if not _tokenize_alike(teacher.tokenizer, found.tokenizer):
        raise ConfigError(
            f"{name}: its vocabulary differs from the teacher's ({found.tokenizer.size} pieces and "
            f"{teacher.tokenizer.size}), or it tokenizes texts differently; choose a student with the teacher's "
            f"vocabulary"
        )
    length, config = teacher.tokenizer.max_length, found.model.config
    if config.positions < length:
        raise ConfigError(f"{name}: accepts at most {config.positions} tokens, but the teacher accepts {length}")
    if config.segments < teacher.model.config.segments:
        raise ConfigError(
            f"{name}: supports {config.segments} segments, but the teacher supports {teacher.model.config.segments}"
        )
    assert teacher.task is not None
    same = found.task is not None and (found.task.kind, found.task.names) == (teacher.task.kind, teacher.task.names)
    labels = teacher.model.labels
    return with_heads(
        found.model,
        (head_of(teacher.task.kind),),
        labels=labels,
        keep=same,
        seed=settings.seed,
        dropout=settings.dropout,
        pooling=found.model.pooling if same else _new_pooling(teacher, found),
    )


def _new_pooling(teacher: ModelFolder, student: ModelFolder) -> HeadPooling:
    """Return the pooling of a new head: as suits the student, but pairs are separate if the teacher separates them."""
    return "separate" if teacher.model.pooling == "separate" else usual_pooling(student)


def _tokenize_alike(one: Tokenizer, other: Tokenizer) -> bool:
    """Return whether two tokenizers produce the same ids for every text, apart from truncation."""

    def comparable(tokenizer: Tokenizer) -> TokenizerSettings:
        settings = tokenizer.settings
        accents = settings.lowercase if settings.strip_accents is None else settings.strip_accents
        return replace(settings, max_length=1, segments=1, strip_accents=accents)

    return comparable(one) == comparable(other)


def _with_dropout(config: BertConfig, dropout: float | None) -> BertConfig:
    return config if dropout is None else replace(config, dropout=dropout, attention_dropout=dropout)


def read_unlabelled(path: TableSource, source: Source, data: TaskData) -> LabelledTexts:
    """Read one text per line, or a table with the columns of the training rows; every target is marked as missing."""
    if not isinstance(data.train, LabelledTexts):
        raise ConfigError(
            f"{path}: rows without labels are supported only for classification and regression; "
            f"the task here is {data.kind}"
        )
    paired = data.train.pairs is not None
    examples = _read(path, source, paired=paired)
    if paired and examples.pairs is None:
        raise DataError(f"{path}: the rows of this task are pairs of texts; give a table with the columns of both")
    assert data.kind.missing_target is not None, "kinds of texts have rows without labels"
    missing = data.kind.missing_target(0 if data.labels is None else len(data.labels))
    return replace(examples, targets=[missing] * len(examples))


def _read(path: TableSource, source: Source, *, paired: bool) -> LabelledTexts:
    if not isinstance(path, Path) or is_table(path):
        published = find_published(source.task)
        columns = source if published is None else published  # published tasks have their own columns
        pair = columns.pair if paired else None
        rows = read_rows(path, text=columns.text, pair=pair, on_bad_row=source.on_bad_row or "stop")
        found = list(rows)
        pairs = None if pair is None else [row.pair or "" for row in found]
        return LabelledTexts([row.text for row in found], pairs, None, [row.place for row in found], rows.skipped)
    numbered = [(number, line) for number, line in enumerate(read_lines(path), start=1) if line.strip()]
    if not numbered:
        raise DataError(f"{path} contains no text; expected one text per line")
    return LabelledTexts([line for _, line in numbered], None, None, [f"{path}:{number}" for number, _ in numbered])
