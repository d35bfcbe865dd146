"""``cloze prepare``."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from cloze.cli.console import Reporter, print_json, print_table
from cloze.corpus.settings import EngineSettings, PrepareSettings
from cloze.errors import ConfigError


def prepare(
    texts: Annotated[
        list[Path] | None,
        Parameter(help="Text files, a blank line between documents; or JSONL or Parquet files, a document a row."),
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
    """Split text into sentences, tokenize it, and store it so that training maps it into memory.

    The same command goes on where it stopped.

    Args:
        vocab: The folder with the vocabulary, or the model or run whose vocabulary it is; cloze-mini is shipped.
        out: The folder to write.
        verify: Compare every byte of a prepared folder with what was recorded, and do nothing else.
        fresh: Forget what was prepared in this place, or begun otherwise; what the same command has begun goes on.
        json: Print JSON.
    """
    if verify is not None:
        _verify(verify, json)
        return
    if not texts or vocab is None or out is None:
        missing = next(name for name, value in {"TEXTS": texts, "--vocab": vocab, "--out": out}.items() if not value)
        raise ConfigError(f"{missing} is missing; 'cloze prepare --help' tells what it is")
    from cloze.corpus.preparation.prepare import prepare as run
    from cloze.corpus.shards import read_manifest

    with Reporter() as reporter:
        folder = run(texts, vocab, out, settings=settings, engine=engine, fresh=fresh, progress=reporter)
    _print_summary(folder, read_manifest(folder), json)


def _print_summary(folder: Path, manifest: dict[str, Any], json: bool) -> None:
    splits = manifest["splits"]
    if json:
        told = {split: {**facts, "unknown_share": _share(facts)} for split, facts in splits.items()}
        dropped = {name: manifest[name] for name in ("duplicates", "bad_rows")}
        print_json({"folder": str(folder), "shards": len(manifest["shards"]), **dropped, **told})
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
        print(f"{folder}: {size:,} bytes are as they were written")
