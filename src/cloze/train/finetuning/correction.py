"""``cloze finetune correction``: train a model on texts with mistakes and their corrections.

The model encodes the text with its mistakes, unmasked. At every word that is a single token, the masked-LM head
predicts the correct word, which is usually the one that is there. This is ``correction`` masking with mistakes made by
people. Training uses the loop and run of fine-tuning.

Dimensions: B texts of a batch, T tokens, M tokens with a target, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from torch import nn

from cloze.checkpoint import EmbeddingSettings, ModelFolder, base_files, find_source, load_folder
from cloze.errors import CheckpointError, DataError, format_option
from cloze.model import Backbone
from cloze.model.losses import masked_word_logits, masked_word_loss
from cloze.model.surgery import with_heads
from cloze.options import IGNORED
from cloze.predict import Evaluation, Model, write_report
from cloze.predict.corrector import proposed_changes
from cloze.progress import Progress, Silent
from cloze.tasks.correction.examples import Corrections, correction_columns, read_corrections
from cloze.tasks.correction.kind import CORRECTION, CorrectionSettings
from cloze.tasks.correction.metrics import CorrectedRows, applied, choose_threshold, score_corrections
from cloze.tasks.examples import Item, fingerprint, split_dev
from cloze.tasks.reports import card_scores
from cloze.tasks.rows import Source
from cloze.text import Tokenizer
from cloze.train.driver import TrainingParts, run_training
from cloze.train.finetuning.defaults import resolve_settings
from cloze.train.finetuning.objective import TaskBatch, TaskBatches, report_truncated, report_unknown
from cloze.train.finetuning.settings import FinetuneSettings, ResolvedSettings
from cloze.train.finetuning.trainable import check_label_free_settings, check_length, freeze_lowest
from cloze.train.loop import ObjectiveOutput
from cloze.train.run import Run

# With a smaller share of correct dev rows, the rate of false alarms cannot be estimated.
_FEW_RIGHT = 0.2
_WHOLE = 1_000_000  # tokens, more than any row has


class CorrectionObjective(nn.Module):
    """Cross-entropy of the correct word at each token with a target."""

    def __init__(self, model: Backbone) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: TaskBatch, totals: Mapping[str, int]) -> ObjectiveOutput:
        """Return this part's share of the loss of a batch."""
        inputs, targets = batch.inputs, batch.targets.flatten()
        positions = targets.ne(IGNORED).nonzero().flatten()  # (M,)
        last = self.model.word_states(inputs.ids, inputs.segments, inputs.mask, positions)
        logits = masked_word_logits(self.model, last, positions).float()  # (M, V)
        selected, total = targets[positions], max(1, totals["targets"])
        right = logits.detach().argmax(-1).eq(selected).sum()
        return ObjectiveOutput(masked_word_loss(logits, selected, total), {"accuracy": right / total})


@dataclass(frozen=True)
class CorrectionData:
    """Training rows, and dev rows for the threshold and the scores."""

    train: Corrections
    dev: Corrections


