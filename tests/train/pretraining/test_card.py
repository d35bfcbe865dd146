"""The command in a model card parses to the settings that the model was trained with."""

import shlex
from pathlib import Path

import pytest

from cloze.cli import build
from cloze.train.pretraining.pretrain import pretrain, pretraining_command
from cloze.train.settings import PretrainSettings, read_recipe

WAYS = {
    "defaults": PretrainSettings(),
    "numbers": PretrainSettings(
        preset="tiny",
        hours=0.25,
        batch_size=6,
        accumulate=2,
        max_length=16,
        long_length=48,
        long_share=1 / 3,
        learning_rate=1e-3,
        warmup=0.123456789,
        dropout=0.0,
        mask_rate=0.2,
        mask_mix=(1.0, 0.0, 0.0),
        static=3,
        seed=7,
    ),
    "switches": PretrainSettings(
        steps=9, masking="span", boundary=True, checkpointing=True, tensorboard=True, precision="bf16", parallel="fsdp"
    ),
    "files": PretrainSettings(masking="correction", similar=Path("Sam's similar words.tsv")),
    "recipe": PretrainSettings(**read_recipe("albert"), steps=5),
}


def read_back(line: str) -> tuple[PretrainSettings, str | None]:
    """Return the settings that the command line parses from a shell command."""
    program, command, *words = shlex.split(line)
    assert program == "cloze"
    _, bound, _ = build(command).parse_args(words, exit_on_error=False, print_error=False)
    assert [str(bound.args[0]), str(bound.arguments["out"])] == ["DATA", "RUN"]
    return bound.arguments.get("settings", PretrainSettings()), bound.arguments.get("model")


@pytest.mark.parametrize("name", WAYS)
def test_command_is_read_back_as_the_same_settings(name: str) -> None:
    assert read_back(pretraining_command(WAYS[name])) == (WAYS[name], None)
    assert read_back(pretraining_command(WAYS[name], "runs/my model")) == (WAYS[name], "runs/my model")


def test_command_contains_only_non_default_values() -> None:
    assert pretraining_command(PretrainSettings()) == "cloze pretrain DATA --out RUN"
    settings = PretrainSettings(steps=20, mask_mix=(1.0, 0.0, 0.0), masking="correction", similar=Path("a b.tsv"))
    assert pretraining_command(settings) == (
        "cloze pretrain DATA --out RUN --steps 20 --masking correction --mask-mix 1.0 0.0 0.0 --similar 'a b.tsv'"
    )


def test_card_has_the_command_that_made_the_model(data: Path, base: Path, tmp_path: Path) -> None:
    settings = PretrainSettings(steps=1, batch_size=4, max_length=24, precision="fp32")
    run = pretrain(data, tmp_path / "run", model=base, settings=settings)
    card = (run / "model" / "README.md").read_text(encoding="utf-8")
    (line,) = [line for line in card.splitlines() if line.startswith("cloze ")]
    assert f"```console\n{line}\n```\n" in card
    assert read_back(line) == (settings, str(base))
