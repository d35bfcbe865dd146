"""``Model``, which ``cloze.load`` returns: one method per kind of prediction.

Dimensions: N texts, T tokens, H hidden size, L layers, A heads.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from cloze.errors import RequestError
from cloze.predict.attributions import ExplainingModel
from cloze.predict.embeddings.pooling import attention_weights
from cloze.predict.fill_mask import Floats, fill_blanks, fill_together, score_texts
from cloze.predict.preprocessing import adds_columns, read_blanks, require_head, require_task
from cloze.predict.results import Attention, Corrected, Filled, FilledTogether, Score
from cloze.tasks.answering.decoding import Answer, answer_all
from cloze.tasks.choice.decoding import Option, choose_all
from cloze.tasks.classification.decoding import Label, Labels, to_label_sets, to_labels
from cloze.tasks.classification.kind import CLASSIFY, MULTILABEL, REGRESS
from cloze.tasks.tagging.decoding import Tagged, tag_texts

if TYPE_CHECKING:
    from cloze.predict.corrector import Corrector
    from cloze.tasks.correction.kind import CorrectionSettings


class Model(ExplainingModel):
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

    # -- pre-training heads ------------------------------------------------------------------------------------------

    def fill(self, text: str, top: int = 5) -> list[list[Filled]]:
        """Predict the most likely words for each ``[MASK]`` of a text, independently of each other.

        Args:
            text: A text with one or more ``[MASK]``.
            top: Number of words per blank.

        Returns:
            For each blank, its words with their probabilities, the most likely first.

        Raises:
            RequestError: If the model has no masked-LM head, or the text has no ``[MASK]`` within the maximum length.

        Example:
            >>> cloze.load().fill("He shook his [MASK].", top=2)
            [[Filled(token='head', probability=0.94...), Filled(token='shoulders', probability=0.013...)]]
        """
        return self.fill_all([text], top)[0]

    def fill_all(self, texts: Sequence[str], top: int = 5) -> list[list[list[Filled]]]:
        """Predict the most likely words for each ``[MASK]`` of several texts; see ``fill``.

        Args:
            texts: Texts with one or more ``[MASK]`` each.
            top: Number of words per blank.

        Returns:
            For each text, what ``fill`` returns.

        Example:
            >>> [best] = cloze.load().fill_all(["He shook his [MASK]."], top=1)
        """
        require_head(self.bert, "mlm")
        encodings = read_blanks(self.tokenizer, texts, top)
        self.warnings.truncated(self.tokenizer, encodings)
        return fill_blanks(self, encodings, top)

    def fill_together(self, text: str, top: int = 5, rounds: int = 2) -> list[FilledTogether]:
        """Fill all ``[MASK]`` of a text jointly, so that the words fit each other.

        Args:
            text: A text with one or more ``[MASK]``.
            top: Number of fillings.
            rounds: How many times each blank is predicted again, given the words chosen for the others.

        Returns:
            The fillings, the most likely first.

        Example:
            >>> cloze.load().fill_together("The [MASK] [MASK] blew.", top=1)[0].tokens
            ('...', '...')
        """
        require_head(self.bert, "mlm")
        return fill_together(self, text, top, rounds)

    @adds_columns()
    def score(self, texts: Sequence[str]) -> list[Score]:
        """Return the pseudo-log-likelihood of each text: each token is masked in turn, and its log-probability summed.

        Args:
            texts: Texts, or a data frame.

        Returns:
            One score per text, with its perplexity and the log-probability of each token.

        Example:
            >>> good, bad = cloze.load().score(["He shook his head.", "He shook his door."])
            >>> good.perplexity < bad.perplexity
            True
        """
        require_head(self.bert, "mlm")
        return score_texts(self, texts)

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

    def follows(self, first: str, second: str) -> float:
        """Return the probability that one text follows another (next sentence prediction).

        Args:
            first: The first text.
            second: The text that may follow it.

        Returns:
            A probability.

        Example:
            >>> 0 < cloze.load().follows("He opened the door.", "The room was empty.") < 1
            True
        """
        return self.follows_all([first], [second])[0]

    def follows_all(self, firsts: Sequence[str], seconds: Sequence[str]) -> list[float]:
        """Return the probability that each second text follows its first; see ``follows``.

        Args:
            firsts: The first texts.
            seconds: One second text for each.

        Returns:
            One probability per pair.

        Example:
            >>> [probability] = cloze.load().follows_all(["He opened the door."], ["The room was empty."])
        """
        if "sop" in self.bert.heads:
            raise RequestError(
                "this model was trained to predict whether two segments are in order (sop), not whether one follows "
                "the other; no command supports order prediction, but model.in_order(first, second) in Python does"
            )
        require_head(self.bert, "nsp")
        return self._sentences("nsp", firsts, seconds)

    def in_order(self, first: str, second: str) -> float:
        """Return the probability that two consecutive texts are in the right order, for models trained with sop.

        Args:
            first: The text that comes first.
            second: The text that comes second.

        Returns:
            A probability.

        Example:
            >>> probability = cloze.load("runs/albert").in_order("He opened the door.", "The room was empty.")
        """
        require_head(self.bert, "sop")
        return self._sentences("sop", [first], [second])[0]

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
