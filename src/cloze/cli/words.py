"""``cloze vocab`` and ``cloze tokens``."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cloze.cli.console import Reporter, print_json, print_table
from cloze.cli.inputs import gather_texts
from cloze.corpus.settings import VocabularySettings

DEFAULTS = VocabularySettings()


def vocab(
    texts: Annotated[list[Path], Parameter(help="Text files, plain or .gz, .xz, .zst.")],
    /,
    *,
    out: Path,
    words: Path | None = None,
    settings: Annotated[VocabularySettings, Parameter(name="*")] = DEFAULTS,
) -> None:
    """Learn a WordPiece vocabulary: the same text gives the same bytes.

    Args:
        out: The folder to write.
        words: A file of words, one a line, that get entries of their own.
    """
    from cloze.corpus.vocabulary import train_vocabulary
    from cloze.text import Tokenizer

    with Reporter() as reporter:
        folder = train_vocabulary(texts, out, words=words, settings=settings, progress=reporter)
    tokenizer = Tokenizer.from_folder(folder)
    kind = "uncased" if tokenizer.lowercase else "cased"
    print(f"{folder}: {tokenizer.size:,} pieces, {kind}")


def tokens(
    texts: Annotated[list[str] | None, Parameter(help="Texts; standard input, a line each, if none are given.")] = None,
    /,
    *,
    model: Path,
    pair: str | None = None,
    input: Path | None = None,  # noqa: A002 (the flag's name is fixed)
    max_length: int | None = None,
    bare: bool = False,
    json: bool = False,
) -> None:
    """Show the pieces, ids, segments and offsets of texts.

    Args:
        model: A model folder, or any folder with a vocabulary.
        pair: A second text, for the first one.
        input: A file with a text a line.
        max_length: Tokens at most; the folder's own limit if left out.
        bare: Leave out [CLS] and [SEP].
        json: Print JSON.
    """
    from cloze.text import Tokenizer

    tokenizer = Tokenizer.from_folder(model / "model" if (model / "model" / "config.json").is_file() else model)
    for text in gather_texts(texts, input).texts:
        encoding = tokenizer(text, pair, max_length=max_length, special=not bare)
        if json:
            print_json(
                {
                    "tokens": encoding.tokens,
                    "ids": encoding.ids,
                    "segments": encoding.segments,
                    "offsets": encoding.offsets,
                    "dropped": encoding.dropped,
                }
            )
            continue
        columns = (encoding.tokens, encoding.ids, encoding.segments, encoding.offsets, encoding.sources)
        rows = [
            (token, number, segment, "" if source is None else f"{offset[0]}-{offset[1]}")
            for token, number, segment, offset, source in zip(*columns, strict=True)
        ]
        print_table(("piece", "id", "segment", "offsets"), rows)
        if encoding.dropped:
            print(f"{encoding.dropped} pieces beyond the limit were left out")
