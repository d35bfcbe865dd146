"""``python -m torture``: run the campaign and print its table.

    python -m torture                 run all tests that have not passed yet
    python -m torture --only T9 T10   run only these tests
    python -m torture --fresh         run all tests again

Exits with 1 if a selected test failed. Results are stored in ``runs/torture/results.json``, and the table in
``runs/torture/results.md``.
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
    indexes,
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
        "training killed by SIGKILL 200 times, at least 50 of them inside a save",
        "0 committed checkpoints lost; final weights identical to an uninterrupted run",
        kills.KillSettings(),
        kills.run,
        ("torture/kills.py", *_TRAINING),
    ),
    "T2": Trial(
        "two processes, DDP and FSDP2, one of them killed 20 times under torchrun --max-restarts",
        "0 lost; completes; losses equal to an uninterrupted run (1e-6)",
        ranks.RankSettings(),
        ranks.run,
        ("torture/ranks.py", "torture/preparation.py", *_TRAINING),
    ),
    "T3": Trial(
        "SIGTERM and SIGINT during steps, saves, evaluation and preparation, 50 each",
        "at most one step lost; exit codes 143 and 130; < 25 s",
        signals.SignalSettings(),
        signals.run,
        ("torture/signals.py", "torture/preparation.py", *_TRAINING),
    ),
    "T4": Trial(
        "resumed at every step from 1 to 30: across epochs, with gradient accumulation, in two phases",
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
        "previous checkpoint intact; one line, exit code 2; no partial files",
        disks.DiskSettings(),
        disks.run,
        ("torture/disks.py", "torture/faults.py", *_TRAINING),
    ),
    "T7": Trial(
        "500 flips and truncations of checkpoint files",
        "all detected; falls back to the previous checkpoint",
        damage.DamageSettings(),
        damage.run,
        ("torture/damage.py", "torture/resumes.py", *_TRAINING),
    ),
    "T8": Trial(
        "a NaN loss, an infinite gradient, a tenfold loss; five in a row",
        "never checkpointed; reported; resumes",
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
        "100,000 generated strings, and fixed classes of difficult ones",
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
        "CSV and JSONL: BOM, CRLF, NUL, ragged rows, bad UTF-8, unknown labels, lines of 100 MB; text of one such line",
        "a line number in each message; memory bounded",
        tables.TableSettings(),
        tables.run,
        ("torture/tables.py",),
    ),
    "T14": Trial(
        "50,000 requests generated from the OpenAPI description, and bodies known to break parsers",
        "0 x 5xx",
        bodies.BodySettings(),
        bodies.run,
        ("torture/bodies.py", *_SERVICE),
    ),
    "T15": Trial(
        "load at 1, 2, 5 and 20 times the capacity of the service",
        "load really sent; 0 crashes; p99 within a full queue and 2 batches; goodput >= 90 %; memory grows < 10 %",
        overload.OverloadSettings(),
        overload.run,
        ("torture/overload.py", *_SERVICE),
    ),
    "T16": Trial(
        "half an hour of requests, a fifth of them aborted by the client",
        "memory and descriptors flat",
        soak.SoakSettings(),
        soak.run,
        ("torture/soak.py", *_SERVICE),
    ),
    "T17": Trial(
        "500 slow clients; bodies that are too large or endless",
        "408, 413 or closed, 429 for endless bodies; /health < 100 ms",
        slow_clients.SlowSettings(),
        slow_clients.run,
        ("torture/slow_clients.py", *_SERVICE),
    ),
    "T18": Trial(
        "SIGTERM under load, 50 times",
        "every request sent before is answered; exit code 0",
        drains.DrainSettings(),
        drains.run,
        ("torture/drains.py", *_SERVICE),
    ),
    "T19": Trial(
        "100,000 requests in fp32, bf16 and int8, each text alone and in batches",
        "differences <= 1e-5 (fp32), cosine >= 0.9999 (bf16, int8); none swapped",
        swaps.SwapSettings(),
        swaps.run,
        ("torture/swaps.py", *_SERVICE),
    ),
    "T20": Trial(
        "models that raise, panic or lose results",
        "only that request fails; failures are counted",
        failing_models.FaultSettings(),
        failing_models.run,
        ("torture/failing_models.py", *_SERVICE),
    ),
    "T21": Trial(
        "every route with no, wrong and the right key; foreign hosts and origins",
        "only /health is open",
        doors.AccessSettings(),
        doors.run,
        ("torture/doors.py", *_SERVICE),
    ),
    "T22": Trial(
        "40 markup payloads as words, labels, names and texts, in a real browser",
        "all displayed as text; 0 dialogs; 0 policy violations; 0 requests to other hosts",
        pages.PageSettings(),
        pages.run,
        ("torture/pages.py", *_SERVICE),
    ),
    "T23": Trial(
        "preparation whose processes are killed 50 times",
        "byte-identical to the output of one process; nothing left behind",
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
        "one writes, others are rejected or take turns; no mixed or missing files; other files unchanged",
        writers.WriterSettings(),
        writers.run,
        ("torture/writers.py", *_COMMANDS),
    ),
    "T26": Trial(
        "outputs beside and onto files, folders, links, devices, pipes and protected files; umasks",
        "no user file deleted or followed; modes follow the umask",
        neighbours.NeighbourSettings(),
        neighbours.run,
        ("torture/neighbours.py", *_COMMANDS),
    ),
    "T27": Trial(
        "a file job killed before each of its file operations, then another job with the same output",
        "never results of the old job",
        parts.PartSettings(),
        parts.run,
        ("torture/parts.py", *_COMMANDS),
    ),
    "T28": Trial(
        "each file of a run, its base or its corpus changed between a kill and the resumption",
        "rejected with the name of the changed file",
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
        "one greedy client and nine modest ones",
        "the modest ones retain 80 % of their throughput among ten modest ones",
        shares.ShareSettings(),
        shares.run,
        ("torture/shares.py", "torture/overload.py", *_SERVICE),
    ),
    "T31": Trial(
        "every file of a model truncated, overwritten, replaced and deleted while it is served",
        "responses as before, or rejections; no crash",
        changing_files.ChangeSettings(),
        changing_files.run,
        ("torture/changing_files.py", *_SERVICE),
    ),
    "T32": Trial(
        "an index killed by SIGKILL 50 times while it is built and extended",
        "nothing lost; byte-identical to an uninterrupted index",
        indexes.IndexSettings(),
        indexes.run,
        ("torture/indexes.py", *_COMMANDS),
    ),
}
FOLDER = ROOT / "runs" / "torture"
HEADER = ("test", "tested", "required", "measured", "result")
_RULE = ("---",) * len(HEADER)
TABLE = "results.md"  # file with the printed table, in Markdown


def main(arguments: Sequence[str] | None = None, trials: dict[str, Trial] = TRIALS, folder: Path = FOLDER) -> int:
    """Run the selected tests, print the table, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m torture", description="Run the torture campaign.")
    parser.add_argument("--only", nargs="+", choices=trials, default=list(trials), metavar="T", help="these tests")
    parser.add_argument("--fresh", action="store_true", help="also run tests that have passed already")
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
    print_table(HEADER, rows)
    folder.mkdir(parents=True, exist_ok=True)
    lines = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (HEADER, _RULE, *rows))
    (folder / TABLE).write_text("\n".join(lines) + "\n", encoding="utf-8")
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
