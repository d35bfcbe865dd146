"""Learn a WordPiece vocabulary from text files (``cloze vocab``): count words, choose pieces, write a folder.

``measure_fit`` reports how well the new vocabulary fits its text: the number of pieces per word.
"""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tokenizers.models import WordPiece

from cloze.corpus.documents import format_of, is_compressed, read_paragraphs
from cloze.corpus.record_files import documents_as_files
from cloze.corpus.settings import VocabularySettings
from cloze.errors import DataError
from cloze.files import replaced_folder
from cloze.progress import Progress, Silent
from cloze.text import Tokenizer
from cloze.text.oov.extension import read_word_list
from cloze.text.tokenizer_files import TOKENIZER_FILES
from cloze.text.vocabulary import CONTINUATION, UNKNOWN, choose_pieces, first_entries
from cloze.text.word_counts import LONGEST_WORD, WordCounts, count_words
from cloze.workers import usable_cores

# Scripts whose combining marks are accents, by the first word of their Unicode names; "" for marks without a letter.
_WITH_ACCENTS = {"LATIN", "GREEK", "CYRILLIC", ""}
# The search for vowel signs covers the first _SAMPLED_PARAGRAPHS paragraphs, _SAMPLED_CHARACTERS characters of each. At
# least _FEWEST_SIGNS signs trigger the warning; a few foreign words contain fewer.
_SAMPLED_PARAGRAPHS, _SAMPLED_CHARACTERS, _FEWEST_SIGNS = 2000, 1000, 20


@dataclass(frozen=True)
class Fit:
    """Statistics of how a vocabulary splits the words of a text, weighted by word frequency."""

    words: int
    """Number of words."""
    distinct_words: int
    """Number of distinct words."""
    one_piece: float
    """Fraction of words that are a single piece."""
    unknown: float
    """Fraction of words that are [UNK]."""
    pieces_per_word: float
    """Mean number of pieces per word; [UNK] is one piece."""

    @property
    def coverage(self) -> float:
        """Fraction of words that are not [UNK]."""
        return 1 - self.unknown


@dataclass(frozen=True)
class LearnedVocabulary:
    """A vocabulary on disk: its folder, size, casing, and fit to the text."""

    folder: Path
    size: int
    cased: bool
    keep_accents: bool
    fit: Fit


def train_vocabulary(
    texts: Any,
    out: str | Path,
    *,
    words: str | Path | None = None,
    settings: VocabularySettings | None = None,
    progress: Progress | None = None,
) -> Path:
    """Learn a WordPiece vocabulary from text and write it to a folder.

    The result is deterministic: the same texts and settings give the same files, byte for byte.

    Args:
        texts: Text files in any format that ``prepare`` accepts (plain text, JSONL, Parquet), or documents in memory: a
            data frame, an Arrow table or a dataset with the column ``text``, ``{"text": [...]}``, or an iterator of
            texts. A list of strings is a list of files.
        out: The folder to write to. A folder with other files, such as a model, is not overwritten.
        words: A file with one word per line. These words always become entries.
        settings: Size, casing and layout of the vocabulary.
        progress: Receives progress reports.

    Returns:
        The folder, which can be passed to ``prepare``.

    Raises:
        ConfigError: If a setting is invalid.
        DataError: If a text cannot be read, or the folder holds other files.

    Example:
        >>> import cloze
        >>> documents = {"text": ["the cat sat on the mat", "the dog sat on the cat"]}
        >>> cloze.train_vocabulary(documents, "vocab", settings=cloze.VocabularySettings(size=40))
        PosixPath('vocab')
    """
    settings = settings or VocabularySettings()
    with documents_as_files(texts, Path(out), settings.text) as paths:
        return learn_vocabulary(paths, out, words=words, settings=settings, progress=progress).folder


