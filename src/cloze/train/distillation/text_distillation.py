"""``cloze distill --text``: general distillation on raw text, without labels.

Driver, loop and run are those of fine-tuning. The student is saved as a model folder that pools and normalizes as the
teacher does, with a model card. The results are the held-out loss and, for vectors, the agreement with the teacher.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from cloze.checkpoint import (
    EmbeddingSettings,
    ModelFolder,
    any_fingerprint,
    base_files,
    find_source,
    load_any,
)
from cloze.checkpoint.pooling_files import Projection
from cloze.corpus.record_files import documents_as_files
from cloze.errors import ConfigError, RequestError, format_option
from cloze.model.adapters import without_attachment
from cloze.model.batch import Batch
from cloze.options import check_given_once, make_settings
from cloze.predict import Model
from cloze.predict.embeddings.pooling import find_pool, make_vectors, pooled_width
from cloze.progress import Progress, Silent
from cloze.tasks.rows import RowSettings
from cloze.text import Tokenizer
from cloze.text.tokenizer_files import find_vocabulary
from cloze.train.distillation.distill import describe_size, text_distillation_card
from cloze.train.distillation.raw_text import TextBatches, TextSet, TextSources
from cloze.train.distillation.settings import (
    TEXT_LENGTH,
    TEXT_RATE,
    TEXT_RATE_ABOVE,
    WIDE,
    TextDistillSettings,
    TextObjective,
)
from cloze.train.distillation.students import make_text_student, tokenize_alike
from cloze.train.distillation.teacher_vectors import TeacherVectors, Vectors, agreement_with_teacher
from cloze.train.distillation.text_objective import (
    HiddenObjective,
    RelationObjective,
    TokenObjective,
    VectorObjective,
    count_text_activations,
    relation_heads,
    relation_layer,
)
from cloze.train.driver import TrainingParts, run_training
from cloze.train.finetuning.settings import ResolvedSettings
from cloze.train.run import TEACHER, Run


def distill_text(
    texts: Sequence[Path],
    model: str | Path,
    out: str | Path,
    *,
    settings: TextDistillSettings | None = None,
    device: str | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Distil a model into another one on raw text; the same call resumes an unfinished run.

    Args:
        texts: Plain text, JSONL or Parquet files, or folders written by ``prepare``.
        model: The teacher.
        out: The run's folder.
        settings: The objective, the student and the training settings.
        device: Where to train; by default an accelerator if there is one.
        fresh: Delete an existing run and start over.
        progress: Receives messages and progress.

    Returns:
        The run's folder, which contains the student.

    Raises:
        ConfigError: If the settings do not fit the models, or differ from those of the run to resume.
        DataError: If a text cannot be read, or there is too little of it.
    """
    settings, progress = settings or TextDistillSettings(), progress or Silent()
    teacher = _load_teacher(model)
    settings = _resolve(teacher, str(model), settings, progress)
    pooler = (settings.pooling or teacher.embedding.pooling) == "pooler" and settings.objective == "vectors"
    student = make_text_student(teacher, settings, pooler=pooler, progress=progress)
    if settings.learning_rate is None:
        rate = TEXT_RATE if student.model.config.hidden_size <= WIDE else TEXT_RATE_ABOVE
        settings = replace(settings, learning_rate=rate)
    alike = tokenize_alike(student.tokenizer, teacher.tokenizer)
    assert settings.split is not None
    assert settings.max_length is not None
    sources = TextSources(
        texts,
        settings.column,
        settings.split,
        settings.max_length,
        student.tokenizer,
        None if alike else teacher.tokenizer,
    )
    sources.check()
    recorded = _recorded(sources, model, settings)
    training = _TextDistillation(teacher, student, sources, settings, recorded, Path(out), device, progress)
    return run_training(training.parts(), out, fresh=fresh, progress=progress)


