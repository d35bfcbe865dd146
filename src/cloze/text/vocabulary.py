"""Text -> vocabulary: the pieces that a model knows, learned from a text and kept in ``vocab.txt``.

WordPiece (Devlin et al. 2019, section 3, "Input/Output Representations"; Wu et al. 2016, section 4.1). A
piece is a whole word or the start of one; with ``##`` in front it goes on inside a word. What is learned is
a pure function of the text: every order below is one of counts with ties broken by the pieces themselves,
never one of a hash.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import Literal

from cloze.errors import CheckpointError, ConfigError, DataError
from cloze.progress import Progress, Silent
from cloze.text.bpe import learn_merges
from cloze.text.characters import is_ideograph, replace_surrogates
from cloze.text.word_counts import LONGEST_WORD as LONGEST_WORD
from cloze.text.word_counts import WordCounts, basic_words, count_words

PAD, UNKNOWN, CLS, SEP, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUATION = "##"

# The largest BERT vocabulary in use (LaBSE, half a million pieces) takes five megabytes.
LARGEST_FILE = 16_000_000
# Scripts without ideographs come to a few hundred characters; the rest is noise from encodings and pictures.
LARGEST_ALPHABET = 1000
# Between [PAD] and [UNK] in the published English vocabularies.
PUBLISHED_UNUSED = 99

Layout = Literal["compact", "published"]


def read_vocabulary(path: Path) -> list[str]:
    """Read the pieces of a ``vocab.txt``: one a line, its number the id."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise CheckpointError(f"{path}: over {LARGEST_FILE:,} bytes, which no vocabulary needs")
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from None
    # Not splitlines(): the Chinese vocabulary has U+2028 as a piece.
    pieces = [line.removesuffix("\r") for line in text.split("\n")]
    while pieces and not pieces[-1]:
        pieces.pop()
    check_pieces(pieces, path, numbered="line")
    return pieces


def write_vocabulary(path: Path, pieces: Sequence[str]) -> None:
    """Write the pieces, one a line."""
    check_pieces(pieces, path)
    path.write_bytes("".join(f"{piece}\n" for piece in pieces).encode())


def check_pieces(pieces: Sequence[str], place: Path | str, numbered: Literal["id", "line"] = "id") -> None:
    """Refuse what a file cannot hold, a piece that has two ids, and the lack of a special token."""
    seen: dict[str, int] = {}
    for number, piece in enumerate(pieces, start=numbered == "line"):
        flaw = None
        if not piece or "\n" in piece or "\r" in piece:
            flaw = "is not a piece; one must fill a line, and no more"
        elif piece in seen:
            flaw = f"has the {numbered} {seen[piece]} already; a piece has one"
        elif replace_surrogates(piece) != piece:
            flaw = "is not valid Unicode text"
        if flaw is not None:
            raise CheckpointError(f"{place}, {numbered} {number}: {piece[:50]!r} {flaw}")
        seen[piece] = number
    if missing := [piece for piece in SPECIAL if piece not in seen]:
        raise CheckpointError(
            f"{place}: {', '.join(missing)} missing; a BERT vocabulary has all of {', '.join(SPECIAL)}"
        )


def first_entries(layout: Layout, unused: int | None) -> list[str]:
    """Return what stands before all that is learned: the special tokens, and entries for words to be added later.

    ``published`` is the place of each in BERT's own English vocabularies: [PAD] 0, 99 unused entries, [UNK] 100
    and so on; what is unused beyond the 99 follows. With None, a layout has no more than it needs.
    """
    needed = PUBLISHED_UNUSED if layout == "published" else 0
    spare = [f"[unused{number}]" for number in range(needed if unused is None else unused)]
    if len(spare) < needed:
        raise ConfigError(
            f"unused is {unused}; the published layout has {needed} unused entries or more; "
            "ask for as many, or for the compact layout"
        )
    first, *others = SPECIAL
    return [first, *spare[:needed], *others, *spare[needed:]]


