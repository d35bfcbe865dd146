"""Extend a run: continue the stable part of a warm-up, stable, decay schedule (``cloze pretrain --extend``).

A finished or interrupted run with the schedule ``wsd`` keeps its newest checkpoint from before the decay. A new run
starts there, with the optimizer's moments and the step count, stays at the peak learning rate until its own decay
begins, and leaves the old run unchanged. A long training can therefore produce a fully decayed model at any point, and
a training can be prolonged without a second warm-up.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloze.checkpoint import RUN_MODEL, StateStore, TrainingState
from cloze.errors import ConfigError, format_option
from cloze.files import OUR_JSON_LIMIT, read_json, replaced_file
from cloze.train.distributed import ProcessGroup
from cloze.train.optimization import Schedule
from cloze.train.run import METRICS, SETTINGS, Run
from cloze.train.settings import PretrainSettings

# Settings that an extension must keep. Others, such as corpus, lengths and objectives with the same heads, may change.
_KEPT = ("preset", "model", "learning_rate", "schedule", "embedding_size", "shared_layers", "boundary")


def check_extension(base: Path, out: Path, recorded: Mapping[str, Any]) -> None:
    """Refuse to extend a folder that is not a run, or a run whose fixed settings differ.

    Raises:
        ConfigError: If it cannot be extended; the message names the setting that differs.
    """
    if (out / RUN_MODEL).is_dir() or StateStore(out / "checkpoints").newest() is not None:
        return  # the extension has its own checkpoints and no longer needs the extended run
    path = base / SETTINGS
    if not path.is_file():
        raise ConfigError(
            f"{base}: is not a run of cloze pretrain; {format_option('extend')} takes the folder of such a run"
        )
    before = read_json(path, ConfigError, OUR_JSON_LIMIT)
    if before.get("schedule") != "wsd":
        raise ConfigError(
            f"{base}: has the schedule {before.get('schedule', 'linear')}, whose learning rate falls from the start; "
            f"only runs with {format_option('schedule', 'wsd')} can be extended; train its model further with "
            f"{format_option('model', base)}"
        )
    for name in _KEPT:
        if before.get(name) != recorded.get(name):
            raise ConfigError(
                f"{base}: has {name} {before.get(name)!r}, but this run has {recorded.get(name)!r}; an extension must "
                f"keep it"
            )


def start_of_extension(base: Path, run: Run, settings: PretrainSettings, group: ProcessGroup) -> TrainingState | None:
    """Return the state to start from, and copy the measurements until then; None if the run has its own checkpoints.

    Raises:
        ConfigError: If the run has no stable checkpoint, or one that is beyond the stable part of the new schedule.
    """
    if run.store.newest() is not None:
        return None
    state = StateStore(base / "checkpoints").stable()
    if state is None:
        raise ConfigError(
            f"{base}: has no checkpoint from before the decay; let it run until it has saved one (save_every)"
        )
    schedule, seconds = Schedule.of(settings.loop()), float(state.figures["seconds"])
    if not schedule.is_stable(state.step, seconds):
        raise ConfigError(
            f"{base}: its stable checkpoint is at step {state.step:,}, after {seconds / 3600:.2f} hours, where the "
            f"decay of this run has already begun; use more {format_option('steps')} or {format_option('hours')}, "
            f"counted from "
            "the start of that run"
        )
    if group.is_main:
        size, _ = state.figures["measured"]
        measurements = (base / METRICS).read_bytes()[:size]
        with replaced_file(run.folder / METRICS) as temporary:
            temporary.write_bytes(measurements)
    group.barrier()
    return state
