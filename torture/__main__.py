"""``python -m torture``: run the campaign and print its table.

    python -m torture                 what has not passed yet
    python -m torture --only T9 T10   these
    python -m torture --fresh         all again

Exits with 1 if a chosen test failed. Figures are kept in ``runs/torture/results.json``.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from cloze.cli.console import Reporter, print_table
from cloze.errors import ClozeError
from torture import (
    bodies,
    changes,
    changing_files,
    damage,
    disks,
    doors,
    drains,
    failing_models,
    floods,
    kills,
    memory_limits,
    neighbours,
    overload,
    pages,
    parts,
    preparation,
    ranks,
    resumes,
    shares,
    signals,
    slow_clients,
    soak,
    spikes,
    strings,
    swaps,
    tables,
    team_sizes,
    vocabulary,
    writers,
)
from torture.campaign import ROOT, Outcome, Trial, run_trials

_SERVICE = ("torture/services.py", "torture/load.py", "tests/model/made.py")
_TRAINING = ("torture/training.py", "tests/corpus/texts.py")
_COMMANDS = ("torture/commands.py", *_TRAINING)
TRIALS = {
    "T1": Trial(
        "training killed (SIGKILL) 200 times, at least 50 of them inside a save",
        "0 committed checkpoints lost; final weights = uninterrupted",
        kills.KillSettings(),
        kills.run,
        ("torture/kills.py", *_TRAINING),
    ),
    "T2": Trial(
        "two processes, DDP and FSDP2, one of them killed 20 times under torchrun --max-restarts",
        "0 lost; completes; losses = uninterrupted (1e-6)",
        ranks.RankSettings(),
        ranks.run,
        ("torture/ranks.py", "torture/preparation.py", *_TRAINING),
    ),
    "T3": Trial(
        "SIGTERM and SIGINT in a step, a save, an evaluation and preparation, 50 each",
        "at most one step lost; exit codes 143 and 130; < 25 s",
        signals.SignalSettings(),
        signals.run,
        ("torture/signals.py", "torture/preparation.py", *_TRAINING),
    ),
    "T4": Trial(
        "resumed at every step from 1 to 30, across epochs, in parts, in two phases",
        "losses and weights bit-identical",
        resumes.ResumeSettings(),
        resumes.run,
        ("torture/resumes.py", *_TRAINING),
    ),
    "T5": Trial(
        "saved by two processes, resumed by one, and back",
        "same rows in the same order; losses within 1e-6",
        team_sizes.SizeSettings(),
        team_sizes.run,
        ("torture/team_sizes.py", *_TRAINING),
    ),
    "T6": Trial(
        "disk full, I/O error, read-only, at each write of a training",
        "checkpoint before intact; one line, exit code 2; nothing half-written",
        disks.DiskSettings(),
        disks.run,
        ("torture/disks.py", "torture/faults.py", *_TRAINING),
    ),
    "T7": Trial(
        "500 flips and truncations of checkpoint files",
        "all detected; falls back",
        damage.DamageSettings(),
        damage.run,
        ("torture/damage.py", "torture/resumes.py", *_TRAINING),
    ),
    "T8": Trial(
        "a loss that is not a number, an infinite gradient, a tenfold loss; five in a row",
        "never checkpointed; told; resumes",
        spikes.SpikeSettings(),
        spikes.run,
        ("torture/spikes.py", *_TRAINING),
    ),
    "T9": Trial(
        "a vocabulary learned 20 times, across processes",
        "byte-identical",
        vocabulary.LearningSettings(),
        vocabulary.run,
        ("torture/vocabulary.py",),
    ),
    "T10": Trial(
        "100,000 generated strings, and fixed classes of what texts should not have",
        "0 crashes; ids of the original BERT where defined; offsets valid; <= 2 s/MB",
        strings.StringSettings(),
        strings.run,
        (
            "torture/strings.py",
            "torture/string_checks.py",
            "torture/fixed_texts.py",
            "torture/processes.py",
            "tests/text/generated.py",
            "tests/text/passages.py",
            "tests/text/reference.py",
        ),
    ),
    "T13": Trial(
        "CSV and JSONL: mark, CRLF, NUL, ragged, bad UTF-8, unknown labels, lines of 100 MB; text of one such line",
        "a line number in each message; memory bounded",
        tables.TableSettings(),
        tables.run,
        ("torture/tables.py",),
    ),
    "T14": Trial(
        "50,000 requests made from the service's own description, and bodies that have broken others",
        "0 x 5xx",
        bodies.BodySettings(),
        bodies.run,
        ("torture/bodies.py", *_SERVICE),
    ),
    "T15": Trial(
        "load at 1, 2, 5 and 20 times what the service can do",
        "really offered; 0 crashes; p99 within the queue and 2 batches; goodput >= 90 %; memory grows < 10 %",
        overload.OverloadSettings(),
        overload.run,
        ("torture/overload.py", *_SERVICE),
    ),
    "T16": Trial(
        "half an hour of questions, a fifth of them left before the answer",
        "memory and descriptors flat",
        soak.SoakSettings(),
        soak.run,
        ("torture/soak.py", *_SERVICE),
    ),
    "T17": Trial(
        "500 slow clients, bodies that are too large or have no end",
        "408, 413 or closed, 429 for bodies without end; /health < 100 ms",
        slow_clients.SlowSettings(),
        slow_clients.run,
        ("torture/slow_clients.py", *_SERVICE),
    ),
    "T18": Trial(
        "SIGTERM under load, 50 times",
        "everything that was asked is answered; exit code 0",
        drains.DrainSettings(),
        drains.run,
        ("torture/drains.py", *_SERVICE),
    ),
    "T19": Trial(
        "100,000 requests in fp32, bf16 and int8, each text alone and in company",
        "differences <= 1e-5 (fp32), cosine >= 0.9999 (bf16, int8); none swapped",
        swaps.SwapSettings(),
        swaps.run,
        ("torture/swaps.py", *_SERVICE),
    ),
    "T20": Trial(
        "models that raise, panic or give no numbers",
        "that request fails, its neighbours and the service do not; counted",
        failing_models.FaultSettings(),
        failing_models.run,
        ("torture/failing_models.py", *_SERVICE),
    ),
    "T21": Trial(
        "every route with no, wrong and the right key; other hosts and origins",
        "only /health is open",
        doors.DoorSettings(),
        doors.run,
        ("torture/doors.py", *_SERVICE),
    ),
    "T22": Trial(
        "40 pieces of markup as words, labels, names and texts, in a real browser",
        "all of them shown; 0 dialogs; 0 violations of the policy; 0 requests to others",
        pages.PageSettings(),
        pages.run,
        ("torture/pages.py", *_SERVICE),
    ),
    "T23": Trial(
        "preparation whose processes are killed 50 times",
        "byte-identical to one process's; nothing left behind",
        preparation.PreparationSettings(),
        preparation.run,
        ("torture/preparation.py", "torture/vocabulary.py"),
    ),
    "T24": Trial(
        "400 forms of slow, endless or malformed requests without a key, over 500 connections",
        "each closed within its limit; memory +50 MB at most; /health < 100 ms",
        floods.FloodSettings(),
        floods.run,
        ("torture/floods.py", "torture/slow_clients.py", *_SERVICE),
    ),
    "T25": Trial(
        "two and four processes on one output, of every command that writes, 200 times",
        "one writes, others are refused or take turns; never a mixed or missing file; neighbours untouched",
        writers.WriterSettings(),
        writers.run,
        ("torture/writers.py", *_COMMANDS),
    ),
    "T26": Trial(
        "outputs beside and onto files, folders, links, devices, pipes and what is protected; umasks",
        "nothing of the user's deleted or followed; modes follow the umask",
        neighbours.NeighbourSettings(),
        neighbours.run,
        ("torture/neighbours.py", *_COMMANDS),
    ),
    "T27": Trial(
        "a file job killed before each of its file operations, then another job with the same output",
        "never an old answer",
        parts.PartSettings(),
        parts.run,
        ("torture/parts.py", *_COMMANDS),
    ),
    "T28": Trial(
        "each file of a run, its base or its corpus changed between a kill and the resumption",
        "refused, naming what has changed",
        changes.ChangeSettings(),
        changes.run,
        ("torture/changes.py", *_COMMANDS),
    ),
    "T29": Trial(
        "plan, pretrain, finetune, embed and serve under ulimit -v of 1, 2 and 4 GB, with small and large work",
        "a result, or one line about memory and exit code 2",
        memory_limits.LimitSettings(),
        memory_limits.run,
        ("torture/memory_limits.py", "torture/vocabulary.py", "tests/model/made.py", *_TRAINING),
    ),
    "T30": Trial(
        "one greedy client, and nine modest ones",
        "the modest ones keep 80 % of what they get done when all ten are modest",
        shares.ShareSettings(),
        shares.run,
        ("torture/shares.py", "torture/overload.py", *_SERVICE),
    ),
    "T31": Trial(
        "every file of a model truncated, overwritten, replaced and deleted while it is served",
        "answers as before, or refusals; no crash",
        changing_files.ChangeSettings(),
        changing_files.run,
        ("torture/changing_files.py", *_SERVICE),
    ),
}
FOLDER = ROOT / "runs" / "torture"


def main(arguments: Sequence[str] | None = None, trials: dict[str, Trial] = TRIALS, folder: Path = FOLDER) -> int:
    """Run what is asked for, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m torture", description="Run the torture campaign.")
    parser.add_argument("--only", nargs="+", choices=trials, default=list(trials), metavar="T", help="these tests")
    parser.add_argument("--fresh", action="store_true", help="run again what has passed already")
    asked = parser.parse_args(arguments)
    try:
        with Reporter() as reporter:
            outcomes = run_trials(trials, asked.only, folder, reporter, fresh=asked.fresh)
    except ClozeError as error:
        print(f"torture: error: {error}", file=sys.stderr)
        return 2
    for name, outcome in outcomes.items():
        for failure in outcome.failures:
            print(f"{name}: {failure}", file=sys.stderr)
    rows = [(name, trial.tested, trial.to_reach, *_found(outcomes.get(name))) for name, trial in trials.items()]
    print_table(("test", "what was tested", "to reach", "found", "verdict"), rows)
    return 0 if all(outcomes[name].passed for name in asked.only) else 1


def _found(outcome: Outcome | None) -> tuple[str, str]:
    if outcome is None:
        return "", "not run"
    figures = [f"{name} {_number(value)}" for name, value in outcome.figures.items()]
    return ", ".join([*figures, f"{outcome.seconds:.0f} s"]), "passed" if outcome.passed else "FAILED"


def _number(value: str | int | float) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
