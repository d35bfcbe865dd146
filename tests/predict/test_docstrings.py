"""The docstrings of public prediction functions are complete, and their examples run."""

import doctest
import inspect
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cloze
from cloze.checkpoint import TaskLabels
from cloze.model import Gpt, HeadName
from cloze.predict import Model
from cloze.tasks.answering.kind import ANSWER
from cloze.tasks.choice.kind import CHOOSE
from cloze.tasks.classification.kind import CLASSIFY, MULTILABEL, REGRESS
from cloze.tasks.kind import TaskKind
from cloze.tasks.tagging.kind import TAG
from tests.checkpoint.test_adapter_folder import LORA, make_adapter, make_base
from tests.model.made import model_folder, saved

# The models that the examples load by name.
TUNED: dict[str, tuple[TaskKind, HeadName, tuple[str, ...]]] = {
    "reviews": (CLASSIFY, "sequence", ("bad", "good")),
    "topics": (MULTILABEL, "sequence", ("politics", "sports")),
    "stars": (REGRESS, "sequence", ()),
    "names": (TAG, "token", ("O", "B-PER")),
    "squad": (ANSWER, "span", ()),
    "endings": (CHOOSE, "choice", ()),
}


METHODS = {name: method for name, method in inspect.getmembers(Model, inspect.isfunction) if not name.startswith("_")}
PUBLIC: dict[str, Any] = {"load": cloze.load, "evaluate": cloze.evaluate, "show": cloze.show, "Model": Model, **METHODS}
# Only examples with the shipped model print their output, since the weights of all other models are random here.
COMPARED = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model for each name in the examples."""
    place = tmp_path_factory.mktemp("examples")
    for name, (kind, head, labels) in TUNED.items():
        outputs = len(labels) or 1
        contents = model_folder([head], labels=outputs, task=TaskLabels(kind.name, labels))
        saved(contents, place / "runs" / name / "model")
    saved(model_folder(["mlm", "sop"]), place / "runs" / "albert" / "model")
    left_to_right = model_folder(["mlm"])
    gpt = Gpt.fresh(left_to_right.model.config, ["lm"])
    saved(replace(left_to_right, model=gpt), place / "runs" / "gpt" / "model")
    make_adapter(make_base(place / "base"), place / "runs" / "adapter" / "model", LORA)
    return place


@pytest.mark.parametrize("name", PUBLIC)
def test_example_runs(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    test = doctest.DocTestParser().get_doctest(inspect.getdoc(PUBLIC[name]) or "", {"cloze": cloze}, name, None, 0)
    assert test.examples, f"{name} has no example"
    report: list[str] = []
    results = doctest.DocTestRunner(optionflags=COMPARED).run(test, out=report.append)
    assert results.failed == 0, "".join(report)


@pytest.mark.parametrize("name", [name for name in PUBLIC if name != "Model"])
def test_docstring_has_a_section_for_all_arguments_and_the_result(name: str) -> None:
    text = inspect.getdoc(PUBLIC[name]) or ""
    signature = inspect.signature(PUBLIC[name])
    described = text.partition("Args:\n")[2].partition("\n\n")[0]
    for argument in signature.parameters:
        if argument != "self":
            assert re.search(rf"^    (\w+, )*{argument}(, \w+)*: ", described, re.MULTILINE), f"{name}: {argument}"
    returns = signature.return_annotation not in (None, "None", inspect.Signature.empty)
    assert ("Returns:\n" in text) == returns, name
