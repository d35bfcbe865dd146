"""Every benchmark with published data names missing downloads and runs on a small stand-in."""

import json
import runpy
import sys
from pathlib import Path

import pytest

import public_data
from cloze.tasks.correction.examples import read_corrections
from cloze.tasks.registry import read_task
from cloze.tasks.rows import Source
from kept_scores import ScoreCache

BENCHMARKS = Path(public_data.__file__).parent
SCRIPTS = sorted(path.stem for path in BENCHMARKS.glob("*.py") if "find_data" in path.read_text(encoding="utf-8"))
SCRIPTS.remove("public_data")
# Required arguments besides --data.
ARGUMENTS = {
    "choices": ("--text", "missing", "--held-out", "missing"),
    "correction": ("chinese", "--model", "missing"),
    "heads": ("survey",),
    "index": ("rate",),
    "retrieval": ("squad",),
    "retrieval_quality": ("--out", "missing"),
}


def run(script: str, *words: str) -> int | str | None:
    """Run a script in this process, which has already loaded its imports; return its exit code or message."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [script, *words])
        try:
            runpy.run_path(str(BENCHMARKS / f"{script}.py"), run_name="__main__")
        except SystemExit as end:
            return end.code
    return None


@pytest.fixture(scope="module")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return public_data.make_small(tmp_path_factory.mktemp("small"))


def test_no_script_reads_data_of_this_machine_otherwise() -> None:
    readers = [path.stem for path in BENCHMARKS.glob("*.py") if "shared/data" in _code(path)]
    assert readers == ["public_data"]
    assert len(SCRIPTS) >= 19


def _code(path: Path) -> str:
    """Return a script without its docstring, whose examples may contain any path."""
    return path.read_text(encoding="utf-8").split('"""', 2)[2]


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_and_missing_data(script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(script, "--help") == 0
    assert "--data FOLDER" in capsys.readouterr().out
    line = run(script, *ARGUMENTS.get(script, ()), "--data", str(tmp_path / "nowhere"))
    assert isinstance(line, str)
    assert line.startswith(f"{tmp_path / 'nowhere'}/")
    assert ": missing; download " in line
    assert "https://" in line
    assert line.endswith(", below --data FOLDER, or try --data small")
    assert "\n" not in line


def test_every_set_has_a_small_form(small_data: Path) -> None:
    assert {path.name for path in small_data.iterdir()} == set(public_data.SOURCES)


@pytest.mark.parametrize(
    ("task", "folder"),
    [
        ("sst-2", "glue/SST-2"),
        ("cola", "glue/CoLA"),
        ("mrpc", "glue/MRPC"),
        ("rte", "glue/RTE"),
        ("sts-b", "glue/STS-B"),
        ("conll", "conll2003"),
    ],
)
def test_small_tasks_are_read(task: str, folder: str, small_data: Path) -> None:
    data = read_task(Source(task, small_data / folder))
    assert len(data.train) >= 50
    assert len(data.dev) >= 50
    if data.labels is not None and folder.startswith("glue"):
        assert len(data.labels) == 2


def test_small_choices_are_read(small_data: Path) -> None:
    data = read_task(Source("arc", small_data / "arc/arc_easy_dev.csv", dev=small_data / "arc/arc_easy_test.csv"))
    assert min(len(data.train), len(data.dev)) >= 50


def test_small_questions_have_their_answers(small_data: Path) -> None:
    data = json.loads((small_data / "squad/xquad.en.json").read_text(encoding="utf-8"))["data"]
    for article in data:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                for answer in question["answers"]:
                    start = answer["answer_start"]
                    assert paragraph["context"][start:].startswith(answer["text"])


def test_small_corrections_are_read(small_data: Path) -> None:
    rows = read_corrections(small_data / "sighan_csc/sighan15")
    assert len(rows) == public_data.ROWS["dev"]
    assert sum(one != two for one, two in zip(rows.sources, rows.targets, strict=True)) == len(rows) // 2


def test_small_form_is_the_same_every_time(small_data: Path, tmp_path: Path) -> None:
    again = public_data.make_small(tmp_path)
    files = sorted(
        path.relative_to(small_data) for path in small_data.rglob("*") if path.is_file() and path.suffix != ".gz"
    )
    assert all((small_data / path).read_bytes() == (again / path).read_bytes() for path in files)


def test_scores_of_other_data_are_stored_separately(tmp_path: Path) -> None:
    assert not public_data.is_published("small")
    assert not public_data.is_published(tmp_path)
    assert public_data.is_published(public_data.DEFAULT)
    cache = ScoreCache(tmp_path / "published.json")
    cache.get("a", lambda: 1.0)
    cache.move(tmp_path / "others.json")
    assert cache.get("a", lambda: 2.0) == 2.0


def test_a_benchmark_runs_on_the_small_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("ladder", "--data", "small", "--rounds", "1") is None
    assert capsys.readouterr().out


def test_search_is_measured_on_articles_that_training_has_not(capsys: pytest.CaptureFixture[str]) -> None:
    import retrieval

    for name in ("squad", "drcd"):
        splits = retrieval.read_splits(name, "small")
        texts = [set(data.documents.values()) for data in splits.values()]
        assert all(texts)
        assert not texts[0] & texts[2]
        assert not texts[1] & texts[2]
        assert all(data.unanswerable == 0 for data in splits.values())
    assert run("retrieval", "squad", "--data", "small", "--models", "cloze-mini") is None
    assert "against BM25" in capsys.readouterr().out
