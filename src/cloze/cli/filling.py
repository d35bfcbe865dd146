"""``cloze fill``, ``follows`` and ``score``: what a model of masked words says of texts."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from cloze.cli.classifying import HERE, Place, Texts
from cloze.cli.console import print_json, print_table
from cloze.cli.inputs import Inputs
from cloze.cli.streaming import Answer, ask
from cloze.errors import ConfigError
from cloze.models import SHIPPED_MODEL

if TYPE_CHECKING:
    from cloze.predict import Model, Score


def fill(
    texts: Texts = None,
    /,
    *,
    model: str = SHIPPED_MODEL,
    top: int = 5,
    joint: bool = False,
    rounds: int | None = None,
    input: Path | None = None,  # noqa: A002 (the flag's name is fixed)
    output: Path | None = None,
    text: str = "text",
    fresh: bool = False,
    json: bool = False,
    machine: Place = HERE,
) -> None:
    """Fill each [MASK] of a text with the words that fit best.

    Args:
        model: A model folder with the head of pre-training, or a hub name.
        top: Words for each blank; with --joint, ways to fill all of them.
        joint: Fill the blanks of a text together, so that the words fit each other.
        rounds: With --joint: how often each blank is asked again once all are filled; 2 if left out.
        input: A file: a text a line, or CSV, TSV, JSONL or Parquet; its columns are kept in the output.
        output: Where to write the rows: .jsonl, .csv or .tsv; if it was stopped, the same command goes on.
        text: The column with the texts.
        fresh: Begin anew in place of going on.
        json: Print JSON.
    """
    if rounds is not None and not joint:
        raise ConfigError("--rounds is for --joint; without it every blank is asked once")

    def say(loaded: "Model", inputs: Inputs) -> list[Answer]:
        if joint:
            return [_ways(loaded, one, top, rounds) for one in inputs.texts]
        found = loaded.fill_all(inputs.texts, top)
        return [{"blanks": [[word._asdict() for word in blank] for blank in blanks]} for blanks in found]

    settings = {"top": top, "joint": joint, "rounds": rounds}
    load = partial(machine.load, model)
    asked = ask(texts, input, output, load, say, text=text, settings=settings, fresh=fresh, json=json)
    for one, answer in _each(asked):
        if json:
            print_json({"text": one, **answer})
        elif joint:
            rows = [(way["text"], f"{way['log_probability']:.3f}") for way in answer["ways"]]
            print_table((one, "log-probability"), rows)
        else:
            _print_blanks(one, answer["blanks"])


def _each(asked: tuple[Inputs, list[Answer]] | None) -> list[tuple[str, Answer]]:
    """Each text with its answer; nothing if they are in a file."""
    return [] if asked is None else list(zip(asked[0].texts, asked[1], strict=True))


def _ways(model: "Model", text: str, top: int, rounds: int | None) -> Answer:
    found = model.fill_together(text, top) if rounds is None else model.fill_together(text, top, rounds)
    return {"ways": [{"tokens": w.tokens, "log_probability": w.log_probability, "text": w.text} for w in found]}


def _print_blanks(text: str, blanks: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    for number, blank in enumerate(blanks, start=1):
        title = text if len(blanks) == 1 else f"{text}  (blank {number})"
        print_table((title, "probability"), [(word["token"], f"{word['probability']:.4f}") for word in blank])


def follows(
    first: Annotated[str | None, Parameter(help="The text before.")] = None,
    second: Annotated[str | None, Parameter(help="The text that may follow.")] = None,
    /,
    *,
    model: str = SHIPPED_MODEL,
    input: Path | None = None,  # noqa: A002 (the flag's name is fixed)
    output: Path | None = None,
    text: str = "first",
    pair: str = "second",
    fresh: bool = False,
    json: bool = False,
    machine: Place = HERE,
) -> None:
    """Say how likely the second text follows the first.

    Args:
        model: A model folder with the head of pre-training, or a hub name.
        input: A CSV, TSV, JSONL or Parquet file with a pair a row; its columns are kept in the output.
        output: Where to write the rows: .jsonl, .csv or .tsv; if it was stopped, the same command goes on.
        text: The column with the texts before.
        pair: The column with the texts that may follow.
        fresh: Begin anew in place of going on.
        json: Print JSON.
    """
    if (first is None) != (second is None) or (first is None) == (input is None):
        raise ConfigError("two texts were expected, cloze follows FIRST SECOND; or --input FILE with a pair a row")

    def say(loaded: "Model", inputs: Inputs) -> list[Answer]:
        return [{"probability": one} for one in loaded.follows_all(inputs.texts, inputs.pairs or [])]

    given = None
    if first is not None and second is not None:
        given = Inputs([first], [second], [{"first": first, "second": second}])
    load = partial(machine.load, model)
    asked = ask(given, input, output, load, say, text=text, pair=pair, settings={}, fresh=fresh, json=json)
    seconds = (asked[0].pairs or []) if asked else []
    for (one, answer), other in zip(_each(asked), seconds, strict=True):
        if json:
            print_json({"first": one, "second": other, **answer})
        else:
            print(f"{answer['probability']:.4f}")


def score(
    texts: Texts = None,
    /,
    *,
    model: str = SHIPPED_MODEL,
    input: Path | None = None,  # noqa: A002 (the flag's name is fixed)
    output: Path | None = None,
    text: str = "text",
    tokens: bool = False,
    fresh: bool = False,
    json: bool = False,
    machine: Place = HERE,
) -> None:
    """Say how likely texts are: each token is hidden in turn, and its probability read off.

    Args:
        model: A model folder with the head of pre-training, or a hub name.
        input: A file: a text a line, or CSV, TSV, JSONL or Parquet; its columns are kept in the output.
        output: Where to write the rows: .jsonl, .csv or .tsv; if it was stopped, the same command goes on.
        text: The column with the texts.
        tokens: Show every token's log-probability.
        fresh: Begin anew in place of going on.
        json: Print JSON.
    """

    def say(loaded: "Model", inputs: Inputs) -> list[Answer]:
        each = tokens or (output is None and not json)  # a table tells how many they are
        return [_scored(one, each=each) for one in loaded.score(inputs.texts)]

    load, settings = partial(machine.load, model), {"tokens": tokens}
    asked = ask(texts, input, output, load, say, text=text, settings=settings, fresh=fresh, json=json)
    if json:
        for one, answer in _each(asked):
            print_json({"text": one, **answer})
    elif asked is not None:
        _print_scores(_each(asked), tokens=tokens)


def _scored(score: "Score", *, each: bool) -> Answer:
    found: Answer = {"log_probability": score.total, "perplexity": score.perplexity}
    if each:
        found["tokens"] = [list(pair) for pair in zip(score.tokens, score.log_probabilities, strict=True)]
    return found


def _print_scores(asked: Sequence[tuple[str, Answer]], *, tokens: bool) -> None:
    rows = [
        (f"{one['log_probability']:.2f}", f"{one['perplexity']:.2f}", len(one["tokens"]), text[:80])
        for text, one in asked
    ]
    print_table(("log-probability", "perplexity", "tokens", "text"), rows)
    for text, one in asked if tokens else ():
        print_table((text[:80], "log-probability"), [(token, f"{value:.3f}") for token, value in one["tokens"]])