def distill_documents(
    texts: Any, model: str, out: Path, *, settings: Any, more: Mapping[str, Any], rows: Mapping[str, Any], **common: Any
) -> Path:
    """Distil on files or documents in memory; ``rows`` are arguments for tasks, which must be None."""
    for name, value in rows.items():
        if value is not None:
            raise ConfigError(f"{name} is given, but no task; raw text has no rows: give a task, or leave it out")
    if isinstance(texts, str) and texts == RowSettings.text and not Path(texts).exists():
        raise ConfigError("neither a task nor a text is given; give a task and its rows, or text=[files]")
    (made,) = make_settings((TextDistillSettings,), check_given_once(more, settings))
    settings = made if settings is None else settings
    if not isinstance(settings, TextDistillSettings):
        raise ConfigError(f"settings is {type(settings).__name__}, which is for a task; give TextDistillSettings")
    with documents_as_files(texts, out, settings.column) as paths:
        return distill_text(paths, model, out, settings=settings, **common)


def _load_teacher(model: str | Path) -> ModelFolder:
    """Load the teacher; LoRA weights are merged into its layers."""
    teacher = load_any(find_source(model))
    if teacher.adapter is not None and teacher.adapter.attachment.kind != "lora":
        raise RequestError(
            f"{model}: a teacher with Houlsby adapters was given; its base, or a LoRA adapter, can teach"
        )
    return replace(teacher, model=without_attachment(teacher.model), adapter=None)


def _resolve(teacher: ModelFolder, name: str, settings: TextDistillSettings, progress: Progress) -> TextDistillSettings:
    """Choose the objective and what a text is, and check that the teacher fits."""
    alike = _student_tokenizes_alike(teacher.tokenizer, settings)
    usual: TextObjective = "vectors" if not alike or _is_sentence_encoder(teacher) else "relations"
    objective = settings.objective or usual
    if objective != "vectors" and not alike:
        raise ConfigError(
            f"objective is {objective!r}, which compares tokens, but the student has another vocabulary than the "
            "teacher; use vectors, or a student with the teacher's vocabulary"
        )
    longest = teacher.tokenizer.max_length
    length = min(TEXT_LENGTH, longest) if settings.max_length is None else settings.max_length
    if length > longest:
        raise ConfigError(f"max_length is {length}, but the teacher accepts at most {longest} tokens")
    if objective == "vectors" and settings.pooling is None:
        _check_pooling(teacher, name)
    if settings.objective is None:
        made = f"the teacher is {'' if objective == 'vectors' else 'not '}made for sentence vectors"
        reason = made if alike else "the vocabularies differ"
        progress.say(f"objective {objective}: {reason}; {format_option('objective')} overrides")
    split = settings.split or ("sentences" if objective == "vectors" else "passages")
    return replace(settings, objective=objective, split=split, max_length=length)


def _student_tokenizes_alike(tokenizer: Tokenizer, settings: TextDistillSettings) -> bool:
    """Return whether the student will encode texts as the teacher does."""
    place = settings.vocab if settings.student is None else find_source(settings.student)
    return place is None or tokenize_alike(Tokenizer.from_folder(find_vocabulary(Path(place))), tokenizer)


def _is_sentence_encoder(teacher: ModelFolder) -> bool:
    """Return whether a folder is made for vectors: it has pooling settings, but no heads."""
    return teacher.embedding.configured and not teacher.model.head_names


def _check_pooling(teacher: ModelFolder, name: str) -> None:
    if not teacher.embedding.configured:
        raise ConfigError(
            f"{name}: has no pooling for sentence vectors (no modules.json); give {format_option('pooling')}, such as "
            f"mean, or {format_option('objective', 'relations')}"
        )
    if teacher.embedding.unsupported is not None:
        raise ConfigError(f"{teacher.embedding.unsupported}, which cloze does not support; give another pooling")


