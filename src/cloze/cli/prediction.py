"""``cloze classify``, ``answer`` and ``choose``: predictions of fine-tuned heads.

Each command consists of a function with its help and a ``Prediction`` (see ``jobs``) with its settings and steps.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from cyclopts import Parameter

from cloze.cli.console import format_cell, join_cell, print_table, shorten
from cloze.cli.inputs import TEXT_COLUMN, Inputs, Texts, read_arguments, split_parts, with_pair
from cloze.cli.jobs import OPTIONS, TABLE_OPTIONS, Options, PairOptions, Prediction, Row, TextPrediction, run_prediction
from cloze.errors import ConfigError

if TYPE_CHECKING:
    from cloze.predict import Answer, Model, Option
    from cloze.tasks.choice.kind import Choice


@dataclass(frozen=True)
class Classify(TextPrediction[Row]):
    """The label, labels or number of each text, depending on the model."""

    every_label: bool = False  # whether to include the probability of every label
    no_abstain: bool = False

    def predict(self, model: "Model", part: Inputs) -> list[Row]:
        """Return the label with its probability, the labels, or the number of each text."""
        return [
            {
                name: join_cell(value)
                for name, value in row.items()
                if self.every_label or not isinstance(value, Mapping)
            }
            for row in model.predict_rows(part.texts, part.pairs, abstain=not self.no_abstain)
        ]

    def to_row(self, result: Row) -> Row:
        """Return the result unchanged."""
        return result

    def to_json(self, part: Inputs, results: Sequence[Row]) -> Iterable[Row]:
        """Return the columns of each row with its result."""
        return Prediction.to_json(self, part, results)

    def print_table(self, model: "Model", part: Inputs, results: Sequence[Row]) -> None:  # noqa: ARG002
        """Print a row per text."""
        header = tuple(results[0]) if results else ("label",)
        rows = [
            (*(format_cell(result[name]) for name in header), shorten(text))
            for result, text in zip(results, part.texts, strict=True)
        ]
        print_table((*header, "text"), rows)


def classify(
    texts: Texts = None,
    /,
    *,
    text: str = Classify.text,
    pair: str | None = Classify.pair,
    no_abstain: bool = Classify.no_abstain,
    options: Options = OPTIONS,
) -> None:
    """Classify texts with a fine-tuned model; a regression model predicts numbers.

    Args:
        texts: Texts to classify; by default, the lines of standard input.
        text: The column with the texts.
        pair: The column with the second texts of pairs; with texts as arguments, the second text itself.
        no_abstain: Give every text a label, even below the threshold of 'cloze evaluate --abstain-at'.
    """
    arguments = with_pair(read_arguments(texts, options.input), pair)
    command = Classify(text, pair if arguments is None else None, every_label=options.json, no_abstain=no_abstain)
    run_prediction(command, arguments, options)


@dataclass(frozen=True)
class FindAnswers(TextPrediction["list[Answer]"]):
    """Extractive question answering: spans of the contexts."""

    slow: ClassVar[bool] = True

    text: str = "question"
    pair: str = "context"
    top: int = 1
    longest_answer: int | None = None

    def predict(self, model: "Model", part: Inputs) -> "list[list[Answer]]":
        """Return the best answers to each question."""
        return model.answer_all(part.texts, part.pairs or [], self.top, self.longest_answer)

    def to_row(self, result: "list[Answer]") -> Row:
        """Return the best answer; with ``--top``, also all of them."""
        best = result[0]
        row: Row = {"answer": best.text, "start": best.start, "end": best.end, "probability": best.probability}
        return row if self.top == 1 else row | {"answers": [dict(vars(answer)) for answer in result]}

    def to_json(self, part: Inputs, results: "Sequence[list[Answer]]") -> Iterable[Row]:
        """Return each question and context with the answers."""
        for question, context, answers in zip(part.texts, part.pairs or [], results, strict=True):
            yield {"question": question, "context": context, "answers": [vars(answer) for answer in answers]}

    def print_table(self, model: "Model", part: Inputs, results: "Sequence[list[Answer]]") -> None:  # noqa: ARG002
        """Print a row per answer."""
        rows = [
            (answer.text or "(none)", f"{answer.probability:.4f}", f"{answer.start}-{answer.end}", shorten(question))
            for question, answers in zip(part.texts, results, strict=True)
            for answer in answers
        ]
        print_table(("answer", "probability", "characters", "question"), rows)


def answer(
    question: Annotated[str | None, Parameter(help="The question.")] = None,
    contexts: Annotated[list[str] | None, Parameter(help="Texts that may contain the answer.")] = None,
    /,
    *,
    top: int = FindAnswers.top,
    longest_answer: int | None = FindAnswers.longest_answer,
    text: str = FindAnswers.text,
    pair: str = FindAnswers.pair,
    options: PairOptions = TABLE_OPTIONS,
) -> None:
    """Find the answer to a question in a text; with several texts, in each of them.

    Args:
        top: Number of answers per question; if above 1, an output file also gets a column that lists all of them.
        longest_answer: Maximum answer length in tokens; by default, as the model was fine-tuned, or 30.
        text: The column with the questions.
        pair: The column with the texts that may contain the answers.
    """
    command = FindAnswers(text, pair, top, longest_answer)
    run_prediction(command, _read_questions(question, contexts, options.input), options)


def _read_questions(question: str | None, contexts: Sequence[str] | None, path: Path | None) -> Inputs | None:
    if path is not None:
        return read_arguments([question] if question else None, path)
    if question is None or not contexts:
        raise ConfigError("expected a question and a text: cloze answer QUESTION CONTEXT; or --input FILE")
    rows: list[Mapping[str, object]] = [{"question": question, "context": context} for context in contexts]
    return Inputs([question] * len(contexts), list(contexts), rows)


@dataclass(frozen=True)
class Prompts:
    """Prompts, the options of each, and the columns of their rows."""

    texts: Sequence[str]
    options: Sequence[Sequence[str]]
    fields: Sequence[Mapping[str, object]] = ()

    @property
    def kept(self) -> Sequence[Mapping[str, object]]:
        """Return the columns to write next to each choice."""
        rows = zip(self.texts, self.options, strict=True)
        return self.fields or [{"prompt": prompt, "options": "|".join(options)} for prompt, options in rows]


@dataclass(frozen=True)
class Choose(Prediction[Prompts, "list[Option]"]):
    """Multiple choice: the options of each prompt, ranked."""

    column_settings: ClassVar[tuple[str, ...]] = ("text", "options")

    text: str = TEXT_COLUMN
    options: str = "options"

    def read_file(self, path: Path) -> Prompts:
        """Read a whole file."""
        from cloze.tasks.choice.kind import each_unlabelled_choice

        return self._collect(list(each_unlabelled_choice(path, self.text, self.options)))

    def read_parts(self, model: "Model", path: Path, rows: int) -> Iterator[Prompts]:  # noqa: ARG002
        """Read a file, ``rows`` rows at a time."""
        from cloze.tasks.choice.kind import each_unlabelled_choice

        return map(self._collect, split_parts(each_unlabelled_choice(path, self.text, self.options), rows))

    def predict(self, model: "Model", part: Prompts) -> "list[list[Option]]":
        """Rank the options of each prompt."""
        return model.choose_all(part.texts, part.options)

    def to_row(self, result: "list[Option]") -> Row:
        """Return the best option."""
        best = result[0]
        return {"choice": best.text, "index": best.index, "probability": best.probability}

    def to_json(self, part: Prompts, results: "Sequence[list[Option]]") -> Iterable[Row]:
        """Return each prompt with its ranked options."""
        for prompt, ranked in zip(part.texts, results, strict=True):
            yield {"prompt": prompt, "options": [vars(option) for option in ranked]}

    def print_table(self, model: "Model", part: Prompts, results: "Sequence[list[Option]]") -> None:  # noqa: ARG002
        """Print the best option of each prompt, or all options of a single prompt."""
        rows = [
            (option.text, option.index, f"{option.probability:.4f}", shorten(prompt))
            for prompt, ranked in zip(part.texts, results, strict=True)
            for option in (ranked if len(part.texts) == 1 else ranked[:1])
        ]
        print_table(("option", "index", "probability", "prompt"), rows)

    @staticmethod
    def _collect(rows: "Sequence[tuple[Choice, Mapping[str, object]]]") -> Prompts:
        choices = [choice for choice, _ in rows]
        return Prompts([one.prompt for one in choices], [one.options for one in choices], [row for _, row in rows])


def choose(
    prompt: Annotated[str | None, Parameter(help="The text to continue, or the question.")] = None,
    options: Annotated[list[str] | None, Parameter(help="The options, at least two.")] = None,
    /,
    *,
    text: str = Choose.text,
    columns: Annotated[str, Parameter(name="--options")] = Choose.options,
    shared: PairOptions = TABLE_OPTIONS,
) -> None:
    """Choose which of several options fits a prompt.

    Args:
        text: The column with the prompts.
        columns: The column with a list of options, or several columns with one option each, separated by commas.
    """
    run_prediction(Choose(text, columns), _read_prompt(prompt, options, shared.input), shared)


def _read_prompt(prompt: str | None, options: Sequence[str] | None, path: Path | None) -> Prompts | None:
    if path is not None and prompt is not None:
        raise ConfigError("a prompt was given both as an argument and by --input; use one of the two")
    if path is not None:
        return None
    if prompt is None or not options:
        raise ConfigError("expected a prompt and options: cloze choose PROMPT OPTION OPTION; or --input FILE")
    return Prompts([prompt], [options])