def learn_pieces(
    texts: Iterable[str],
    size: int,
    *,
    lowercase: bool = True,
    words: Iterable[str] = (),
    minimum_frequency: int = 2,
    first: Sequence[str] = SPECIAL,
    workers: int = 1,
    progress: Progress | None = None,
) -> list[str]:
    """Learn at most ``size`` pieces from texts; the same ones whatever the number of ``workers`` that count."""
    progress = progress or Silent()
    counts = count_words(texts, lowercase=lowercase, workers=workers, total=None, progress=progress)
    return choose_pieces(
        counts,
        size,
        lowercase=lowercase,
        words=words,
        minimum_frequency=minimum_frequency,
        first=first,
        progress=progress,
    )


def choose_pieces(
    counts: WordCounts,
    size: int,
    *,
    lowercase: bool,
    words: Iterable[str],
    minimum_frequency: int,
    first: Sequence[str],
    progress: Progress,
) -> list[str]:
    """Choose at most ``size`` pieces: the ``first`` ones, characters, ``words``, then what merging finds.

    Each of ``words`` becomes a whole entry; what the basic tokenizer splits (``covid-19``) has an entry for
    each part. Characters rarer than ``minimum_frequency`` or beyond the 1,000 most frequent are left to
    [UNK]; ideographs compete with merged pieces for the room, by count. A text with little in it may give
    fewer pieces than asked for.
    """
    if not counts.kept:
        raise DataError("no words in the text: a vocabulary needs some text to learn from")
    wanted = list(dict.fromkeys(part for word in words for part in basic_words(word, lowercase)))
    alphabet, ideographs = _choose_characters(counts, wanted, minimum_frequency)
    fixed = list(dict.fromkeys([*first, *alphabet, *wanted]))
    if len(fixed) > size:
        raise ConfigError(
            f"a vocabulary of {size:,} pieces is too small: the special tokens, the unused entries, the characters of "
            f"this text and the words asked for take {len(fixed):,}; ask for more"
        )
    _tell(counts, len(alphabet), len(ideographs), progress)
    candidates = merge(
        learn_merges(counts, alphabet, minimum_frequency),
        ((count, character) for character, count in ideographs),
        key=lambda candidate: -candidate[0],
    )
    chosen = _choose_learned(candidates, set(fixed), size - len(fixed), progress)
    alphabet_end = len(first) + len(alphabet)
    characters = sorted(piece for piece in chosen if len(piece) == 1)
    learned = [piece for piece in chosen if len(piece) > 1]
    return [*fixed[:alphabet_end], *characters, *fixed[alphabet_end:], *learned]


def _tell(counts: WordCounts, characters: int, ideographs: int, progress: Progress) -> None:
    progress.say(f"{counts.different:,} different words, {characters:,} characters and {ideographs:,} ideographs")
    if counts.kept < counts.different:
        progress.say(
            f"pieces are learned from the {counts.kept:,} most frequent of them, down to a count of {counts.least:,}; "
            "the others are left out"
        )


def _choose_learned(candidates: Iterator[tuple[int, str]], known: set[str], room: int, progress: Progress) -> list[str]:
    chosen: list[str] = []
    for piece in islice((piece for _, piece in candidates if piece not in known), room):
        chosen.append(piece)
        if len(chosen) % 100 == 0:
            progress.advance("learning pieces", len(chosen), room)
    # The text may have given fewer than there was room for.
    progress.advance("learning pieces", len(chosen), len(chosen))
    return chosen


def _choose_characters(
    counts: WordCounts, wanted: list[str], minimum_frequency: int
) -> tuple[list[str], list[tuple[str, int]]]:
    """Return the alphabet, sorted, and the ideographs with their counts, most frequent first."""
    characters: Counter[str] = Counter()
    inside: set[str] = set()
    for word, count in counts:
        for character in word:
            characters[character] += count
        if len(word) > 1:
            inside.update(word)
    ranked = sorted(characters.items(), key=lambda item: (-item[1], item[0]))
    frequent = [(character, count) for character, count in ranked if count >= minimum_frequency] or ranked
    kept = [character for character, _ in frequent if not is_ideograph(character)][:LARGEST_ALPHABET]
    # Every letter in both forms, so that no word of known letters is ever unknown.
    continued = [CONTINUATION + character for character in kept if character in inside]
    ideographs = [(character, count) for character, count in frequent if is_ideograph(character)]
    kept.extend(word for word in wanted if len(word) == 1 and word not in kept)
    return sorted(kept) + sorted(continued), ideographs
