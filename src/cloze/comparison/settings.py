"""Settings of ``cloze compare``: the rows to train, the budget of each, and the yardsticks.

Imports nothing heavy, because the command line loads it for ``--help``. The docstring of a field is its flag's help.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from cloze.corpus.settings import PrepareSettings, VocabularySettings, check_seed
from cloze.errors import ConfigError, did_you_mean, format_option
from cloze.options import PREDICTS, BackboneName, PositionKind, check_types
from cloze.train.settings import DEFAULT_STEPS, PrecisionName, PretrainSettings, read_recipe

# The part of a run's budget that all its learning-rate trials take together.
TRIAL_SHARE = 0.1
# The learning rates tried, as multiples of the middle one, in the order in which they are added.
_FACTORS = (1.0, 0.5, 2.0, 0.25, 4.0)
# The middle learning rate falls with the width of the model: 1e-3 at a hidden size of 256.
_WIDTHS = {"tiny": 128, "mini": 256, "small": 512, "medium": 512, "base": 768, "large": 1024}
_RATE, _WIDTH = 1e-3, 256

Group = Literal["main", "variant"]

BASE = "bert"
# Architectures in a sensible order; those that are compared if none is named.
BACKBONES: tuple[BackboneName, ...] = tuple(PREDICTS)
DEFAULT_BACKBONES = ("bert", "gpt", "elmo")
# Settings in the recipe of an architecture that are the same for all rows here.
_COMMON = frozenset({"epsilon", "warmup", "weight_decay", "dropout", "batch_size", "max_length"})
# Sentence objectives on top of masked words are an extra task: their rows are not in the main table.
EXTRA_TASKS: dict[str, Mapping[str, Any]] = {
    "bert+nsp": {"objective": "nsp"},
    "bert+sop": {"objective": "sop"},
}
# Ablations: the values of a setting that are compared with those of the row "bert".
VARIATIONS: dict[str, dict[str, Mapping[str, Any]]] = {
    "objective": {"nsp": {"objective": "nsp"}, "sop": {"objective": "sop"}},
    "masking": {"word": {"masking": "word"}, "span": {"masking": "span"}},
    "mix": {"100-mask": {"mask_mix": (1.0, 0.0, 0.0)}},
    "masks": {"static": {"static": 1}},
    "rate": {"0.4": {"mask_rate": 0.4}},
    "positions": {kind: {"position_kind": kind} for kind in get_args(PositionKind) if kind != "learned"},
}
# Tasks that are bundled: training and evaluation rows of the demo's data, all from different books.
BUNDLED_TASKS = {
    "authors": ("authors_train.tsv", "authors_test.tsv"),
    "order": ("order_train.tsv", "order_test.tsv"),
}


@dataclass(frozen=True)
class ComparedRow:
    """A row of the comparison: what is pre-trained, and how often."""

    name: str
    backbone: str
    settings: Mapping[str, Any]
    seeds: int
    group: Group = "main"

    @property
    def searched(self) -> bool:
        """Whether learning rates are tried; the recipes of static vectors have published ones."""
        return "learning_rate" not in self.settings

    @property
    def folder(self) -> str:
        """The name of the row's folders."""
        return self.name.replace("=", "-").replace("+", "-")


@dataclass(frozen=True)
class ComparedTask:
    """A task of the comparison: its name in the tables, the kind or published task, and its files."""

    name: str
    task: str
    train: Path | None  # None: bundled
    dev: Path | None = None


