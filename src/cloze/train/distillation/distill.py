"""``cloze distill``: knowledge distillation of a fine-tuned teacher into a smaller student.

It uses the driver, loop and run of fine-tuning. The rows must use the teacher's label set, and are encoded as the
teacher encodes them. The student is saved as a model folder, with a report that compares the size, speed and score of
teacher and student.
"""

import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from cloze import __version__
from cloze.checkpoint import (
    ModelFolder,
    TaskLabels,
    any_fingerprint,
    base_files,
    find_source,
    load_any,
    save_folder,
)
from cloze.errors import ConfigError, RequestError, format_option
from cloze.files import replace_json
from cloze.model import Backbone
from cloze.model.adapters import without_attachment
from cloze.options import command_flags
from cloze.predict import Evaluation, Model, evaluate_examples, write_report
from cloze.progress import Progress, Silent
from cloze.tasks.classification.kind import LabelledTexts
from cloze.tasks.comparisons import difference_facts
from cloze.tasks.examples import Examples, LabelSet, fingerprint
from cloze.tasks.in_memory import RowsInMemory, TableSource
from cloze.tasks.kind import column_names
from cloze.tasks.registry import TaskData, find_kind, find_task, read_task
from cloze.tasks.rows import Source
from cloze.train.distillation.objective import (
    DistillBatches,
    DistillObjective,
    compares_attention,
    count_step_activations,
)
from cloze.train.distillation.settings import DistillSettings, TextDistillSettings
from cloze.train.distillation.students import make_student, read_unlabelled
from cloze.train.driver import TrainingParts, run_training
from cloze.train.finetuning.finetune import finetuning_card
from cloze.train.finetuning.objective import make_batches, report_unknown
from cloze.train.finetuning.settings import ResolvedSettings
from cloze.train.run import CURVES, Run, draw_curves

# Number of dev rows and of rounds in the speed measurement.
_ROWS, _ROUNDS = 256, 3
_WEIGHTS = "model.safetensors"
REPORT = "distillation.json"
_PARTIAL = "model.partial"
_LICENCE = re.compile(r"^license:\s*(\S.*)$", re.MULTILINE)


