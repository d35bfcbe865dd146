"""The ``Model`` that ``cloze.load`` returns, with one method per kind of prediction.

The result of a text does not depend on the rest of its batch. A method raises ``RequestError`` if the folder lacks the
head that it needs.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from cloze.checkpoint import EmbeddingSettings, ModelFolder, Pooling, find_source, save_folder
from cloze.checkpoint.adapter_folder import AttachedAdapters
from cloze.checkpoint.folder import fingerprint
from cloze.errors import RequestError
from cloze.hardware import choose_device
from cloze.model import Backbone, HeadName
from cloze.model.batch import Batch, Result, collate, join_logits, join_vectors, run_batched
from cloze.model.surgery import Head, prune_heads, without_heads
from cloze.options import LongTexts, PrecisionName
from cloze.predict.embeddings.pooling import attention_weights, layer_indices, make_vectors, mean_states, token_states
from cloze.predict.fill_mask import Floats, fill_blanks, fill_together, score_texts
from cloze.predict.preprocessing import (
    InputWarnings,
    adds_columns,
    read_blanks,
    read_texts,
    require_head,
    require_pairs,
    require_task,
)
from cloze.predict.quantization.precision import precision_of, set_precision, use_products
from cloze.predict.results import Attention, Corrected, Filled, FilledTogether, Score, describe_model
from cloze.tasks.answering.decoding import Answer, answer_all
from cloze.tasks.choice.decoding import Option, choose_all
from cloze.tasks.classification.decoding import Label, Labels, to_label_sets, to_labels
from cloze.tasks.classification.kind import CLASSIFY, MULTILABEL, REGRESS
from cloze.tasks.kind import TaskKind, TaskLabels
from cloze.tasks.registry import find_kind
from cloze.tasks.tagging.decoding import Tagged, tag_texts
from cloze.text import Encoding, Tokenizer
from cloze.threads import AdaptiveThreads

if TYPE_CHECKING:
    from cloze.predict.corrector import Corrector
    from cloze.tasks.correction.kind import CorrectionSettings


class Model:
    """An encoder with its tokenizer and heads, ready to predict."""

    def __init__(
        self, folder: ModelFolder, *, device: str | None = None, precision: PrecisionName | None = None
    ) -> None:
        self._folder, self._adapters = folder, AttachedAdapters(folder)
        self._before_batch: Callable[[], object] | None = None
        self._corrector: Corrector | None = None
        self.warnings, self._threads = InputWarnings(), AdaptiveThreads()
        self.device = choose_device(device)
        self.bert: Backbone = folder.model.to(self.device).eval()
        if precision is not None:  # else as the model is
            set_precision(folder, precision, self.device)

    def __repr__(self) -> str:
        return describe_model(self, self._folder)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that this model was trained with."""
        return self._folder.tokenizer

    @property
    def heads(self) -> tuple[HeadName, ...]:
        """The heads that this folder has."""
        return self.bert.head_names

    @property
    def task(self) -> TaskLabels | None:
        """Labels and settings of the fine-tuned head; None if there is none."""
        return self._folder.task

    @property
    def kind(self) -> TaskKind | None:
        """The kind of task that the model was fine-tuned for; None if it was not."""
        return None if self.task is None else find_kind(self.task.kind)

    @property
    def correcting(self) -> float | None:
        """Confidence threshold of a model that was fine-tuned for correction; None for all other models."""
        return self._folder.correcting

    @property
    def embedding(self) -> EmbeddingSettings:
        """How this folder pools its tokens into one vector."""
        return self._folder.embedding

    @property
    def precision(self) -> PrecisionName:
        """The precision in which the layers compute."""
        return precision_of(self.bert)

    @property
    def fingerprint(self) -> str:
        """A hash of all that decides the results: the weights, the vocabulary and the embedding settings."""
        return fingerprint(self._folder)

    def save(self, folder: str | Path) -> None:
        """Write a folder that ``cloze``, ``transformers`` and ``sentence-transformers`` load."""
        save_folder(self._folder, Path(folder))

    # -- adapters ----------------------------------------------------------------------------------------------------

    def attach(self, name: str, folder: str | Path) -> None:
        """Load an adapter that was trained on this base; ``use(name)`` activates it."""
        self._adapters.attach(name, find_source(folder), self.device)

    def use(self, name: str | None) -> None:
        """Activate an adapter; with None, the base model. Not safe while another thread uses the model."""
        self._folder = self._adapters.use(name)

    # -- pre-training heads ------------------------------------------------------------------------------------------

    def fill(self, text: str, top: int = 5) -> list[list[Filled]]:
        """The best words for each ``[MASK]`` of a text, each blank on its own."""
        return self.fill_all([text], top)[0]

    def fill_all(self, texts: Sequence[str], top: int = 5) -> list[list[list[Filled]]]:
        """The best words for each ``[MASK]`` of each text, as ``fill`` returns them."""
        require_head(self.bert, "mlm")
        encodings = read_blanks(self.tokenizer, texts, top)
        self.warnings.truncated(self.tokenizer, encodings)
        return fill_blanks(self, encodings, top)

    def fill_together(self, text: str, top: int = 5, rounds: int = 2) -> list[FilledTogether]:
        """The best ways to fill all ``[MASK]`` of a text so that the words fit each other, best first."""
        require_head(self.bert, "mlm")
        return fill_together(self, text, top, rounds)

    @adds_columns()
    def score(self, texts: Sequence[str]) -> list[Score]:
        """The pseudo-log-likelihood of each text: the log-probability of every token when it is masked."""
        require_head(self.bert, "mlm")
        return score_texts(self, texts)

    @adds_columns()
    def correct(self, texts: Sequence[str], settings: "CorrectionSettings | None" = None) -> list[Corrected]:
        """Each text with its unlikely characters or words corrected, and what was changed."""
        from cloze.predict.corrector import Corrector

        require_head(self.bert, "mlm")
        return (self.corrector if settings is None else Corrector(self, settings)).correct(texts)

    @property
    def corrector(self) -> "Corrector":
        """The corrector with the folder's settings. Created once: its index of similar words takes long to build."""
        from cloze.predict.corrector import Corrector

        self._corrector = self._corrector or Corrector(self)
        return self._corrector

    def follows(self, first: str, second: str) -> float:
        """The probability that the second text follows the first."""
        return self.follows_all([first], [second])[0]

    def follows_all(self, firsts: Sequence[str], seconds: Sequence[str]) -> list[float]:
        """The probability that each second text follows its first."""
        if "sop" in self.bert.heads:
            raise RequestError(
                "this model was taught whether two segments are in order (sop), not whether one follows the other; "
                "no command asks for that, but model.in_order(first, second) in Python does"
            )
        require_head(self.bert, "nsp")
        return self._sentences("nsp", firsts, seconds)

    def in_order(self, first: str, second: str) -> float:
        """The probability that two texts that belong together stand in their order, for models trained with sop."""
        require_head(self.bert, "sop")
        return self._sentences("sop", [first], [second])[0]

    @torch.inference_mode()
    def _sentences(self, head: HeadName, firsts: Sequence[str], seconds: Sequence[str]) -> list[float]:
        def step(batch: Batch) -> list[float]:
            return self._pooled_logits(head, batch).softmax(-1)[:, 0].tolist()

        return self.run(self._encode(firsts, seconds), step)

    # -- the encoder itself ------------------------------------------------------------------------------------------

    @adds_columns()
    def embed(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        pooling: Pooling | None = None,
        layer: int | Sequence[int] = -1,
        long_texts: LongTexts = "cut",
    ) -> Floats:
        """One vector per text, (N, H). ``pooling`` overrides the folder's; several layers are averaged.

        The vector of a text that is split into windows is the mean of theirs, weighted by their tokens.
        """
        return self.embed_encoded(self._encode_long(texts, pairs, long_texts), pooling, layer)

    @torch.inference_mode()
    def embed_encoded(
        self,
        windows: Sequence[Sequence[Encoding]],
        pooling: Pooling | None = None,
        layer: int | Sequence[int] = -1,
    ) -> Floats:
        """Like ``embed``, for texts that are tokenized already: one sequence per text, or its windows."""
        layers = layer_indices(layer, self.bert.config.layers)
        make = make_vectors(self._folder, pooling, last=layers == (self.bert.config.layers,))

        def step(batch: Batch) -> list[Floats]:
            return list(make(mean_states(self.bert, batch, layers), batch).cpu().numpy())

        rows = self.run([window for text in windows for window in text], step)
        if not rows:
            return np.zeros((0, make.width(self.bert.config.hidden_size)), np.float32)
        return join_vectors(windows, rows, normalize=make.normalize)

    def whiten(self, texts: Sequence[str], dimensions: int | None = None, pooling: Pooling | None = None) -> "Model":
        """The same model with whitened vectors, optionally in fewer dimensions; the whitening is fitted on these texts.

        With another ``pooling`` than the folder's, the folder's other embedding settings are dropped.
        """
        from cloze.predict.embeddings.whitening import with_whitening

        return Model(with_whitening(self._folder, self.device, texts, dimensions, pooling), device=str(self.device))

    def word(self, word: str, text: str, occurrence: int = 1, layer: int | Sequence[int] = -1) -> Floats:
        """The vector of one word where it stands in a text, (H,): the mean of its pieces."""
        from cloze.predict.embeddings.pooling import word_vector

        return word_vector(self, word, text, occurrence, layer)

    @torch.inference_mode()
    def hidden(self, text: str, pair: str | None = None, layer: int | None = -1) -> Floats:
        """The token states of one layer, (T, H), or of all with ``layer=None``, (L + 1, T, H), embeddings first."""
        (encoding,) = self._encode([text], None if pair is None else [pair])
        return token_states(self.bert, self._collate([encoding]), layer)

    @torch.inference_mode()
    def attend(self, text: str, pair: str | None = None) -> Attention:
        """The attention weights of every layer and head."""
        (encoding,) = self._encode([text], None if pair is None else [pair])
        weights = attention_weights(self.bert, self._collate([encoding]))
        return Attention(encoding.tokens, encoding.segments, weights, (self, text, pair))

    def without_heads(self, heads: Collection[Head]) -> AbstractContextManager[None]:
        """Disable these attention heads, each a (layer, head), while the block runs."""
        return without_heads(self.bert, heads)

    def prune_heads(self, heads: Collection[Head]) -> None:
        """Remove attention heads for good; the folder keeps its shapes, and loads wherever it did."""
        prune_heads(self.bert, heads)
        # Layers of lower precision compute with copies of the weights, which must be made again.
        use_products(self.bert, self.precision, {})

    # -- fine-tuned heads --------------------------------------------------------------------------------------------

    @adds_columns(trained=True)
    def classify(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Label]:
        """The label of each text, with the probability of every label."""
        task = require_task(self.bert, self.task, CLASSIFY)
        return to_labels(task, self.logits(texts, pairs))

    @adds_columns(trained=True)
    def classify_all(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Labels]:
        """All labels that hold for each text, for models trained on any number of them."""
        task = require_task(self.bert, self.task, MULTILABEL)
        return to_label_sets(task, self.logits(texts, pairs))

    @adds_columns(trained=True)
    def regress(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Floats:
        """The number of each text, (N,)."""
        require_task(self.bert, self.task, REGRESS)
        return self.logits(texts, pairs)[:, 0]

    def predict_rows(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Return a JSON-able row per text, as the service does: label, labels, number, or what the kind returns."""
        kind = self.kind
        if kind is None or kind.operation != CLASSIFY.operation or kind.respond is None:
            require_task(self.bert, self.task, CLASSIFY)
            raise AssertionError("a model without such a task was refused")
        return kind.respond(self, self._encode_long(texts, pairs), {})

    def logits(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Floats:
        """The sequence head's raw outputs, (N, labels); for a text that is split into windows, their mean."""
        require_head(self.bert, "sequence")
        return self.logits_encoded(self._encode_long(texts, pairs))

    @torch.inference_mode()
    def logits_encoded(self, windows: Sequence[Sequence[Encoding]]) -> Floats:
        """Like ``logits``, for texts that are tokenized already: one sequence per text, or its windows."""
        require_head(self.bert, "sequence")

        def step(batch: Batch) -> list[Floats]:
            return list(self._pooled_logits("sequence", batch).cpu().numpy())

        rows = self.run([window for text in windows for window in text], step)
        if not rows:
            return np.zeros((0, self.bert.labels), np.float32)
        return join_logits(windows, rows)

    @adds_columns()
    def tag(self, texts: Sequence[str] | Sequence[Sequence[str]]) -> list[Tagged]:
        """The words of each text with their tags, and its entities; texts, or sentences as lists of words."""
        found = tag_texts(self, texts)
        self.warnings.unknown(self.tokenizer, [tagged.text for tagged in found])
        return found

    def answer(self, question: str, context: str, top: int = 1, longest: int | None = None) -> list[Answer]:
        """The best answers to a question in a text, best first; "no answer" is one of them where the model allows it.

        An answer has at most ``longest`` tokens; by default, as the model was fine-tuned, or 30.
        """
        return self.answer_all([question], [context], top, longest)[0]

    def answer_all(
        self, questions: Sequence[str], contexts: Sequence[str], top: int = 1, longest: int | None = None
    ) -> list[list[Answer]]:
        """The best answers to each question, as ``answer`` returns them."""
        require_head(self.bert, "span")
        self.warnings.unknown(self.tokenizer, [*questions, *contexts])
        return answer_all(self, questions, contexts, top, longest)

    def choose(self, prompt: str, options: Sequence[str]) -> list[Option]:
        """The options with their probabilities, the one that fits the prompt best first."""
        return self.choose_all([prompt], [options])[0]

    def choose_all(self, prompts: Sequence[str], options: Sequence[Sequence[str]]) -> list[list[Option]]:
        """The options of each prompt, as ``choose`` returns them."""
        require_head(self.bert, "choice")
        self.warnings.unknown(self.tokenizer, [*prompts, *(option for own in options for option in own)])
        return choose_all(self, prompts, options)

    # -- shared steps ------------------------------------------------------------------------------------------------

    def _encode(self, texts: Sequence[str], pairs: Sequence[str] | None) -> list[Encoding]:
        return [encoding for (encoding,) in self._encode_long(texts, pairs, "cut")]

    def _encode_long(
        self, texts: Sequence[str], pairs: Sequence[str] | None, how: LongTexts | None = None
    ) -> list[list[Encoding]]:
        """Return the sequences of each text, by default as the sequence head was trained; warn of what they lose."""
        if how is None:
            require_pairs(self.bert.pooling == "separate", pairs)
            how = self.task.long_texts if self.task else "cut"
        encoded = read_texts(self.tokenizer, texts, pairs, how, segments=self.bert.config.segments)
        self.warnings.check(self.tokenizer, encoded, texts, pairs)
        return encoded

    def _collate(self, encodings: Sequence[Encoding]) -> Batch:
        return collate(encodings, self.tokenizer.pad_id, self.device)

    def run(self, encodings: Sequence[Encoding], step: Callable[[Batch], Sequence[Result]]) -> list[Result]:
        """Apply ``step`` to batches of the sequences and return one result per sequence, in input order."""

        def checked_step(batch: Batch) -> Sequence[Result]:
            if self._before_batch is not None:
                self._before_batch()
            return self._threads.run(step, batch)

        return run_batched(encodings, self.tokenizer.pad_id, self.device, checked_step)

    @contextmanager
    def before_each_batch(self, check: Callable[[], object]) -> Iterator[None]:
        """Call ``check`` before each batch while the block runs; an exception that it raises stops the computation.

        The check may itself compute with the model, in a block of its own.
        """
        outer, self._before_batch = self._before_batch, check
        try:
            yield
        finally:
            self._before_batch = outer

    def _pooled_logits(self, head: HeadName, batch: Batch) -> Tensor:
        """Return the float32 logits, (B, labels), of a head that reads the pooled vector."""
        logits: Tensor = self.bert.heads[head](self.bert.head_input(head, batch.ids, batch.segments, batch.mask))
        return logits.float()
