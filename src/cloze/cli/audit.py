"""``cloze audit``."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from cloze.cli.console import print_json, print_table
from cloze.corpus.settings import ExampleSettings, Masking, MaskSettings, Objective, check_seed

if TYPE_CHECKING:
    from cloze.corpus.audit import Audit, Check

EXAMPLES, MASKS = ExampleSettings(), MaskSettings()


def audit(
    data: Annotated[Path, Parameter(help="A prepared corpus.")],
    /,
    *,
    objective: Objective = EXAMPLES.objective,
    length: int = EXAMPLES.length,
    masking: Masking = MASKS.masking,
    recipe: str | None = None,  # noqa: ARG001 (its values have taken their places by now)
    mask_rate: float = MASKS.rate,
    mask_mix: tuple[float, float, float] = MASKS.mix,
    entities: Path | None = None,
    similar: Path | None = None,
    static: int = 0,
    batch: int = 32,
    tokens: int = 1_000_000,
    seed: int = 0,
    json: bool = False,
) -> None:
    """Make the examples of a pre-training without training, and check that they are what was asked for.

    Shares are shown with bounds that hold 95 times in 100. Ends with code 1 if something is NOT OK.

    Args:
        objective: nsp (next sentence), sop (sentence order) or none (whole sentences).
        length: Tokens of a sequence.
        masking: token, word, ngram, span, entity or correction.
        recipe: A published way: bert, bert-wwm, roberta, spanbert, ernie, albert or macbert; other flags win over it.
        mask_rate: Share of tokens that are chosen.
        mask_mix: Of those, the shares hidden, replaced and kept.
        entities: A file of entities, one a line, for --masking entity.
        similar: A file of similar words for --masking correction; learned from the corpus if left out.
        static: Make so many variants of examples and masks, instead of new ones in every epoch.
        batch: Sequences of a step.
        tokens: Tokens to look at.
        seed: Decides everything random.
        json: Print JSON.
    """
    from cloze.corpus.audit import audit as measure
    from cloze.corpus.batches import PretrainingBatches
    from cloze.corpus.shards import Corpus
    from cloze.corpus.word_tables import open_word_tables
    from cloze.text import Tokenizer

    check_seed(seed)
    examples, masks = ExampleSettings(objective, length), MaskSettings(masking, mask_rate, mask_mix)
    corpus, tokenizer = Corpus.open(data), Tokenizer.from_folder(data)
    tables = open_word_tables(data, tokenizer, masking, entities, similar, seed)
    batches = PretrainingBatches(
        corpus, tokenizer, batch=batch, examples=examples, masks=masks, seed=seed, static=static, tables=tables
    )
    found = measure(batches, tokens)
    if json:
        print_json({**asdict(found), "ok": found.ok})
    else:
        _print(found, f"{objective}, {masking}")
    if not found.ok:
        sys.exit(1)


def _print(found: "Audit", title: str) -> None:
    rows = [
        (check.name, _number(check.measured), _bounds(check), _number(check.expected), _verdict(check))
        for check in found.checks
    ]
    print_table(("", "measured", "95 % bounds", "expected", ""), rows, title=title)
    print(
        f"{found.sequences:,} sequences, {found.tokens:,} tokens: "
        + ("ok" if found.ok else f"NOT OK: {', '.join(check.name for check in found.checks if check.ok is False)}")
    )


def _verdict(check: "Check") -> str:
    return "" if check.ok is None else "ok" if check.ok else "NOT OK"


def _bounds(check: "Check") -> str:
    return "" if check.low is None or check.high is None else f"{_number(check.low)} to {_number(check.high)}"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 1000 else f"{value:.4f}"
