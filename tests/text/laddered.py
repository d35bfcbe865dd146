"""Tokenizers with out-of-vocabulary rungs for tests, and a slow, plain implementation of the rungs without offsets."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from cloze.errors import DataError
from cloze.text import SPECIAL, Tokenizer
from cloze.text.oov.extension import Additions, EntityRow, WordRow, extend_tokenizer
from cloze.text.oov.ladder import Entity, Ladder
from tests.text import reference

LETTERS = "abc"
# Characters that none of the random vocabularies contains.
STRANGE = "zé☃"


def extended(
    tokenizer: Tokenizer,
    words: Sequence[str] = (),
    entities: Sequence[tuple[str, ...]] = (),
    *,
    characters: bool = False,
    look_alikes: bool = False,
    similar: Sequence[tuple[str, str]] = (),
) -> Tokenizer:
    """Return a tokenizer extended as by ``cloze extend``."""
    additions = Additions(
        words=[WordRow(f"words:{number}", word) for number, word in enumerate(words, start=1)],
        entities=[EntityRow(f"map:{number}", Entity(*entry)) for number, entry in enumerate(entities, start=1)],
        characters=characters,
        look_alikes=look_alikes,
        similar=similar,
    )
    return extend_tokenizer(tokenizer, additions).tokenizer


def plain(tokenizer: Tokenizer) -> Tokenizer:
    """Return the vocabulary before any extension: added words become unused entries again."""
    added = set(tokenizer.settings.ladder.words)
    pieces = (f"[was {piece}]" if piece in added else piece for piece in tokenizer.pieces)
    return Tokenizer(replace(tokenizer.settings, pieces=tuple(pieces), ladder=Ladder()))


def rungs(tokenizer: Tokenizer, text: str, pair: str | None = None) -> list[tuple[str, str, str]]:
    """Return the words of a text, with the rung and the tokens of each."""
    words = tokenizer.words(tokenizer(text, pair), text, pair)
    return [(word.text, word.rung, " ".join(word.tokens)) for word in words]


def drawn_tokenizer(source: random.Random, *, lowercase: bool = True) -> Tokenizer:
    """Return a vocabulary of letters, symbols and ideographs, most in one form only, with some unused entries."""
    pieces = {"-", "北", "京", "[unused0]", "[unused1]", "a"}
    while len(pieces) < 24:
        piece = "".join(source.choices(LETTERS, k=source.randint(1, 3)))
        pieces.add(piece if source.random() < 0.5 else f"##{piece}")
    return Tokenizer.from_vocabulary([*SPECIAL, *sorted(pieces)], lowercase=lowercase)


def drawn_word(source: random.Random) -> str:
    return "".join(source.choices(LETTERS * 3 + STRANGE, k=source.randint(1, 5)))


def drawn_text(source: random.Random, parts: Sequence[str] = ()) -> str:
    """Return words, ideographs and symbols, with and without spaces; including some of ``parts``."""
    made = []
    for _ in range(source.randint(0, 12)):
        choices = [drawn_word(source), drawn_word(source), source.choice("北京中"), "-", *source.sample(parts, k=1)]
        made.append(source.choice(choices) + source.choice(["", " ", " ", " ", "\u200b "]))
    return "".join(made)


def drawn_ladder(source: random.Random, tokenizer: Tokenizer, *, characters: bool) -> Tokenizer:
    """Return random words and entities for a tokenizer."""
    joints = ["-", " ", "", "北"]
    words = [drawn_word(source) for _ in range(5)]
    words += [drawn_word(source) + source.choice(joints) + drawn_word(source) for _ in range(3)]
    result = extended(tokenizer, words, characters=characters)
    for _ in range(8):
        surface = source.choice([" ", "-"]).join(drawn_word(source) for _ in range(source.randint(1, 3)))
        try:
            result = extended(result, entities=[(surface, source.choice(["a", "a a", "北 京 a"]))])
        except DataError:
            continue
    return result


def resolve(text: str, tokenizer: Tokenizer) -> list[int]:
    """Apply rungs 1 to 4: words, then phrases at word boundaries, the longest first."""
    ladder, lowercase = tokenizer.settings.ladder, tokenizer.lowercase
    ids = {piece: number for number, piece in enumerate(tokenizer.pieces)}
    base = {piece: number for piece, number in ids.items() if piece not in ladder.words}
    singles = {word for word in ladder.words if reference.basic_tokens(word, lowercase) == [word]}

    def read(given: str) -> list[list[str]]:
        words = reference.basic_tokens(given, lowercase)
        return [[word] if word in singles else spell(word, base, ladder.characters) for word in words]

    # Surface -> its replacement, as pieces.
    phrases = {word: [word] for word in ladder.words if word not in singles}
    phrases |= {one.surface: [piece for word in read(one.words) for piece in word] for one in ladder.entities}
    known = [(read(surface), reference.basic_tokens(surface, lowercase), new) for surface, new in phrases.items()]
    known.sort(key=lambda entry: -sum(map(len, entry[0])))
    words, originals = read(text), reference.basic_tokens(text, lowercase)
    found: list[str] = []
    while words:
        for surface, meant, new in known:
            size = _matched(words, surface)
            if size and ("[UNK]" not in [*chain(*surface)] or originals[:size] == meant):
                found += new
                break
        else:
            size = 1
            found += words[0]
        words, originals = words[size:], originals[size:]
    return [ids[piece] for piece in found]


def _matched(words: list[list[str]], surface: list[list[str]]) -> int:
    """Return how many leading words have the surface's pieces, regardless of boundaries between them; 0 if none do."""
    pieces = [*chain(*surface)]
    sizes = (size for size in range(1, len(words) + 1) if [*chain(*words[:size])] == pieces)
    return next(sizes, 0)


def spell(word: str, base: Mapping[str, int], characters: bool) -> list[str]:
    """Return a word's pieces; if there are none and characters are allowed, the longest matches from the left."""
    pieces = reference.word_pieces(word, base)
    if pieces != ["[UNK]"] or not characters or len(word) > 1000:
        return pieces
    spelled: list[str] = []
    while word:
        prefix = "##" if spelled else ""
        fits = [size for size in range(1, len(word) + 1) if prefix + word[:size] in base]
        size = max(fits, default=1)
        forms = (prefix + word[:size], word[0], f"##{word[0]}", "[UNK]")
        piece = next(form for form in forms if form in base)
        if piece != "[UNK]" or spelled[-1:] != ["[UNK]"]:
            spelled.append(piece)
        word = word[size:]
    return spelled
