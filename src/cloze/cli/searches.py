"""Tables of several runs: a grid, seeds, folds, or all of GLUE."""

from pathlib import Path
from typing import Any

from cloze.cli.console import print_json, print_table


def print_search(folder: Path, json: bool) -> None:
    """Print what a search has found."""
    from cloze.files import read_json

    results = read_json(folder / "eval_results.json")
    if json:
        print_json(results)
    elif "tasks" in results:
        _print_suite(results)
    else:
        _print_cells(read_json(folder / "search.json")["cells"], results)
        kept = results.get("kept", results["best"])  # which the first searches did not write
        print(f"{folder}: the model of {kept}, search.json, search.png")


def _print_suite(results: dict[str, Any]) -> None:
    rows = []
    for task, score in results["tasks"].items():
        rows.append((task, score["metric"], f"{score['mean']:.4f}", f"{score['deviation']:.4f}"))
        if "mismatched" in score:  # other models are not kept
            rows.append((f"{task}, mismatched", score["metric"], f"{score['mismatched']:.4f}", "best run alone"))
    print_table(("task", "metric", "mean", "deviation"), [*rows, ("average", "", f"{results['average']:.4f}", "")])


def _print_cells(cells: list[dict[str, Any]], results: dict[str, Any]) -> None:
    metric = results["metric"]
    rows = [(cell["part"], cell["name"], f"{cell['score']:.4f}", cell["failed"] or "") for cell in cells]
    print_table(("part", "run", metric, "failed"), rows)
    spread = f"{results['mean']:.4f} ± {results['deviation']:.4f} over {results['runs']} runs"
    print(f"{metric}: {spread}, {results['least']:.4f} to {results['most']:.4f}; failed: {len(results['failed'])}")