def _recorded(sources: TextSources, model: str | Path, settings: TextDistillSettings) -> dict[str, Any]:
    """Return the facts that must be the same when the run is resumed."""
    values = {name: value for name, value in asdict(settings).items() if name != "save_every"}
    given = None if settings.student is None else base_files(settings.student)
    return {
        "command": "distill",
        "model": str(Path(model)),
        "base": base_files(model),
        "teacher": any_fingerprint(find_source(model)),
        "student_files": given,
        "texts": sources.recorded(),
        **values,
    }


class _TextDistillation:
    """The parts of one training, which the driver builds when it needs them."""

    def __init__(
        self,
        teacher: ModelFolder,
        student: ModelFolder,
        sources: TextSources,
        settings: TextDistillSettings,
        recorded: Mapping[str, Any],
        out: Path,
        device: str | None,
        progress: Progress,
    ) -> None:
        self.settings, self.recorded, self.progress = settings, recorded, progress
        self.folder, self._sources, self._teacher = out / TEACHER, sources, teacher
        pooling: Any = settings.pooling or teacher.embedding.pooling
        if pooling == "pooler" and self.kind != "vectors" and student.model.pooler is None:
            pooling = "mean"  # nothing trains a new pooler
        self._embedding = EmbeddingSettings(pooling, teacher.embedding.normalize)
        try:
            self._pool = find_pool(pooling, student.model, student.tokenizer)
        except RequestError as error:
            raise ConfigError(str(error)) from error
        self.student = replace(student, embedding=self._embedding)
        self._check_shapes()
        self.model = Model(self.student, device=device)
        self.device = self.model.device

    def _check_shapes(self) -> None:
        """Refuse settings that do not fit the shapes of the models, before the run's folder is created."""
        ours, theirs, settings = self.student.model.config, self._teacher.model.config, self.settings
        if self.kind == "relations":
            relation_layer(theirs, settings.teacher_layer)
            relation_heads(ours, theirs, settings.relation_heads)
        elif self.kind == "vectors" and settings.match_width == "pca":
            pooling: Any = settings.pooling
            width = make_vectors(self._teacher, pooling, last=True).width(theirs.hidden_size)
            if self._width > width:
                raise ConfigError(
                    f"match_width is 'pca', but the student's vectors have {self._width} dimensions and the teacher's "
                    f"only {width}; use projection"
                )

    @property
    def kind(self) -> TextObjective:
        """The objective."""
        assert self.settings.objective is not None
        return self.settings.objective

    def parts(self) -> TrainingParts:
        """Return the parts for the driver."""
        shapes = self.student.model.config, self._teacher.model.config
        return TrainingParts(
            recorded=self.recorded,
            settings=self.settings.text_training(),
            model=self.model,
            batches=self.batches,
            objective=lambda: self.objective,
            metric="cosine" if self.kind == "vectors" else "loss",
            score=self.score,
            finish=self.finish,
            activations=partial(count_text_activations, *shapes, self.kind, self.settings),
        )

    def batches(self) -> TextBatches:
        """Encode the texts and cache the teacher's vectors, unless that is done, and return the batches."""
        texts, settings = self.texts, self.settings
        counts = f"{len(texts.train):,} training {settings.split}, {len(texts.held_out):,} held out"
        self.progress.say(f"{counts}, {texts.student.lengths.mean():.1f} tokens on average")
        targets = None
        if self.kind == "vectors":
            if settings.cache:
                self.vectors.fill_cache(self.progress)
            if settings.match_width == "pca" and self._width != self.vectors.width:
                self.vectors.reduce(self._width, texts.train)
            targets = self.vectors.rows
        return TextBatches(texts, settings.batch_size, settings.seed, self.device, targets)

    @cached_property
    def texts(self) -> TextSet:
        """The encoded texts."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return TextSet.open(self._sources, self.folder, self.settings.held_out, self.settings.seed, self.progress)

    @cached_property
    def vectors(self) -> TeacherVectors:
        """The teacher's vectors."""
        names = ("texts", "teacher", "base", "max_length", "pooling", "teacher_precision")
        key = {name: self.recorded[name] for name in names}
        pooling: Any = self.settings.pooling
        return TeacherVectors(
            self._teacher,
            self.texts.teacher,
            self.folder,
            pooling=pooling,
            key=key,
            device=self.device,
            precision=self.settings.teacher_precision,
        )

    @property
    def _width(self) -> int:
        """The size of the student's pooled vectors."""
        return pooled_width(self._embedding.pooling, self.student.model.config.hidden_size)

    @cached_property
    def objective(self) -> VectorObjective | TokenObjective:
        """The loss."""
        student, teacher = self.model.bert, self._teacher.model
        if self.kind == "vectors":
            return VectorObjective(
                student,
                self._pool,
                self.settings,
                width=self._width,
                target=self.vectors.width,
                normalize=self._embedding.normalize,
            ).to(self.device)
        kind = RelationObjective if self.kind == "relations" else HiddenObjective
        return kind(student, teacher.to(self.device), self.settings).to(self.device)

    def score(self) -> dict[str, float]:
        """Return the held-out loss and, for vectors, the agreement with the teacher."""
        scores = self.measure()
        shown = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
        self.progress.say(f"held out: {shown}")
        return scores

    @torch.inference_mode()
    def measure(self) -> dict[str, float]:
        """Compute the held-out scores."""
        objective, indices = self.objective, self.texts.held_out
        sequences: Any = [self.texts.student[index] for index in indices]
        if isinstance(objective, TokenObjective):
            losses = self.model.run(sequences, lambda batch: objective.distances(batch).tolist())
            return {"loss": sum(losses) / int(self.texts.student.lengths[indices].sum())}

        def step(batch: Batch) -> list[Vectors]:
            return list(objective.vectors(batch).cpu().numpy())

        vectors = np.stack(self.model.run(sequences, step))
        targets = self._held_out_targets
        loss = float(objective.distances(torch.from_numpy(vectors), torch.from_numpy(targets)).mean())
        return {**agreement_with_teacher(vectors, targets), "loss": loss}

    @cached_property
    def _held_out_targets(self) -> Vectors:
        return self.vectors.rows(self.texts.held_out).numpy()

    def finish(self, run: Run, settings: ResolvedSettings) -> None:
        """Write results, model card and, last, the model; a run with a model is finished."""
        usual = {name: getattr(self._teacher.model.config, name) for name in ("dropout", "attention_dropout")}
        # Dropout during distillation is a training setting: the saved student gets the teacher's.
        self.model.bert.config = replace(self.model.bert.config, **usual)
        newest = {name: value for row in run.metrics() for name, value in row.items()}
        scores = {f"held_out_{name[4:]}": value for name, value in newest.items() if name.startswith("dev_")}
        results = {
            **scores,
            "objective": self.kind,
            "steps": int(newest["step"]),
            "hours": newest["seconds"] / 3600,
            "tokens_seen": int(newest["tokens_seen"]),
            "texts": len(self.texts.train),
            "held_out_texts": len(self.texts.held_out),
            "teacher": {"name": self.recorded["model"], **describe_size(self._teacher.model)},
            "student": describe_size(self.model.bert),
        }
        run.write_results(results)
        projections = self._projections()
        embedding = replace(self._embedding, projections=projections)
        contents = replace(self.student, model=self.model.bert, embedding=embedding)
        card = text_distillation_card(contents, self._teacher, results, self.settings, self.recorded, settings)
        run.finish(replace(contents, card=card))

    def _projections(self) -> tuple[Projection, ...]:
        projection = getattr(self.objective, "projection", None)
        if not isinstance(projection, nn.Linear):
            return ()
        return (Projection(projection.weight.detach().cpu(), projection.bias.detach().cpu()),)
