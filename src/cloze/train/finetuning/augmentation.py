"""Data augmentation for small training sets: changed copies of training rows, with the same labels.

Contextual augmentation (Kobayashi, 2018; Wu et al., 2019) masks some words of a text and samples replacements from the
predictions of the model's masked-LM head.

Small edits preserve the label of a text (Wei and Zou, 2019, "EDA: easy data augmentation"). A text is split into words
and the gaps between them. Words are swapped, deleted, duplicated or replaced with synonyms; punctuation and spaces stay
where they were. Synonyms are read from a file or taken from the nearest neighbours among the model's token embeddings.

The copies depend only on the rows, the seed and the model, so that a resumed run has the same rows. Dev rows are never
changed.

Dimensions: V vocabulary, H hidden size, M masked words.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from cloze.checkpoint import ModelFolder
from cloze.errors import ConfigError, DataError, RequestError
from cloze.files import Lines, open_file
from cloze.model.batch import Batch
from cloze.predict import Model
from cloze.progress import Progress
from cloze.tasks.classification.kind import LabelledTexts
from cloze.tasks.correction.examples import Similar, cased_like
from cloze.tasks.examples import Examples
from cloze.tasks.registry import TaskData
from cloze.text import Encoding, Tokenizer, WordSplitter
from cloze.text.boundaries import is_ideograph
from cloze.text.encoding import Word
from cloze.text.vocabulary import CONTINUATION
from cloze.train.finetuning.settings import FinetuneSettings

# Fraction of the words of a text to edit, at least one: the paper's recommendation for all but the smallest data sets.
SHARE = 0.1
# Replacements are sampled from this many most likely pieces.
_TOP_K = 10
# Synonyms of a word: at most this many nearest neighbours, with at least this cosine similarity.
_NEIGHBOURS, _MIN_COSINE = 5, 0.3
_WORDS_PER_PRODUCT = 512  # words per matrix product, which bounds its memory
_STREAM = 1  # separates these random numbers from those of order and dropout, which have the same seed

Proposals = tuple[list[int], list[float]]  # piece ids and their probabilities


def check_augment(data: TaskData, base: ModelFolder, name: str, settings: FinetuneSettings) -> None:
    """Check that the augmentation settings fit the task and the model."""
    if settings.augment == "none":
        return
    assert isinstance(data.train, LabelledTexts), "check_kind rejects other kinds"
    if settings.synonyms is not None:
        read_synonyms(Path(settings.synonyms))
    if settings.augment == "contextual" and "mlm" not in base.model.heads:
        heads = ", ".join(base.model.head_names) or "none"
        raise ConfigError(
            f"{name}: augment contextual needs the head mlm, but this model has the heads: {heads}; "
            "start from a pre-trained model, or choose edits"
        )


def augment_rows(
    data: TaskData, base: ModelFolder, settings: FinetuneSettings, device: str | None, progress: Progress
) -> Examples:
    """Return the training rows, followed by their augmented copies."""
    rows = data.train
    if settings.augment == "none":
        return rows
    assert isinstance(rows, LabelledTexts), "check_kind rejects other kinds"
    texts = [tuple(row) for row in rows.documents()]
    model = Model(base, device=device)
    augment = _contextual_copies if settings.augment == "contextual" else _edited_copies
    copies = augment(texts, model, settings)
    progress.say(f"{len(copies)} augmented rows from {len(rows)} training rows ({settings.augment})")
    return _concatenate(rows, copies)


def _generator(settings: FinetuneSettings, copy: int, row: int) -> np.random.Generator:
    """Return the random generator of one copy of one row."""
    return np.random.default_rng([settings.seed, _STREAM, copy, row])


def _contextual_copies(
    texts: Sequence[tuple[str, ...]], model: Model, settings: FinetuneSettings
) -> list[tuple[int, tuple[str, ...]]]:
    """Return (row, texts) of every copy with words replaced with the model's predictions."""
    augmenter = ContextualAugmenter(model)
    copies = []
    for copy in range(settings.augment_copies):
        generators = [_generator(settings, copy, row) for row in range(len(texts))]
        augmented = enumerate(augmenter.replace(texts, generators))
        copies += [(row, new_texts) for row, new_texts in augmented if new_texts is not None]
    return copies


