"""``cloze distill``: a smaller model learns a task from a larger one that was fine-tuned to it.

The loop and the run are those of fine-tuning; the rows are held to the teacher's labels and read as the teacher reads
them. The student that is saved is a model folder like any other.

What a distillation came to: size, speed and score of teacher and student, side by side.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cloze.checkpoint import (
    ModelFolder,
    TaskLabels,
    any_fingerprint,
    find_source,
    load_any,
    save_folder,
)
from cloze.errors import ConfigError, RequestError
from cloze.files import replace_json
from cloze.model import Backbone
from cloze.model.adapters import without_attachment
from cloze.predict import Model, evaluate_examples, write_report
from cloze.progress import Progress, Silent
from cloze.tasks.classification.kind import LabelledTexts
from cloze.tasks.examples import Examples, LabelSet, fingerprint
from cloze.tasks.registry import TaskData, find_task, read_task
from cloze.tasks.rows import Source
from cloze.train.distillation.objective import DistillBatches, DistillObjective, compares_attention
from cloze.train.distillation.settings import DistillSettings
from cloze.train.distillation.students import make_student, read_unlabelled
from cloze.train.finetuning.finetune import finetuning_card, make_batches
from cloze.train.finetuning.settings import FinetuneSettings
from cloze.train.recipe import TrainingParts, run_training
from cloze.train.run import CURVES, Run, draw_curves

# How many dev rows are read for measuring the speed, and how often by each of both in turn.
_ROWS, _ROUNDS = 256, 3
_WEIGHTS = "model.safetensors"


def compare(
    teacher: Model, student: Model, folder: Path, data: TaskData, scores: Mapping[str, float]
) -> dict[str, Any]:
    """The figures of both; ``folder`` is where the student was saved, ``scores`` are what it reached on dev."""
    taught = evaluate_examples(teacher, data.kind, data.dev, data.metrics).metrics
    speeds = measure_speeds(teacher, student, data)
    return {
        "metric": data.metrics[0],
        "kept": share_kept(scores[data.metrics[0]], taught[data.metrics[0]]),
        "teacher": _described(teacher.bert, None, speeds[0], taught),
        "student": _described(student.bert, folder, speeds[1], scores),
    }


def share_kept(score: float, taught: float) -> float | None:
    """The student's score as a share of its teacher's; None where that is nothing to have a share of."""
    return score / taught if taught > 0 else None


def measure_speeds(teacher: Model, student: Model, data: TaskData) -> tuple[float, float]:
    """Rows a second of both, in turn, so that whatever else the machine does is the same for both."""
    rows: Examples = data.dev.select(range(min(len(data.dev), _ROWS)))
    best = [float("inf"), float("inf")]
    for _ in range(_ROUNDS):
        for number, model in enumerate((teacher, student)):
            start = time.perf_counter()
            evaluate_examples(model, data.kind, rows, data.metrics)
            best[number] = min(best[number], time.perf_counter() - start)
    return len(rows) / best[0], len(rows) / best[1]


def _described(bert: Backbone, folder: Path | None, speed: float, scores: Mapping[str, float]) -> dict[str, Any]:
    # The teacher's own files may be of any form and hold more than a model: what it would take is what counts.
    weights = 4 * bert.parameter_count() if folder is None else (folder / _WEIGHTS).stat().st_size
    return {
        "layers": bert.config.layers,
        "hidden_size": bert.config.hidden_size,
        "parameters": bert.parameter_count(),
        "bytes": weights,
        "rows_per_second": round(speed, 1),
        "scores": dict(scores),
    }


REPORT = "distillation.json"
_PARTIAL = "model.partial"


def distill(
    source: Source,
    model: str | Path,
    out: str | Path,
    *,
    unlabelled: str | Path | None = None,
    settings: DistillSettings | None = None,
    device: str | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Distil a fine-tuned model into a smaller one and return the run's folder. The same call goes on."""
    settings, progress = settings or DistillSettings(), progress or Silent()
    teacher = _load_teacher(model, source)
    assert teacher.task is not None
    data = read_task(source, labels=LabelSet(teacher.task.names) if teacher.task.names else None)
    for note in data.notes:
        progress.say(note)
    student = _start(teacher, settings, progress)
    texts = None if unlabelled is None else read_unlabelled(Path(unlabelled), source, data)
    if texts is not None and not settings.logits_weight:
        raise ConfigError("logits_weight is 0, but rows without labels teach nothing else; leave out --unlabelled")
    recorded = {
        "command": "distill",
        "model": str(Path(model)),
        **source.recorded(),
        "unlabelled": None if unlabelled is None else str(unlabelled),
        "rows": len(data.train),
        "unlabelled_rows": 0 if texts is None else len(texts),
        # Rows or a teacher that have changed meanwhile would be mixed in.
        "content": fingerprint(data.train, data.dev, *([] if texts is None else [texts])),
        "teacher": any_fingerprint(find_source(model)),
    }
    teacher_model, student_model = Model(teacher, device=device), Model(student, device=device)
    finetuning = _finetune_settings(teacher, settings)
    parts = TrainingParts(
        recorded=recorded | asdict(settings),
        settings=finetuning,
        model=student_model,
        batches=lambda: _batches(
            data,
            texts,
            student_model,
            finetuning,
            progress,
            # Attention is compared in padded batches: texts of similar length need little padding.
            like_lengths=compares_attention(student_model.bert, teacher_model.bert, settings),
        ),
        objective=lambda: DistillObjective(student_model.bert, teacher_model.bert, student_model.heads[0], settings).to(
            student_model.device
        ),
        metric=data.metrics[0],
        score=lambda: evaluate_examples(student_model, data.kind, data.dev, data.metrics).metrics,
        finish=lambda run, used: _finish(run, teacher_model, student_model, student, data, used, recorded),
    )
    return run_training(parts, out, fresh=fresh, progress=progress)


