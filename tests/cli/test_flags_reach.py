"""Every flag of every prediction command has an effect on every path, or is rejected.

The flags come from the function signatures, so a new flag without a case below makes a test fail. Each case runs a
command with a model that records its calls, with texts as arguments, with ``--input`` to the terminal, and with
``--input --output``. The flag must change the calls or the output, and it must be part of the identity of a resumable
job.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cloze.cli import build, inputs
from cloze.predict import (
    Answer,
    Corrected,
    Filled,
    FilledTogether,
    Generated,
    Option,
    Score,
    Tagged,
    TaggedWord,
)
from cloze.predict.results import Ranked
from cloze.progress import Interrupted
from tests.cli.conftest import Cloze

ARGUMENTS = {
    "fill": ("a [MASK]",),
    "score": ("a text",),
    "generate": ("a text",),
    "follows": ("a text", "another"),
    "classify": ("a text",),
    "tag": ("a text",),
    "answer": ("a question", "a context"),
    "choose": ("a prompt", "one", "two"),
    "embed": ("a text",),
    "rerank": ("a query", "one", "two"),
    "correct": ("a text",),
}
COLUMNS = ("text", "body", "first", "second", "question", "context")
PATHS = ("arguments", "input", "output")
FILES = ("input", "output")

EXEMPT = {
    "--model": "names the model, which is replaced here",
    "--input": "is one of the paths",
    "--output": "is one of the paths",
    "--json": "is the format of what is printed, held by the tests of each command",
    "--fresh": "discards the parts of an interrupted job, held by test_resumable.py",
}


@dataclass(frozen=True)
class Case:
    """A flag with a value other than its default.

    Attributes:
        words: The flag and its value, with other flags that it requires.
        baseline: Only the flags that it requires.
        paths: The paths on which it has an effect; it is rejected on all other paths.
        identifies: Whether an interrupted job without it is a different job.
    """

    words: tuple[object, ...]
    baseline: tuple[object, ...] = ()
    paths: tuple[str, ...] = PATHS
    identifies: bool = True


SHARED = {
    "--text": Case(("--text", "body"), paths=FILES),
    "--device": Case(("--device", "cpu"), identifies=False),
    "--threads": Case(("--threads", 2), identifies=False),
    "--precision": Case(("--precision", "bf16")),
}
CASES: dict[tuple[str, str], Case] = {
    ("fill", "--top"): Case(("--top", 3)),
    ("fill", "--joint"): Case(("--joint",)),
    ("fill", "--rounds"): Case(("--joint", "--rounds", 4), ("--joint",)),
    ("score", "--tokens"): Case(("--tokens",)),
    ("follows", "--pair"): Case(("--pair", "body"), paths=FILES),
    ("generate", "--tokens"): Case(("--tokens", 3)),
    ("generate", "--temperature"): Case(("--temperature", 0.5)),
    ("generate", "--top-k"): Case(("--top-k", 3)),
    ("generate", "--top-p"): Case(("--top-p", 0.5)),
    ("generate", "--samples"): Case(("--samples", 2)),
    ("generate", "--seed"): Case(("--seed", 1)),
    # With a query, the documents are sorted; without one, the rows of a file are scored.
    ("rerank", "--top"): Case(("--top", 1), paths=("arguments",)),
    ("rerank", "--pair"): Case(("--pair", "body"), paths=FILES),
    ("classify", "--no-abstain"): Case(("--no-abstain",)),
    ("classify", "--pair"): Case(("--pair", "second")),
    ("answer", "--top"): Case(("--top", 3)),
    ("answer", "--longest-answer"): Case(("--longest-answer", 7)),
    ("answer", "--pair"): Case(("--pair", "body"), paths=FILES),
    ("choose", "--options"): Case(("--options", "body,second"), paths=FILES),
    ("embed", "--pair"): Case(("--pair", "second")),
    ("embed", "--pooling"): Case(("--pooling", "max")),
    ("embed", "--layer"): Case(("--layer", "-2,-1")),
    ("embed", "--long-texts"): Case(("--long-texts", "windows")),
    ("embed", "--word"): Case(("--word", "text")),
    # Whitening and the report are not predictions: they are rejected on their own or with an output for vectors.
    ("embed", "--whiten"): Case(("--whiten", "rows.jsonl", "--report"), ("--report",), paths=("arguments", "input")),
    ("embed", "--dimensions"): Case(("--dimensions", 3)),
    ("embed", "--prompt"): Case(("--prompt", "query")),
    ("embed", "--out"): Case(("--out", "folder"), paths=()),
    ("embed", "--report"): Case(("--report",), paths=("arguments", "input")),
    ("embed", "--label"): Case(
        ("--label", "score", "--report", "--pair", "second"), ("--report", "--pair", "second"), paths=("input",)
    ),
    ("correct", "--threshold"): Case(("--threshold", 0.5)),
    ("correct", "--reading"): Case(("--reading", "seen")),
    ("correct", "--mistakes"): Case(("--mistakes", 0.01)),
    ("correct", "--similar"): Case(("--similar", "rows.jsonl")),
    ("correct", "--protect"): Case(("--protect", "rows.jsonl")),
}


def flags_of(command: str) -> list[str]:
    """Return all flags of a command, as its parser defines them."""
    arguments = build(command).assemble_argument_collection()
    return [name for argument in arguments for name in argument.names if name.startswith("--")]


ALL = [(command, flag) for command in ARGUMENTS for flag in flags_of(command) if flag not in EXEMPT]


def case_of(command: str, flag: str) -> Case:
    case = CASES.get((command, flag)) or SHARED.get(flag)
    assert case is not None, f"cloze {command} {flag}: add a case here that shows that it has an effect on all paths"
    return case


class SpyModel:
    """A model that records its calls; its predictions depend only on the number of texts."""

    fingerprint, correcting, bert, is_cross_encoder = "weights", None, None, True
    task = SimpleNamespace(kind="classify", context=False, names=("O",))

    def __init__(self, calls: list[str], **loaded: object) -> None:
        self.calls, self.interrupt_at = calls, 0
        self.precision = loaded["precision"]
        calls.append(f"load {loaded} with {torch.get_num_threads()} threads")
        self._predictions = 0

    def record(self, name: str, *given: object, **named: object) -> None:
        self.calls.append(f"{name} {given} {named}")
        self._predictions += 1
        if self._predictions == self.interrupt_at:
            raise Interrupted(15, "stopped")

    def fill_all(self, texts: list[str], *given: object) -> object:
        self.record("fill_all", texts, *given)
        return [[[Filled("word", 0.5)]] for _ in texts]

    def fill_together(self, text: str, *given: object, **named: object) -> object:
        self.record("fill_together", text, *given, **named)
        return [FilledTogether(("word",), -1.0, text)]

    def score(self, texts: list[str]) -> object:
        self.record("score", texts)
        return [Score(text, ("a",), (-1.0,)) for text in texts]

    def follows_all(self, *given: Any) -> object:
        self.record("follows_all", *given)
        return [0.5 for _ in given[0]]

    def generate_all(self, *given: Any, **named: object) -> object:
        self.record("generate_all", *given, **named)
        return [[Generated(f"{text} a", " a", ("a",), -1.0, False)] for text in given[0]]

    def rerank(self, *given: Any) -> object:
        self.record("rerank", *given)
        return [Ranked(0, 0.5, "one")]

    def rerank_scores(self, *given: Any) -> object:
        self.record("rerank_scores", *given)
        return np.ones(len(given[0]))

    def logits(self, *given: Any) -> object:
        self.record("logits", *given)
        return torch.ones(len(given[0]), 1)

    def predict_rows(self, *given: Any, **named: object) -> object:
        self.record("predict_rows", *given, **named)
        return [{"label": "yes", "probability": 0.75, "probabilities": {"yes": 0.75, "no": 0.25}} for _ in given[0]]

    def answer_all(self, *given: Any) -> object:
        self.record("answer_all", *given)
        return [[Answer("a", 0, 1, 0.5)] for _ in given[0]]

    def choose_all(self, *given: Any) -> object:
        self.record("choose_all", *given)
        return [[Option(0, "a", 0.75), Option(1, "b", 0.25)] for _ in given[0]]

    def embed(self, *given: Any, **named: object) -> object:
        self.record("embed", *given, **named)
        return np.ones((len(given[0]), 4), np.float32)

    def word(self, *given: object, **named: object) -> object:
        self.record("word", *given, **named)
        return np.ones(4, np.float32)


@dataclass
class Spy:
    """Runs commands with a model that records its calls."""

    run: Cloze
    calls: list[str]
    model: SpyModel | None = None
    interrupt_at: int = 0

    def load(self, source: str, **named: object) -> SpyModel:
        self.model = SpyModel(self.calls, **named)
        self.model.interrupt_at = self.interrupt_at
        return self.model

    def observe(self, command: str, path: str, words: tuple[object, ...]) -> tuple[int, str, tuple[object, ...]]:
        """Run a command on a path; return its exit code, its error output, and all its calls and output."""
        self.calls.clear()
        torch.set_num_threads(1)
        source = ARGUMENTS[command] if path == "arguments" else ("--input", "rows.jsonl")
        output = Path("out.jsonl")
        output.unlink(missing_ok=True)
        # Commands print a note if the model is the default.
        result = self.run(
            command, *source, *words, "--model", "spy", *(("--output", output) if path == "output" else ())
        )
        written = output.read_text(encoding="utf-8") if output.exists() else ""
        return result.code, result.err, (list(self.calls), result.out, written)


@pytest.fixture
def spy(run: Cloze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spy:
    monkeypatch.chdir(tmp_path)
    spied = Spy(run, [])
    rows = [
        {name: f"{name} {number}" for name in COLUMNS}
        | {"options": ["a", "b"], "negatives": ["a"], "label": number, "score": 2 * number}
        for number in range(3)
    ]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def tag_texts(model: SpyModel, texts: list[str], groups: object) -> list[Tagged]:
        model.record("tag_texts", texts, groups)
        return [Tagged(text, (TaggedWord(text, "O", 0, 1, 0.5),), ()) for text in texts]

    class SpyCorrector:
        def __init__(self, model: SpyModel, settings: object) -> None:
            self.model, self.settings = model, settings

        def correct(self, texts: list[str]) -> list[Corrected]:
            self.model.record("correct", texts, self.settings)
            return [Corrected(text, text, ()) for text in texts]

    def report_embeddings(model: SpyModel, *given: object) -> object:
        model.record("report_embeddings", *given)
        return SimpleNamespace(methods=[SimpleNamespace(row=lambda: {"vectors": "mean"})], advice="advice")

    monkeypatch.setattr("cloze.predict.load", spied.load)
    monkeypatch.setattr("cloze.tasks.tagging.decoding.tag_texts", tag_texts)
    monkeypatch.setattr("cloze.predict.corrector.Corrector", SpyCorrector)
    monkeypatch.setattr("cloze.predict.preprocessing.require_head", lambda *_: None)
    monkeypatch.setattr("cloze.predict.embeddings.vector_quality.report_embeddings", report_embeddings)
    return spied


def test_cases_are_those_of_the_signatures() -> None:
    assert {(command, flag) for command, flag in CASES if (command, flag) not in ALL} == set()
    assert {flag for flag in (*SHARED, *EXEMPT) if all(flag not in flags_of(command) for command in ARGUMENTS)} == set()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("command", "flag"), ALL)
def test_flag_has_an_effect_or_is_refused(command: str, flag: str, path: str, spy: Spy) -> None:
    case = case_of(command, flag)
    code, errors, observed = spy.observe(command, path, case.words)
    if path not in case.paths:
        assert (code, len(errors.splitlines())) == (2, 1)
        assert errors.startswith("cloze: error: ")
        assert any(str(word) in errors for word in case.words if str(word).startswith("--"))
        return
    assert (code, errors) == (0, "")
    plain_code, _, plain = spy.observe(command, path, case.baseline)
    assert plain_code == 0
    assert observed != plain, f"cloze {command} {' '.join(map(str, case.words))} changes nothing with {path}"


@pytest.mark.parametrize(("command", "flag"), [one for one in ALL if "output" in case_of(*one).paths])
def test_flag_identifies_a_resumable_job(command: str, flag: str, spy: Spy, monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of(command, flag)
    monkeypatch.setattr(inputs, "PART_ROWS", 1)
    spy.interrupt_at = 2
    code, errors, _ = spy.observe(command, "output", case.baseline)
    assert (code, "stopped after 1 rows" in errors) == (143, True)
    spy.interrupt_at = 0
    code, errors, _ = spy.observe(command, "output", case.words)
    if case.identifies:
        assert (code, "belongs to a job with other settings (" in errors) == (2, True)
    else:
        assert code == 0
