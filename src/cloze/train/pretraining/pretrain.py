"""Pre-training (``cloze pretrain``; section 3.1 of the paper), from scratch or continued from an existing model.

shards -> ``LengthSchedule`` (batches) -> ``PretrainingObjective`` (loss) -> ``train`` (the loop) -> model folder with a
model card that lists the texts, the command and the held-out metrics
"""

import hashlib
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from cloze import __version__
from cloze.checkpoint import EmbeddingSettings, ModelFolder, base_files, find_model, find_source, load_folder
from cloze.checkpoint.folder import save_folder
from cloze.checkpoint.pooling_files import read_embedding
from cloze.corpus.shards import read_manifest, verify_corpus
from cloze.errors import ConfigError, DataError, format_option
from cloze.hardware import choose_device, keep_freed_memory, return_freed_memory
from cloze.model import Backbone, BertConfig, HeadName, preset
from cloze.model.surgery import missing_heads, with_heads
from cloze.options import STATIC_BACKBONES, command_flags
from cloze.progress import Progress, Silent
from cloze.text import Tokenizer
from cloze.train.distributed import ProcessGroup, full_state_dict
from cloze.train.loop import TensorBoardLogger, TrainerOptions, train
from cloze.train.optimization import Precision, measure_peak
from cloze.train.pretraining.held_out import evaluate_held_out, measured_phases, open_held_out
from cloze.train.pretraining.objectives import OBJECTIVES, backbone_class, new_objective, pretraining_heads
from cloze.train.pretraining.objectives.masked import BaseObjective
from cloze.train.pretraining.objectives.relatives import load_generator
from cloze.train.pretraining.phases import (
    LengthSchedule,
    check_extension,
    flops_per_token,
    open_tables,
    require_step_memory,
    start_of_extension,
)
from cloze.train.pretraining.static_vectors import pretrain_static
from cloze.train.run import Run, open_run
from cloze.train.settings import MAY_CHANGE, RECORDED_IF_SET, PretrainSettings


