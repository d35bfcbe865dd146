"""``cloze plan``, recipes, ``cloze evaluate mlm``, and a half-size folder."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AlbertForPreTraining

from cloze.checkpoint import load_folder
from tests.cli.conftest import Cloze, Way

SMALL = ("--preset", "tiny", "--batch", 4, "--length", 32)


def test_plan_prints_the_cost_of_a_run(run: Cloze, way: Way) -> None:
    words = ("plan", way.data, *SMALL, "--steps", 100)
    report = json.loads(run(*words, "--json").out)
    assert report["steps"] == 100
    assert report["memory_bytes"] == sum(
        report[f"{name}_bytes"] for name in ("weight", "gradient", "optimizer", "activation")
    )
    table = run(*words).out.splitlines()
    names = ["plan", "parameters", "memory", "per step", "whole run", "text", "held-out masked-LM loss"]
    assert [line.split("\t")[0] for line in table] == names
    assert table[1].split("\t")[1] == f"{report['parameters']:,}"
    assert (report["expected_bound"], report["expected_mlm_loss"] > 6) == ("lower", True)
    assert table[-1].split("\t")[1].startswith(f"above {report['expected_mlm_loss']:.2f}, the loss of tiny ")


def test_plan_does_not_extrapolate_the_loss(run: Cloze, way: Way) -> None:
    words = ("plan", way.data, *SMALL, "--steps")
    (within, beyond) = (run(*words, steps).out.splitlines()[-1].split("\t")[1] for steps in (20_000, 10**6))
    assert within.startswith("about ")
    assert within.endswith(" after the same number of tokens")
    assert beyond.startswith("at most about 4.49, the final loss of tiny ")
    assert beyond.endswith(", after fewer tokens")


def test_recipe_is_a_few_flags_and_a_flag_wins(run: Cloze, way: Way, tmp_path: Path) -> None:
    words = ("pretrain", way.data, *SMALL, "--steps", 2, "--recipe", "albert", "--masking", "word")
    assert run(*words, "--out", tmp_path / "run").code == 0
    settings = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert (settings["objective"], settings["masking"], settings["shared_layers"]) == ("sop", "word", True)
    assert load_folder(tmp_path / "run").model.head_names == ("mlm", "sop")
    AlbertForPreTraining.from_pretrained(tmp_path / "run" / "model")


def test_threads_are_measured_unless_they_are_given(
    run: Cloze, way: Way, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    torch.set_num_threads(2)
    trials: list[int] = []

    def find_one(most: int, _: object) -> int:
        trials.append(most)
        return 1

    monkeypatch.setattr("cloze.threads.fastest_threads", find_one)
    words = ("pretrain", way.data, *SMALL, "--steps", 2, "--out")
    note = "other processes use this machine: 1 of 2 threads are fastest now; --threads overrides"
    for given, threads in (((), 1), (("--threads", 2), 2)):
        out = tmp_path / str(threads)
        result = run(*words, out, *given)
        assert result.code == 0
        assert json.loads((out / "run.json").read_text(encoding="utf-8"))["threads"] == threads
        assert (note in result.err.splitlines()) == (threads == 1)
    assert trials == [2]


def test_unknown_recipe_is_a_mistake(run: Cloze, way: Way, tmp_path: Path) -> None:
    result = run("pretrain", way.data, "--recipe", "robberta", "--out", tmp_path / "run")
    assert result.code == 2
    assert "unknown recipe 'robberta'; did you mean 'roberta'?" in result.err
    assert not (tmp_path / "run").exists()


def test_loss_on_a_text_before_and_after_training(run: Cloze, way: Way, tmp_path: Path) -> None:
    words = ("evaluate", "mlm", way.text, "--model", way.pretrained, "--length", 32, "--tokens", 500)
    report = json.loads(run(*words, "--out", tmp_path / "scores", "--json").out)
    losses = {"mlm_loss", "mlm_loss_per_word", "mlm_loss_per_character", "standard_error"}
    assert report.keys() == losses | {"perplexity", "mlm_accuracy", "blanks", "tokens"}
    assert json.loads((tmp_path / "scores" / "eval_results.json").read_text(encoding="utf-8")) == report
    assert run(*words).out.splitlines()[1] == f"mlm_loss\t{report['mlm_loss']:.4f}"


def test_other_tasks_accept_one_file(run: Cloze, way: Way) -> None:
    result = run("evaluate", "classify", way.text, way.text, "--model", way.pretrained)
    assert result.code == 2
    assert "classify takes one file or folder, not 2; only mlm accepts several texts" in result.err


def test_half_the_room(run: Cloze, way: Way, tmp_path: Path) -> None:
    for name, flags in (("whole", ()), ("half", ("--half",))):
        assert run("convert", way.pretrained, tmp_path / name, *flags).code == 0
    whole, half = ((tmp_path / name / "model.safetensors").stat().st_size for name in ("whole", "half"))
    assert 0.45 < half / whole < 0.55
    assert load_folder(tmp_path / "half").model.head_names == ("mlm", "nsp")


def test_a_run_lends_its_vocabulary(run: Cloze, way: Way, tmp_path: Path) -> None:
    words = ("prepare", way.text, "--vocab", way.pretrained, "--out", tmp_path / "data", "--held-out", 0.2)
    assert run(*words).code == 0
    assert (
        run(
            "pretrain", tmp_path / "data", *SMALL, "--steps", 2, "--model", way.pretrained, "--out", tmp_path / "run"
        ).code
        == 0
    )
