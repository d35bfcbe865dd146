"""``cloze prepare``, ``cloze audit``, ``cloze pretrain`` and ``cloze plan``."""

import os
import sys
from contextlib import suppress
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from cloze.cli.console import Machine, Reporter, print_json, print_results, print_table
from cloze.cli.outputs import check_folder
from cloze.corpus.settings import (
    EngineSettings,
    ExampleSettings,
    Masking,
    MaskSettings,
    Objective,
    PrepareSettings,
    check_seed,
)
from cloze.errors import ClozeError, ConfigError
from cloze.train.settings import PretrainSettings

if TYPE_CHECKING:
    from cloze.corpus.audit import Audit, Check
    from cloze.train.pretraining.plan import Plan

# Number of paragraphs at the start of the texts that are checked against the vocabulary.
_SAMPLED_PARAGRAPHS = 1000


def prepare(
    texts: Annotated[
        list[Path] | None,
        Parameter(help="Text files with a blank line between documents; or JSONL or Parquet, one document per row."),
    ] = None,
    /,
    *,
    vocab: Path | None = None,
    out: Path | None = None,
    verify: Path | None = None,
    fresh: bool = False,
    settings: Annotated[PrepareSettings, Parameter(name="*")] = PrepareSettings(),  # noqa: B008 (frozen)
    engine: Annotated[EngineSettings, Parameter(name="*")] = EngineSettings(),  # noqa: B008 (frozen)
    json: bool = False,
) -> None:
    """Split text into sentences, tokenize it, and store it as memory-mapped shards for training.

    Re-running the same command resumes it.

    Args:
        vocab: A folder with a vocabulary, a model or a run; or the name of the shipped model, cloze-mini.
        out: The folder to write to.
        verify: Only check a prepared folder against its recorded checksums.
        fresh: Replace a corpus in --out that was prepared with other settings; an interrupted run with the same
            settings still resumes.
        json: Print JSON.
    """
    if verify is not None:
        _verify(verify, json)
        return
    if not texts or vocab is None or out is None:
        missing = next(name for name, value in {"TEXTS": texts, "--vocab": vocab, "--out": out}.items() if not value)
        raise ConfigError(f"{missing} is missing; 'cloze prepare --help' explains it")
    check_folder(out)
    from cloze.corpus.preparation.prepare import prepare as run
    from cloze.corpus.shards import read_manifest

    with Reporter() as reporter:
        _report_unknown(texts, vocab, settings, reporter)
        folder = run(texts, vocab, out, settings=settings, engine=engine, fresh=fresh, progress=reporter)
    _print_summary(folder, read_manifest(folder), json)


def _report_unknown(texts: list[Path], vocab: Path, settings: PrepareSettings, reporter: Reporter) -> None:
    """Warn at the start if the vocabulary does not fit the first paragraphs of the texts."""
    from cloze.corpus.documents import read_paragraphs
    from cloze.text import Tokenizer
    from cloze.text.oov.coverage import unknown_note
    from cloze.text.tokenizer_files import find_vocabulary

    files = [path for path in texts if path.is_file()]  # a pipe can be read only once
    with suppress(ClozeError):  # the preparation itself will report it
        sample = list(islice(read_paragraphs(files, settings.text, skip_bad_rows=True), _SAMPLED_PARAGRAPHS))
        note = unknown_note(Tokenizer.from_folder(find_vocabulary(vocab)), sample)
        if note is not None:
            reporter.say(f"in the first {len(sample):,} paragraphs, {note}")


def _print_summary(folder: Path, manifest: dict[str, Any], json: bool) -> None:
    splits = manifest["splits"]
    if json:
        summaries = {split: {**facts, "unknown_share": _share(facts)} for split, facts in splits.items()}
        dropped = {name: manifest[name] for name in ("duplicates", "bad_rows")}
        print_json({"folder": str(folder), "shards": len(manifest["shards"]), **dropped, **summaries})
        return
    names = ("documents", "sentences", "tokens", "words")
    rows = [(split, *(f"{facts[name]:,}" for name in names), f"{_share(facts):.2%}") for split, facts in splits.items()]
    print_table((str(folder), *names, "[UNK]"), rows)
    if manifest["duplicates"]:
        print(f"{manifest['duplicates']:,} duplicate documents were dropped")
    if manifest["bad_rows"]:
        print(f"{manifest['bad_rows']:,} bad rows were skipped")


def _share(facts: dict[str, int]) -> float:
    return facts["unknown"] / max(1, facts["tokens"])


def _verify(folder: Path, json: bool) -> None:
    from cloze.corpus.shards import SPLITS, Corpus, verify_corpus

    for split in SPLITS:
        Corpus.open(folder, split)
    size = verify_corpus(folder)
    if json:
        print_json({"folder": str(folder), "bytes": size})
    else:
        print(f"{folder}: {size:,} bytes verified, unchanged")


