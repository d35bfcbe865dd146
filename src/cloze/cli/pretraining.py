"""``cloze pretrain`` and ``cloze plan``."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from cloze.cli.console import Machine, Reporter, print_json, print_results, print_table
from cloze.cli.outputs import check_folder
from cloze.train.settings import PretrainSettings

if TYPE_CHECKING:
    from cloze.train.pretraining.plan import Plan

Data = Annotated[Path, Parameter(help="A folder that 'cloze prepare' wrote.")]
Settings = Annotated[PretrainSettings, Parameter(name="*")]
Place = Annotated[Machine, Parameter(name="*")]
DEFAULTS = PretrainSettings()
HERE = Machine()


def pretrain(
    data: Data,
    /,
    *,
    out: Path,
    model: str | None = None,
    extend: Path | None = None,
    recipe: str | None = None,  # noqa: ARG001 (use_recipe has set its values)
    fresh: bool = False,
    settings: Settings = DEFAULTS,
    machine: Place = HERE,
    json: bool = False,
) -> None:
    """Pre-train a BERT, or another backbone, on prepared text. Re-running the same command resumes it.

    Args:
        out: The folder of the run.
        model: A model folder to start from, instead of a new model.
        extend: Continue this run, trained with the wsd schedule, from before its decay; steps and hours are counted
            from the start of the original run.
        recipe: A published recipe: bert, bert-wwm, roberta, spanbert, ernie, albert, macbert or gpt; flags override
            it.
        fresh: Start over, discarding the contents of the run's folder.
        json: Print JSON.
    """
    check_folder(out)
    from cloze.train.pretraining.pretrain import pretrain as run

    with Reporter() as reporter:
        folder = run(
            data,
            out,
            model=model,
            extend=extend,
            settings=settings,
            device=machine.use(),
            fresh=fresh,
            progress=reporter,
        )
    if os.environ.get("RANK", "0") == "0":  # under torchrun, only rank 0 prints
        print_results(folder, json)


def plan(
    data: Data,
    /,
    *,
    model: str | None = None,
    recipe: str | None = None,  # noqa: ARG001
    settings: Settings = DEFAULTS,
    machine: Place = HERE,
    json: bool = False,
) -> None:
    """Estimate memory, time and loss of a pretrain command with the same flags; run a few steps and write nothing.

    Args:
        model: A model folder to start from, instead of a new model.
        recipe: A published recipe: bert, bert-wwm, roberta, spanbert, ernie, albert, macbert or gpt; flags override
            it.
        json: Print JSON.
    """
    from cloze.train.pretraining.plan import plan as run

    with Reporter() as reporter:
        planned = run(data, model=model, settings=settings, device=machine.use(), progress=reporter)
    if json:
        print_json(_values(planned))
    else:
        print_table(("plan", ""), _rows(planned))


def _values(plan: "Plan") -> dict[str, object]:
    numbers = plan.estimate
    return {
        "parameters": numbers.parameters,
        "peak_bytes": plan.peak_bytes,
        "memory_bytes": numbers.total_bytes,
        "weight_bytes": numbers.weight_bytes,
        "gradient_bytes": numbers.gradient_bytes,
        "optimizer_bytes": numbers.optimizer_bytes,
        "activation_bytes": numbers.activation_bytes,
        "precision": plan.precision,
        "steps": plan.steps,
        "tokens_per_step": plan.tokens_per_step,
        "seconds_per_step": plan.seconds_per_step,
        "tokens_per_second": plan.tokens_per_step / plan.seconds_per_step,
        "share_of_peak": plan.share_of_peak,
        "hours": plan.hours,
        "tokens": plan.tokens,
        "epochs": plan.epochs,
        "expected_mlm_loss": None if plan.expected is None else plan.expected.loss,
        "expected_like": None if plan.expected is None else plan.expected.like,
        "expected_bound": None if plan.expected is None else plan.expected.bound,
    }


def _rows(plan: "Plan") -> list[tuple[str, str]]:
    numbers = plan.estimate
    return [
        ("parameters", f"{numbers.parameters:,}"),
        (
            "memory",
            f"{_size(plan.peak_bytes)} at the peak; weights "
            f"{_size(numbers.weight_bytes)}, gradients {_size(numbers.gradient_bytes)}, moments "
            f"{_size(numbers.optimizer_bytes)}, states {_size(numbers.activation_bytes)}",
        ),
        (
            "per step",
            f"{plan.tokens_per_step:,} tokens in {plan.seconds_per_step:.2f} s: "
            f"{plan.tokens_per_step / plan.seconds_per_step:,.0f} tokens/s, {plan.share_of_peak:.0%} of the peak "
            f"({plan.precision})",
        ),
        ("whole run", f"{plan.steps:,} steps, {_time(plan.hours)}"),
        ("text", f"{plan.tokens:,} tokens, {plan.epochs:.2f} times the corpus"),
        ("held-out masked-LM loss", _expected(plan)),
    ]


def _expected(plan: "Plan") -> str:
    if plan.expected is None:
        return "unknown: it depends on the initial model, or no comparable run is recorded"
    loss, like = f"{plan.expected.loss:.2f}", plan.expected.like
    if plan.expected.bound == "lower":
        return f"above {loss}, the loss of {like} at its first evaluation, after more tokens"
    if plan.expected.bound == "upper":
        return f"at most about {loss}, the final loss of {like}, after fewer tokens"
    return f"about {loss}, the loss of {like} after the same number of tokens"


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GB" if count >= 2**30 else f"{count / 2**20:.0f} MB"


def _time(hours: float) -> str:
    return f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"
