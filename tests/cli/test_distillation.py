"""``cloze distill``: a smaller model from a fine-tuned one, and the table that compares both."""

import json
from pathlib import Path

import pytest

from cloze.cli.distillation import print_difference
from cloze.predict import Difference, load
from tests.cli.conftest import Cloze, Way


def test_student_and_table(run: Cloze, way: Way, tmp_path: Path) -> None:
    how = ("--layers", 1, "--take", "first", "--epochs", 1, "--batch", 8)
    words = ("distill", "classify", way.rows, "--model", way.tuned, "--out", tmp_path / "run", *how)
    result = run(*words)
    assert result.code == 0, result.err
    table = [line.split("\t") for line in result.out.splitlines()]
    assert table[0] == [str(tmp_path / "run" / "model"), "teacher", "student", "student / teacher"]
    report = json.loads((tmp_path / "run" / "distillation.json").read_text(encoding="utf-8"))
    assert [row[0] for row in table[1:-1]] == [
        "layers",
        "parameters",
        "MiB",
        "rows per second",
        *report["teacher"]["scores"],
    ]
    assert table[1][1:] == ["2", "1", "0.50"]
    assert table[2][2] == f"{report['student']['parameters']:,}"
    kept = "" if report["kept"] is None else f"{report['kept']:.1%}"
    assert table[5] == [
        "accuracy",
        f"{report['teacher']['scores']['accuracy']:.4f}",
        f"{report['student']['scores']['accuracy']:.4f}",
        kept,
    ]
    gain, ends = report["difference"]["gain"], report["difference"]["interval"]
    difference = Difference(gain, *ends)
    level = "" if difference.reliable else "; level with the teacher"
    assert result.out.splitlines()[-1] == (
        f"student against teacher, accuracy: {difference.in_points('difference')}{level}"
    )
    printed = run(*words, "--json")
    assert json.loads(printed.out) == {"folder": str(tmp_path / "run"), **report}
    assert "already finished" in printed.err
    assert load(tmp_path / "run").bert.config.layers == 1


