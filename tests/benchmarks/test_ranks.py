"""``benchmarks/ranks.py`` trains in the requested precision."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import ranks


@pytest.mark.parametrize("precision", ["auto", "fp32"])
def test_runs_use_the_requested_precision(precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **how: Any) -> None:
        commands.append(command)
        rows = [{"tokens_per_second": speed, "loss": speed / 4} for speed in (1.0, 20.0, 30.0)]
        (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")

    monkeypatch.setattr(subprocess, "run", run)
    for variant in ranks.VARIANTS:
        assert ranks.train(variant, tmp_path, tmp_path, "mini", 40, precision) == (25.0, [0.25, 5.0, 7.5])
    assert [command[command.index("--precision") + 1] for command in commands] == [precision] * len(ranks.VARIANTS)