EXAMPLES, MASKS, PRETRAINING = ExampleSettings(), MaskSettings(), PretrainSettings()


def audit(
    data: Annotated[Path, Parameter(help="A prepared corpus.")],
    /,
    *,
    objective: Objective = EXAMPLES.objective,
    max_length: int = EXAMPLES.max_length,
    masking: Masking = MASKS.masking,
    recipe: str | None = None,  # noqa: ARG001 (use_recipe has set its values)
    mask_rate: float = MASKS.rate,
    mask_mix: tuple[float, float, float] = MASKS.mix,
    ngrams: tuple[float, float, float, float] = PRETRAINING.ngrams,
    entities: Path | None = None,
    similar: Path | None = None,
    static: int = 0,
    batch_size: int = 32,
    tokens: int = 1_000_000,
    seed: int = 0,
    json: bool = False,
) -> None:
    """Build pre-training examples without training, and check them against the settings.

    Fractions are reported with 95 % confidence intervals. The exit code is 1 if a check is NOT OK.

    Args:
        objective: The sentence-level objective: nsp (next sentence), sop (sentence order), relation (next, from
            elsewhere in the document, or from another one), copy (words dropped or moved) or none (full sentences).
        max_length: Maximum sequence length in tokens.
        masking: Unit of masking: token, word, ngram, span, entity or correction.
        recipe: A published recipe: bert, bert-wwm, roberta, spanbert, ernie, albert or macbert; flags override it.
        mask_rate: Fraction of the tokens that are selected for prediction.
        mask_mix: Fractions of the selected tokens that are masked, replaced with a random token, and left unchanged.
        ngrams: For n-gram and correction masking: shares of spans of one, two, three and four words.
        entities: For entity masking: a file with one entity per line.
        similar: For correction masking: a file of similar words; by default, learned from the corpus.
        static: Static masking: number of fixed variants of examples and masks; 0: new ones in every epoch.
        batch_size: Batch size: sequences per optimizer step.
        tokens: Number of tokens to check.
        seed: Random seed for examples and masks.
        json: Print JSON.
    """
    from cloze.corpus.audit import audit as measure
    from cloze.corpus.batches import PretrainingBatches
    from cloze.corpus.shards import Corpus
    from cloze.corpus.word_tables import open_word_tables
    from cloze.text import Tokenizer

    check_seed(seed)
    examples, masks = ExampleSettings(objective, max_length), MaskSettings(masking, mask_rate, mask_mix, ngrams)
    corpus, tokenizer = Corpus.open(data), Tokenizer.from_folder(data)
    tables = open_word_tables(data, tokenizer, masking, entities, similar, seed)
    batches = PretrainingBatches(
        corpus,
        tokenizer,
        batch_size=batch_size,
        examples=examples,
        masks=masks,
        seed=seed,
        static=static,
        tables=tables,
    )
    audited = measure(batches, tokens)
    if json:
        print_json({**asdict(audited), "ok": audited.ok})
    else:
        _print(audited, f"{objective}, {masking}")
    if not audited.ok:
        sys.exit(1)


def _print(audited: "Audit", title: str) -> None:
    rows = [
        (check.name, _number(check.measured), _bounds(check), _number(check.expected), _verdict(check))
        for check in audited.checks
    ]
    print_table(("", "measured", "95 % interval", "expected", ""), rows, title=title)
    print(
        f"{audited.sequences:,} sequences, {audited.tokens:,} tokens: "
        + ("ok" if audited.ok else f"NOT OK: {', '.join(check.name for check in audited.checks if check.ok is False)}")
    )


def _verdict(check: "Check") -> str:
    return "" if check.ok is None else "ok" if check.ok else "NOT OK"


def _bounds(check: "Check") -> str:
    return "" if check.low is None or check.high is None else f"{_number(check.low)} to {_number(check.high)}"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 1000 else f"{value:.4f}"


# -- cloze pretrain and cloze plan -------------------------------------------------------------------------------------


Data = Annotated[Path, Parameter(help="A folder that 'cloze prepare' wrote.")]
Settings = Annotated[PretrainSettings, Parameter(name="*")]
Place = Annotated[Machine, Parameter(name="*")]
DEFAULTS = PretrainSettings()
HERE = Machine()


