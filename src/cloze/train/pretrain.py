"""``cloze pretrain``: masked words and next sentences (section 3.1), from scratch or from a model."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from cloze.checkpoint import ModelFolder, find_source, load_folder, save_folder
from cloze.corpus.batches import PretrainingBatch, PretrainingBatches
from cloze.corpus.settings import MaskSettings, PairSettings
from cloze.corpus.shards import Corpus, read_manifest
from cloze.errors import ConfigError, DataError
from cloze.model import Bert, HeadName, preset
from cloze.model.losses import masked_word_logits, masked_word_loss, next_sentence_loss
from cloze.model.surgery import missing_heads, with_heads
from cloze.predict import choose_device
from cloze.progress import Progress, Silent
from cloze.text import Tokenizer
from cloze.train.curves import draw_curves
from cloze.train.loop import Outcome, train
from cloze.train.run import Run
from cloze.train.settings import PretrainSettings

# Evaluation draws its masks from a seed of its own, so that every run is measured on the same blanks.
EVALUATION_SEED = 7_919
EVALUATION_BATCHES = 20

HEADS: tuple[HeadName, ...] = ("mlm", "nsp")


class PretrainingObjective(nn.Module):
    """The sum of the two losses, as in appendix A.2."""

    def __init__(self, model: Bert, device: torch.device) -> None:
        super().__init__()
        self.model = model
        self.device = device

    def forward(self, batch: PretrainingBatch) -> Outcome:
        """Losses and accuracies of one batch."""
        ids, segments, positions, targets, is_random = (
            torch.from_numpy(array).to(self.device)
            for array in (batch.ids, batch.segments, batch.positions, batch.targets, batch.is_random)
        )
        last = self.model(ids, segments, self._mask(batch)).last
        word_logits = masked_word_logits(self.model, last, positions)
        word_loss = masked_word_loss(word_logits, targets)
        pair_loss, pair_logits = next_sentence_loss(self.model, last, is_random)
        figures = {
            "mlm_loss": word_loss,
            "nsp_loss": pair_loss,
            "mlm_accuracy": _accuracy(word_logits, targets),
            "nsp_accuracy": _accuracy(pair_logits, is_random),
        }
        return Outcome(word_loss + pair_loss, batch.token_count, figures)

    def _mask(self, batch: PretrainingBatch) -> Tensor | None:
        """(B, T), true at real tokens; None, which is faster, where there is no padding at all."""
        length = batch.ids.shape[1]
        if int(batch.lengths.min()) == length:
            return None
        return (torch.arange(length) < torch.from_numpy(batch.lengths)[:, None]).to(self.device)


def _accuracy(logits: Tensor, targets: Tensor) -> Tensor:
    return (logits.detach().argmax(-1) == targets).float().mean()


def pretrain(
    data: str | Path,
    out: str | Path,
    *,
    model: str | Path | None = None,
    settings: PretrainSettings | None = None,
    device: str | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Pre-train on a prepared corpus and return the run's folder. The same call goes on where another stopped."""
    settings, progress = settings or PretrainSettings(), progress or Silent()
    data = Path(data)
    read_manifest(data)  # a folder that is no corpus should be called just that
    start = None if model is None else find_source(model)
    bert, tokenizer = _start(Tokenizer.from_folder(data), settings, start, progress)
    train_batches = _batches(Corpus.open(data), tokenizer, settings, settings.seed)
    train_batches.at(0)  # too little text is found out now, not after the folder is made
    held_out = _held_out_batches(data, tokenizer, settings)
    place = choose_device(device)
    recorded = {"command": "pretrain", "data": _identity(data), "model": str(model) if model else None}
    run = Run.open(Path(out), recorded | asdict(settings), fresh=fresh)
    if run.finished:
        progress.say(f"{run.folder}: finished already; use --fresh to start over")
        return run.folder
    objective = PretrainingObjective(bert.to(place), place)
    evaluate = (lambda: evaluate_pretraining(objective, held_out)) if held_out else None
    train(objective, train_batches, settings.loop(), run, progress, evaluate)
    _finish(run, bert, tokenizer, settings, data)
    return run.folder


def _start(
    tokenizer: Tokenizer, settings: PretrainSettings, model: Path | None, progress: Progress
) -> tuple[Bert, Tokenizer]:
    """A fresh model of the preset, or the one to go on with; its tokenizer ends where its positions were trained."""
    if model is None:
        bert, longest = _fresh(tokenizer, settings), settings.length
    else:
        loaded = load_folder(model)
        if not loaded.tokenizer.reads_like(tokenizer):
            raise DataError(f"{model}: the text was prepared with another vocabulary; prepare it with --vocab {model}")
        missing = missing_heads(loaded.model, HEADS)
        if missing:
            progress.say(f"{model}: lacks the heads {', '.join(missing)}; new ones start at random")
        bert = with_heads(loaded.model, HEADS, keep=True, seed=settings.seed)
        longest = max(loaded.tokenizer.max_length, settings.length)
    if settings.length > bert.config.positions:
        raise ConfigError(f"length is {settings.length}, but the model reads at most {bert.config.positions} tokens")
    return bert, tokenizer.with_max_length(longest)


