"""Evaluation on held-out text: during pre-training, and of any model on any text (``cloze evaluate mlm``).

Every evaluation of a run uses the same sequences and masks. The ``held_out_...`` metrics use sequences of the first
phase's length throughout the run, so that they form one curve. With a second phase, the ``held_out_long_...`` metrics
use sequences of its length, which measures what the later positions have learned.
"""

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from cloze.checkpoint import find_source, load_folder
from cloze.corpus.batches import PretrainingBatch, PretrainingBatches
from cloze.corpus.documents import read_paragraphs
from cloze.corpus.preparation.prepare import prepare
from cloze.corpus.settings import ExampleSettings, MaskSettings, Objective, Phase, PrepareSettings
from cloze.corpus.shards import Corpus
from cloze.corpus.word_tables import WordTables
from cloze.errors import CheckpointError, ClozeError, ConfigError, DataError
from cloze.hardware import choose_device
from cloze.model import Backbone
from cloze.model.losses import masked_word_logits
from cloze.progress import Progress, Silent
from cloze.text import Tokenizer
from cloze.text.oov.coverage import unknown_note
from cloze.text.vocabulary import CONTINUATION
from cloze.train.distributed import ProcessGroup
from cloze.train.pretraining.objectives.masked import BaseObjective
from cloze.train.settings import MlmEvaluationSettings, PretrainSettings

# A fixed seed for the masks of evaluations, so that all runs are evaluated on the same masked tokens.
SEED = 7_919
SEQUENCES = 640  # number of sequences of the first phase's length; longer ones have the same number of tokens in total
NAME, LONG_NAME = "held_out", "held_out_long"
# Batch size of `cloze evaluate mlm`, and the number of sequences up to which it uses batches of one.
BATCH = 16
FEW = 16 * BATCH
_READ_AT_ONCE = 2**20  # tokens
# Number of paragraphs that are checked for words outside the vocabulary.
_SAMPLED_PARAGRAPHS = 2000


@dataclass(frozen=True)
class HeldOut:
    """This process's share of the held-out batches, with the target counts of all of them."""

    parts: list[PretrainingBatch]
    totals: Mapping[str, int]
    constants: dict[str, float] = field(default_factory=dict)  # accuracy of always predicting the more frequent label
    group: ProcessGroup = field(default_factory=ProcessGroup)
    name: str = NAME
    per_unit: dict[str, float] = field(default_factory=dict)  # tokens per word and per character of the text
    pairs_only: bool = False  # report the losses and accuracies of pairs, not those of masked words

    @classmethod
    def of(cls, batches: list[PretrainingBatch]) -> "HeldOut":
        """Return an instance for one process that evaluates all of these batches."""
        return cls(batches, {name: sum(batch.counts[name] for batch in batches) for name in batches[0].counts})

    def evaluate(self, objective: BaseObjective, pause: Callable[[], object] = bool) -> dict[str, float]:
        """Return losses and accuracies; ``pause`` is called before each batch."""
        sums: dict[str, float] = {}
        for part in self.parts:
            pause()
            for name, value in objective(part, self.totals).metrics.items():
                sums[name] = sums.get(name, 0.0) + float(value)
        values = objective.summarize(dict(zip(sums, self.group.all_reduce(list(sums.values())), strict=True)))
        metrics = {f"{self.name}_{name}": value for name, value in values.items()}
        if self.pairs_only:
            return {name: value for name, value in metrics.items() if "mlm" not in name} | self.constants
        main = f"{self.name}_{objective.main_loss}"
        metrics[f"{self.name}_perplexity"] = math.exp(min(700.0, metrics[main]))
        per_unit = {f"{main}_{name}": metrics[main] * tokens for name, tokens in self.per_unit.items()}
        return metrics | per_unit | self.constants


def tokens_per_unit(corpus: Corpus, tokenizer: Tokenizer) -> dict[str, float]:
    """Return the tokens per word and per character of a corpus.

    Losses per token cannot be compared between vocabularies: longer pieces are harder to predict, but there are fewer
    of them. The loss per token times these figures estimates the loss per word and per character, which can be
    compared. A word is a unit that BERT's pre-tokenizer yields before WordPiece, so every piece without ``##`` starts
    one. ``[UNK]`` counts as one character.
    """
    lengths = np.array([len(piece.removeprefix(CONTINUATION)) for piece in tokenizer.pieces], np.int64)
    lengths[tokenizer.unknown_id] = 1
    starts = np.array([not piece.startswith(CONTINUATION) for piece in tokenizer.pieces])
    counts = np.zeros(len(lengths), np.int64)
    for start in range(0, corpus.token_count, _READ_AT_ONCE):
        ids = corpus.read(start, min(start + _READ_AT_ONCE, corpus.token_count))
        counts += np.bincount(ids, minlength=len(lengths))
    words, characters = int(counts[starts].sum()), int(counts @ lengths)
    return {"per_word": corpus.token_count / max(1, words), "per_character": corpus.token_count / max(1, characters)}


