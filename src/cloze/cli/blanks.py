"""``cloze fill``, ``follows`` and ``score``: what a model of masked words says of texts."""

from pathlib import Path
from typing import TYPE_CHECKING

from cloze.cli.console import print_json, print_table
from cloze.cli.inputs import gather_texts
from cloze.cli.predictions import HERE, Place, Texts
from cloze.errors import ConfigError
from cloze.models import SHIPPED_MODEL

if TYPE_CHECKING:
    from cloze.predict import Filled, FilledTogether


def fill(
    texts: Texts = None,
    /,
    *,
    model: str = SHIPPED_MODEL,
    top: int = 5,
    joint: bool = False,
    rounds: int | None = None,
    input: Path | None = None,  # noqa: A002 (the flag's name is fixed)
    json: bool = False,
    machine: Place = HERE,
) -> None:
    """Fill each [MASK] of a text with the words that fit best.

    Args:
        model: A model folder with the head of pre-training, or a hub name.
        top: Words for each blank; with --joint, ways to fill all of them.
        joint: Fill the blanks of a text together, so that the words fit each other.
        rounds: With --joint: how often each blank is asked again once all are filled; 2 if left out.
        input: A file with a text a line.
        json: Print JSON.
    """
    if rounds is not None and not joint:
        raise ConfigError("--rounds is for --joint; without it every blank is asked once")
    texts = gather_texts(texts, input).texts
    loaded = machine.load(model)
    if joint:
        asked = {} if rounds is None else {"rounds": rounds}
        for text in texts:
            _print_ways(text, loaded.fill_together(text, top, **asked), json)
        return
    for text, blanks in zip(texts, loaded.fill_all(texts, top), strict=True):
        _print_blanks(text, blanks, json)


def _print_blanks(text: str, blanks: "list[list[Filled]]", json: bool) -> None:
    if json:
        print_json({"text": text, "blanks": [[word._asdict() for word in blank] for blank in blanks]})
        return
    for number, blank in enumerate(blanks, start=1):
        title = text if len(blanks) == 1 else f"{text}  (blank {number})"
        print_table((title, "probability"), [(word.token, f"{word.probability:.4f}") for word in blank])


def _print_ways(text: str, ways: "list[FilledTogether]", json: bool) -> None:
    if json:
        told = [{"tokens": way.tokens, "log_probability": way.log_probability, "text": way.text} for way in ways]
        print_json({"text": text, "ways": told})
    else:
        print_table((text, "log-probability"), [(way.text, f"{way.log_probability:.3f}") for way in ways])


def follows(
    first: str, second: str, /, *, model: str = SHIPPED_MODEL, json: bool = False, machine: Place = HERE
) -> None:
    """Say how likely the second text follows the first.

    Args:
        first: The text before.
        second: The text that may follow.
        model: A model folder with the head of pre-training, or a hub name.
        json: Print JSON.
    """
    probability = machine.load(model).follows(first, second)
    if json:
        print_json({"first": first, "second": second, "probability": probability})
    else:
        print(f"{probability:.4f}")


def score(
    texts: Texts = None,
    /,
    *,
    model: str = SHIPPED_MODEL,
    input: Path | None = None,  # noqa: A002 (the flag's name is fixed)
    tokens: bool = False,
    json: bool = False,
    machine: Place = HERE,
) -> None:
    """Say how likely texts are: each token is hidden in turn, and its probability read off.

    Args:
        model: A model folder with the head of pre-training, or a hub name.
        input: A file with a text a line.
        tokens: Show every token's log-probability.
        json: Print JSON.
    """
    texts = gather_texts(texts, input).texts
    scores = machine.load(model).score(texts)
    if json:
        for one in scores:
            told = {"text": one.text, "log_probability": one.total, "perplexity": one.perplexity}
            each = [list(pair) for pair in zip(one.tokens, one.log_probabilities, strict=True)]
            print_json(told | ({"tokens": each} if tokens else {}))
        return
    rows = [(f"{one.total:.2f}", f"{one.perplexity:.2f}", len(one.tokens), one.text[:80]) for one in scores]
    print_table(("log-probability", "perplexity", "tokens", "text"), rows)
    for one in scores if tokens else ():
        pairs = zip(one.tokens, one.log_probabilities, strict=True)
        print_table((one.text[:80], "log-probability"), [(token, f"{value:.3f}") for token, value in pairs])