def pretrain(
    data: str | Path,
    out: str | Path,
    *,
    model: str | Path | None = None,
    extend: str | Path | None = None,
    settings: PretrainSettings | None = None,
    device: str | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Path:
    r"""Pre-train a model on a prepared corpus; calling this again resumes an unfinished run.

    Under torchrun, every process calls this and they train one model together.

    Args:
        data: A folder written by ``prepare``.
        out: The run's folder.
        model: A model to train further; None to start from scratch.
        extend: A run with the schedule wsd whose stable part this run continues, with its optimizer state and step
            count; ``settings.steps`` or ``settings.hours`` count from the start of that run.
        settings: Shape, objective, masking and training settings.
        device: Where to compute; by default an accelerator if there is one.
        fresh: Delete an existing run and start over.
        progress: Receives messages and progress.

    Returns:
        The run's folder. The model is in its subfolder ``model``; ``load`` accepts either folder.

    Raises:
        ConfigError: If settings do not fit the model or the memory, or differ from those of the run to resume.
        DataError: If the corpus is damaged, or was prepared with a vocabulary other than the model's.
        ClozeError: If the run is open in another process or a file cannot be written.

    Example:
        >>> sentences = "The river was high. The bridge held. We crossed it at dawn.\n\n"
        >>> Path("text.txt").write_text(sentences * 500)
        >>> cloze.train_vocabulary(["text.txt"], "vocab", settings=cloze.VocabularySettings(size=200))
        >>> cloze.prepare(["text.txt"], "vocab", "corpus")
        >>> settings = cloze.PretrainSettings(preset="tiny", steps=20, max_length=32)
        >>> run = cloze.pretrain("corpus", "runs/pretrained", settings=settings)
        >>> cloze.load(run).fill("The [MASK] was high.")
    """
    settings, progress = settings or PretrainSettings(), progress or Silent()
    group = ProcessGroup.join(choose_device(device))
    try:
        reporter = progress if group.is_main else Silent()
        return _pretrain(Path(data), Path(out), model, extend, settings, fresh, reporter, group)
    finally:
        group.destroy()


def _pretrain(
    data: Path,
    out: Path,
    model: str | Path | None,
    extend: str | Path | None,
    settings: PretrainSettings,
    fresh: bool,
    progress: Progress,
    group: ProcessGroup,
) -> Path:
    read_manifest(data)  # raises a clear error early if the folder is not a prepared corpus
    if group.is_main:
        verify_corpus(data)
    if settings.backbone in STATIC_BACKBONES:
        if model or extend or group.size > 1:
            raise ConfigError(f"{settings.backbone} is trained from scratch by one process: omit model and extend")
        return pretrain_static(data, out, _recorded(data, None, settings), settings, progress, fresh=fresh)
    start = None if model is None else find_source(model)
    check = partial(require_step_memory, device=group.device, processes=group.size)
    bert, tokenizer = start_model(Tokenizer.from_folder(data), settings, start, progress, check)
    tables = open_tables(data, tokenizer, settings)
    batches = LengthSchedule.open(data, tokenizer, settings, tables)
    batches.check(group.size, settings.accumulate)  # before the run's folder is created
    held_out = open_held_out(data, tokenizer, settings, tables, group, progress)
    recorded = _recorded(data, model, settings) | ({} if extend is None else {"extend": str(Path(extend))})
    if extend is not None:
        check_extension(Path(extend), out, recorded)
    with open_run(out, recorded, fresh=fresh, group=group) as run:
        if not run.report_finished(progress):
            bert.use_checkpointing(settings.checkpointing)
            return_freed_memory() if settings.checkpointing else keep_freed_memory()
            objective = new_objective(bert.to(group.device), settings, group.device)
            evaluate = (lambda pause: evaluate_held_out(held_out, objective, pause)) if held_out else None
            state = None if extend is None else start_of_extension(Path(extend), run, settings, group)
            options = replace(_trainer_options(objective, settings, run, group), start=state)
            precision = train(objective, batches, settings.loop(), run, progress, evaluate, options)
            plain = _plain(bert)
            others = objective.other_models(plain)
            if group.is_main:
                for name, other in others.items():
                    save_folder(ModelFolder(other, tokenizer), run.folder / name)
                _finish(run, data, plain, tokenizer, replace(settings, precision=precision.name), model)
            group.barrier()
        return run.folder


def start_model(
    tokenizer: Tokenizer,
    settings: PretrainSettings,
    model: Path | None,
    progress: Progress,
    check: Callable[[BertConfig, tuple[HeadName, ...], PretrainSettings], None] | None = None,
) -> tuple[Backbone, Tokenizer]:
    """Return a new model of the preset, or the model to train further, with its tokenizer.

    The tokenizer truncates at the longest sequence that the model has been trained on. ``check`` is called with the
    configuration before memory is allocated for the model, and may raise an error.
    """
    heads = pretraining_heads(settings)
    if settings.generator is not None:
        load_generator(settings.generator, tokenizer)  # raises an error early if it does not fit
    if model is None:
        config, longest = _new_config(tokenizer, settings), settings.longest
        if check is not None:
            check(config, heads, settings)
        bert: Backbone = backbone_class(settings.backbone).fresh(config, heads, seed=settings.seed)
    else:
        loaded = load_folder(model)
        _refuse_shape(model, loaded.model, settings)
        if not loaded.tokenizer.is_equivalent(tokenizer):
            raise DataError(f"{model}: the text was prepared with another vocabulary; prepare it with --vocab {model}")
        missing = missing_heads(loaded.model, heads)
        if missing:
            progress.say(f"{model}: lacks the heads {', '.join(missing)}; new ones start at random")
        unused = [name for name in loaded.model.head_names if name not in heads]
        if unused:
            progress.say(f"{model}: its heads {', '.join(unused)} are not used by this objective and are dropped")
        bert = with_heads(loaded.model, heads, keep=True, seed=settings.seed, dropout=settings.dropout)
        longest = max(loaded.tokenizer.max_length, settings.longest)
        tokenizer = tokenizer.with_segments(loaded.tokenizer.segments)
    if settings.longest > bert.config.positions:
        raise ConfigError(
            f"max_length is {settings.longest}, but the model accepts at most {bert.config.positions} tokens; "
            "extend it with 'cloze extend --positions'"
        )
    if model is not None and check is not None:
        check(bert.config, heads, settings)
    return bert, tokenizer.with_max_length(longest)


def _new_config(tokenizer: Tokenizer, settings: PretrainSettings) -> BertConfig:
    dropout = BertConfig.dropout if settings.dropout is None else settings.dropout
    backbone = backbone_class(settings.backbone)
    shape = preset(
        settings.preset,
        tokenizer.size,
        layers=backbone.default_layers if settings.layers is None else settings.layers,
        hidden_size=settings.hidden_size,
        heads=settings.heads,
        segments=settings.segments or BertConfig.segments,
        dropout=dropout,
        attention_dropout=dropout,
        pad_id=tokenizer.pad_id,
        embedding_size=settings.embedding_size,
        shared_layers=settings.shared_layers,
        positions=max(512, settings.longest),
        position_kind=settings.position_kind,
    )
    return backbone.config_type(**vars(shape))


def _refuse_shape(model: Path, loaded: Backbone, settings: PretrainSettings) -> None:
    """Refuse settings that would change the shape of a given model; settings equal to its shape are accepted."""
    config = loaded.config
    if not isinstance(loaded, backbone_class(settings.backbone)) or (
        settings.backbone == "bert" and loaded.model_type not in ("bert", "albert")
    ):
        raise ConfigError(
            f"--model {model} is of type {loaded.model_type}, but the backbone is {settings.backbone}; use "
            f"{format_option('backbone', loaded.model_type)}"
        )
    for name in ("layers", "hidden_size", "heads", "segments", "embedding_size"):
        if getattr(settings, name) not in (None, getattr(config, name)):
            raise ConfigError(
                f"--model {model} already has its shape ({name} is {getattr(config, name)}); {name} only applies to "
                "new models: omit it"
            )
    for name in ("shared_layers", "position_kind"):
        if getattr(settings, name) not in (getattr(PretrainSettings, name), getattr(config, name)):
            raise ConfigError(f"--model {model} already has its shape; {name} only applies to new models: omit it")


def _recorded(data: Path, model: str | Path | None, settings: PretrainSettings) -> dict[str, Any]:
    """Return the facts that the result depends on, which are compared when the run is resumed."""
    values = {
        name: value
        for name, value in asdict(settings).items()
        if name not in MAY_CHANGE and not (name in RECORDED_IF_SET and value == getattr(PretrainSettings, name))
    }
    for name in ("entities", "similar"):
        path: Path | None = values[name]
        # By content: a changed file gives different masks, a moved one does not.
        values[name] = None if path is None else _fingerprint(path)
    if settings.generator is not None:
        values["generator"] = base_files(settings.generator)
    # The prepared corpus is identified by its contents, not by its path.
    corpus = read_manifest(data)["recipe"]
    base = base_files(model) if model else None
    # The files of the corpus folder; the manifest among them contains the digests of the shards.
    corpus_files = {path.name: _fingerprint(path) for path in sorted(data.iterdir()) if path.is_file()}
    return {
        "command": "pretrain",
        "data": corpus,
        "model": str(Path(model)) if model else None,
        "base": base,
        "corpus_files": corpus_files,
        **values,
    }


def _fingerprint(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error


def _trainer_options(
    objective: BaseObjective, settings: PretrainSettings, run: Run, group: ProcessGroup
) -> TrainerOptions:
    precision = Precision.choose(settings.precision, group.device)
    # With "auto", every process measures for itself; all use the choice of rank 0.
    precision = replace(precision, bf16=group.all_reduce([float(precision.bf16 and group.is_main)])[0] > 0)
    bert = objective.model
    return TrainerOptions(
        group=group,
        precision=precision,
        layers=bert.layers,
        flops_per_token=flops_per_token(bert, settings),
        peak_flops=measure_peak(precision),
        log=TensorBoardLogger(run.folder).log if settings.tensorboard and group.is_main else None,
        unused_parameters=len(settings.objectives()) > 1,
    )


def _finish(
    run: Run, data: Path, bert: Backbone, tokenizer: Tokenizer, settings: PretrainSettings, model: str | Path | None
) -> None:
    """Write results, model card and model folder."""
    results = run_results(run.metrics())
    run.write_results(results)
    card = pretraining_card(bert, tokenizer, settings, read_manifest(data), results, model)
    run.finish(ModelFolder(bert, tokenizer, embedding=_embedding(model), card=card))


def _embedding(model: str | Path | None) -> EmbeddingSettings:
    """Return the pooling of the model that training started from, without projections fitted to its vectors."""
    found = None if model is None else find_model(find_source(model))
    return EmbeddingSettings() if found is None else replace(read_embedding(found[0]), projections=())


def run_results(metrics: list[dict[str, float]]) -> dict[str, float]:
    """Return the last value of each metric that the results list."""
    newest = {name: value for row in metrics for name, value in row.items()}
    kept = {name: value for name, value in newest.items() if name.startswith("held_out_")}
    return {"steps": newest["step"], "hours": newest["seconds"] / 3600, "tokens_seen": newest["tokens_seen"], **kept}


def _plain(bert: Backbone) -> Backbone:
    """Return a copy with full tensors on the CPU; a collective operation if parameters are sharded."""
    plain = type(bert)(bert.config, bert.head_names, labels=bert.labels, pooler=bert.pooler is not None)
    plain.load_state_dict({name: tensor.cpu() for name, tensor in full_state_dict(bert).items()})
    return plain.eval()


_OBJECTIVES = {
    "nsp": "masked language modelling and next-sentence prediction",
    "sop": "masked language modelling and sentence-order prediction",
    "relation": "masked language modelling and the relation of two segments",
    "copy": "masked language modelling on copy pairs",
    "none": "masked language modelling on full sentences",
}
_MOST_FILES = 10  # files of the corpus listed in the card


def pretraining_card(
    bert: Backbone,
    tokenizer: Tokenizer,
    settings: PretrainSettings,
    manifest: Mapping[str, Any],
    results: Mapping[str, float],
    model: str | Path | None = None,
) -> str:
    """Return the model card as Markdown; ``model`` is the model that training started from, None if from scratch."""
    train = manifest["splits"]["train"]
    scores = {name: value for name, value in results.items() if name.startswith("held_out_")}
    held_out = (
        "\n".join(f"- {name}: {value:.4f}" for name, value in scores.items()) or "- none: too little text was held out"
    )
    phases = settings.length_phases()
    sizes = ", then ".join(f"{phase.batch_size} sequences of {phase.max_length} tokens" for phase in phases)
    main, longest = measured_phases(settings)
    cut = f", in sequences of {main.max_length} tokens (long: {longest.max_length})" if longest != main else ""
    return (
        f"# {bert.title}, {bert.config.layers} layers, hidden size {bert.config.hidden_size}\n\n"
        f"Pre-trained with cloze {__version__} by {_objective(settings)}"
        f"{f', further from {model}' if model else ', from scratch'}.\n\n"
        f"- parameters: {bert.parameter_count():,}\n"
        f"- longest input: {tokenizer.max_length} tokens\n"
        f"- vocabulary: {tokenizer.size:,} pieces, {'uncased' if tokenizer.lowercase else 'cased'}\n"
        f"- text: {train['tokens']:,} tokens in {train['documents']:,} documents\n"
        f"- files: {_files(manifest['recipe']['texts'])}\n"
        f"- training: {int(results['steps']):,} steps of {sizes}, "
        f"{results['hours']:.2f} hours, {int(results['tokens_seen']):,} tokens seen\n"
        f"{_masking(settings)}"
        f"- peak learning rate {settings.learning_rate:g}, warm-up {settings.warmup:.0%}, {_schedule(settings)}, "
        f"weight decay {settings.weight_decay:g}, dropout {bert.config.dropout:g}, seed {settings.seed}, "
        f"computed in {settings.precision}\n\n"
        "The command, where `DATA` is the corpus that `cloze prepare` made from those files and `RUN` a new folder:\n\n"
        f"```console\n{pretraining_command(settings, model)}\n```\n\n"
        f"Held-out documents{cut}:\n\n{held_out}\n"
    )


def _objective(settings: PretrainSettings) -> str:
    if settings.backbone != "bert":
        return OBJECTIVES[settings.backbone].title
    if settings.mixture is not None:
        shares = ", ".join(f"{100 * share:g} % {name}" for name, share in settings.objectives().items())
        return f"masked language modelling on a mixture of {shares}"
    (objective,) = settings.objectives()
    return _OBJECTIVES[objective] + (" and the boundaries of spans" if settings.boundary else "")


def _masking(settings: PretrainSettings) -> str:
    if settings.predicts != "masked":
        return ""
    return (
        f"- masking: {settings.masking}, {settings.mask_rate:.0%} of tokens, "
        f"{'/'.join(f'{100 * share:g}' for share in settings.mask_mix)}"
        f"{f', {settings.static} frozen variants' if settings.static else ''}\n"
    )


def _schedule(settings: PretrainSettings) -> str:
    return "linear decay" if settings.schedule == "linear" else f"decay over the last {settings.decay:.0%}"


def pretraining_command(settings: PretrainSettings, model: str | Path | None = None) -> str:
    """Return the command line for these settings, with every flag whose value is not the default.

    DATA and RUN stand for the folders of the corpus and the run, which differ between machines.
    """
    words = ["cloze", "pretrain", "DATA", "--out", "RUN", *(["--model", str(model)] if model else [])]
    return shlex.join([*words, *command_flags(settings)])


def _files(texts: Sequence[tuple[str, str]]) -> str:
    """Return the file names of a corpus with the first digits of their SHA-256; only some if there are many."""
    shown = [f"`{name}` ({digest[:12]})" for name, digest in texts[:_MOST_FILES]]
    more = len(texts) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")