def finetune_correction(
    source: Source,
    model: str | Path,
    out: str | Path,
    *,
    settings: FinetuneSettings | None = None,
    device: str | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Train on a table or on a folder with SIGHAN's files; return the run's folder. The same call resumes it."""
    given, progress = settings or FinetuneSettings(), progress or Silent()
    check_label_free_settings(given, CORRECTION.name)
    data = read_correction_data(source, progress)
    base = load_folder(find_source(model))
    check_length(given.max_length, base)
    settings = resolve_settings(given, base.model.config.hidden_size, len(data.train), progress)
    tuned = _start(base, str(model), settings)
    wrapped = Model(tuned, device=device)
    report_unknown(tuned.tokenizer, data.train.sources, progress)
    items = correction_items(data.train, tuned.tokenizer, progress)
    facts = {"command": "finetune", "model": str(Path(model)), "base": base_files(model), **source.recorded()}
    content = {"rows": len(data.train), "content": fingerprint(data.train, data.dev)}
    parts = TrainingParts(
        recorded=facts | content | asdict(settings),
        settings=settings,
        model=wrapped,
        batches=lambda: TaskBatches(
            items, settings.batch_size, settings.seed, tuned.tokenizer.pad_id, wrapped.device, token_targets=True
        ),
        objective=lambda: CorrectionObjective(wrapped.bert),
        metric="correction_f1",
        score=lambda: _dev_scores(wrapped, data.dev),
        finish=lambda run, used: _finish(run, wrapped, tuned, data, used),
    )
    return run_training(parts, out, fresh=fresh, progress=progress)


def read_correction_data(source: Source, progress: Progress) -> CorrectionData:
    """Read training and dev rows; some dev rows are made correct if almost none are, because most texts are."""
    source_column, target_column = correction_columns(source.text, source.label)
    read = partial(
        read_corrections,
        source=source_column,
        target=target_column,
        on_bad_row=source.on_bad_row,
        header=source.header(source.data),
    )
    train = read(source.data, training=True)
    if train.right == len(train):
        raise DataError(f"{source.data}: no row has a mistake; expected texts with mistakes and their corrections")
    if train.skipped:
        progress.say(f"{train.skipped} bad training rows were skipped")
    if source.dev is not None:
        dev = read(source.dev)
    else:
        train, dev = split_dev(train)
        progress.say(f"no {format_option('dev')} file: {len(dev)} of the training rows, a tenth, are held out")
    if dev.right < _FEW_RIGHT * len(dev):
        dev = _correct_every_other(dev)
        progress.say("almost every dev row has a mistake: every other row is corrected, to count false alarms")
    return CorrectionData(train, dev)


def _correct_every_other(rows: Corrections) -> Corrections:
    both = zip(rows.sources, rows.targets, strict=True)
    return replace(rows, sources=[source if number % 2 else target for number, (source, target) in enumerate(both)])


def correction_items(rows: Corrections, tokenizer: Tokenizer, progress: Progress) -> list[Item]:
    """Return the texts with the correct word as target at each word that is a single token, and no target elsewhere."""
    items = []
    read = tokenizer.encode_batch(rows.sources)
    # Words are compared in whole texts: truncated ones may end at different words, as their pieces differ.
    sources, targets = (tokenizer.encode_batch(texts, max_length=_WHOLE) for texts in (rows.sources, rows.targets))
    for number, (given, whole, wanted) in enumerate(zip(read, sources, targets, strict=True)):
        before, after = tokenizer.words(whole, rows.sources[number]), tokenizer.words(wanted, rows.targets[number])
        if len(before) != len(after):  # a missing or an extra word: the words cannot be aligned
            continue
        target = [IGNORED] * len(given.ids)
        for word, right in zip(before, after, strict=True):
            learnable = len(word.ids) == len(right.ids) == 1 and right.ids[0] != tokenizer.unknown_id
            if learnable and word.first < len(given.ids) - 1:  # the last token is [SEP]
                target[word.first] = right.ids[0]
        items.append(Item((given,), target))
    if len(items) < len(rows):
        dropped = len(rows) - len(items)
        progress.say(
            f"{dropped} of {len(rows)} training rows differ from their correction in the number of words: skipped"
        )
    report_truncated(items, tokenizer.max_length, progress)
    if not items:
        raise DataError(
            f"{rows.places[0]}: this row and all others differ from their correction in the number of words; "
            "only replacements of words can be learned"
        )
    return items


def _start(base: ModelFolder, name: str, settings: ResolvedSettings) -> ModelFolder:
    """Return the model with its masked-LM head; a new head would have to learn the language from the rows."""
    if "mlm" not in base.model.heads:
        raise CheckpointError(f"{name}: no masked-LM head; train one with 'cloze pretrain --model {name}'")
    bert = with_heads(base.model, ["mlm"], keep=True, seed=settings.seed, dropout=settings.dropout)
    freeze_lowest(bert, settings.freeze_layers)
    if bert.pooler is not None:
        bert.pooler.requires_grad_(False)  # it has no part in the loss
    length = min(settings.max_length, base.tokenizer.max_length)
    return ModelFolder(bert, base.tokenizer.with_max_length(length), None, EmbeddingSettings())


def _score(model: Model, dev: Corrections) -> tuple[Evaluation, float]:
    """Return the evaluation at the threshold that is best for these rows, and that threshold."""
    changes = proposed_changes(model, dev.sources, CorrectionSettings(reading="seen"))
    threshold = choose_threshold(dev.sources, dev.targets, changes)
    corrected = applied(dev.sources, changes, threshold)
    evaluation = Evaluation(
        score_corrections(dev.sources, dev.targets, corrected),
        corrected,
        dev.places,
        dev.targets,
        [{"text": text} for text in dev.sources],
        skipped=dev.skipped,
        rows=CorrectedRows(dev.sources, dev.targets, corrected),
    )
    return evaluation, threshold


def _dev_scores(model: Model, dev: Corrections) -> dict[str, float]:
    evaluation, threshold = _score(model, dev)
    return evaluation.metrics | {"threshold": threshold}


def _finish(run: Run, wrapped: Model, tuned: ModelFolder, data: CorrectionData, settings: ResolvedSettings) -> None:
    """Write scores and model card, and finish the run."""
    evaluation, threshold = _score(wrapped, data.dev)
    write_report(evaluation, run.folder)
    run.write_results(evaluation.results() | {"threshold": threshold})
    card = (
        "# BERT, trained to correct\n\n"
        f"- corrects: words with a score above {threshold:.4f}, predicted from the unmasked text\n"
        f"- training: {len(data.train):,} rows, {settings.summary}\n\n"
        f"On {len(data.dev):,} dev rows, at the threshold that is best for them:\n\n{card_scores(evaluation)}\n"
    )
    run.finish(replace(tuned, card=card, correcting=threshold))