def evaluate_held_out(
    held_out: Sequence[HeldOut], objective: BaseObjective, pause: Callable[[], object] = bool
) -> dict[str, float]:
    """Return the metrics for each sequence length."""
    return {name: value for one in held_out for name, value in one.evaluate(objective, pause).items()}


def open_held_out(
    data: Path,
    tokenizer: Tokenizer,
    settings: PretrainSettings,
    tables: WordTables,
    group: ProcessGroup,
    progress: Progress,
) -> list[HeldOut]:
    """Open the held-out documents in sequences of each phase's length; report it if there is too little text."""
    corpus = Corpus.open(data, "held_out")
    lacking = f"{data}: too little text is held out"
    remedy = "prepare it with a larger --held-out to evaluate on more"
    main, longest = measured_phases(settings)
    objectives = list(settings.objectives())
    open_one = partial(_open, corpus, tokenizer, settings, tables, group)
    # Copy pairs come last, because their masked words are much easier than those of other text.
    order: tuple[Objective, ...] = ("none", "nsp", "sop", "relation", "copy")
    first = next(name for name in order if name in objectives)
    short = open_one(main, first, NAME)
    if short is None:
        progress.say(f"{lacking} for an evaluation; {remedy}")
        return []
    opened: list[HeldOut | None] = [short]
    if longest.max_length > main.max_length:
        opened.append(open_one(longest, first, LONG_NAME))
        if opened[-1] is None:
            progress.say(f"{lacking} for sequences of {longest.max_length} tokens; {remedy}")
    # Also measure how well the model distinguishes each kind of pairs; relations also train the next-sentence head.
    trained = {*objectives, "nsp"} if "relation" in objectives else set(objectives)
    for name in order[1:4]:
        if name in trained and name != first:
            extra = open_one(main, name, NAME)
            opened.append(None if extra is None else replace(extra, pairs_only=True))
    return [one for one in opened if one is not None]


def measured_phases(settings: PretrainSettings) -> tuple[Phase, Phase]:
    """Return the phase that lasts longest, which is measured throughout, and the one with the longest sequences."""
    phases = settings.length_phases()
    main = max(phases, key=lambda phase: phase.share) if settings.phases else phases[0]
    return main, max(phases, key=lambda phase: phase.max_length)