@dataclass(frozen=True)
class CompareSettings:
    """Settings of ``cloze compare`` and ``cloze.compare``.

    Each attribute's docstring describes it, and is also the help text of its flag.

    Raises:
        ConfigError: If a value is out of range, or there is more than one budget.

    Example:
        >>> settings = cloze.CompareSettings(steps=1000, vary="masking,rate")
        >>> [row.name for row in settings.rows()]
        ['bert', 'masking=word', 'masking=span', 'rate=0.4']
    """

    backbones: str | None = None
    """Architectures, separated by commas; NAME:SEEDS overrides the number of seeds. Default: bert,gpt,elmo, or only
    bert with --vary. bert+nsp and bert+sop have an extra task and a table of their own."""
    vary: str | None = None
    """Ablations of BERT, separated by commas: objective, masking, mix, masks (static), rate, positions, or all."""
    tasks: str = "authors"
    """Tasks to fine-tune on, separated by commas: authors and order (bundled), or TASK=FOLDER for a published task, or
    KIND=TRAIN:DEV for files of your own; or none."""
    hours: float | None = None
    """Budget of each pre-training in hours of wall-clock time."""
    steps: int | None = None
    """Budget of each pre-training in optimizer steps, and so in tokens; 10,000 if no budget is given."""
    flops: float | None = None
    """Budget of each pre-training in floating-point operations, such as 1e15."""
    seeds: int = 2
    """Pre-trainings per row, each with its own seed. Rows with one seed are not ranked."""
    trials: int = 3
    """Learning rates tried per row, 1 to 5, each for an equal part of a tenth of the budget, which is additional; with
    1, the default is used without a trial."""
    preset: str = "mini"
    """Size of the models: tiny, mini, small, medium, base or large."""
    max_length: int = 128
    """Maximum sequence length in tokens."""
    batch_size: int = 32
    """Batch size: sequences per optimizer step."""
    dropout: float = 0.0
    """Dropout in pre-training; small budgets read the text only a few times."""
    vocabulary: int = 8000
    """Number of entries of the common vocabulary, which is learned from the text."""
    cased: bool = False
    """Keep capitals and accents in the vocabulary."""
    held_out: float = 0.1
    """Fraction of the documents that no model is trained on: half choose the learning rates, half are for blanks."""
    blanks: int = 2000
    """Number of blanks to fill in the test documents."""
    pairs: int | None = None
    """Use about this many minimal pairs instead of all 1,280, as many of each phenomenon."""
    task_rows: int | None = None
    """Use at most this many training rows of each task."""
    epochs: int | None = None
    """Epochs of fine-tuning; by default, as chosen by cloze finetune for the number of rows."""
    precision: PrecisionName = "auto"
    """Precision of training: fp32, bf16, or auto (bf16 where it is faster)."""
    seed: int = 0
    """Random seed of the first pre-training of each row; the others follow."""

    def __post_init__(self) -> None:
        check_types(self)
        check_seed(self.seed)
        if self.preset not in _WIDTHS:
            raise ConfigError(f"unknown preset {self.preset!r}{did_you_mean(self.preset, _WIDTHS)}")
        for name, least in (("seeds", 1), ("blanks", 1), ("pairs", 16), ("task_rows", 1), ("epochs", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} is {value}; expected at least {least}")
        if not 1 <= self.trials <= len(_FACTORS):
            raise ConfigError(f"trials is {self.trials}; expected 1 to {len(_FACTORS)} learning rates")
        if not 0 < self.held_out < 1:
            raise ConfigError(f"held_out is {self.held_out}; expected a fraction between 0 and 1, such as 0.1")
        self._check_budget()
        self.compared_tasks()
        VocabularySettings(size=self.vocabulary, cased=self.cased)
        for row in self.rows():
            self.pretraining(row, self.rates()[0], self.seed)

    def _check_budget(self) -> None:
        given = [name for name in ("hours", "steps", "flops") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError(f"the budget is given by {' and '.join(given)}; leave out all but one of them")
        if self.flops is not None and not 0 < self.flops < 1e30:
            raise ConfigError(f"flops is {self.flops}; expected a number of operations, such as 1e15")
        steps = self.step_budget
        if steps is not None and steps < self.least_steps:
            raise ConfigError(
                f"steps is {steps}, but {self.trials} learning-rate trials in a tenth of the budget need "
                f"{self.least_steps}; use more steps, or set {format_option('trials', 1)}"
            )

    @property
    def step_budget(self) -> int | None:
        """The budget in steps; None if it is in hours or operations."""
        if self.hours is not None or self.flops is not None:
            return None
        return DEFAULT_STEPS if self.steps is None else self.steps

    @property
    def least_steps(self) -> int:
        """The fewest steps whose tenth has a step for each learning-rate trial."""
        return round(self.trials / TRIAL_SHARE) if self.trials > 1 else 1

    # -- rows ------------------------------------------------------------------------------------------------------

    def rows(self) -> tuple[ComparedRow, ...]:
        """Return the rows in the order in which they are trained: architectures, then variants."""
        names = self.backbones or (BASE if self.vary else ",".join(default_backbones()))
        rows = [self._architecture(part) for part in _parts("backbones", names)]
        if self.vary is not None:
            wanted = _parts("vary", self.vary)
            varied = list(VARIATIONS) if wanted == ["all"] else wanted
            if not any(row.name == BASE for row in rows):
                rows.insert(0, self._architecture(BASE))
            rows += [row for name in varied for row in self._variants(name)]
        repeated = sorted({row.name for row in rows if [one.name for one in rows].count(row.name) > 1})
        if repeated:
            raise ConfigError(f"backbones and vary name {repeated[0]} twice; leave out one of them")
        return tuple(rows)

    def _architecture(self, part: str) -> ComparedRow:
        name, _, seeds = part.partition(":")
        known = [*BACKBONES, *EXTRA_TASKS]
        if name not in known:
            raise ConfigError(f"backbones: unknown architecture {name!r}{did_you_mean(name, known)}")
        if seeds and (not seeds.isdigit() or int(seeds) < 1):
            raise ConfigError(f"backbones: {part!r} is not valid; expected NAME or NAME:SEEDS, such as {name}:2")
        group: Group = "main" if name in BACKBONES else "variant"
        backbone = name.partition("+")[0]
        settings = EXTRA_TASKS[name] if name in EXTRA_TASKS else backbone_settings(name)
        return ComparedRow(name, backbone, settings, int(seeds) if seeds else self.seeds, group)

    def _variants(self, part: str) -> list[ComparedRow]:
        name, _, seeds = part.partition(":")
        if name not in VARIATIONS:
            raise ConfigError(f"vary: unknown ablation {name!r}{did_you_mean(name, ['all', *VARIATIONS])}")
        if seeds and (not seeds.isdigit() or int(seeds) < 1):
            raise ConfigError(f"vary: {part!r} is not valid; expected NAME or NAME:SEEDS, such as {name}:2")
        count = int(seeds) if seeds else self.seeds
        return [
            ComparedRow(f"{name}={value}", BASE, {**backbone_settings(BASE), **changes}, count, "variant")
            for value, changes in VARIATIONS[name].items()
        ]

    # -- training --------------------------------------------------------------------------------------------------

    def rates(self) -> tuple[float, ...]:
        """Return the learning rates to try, the default first."""
        middle = _RATE * _WIDTH / _WIDTHS[self.preset]
        return tuple(float(f"{middle * factor:.3g}") for factor in _FACTORS[: self.trials])

    def pretraining(self, row: ComparedRow, rate: float, seed: int, steps: int | None = None) -> PretrainSettings:
        """Return the settings of a pre-training with the whole budget; ``steps`` replaces a budget of operations."""
        limited = steps if self.flops is not None else self.step_budget
        values: dict[str, Any] = {
            "preset": self.preset,
            # Only a placeholder for the check of the settings: the cost of a step is not known yet.
            "steps": 1 if self.flops is not None and limited is None else limited,
            "hours": self.hours,
            "batch_size": self.batch_size,
            "max_length": self.max_length,
            "learning_rate": rate,
            "warmup": 0.1,
            "dropout": self.dropout,
            "precision": self.precision,
            # At most about ten times, because an evaluation takes as long as tens of steps.
            "evaluate_every": 200 if limited is None else max(100, limited // 10),
            "seed": seed,
        }
        if not row.searched:  # static vectors have neither dropout nor warm-up
            values = {name: value for name, value in values.items() if name not in ("dropout", "warmup")}
        return PretrainSettings(**{**values, **row.settings})

    def trial(self, whole: PretrainSettings) -> PretrainSettings:
        """Return the settings of a learning-rate trial: an equal part of a tenth of the budget."""
        share = TRIAL_SHARE / self.trials
        steps = None if whole.steps is None else max(1, int(whole.steps * share))
        hours = None if whole.hours is None else whole.hours * share
        return replace(whole, steps=steps, hours=hours, evaluate_every=0)

    def preparation(self) -> PrepareSettings:
        """Return the settings of the corpus; half of the held-out documents have been set aside for blanks before."""
        half = self.held_out / 2
        return PrepareSettings(held_out=half / (1 - half), seed=self.seed)

    # -- tasks -----------------------------------------------------------------------------------------------------

    def compared_tasks(self) -> tuple[ComparedTask, ...]:
        """Return the tasks to fine-tune on."""
        if self.tasks == "none":
            return ()
        tasks = [_parse_task(part) for part in _parts("tasks", self.tasks)]
        repeated = [task.name for task in tasks if [one.name for one in tasks].count(task.name) > 1]
        if repeated:
            raise ConfigError(f"tasks: {repeated[0]} is named twice; leave out one of them")
        return tuple(tasks)


def default_backbones() -> tuple[str, ...]:
    """Return the architectures that are compared by default."""
    return tuple(name for name in DEFAULT_BACKBONES if name in BACKBONES)


def backbone_settings(name: str) -> dict[str, Any]:
    """Return the settings of an architecture's recipe that are its own. All read full sentences, without pairs."""
    if name == BASE:
        return {"objective": "none"}
    return {key: value for key, value in read_recipe(name).items() if key not in _COMMON}


def _parts(name: str, text: str) -> list[str]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ConfigError(f"{name} is {text!r}; expected names separated by commas")
    return parts


def _parse_task(part: str) -> ComparedTask:
    name, equals, files = part.partition("=")
    if not equals:
        if name in BUNDLED_TASKS:
            return ComparedTask(name, "classify", None)
        raise ConfigError(
            f"tasks: {part!r} is not among the bundled tasks ({', '.join(BUNDLED_TASKS)}); for other tasks, give "
            f"{name}=FOLDER or {name}=TRAIN:DEV"
        )
    train, colon, dev = files.partition(":")
    if not train or (colon and not dev):
        raise ConfigError(f"tasks: {part!r} is not valid; expected TASK=FOLDER, or KIND=TRAIN:DEV")
    return ComparedTask(
        f"{name}-{Path(train).stem}" if colon else name, name, Path(train), Path(dev) if colon else None
    )