def _fresh(tokenizer: Tokenizer, settings: PretrainSettings) -> Bert:
    changes = {"dropout": settings.dropout, "attention_dropout": settings.dropout, "pad_id": tokenizer.pad_id}
    return Bert.fresh(preset(settings.preset, tokenizer.size, **changes), HEADS, seed=settings.seed)


def _identity(data: Path) -> object:
    """What tells one prepared corpus from another, wherever it lies."""
    return read_manifest(data)["recipe"]


def _batches(corpus: Corpus, tokenizer: Tokenizer, settings: PretrainSettings, seed: int) -> PretrainingBatches:
    return PretrainingBatches(
        corpus=corpus,
        tokenizer=tokenizer,
        batch=settings.batch,
        pairs=PairSettings(length=settings.length),
        masks=MaskSettings(settings.mask_rate, settings.mask_mix),
        seed=seed,
    )


def _held_out_batches(data: Path, tokenizer: Tokenizer, settings: PretrainSettings) -> list[PretrainingBatch]:
    """The same few batches of held-out documents every time; none where too little was held out."""
    corpus = Corpus.open(data, "held_out")
    if corpus.document_count < 2:
        return []
    batches = _batches(corpus, tokenizer, settings, EVALUATION_SEED)
    try:
        count = next(
            step for step in range(EVALUATION_BATCHES + 1) if step == EVALUATION_BATCHES or batches.epoch_at(step)
        )
    except DataError:  # less than one batch
        return []
    return [batches.at(step) for step in range(count)]


def evaluate_pretraining(objective: PretrainingObjective, batches: list[PretrainingBatch]) -> Mapping[str, float]:
    """Held-out losses and accuracies, each batch weighing by what it holds; and what a constant answer would get."""
    names = {"mlm_loss": "mlm", "mlm_accuracy": "mlm", "nsp_loss": "nsp", "nsp_accuracy": "nsp"}
    weights = {"mlm": [len(batch.targets) for batch in batches], "nsp": [len(batch.is_random) for batch in batches]}
    outcomes = [objective(batch).figures for batch in batches]
    figures = {
        f"held_out_{name}": sum(float(figures[name]) * w for figures, w in zip(outcomes, weights[kind], strict=True))
        / sum(weights[kind])
        for name, kind in names.items()
    }
    # Short sequences often hold one sentence, whose B can only be random: then half is not chance.
    random_share = sum(int(batch.is_random.sum()) for batch in batches) / sum(weights["nsp"])
    return figures | {"held_out_nsp_constant": max(random_share, 1 - random_share)}


def _finish(run: Run, bert: Bert, tokenizer: Tokenizer, settings: PretrainSettings, data: Path) -> None:
    """Write the curves, the results and, last, the model: its presence says that the run is over."""
    metrics = run.metrics()
    draw_curves(metrics, run.folder / "curves.png")
    results = {name: value for row in metrics for name, value in row.items() if name.startswith("held_out_")}
    run.write_results({"steps": settings.steps, **results})
    card = pretraining_card(bert, tokenizer, settings, read_manifest(data), results)
    save_folder(ModelFolder(bert.eval().cpu(), tokenizer, card=card), run.model_folder)
    run.store.clear()


def pretraining_card(
    bert: Bert,
    tokenizer: Tokenizer,
    settings: PretrainSettings,
    manifest: Mapping[str, object],
    results: Mapping[str, float],
) -> str:
    """The model card: what it is, what it was made from, how well it does."""
    splits = manifest["splits"]
    assert isinstance(splits, dict)
    scores = "\n".join(f"- {name}: {value:.4f}" for name, value in results.items()) or "- none: no text was held out"
    return (
        f"# BERT, {bert.config.layers} layers, hidden size {bert.config.hidden_size}\n\n"
        "Pre-trained with cloze by masked language modelling and next-sentence prediction.\n\n"
        f"- parameters: {bert.parameter_count():,}\n"
        f"- longest input: {tokenizer.max_length} tokens\n"
        f"- vocabulary: {tokenizer.size:,} pieces, {'uncased' if tokenizer.lowercase else 'cased'}\n"
        f"- text: {splits['train']['tokens']:,} tokens in {splits['train']['documents']:,} documents\n"
        f"- training: {settings.steps:,} steps of {settings.batch} sequences of {settings.length} tokens\n\n"
        f"Held-out documents:\n\n{scores}\n"
    )