def _open(
    corpus: Corpus,
    tokenizer: Tokenizer,
    settings: PretrainSettings,
    tables: WordTables,
    group: ProcessGroup,
    phase: Phase,
    objective: Objective,
    name: str,
) -> HeldOut | None:
    if corpus.document_count < (2 if objective in ("nsp", "relation") else 1):
        return None
    main, _ = measured_phases(settings)
    size, examples = phase.batch_size, settings.examples(phase.max_length, objective)
    while size >= group.size * settings.accumulate:
        batches = PretrainingBatches(
            corpus,
            tokenizer,
            batch_size=size,
            examples=examples,
            masks=settings.masks(),
            seed=SEED,
            tables=tables,
        )
        try:
            count = min(batches.steps_in(0), max(1, SEQUENCES * main.max_length // examples.max_length // size))
        except DataError:  # less than one batch
            size //= 2
        else:
            shared = _share([batches.at(step) for step in range(count)], batches, settings, group, name)
            return replace(shared, per_unit=tokens_per_unit(corpus, tokenizer))
    return None


def _share(
    whole: list[PretrainingBatch],
    batches: PretrainingBatches,
    settings: PretrainSettings,
    group: ProcessGroup,
    name: str,
) -> HeldOut:
    pieces = settings.accumulate
    labels = np.concatenate([batch.labels for batch in whole])
    parts = [
        batches.at(step, group.rank * pieces + index, group.size * pieces)
        for step in range(len(whole))
        for index in range(pieces)
    ]
    # Short sequences often hold one sentence and can only get a random B: a constant prediction then beats 50 %.
    share = float(np.bincount(labels).max()) / len(labels) if len(labels) else 0.0
    constants = {f"{name}_{batches.examples.objective}_constant": share} if len(labels) else {}
    return HeldOut(parts, HeldOut.of(whole).totals, constants, group, name)


def evaluate_masked_words(
    texts: Sequence[str | Path],
    model: str | Path,
    *,
    settings: MlmEvaluationSettings | None = None,
    reading: PrepareSettings | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Return the masked-LM loss of a model on text files, with its standard error, perplexity and accuracy.

    To compare models with different vocabularies, use ``mlm_loss_per_word`` or ``mlm_loss_per_character``. ``reading``
    sets how the files are parsed; its ``held_out`` is ignored, so that all text is evaluated.
    """
    settings, progress = settings or MlmEvaluationSettings(), progress or Silent()
    folder = find_source(model)
    loaded = load_folder(folder)
    if "mlm" not in loaded.model.heads:
        heads = ", ".join(loaded.model.head_names) or "none"
        raise CheckpointError(
            f"{folder}: no masked-LM head (heads: {heads}); train one with 'cloze pretrain --model {folder}'"
        )
    if settings.max_length > loaded.tokenizer.max_length:
        raise ConfigError(
            f"max_length is {settings.max_length}, but the model accepts at most {loaded.tokenizer.max_length} tokens; "
            f"use --max-length {loaded.tokenizer.max_length} or less"
        )
    _report_unknown(texts, loaded.tokenizer, reading or PrepareSettings(), progress)
    place = choose_device(device)
    bert = loaded.model.to(place).eval()
    with tempfile.TemporaryDirectory() as temporary:
        vocabulary, out = Path(temporary) / "vocabulary", Path(temporary) / "text"
        loaded.tokenizer.save(vocabulary)
        whole = replace(reading or PrepareSettings(), held_out=0)
        corpus = prepare(texts, vocabulary, out, settings=whole, progress=progress)
        opened = Corpus.open(corpus)
        per_unit = tokens_per_unit(opened, loaded.tokenizer)
        batches = _batches(opened, loaded.tokenizer, settings)
        losses, hits, tokens = _measure(bert, batches, settings.tokens, place, progress)
    loss, blanks = float(losses.mean()), len(losses)
    return {
        "mlm_loss": loss,
        "standard_error": float(losses.std()) / math.sqrt(blanks) if blanks > 1 else 0.0,
        "perplexity": math.exp(min(700.0, loss)),
        **{f"mlm_loss_{name}": loss * count for name, count in per_unit.items()},
        "mlm_accuracy": hits / blanks,
        "blanks": blanks,
        "tokens": tokens,
    }


def _report_unknown(
    texts: Sequence[str | Path], tokenizer: Tokenizer, reading: PrepareSettings, progress: Progress
) -> None:
    """Warn if the vocabulary does not fit the first paragraphs of the texts, because [UNK] is easy to predict."""
    files = [Path(text) for text in texts if Path(text).is_file()]  # not pipes, which can be read only once
    with suppress(ClozeError):  # the preparation reports these errors
        sample = list(islice(read_paragraphs(files, reading.text, skip_bad_rows=True), _SAMPLED_PARAGRAPHS))
        note = unknown_note(tokenizer, sample)
        if note is not None:
            progress.say(f"in the first {len(sample):,} paragraphs, {note}")


def _batches(corpus: Corpus, tokenizer: Tokenizer, settings: MlmEvaluationSettings) -> PretrainingBatches:
    """Return batches of full sentences; of size 1 for short texts, since an incomplete last batch is dropped."""
    of_size = partial(
        PretrainingBatches,
        corpus,
        tokenizer,
        examples=ExampleSettings(objective="none", max_length=settings.max_length),
        masks=MaskSettings(rate=settings.mask_rate, mix=settings.mask_mix),
        seed=settings.seed,
    )
    single = of_size(batch_size=1)
    return single if single.steps_in(0) <= FEW else of_size(batch_size=BATCH)


def _measure(
    bert: Backbone, batches: PretrainingBatches, wanted: int, device: torch.device, progress: Progress
) -> tuple[Tensor, int, int]:
    """Return the loss of every masked token, the number of correct predictions, and the number of tokens."""
    losses, hits, tokens = [], 0, 0
    with torch.inference_mode():
        for step in range(batches.steps_in(0)):
            batch = batches.at(step)
            logits = _logits(bert, batch, device)
            targets = torch.from_numpy(batch.targets).to(device)
            losses.append(functional.cross_entropy(logits.float(), targets, reduction="none").cpu().double())
            hits += int((logits.argmax(-1) == targets).sum())
            tokens += batch.token_count
            progress.advance("evaluating", min(tokens, wanted), wanted)
            if tokens >= wanted:
                break
    return torch.cat(losses), hits, tokens


def _logits(bert: Backbone, batch: PretrainingBatch, device: torch.device) -> Tensor:
    ids, segments, positions = (
        torch.from_numpy(array).to(device) for array in (batch.ids, batch.segments, batch.positions)
    )
    real = torch.arange(ids.shape[1]) < torch.from_numpy(batch.lengths)[:, None]
    return masked_word_logits(bert, bert.word_states(ids, segments, real.to(device), positions), positions)