def _edited_copies(
    texts: Sequence[tuple[str, ...]], model: Model, settings: FinetuneSettings
) -> list[tuple[int, tuple[str, ...]]]:
    """Return (row, texts) of every copy with random edits."""
    if settings.synonyms is not None:
        synonyms = read_synonyms(Path(settings.synonyms))
    else:
        editor = Editor({})
        words = {word.lower() for row in texts for text in row for word in editor.words(text)}
        synonyms = nearest_words(model, words)
    return edit_rows(
        texts, Editor(synonyms), settings.augment_copies, lambda copy, row: _generator(settings, copy, row)
    )


def _concatenate(rows: LabelledTexts, copies: Sequence[tuple[int, tuple[str, ...]]]) -> LabelledTexts:
    """Append the copies, each with the target and the location of its original row."""
    assert rows.targets is not None, "training rows have labels"
    sources = [row for row, _ in copies]
    return LabelledTexts(
        texts=rows.texts + [texts[0] for _, texts in copies],
        pairs=None if rows.pairs is None else rows.pairs + [texts[1] for _, texts in copies],
        targets=[*rows.targets, *(rows.targets[row] for row in sources)],
        places=rows.places + [rows.places[row] for row in sources],
        skipped=rows.skipped,
    )


class ContextualAugmenter:
    """Replaces words of texts with predictions of a model's masked-LM head."""

    def __init__(self, model: Model, share: float = SHARE) -> None:
        if "mlm" not in model.heads:
            heads = ", ".join(model.heads) or "none"
            raise RequestError(f"this model has no 'mlm' head (its heads: {heads}); load a folder that has one")
        self._model, self._share = model, share
        self._is_word = torch.from_numpy(whole_word_pieces(model.tokenizer))

    def replace(
        self, texts: Sequence[tuple[str, ...]], generators: Sequence[np.random.Generator]
    ) -> list[tuple[str, ...] | None]:
        """Return a changed copy of each row of one or two texts, or None for a row without a word to replace.

        Args:
            texts: The rows.
            generators: One random generator per row.
        """
        tokenizer = self._model.tokenizer
        encoded = [tokenizer(*row) for row in texts]
        chosen = [
            self._choose_words(tokenizer.words(encoding, *row), generator)
            for row, encoding, generator in zip(texts, encoded, generators, strict=True)
        ]
        masked = [_mask_words(encoding, words, tokenizer) for encoding, words in zip(encoded, chosen, strict=True)]
        proposals = self._model.run(masked, self._propose)
        rows = zip(texts, chosen, proposals, generators, strict=True)
        return [self._fill(row, words, proposed, generator) for row, words, proposed, generator in rows]

    def _choose_words(self, words: Sequence[Word], generator: np.random.Generator) -> list[Word]:
        """Choose the words to mask, in text order; punctuation is never chosen."""
        candidates = [word for word in words if any(map(str.isalnum, word.text))]
        if not candidates:
            return []
        order = generator.permutation(len(candidates))[: changes_of(len(candidates), self._share)]
        return [candidates[index] for index in sorted(order.tolist())]

    @torch.inference_mode()
    def _propose(self, batch: Batch) -> list[list[Proposals]]:
        """Return the most likely pieces at each masked word: one more than needed, since the word itself may be one."""
        bert, mask_id = self._model.bert, self._model.tokenizer.mask_id
        blanks = batch.ids.flatten().eq(mask_id).nonzero().flatten()
        last = bert.word_states(batch.ids, batch.segments, batch.mask, blanks)
        proposals = []
        for ids, states in zip(batch.ids, last, strict=True):
            logits = bert.heads["mlm"](states[ids == mask_id])[:, : len(self._is_word)]
            probabilities = logits.cpu().double().masked_fill(~self._is_word, float("-inf")).softmax(-1)  # (M, V)
            best = probabilities.topk(min(_TOP_K + 1, probabilities.shape[-1]))
            proposals.append(list(zip(best.indices.tolist(), best.values.tolist(), strict=True)))
        return proposals

    def _fill(
        self,
        row: tuple[str, ...],
        words: Sequence[Word],
        proposed: Sequence[Proposals],
        generator: np.random.Generator,
    ) -> tuple[str, ...] | None:
        texts = list(row)
        # From the end, so that the offsets of the words before remain valid.
        for word, proposals in reversed(list(zip(words, proposed, strict=True))):
            replacement = self._draw(word, proposals, generator)
            text = texts[word.source]
            texts[word.source] = text[: word.start] + cased_like(word.text, replacement) + text[word.end :]
        return tuple(texts) if words else None

    def _draw(self, word: Word, proposals: Proposals, generator: np.random.Generator) -> str:
        """Sample one of the most likely pieces by probability, excluding the word itself."""
        pieces = [(self._model.tokenizer.piece(number), weight) for number, weight in zip(*proposals, strict=True)]
        others = [(piece, weight) for piece, weight in pieces if piece.lower() != word.text.lower()][:_TOP_K]
        weights = np.array([weight for _, weight in others])
        return others[int(generator.choice(len(others), p=weights / weights.sum()))][0]


