"""What a prepared corpus depends on: written down with it, and compared before anything is taken for done."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

from cloze.corpus.settings import PrepareSettings
from cloze.corpus.shards import MANIFEST, file_digest, read_manifest
from cloze.errors import DataError
from cloze.text import Tokenizer

# To be raised when split_sentences or encode_words come to other results.
SENTENCE_RULES = 1
WORD_RULES = 1


def make_recipe(texts: list[list[str]], tokenizer: Tokenizer, settings: PrepareSettings) -> dict[str, Any]:
    """Everything that the result depends on; ``texts`` are the names and fingerprints of the files."""
    return {
        # A list: the order decides which documents are held out, and two files may have one name.
        "texts": texts,
        "vocabulary": tokenizer.digest,
        "held_out": settings.held_out,
        "seed": settings.seed,
        "column": settings.text,
        "on_bad_row": settings.on_bad_row,
        "words": None if settings.words is None else file_digest(settings.words),
        "lines": settings.lines,
        "duplicates": settings.duplicates,
        "shard_size": settings.shard_size,
        "sentence_rules": f"{SENTENCE_RULES}, sentencex {version('sentencex')}",
        "word_rules": f"{WORD_RULES}, rjieba {version('rjieba')}",
    }


def check_same(folder: Path, recipe: dict[str, Any]) -> None:
    """Accept a folder that holds just this; refuse to overwrite anything else."""
    check_is_corpus(folder)
    if changes := differences(read_manifest(folder).get("recipe"), recipe):
        raise DataError(f"{folder}: was prepared otherwise ({changes}); choose another --out or delete it")


def check_is_corpus(folder: Path) -> None:
    """Refuse a folder of somebody else's."""
    if not (folder / MANIFEST).is_file():
        raise DataError(f"{folder}: exists and is not a prepared corpus; choose another --out")


def differences(there: Any, here: dict[str, Any]) -> str:
    """In which points two recipes differ, in words; nothing if they are the same."""
    recorded = there if isinstance(there, dict) else {}
    changed = [key for key in here if key not in recorded or recorded[key] != here[key]]
    if not changed:
        return ""
    shown = [
        f"{key} is {recorded[key]} there and {here[key]} here"
        for key in changed
        if key in recorded and key not in {"texts", "vocabulary", "words"}
    ]
    return f"{', '.join(changed)} differ{': ' if shown else ''}{', '.join(shown)}"
