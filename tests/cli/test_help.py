"""``--help``: the list of commands, the page of each command, and the page of each task of a command."""

import re
import subprocess
import sys
from dataclasses import fields
from typing import Any

import pytest

from cloze import __version__
from cloze.cli import COMMANDS
from cloze.cli.task_help import INDEX
from cloze.errors import ConfigError
from cloze.tasks.registry import KINDS, labelled_kinds
from cloze.train.finetuning.settings import FinetuneSettings
from cloze.train.finetuning.trainable import LABEL_FREE_SETTINGS, check_few, check_kind
from make_help_pages import index, page
from tests.cli.conftest import Cloze


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_list_goes_along_the_flow(words: list[str], run: Cloze) -> None:
    result = run(*words)
    assert (result.code, result.err) == (0, "")
    listed = [line.split()[0] for line in result.out.splitlines() if line.startswith("  ")]
    assert listed == list(COMMANDS)


def test_version(run: Cloze) -> None:
    assert run("--version").out == f"{__version__}\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_tells_its_flags(command: str, run: Cloze) -> None:
    result = run(command, "--help")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"Usage: cloze {command}")
    assert "--json" in result.out
    # These flags are on by default or have a third value.
    on_by_default = ("--no-baseline", "--no-few", "--no-cache", "--no-abstain")
    assert "--no-" not in re.sub("|".join(on_by_default), "", result.out)


@pytest.mark.parametrize("command", COMMANDS)
def test_pages_are_those_of_the_flags(command: str, run: Cloze) -> None:
    # If this fails, a flag has changed: run python scripts/make_help_pages.py
    assert run(command, "--help").out == page(command)


def test_page_holds_the_whole_description(run: Cloze) -> None:
    words = " ".join(run("pretrain", "--help").out.split())  # so that line breaks do not matter
    assert "Re-running the same command resumes it." in words


def test_flags_of_each_task_are_those_of_its_kind() -> None:
    # If this fails, the settings of a task kind or the flags have changed: python scripts/make_help_pages.py
    assert INDEX.read_text(encoding="utf-8") == index()


def flags_shown(text: str) -> set[str]:
    return set(re.findall(r"^│[ *]*--([a-z-]+)", text, re.MULTILINE))


@pytest.mark.parametrize("command", ["finetune", "evaluate"])
@pytest.mark.parametrize("kind", KINDS)
def test_page_of_a_task_names_it_and_what_it_does(command: str, kind: str, run: Cloze) -> None:
    result = run(command, kind, "--help")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"Usage: cloze {command} ")
    assert f"{kind} DATA" in result.out.splitlines()[0]
    assert f"{kind}: {KINDS[kind].summary}" in result.out
    assert flags_shown(result.out) < flags_shown(run(command, "--help").out)
    assert {"model", "out", "device", "json"} <= flags_shown(result.out)
    assert "TASK" not in result.out


# One value per setting that only some kinds have.
VALUES: dict[str, Any] = {
    "context": True,
    "class_weights": "balanced",
    "long_texts": "windows",
    "stride": 7,
    "longest_answer": 7,
    "augment": "edits",
    "few": True,
    "linear_start": True,
    "calibrate": True,
    "pooling": "mean",
}


@pytest.mark.parametrize("setting", VALUES)
@pytest.mark.parametrize("kind", [kind.name for kind in labelled_kinds()])
def test_pages_show_the_settings_that_training_accepts(kind: str, setting: str, run: Cloze) -> None:
    settings = FinetuneSettings(**{setting: VALUES[setting]})
    try:
        check_kind(KINDS[kind], settings)
        check_few(KINDS[kind], settings)
        accepted = True
    except ConfigError:
        accepted = False
    assert (setting.replace("_", "-") in flags_shown(run("finetune", kind, "--help").out)) == accepted


@pytest.mark.parametrize("kind", ["similarity", "correction"])
def test_pages_without_labels_show_the_settings_that_training_accepts(kind: str, run: Cloze) -> None:
    shown = flags_shown(run("finetune", kind, "--help").out)
    for field in fields(FinetuneSettings):
        assert (field.name.replace("_", "-") in shown) == (field.name in LABEL_FREE_SETTINGS), field.name
    assert {"objective", "temperature", "vectors"} & shown == (
        {"objective", "temperature", "vectors"} if kind == "similarity" else set()
    )


def test_published_tasks_have_no_columns_to_name(run: Cloze) -> None:
    for task in ("sst-2", "SST2"):
        shown = flags_shown(run("finetune", task, "--help").out)
        assert not {"text", "pair", "label", "options", "columns"} & shown
        assert "class-weights" in shown
    assert "split" in flags_shown(run("evaluate", "mrpc", "--help").out)
    assert "split" not in flags_shown(run("evaluate", "classify", "--help").out)


def test_suites_show_the_settings_of_all_their_tasks(run: Cloze) -> None:
    shown = flags_shown(run("finetune", "glue", "--help").out)
    assert "seeds" in shown
    assert not {"dev", "folds", "context", "class-weights"} & shown  # the labels of STS-B are numbers
    assert run("evaluate", "glue", "--help").complaint == "glue is a suite of several tasks; name one of them"


def test_evaluation_on_masked_words_has_flags_of_its_own(run: Cloze) -> None:
    assert {"mask-rate", "tokens", "text"} <= flags_shown(run("evaluate", "mlm", "--help").out)
    assert not {"mask-rate", "threshold"} & flags_shown(run("evaluate", "classify", "--help").out)
    assert "threshold" in flags_shown(run("evaluate", "correction", "--help").out)


def test_help_for_an_unknown_task_suggests_one(run: Cloze) -> None:
    result = run("finetune", "clasify", "--help")
    assert (result.code, result.complaint) == (2, "unknown task 'clasify'; did you mean 'classify'?")


def test_help_after_other_flags_is_that_of_the_command(run: Cloze) -> None:
    whole = run("finetune", "--help").out
    assert run("finetune", "--seeds", "3", "--help").out == whole
    assert "'cloze finetune TASK --help'" in " ".join(whole.split())


def test_help_for_a_task_is_quick_and_light() -> None:
    code = (
        "import sys, time\nfrom cloze.cli import main\ntry:\n    main(['finetune', 'classify', '--help'])\n"
        "except SystemExit:\n    print(time.process_time(), 'torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, torch = done.stderr.split()
    assert float(seconds) < 0.3
    assert torch == "False"
