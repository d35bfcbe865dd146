"""The main paths execute few files, and the architecture page lists exactly these."""

import re
from pathlib import Path

import pytest

from trace_paths import LIMIT, MAIN_PATHS, STAGES, Recorder, trace_all

ARCHITECTURE = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def traced() -> dict[str, Recorder]:
    return trace_all()


@pytest.mark.parametrize("name", MAIN_PATHS)
def test_path_executes_few_files(traced: dict[str, Recorder], name: str) -> None:
    assert 0 < len(traced[name].files) <= LIMIT


@pytest.mark.parametrize("name", STAGES)
def test_path_is_the_documented_one(traced: dict[str, Recorder], name: str) -> None:
    section = ARCHITECTURE.partition(f"### {name}\n")[2].partition("\n#")[0]
    assert sorted(re.findall(r"^\| `([\w/]+\.py)` \|", section, re.MULTILINE)) == traced[name].files
    calls = re.search(r"^Calls (.*)\.$", section, re.MULTILINE)
    assert sorted(calls[1].split(", ") if calls else []) == sorted(traced[name].crossed)
