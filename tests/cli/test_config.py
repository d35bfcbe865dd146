"""Configuration files: any flag as a key; a flag on the command line takes precedence."""

import json
from pathlib import Path

from tests.cli.conftest import Cloze, Way


def test_flag_wins_over_the_file(run: Cloze, way: Way, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        'preset = "tiny"\nsteps = 7\nbatch = 4\nlength = 24\nevaluate_every = 5\n'
        "mask-mix = [1.0, 0, 0]\njson = true\nfresh = false\n",
        encoding="utf-8",
    )
    result = run("pretrain", way.data, "--config", path, "--steps", 2, "--out", tmp_path / "run")
    assert json.loads(result.out)["steps"] == 2
    recorded = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    values = {
        name: recorded[name] for name in ("preset", "steps", "batch_size", "max_length", "evaluate_every", "mask_mix")
    }
    assert values == {
        "preset": "tiny",
        "steps": 2,
        "batch_size": 4,
        "max_length": 24,
        "evaluate_every": 5,
        "mask_mix": [1.0, 0.0, 0.0],
    }


def test_key_may_be_called_as_a_command_is(run: Cloze, way: Way, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f'vocab = "{way.vocabulary}"\nout = "{tmp_path / "data"}"\n', encoding="utf-8")
    assert run("prepare", way.text, f"--config={path}").code == 0
    assert (tmp_path / "data" / "manifest.json").is_file()


def test_bad_files_are_refused(run: Cloze, way: Way, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    files = {
        "stesp = 3\n": f"{path}: unknown key 'stesp'; did you mean 'steps'?",
        "steps = \n": f"--config {path}: not a TOML file (Invalid value (at line 1, column 9))",
        'steps = "many"\n': f"Invalid value for steps from {path}: unable to convert",
    }
    for text, message in files.items():
        path.write_text(text, encoding="utf-8")
        result = run("pretrain", way.data, "--config", path, "--out", tmp_path / "run")
        assert (result.code, message in result.complaint) == (2, True), result
        assert not (tmp_path / "run").exists()


def test_missing_file_is_named(run: Cloze, tmp_path: Path) -> None:
    result = run("doctor", "--config", tmp_path / "none.toml")
    message = f"--config {tmp_path}/none.toml: cannot be read (No such file or directory)"
    assert (result.code, result.complaint) == (2, message)
    assert run("doctor", "--config").complaint == "--config needs a file"
