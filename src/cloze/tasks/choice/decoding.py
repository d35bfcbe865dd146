"""Score how well each option fits a prompt (section 4.4 of the paper), and evaluate such models."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from cloze.errors import RequestError
from cloze.model.batch import Batch
from cloze.model.losses import task_logits
from cloze.tasks.choice.kind import Choices, encode_options
from cloze.tasks.intervals import MetricRows
from cloze.tasks.kind import Predictor
from cloze.tasks.metrics import score
from cloze.tasks.reports import Evaluation


@dataclass(frozen=True)
class Option:
    """An option of a prompt, its index, and the probability that it is the one that fits."""

    index: int
    text: str
    probability: float


def respond(predictor: Predictor, inputs: Sequence[Any], options: Mapping[str, Any]) -> list[Any]:  # noqa: ARG001
    """Return the ranked options of each (prompt, options) as JSON values."""
    prompts, choices = zip(*inputs, strict=True)
    return [[asdict(option) for option in ranked] for ranked in choose_all(predictor, prompts, choices)]


def choose_all(predictor: Predictor, prompts: Sequence[str], options: Sequence[Sequence[str]]) -> list[list[Option]]:
    """Return the options of each prompt with their probabilities, best first."""
    chosen = []
    for own, logits in zip(options, option_logits(predictor, prompts, options), strict=True):
        shares = torch.tensor(logits).softmax(0).tolist()
        ranked = sorted(range(len(own)), key=lambda index: -shares[index])
        chosen.append([Option(index, own[index], shares[index]) for index in ranked])
    return chosen


def option_logits(predictor: Predictor, prompts: Sequence[str], options: Sequence[Sequence[str]]) -> list[list[float]]:
    """Return one logit per option of each prompt."""
    if isinstance(prompts, str) or any(isinstance(own, str) for own in options):
        raise RequestError("expected a list of texts, got a single text; put it into a list")
    if len(prompts) != len(options):
        raise RequestError(f"{len(prompts)} prompts, but {len(options)} lists of options; expected one for each")
    for own in options:
        if len(own) < 2:
            raise RequestError(f"{len(own)} options; expected at least 2")
    if predictor.bert.config.segments < 2:
        raise RequestError(
            "this model cannot separate option and prompt (it has only one segment type); use another model"
        )
    encoded = encode_options(predictor.tokenizer, prompts, options)
    flat = [encoding for own in encoded for encoding in own]
    longest = predictor.tokenizer.max_length
    predictor.warnings.cut(flat, f"options are longer than {longest} tokens with their prompts and were cut")
    found = iter(predictor.run(flat, lambda batch: _logits(predictor, batch)))
    return [[next(found) for _ in own] for own in options]


@torch.inference_mode()
def _logits(predictor: Predictor, batch: Batch) -> list[float]:
    """Return the score of every row by itself, because the options of a prompt may be in several batches."""
    needed = predictor.bert.needed_by("choice", batch.ids, batch.mask)
    last = predictor.bert(batch.ids, batch.segments, batch.mask, needed).last
    logits = task_logits(predictor.bert, "choice", last, [1] * len(last), batch.mask)[:, 0].float().cpu()
    if not logits.isfinite().all():
        raise RequestError("the scores of this model are not finite numbers; check its training")
    return [float(value) for value in logits]


def evaluate_choices(predictor: Predictor, examples: Choices, metrics: Sequence[str]) -> Evaluation:
    """Evaluate a model by the option with the highest score."""
    targets = [row.target for row in examples.rows if row.target is not None]
    if len(targets) < len(examples):
        raise RequestError("these rows have no labels to evaluate against; evaluate on rows that have them")
    options = [row.options for row in examples.rows]
    logits = option_logits(predictor, [row.prompt for row in examples.rows], options)
    chosen = [max(range(len(one)), key=lambda index: one[index]) for one in logits]
    return Evaluation(
        score(metrics, targets, chosen),
        [own[index] for own, index in zip(options, chosen, strict=True)],
        examples.places,
        [own[index] for own, index in zip(options, targets, strict=True)],
        [{"prompt": row.prompt, "options": " | ".join(row.options)} for row in examples.rows],
        rows=MetricRows(metrics, targets, chosen),
        probabilities=[float(torch.tensor(one).softmax(0).max()) for one in logits],
    )
