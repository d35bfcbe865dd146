"""``cloze vocab``, ``cloze tokens`` and ``cloze coverage``."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from cloze.cli.console import Reporter, print_json, print_table
from cloze.cli.inputs import gather_texts
from cloze.cli.outputs import check_file, check_folder, write_rows
from cloze.corpus.settings import VocabularySettings
from cloze.models import SHIPPED_MODEL

if TYPE_CHECKING:
    from cloze.text import Encoding, Tokenizer
    from cloze.text.encoding import Word
    from cloze.text.oov.coverage import Coverage

Texts = Annotated[
    list[Path], Parameter(help="Text files, plain or .gz, .xz, .zst; or JSONL or Parquet files, one document per row.")
]
DEFAULTS = VocabularySettings()


def vocab(
    texts: Texts,
    /,
    *,
    out: Path,
    words: Path | None = None,
    settings: Annotated[VocabularySettings, Parameter(name="*")] = DEFAULTS,
    json: bool = False,
) -> None:
    """Learn a WordPiece vocabulary; the result is reproducible.

    Args:
        out: The folder to write to.
        words: A file of words to include, one per line; in a table, the first column.
        json: Print JSON.
    """
    check_folder(out)
    from cloze.corpus.learn_vocabulary import learn_vocabulary

    with Reporter() as reporter:
        learned = learn_vocabulary(texts, out, words=words, settings=settings, progress=reporter)
    fit = learned.fit
    if json:
        about = {"folder": str(learned.folder), "size": learned.size, "cased": learned.cased}
        about["keep_accents"] = learned.keep_accents
        print_json({**about, **asdict(fit), "coverage": fit.coverage})
        return
    casing = "cased" if learned.cased else "uncased, accents kept" if learned.keep_accents else "uncased"
    print(f"{learned.folder}: {learned.size:,} pieces, {casing}")
    print(
        f"{fit.words:,} words, {fit.distinct_words:,} distinct; {fit.one_piece:.1%} are one piece, "
        f"{fit.unknown:.2%} [UNK]; {fit.pieces_per_word:.3f} pieces per word"
    )


def tokens(
    texts: list[str] | None = None,
    /,
    *,
    model: Path = Path(SHIPPED_MODEL),
    pair: str | None = None,
    input: Path | None = None,  # noqa: A002 (the flag's name is fixed)
    max_length: int | None = None,
    bare: bool = False,
    json: bool = False,
) -> None:
    """Show the pieces, ids, segments and offsets of texts, and which out-of-vocabulary fallback handled each word.

    Args:
        texts: Texts to tokenize; by default, the lines of standard input.
        model: A model folder, or any folder with a vocabulary.
        pair: The second text of a pair.
        input: A file with one text per line.
        max_length: Maximum sequence length in tokens; by default, the limit of the model.
        bare: Omit [CLS] and [SEP].
        json: Print JSON.
    """
    tokenizer = _tokenizer(model)
    for text in gather_texts(texts, input).texts:
        encoding = tokenizer(text, pair, max_length=max_length, special=not bare)
        words = tokenizer.words(encoding, text, pair)
        if json:
            print_json(_as_json(encoding, words))
            continue
        rungs = {word.first: _rung(word) for word in words}
        columns = zip(encoding.tokens, encoding.ids, encoding.segments, encoding.offsets, encoding.sources, strict=True)
        rows = [
            (token, number, segment, "" if source is None else f"{start}-{end}", rungs.get(place, ""))
            for place, (token, number, segment, (start, end), source) in enumerate(columns)
        ]
        print_table(("piece", "id", "segment", "offsets", "rung"), rows)
        if encoding.unknown:
            print(f"[UNK] tokens: {encoding.unknown}")
        if encoding.dropped:
            print(f"{encoding.dropped} pieces beyond the limit were truncated")


def coverage(
    texts: Texts,
    /,
    *,
    model: Path = Path(SHIPPED_MODEL),
    top: int = 20,
    best: int = 2000,
    minimum: int = 5,
    text: str = DEFAULTS.text,
    on_bad_row: Literal["stop", "skip"] = DEFAULTS.on_bad_row,
    output: Path | None = None,
    json: bool = False,
) -> None:
    """Measure how well a vocabulary covers a text, and list the words worth adding to it.

    Args:
        model: A model folder, or any folder with a vocabulary.
        top: Number of suggested words to show.
        best: Number of suggested words in --output and in the forecast.
        minimum: Minimum count of a suggested word.
        text: The column with the texts, in JSONL and Parquet files.
        on_bad_row: On a malformed row of JSONL or Parquet: stop, or skip it.
        output: A .tsv file for the suggested words, best first; 'cloze extend --words' accepts it.
        json: Print JSON.
    """
    from cloze.corpus.documents import read_paragraphs
    from cloze.errors import ConfigError, DataError
    from cloze.text.oov.coverage import measure_coverage

    for name, value in (("top", top), ("best", best), ("minimum", minimum)):
        if value < 1:
            raise ConfigError(f"{name} is {value}; expected at least 1")
    if output is not None:
        check_file(output, (".tsv",))  # the format that 'cloze extend --words' accepts
    tokenizer = _tokenizer(model)
    with Reporter() as reporter:
        paragraphs = read_paragraphs(texts, text, skip_bad_rows=on_bad_row == "skip")
        measured = measure_coverage(paragraphs, tokenizer, minimum=minimum, progress=reporter)
    if not measured.words:
        raise DataError(f"{', '.join(map(str, texts))}: contains no words; give a text with words")
    if output is not None:
        write_rows(output, [asdict(candidate) for candidate in measured.candidates[:best]])
    if json:
        print_json(_coverage_as_json(measured, best))
    else:
        _print_coverage(measured, top, best)


def _print_coverage(measured: "Coverage", top: int, best: int) -> None:
    from cloze.text.encoding import RUNGS

    rows = [
        (RUNGS[name], name, f"{count:,}", f"{count / measured.words:.2%}") for name, count in measured.rungs.items()
    ]
    print_table(("rung", "", "words", "share"), sorted(rows))
    print(
        f"{measured.words:,} words, {measured.tokens:,} pieces: {measured.pieces_per_word:.3f} pieces per word, "
        f"{measured.unknown_rate:.3%} of words with an [UNK]"
    )
    if measured.unknown:
        shown = ", ".join(f"{form[:20]} ({count:,})" for form, count in measured.unknown[:10])
        print(f"most frequent words that become [UNK]: {shown}")
    if not measured.candidates:
        print("no word is worth adding")
        return
    shown_words = measured.candidates[:top]
    print_table(
        ("word", "count", "pieces", "saves"),
        [(word.word, f"{word.count:,}", word.pieces, f"{word.saves:,}") for word in shown_words],
        title="words worth adding",
    )
    count = min(best, len(measured.candidates))
    print(f"adding the best {count:,}: {measured.pieces_per_word_with(count):.3f} pieces per word")


def _coverage_as_json(measured: "Coverage", best: int) -> dict[str, object]:
    count = min(best, len(measured.candidates))
    return {
        "words": measured.words,
        "pieces": measured.tokens,
        "pieces_per_word": measured.pieces_per_word,
        "unknown_rate": measured.unknown_rate,
        "rungs": measured.rungs,
        "given_up": [{"word": form, "count": times} for form, times in measured.unknown[:100]],
        "worth_adding": [asdict(candidate) for candidate in measured.candidates[:best]],
        "after_adding": {"words": count, "pieces_per_word": measured.pieces_per_word_with(count)},
    }


def _tokenizer(model: Path) -> "Tokenizer":
    from cloze.text import Tokenizer
    from cloze.text.tokenizer_files import find_vocabulary

    return Tokenizer.from_folder(find_vocabulary(model))


def _rung(word: "Word") -> str:
    from cloze.text.encoding import RUNGS

    return f"{RUNGS[word.rung]} {word.rung}" + (f" ({word.kind})" if word.kind else "")


def _as_json(encoding: "Encoding", words: "list[Word]") -> dict[str, object]:
    from cloze.text.encoding import RUNGS

    return {
        "tokens": encoding.tokens,
        "ids": encoding.ids,
        "segments": encoding.segments,
        "offsets": encoding.offsets,
        "dropped": encoding.dropped,
        "unknown": encoding.unknown,
        "words": [
            {
                "text": word.text,
                "segment": word.source,
                "start": word.start,
                "end": word.end,
                "pieces": word.tokens,
                "ids": word.ids,
                "rung": RUNGS[word.rung],
                "by": word.rung,
                "type": word.kind,
            }
            for word in words
        ],
    }
