"""``cloze answer`` and ``choose``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cloze.cli.console import print_json, print_table, tell_written
from cloze.cli.inputs import Inputs, gather_texts
from cloze.cli.outputs import ROW_FILES, beside, check_ending, write_rows
from cloze.cli.predictions import HERE, Place
from cloze.errors import ConfigError
from cloze.models import SHIPPED_MODEL


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
    json: bool = False,
    machine: Place = HERE,
) -> None:
    """Find the answer to a question in a text; several texts are asked one by one.

    Args:
        model: A fine-tuned model folder or run, or a hub name.
        top: Answers to each question; with --output, the best alone is written.
        longest_answer: Tokens of an answer, at most; left out, what the model was fine-tuned with, or 30.
        input: A CSV, TSV, JSONL or Parquet file; its columns are kept in the output.
        output: Where to write the rows: .jsonl, .csv or .tsv.
        text: The column with the questions.
        pair: The column with the texts that may have the answers.
        json: Print JSON.
    """
    if output is not None:
        check_ending(output, ROW_FILES)
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
    best = [found[0] for found in answers]
    told = [{"answer": one.text, "start": one.start, "end": one.end, "probability": one.probability} for one in best]
    _write(output, inputs.fields or _given(inputs), told, json)


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
    json: bool = False,
    machine: Place = HERE,
) -> None:
    """Choose which of several options fits a text.

    Args:
        model: A fine-tuned model folder or run, or a hub name.
        input: A CSV, TSV, JSONL or Parquet file; its columns are kept in the output.
        output: Where to write the rows: .jsonl, .csv or .tsv.
        text: The column with the prompts.
        columns: The column with a list of options, or columns with one each, commas between.
        json: Print JSON.
    """
    if output is not None:
        check_ending(output, ROW_FILES)
    prompts, lists, fields = _choices(prompt, options, input, text, columns)
    chosen = machine.load(model).choose_all(prompts, lists)
    if output is not None:
        best = [own[0] for own in chosen]
        told = [{"choice": one.text, "index": one.index, "probability": one.probability} for one in best]
        given = [{"prompt": asked, "options": "|".join(own)} for asked, own in zip(prompts, lists, strict=True)]
        _write(output, fields or given, told, json)
    elif json:
        for asked, own in zip(prompts, chosen, strict=True):
            print_json({"prompt": asked, "options": [vars(one) for one in own]})
    else:
        shown = [
            (one.text, one.index, f"{one.probability:.4f}", asked[:80])
            for asked, own in zip(prompts, chosen, strict=True)
            for one in (own if len(prompts) == 1 else own[:1])
        ]
        print_table(("option", "index", "probability", "prompt"), shown)


def _choices(
    prompt: str | None, options: Sequence[str] | None, path: Path | None, text: str, columns: str
) -> tuple[list[str], list[Sequence[str]], list[Mapping[str, object]]]:
    """Prompts, the options of each, and the columns of the file that they are from."""
    if path is None:
        if prompt is None or not options:
            raise ConfigError("a prompt and options were expected: cloze choose PROMPT OPTION OPTION; or --input FILE")
        return [prompt], [options], []
    if prompt is not None:
        raise ConfigError("a prompt was given both as an argument and by --input; use one of the two")
    from cloze.tasks.choice_files import read_unlabelled_choices

    choices, fields = read_unlabelled_choices(path, text, columns)
    return [row.prompt for row in choices.rows], [row.options for row in choices.rows], fields


def _questions(question: str | None, contexts: Sequence[str] | None, path: Path | None, text: str, pair: str) -> Inputs:
    if path is not None:
        return gather_texts([question] if question else None, path, text=text, pair=pair)
    if question is None or not contexts:
        raise ConfigError("a question and a text were expected: cloze answer QUESTION CONTEXT; or --input FILE")
    return Inputs([question] * len(contexts), list(contexts))


def _given(inputs: Inputs) -> list[Mapping[str, object]]:
    return [{"question": asked, "context": one} for asked, one in zip(inputs.texts, inputs.pairs or [], strict=True)]


def _write(path: Path, kept: Sequence[Mapping[str, object]], told: Sequence[Mapping[str, object]], json: bool) -> None:
    """Write the input's columns with what was said beside, under names that leave those columns as they are."""
    write_rows(path, beside(kept, told))
    tell_written(path, len(told), json)