def distill(
    source: Source,
    model: str | Path,
    out: str | Path,
    *,
    unlabelled: TableSource | str | None = None,
    settings: DistillSettings | None = None,
    device: str | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Distil a fine-tuned model into a smaller one; the same call resumes an unfinished run.

    Args:
        source: The task and its files.
        model: The fine-tuned teacher.
        out: The run's folder.
        unlabelled: A file or data in memory with additional texts, which the teacher labels.
        settings: The student, the weights of the losses, and the training settings.
        device: Where to train; by default an accelerator if there is one.
        fresh: Delete an existing run and start over.
        progress: Receives messages and progress.

    Returns:
        The run's folder, which contains the student and a report.
    """
    settings, progress = settings or DistillSettings(), progress or Silent()
    teacher = _load_teacher(model, source)
    assert teacher.task is not None
    data = read_task(source, labels=LabelSet(teacher.task.names) if teacher.task.names else None)
    for note in data.notes:
        progress.say(note)
    student = _start(teacher, source, settings, progress)
    unlabelled = Path(unlabelled) if isinstance(unlabelled, str) else unlabelled
    texts = None if unlabelled is None else read_unlabelled(unlabelled, source, data)
    if texts is not None and not settings.logits_weight:
        raise ConfigError(
            f"logits_weight is 0, but rows without labels contribute to no other loss; leave out "
            f"{format_option('unlabelled')}"
        )
    recorded = _recorded(source, model, unlabelled, data, texts)
    teacher_model, student_model = Model(teacher, device=device), Model(student, device=device)
    finetuning = _finetune_settings(teacher, settings)
    parts = TrainingParts(
        recorded=recorded | asdict(settings),
        settings=finetuning,
        model=student_model,
        # Attention is compared in padded batches: texts of similar length need little padding.
        batches=lambda: _batches(
            data,
            texts,
            student_model,
            finetuning,
            progress,
            similar_lengths=compares_attention(student_model.bert, teacher_model.bert, settings),
        ),
        objective=lambda: DistillObjective(student_model.bert, teacher_model.bert, student_model.heads[0], settings).to(
            student_model.device
        ),
        metric=data.metrics[0],
        score=lambda: evaluate_examples(student_model, data.kind, data.dev, data.metrics).metrics,
        finish=lambda run, used: _finish(run, teacher_model, student_model, student, data, used, recorded),
        activations=partial(count_step_activations, student_model.bert.config, teacher_model.bert.config, settings),
    )
    return run_training(parts, out, fresh=fresh, progress=progress)


def _recorded(
    source: Source, model: str | Path, unlabelled: TableSource | None, data: TaskData, texts: LabelledTexts | None
) -> dict[str, Any]:
    """Return the facts that must be the same when the run is resumed."""
    return {
        "command": "distill",
        "model": str(Path(model)),
        "base": base_files(model),
        **source.recorded(),
        "unlabelled": unlabelled.recorded() if isinstance(unlabelled, RowsInMemory) else unlabelled and str(unlabelled),
        "rows": len(data.train),
        "unlabelled_rows": 0 if texts is None else len(texts),
        # A run must not be resumed with changed rows or a changed teacher.
        "content": fingerprint(data.train, data.dev, *([] if texts is None else [texts])),
        "teacher": any_fingerprint(find_source(model)),
    }


def _load_teacher(model: str | Path, source: Source) -> ModelFolder:
    """Load the teacher with its adapter; LoRA weights are merged into its layers."""
    kind = find_task(source.task).kind
    teacher = load_any(find_source(model))
    task = teacher.task
    if task is None or task.kind != kind.name or kind.head not in teacher.model.head_names:
        actual = (
            f"is fine-tuned to {task.kind}"
            if task
            else f"has the heads: {', '.join(teacher.model.head_names) or 'none'}"
        )
        raise RequestError(f"{model}: {source.task} needs a teacher fine-tuned to {kind}; this one {actual}")
    has_lora = teacher.adapter is not None and teacher.adapter.attachment.kind == "lora"
    return replace(teacher, model=without_attachment(teacher.model) if has_lora else teacher.model, adapter=None)


def _start(teacher: ModelFolder, source: Source, settings: DistillSettings, progress: Progress) -> ModelFolder:
    """Create the student, with the teacher's tokenizer and labels."""
    assert teacher.task is not None
    bert = make_student(teacher, settings)
    heads = bert.config.heads, teacher.model.config.heads
    if settings.attention_weight and heads[0] != heads[1]:
        progress.say(f"the student has {heads[0]} heads and the teacher {heads[1]}: attention is not compared")
    # Temperature and threshold were fitted to the teacher's predictions, not to the student's.
    task = replace(
        teacher.task,
        temperature=TaskLabels.temperature,
        threshold=TaskLabels.threshold,
        **column_names(find_kind(teacher.task.kind), source.text, source.pair),
    )
    return ModelFolder(bert, teacher.tokenizer, task)


def _finetune_settings(teacher: ModelFolder, settings: DistillSettings) -> ResolvedSettings:
    assert teacher.task is not None
    return settings.training(teacher.tokenizer.max_length, teacher.task.long_texts, context=teacher.task.context)


def _batches(
    data: TaskData,
    texts: LabelledTexts | None,
    student: Model,
    settings: ResolvedSettings,
    progress: Progress,
    *,
    similar_lengths: bool,
) -> DistillBatches:
    tokenizer = student.tokenizer
    report_unknown(tokenizer, [text for row in data.train.documents() for text in row], progress)
    assert data.kind.items is not None, "a kind with labels makes items"
    items = data.kind.items(data.train, tokenizer, settings, progress)
    if texts is not None:
        items += data.kind.items(texts, tokenizer, settings, progress)
        skipped = f"; {texts.skipped} bad ones were skipped" if texts.skipped else ""
        progress.say(f"{len(texts)} rows without labels are used as well{skipped}")
    batches = make_batches(
        items, data.kind, tokenizer, settings, student.device, progress, similar_lengths=similar_lengths
    )
    return DistillBatches(batches)


def _finish(
    run: Run,
    teacher: Model,
    student: Model,
    contents: ModelFolder,
    data: TaskData,
    settings: ResolvedSettings,
    recorded: Mapping[str, Any],
) -> None:
    """Write scores, curves, the comparison and, last, the model; a run with a model is finished."""
    # Dropout during distillation is a training setting: the saved student gets the teacher's.
    usual = {name: getattr(teacher.bert.config, name) for name in ("dropout", "attention_dropout")}
    student.bert.config = replace(student.bert.config, **usual)
    if data.kind.fit_on_dev is not None:
        contents = replace(contents, task=data.kind.fit_on_dev(student, data.dev))
        student = Model(contents, device=str(student.device))
    evaluation = evaluate_examples(student, data.kind, data.dev, data.metrics)
    write_report(evaluation, run.folder)
    draw_curves(run.metrics(), run.folder / CURVES)
    # The comparison needs the student's size on disk.
    partial = run.folder / _PARTIAL
    card = (
        finetuning_card(contents, evaluation, settings.summary, data, recorded)
        + f"\nDistilled from {recorded['model']}.\n"
    )
    save_folder(replace(contents, card=card), partial)
    replace_json(run.folder / REPORT, compare(teacher, student, partial, data, evaluation))
    partial.rename(run.model_folder)
    run.clear()


def compare(teacher: Model, student: Model, folder: Path, data: TaskData, evaluation: Evaluation) -> dict[str, Any]:
    """Compare teacher and student on the same dev rows; ``folder`` is the saved student, ``evaluation`` its scores."""
    teacher_evaluation, metric = evaluate_examples(teacher, data.kind, data.dev, data.metrics), data.metrics[0]
    scores, teacher_scores = evaluation.metrics, teacher_evaluation.metrics
    speeds = measure_speeds(teacher, student, data)
    return {
        "metric": metric,
        "kept": share_kept(scores[metric], teacher_scores[metric]),
        "difference": difference_facts(evaluation.gain_over(teacher_evaluation)),
        "teacher": _describe(teacher.bert, None, speeds[0], teacher_scores),
        "student": _describe(student.bert, folder, speeds[1], scores),
    }


def share_kept(score: float, teacher_score: float) -> float | None:
    """Return the student's score as a fraction of the teacher's; None if the teacher's is not positive."""
    return score / teacher_score if teacher_score > 0 else None


def measure_speeds(teacher: Model, student: Model, data: TaskData) -> tuple[float, float]:
    """Return the rows per second of both models, measured in turns, so that other load affects both equally."""
    rows: Examples = data.dev.select(range(min(len(data.dev), _ROWS)))
    best = [float("inf"), float("inf")]
    for _ in range(_ROUNDS):
        for number, model in enumerate((teacher, student)):
            start = time.perf_counter()
            evaluate_examples(model, data.kind, rows, data.metrics)
            best[number] = min(best[number], time.perf_counter() - start)
    return len(rows) / best[0], len(rows) / best[1]


def _describe(bert: Backbone, folder: Path | None, speed: float, scores: Mapping[str, float]) -> dict[str, Any]:
    # The teacher's files may be in any format and hold more than the model, so compute its size in float32.
    size = 4 * bert.parameter_count() if folder is None else (folder / _WEIGHTS).stat().st_size
    return {
        **describe_size(bert),
        "bytes": size,
        "rows_per_second": round(speed, 1),
        "scores": dict(scores),
    }


def describe_size(bert: Backbone) -> dict[str, int]:
    """Return the shape and the number of parameters of a model."""
    config = bert.config
    return {"layers": config.layers, "hidden_size": config.hidden_size, "parameters": bert.parameter_count()}


def text_distillation_card(
    contents: ModelFolder,
    teacher: ModelFolder,
    results: Mapping[str, Any],
    settings: TextDistillSettings,
    recorded: Mapping[str, Any],
    training: ResolvedSettings,
) -> str:
    """Return the model card as Markdown."""
    model, embedding = contents.model, contents.embedding
    licence = None if teacher.card is None else _LICENCE.search(teacher.card)
    stated = "not stated in its model card" if licence is None else licence[1].strip()
    words = ["cloze", "distill", "--text", "TEXT", "--model", recorded["model"], "--out", "RUN"]
    command = shlex.join([*words, *command_flags(settings)])
    files = ", ".join(f"`{name}` ({digest[:12]})" for name, digest in recorded["texts"]["files"])
    shown = ("held_out_loss", "held_out_cosine", "held_out_spearman")
    scores = "\n".join(f"- {name}: {results[name]:.4f}" for name in shown if name in results)
    mapped = ", a linear map to the width of the teacher's vectors" if embedding.projections else ""
    return (
        f"# BERT, {model.config.layers} layers, hidden size {model.config.hidden_size}, distilled on raw text\n\n"
        f"Distilled with cloze {__version__} from {recorded['model']} ({results['teacher']['layers']} layers, hidden "
        f"size {results['teacher']['hidden_size']}), whose licence is: {stated}.\n\n"
        f"- objective: {results['objective']}\n"
        f"- parameters: {model.parameter_count():,}\n"
        f"- longest input: {contents.tokenizer.max_length} tokens\n"
        f"- vocabulary: {contents.tokenizer.size:,} pieces, {'uncased' if contents.tokenizer.lowercase else 'cased'}\n"
        f"- vectors: {embedding.pooling} pooling{mapped}{', of length 1' if embedding.normalize else ''}\n"
        f"- text: {results['texts']:,} {settings.split} of {files}\n"
        f"- training: {results['steps']:,} steps, {results['hours']:.2f} hours, {results['tokens_seen']:,} tokens, "
        f"{training.summary}\n\n"
        "The command, where `TEXT` stands for those files and `RUN` for a new folder:\n\n"
        f"```console\n{command}\n```\n\n"
        f"On {results['held_out_texts']:,} held-out texts:\n\n{scores}\n"
    )
