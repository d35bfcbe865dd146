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
from torture import preparation, strings, vocabulary
from torture.campaign import ROOT, Outcome, Trial, run_trials

TRIALS = {
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
    "T23": Trial(
        "preparation whose processes are killed 50 times",
        "byte-identical to one process's; nothing left behind",
        preparation.PreparationSettings(),
        preparation.run,
        ("torture/preparation.py", "torture/vocabulary.py"),
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
