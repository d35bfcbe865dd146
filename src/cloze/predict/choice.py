"""A prompt and options -> how well each fits (section 4.4 of the paper), and how such models are scored."""

import logging
from collections.abc import Sequence

import torch

from cloze.errors import RequestError
from cloze.model import read_by
from cloze.model.losses import task_logits
from cloze.predict.batching import Batch
from cloze.predict.model import Model
from cloze.predict.reports import Evaluation
from cloze.predict.results import Option
from cloze.tasks.choice import Choices, encode_options
from cloze.tasks.metrics import score

logger = logging.getLogger("cloze")


def choose_all(model: Model, prompts: Sequence[str], options: Sequence[Sequence[str]]) -> list[list[Option]]:
    """The options of each prompt with their probabilities, the one that fits best first."""
    chosen = []
    for own, logits in zip(options, option_logits(model, prompts, options), strict=True):
        shares = torch.tensor(logits).softmax(0).tolist()
        ranked = sorted(range(len(own)), key=lambda index: -shares[index])
        chosen.append([Option(index, own[index], shares[index]) for index in ranked])
    return chosen


def option_logits(model: Model, prompts: Sequence[str], options: Sequence[Sequence[str]]) -> list[list[float]]:
    """How well each option of each prompt fits, on a scale without ends."""
    if isinstance(prompts, str) or any(isinstance(own, str) for own in options):
        raise RequestError("one text was given where a list of texts was expected; put it into a list")
    if len(prompts) != len(options):
        raise RequestError(f"{len(prompts)} prompts, but {len(options)} lists of options; one for each was expected")
    for own in options:
        if len(own) < 2:
            raise RequestError(f"{len(own)} options; at least 2 were expected")
    if model.bert.config.segments < 2:
        raise RequestError("this model tells no option from a prompt (it has one segment); use another")
    encoded = encode_options(model.tokenizer, prompts, options)
    flat = [encoding for own in encoded for encoding in own]
    cut = sum(encoding.dropped > 0 for encoding in flat)
    if cut:
        longest = model.tokenizer.max_length
        logger.warning(
            "%d of %d options are longer than %d tokens with their prompts and were cut", cut, len(flat), longest
        )
    found = iter(model.run(flat, lambda batch: _logits(model, batch)))
    return [[next(found) for _ in own] for own in options]


@torch.inference_mode()
def _logits(model: Model, batch: Batch) -> list[float]:
    """Of every row, as if it were a choice of its own: options of one prompt may be in several batches."""
    last = model.bert(batch.ids, batch.segments, batch.mask, read_by("choice", batch.ids)).last
    logits = task_logits(model.bert, "choice", last, [1] * len(last))[:, 0].float().cpu()
    if not logits.isfinite().all():
        raise RequestError("the scores of this model are not finite numbers; check its training")
    return [float(value) for value in logits]


def evaluate_choices(model: Model, examples: Choices, metrics: Sequence[str]) -> Evaluation:
    """Score a model by which option it finds the best."""
    targets = [row.target for row in examples.rows if row.target is not None]
    if len(targets) < len(examples):
        raise RequestError("these rows do not tell which option fits; evaluate on rows that do")
    options = [row.options for row in examples.rows]
    logits = option_logits(model, [row.prompt for row in examples.rows], options)
    chosen = [max(range(len(one)), key=lambda index: one[index]) for one in logits]
    return Evaluation(
        score(metrics, targets, chosen),
        [own[index] for own, index in zip(options, chosen, strict=True)],
        examples.places,
        [own[index] for own, index in zip(options, targets, strict=True)],
        [{"prompt": row.prompt, "options": " | ".join(row.options)} for row in examples.rows],
    )