def learn_vocabulary(
    texts: Sequence[str | Path],
    out: str | Path,
    *,
    words: str | Path | None = None,
    settings: VocabularySettings | None = None,
    progress: Progress | None = None,
) -> LearnedVocabulary:
    """Learn a vocabulary like ``train_vocabulary``, and measure how well it fits the text."""
    settings, progress = settings or VocabularySettings(), progress or Silent()
    folder, paths = Path(out), [Path(text) for text in texts]
    # Do not overwrite a folder that holds other files, such as a model.
    if folder.exists() and not (folder.is_dir() and {path.name for path in folder.iterdir()} <= TOKENIZER_FILES):
        raise DataError(f"{folder}: exists and is not a vocabulary folder; choose another --out")
    first = first_entries(settings.layout, settings.unused)
    guaranteed = [row.word for row in read_word_list(Path(words))] if words is not None else []
    counts = count_words(
        read_paragraphs(paths, settings.text, skip_bad_rows=settings.on_bad_row == "skip"),
        lowercase=not settings.cased,
        strip_accents=settings.strip_accents,
        workers=settings.workers or usable_cores(),
        total=_total_bytes(paths),
        progress=progress,
    )
    if settings.strip_accents:
        _report_lost_marks(paths, settings, progress)
    pieces = choose_pieces(
        counts,
        settings.size,
        lowercase=not settings.cased,
        strip_accents=settings.strip_accents,
        words=guaranteed,
        minimum_frequency=settings.minimum_frequency,
        first=first,
        progress=progress,
    )
    fit = measure_fit(counts, pieces)
    with replaced_folder(folder) as temporary:
        # None, as in the published BERT files, means the same value as ``lowercase``.
        strip_accents = False if settings.keep_accents else None
        Tokenizer.from_vocabulary(pieces, lowercase=not settings.cased, strip_accents=strip_accents).save(temporary)
    return LearnedVocabulary(folder, len(pieces), settings.cased, settings.keep_accents, fit)


def measure_fit(counts: WordCounts, pieces: Sequence[str]) -> Fit:
    """Split every counted word with the tokenizer's algorithm. Rare words that were dropped are not included."""
    model = WordPiece(
        {piece: number for number, piece in enumerate(pieces)},
        unk_token=UNKNOWN,
        continuing_subword_prefix=CONTINUATION,
        max_input_chars_per_word=LONGEST_WORD,
    )
    seen = unknown = total = counts.too_long
    one_piece = 0
    for word, count in counts:
        tokens = model.tokenize(word)
        seen += count
        total += count * len(tokens)
        if tokens[0].value == UNKNOWN:
            unknown += count
        elif len(tokens) == 1:
            one_piece += count
    return Fit(counts.words, counts.different, one_piece / seen, unknown / seen, total / seen)


def _report_lost_marks(paths: Sequence[Path], settings: VocabularySettings, progress: Progress) -> None:
    """Warn if the text has vowel signs, which an uncased vocabulary strips together with accents."""
    files = [path for path in paths if path.is_file()]  # a pipe can be read only once
    paragraphs = islice(read_paragraphs(files, settings.text, skip_bad_rows=True), _SAMPLED_PARAGRAPHS)
    words = Counter(word for paragraph in paragraphs for word in paragraph[:_SAMPLED_CHARACTERS].split())
    scripts, concerned, signs = Counter[str](), 0, 0
    for word, count in words.items():
        if lost := lost_marks(word):
            scripts.update({script: count * times for script, times in Counter(lost).items()})
            concerned, signs = concerned + count, signs + count * len(lost)
    if signs < _FEWEST_SIGNS:
        return
    names, share = ", ".join(script.capitalize() for script, _ in scripts.most_common(3)), concerned / words.total()
    progress.say(
        f"{names}: an uncased vocabulary strips vowel signs together with accents, in {share:.0%} of "
        "the words, so that different words become the same; use --keep-accents to lowercase but keep them, or --cased"
    )


def lost_marks(word: str) -> list[str]:
    """Return the scripts of the marks in a word that the normalizer strips although they are not accents.

    The normalizer decomposes the word (NFD) and drops non-spacing marks (Mn). In Latin, Greek and Cyrillic these are
    accents; in other scripts they are vowels or change the consonant. A mark shared by all scripts (COMBINING) belongs
    to the script of the preceding letter.
    """
    if word.isascii():
        return []
    lost, script = [], ""
    for character in unicodedata.normalize("NFD", word):
        name = unicodedata.name(character, "").partition(" ")[0]
        if unicodedata.category(character) != "Mn":
            script = name if character.isalpha() else ""
        elif name != "VARIATION" and (own := script if name == "COMBINING" else name) not in _WITH_ACCENTS:
            lost.append(own)
    return lost


def _total_bytes(paths: Sequence[Path]) -> int | None:
    """Return the size of the text in bytes, or None if it is unknown (compressed files, Parquet).

    Missing files are ignored here; reading them raises the error.
    """
    if any(is_compressed(path) or format_of(path) == "parquet" for path in paths):
        return None
    return sum(path.stat().st_size for path in paths if path.is_file())