def _load_teacher(model: str | Path, source: Source) -> ModelFolder:
    """The teacher with whatever is attached to it; low-rank changes become part of its layers."""
    kind = find_task(source.task).kind
    found = load_any(find_source(model))
    task = found.task
    if task is None or task.kind != kind.name or kind.head not in found.model.head_names:
        there = f"does {task.kind}" if task else f"has the heads: {', '.join(found.model.head_names) or 'none'}"
        raise RequestError(f"{model}: {source.task} needs a teacher fine-tuned to {kind}; this one {there}")
    merges = found.adapter is not None and found.adapter.attachment.kind == "lora"
    return replace(found, model=without_attachment(found.model) if merges else found.model, adapter=None)


def _start(teacher: ModelFolder, settings: DistillSettings, progress: Progress) -> ModelFolder:
    """A student that reads as its teacher does."""
    assert teacher.task is not None
    bert = make_student(teacher, settings)
    heads = bert.config.heads, teacher.model.config.heads
    if settings.attention_weight and heads[0] != heads[1]:
        progress.say(f"the student has {heads[0]} heads and the teacher {heads[1]}: attention is not compared")
    # What was fitted to the teacher's own answers is not the student's.
    task = replace(teacher.task, temperature=TaskLabels.temperature, threshold=TaskLabels.threshold)
    return ModelFolder(bert, teacher.tokenizer, task)


def _finetune_settings(teacher: ModelFolder, settings: DistillSettings) -> FinetuneSettings:
    assert teacher.task is not None
    return settings.training(teacher.tokenizer.max_length, teacher.task.long_texts, context=teacher.task.context)


def _batches(
    data: TaskData,
    texts: LabelledTexts | None,
    student: Model,
    settings: FinetuneSettings,
    progress: Progress,
    *,
    like_lengths: bool,
) -> DistillBatches:
    tokenizer = student.tokenizer
    assert data.kind.items is not None, "a kind with labels makes items"
    items = data.kind.items(data.train, tokenizer, settings, progress)
    if texts is not None:
        items += data.kind.items(texts, tokenizer, settings, progress)
        skipped = f"; {texts.skipped} bad ones were skipped" if texts.skipped else ""
        progress.say(f"{len(texts)} rows without labels are read as well{skipped}")
    batches = make_batches(items, data.kind, tokenizer, settings, student.device, progress, like_lengths=like_lengths)
    return DistillBatches(batches)


def _finish(
    run: Run,
    teacher: Model,
    student: Model,
    contents: ModelFolder,
    data: TaskData,
    settings: FinetuneSettings,
    recorded: Mapping[str, Any],
) -> None:
    """Write scores, curves, the comparison and, last, the model, whose presence marks the run as finished."""
    # The dropout of distillation is not the student's: further training starts with its teacher's.
    usual = {name: getattr(teacher.bert.config, name) for name in ("dropout", "attention_dropout")}
    student.bert.config = replace(student.bert.config, **usual)
    if data.kind.fit_on_dev is not None:
        contents = replace(contents, task=data.kind.fit_on_dev(student, data.dev))
        student = Model(contents, device=str(student.device))
    evaluation = evaluate_examples(student, data.kind, data.dev, data.metrics)
    write_report(evaluation, run.folder)
    draw_curves(run.metrics(), run.folder / CURVES)
    # The comparison needs its size on disk.
    partial = run.folder / _PARTIAL
    card = finetuning_card(contents, evaluation, settings, data, recorded) + f"\nDistilled from {recorded['model']}.\n"
    save_folder(replace(contents, card=card), partial)
    replace_json(run.folder / REPORT, compare(teacher, student, partial, data, evaluation.metrics))
    partial.rename(run.model_folder)
    run.clear()
