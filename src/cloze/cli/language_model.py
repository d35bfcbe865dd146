"""``cloze fill``, ``score``, ``generate`` and ``follows``: predictions of pre-training heads.

Each command consists of a function with its help and a ``Prediction`` (see ``jobs``) with its settings and steps.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from cyclopts import Parameter

from cloze.cli.console import format_figure, print_table, shorten
from cloze.cli.inputs import Inputs, Texts, read_arguments
from cloze.cli.jobs import OPTIONS, TABLE_OPTIONS, Options, PairOptions, Row, TextPrediction, run_prediction
from cloze.errors import ConfigError

if TYPE_CHECKING:
    from cloze.predict import Filled, FilledTogether, Generated, Model
    from cloze.predict import Score as ScoredText


@dataclass(frozen=True)
class Fill(TextPrediction["list[list[Filled]] | list[FilledTogether]"]):
    """Candidates for the ``[MASK]`` blanks of texts, independently or jointly."""

    top: int = 5
    joint: bool = False
    rounds: int | None = None

    def __post_init__(self) -> None:
        if self.rounds is not None and not self.joint:
            raise ConfigError("--rounds only applies to --joint; without it, each blank is predicted once")

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
    """Predict the most likely words for each [MASK] in a text.

    Args:
        texts: Texts with [MASK] in place of words; by default, the lines of standard input.
        top: Number of candidates per blank; with --joint, number of fillings per text.
        joint: Fill the blanks of a text jointly, so that the words fit each other.
        rounds: With --joint: how many times each blank is predicted again after all are filled; 2 by default.
        text: The column with the texts.
    """
    command = Fill(text=text, top=top, joint=joint, rounds=rounds)
    run_prediction(command, read_arguments(texts, options.input), options)


@dataclass(frozen=True)
class Score(TextPrediction["ScoredText"]):
    """Log-likelihood of texts; of masked models, the pseudo-log-likelihood (Salazar et al. 2020)."""

    tokens: bool = False

    def predict(self, model: "Model", part: Inputs) -> "list[ScoredText]":
        """Score each text."""
        return model.score(part.texts)

    def to_row(self, result: "ScoredText") -> Row:
        """Return the scores of a text and, with ``--tokens``, the log-probability of each token."""
        row: Row = {
            "log_probability": result.total,
            "perplexity": result.perplexity,
            "loss_per_word": result.loss_per_word,
            "loss_per_character": result.loss_per_character,
        }
        if self.tokens:
            row["tokens"] = [list(pair) for pair in zip(result.tokens, result.log_probabilities, strict=True)]
        return row

    def print_table(self, model: "Model", part: Inputs, results: "Sequence[ScoredText]") -> None:  # noqa: ARG002
        """Print one row per text and, with ``--tokens``, one table per text."""
        rows = [
            (
                f"{score.total:.2f}",
                format_figure(score.perplexity, 2),
                format_figure(score.loss_per_word, 3),
                format_figure(score.loss_per_character, 3),
                len(score.tokens),
                shorten(text),
            )
            for text, score in zip(part.texts, results, strict=True)
        ]
        print_table(("log-probability", "perplexity", "per word", "per character", "tokens", "text"), rows)
        for text, score in zip(part.texts, results, strict=True) if self.tokens else ():
            tokens = zip(score.tokens, score.log_probabilities, strict=True)
            print_table((shorten(text), "log-probability"), [(token, f"{value:.3f}") for token, value in tokens])


def score(
    texts: Texts = None, /, *, text: str = Score.text, tokens: bool = Score.tokens, options: Options = OPTIONS
) -> None:
    """Score how likely texts are: the sum of the log-probabilities of their tokens.

    A masked language model predicts each token from all others (pseudo-log-likelihood), a left-to-right model from
    those before it (log-likelihood).

    Args:
        texts: Texts to score; by default, the lines of standard input.
        text: The column with the texts.
        tokens: Show the log-probability of every token as well.
    """
    run_prediction(Score(text=text, tokens=tokens), read_arguments(texts, options.input), options)


@dataclass(frozen=True)
class Generate(TextPrediction["list[Generated]"]):
    """Continuations of texts by a left-to-right model."""

    slow: ClassVar[bool] = True

    tokens: int = 40
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    samples: int = 1
    seed: int = 0

    def predict(self, model: "Model", part: Inputs) -> "list[list[Generated]]":
        """Continue each text."""
        return model.generate_all(
            part.texts,
            self.tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            samples=self.samples,
            seed=self.seed,
        )

    def to_row(self, result: "list[Generated]") -> Row:
        """Return the continuation; with ``--samples``, also all of them."""
        first = result[0]
        row: Row = {
            "continuation": first.continuation,
            "log_probability": first.log_probability,
            "tokens": len(first.tokens),
            "ended": first.ended,
        }
        return row if self.samples == 1 else row | {"continuations": [one.continuation for one in result]}

    def print_table(self, model: "Model", part: Inputs, results: "Sequence[list[Generated]]") -> None:  # noqa: ARG002
        """Print every continued text, with a blank line between the texts."""
        for number, continuations in enumerate(results):
            if number:
                print()
            for one in continuations:
                print(one.text)


def generate(
    texts: Texts = None,
    /,
    *,
    tokens: int = Generate.tokens,
    temperature: float = Generate.temperature,
    top_k: int | None = Generate.top_k,
    top_p: float | None = Generate.top_p,
    samples: int = Generate.samples,
    seed: int = Generate.seed,
    text: str = Generate.text,
    options: Options = OPTIONS,
) -> None:
    """Continue texts with a left-to-right model, trained with 'cloze pretrain --recipe gpt' or elmo.

    Args:
        texts: Beginnings of texts; by default, the lines of standard input.
        tokens: Maximum number of tokens to add; the text also ends where the model predicts an end.
        temperature: Divides the logits: below 1, probable tokens become more probable; 0 always takes the most
            probable token.
        top_k: Sample only from this many most probable tokens.
        top_p: Sample only from the most probable tokens whose probabilities add up to this, such as 0.9.
        samples: Number of continuations per text.
        seed: Random seed.
        text: The column with the texts.
    """
    command = Generate(
        text=text,
        tokens=tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        samples=samples,
        seed=seed,
    )
    run_prediction(command, read_arguments(texts, options.input), options)


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
    """Predict how likely it is that the second text follows the first (next sentence prediction).

    Args:
        text: The column with the first texts.
        pair: The column with the texts that may follow.
    """
    if (first is None) != (second is None) or (first is None) == (options.input is None):
        raise ConfigError("expected two texts: cloze follows FIRST SECOND; or --input FILE with one pair per row")
    arguments = None
    if first is not None and second is not None:
        arguments = Inputs([first], [second], [{"first": first, "second": second}])
    run_prediction(Follows(text, pair), arguments, options)
