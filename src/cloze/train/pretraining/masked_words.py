"""``cloze evaluate mlm``: how well any model fills blanks of a text, for comparing before and after, mine and yours."""

import math
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from cloze.checkpoint import find_source, load_folder
from cloze.corpus.batches import PretrainingBatch, PretrainingBatches
from cloze.corpus.preparation.prepare import prepare
from cloze.corpus.settings import ExampleSettings, MaskSettings, PrepareSettings
from cloze.corpus.shards import Corpus
from cloze.errors import CheckpointError, ConfigError
from cloze.model import Bert
from cloze.model.losses import masked_word_logits
from cloze.predict import choose_device
from cloze.progress import Progress, Silent
from cloze.text import Tokenizer
from cloze.train.settings import BlankSettings

BATCH = 16
FEW = 16 * BATCH  # sequences


def evaluate_masked_words(
    texts: Sequence[str | Path],
    model: str | Path,
    *,
    settings: BlankSettings | None = None,
    reading: PrepareSettings | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> dict[str, float]:
    """The masked-word loss of a model on text files, its standard error, perplexity and accuracy.

    ``reading`` says how the files are read; nothing of them is held out.
    """
    settings, progress = settings or BlankSettings(), progress or Silent()
    folder = find_source(model)
    loaded = load_folder(folder)
    if "mlm" not in loaded.model.heads:
        heads = ", ".join(loaded.model.head_names) or "none"
        raise CheckpointError(
            f"{folder}: no masked-word head (heads: {heads}); train one with 'cloze pretrain --model {folder}'"
        )
    if settings.length > loaded.tokenizer.max_length:
        raise ConfigError(
            f"length is {settings.length}, but the model reads at most {loaded.tokenizer.max_length} tokens; "
            f"use --length {loaded.tokenizer.max_length} or less"
        )
    place = choose_device(device)
    bert = loaded.model.to(place).eval()
    with tempfile.TemporaryDirectory() as temporary:
        vocabulary, out = Path(temporary) / "vocabulary", Path(temporary) / "text"
        loaded.tokenizer.save(vocabulary)
        whole = replace(reading or PrepareSettings(), held_out=0)
        corpus = prepare(texts, vocabulary, out, settings=whole, progress=progress)
        batches = _batches(Corpus.open(corpus), loaded.tokenizer, settings)
        losses, hits, tokens = _measure(bert, batches, settings.tokens, place, progress)
    loss, blanks = float(losses.mean()), len(losses)
    return {
        "mlm_loss": loss,
        "standard_error": float(losses.std()) / math.sqrt(blanks) if blanks > 1 else 0.0,
        "perplexity": math.exp(min(700.0, loss)),
        "mlm_accuracy": hits / blanks,
        "blanks": blanks,
        "tokens": tokens,
    }


def _batches(corpus: Corpus, tokenizer: Tokenizer, settings: BlankSettings) -> PretrainingBatches:
    """Full sentences, single tokens; of a short text one sequence at a time, since no last, smaller batch is read."""
    of_size = partial(
        PretrainingBatches,
        corpus,
        tokenizer,
        examples=ExampleSettings(objective="none", length=settings.length),
        masks=MaskSettings(rate=settings.mask_rate, mix=settings.mask_mix),
        seed=settings.seed,
    )
    single = of_size(batch=1)
    return single if single.steps_in(0) <= FEW else of_size(batch=BATCH)


def _measure(
    bert: Bert, batches: PretrainingBatches, wanted: int, device: torch.device, progress: Progress
) -> tuple[Tensor, int, int]:
    """The loss of every blank, how many were filled right, and the tokens that were read."""
    losses, hits, tokens = [], 0, 0
    with torch.inference_mode():
        for step in range(batches.steps_in(0)):
            batch = batches.at(step)
            logits = _logits(bert, batch, device)
            targets = torch.from_numpy(batch.targets).to(device)
            losses.append(functional.cross_entropy(logits.float(), targets, reduction="none").cpu().double())
            hits += int((logits.argmax(-1) == targets).sum())
            tokens += batch.token_count
            progress.advance("reading", min(tokens, wanted), wanted)
            if tokens >= wanted:
                break
    return torch.cat(losses), hits, tokens


def _logits(bert: Bert, batch: PretrainingBatch, device: torch.device) -> Tensor:
    ids, segments, positions = (
        torch.from_numpy(array).to(device) for array in (batch.ids, batch.segments, batch.positions)
    )
    real = torch.arange(ids.shape[1]) < torch.from_numpy(batch.lengths)[:, None]
    return masked_word_logits(bert, bert(ids, segments, real.to(device), positions).last, positions)