def whole_word_pieces(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """Return which pieces are whole words, (V,): no special or unused tokens, continuations or punctuation."""
    return np.array([piece.isalnum() and not piece.startswith(CONTINUATION) for piece in tokenizer.pieces])


def _mask_words(encoding: Encoding, words: Sequence[Word], tokenizer: Tokenizer) -> Encoding:
    """Replace each of these words with a single [MASK], however many pieces it has."""
    starts = {word.first for word in words}
    continuations = {word.first + offset for word in words for offset in range(1, len(word.ids))}
    kept = [index for index in range(len(encoding.ids)) if index not in continuations]
    return Encoding(
        [tokenizer.mask_id if index in starts else encoding.ids[index] for index in kept],
        [encoding.segments[index] for index in kept],
        [encoding.tokens[index] for index in kept],
        [encoding.offsets[index] for index in kept],
        [encoding.sources[index] for index in kept],
    )


@torch.inference_mode()
def nearest_words(model: Model, words: Iterable[str]) -> dict[str, list[str]]:
    """Return the nearest neighbours, among the token embeddings, of each word that is a single piece."""
    tokenizer = model.tokenizer
    whole_words = np.flatnonzero(whole_word_pieces(tokenizer))
    allowed = set(whole_words.tolist())
    ids = {word: number for word in words if (number := tokenizer.id(word)) is not None and number in allowed}
    table = functional.normalize(model.bert.token_table.weight.float(), dim=-1)  # (V, H)
    candidates = torch.from_numpy(whole_words).to(table.device)
    neighbours: dict[str, list[str]] = {}
    known = sorted(ids)
    for start in range(0, len(known), _WORDS_PER_PRODUCT):
        group = known[start : start + _WORDS_PER_PRODUCT]
        cosines = table[[ids[word] for word in group]] @ table[candidates].T
        best = cosines.topk(min(_NEIGHBOURS + 1, len(whole_words)))
        for word, values, indices in zip(group, best.values.tolist(), best.indices.tolist(), strict=True):
            close = [index for index, value in zip(indices, values, strict=True) if value >= _MIN_COSINE]
            pieces = [tokenizer.piece(int(whole_words[index])) for index in close]
            neighbours[word] = [piece for piece in pieces if piece.lower() != word.lower()][:_NEIGHBOURS]
    return neighbours


# -- edits of words ----------------------------------------------------------------------------------------------------


# Letters and digits, with apostrophes and hyphens inside a word: don't, well-known.
_RUN = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")


@dataclass
class _Words:
    """A text as words and gaps: gap, word, gap, word, ..., gap."""

    words: list[str]
    gaps: list[str]

    def joined(self) -> str:
        pairs = zip(self.gaps, self.words, strict=False)
        return "".join(part for pair in pairs for part in pair) + self.gaps[-1]

    def copy(self) -> "_Words":
        return _Words(list(self.words), list(self.gaps))


class Editor:
    """Creates edited copies of texts."""

    def __init__(self, similar: Similar, share: float = SHARE) -> None:
        """Create an editor; ``similar`` maps a word to its possible replacements."""
        self._similar, self._share = similar, share
        self._splitter = WordSplitter()

    def words(self, text: str) -> list[str]:
        """Return the words of a text that can be edited, without punctuation."""
        return self._split(text).words

    def edit(self, text: str, generator: np.random.Generator) -> str | None:
        """Return a copy of a text with one kind of edit; None if no kind of edit changes it."""
        split = self._split(text)
        count = changes_of(len(split.words), self._share)
        for number in generator.permutation(4):
            change = (self._replace, _swap, _delete, _insert)[number]
            changed = split.copy()
            change(changed, count, generator)
            edited = changed.joined()
            if edited != text and edited.strip():
                return edited
        return None

    def _split(self, text: str) -> _Words:
        spans = [span for found in _RUN.finditer(text) for span in self._parts(text, *found.span())]
        edges = [0, *(edge for span in spans for edge in span), len(text)]
        gaps = [text[edges[index] : edges[index + 1]] for index in range(0, len(edges), 2)]
        return _Words([text[slice(*span)] for span in spans], gaps)

    def _parts(self, text: str, start: int, end: int) -> list[tuple[int, int]]:
        """Return the spans of the words in a run of letters: one, or those of the word splitter for Chinese."""
        run = text[start:end]
        if not any(map(is_ideograph, run)):
            return [(start, end)]
        return [(start + first, start + last) for first, last in self._splitter.spans(run)]

    def _replace(self, split: _Words, count: int, generator: np.random.Generator) -> None:
        """Replace some words with similar ones."""
        known = [place for place, word in enumerate(split.words) if self._similar.get(word.lower())]
        for place in _some(known, count, generator):
            word = split.words[place]
            others = self._similar[word.lower()]
            split.words[place] = cased_like(word, others[int(generator.integers(len(others)))])


def changes_of(words: int, share: float) -> int:
    """Return how many of ``words`` words to edit."""
    return max(1, round(share * words))


def _some(places: Sequence[int], count: int, generator: np.random.Generator) -> list[int]:
    chosen = generator.permutation(len(places))[:count]
    return [places[int(index)] for index in chosen]


def _swap(split: _Words, count: int, generator: np.random.Generator) -> None:
    """Swap pairs of words; each word is in at most one pair."""
    places = _some(range(len(split.words)), max(2, count // 2 * 2), generator)
    for one, other in zip(places[::2], places[1::2], strict=False):
        split.words[one], split.words[other] = split.words[other], split.words[one]


def _delete(split: _Words, count: int, generator: np.random.Generator) -> None:
    """Delete some words, never all of them, with the space before each."""
    lost = _some(range(len(split.words)), min(count, len(split.words) - 1), generator)
    for place in sorted(lost, reverse=True):
        del split.words[place]
        before, after = split.gaps[place], split.gaps[place + 1]
        split.gaps[place : place + 2] = [(before.rstrip() if place else before) + (after if place else after.lstrip())]


def _insert(split: _Words, count: int, generator: np.random.Generator) -> None:
    """Insert copies of some words before other words."""
    for _ in range(min(count, len(split.words))):
        word = split.words[int(generator.integers(len(split.words)))]
        place = int(generator.integers(len(split.words)))
        split.words.insert(place, word)
        split.gaps.insert(place + 1, "" if is_ideograph(word[-1]) else " ")


def read_synonyms(path: Path) -> dict[str, list[str]]:
    """Read lines with a word, a tab and its space-separated synonyms; the relation is not made symmetric."""
    found: dict[str, list[str]] = {}
    with open_file(path) as stream:
        lines = Lines(path, stream)
        for line in lines:
            word, _, others = line.partition("\t")
            if not line.strip():
                continue
            if not word.strip() or not others.strip():
                raise DataError(f"{lines.place}: {line[:50]!r}; expected a word, a tab, and space-separated synonyms")
            own = word.strip().lower()
            found.setdefault(own, []).extend(other for other in others.split() if other.lower() != own)
    if not any(found.values()):
        raise DataError(f"{path}: contains no word with a synonym; expected a word, a tab, and synonyms on each line")
    return found


def edit_rows(
    texts: Sequence[tuple[str, ...]],
    editor: Editor,
    copies: int,
    generator_of: Callable[[int, int], np.random.Generator],
) -> list[tuple[int, tuple[str, ...]]]:
    """Return ``copies`` edited copies of each row with the row's index; every text of a row is edited if possible."""
    result = []
    for copy in range(copies):
        for row, parts in enumerate(texts):
            generator = generator_of(copy, row)
            edited = [editor.edit(part, generator) for part in parts]
            if any(part is not None for part in edited):
                pairs = zip(edited, parts, strict=True)
                result.append((row, tuple(old if new is None else new for new, old in pairs)))
    return result
