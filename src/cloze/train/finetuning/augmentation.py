"""Words that could stand for others, as a model has them: what its masked-word head proposes, and like vectors.

The first is contextual augmentation (Kobayashi, 2018; Wu et al., 2019): some words of a text are hidden, and what the
model would say in their place stands there in a copy of it.

Dimensions: V vocabulary, H hidden size, M hidden words.

More training rows where there are few: changed copies of those that are there, with their labels.

What is made is a function of the rows, the seed and the model alone, so that a run that goes on sees the same rows. The
rows for scoring are never touched.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from cloze.checkpoint import ModelFolder
from cloze.errors import ConfigError, RequestError
from cloze.model.batch import Batch
from cloze.predict import Model
from cloze.progress import Progress
from cloze.tasks.classification.kind import LabelledTexts
from cloze.tasks.examples import Examples
from cloze.tasks.registry import TaskData
from cloze.tasks.text_edits import SHARE, Editor, cased_like, changes_of, edit_rows, read_synonyms
from cloze.text import Encoding, Tokenizer
from cloze.text.encoding import Word
from cloze.text.vocabulary import CONTINUATION
from cloze.train.finetuning.settings import FinetuneSettings

# So many of the likeliest proposals are drawn from, by their probability.
_PROPOSALS = 10
# So many words of like vectors stand for a word, and how like they have to be.
_NEIGHBOURS, _LEAST_COSINE = 5, 0.3
_WORDS_A_PRODUCT = 512


Proposals = tuple[list[int], list[float]]  # pieces, and how likely each is


class ContextualAugmenter:
    """Makes copies of texts with words that a model itself would say."""

    def __init__(self, model: Model, share: float = SHARE) -> None:
        if "mlm" not in model.heads:
            there = ", ".join(model.heads) or "none"
            raise RequestError(f"this model has no 'mlm' head (its heads: {there}); load a folder that has one")
        self._model, self._share = model, share
        self._sayable = torch.from_numpy(sayable(model.tokenizer))

    def replace(
        self, texts: Sequence[tuple[str, ...]], generators: Sequence[np.random.Generator]
    ) -> list[tuple[str, ...] | None]:
        """A copy of each row, a text or two, with a generator of its own; None where no word can be replaced."""
        tokenizer = self._model.tokenizer
        encoded = [tokenizer(*row) for row in texts]
        chosen = [
            self._choose(tokenizer.words(encoding, *row), generator)
            for row, encoding, generator in zip(texts, encoded, generators, strict=True)
        ]
        hidden = [_hide(encoding, words, tokenizer) for encoding, words in zip(encoded, chosen, strict=True)]
        found = self._model.run(hidden, self._propose)
        rows = zip(texts, chosen, found, generators, strict=True)
        return [self._fill(row, words, proposed, generator) for row, words, proposed, generator in rows]

    def _choose(self, words: Sequence[Word], generator: np.random.Generator) -> list[Word]:
        """Words to hide, in their order: of those that are words and no marks."""
        real = [word for word in words if any(map(str.isalnum, word.text))]
        if not real:
            return []
        order = generator.permutation(len(real))[: changes_of(len(real), self._share)]
        return [real[index] for index in sorted(order.tolist())]

    @torch.inference_mode()
    def _propose(self, batch: Batch) -> list[list[Proposals]]:
        """The likeliest pieces at each hidden word of each sequence, one more than are needed."""
        bert, mask_id = self._model.bert, self._model.tokenizer.mask_id
        last = bert.encode(batch.ids, batch.segments, batch.mask).last
        found = []
        for ids, states in zip(batch.ids, last, strict=True):
            logits = bert.heads["mlm"](states[ids == mask_id])[:, : len(self._sayable)]
            shares = logits.cpu().double().masked_fill(~self._sayable, float("-inf")).softmax(-1)  # (M, V)
            best = shares.topk(min(_PROPOSALS + 1, shares.shape[-1]))
            found.append(list(zip(best.indices.tolist(), best.values.tolist(), strict=True)))
        return found

    def _fill(
        self,
        row: tuple[str, ...],
        words: Sequence[Word],
        proposed: Sequence[Proposals],
        generator: np.random.Generator,
    ) -> tuple[str, ...] | None:
        texts = list(row)
        # From the end, so that the places of the others stay what they are.
        for word, own in reversed(list(zip(words, proposed, strict=True))):
            other = self._draw(word, own, generator)
            text = texts[word.source]
            texts[word.source] = text[: word.start] + cased_like(word.text, other) + text[word.end :]
        return tuple(texts) if words else None

    def _draw(self, word: Word, proposed: Proposals, generator: np.random.Generator) -> str:
        """One of the likeliest pieces, never the word itself."""
        pieces = [(self._model.tokenizer.piece(number), share) for number, share in zip(*proposed, strict=True)]
        others = [(piece, share) for piece, share in pieces if piece.lower() != word.text.lower()][:_PROPOSALS]
        weights = np.array([share for _, share in others])
        return others[int(generator.choice(len(others), p=weights / weights.sum()))][0]


def sayable(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """Which pieces are words of their own, (V,): no special tokens, no unused ones, no ends of words, no marks."""
    return np.array([piece.isalnum() and not piece.startswith(CONTINUATION) for piece in tokenizer.pieces])


def _hide(encoding: Encoding, words: Sequence[Word], tokenizer: Tokenizer) -> Encoding:
    """The sequence with one [MASK] for each of these words, however many pieces it had."""
    starts = {word.first for word in words}
    inner = {word.first + place for word in words for place in range(1, len(word.ids))}
    kept = [place for place in range(len(encoding.ids)) if place not in inner]
    return Encoding(
        [tokenizer.mask_id if place in starts else encoding.ids[place] for place in kept],
        [encoding.segments[place] for place in kept],
        [encoding.tokens[place] for place in kept],
        [encoding.offsets[place] for place in kept],
        [encoding.sources[place] for place in kept],
    )


@torch.inference_mode()
def similar_words(model: Model, words: Iterable[str]) -> dict[str, list[str]]:
    """The words whose vectors in the model's own table are most like those of each of these that is one piece."""
    tokenizer = model.tokenizer
    usable = np.flatnonzero(sayable(tokenizer))
    allowed = set(usable.tolist())
    known = {word: number for word in words if (number := tokenizer.id(word)) is not None and number in allowed}
    table = functional.normalize(model.bert.token_table.weight.float(), dim=-1)  # (V, H)
    candidates = torch.from_numpy(usable).to(table.device)
    found: dict[str, list[str]] = {}
    asked = sorted(known)
    for start in range(0, len(asked), _WORDS_A_PRODUCT):
        group = asked[start : start + _WORDS_A_PRODUCT]
        cosines = table[[known[word] for word in group]] @ table[candidates].T
        best = cosines.topk(min(_NEIGHBOURS + 1, len(usable)))
        for word, values, places in zip(group, best.values.tolist(), best.indices.tolist(), strict=True):
            close = [place for place, value in zip(places, values, strict=True) if value >= _LEAST_COSINE]
            near = [tokenizer.piece(int(usable[place])) for place in close]
            found[word] = [other for other in near if other.lower() != word.lower()][:_NEIGHBOURS]
    return found


