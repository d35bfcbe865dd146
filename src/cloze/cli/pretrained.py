"""Commands that use the heads of pre-training: ``cloze fill``, ``score`` and ``follows``.

Each command is a signature with its help and a ``Prediction`` (see ``jobs``) with its settings and steps.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from cloze.cli.console import print_table
from cloze.cli.inputs import Inputs, read_arguments
from cloze.cli.jobs import (
    OPTIONS,
    SHOWN,
    TABLE_OPTIONS,
    Options,
    PairOptions,
    Row,
    TextPrediction,
    Texts,
    run_prediction,
)
from cloze.errors import ConfigError

if TYPE_CHECKING:
    from cloze.predict import Filled, FilledTogether, Model
    from cloze.predict import Score as ScoredText


@dataclass(frozen=True)
class Fill(TextPrediction["list[list[Filled]] | list[FilledTogether]"]):
    """Candidates for the ``[MASK]`` blanks of texts: for each blank, or for all blanks of a text together."""

    top: int = 5
    joint: bool = False
    rounds: int | None = None

    def __post_init__(self) -> None:
        if self.rounds is not None and not self.joint:
            raise ConfigError("--rounds is for --joint; without it each blank is predicted once")

    def predict(self, model: "Model", part: Inputs) -> "list[list[list[Filled]]] | list[list[FilledTogether]]":
        """Fill the blanks of each text."""
        if not self.joint:
            return model.fill_all(part.texts, self.top)
        rounds = {} if self.rounds is None else {"rounds": self.rounds}
        return [model.fill_together(text, self.top, **rounds) for text in part.texts]

    def to_row(self, result: "list[list[Filled]] | list[FilledTogether]") -> Row:
        """Return the candidates per blank, or the joint fillings."""
        if self.joint:
            return {"ways": [dict(vars(filling)) for filling in result]}
        return {"blanks": [[word._asdict() for word in blank] for blank in result]}  # type: ignore[union-attr]

    def print_table(self, model: "Model", part: Inputs, results: Sequence[object]) -> None:  # noqa: ARG002
        """Print a table per blank, or per text with ``--joint``."""
        for row in self.to_json(part, results):  # type: ignore[arg-type]
            if self.joint:
                fillings = [(filling["text"], f"{filling['log_probability']:.3f}") for filling in row["ways"]]
                print_table((row["text"], "log-probability"), fillings)
                continue
            for number, blank in enumerate(row["blanks"], start=1):
                title = row["text"] if len(row["blanks"]) == 1 else f"{row['text']}  (blank {number})"
                print_table((title, "probability"), [(word["token"], f"{word['probability']:.4f}") for word in blank])


def fill(
    texts: Texts = None,
    /,
    *,
    top: int = Fill.top,
    joint: bool = Fill.joint,
    rounds: int | None = Fill.rounds,
    text: str = Fill.text,
    options: Options = OPTIONS,
) -> None:
    """Predict the most likely words for each [MASK] of a text.

    Args:
        top: Candidates per blank; with --joint, fillings per text.
        joint: Fill the blanks of a text together, so that the words fit each other.
        rounds: With --joint: how often each blank is predicted again once all are filled; 2 by default.
        text: The column with the texts.
    """
    command = Fill(text=text, top=top, joint=joint, rounds=rounds)
    run_prediction(command, read_arguments(texts, options.input), options)


@dataclass(frozen=True)
class Score(TextPrediction["ScoredText"]):
    """Pseudo-log-likelihood of texts (Salazar et al. 2020)."""

    tokens: bool = False

    def predict(self, model: "Model", part: Inputs) -> "list[ScoredText]":
        """Score each text."""
        return model.score(part.texts)

    def to_row(self, result: "ScoredText") -> Row:
        """Return the sum and the perplexity, and with ``--tokens`` each token's log-probability."""
        row: Row = {"log_probability": result.total, "perplexity": result.perplexity}
        if self.tokens:
            row["tokens"] = [list(pair) for pair in zip(result.tokens, result.log_probabilities, strict=True)]
        return row

    def print_table(self, model: "Model", part: Inputs, results: "Sequence[ScoredText]") -> None:  # noqa: ARG002
        """Print a row per text, and with ``--tokens`` a table per text."""
        rows = [
            (f"{score.total:.2f}", f"{score.perplexity:.2f}", len(score.tokens), text[:SHOWN])
            for text, score in zip(part.texts, results, strict=True)
        ]
        print_table(("log-probability", "perplexity", "tokens", "text"), rows)
        for text, score in zip(part.texts, results, strict=True) if self.tokens else ():
            tokens = zip(score.tokens, score.log_probabilities, strict=True)
            print_table((text[:SHOWN], "log-probability"), [(token, f"{value:.3f}") for token, value in tokens])


def score(
    texts: Texts = None,
    /,
    *,
    text: str = Score.text,
    tokens: bool = Score.tokens,
    options: Options = OPTIONS,
) -> None:
    """Score how likely texts are: each token is masked in turn, and its log-probability is summed.

    Args:
        text: The column with the texts.
        tokens: Also show the log-probability of every token.
    """
    run_prediction(Score(text=text, tokens=tokens), read_arguments(texts, options.input), options)


@dataclass(frozen=True)
class Follows(TextPrediction[float]):
    """Next sentence prediction for pairs of texts."""

    text: str = "first"
    pair: str = "second"

    def predict(self, model: "Model", part: Inputs) -> list[float]:
        """Return the probability that each second text follows the first."""
        return model.follows_all(part.texts, part.pairs or [])

    def to_row(self, result: float) -> Row:
        """Return the probability."""
        return {"probability": result}

    def to_json(self, part: Inputs, results: Sequence[float]) -> Iterable[Row]:
        """Return both texts with the probability."""
        for first, second, result in zip(part.texts, part.pairs or [], results, strict=True):
            yield {"first": first, "second": second, **self.to_row(result)}

    def print_table(self, model: "Model", part: Inputs, results: Sequence[float]) -> None:  # noqa: ARG002
        """Print a probability per line."""
        for result in results:
            print(f"{result:.4f}")


def follows(
    first: Annotated[str | None, Parameter(help="The first text.")] = None,
    second: Annotated[str | None, Parameter(help="The text that may follow it.")] = None,
    /,
    *,
    text: str = Follows.text,
    pair: str = Follows.pair,
    options: PairOptions = TABLE_OPTIONS,
) -> None:
    """Predict how likely the second text follows the first (next sentence prediction).

    Args:
        text: The column with the first texts.
        pair: The column with the texts that may follow.
    """
    if (first is None) != (second is None) or (first is None) == (options.input is None):
        raise ConfigError("two texts were expected: cloze follows FIRST SECOND; or --input FILE with one pair per row")
    arguments = None
    if first is not None and second is not None:
        arguments = Inputs([first], [second], [{"first": first, "second": second}])
    run_prediction(Follows(text, pair), arguments, options)
