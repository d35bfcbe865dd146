"""``cloze classify``."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from cloze.cli.console import Engine, print_json, print_table
from cloze.cli.inputs import Inputs, gather_texts
from cloze.cli.outputs import beside
from cloze.cli.streaming import Answer, ask
from cloze.errors import ConfigError
from cloze.models import SHIPPED_MODEL

if TYPE_CHECKING:
    from cloze.predict import Model

Texts = Annotated[list[str] | None, Parameter(help="Texts; standard input, a line each, if none are given.")]
Place = Annotated[Engine, Parameter(name="*")]
HERE = Engine()


def classify(
    texts: Texts = None,
    /,
    *,
    model: str = SHIPPED_MODEL,
    input: Path | None = None,  # noqa: A002 (the flag's name is fixed)
    output: Path | None = None,
    text: str = "text",
    pair: str | None = None,
    fresh: bool = False,
    json: bool = False,
    machine: Place = HERE,
) -> None:
    """Label texts with a fine-tuned model; one that was trained on numbers gives numbers.

    Args:
        model: A fine-tuned model folder or run, or a hub name.
        input: A file: a text a line, or CSV, TSV, JSONL or Parquet; its columns are kept in the output.
        output: Where to write the rows: .jsonl, .csv or .tsv; if it was stopped, the same command goes on.
        text: The column with the texts.
        pair: The column with second texts, if there are any; with texts as arguments, the second text itself.
        fresh: Begin anew in place of going on.
        json: Print JSON.
    """
    given: Sequence[str] | Inputs | None = texts
    if pair is not None and input is None:
        given = with_pair(gather_texts(texts, input), pair)
    settings, load, say = {"every_label": json}, partial(machine.load, model), partial(_answers, every_label=json)
    asked = ask(given, input, output, load, say, text=text, pair=pair, settings=settings, fresh=fresh, json=json)
    if asked is None:
        return
    inputs, answers = asked
    if json:
        for row in beside(inputs.kept, answers):
            print_json(row)
    else:
        header = tuple(answers[0]) if answers else ("label",)
        shown = [
            (*(_shown(answer[name]) for name in header), one[:80])
            for answer, one in zip(answers, inputs.texts, strict=True)
        ]
        print_table((*header, "text"), shown)


def with_pair(inputs: Inputs, pair: str) -> Inputs:
    """The one text that was given by itself, and the second text that belongs to it."""
    if len(inputs.texts) != 1:
        raise ConfigError(f"--pair with {len(inputs.texts)} texts; give one text, or --input with a column of pairs")
    return replace(inputs, pairs=[pair])


def _answers(model: "Model", inputs: Inputs, every_label: bool) -> list[Answer]:
    """What the model's head says to each text: a number, or a label with its probability."""
    if model.task is not None and model.task.kind == "multilabel":
        return [
            {"labels": "|".join(one.labels)} | ({"probabilities": dict(one.probabilities)} if every_label else {})
            for one in model.classify_all(inputs.texts, inputs.pairs)
        ]
    if model.task is not None and model.task.kind == "regress":
        return [{"value": float(value)} for value in model.regress(inputs.texts, inputs.pairs)]
    return [
        {"label": one.label, "probability": one.probability}
        | ({"probabilities": dict(one.probabilities)} if every_label else {})
        for one in model.classify(inputs.texts, inputs.pairs)
    ]


def _shown(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
