"""A model to ask: ``cloze.load(folder)`` and its methods.

Results do not depend on the neighbours in a batch, and every method says so clearly when the folder lacks its head.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cloze.checkpoint import (
    POOLINGS,
    EmbeddingSettings,
    ModelFolder,
    Pooling,
    TaskLabels,
    find_source,
    load_any,
    save_folder,
)
from cloze.errors import ConfigError, RequestError, did_you_mean
from cloze.kinds import LongTexts
from cloze.model import Bert, EncoderOutput, HeadName
from cloze.predict.adapters import Adapters
from cloze.predict.batching import Batch, collate, run_batched
from cloze.predict.labels import chosen_classes, chosen_labels, probabilities
from cloze.predict.pooling import POOL
from cloze.predict.results import Answer, Attention, Filled, Label, Labels, Option, Tagged
from cloze.text import Encoding, Tokenizer, encode_long

logger = logging.getLogger("cloze")

Floats = NDArray[np.float32]


def load(source: str | Path, *, base: str | Path | None = None, device: str | None = None) -> "Model":
    """Load a model folder (ours, any HF BERT, or a TensorFlow checkpoint), or a hub name when online.

    An adapter's folder is loaded on the base that it was trained on; ``base`` says where that is if it has moved.
    """
    folder = load_any(find_source(source), base)
    for note in folder.notes:
        logger.warning("%s: %s", source, note)
    return Model(folder, device=device)


def choose_device(name: str | None) -> torch.device:
    """The device with this name, or the best one that is there."""
    if name is None:
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        probe = torch.zeros(1, device=name)
        probe.item()  # fails on "meta", which has no memory
        return probe.device
    # ImportError: some devices are packages of their own.
    except (RuntimeError, AssertionError, ImportError) as error:
        raise ConfigError(f"device {name!r} is not to be had here; use 'cpu', or leave --device out") from error


class Model:
    """An encoder with its tokenizer and heads, ready to predict."""

    def __init__(self, folder: ModelFolder, *, device: str | None = None) -> None:
        self._folder, self._adapters = folder, Adapters(folder)
        self.device = choose_device(device)
        self.bert: Bert = folder.model.to(self.device).eval()

    @property
    def tokenizer(self) -> Tokenizer:
        """Text -> ids, as this model was trained to read it."""
        return self._folder.tokenizer

    @property
    def heads(self) -> tuple[HeadName, ...]:
        """The heads that this folder has."""
        return self.bert.head_names

    @property
    def task(self) -> TaskLabels | None:
        """What a fine-tuned head's outputs mean."""
        return self._folder.task

    @property
    def embedding(self) -> EmbeddingSettings:
        """How this folder pools its tokens into one vector."""
        return self._folder.embedding

    def save(self, folder: str | Path) -> None:
        """Write a folder that ``cloze``, ``transformers`` and ``sentence-transformers`` load."""
        save_folder(self._folder, Path(folder))

    # -- adapters ----------------------------------------------------------------------------------------------------

    def attach(self, name: str, folder: str | Path) -> None:
        """Load an adapter that was trained on this base; ``use(name)`` puts it into its place."""
        self._adapters.attach(name, find_source(folder), self.device)

    def use(self, name: str | None) -> None:
        """Answer with this adapter from now on; with None, as the base. Not while another thread is asking."""
        self._folder = self._adapters.use(name)

    # -- pre-training heads ------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def fill(self, text: str, top: int = 5) -> list[list[Filled]]:
        """The best words for each ``[MASK]`` of a text, each blank on its own."""
        self._need("mlm")
        if top < 1:
            raise RequestError(f"top is {top}; at least 1 was expected")
        encoding = self.tokenizer(text, read_mask=True)
        blanks = [index for index, piece in enumerate(encoding.ids) if piece == self.tokenizer.mask_id]
        if len(blanks) < text.count("[MASK]"):
            raise RequestError(f"a [MASK] lies beyond the {self.tokenizer.max_length} tokens that this model reads")
        if not blanks:
            raise RequestError(f"no [MASK] in {text[:60]!r}; write [MASK] where a word is to be filled in")
        batch = self._collate([encoding])
        states = self.bert(batch.ids, batch.segments).last[0, blanks]
        probabilities = self.bert.heads["mlm"](states).softmax(-1)  # (blanks, V)
        best = probabilities[:, : self.tokenizer.size].topk(min(top, self.tokenizer.size))
        return [
            [Filled(self.tokenizer.piece(piece), value) for value, piece in zip(values, pieces, strict=True)]
            for values, pieces in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]

    def follows(self, first: str, second: str) -> float:
        """The probability that the second text follows the first."""
        if "sop" in self.bert.heads:
            raise RequestError(
                "this model was taught whether two segments are in order (sop), not whether one follows the other; "
                "ask in_order(first, second)"
            )
        self._need("nsp")
        return self._sentence("nsp", first, second)

    def in_order(self, first: str, second: str) -> float:
        """The probability that two texts that belong together stand in their order, for models trained with sop."""
        self._need("sop")
        return self._sentence("sop", first, second)

    @torch.inference_mode()
    def _sentence(self, head: HeadName, first: str, second: str) -> float:
        batch = self._collate(self._encode([first], [second]))
        logits = self.bert.heads[head](self.bert.pooled(self.bert(batch.ids, batch.segments).last))
        return float(logits.softmax(-1)[0, 0])

    # -- the encoder itself ------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def embed(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        pooling: Pooling | None = None,
        layer: int = -1,
    ) -> Floats:
        """One vector a text, (N, H), pooled as the folder says unless ``pooling`` does."""
        settings = self.embedding
        if pooling is None and settings.unsupported is not None:
            raise RequestError(f"{settings.unsupported}, which cloze does not do; pass pooling= to choose another")
        chosen = pooling or settings.pooling
        if chosen not in POOLINGS:
            raise RequestError(f"unknown pooling {chosen!r}{did_you_mean(chosen, POOLINGS)}")
        index = self._layer(layer)

        def step(batch: Batch) -> list[Floats]:
            vectors = POOL[chosen](self._states(batch, index), batch.real).float()
            if settings.normalize:
                vectors = torch.nn.functional.normalize(vectors, dim=-1)
            return list(vectors.cpu().numpy())

        rows = self._run(self._encode(texts, pairs), step)
        width = self.bert.config.hidden_size * (2 if chosen == "mean_max" else 1)
        return np.stack(rows) if rows else np.zeros((0, width), np.float32)

    @torch.inference_mode()
    def hidden(self, text: str, pair: str | None = None, layer: int | None = -1) -> Floats:
        """The token states of one layer, (T, H), or of all with ``layer=None``, (L + 1, T, H), embeddings first."""
        batch = self._collate(self._encode([text], None if pair is None else [pair]))
        if layer is not None:
            return self._states(batch, self._layer(layer))[0].cpu().numpy()
        states = self.bert.encoder(batch.ids, batch.segments, keep_states=True).states
        return torch.cat(states).cpu().numpy()  # L + 1 of (1, T, H) -> (L + 1, T, H)

    @torch.inference_mode()
    def attend(self, text: str, pair: str | None = None) -> Attention:
        """The attention weights of every layer and head."""
        (encoding,) = self._encode([text], None if pair is None else [pair])
        batch = self._collate([encoding])
        output = self.bert.encoder(batch.ids, batch.segments, keep_attentions=True)
        weights = torch.cat(output.attentions).cpu().numpy()  # L of (1, A, T, T) -> (L, A, T, T)
        return Attention(encoding.tokens, encoding.segments, weights)

    # -- fine-tuned heads --------------------------------------------------------------------------------------------

    def classify(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Label]:
        """The label of each text, with the probability of every label."""
        task = self._need_task("classify")
        rows = self.logits(texts, pairs)
        found = zip(probabilities(task, rows), chosen_classes(task, rows), strict=True)
        return [
            Label(task.names[chosen], float(row[chosen]), dict(zip(task.names, row.tolist(), strict=True)))
            for row, chosen in found
        ]

    def classify_all(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Labels]:
        """All labels that hold for each text, for models trained on any number of them."""
        task = self._need_task("multilabel")
        rows = self.logits(texts, pairs)
        found = zip(probabilities(task, rows), chosen_labels(task, rows), strict=True)
        return [
            Labels(
                tuple(name for name, holds in zip(task.names, flags, strict=True) if holds),
                dict(zip(task.names, row.tolist(), strict=True)),
            )
            for row, flags in found
        ]

    def regress(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Floats:
        """The number of each text, (N,)."""
        self._need_task("regress")
        return self.logits(texts, pairs)[:, 0]

    @torch.inference_mode()
    def logits(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Floats:
        """The sequence head's raw outputs, (N, labels); of a text that is read in windows, their mean."""
        self._need("sequence")

        def step(batch: Batch) -> list[Floats]:
            last = self.bert(batch.ids, batch.segments, batch.mask).last
            return list(self.bert.heads["sequence"](self.bert.pooled(last)).float().cpu().numpy())

        windows = self._encode_long(texts, pairs, self.task.long_texts if self.task else "cut")
        rows = self._run([window for text in windows for window in text], step)
        if not rows:
            return np.zeros((0, self.bert.labels), np.float32)
        starts = np.cumsum([0, *map(len, windows[:-1])])
        counts = np.array([len(text) for text in windows], np.float32)
        return (np.add.reduceat(np.stack(rows), starts) / counts[:, None]).astype(np.float32)

    def tag(self, texts: Sequence[str] | Sequence[Sequence[str]]) -> list[Tagged]:
        """The words of each text with their tags, and its entities; texts, or sentences as lists of words."""
        from cloze.predict.tagging import tag_texts

        return tag_texts(self, texts)

    def answer(self, question: str, context: str, top: int = 1) -> list[Answer]:
        """The best answers to a question that a text has, or that it has none, best first."""
        return self.answer_all([question], [context], top)[0]

    def answer_all(self, questions: Sequence[str], contexts: Sequence[str], top: int = 1) -> list[list[Answer]]:
        """The best answers to each question, as ``answer`` gives them."""
        from cloze.predict.answering import answer_all

        self._need("span")
        return answer_all(self, questions, contexts, top)

    def choose(self, prompt: str, options: Sequence[str]) -> list[Option]:
        """The options with their probabilities, the one that fits the prompt best first."""
        return self.choose_all([prompt], [options])[0]

    def choose_all(self, prompts: Sequence[str], options: Sequence[Sequence[str]]) -> list[list[Option]]:
        """The options of each prompt, as ``choose`` gives them."""
        from cloze.predict.choosing import choose_all

        self._need("choice")
        return choose_all(self, prompts, options)

    # -- shared steps ------------------------------------------------------------------------------------------------

    def _encode(self, texts: Sequence[str], pairs: Sequence[str] | None) -> list[Encoding]:
        return [encoding for (encoding,) in self._encode_long(texts, pairs, "cut")]

    def _encode_long(self, texts: Sequence[str], pairs: Sequence[str] | None, how: LongTexts) -> list[list[Encoding]]:
        """The sequences of each text; it is told how many texts lost something."""
        if isinstance(texts, str) or isinstance(pairs, str):
            raise RequestError("one text was given where a list of texts was expected; put it into a list")
        if pairs is not None and len(pairs) != len(texts):
            raise RequestError(f"{len(texts)} texts, but {len(pairs)} pairs; one for each was expected")
        if pairs is not None and self.bert.config.segments < 2:
            raise RequestError("this model tells no second text from a first (it has one segment); give single texts")
        encoded = encode_long(self.tokenizer, texts, pairs, how)
        cut = sum(windows[0].dropped > 0 for windows in encoded)
        if cut:
            logger.warning(
                "%d of %d texts are longer than %d tokens and were cut", cut, len(encoded), self.tokenizer.max_length
            )
        return encoded

    def _collate(self, encodings: Sequence[Encoding]) -> Batch:
        return collate(encodings, self.tokenizer.pad_id, self.device)

    def _run(self, encodings: Sequence[Encoding], step: Callable[[Batch], list[Floats]]) -> list[Floats]:
        return run_batched(encodings, self.tokenizer.pad_id, self.device, step)

    def _states(self, batch: Batch, layer: int) -> Tensor:
        """The states (B, T, H) after ``layer`` layers; the last needs no others kept."""
        if layer == self.bert.config.layers:
            output: EncoderOutput = self.bert.encoder(batch.ids, batch.segments, batch.mask)
            return output.last
        output = self.bert.encoder(batch.ids, batch.segments, batch.mask, keep_states=True)
        return output.states[layer]

    def _layer(self, layer: int) -> int:
        """An index into the embeddings (0) and the layers (1 to L), from the front or, negative, from the back."""
        layers = self.bert.config.layers
        if not -layers - 1 <= layer <= layers:
            raise RequestError(
                f"layer {layer} of a model with {layers}; 0 (embeddings) to {layers}, or -1 for the last"
            )
        return layer % (layers + 1)

    def _need(self, head: HeadName) -> None:
        if head not in self.bert.heads:
            there = ", ".join(self.heads) or "none"
            raise RequestError(f"this model has no {head!r} head (its heads: {there}); load a folder that has one")

    def _need_task(self, kind: str) -> TaskLabels:
        self._need("sequence")
        task = self.task
        if task is None or task.kind != kind:
            raise RequestError(
                f"this model was not trained to {kind}; its head does: {task.kind if task else 'nothing'}"
            )
        return task