def pretrain(
    data: Data,
    /,
    *,
    out: Path,
    model: str | None = None,
    extend: Path | None = None,
    recipe: str | None = None,  # noqa: ARG001 (use_recipe has set its values)
    fresh: bool = False,
    settings: Settings = DEFAULTS,
    machine: Place = HERE,
    json: bool = False,
) -> None:
    """Pre-train a BERT, or another backbone, on prepared text. Re-running the same command resumes it.

    Args:
        out: The folder of the run.
        model: A model folder to start from, instead of a new model.
        extend: Continue this run, trained with the wsd schedule, from before its decay; steps and hours are counted
            from the start of the original run.
        recipe: A published recipe: bert, bert-wwm, roberta, spanbert, ernie, albert, macbert, gpt, deberta, xlnet,
            electra, elmo, word2vec or glove; flags override it.
        fresh: Start over, discarding the contents of the run's folder.
        json: Print JSON.
    """
    check_folder(out)
    from cloze.train.pretraining.pretrain import pretrain as run

    with Reporter() as reporter:
        folder = run(
            data,
            out,
            model=model,
            extend=extend,
            settings=settings,
            device=machine.use(),
            fresh=fresh,
            progress=reporter,
        )
    if os.environ.get("RANK", "0") == "0":  # under torchrun, only rank 0 prints
        print_results(folder, json)


def plan(
    data: Data,
    /,
    *,
    model: str | None = None,
    recipe: str | None = None,  # noqa: ARG001
    settings: Settings = DEFAULTS,
    machine: Place = HERE,
    json: bool = False,
) -> None:
    """Estimate memory, time and loss of a pretrain command with the same flags; run a few steps and write nothing.

    Args:
        model: A model folder to start from, instead of a new model.
        recipe: A published recipe: bert, bert-wwm, roberta, spanbert, ernie, albert, macbert, gpt, deberta, xlnet,
            electra, elmo, word2vec or glove; flags override it.
        json: Print JSON.
    """
    from cloze.train.pretraining.plan import plan as run

    with Reporter() as reporter:
        planned = run(data, model=model, settings=settings, device=machine.use(), progress=reporter)
    if json:
        print_json(_values(planned))
    else:
        print_table(("plan", ""), _rows(planned))


def _values(plan: "Plan") -> dict[str, object]:
    numbers = plan.estimate
    return {
        "parameters": numbers.parameters,
        "peak_bytes": plan.peak_bytes,
        "memory_bytes": numbers.total_bytes,
        "weight_bytes": numbers.weight_bytes,
        "gradient_bytes": numbers.gradient_bytes,
        "optimizer_bytes": numbers.optimizer_bytes,
        "activation_bytes": numbers.activation_bytes,
        "precision": plan.precision,
        "steps": plan.steps,
        "tokens_per_step": plan.tokens_per_step,
        "seconds_per_step": plan.seconds_per_step,
        "tokens_per_second": plan.tokens_per_step / plan.seconds_per_step,
        "share_of_peak": plan.share_of_peak,
        "hours": plan.hours,
        "tokens": plan.tokens,
        "epochs": plan.epochs,
        "expected_mlm_loss": None if plan.expected is None else plan.expected.loss,
        "expected_like": None if plan.expected is None else plan.expected.like,
        "expected_bound": None if plan.expected is None else plan.expected.bound,
    }


def _rows(plan: "Plan") -> list[tuple[str, str]]:
    numbers = plan.estimate
    return [
        ("parameters", f"{numbers.parameters:,}"),
        (
            "memory",
            f"{_size(plan.peak_bytes)} at the peak; weights "
            f"{_size(numbers.weight_bytes)}, gradients {_size(numbers.gradient_bytes)}, moments "
            f"{_size(numbers.optimizer_bytes)}, states {_size(numbers.activation_bytes)}",
        ),
        (
            "per step",
            f"{plan.tokens_per_step:,} tokens in {plan.seconds_per_step:.2f} s: "
            f"{plan.tokens_per_step / plan.seconds_per_step:,.0f} tokens/s, {plan.share_of_peak:.0%} of the peak "
            f"({plan.precision})",
        ),
        ("whole run", f"{plan.steps:,} steps, {_time(plan.hours)}"),
        ("text", f"{plan.tokens:,} tokens, {plan.epochs:.2f} times the corpus"),
        ("held-out masked-LM loss", _expected(plan)),
    ]


def _expected(plan: "Plan") -> str:
    if plan.expected is None:
        return "unknown: it depends on the initial model, or no comparable run is recorded"
    loss, like = f"{plan.expected.loss:.2f}", plan.expected.like
    if plan.expected.bound == "lower":
        return f"above {loss}, the loss of {like} at its first evaluation, after more tokens"
    if plan.expected.bound == "upper":
        return f"at most about {loss}, the final loss of {like}, after fewer tokens"
    return f"about {loss}, the loss of {like} after the same number of tokens"


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GB" if count >= 2**30 else f"{count / 2**20:.0f} MB"


def _time(hours: float) -> str:
    return f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"
