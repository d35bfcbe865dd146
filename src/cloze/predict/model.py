"""``Model``, which ``cloze.load`` returns: one method per kind of prediction.

Dimensions: N texts, T tokens, H hidden size, L layers, A heads.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from cloze.predict.attributions import ExplainingModel
from cloze.predict.embeddings.pooling import attention_weights
from cloze.predict.fill_mask import Floats
from cloze.predict.language_model import LanguageModel
from cloze.predict.preprocessing import adds_columns, require_head, require_task
from cloze.predict.results import Attention, Corrected
from cloze.tasks.answering.decoding import Answer, answer_all
from cloze.tasks.choice.decoding import Option, choose_all
from cloze.tasks.classification.decoding import Label, Labels, to_label_sets, to_labels
from cloze.tasks.classification.kind import CLASSIFY, MULTILABEL, REGRESS
from cloze.tasks.tagging.decoding import Tagged, tag_texts

if TYPE_CHECKING:
    from cloze.predict.corrector import Corrector
    from cloze.tasks.correction.kind import CorrectionSettings


class Model(ExplainingModel, LanguageModel):
    """A loaded model: an encoder with its tokenizer and heads. ``cloze.load`` returns it.

    Each method needs a head, and raises ``RequestError`` if the model lacks it. Methods that take a list of texts also
    take a data frame, and then return the frame with columns for the results; for frames, they have the additional
    arguments ``text`` and ``pair``, which name the columns of the texts. The result of a text does not depend on the
    other texts.

    Example:
        >>> model = cloze.load()
        >>> model.fill("He shook his [MASK].", top=1)[0][0].token
        'head'
        >>> model.embed(["a ship at sea", "a boat"]).shape
        (2, 256)
    """

    # -- correction --------------------------------------------------------------------------------------------------

    @adds_columns()
    def correct(self, texts: Sequence[str], settings: "CorrectionSettings | None" = None) -> list[Corrected]:
        """Correct unlikely characters or words of each text.

        Args:
            texts: Texts, or a data frame.
            settings: Threshold, reading mode and files; by default, as suits the model.

        Returns:
            For each text, its corrected form and the corrections with their confidence.

        Example:
            >>> cloze.load().correct(["He opened teh door."])[0].target
            'He opened the door.'
        """
        from cloze.predict.corrector import Corrector

        require_head(self.bert, "mlm")
        return (self.corrector if settings is None else Corrector(self, settings)).correct(texts)

    @property
    def corrector(self) -> "Corrector":
        """The corrector with default settings. It is created only once, because its word index takes long to build."""
        from cloze.predict.corrector import Corrector

        self._corrector = self._corrector or Corrector(self)
        return self._corrector

    # -- the encoder itself ------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def attend(self, text: str, pair: str | None = None) -> Attention:
        """Return the attention weights of every layer and head over a text or a pair of texts.

        Args:
            text: The text.
            pair: A second text.

        Returns:
            The tokens and the weights, (L, A, T, T); ``cloze.show`` displays them.

        Example:
            >>> cloze.load().attend("He shook his head.").weights.shape
            (4, 4, 7, 7)
        """
        (encoding,) = self._encode([text], None if pair is None else [pair])
        weights = attention_weights(self.bert, self._collate([encoding]))
        return Attention(encoding.tokens, encoding.segments, weights, (self, text, pair))

    # -- fine-tuned heads --------------------------------------------------------------------------------------------

    @adds_columns(trained=True)
    def classify(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, abstain: bool = True
    ) -> list[Label]:
        """Classify texts, or pairs of texts, with a model fine-tuned with ``classify``.

        Args:
            texts: Texts, or a data frame, whose columns have the names they had in training by default.
            pairs: One second text for each.
            abstain: Whether a model with a threshold for it (``cloze.evaluate(..., abstain_at=...)``) may abstain.

        Returns:
            The label of each text, or None with a reason, and the probability of every label.

        Example:
            >>> label = cloze.load("runs/reviews").classify(["A wonderful film."])[0].label
        """
        task = require_task(self.bert, self.task, CLASSIFY)
        return to_labels(task, self.logits(texts, pairs), abstain=abstain)

    @adds_columns(trained=True)
    def classify_all(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Labels]:
        """Predict any number of labels per text, with a model fine-tuned with ``multilabel``.

        Args:
            texts: Texts, or a data frame, as for ``classify``.
            pairs: One second text for each.

        Returns:
            The labels of each text, with the probability of every label.

        Example:
            >>> labels = cloze.load("runs/topics").classify_all(["Parliament votes on the budget."])[0].labels
        """
        task = require_task(self.bert, self.task, MULTILABEL)
        return to_label_sets(task, self.logits(texts, pairs))

    @adds_columns(trained=True)
    def regress(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Floats:
        """Predict a number per text, with a model fine-tuned with ``regress``.

        Args:
            texts: Texts, or a data frame, as for ``classify``.
            pairs: One second text for each.

        Returns:
            The numbers, (N,).

        Example:
            >>> stars = cloze.load("runs/stars").regress(["A wonderful film."])[0]
        """
        require_task(self.bert, self.task, REGRESS)
        return self.logits(texts, pairs)[:, 0]

    def predict_rows(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, *, abstain: bool = True
    ) -> list[dict[str, Any]]:
        """Predict with any model for texts (``classify``, ``multilabel`` or ``regress``), with results as for JSON.

        Args:
            texts: Texts.
            pairs: One second text for each.
            abstain: As for ``classify``.

        Returns:
            One JSON-able row per text, as the service returns it.

        Example:
            >>> row = cloze.load("runs/reviews").predict_rows(["A wonderful film."])[0]
        """
        kind = self.kind
        if kind is None or kind.operation != CLASSIFY.operation or kind.respond is None:
            require_task(self.bert, self.task, CLASSIFY)
            raise AssertionError("a model without such a task was refused")
        return kind.respond(self, self._encode_long(texts, pairs), {"abstain": abstain})

    @adds_columns()
    def tag(self, texts: Sequence[str] | Sequence[Sequence[str]]) -> list[Tagged]:
        """Tag the words of texts and find entities, with a model fine-tuned with ``tag``.

        Args:
            texts: Texts, sentences as lists of words, or a data frame.

        Returns:
            For each text, its words with their tags, and its entities.

        Example:
            >>> words = cloze.load("runs/names").tag(["Mr. Darcy left London."])[0].words
        """
        found = tag_texts(self, texts)
        self.warnings.unknown(self.tokenizer, [tagged.text for tagged in found])
        return found

    def answer(self, question: str, context: str, top: int = 1, longest: int | None = None) -> list[Answer]:
        """Find the answer to a question in a text, with a model fine-tuned with ``answer``.

        Args:
            question: The question.
            context: The text that may contain the answer.
            top: Number of answers.
            longest: Maximum answer length in tokens; by default, as the model was fine-tuned, or 30.

        Returns:
            The answers, the best first; one of them may be "no answer", an empty text, if the model supports it.

        Example:
            >>> best = cloze.load("runs/squad").answer("Who left?", "Mr. Darcy left London.")[0].text
        """
        return self.answer_all([question], [context], top, longest)[0]

    def answer_all(
        self, questions: Sequence[str], contexts: Sequence[str], top: int = 1, longest: int | None = None
    ) -> list[list[Answer]]:
        """Find the answers to several questions; see ``answer``.

        Args:
            questions: The questions.
            contexts: One text for each.
            top: Number of answers per question.
            longest: Maximum answer length in tokens.

        Returns:
            For each question, what ``answer`` returns.

        Example:
            >>> [answers] = cloze.load("runs/squad").answer_all(["Who left?"], ["Mr. Darcy left London."])
        """
        require_head(self.bert, "span")
        self.warnings.unknown(self.tokenizer, [*questions, *contexts])
        return answer_all(self, questions, contexts, top, longest)

    def choose(self, prompt: str, options: Sequence[str]) -> list[Option]:
        """Choose which option fits a prompt, with a model fine-tuned with ``choose``.

        Args:
            prompt: The text to continue, or a question.
            options: At least two options.

        Returns:
            The options with their probabilities, the best first.

        Example:
            >>> best = cloze.load("runs/endings").choose("He opened the door", ["and went in.", "of green."])[0]
        """
        return self.choose_all([prompt], [options])[0]

    def choose_all(self, prompts: Sequence[str], options: Sequence[Sequence[str]]) -> list[list[Option]]:
        """Choose an option for each of several prompts; see ``choose``.

        Args:
            prompts: The prompts.
            options: The options of each.

        Returns:
            For each prompt, what ``choose`` returns.

        Example:
            >>> [options] = cloze.load("runs/endings").choose_all(["He opened the door"], [["and left.", "of green."]])
        """
        require_head(self.bert, "choice")
        self.warnings.unknown(self.tokenizer, [*prompts, *(option for own in options for option in own)])
        return choose_all(self, prompts, options)
