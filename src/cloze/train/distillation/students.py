"""The student to distil into: some layers of the teacher, a new model, or another model.

Also reads rows without labels, which the teacher labels for the student. The students of distillation on raw text have
no heads, and may have another width or vocabulary than the teacher.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from cloze.checkpoint import ModelFolder, find_source, load_folder
from cloze.checkpoint.folder import usual_pooling
from cloze.corpus.documents import read_lines
from cloze.errors import ConfigError, DataError
from cloze.model import Backbone, Bert, BertConfig, HeadName, preset
from cloze.model.surgery import with_heads
from cloze.options import HeadPooling
from cloze.progress import Progress
from cloze.tasks.classification.kind import LabelledTexts
from cloze.tasks.in_memory import TableSource
from cloze.tasks.registry import TaskData, find_published, head_of
from cloze.tasks.rows import Source, read_rows
from cloze.tasks.tables import is_table
from cloze.text import Tokenizer
from cloze.text.tokenizer_files import TokenizerSettings, find_vocabulary
from cloze.train.distillation.settings import DistillSettings, Take, TextDistillSettings

_LAYER = re.compile(r"encoder\.layers\.(\d+)\.")
_TOKEN_TABLE = "encoder.embeddings.token.weight"
_TABLES = tuple(f"encoder.embeddings.{name}.weight" for name in ("token", "segment", "position"))


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
    if not tokenize_alike(teacher.tokenizer, found.tokenizer):
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


def tokenize_alike(one: Tokenizer, other: Tokenizer) -> bool:
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


# -- students of distillation on raw text ------------------------------------------------------------------------------


def make_text_student(
    teacher: ModelFolder, settings: TextDistillSettings, *, pooler: bool, progress: Progress
) -> ModelFolder:
    """Return a student without heads.

    Args:
        teacher: The teacher, without adapters.
        settings: The shape of the student, its vocabulary and its initial weights.
        pooler: Whether the vectors of a new student are those of a pooler.
        progress: Receives a message about the initial weights.
    """
    if settings.student is not None:
        return _given_text_student(settings.student, settings, progress)
    tokenizer = teacher.tokenizer if settings.vocab is None else _read_vocabulary(settings.vocab, teacher.tokenizer)
    config = _text_config(teacher.model.config, settings, tokenizer)
    student = Bert.fresh(config, (), pooler=pooler, seed=settings.seed)
    copied, origin = False, "initialized randomly, as requested"
    if settings.start == "layers":
        copied, origin = _copy_layers(student, tokenizer, teacher)
    progress.say(f"student: {config.layers} layers, hidden size {config.hidden_size}; {origin}")
    # Position embeddings beyond the training length are trained only if they come from the teacher.
    longest = teacher.tokenizer.max_length if copied else settings.text_training().max_length
    return ModelFolder(student.eval(), tokenizer.with_max_length(min(longest, config.positions)))


def _read_vocabulary(name: str, teacher: Tokenizer) -> Tokenizer:
    tokenizer = Tokenizer.from_folder(find_vocabulary(Path(name)))
    return teacher if tokenize_alike(tokenizer, teacher) else tokenizer.with_segments(teacher.segments)


def _given_text_student(name: str, settings: TextDistillSettings, progress: Progress) -> ModelFolder:
    found = load_folder(find_source(name))
    length, positions = settings.text_training().max_length, found.model.config.positions
    if length > positions:
        raise ConfigError(f"max_length is {length}, but {name} accepts at most {positions} tokens")
    if found.model.head_names:
        progress.say(f"{name}: its heads {', '.join(found.model.head_names)} are dropped; they fit its old states only")
    bert = with_heads(found.model, (), keep=False, seed=settings.seed, dropout=settings.dropout)
    longest = max(found.tokenizer.max_length, length)
    return ModelFolder(bert.eval(), found.tokenizer.with_max_length(longest))


def _text_config(teacher: BertConfig, settings: TextDistillSettings, tokenizer: Tokenizer) -> BertConfig:
    """Return the configuration of a new student: the preset's or the teacher's, with the given changes."""
    shape = teacher if settings.preset is None else preset(settings.preset, tokenizer.size)
    layers = settings.layers or (max(1, teacher.layers // 2) if settings.preset is None else shape.layers)
    if settings.hidden_size is not None and settings.hidden_size != shape.hidden_size:
        shape = _with_width(shape, settings.hidden_size)
    config = replace(
        shape,
        layers=layers,
        vocab_size=tokenizer.size,
        pad_id=tokenizer.pad_id,
        positions=teacher.positions,
        segments=teacher.segments,
        norm_epsilon=teacher.norm_epsilon,
        activation=teacher.activation,
        head_pooling="cls",
    )
    return _with_dropout(config, settings.dropout)


def _with_width(shape: BertConfig, width: int) -> BertConfig:
    """Return a configuration of another width, with heads of the same size if the width is a multiple of it."""
    size = shape.head_size if width % shape.head_size == 0 else 64
    if width % size:
        raise ConfigError(f"hidden_size is {width}; expected a multiple of the head size, {shape.head_size} or 64")
    inner = round(shape.feedforward_size / shape.hidden_size * width)
    deviation = preset("mini").initial_deviation * (preset("mini").hidden_size / width) ** 0.5
    return replace(shape, hidden_size=width, heads=width // size, feedforward_size=inner, initial_deviation=deviation)


def _copy_layers(student: Bert, tokenizer: Tokenizer, teacher: ModelFolder) -> tuple[bool, str]:
    """Initialize the student from the teacher as far as the shapes allow.

    With equal shapes, evenly spaced layers and the embeddings are copied. With another hidden size, only the embeddings
    are, reduced to their principal components.

    Returns:
        Whether the position embeddings come from the teacher, and a phrase for the user.
    """
    ours, theirs = student.config, teacher.model.config
    reduced = ours.hidden_size < theirs.hidden_size and ours.embedding_size is theirs.embedding_size is None
    if reduced:
        source = _reduce_embeddings(teacher.model, ours.hidden_size)
        origin = "layers initialized randomly, embeddings from the principal components of the teacher's"
    else:
        for name in ("hidden_size", "heads", "feedforward_size", "embedding_size", "shared_layers"):
            if getattr(ours, name) != getattr(theirs, name):
                values = f"{getattr(ours, name)} and that of the teacher {getattr(theirs, name)}"
                return False, f"initialized randomly, because its {name} is {values}"
        if ours.layers > theirs.layers:
            return False, f"initialized randomly, because it has more layers than the teacher, {theirs.layers}"
        chosen = layers_to_take(theirs.layers, ours.layers, "alternate")
        source = with_layers(teacher.model, chosen, None).state_dict()
        origin = f"initialized from layers {', '.join(str(layer + 1) for layer in chosen)} of the teacher"
    state = student.state_dict()
    if not tokenize_alike(tokenizer, teacher.tokenizer):
        rows = {number: teacher.tokenizer.id(piece) for number, piece in enumerate(tokenizer.pieces)}
        for number, row in rows.items():
            if row is not None:
                state[_TOKEN_TABLE][number] = source[_TOKEN_TABLE][row]
        del source[_TOKEN_TABLE]
    student.load_state_dict(state | {name: source[name] for name in state if name in source})
    return True, origin


def _reduce_embeddings(teacher: Backbone, width: int) -> dict[str, Tensor]:
    """Return the token, segment and position embeddings, projected onto the principal directions of the tokens'.

    The tokens are not centred, so that dot products between the sums of embeddings change as little as possible.
    """
    tables = {name: tensor for name, tensor in teacher.state_dict().items() if name.startswith(_TABLES)}
    tokens = tables[_TOKEN_TABLE].double()
    _, directions = torch.linalg.eigh(tokens.T @ tokens)  # ascending eigenvalues
    components = directions.flip(1)[:, :width]  # (H', H)
    return {name: (tensor.double() @ components).float() for name, tensor in tables.items()}