@pytest.mark.parametrize(
    ("facts", "line"),
    [
        (
            {"gain": -0.004, "interval": [-0.015, 0.006]},
            "student against teacher, f1: difference -0.4 points, 95 % interval -1.5 to +0.6: within noise; "
            "level with the teacher\n",
        ),
        (
            {"gain": -0.04, "interval": [-0.06, -0.02]},
            "student against teacher, f1: difference -4.0 points, 95 % interval -6.0 to -2.0: beyond noise\n",
        ),
        ({"gain": None, "interval": None}, ""),
        (None, ""),  # of version 0.1
    ],
)
def test_a_student_within_noise_is_level_with_its_teacher(
    facts: dict[str, object] | None, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_difference({"metric": "f1"} | ({} if facts is None else {"difference": facts}))
    assert capsys.readouterr().out == line


def test_teacher_that_reads_frozen_states(run: Cloze, way: Way, tmp_path: Path) -> None:
    teacher, student = tmp_path / "teacher", tmp_path / "student"
    short = ("--epochs", 1, "--batch", 8)
    frozen = ("--frozen", "mix", "--feature-head", "lstm", "--length", 32)
    result = run("finetune", "classify", way.rows, "--model", way.pretrained, "--out", teacher, *frozen, *short)
    assert result.code == 0, result.err
    result = run("distill", "classify", way.rows, "--model", teacher, "--out", student, "--layers", 1, *short)
    assert result.code == 0, result.err
    assert result.out.splitlines()[1].split("\t") == ["layers", "2", "1", "0.50"]
    result = run("classify", "It was the best of times.", "--model", student, "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["label"] in way.rows.read_text(encoding="utf-8")


def test_mistakes_are_one_line(run: Cloze, way: Way, tmp_path: Path) -> None:
    words = ("distill", "classify", way.rows, "--out", tmp_path / "run")
    result = run(*words, "--model", way.pretrained)
    assert result.code == 2
    assert "classify needs a teacher fine-tuned to classify; this one has the heads: mlm, nsp" in result.complaint
    result = run(*words, "--model", way.tuned, "--layers", 1, "--preset", "tiny")
    assert result.code == 2
    assert "layers and preset exclude each other" in result.complaint


# -- raw text ----------------------------------------------------------------------------------------------------------


def test_student_of_raw_text(run: Cloze, way: Way, tmp_path: Path) -> None:
    short = ("--objective", "vectors", "--layers", 1, "--steps", 3, "--batch", 8, "--length", 32, "--no-cache")
    words = ("distill", "--text", way.text, "--model", way.pretrained, "--out", tmp_path / "run", *short)
    result = run(*words)
    assert result.code == 0, result.err
    table = [line.split("\t") for line in result.out.splitlines()]
    results = json.loads((tmp_path / "run" / "eval_results.json").read_text(encoding="utf-8"))
    assert table[:4] == [
        [str(tmp_path / "run" / "model"), "teacher", "student"],
        ["layers", "2", "1"],
        ["hidden size", "128", "128"],
        ["parameters", *(f"{results[name]['parameters']:,}" for name in ("teacher", "student"))],
    ]
    assert ["held_out_cosine", f"{results['held_out_cosine']:.4f}"] in table
    assert "held out: cosine" in result.err
    assert not any("cache of the teacher's vectors" in line for line in result.err.splitlines())
    printed = run(*words, "--json")
    assert json.loads(printed.out) == {"folder": str(tmp_path / "run"), **results}
    assert run("embed", "a ship at sea", "--model", tmp_path / "run").code == 0
    other = run(*words, "--rate", 5e-4)
    assert other.code == 2
    assert "learning_rate was 0.001 and is now 0.0005" in other.err.splitlines()[-1]


def test_prepared_corpus_and_configuration_file(run: Cloze, way: Way, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(f'text = ["{way.data}"]\nsteps = 2\nbatch = 8\nlength = 32\ncache = true\n', encoding="utf-8")
    result = run("distill", "--config", config, "--model", way.pretrained, "--out", tmp_path / "run")
    assert result.code == 0, result.err
    assert "objective relations: the teacher is not made for sentence vectors" in result.err
    assert "training passages" in result.err


def test_text_is_a_column_with_a_task(run: Cloze, way: Way, tmp_path: Path) -> None:
    """With a task, --text names a column, whether it is given before or after the task."""
    common = ("--model", way.tuned, "--out", tmp_path / "run")
    for words in (("classify", way.rows, "--text", "body"), ("--text", "body", "classify", way.rows)):
        result = run("distill", *words, *common)
        assert result.code == 2
        assert "no column 'body'" in result.complaint
    assert "one column" in run("distill", "classify", way.rows, *common, "--text", "one", "two").complaint


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--text", "{text}", "--temperature", 3), "--temperature is 3.0, which has no effect with --text"),
        (("--text", "{text}", "--dev", "{text}"), "which is for a task; leave it out with --text"),
        (("--text", "{text}", "--label", "class"), "--label is class, which is for a task"),
        (("classify", "{rows}", "--objective", "hidden"), "--objective is 'hidden', which has no effect with a task"),
        (("classify", "{rows}", "--no-cache"), "--cache is False, which has no effect with a task"),
        (("classify",), "DATA is missing"),
        ((), "TASK is missing"),
        (("--text", "{text}", "--vocab", "{rows}"), "{rows}"),
        (("--text", "{text}", "--max-length", 4096), "max_length is 4096, but the teacher accepts at most"),
        (("--text", "{text}", "--steps", 3, "--hours", 3), "steps and hours exclude each other"),
    ],
)
def test_mistakes_with_raw_text(
    words: tuple[object, ...], complaint: str, run: Cloze, way: Way, tmp_path: Path
) -> None:
    places = {"text": str(way.text), "rows": str(way.rows)}
    filled = [str(word).format(**places) for word in words]
    result = run("distill", *filled, "--model", way.tuned, "--out", tmp_path / "run")
    assert result.code == 2
    assert complaint.format(**places) in result.complaint
