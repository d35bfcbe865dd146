"""``cloze fill``, ``follows``, ``embed`` and ``classify``."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from cloze.cli.console import Machine, print_json, print_table
from cloze.cli.inputs import Inputs, gather_texts
from cloze.cli.outputs import write_rows, write_vectors
from cloze.errors import ConfigError

if TYPE_CHECKING:
    from cloze.predict import Model

Texts = Annotated[list[str] | None, Parameter(help="Texts; standard input, a line each, if none are given.")]
Place = Annotated[Machine, Parameter(name="*")]
HERE = Machine()


def fill(
    texts: Texts = None,
    /,
    *,
    model: str,
    top: int = 5,
    input: Path | None = None,  # noqa: A002 (the flag's name is fixed)
    json: bool = False,
    machine: Place = HERE,
) -> None:
    """Fill each [MASK] of a text with the words that fit best.

    Args:
        model: A model folder with the head of pre-training, or a hub name.
        top: Words for each blank.
        input: A file with a text a line.
        json: Print JSON.
    """
    from cloze.predict import load

    texts = gather_texts(texts, input).texts
    loaded = load(model, device=machine.use())
    for text in texts:
        blanks = loaded.fill(text, top)
        if json:
            print_json({"text": text, "blanks": [[word._asdict() for word in blank] for blank in blanks]})
            continue
        for number, blank in enumerate(blanks, start=1):
            title = text if len(blanks) == 1 else f"{text}  (blank {number})"
            print_table((title, "probability"), [(word.token, f"{word.probability:.4f}") for word in blank])


def follows(first: str, second: str, /, *, model: str, json: bool = False, machine: Place = HERE) -> None:
    """Say how likely the second text follows the first.

    Args:
        first: The text before.
        second: The text that may follow.
        model: A model folder with the head of pre-training, or a hub name.
        json: Print JSON.
    """
    from cloze.predict import load

    probability = load(model, device=machine.use()).follows(first, second)
    if json:
        print_json({"first": first, "second": second, "probability": probability})
    else:
        print(f"{probability:.4f}")


def embed(
    texts: Texts = None,
    /,
    *,
    model: str,
    input: Path | None = None,  # noqa: A002 (the flag's name is fixed)
    output: Path | None = None,
    text: str = "text",
    pair: str | None = None,
    pooling: str | None = None,
    layer: int = -1,
    json: bool = False,
    machine: Place = HERE,
) -> None:
    """Turn texts into vectors.

    Args:
        model: A model folder, or a hub name.
        input: A file: a text a line, or CSV, TSV, JSONL or Parquet.
        output: Where to write the vectors: .npy, .jsonl or .parquet.
        text: The column with the texts.
        pair: The column with second texts, if there are any.
        pooling: cls, mean, max or mean_max; as the folder says if left out.
        layer: Which layer's states: 0 the embeddings, -1 the last.
        json: Print JSON.
    """
    from cloze.predict import load

    inputs = gather_texts(texts, input, text=text, pair=pair)
    loaded = load(model, device=machine.use())
    vectors = loaded.embed(inputs.texts, inputs.pairs, pooling=pooling, layer=layer)  # type: ignore[arg-type]
    if output is not None:
        write_vectors(output, inputs, vectors)
        print(f"{output}: {len(vectors):,} vectors of {vectors.shape[1]}")
    elif json:
        for one, vector in zip(inputs.texts, vectors, strict=True):
            print_json({"text": one, "vector": vector.tolist()})
    else:
        rows = [
            (one if len(one) < 60 else one[:57] + "...", len(vector), " ".join(f"{value:+.3f}" for value in vector[:6]))
            for one, vector in zip(inputs.texts, vectors, strict=True)
        ]
        print_table(("text", "size", "first values (--json or --output for all)"), rows)


def classify(
    texts: Texts = None,
    /,
    *,
    model: str,
    input: Path | None = None,  # noqa: A002 (the flag's name is fixed)
    output: Path | None = None,
    text: str = "text",
    pair: str | None = None,
    json: bool = False,
    machine: Place = HERE,
) -> None:
    """Label texts with a fine-tuned model; one that was trained on numbers gives numbers.

    Args:
        model: A fine-tuned model folder or run, or a hub name.
        input: A file: a text a line, or CSV, TSV, JSONL or Parquet; its columns are kept in the output.
        output: Where to write the rows: .jsonl, .csv or .tsv.
        text: The column with the texts.
        pair: The column with second texts, if there are any; with texts as arguments, the second text itself.
        json: Print JSON.
    """
    from cloze.predict import load

    inputs = gather_texts(texts, input, text=text, pair=pair)
    if pair is not None and input is None:
        inputs = _with_pair(inputs, pair)
    answers = _answers(load(model, device=machine.use()), inputs, every_label=json)
    kept = inputs.fields or [{"text": one} for one in inputs.texts]
    rows = [{**fields, **_beside(fields, answer)} for fields, answer in zip(kept, answers, strict=True)]
    if output is not None:
        write_rows(output, rows)
        print(f"{output}: {len(rows):,} rows")
    elif json:
        for row in rows:
            print_json(row)
    else:
        header = tuple(answers[0]) if answers else ("label",)
        shown = [
            (*(_shown(answer[name]) for name in header), one[:80])
            for answer, one in zip(answers, inputs.texts, strict=True)
        ]
        print_table((*header, "text"), shown)


def _with_pair(inputs: Inputs, pair: str) -> Inputs:
    if len(inputs.texts) != 1:
        raise ConfigError(f"--pair with {len(inputs.texts)} texts; give one text, or --input with a column of pairs")
    return replace(inputs, pairs=[pair])


def _answers(model: "Model", inputs: Inputs, every_label: bool) -> list[dict[str, object]]:
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


def _beside(fields: Mapping[str, object], answer: Mapping[str, object]) -> dict[str, object]:
    """An answer under names that leave the file's own columns, such as its labels, as they are."""
    return {f"predicted_{name}" if name in fields else name: value for name, value in answer.items()}


def _shown(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