_STREAM = 1  # apart from the streams of order and dropout, which start from the same seed


def check_augment(data: TaskData, base: ModelFolder, name: str, settings: FinetuneSettings) -> None:
    """Refuse what cannot be made, before anything is."""
    if settings.augment == "none":
        return
    assert isinstance(data.train, LabelledTexts), "other kinds were refused"
    if settings.synonyms is not None:
        read_synonyms(Path(settings.synonyms))
    if settings.augment == "contextual" and "mlm" not in base.model.heads:
        there = ", ".join(base.model.head_names) or "none"
        raise ConfigError(
            f"{name}: augment contextual asks the head mlm for words, and this model has the heads: {there}; "
            "start from a pre-trained model, or choose edits"
        )


def augment_rows(
    data: TaskData, base: ModelFolder, settings: FinetuneSettings, device: str | None, progress: Progress
) -> Examples:
    """The training rows and, behind them, those that were made of them."""
    rows = data.train
    if settings.augment == "none":
        return rows
    assert isinstance(rows, LabelledTexts), "others were refused"
    texts = [tuple(row) for row in rows.documents()]
    model = Model(base, device=device)
    make = _contextual if settings.augment == "contextual" else _edited
    made = make(texts, model, settings)
    progress.say(f"{len(made)} training rows were made of {len(rows)} by {settings.augment}")
    return _joined(rows, made)


def _generator(settings: FinetuneSettings, copy: int, row: int) -> np.random.Generator:
    return np.random.default_rng([settings.seed, _STREAM, copy, row])


def _contextual(
    texts: Sequence[tuple[str, ...]], model: Model, settings: FinetuneSettings
) -> list[tuple[int, tuple[str, ...]]]:
    proposer = ContextualAugmenter(model)
    made = []
    for copy in range(settings.augment_copies):
        generators = [_generator(settings, copy, row) for row in range(len(texts))]
        found = enumerate(proposer.replace(texts, generators))
        made += [(row, told) for row, told in found if told is not None]
    return made


def _edited(
    texts: Sequence[tuple[str, ...]], model: Model, settings: FinetuneSettings
) -> list[tuple[int, tuple[str, ...]]]:
    if settings.synonyms is not None:
        similar = read_synonyms(Path(settings.synonyms))
    else:
        plain = Editor({})
        similar = similar_words(model, {word.lower() for row in texts for text in row for word in plain.words(text)})
    return edit_rows(texts, Editor(similar), settings.augment_copies, lambda copy, row: _generator(settings, copy, row))


def _joined(rows: LabelledTexts, made: Sequence[tuple[int, tuple[str, ...]]]) -> LabelledTexts:
    """The rows with the made ones, each with the label and the place of the row that it is from."""
    assert rows.targets is not None, "training rows have labels"
    numbers = [row for row, _ in made]
    return LabelledTexts(
        texts=rows.texts + [texts[0] for _, texts in made],
        pairs=None if rows.pairs is None else rows.pairs + [texts[1] for _, texts in made],
        targets=[*rows.targets, *(rows.targets[row] for row in numbers)],
        places=rows.places + [rows.places[row] for row in numbers],
        skipped=rows.skipped,
    )
