"""``cloze answer`` and ``choose``."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from cloze.cli.classifying import HERE, Place
from cloze.cli.console import print_json, print_table, tell_written
from cloze.cli.inputs import Inputs, cut_parts, gather_texts, read_parts
from cloze.cli.outputs import ROW_FILES, beside, check_ending, write_rows
from cloze.cli.streaming import SLOW_ROWS, Answer, answer_file
from cloze.errors import ConfigError
from cloze.models import SHIPPED_MODEL

if TYPE_CHECKING:
    from cloze.predict import Model
    from cloze.predict.results import Answer as Found
    from cloze.predict.results import Option


def answer(
    question: Annotated[str | None, Parameter(help="What is asked.")] = None,
    contexts: Annotated[list[str] | None, Parameter(help="Texts that may have the answer.")] = None,
    /,
    *,
    model: str = SHIPPED_MODEL,
    top: int = 1,
    longest_answer: int | None = None,
    input: Path | None = None,  # noqa: A002 (the flag's name is fixed)
    output: Path | None = None,
    text: str = "question",
    pair: str = "context",
    fresh: bool = False,
    json: bool = False,
    machine: Place = HERE,
) -> None:
    """Find the answer to a question in a text; several texts are asked one by one.

    Args:
        model: A fine-tuned model folder or run, or a hub name.
        top: Answers to each question; with --output, the best alone is written.
        longest_answer: Tokens of an answer, at most; left out, what the model was fine-tuned with, or 30.
        input: A CSV, TSV, JSONL or Parquet file; its columns are kept in the output.
        output: Where to write the rows: .jsonl, .csv or .tsv; if it was stopped, the same command goes on.
        text: The column with the questions.
        pair: The column with the texts that may have the answers.
        fresh: Begin anew in place of going on.
        json: Print JSON.
    """
    if output is not None:
        check_ending(output, ROW_FILES)
    if input is not None and output is not None and not question:
        loaded, read = machine.load(model), partial(read_parts, input, text=text, pair=pair)
        say = partial(_best_answers, loaded, top=top)
        settings = {"text": text, "pair": pair}
        answer_file(loaded, input, output, read, say, settings=settings, fresh=fresh, json=json, rows=SLOW_ROWS)
        return
    inputs = _questions(question, contexts, input, text, pair)
    answers = machine.load(model).answer_all(inputs.texts, inputs.pairs or [], top, longest_answer)
    if json and output is None:
        for asked, context, found in zip(inputs.texts, inputs.pairs or [], answers, strict=True):
            print_json({"question": asked, "context": context, "answers": [vars(one) for one in found]})
        return
    if output is None:
        shown = [
            (one.text or "(none)", f"{one.probability:.4f}", f"{one.start}-{one.end}", asked[:80])
            for asked, found in zip(inputs.texts, answers, strict=True)
            for one in found
        ]
        print_table(("answer", "probability", "characters", "question"), shown)
        return
    _write(output, _given(inputs), [_told_answer(found) for found in answers], json)


def _best_answers(model: "Model", asked: Inputs, top: int) -> list[Answer]:
    return [_told_answer(found) for found in model.answer_all(asked.texts, asked.pairs or [], top)]


def _told_answer(found: "Sequence[Found]") -> Answer:
    best = found[0]
    return {"answer": best.text, "start": best.start, "end": best.end, "probability": best.probability}


@dataclass(frozen=True)
class Prompts:
    """Prompts, the options of each, and the columns of the file that they are from."""

    texts: Sequence[str]
    options: Sequence[Sequence[str]]
    fields: Sequence[Mapping[str, object]] = field(default_factory=list)

    @property
    def kept(self) -> Sequence[Mapping[str, object]]:
        """What stands beside each choice."""
        asked = zip(self.texts, self.options, strict=True)
        return self.fields or [{"prompt": prompt, "options": "|".join(own)} for prompt, own in asked]


def choose(
    prompt: Annotated[str | None, Parameter(help="What comes before, or is asked.")] = None,
    options: Annotated[list[str] | None, Parameter(help="What may fit, two at least.")] = None,
    /,
    *,
    model: str = SHIPPED_MODEL,
    input: Path | None = None,  # noqa: A002 (the flag's name is fixed)
    output: Path | None = None,
    text: str = "text",
    columns: Annotated[str, Parameter(name="--options")] = "options",
    fresh: bool = False,
    json: bool = False,
    machine: Place = HERE,
) -> None:
    """Choose which of several options fits a text.

    Args:
        model: A fine-tuned model folder or run, or a hub name.
        input: A CSV, TSV, JSONL or Parquet file; its columns are kept in the output.
        output: Where to write the rows: .jsonl, .csv or .tsv; if it was stopped, the same command goes on.
        text: The column with the prompts.
        columns: The column with a list of options, or columns with one each, commas between.
        fresh: Begin anew in place of going on.
        json: Print JSON.
    """
    if output is not None:
        check_ending(output, ROW_FILES)
    if input is not None and output is not None and prompt is None:
        loaded, read = machine.load(model), partial(_read_prompts, input, text, columns)
        settings = {"text": text, "options": columns}
        answer_file(
            loaded, input, output, read, partial(_best_options, loaded), settings=settings, fresh=fresh, json=json
        )
        return
    asked = _choices(prompt, options, input, text, columns)
    chosen = machine.load(model).choose_all(asked.texts, asked.options)
    if output is not None:
        _write(output, asked.kept, [_told_option(own) for own in chosen], json)
    elif json:
        for one, own in zip(asked.texts, chosen, strict=True):
            print_json({"prompt": one, "options": [vars(option) for option in own]})
    else:
        shown = [
            (option.text, option.index, f"{option.probability:.4f}", one[:80])
            for one, own in zip(asked.texts, chosen, strict=True)
            for option in (own if len(asked.texts) == 1 else own[:1])
        ]
        print_table(("option", "index", "probability", "prompt"), shown)


def _best_options(model: "Model", asked: Prompts) -> list[Answer]:
    return [_told_option(own) for own in model.choose_all(asked.texts, asked.options)]


def _told_option(own: "Sequence[Option]") -> Answer:
    best = own[0]
    return {"choice": best.text, "index": best.index, "probability": best.probability}


def _choices(prompt: str | None, options: Sequence[str] | None, path: Path | None, text: str, columns: str) -> Prompts:
    """What is asked, by arguments or by a file."""
    if path is None:
        if prompt is None or not options:
            raise ConfigError("a prompt and options were expected: cloze choose PROMPT OPTION OPTION; or --input FILE")
        return Prompts([prompt], [options])
    if prompt is not None:
        raise ConfigError("a prompt was given both as an argument and by --input; use one of the two")
    from cloze.tasks.choice import read_unlabelled_choices

    choices, fields = read_unlabelled_choices(path, text, columns)
    return Prompts([row.prompt for row in choices.rows], [row.options for row in choices.rows], fields)


def _read_prompts(path: Path, text: str, columns: str, rows: int) -> Iterator[Prompts]:
    """A file of prompts, so many at a time."""
    from cloze.tasks.choice import each_unlabelled_choice

    for part in cut_parts(each_unlabelled_choice(path, text, columns), rows):
        yield Prompts(
            [choice.prompt for choice, _ in part], [choice.options for choice, _ in part], [kept for _, kept in part]
        )


def _questions(question: str | None, contexts: Sequence[str] | None, path: Path | None, text: str, pair: str) -> Inputs:
    if path is not None:
        return gather_texts([question] if question else None, path, text=text, pair=pair)
    if question is None or not contexts:
        raise ConfigError("a question and a text were expected: cloze answer QUESTION CONTEXT; or --input FILE")
    return Inputs([question] * len(contexts), list(contexts))


def _given(inputs: Inputs) -> Sequence[Mapping[str, object]]:
    asked = zip(inputs.texts, inputs.pairs or [], strict=True)
    return inputs.fields or [{"question": question, "context": one} for question, one in asked]


def _write(path: Path, kept: Sequence[Mapping[str, object]], told: Sequence[Mapping[str, object]], json: bool) -> None:
    """Write the input's columns with what was said beside, under names that leave those columns as they are."""
    write_rows(path, beside(kept, told))
    tell_written(path, len(told), json)
