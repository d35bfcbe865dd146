"""The methods of ``Model`` for pre-training heads, and generation with left-to-right models.

Generation extends a text by one token at a time: the model predicts the distribution of the next token, one is sampled,
and the extended text is the next input. Every step runs the whole text again; earlier states are not stored. At most
the last tokens that fit into the model are read.

Dimensions: R rows (texts times samples), T tokens, V vocabulary.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cloze.errors import RequestError
from cloze.predict.base_model import BaseModel
from cloze.predict.fill_mask import fill_blanks, fill_together, score_left_to_right, score_texts
from cloze.predict.preprocessing import adds_columns, read_blanks, require_head
from cloze.predict.results import Filled, FilledTogether, Generated, Score

# Rows that are extended together.
_ROWS = 32


class LanguageModel(BaseModel):
    """Predictions of the pre-training heads; see ``Model``."""

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
        """Return the log-likelihood of each text, as the sum over its tokens.

        A left-to-right model predicts each token from those before it, and the sum is the exact log-likelihood. A
        masked language model predicts each token from all others, and the sum is the pseudo-log-likelihood. The two
        cannot be compared. Texts beyond the maximum length are split into overlapping windows, which limits the
        context.

        Args:
            texts: Texts, or a data frame.

        Returns:
            One score per text, with its perplexity and the log-probability of each token.

        Raises:
            RequestError: If the model has neither a masked-LM head nor a head for the next word.

        Example:
            >>> good, bad = cloze.load().score(["He shook his head.", "He shook his door."])
            >>> good.perplexity < bad.perplexity
            True
        """
        if "lm" in self.bert.heads:
            return score_left_to_right(self, texts)
        require_head(self.bert, "mlm")
        return score_texts(self, texts)

    def generate(
        self,
        text: str,
        tokens: int = 40,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        samples: int = 1,
        seed: int = 0,
    ) -> list[Generated]:
        """Continue a text with a left-to-right model, token by token.

        Args:
            text: The beginning; an empty text starts a new one.
            tokens: Maximum number of tokens to add.
            temperature: Divides the logits: below 1, probable tokens become more probable. 0 always takes the most
                probable token.
            top_k: Sample only from this many most probable tokens.
            top_p: Sample only from the most probable tokens whose probabilities add up to this.
            samples: Number of continuations.
            seed: Random seed; a continuation depends only on the text, the seed and its number.

        Returns:
            The continuations.

        Raises:
            RequestError: If the model does not predict the next word, or a value is out of range.

        Example:
            >>> [best] = cloze.load("runs/gpt").generate("He opened the", tokens=10, temperature=0)
            >>> text = best.text
        """
        return self.generate_all(
            [text], tokens, temperature=temperature, top_k=top_k, top_p=top_p, samples=samples, seed=seed
        )[0]

    def generate_all(
        self,
        texts: Sequence[str],
        tokens: int = 40,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        samples: int = 1,
        seed: int = 0,
    ) -> list[list[Generated]]:
        """Continue several texts; see ``generate``.

        Args:
            texts: The beginnings.
            tokens: Maximum number of tokens to add.
            temperature: Divides the logits; 0 always takes the most probable token.
            top_k: Sample only from this many most probable tokens.
            top_p: Sample only from the most probable tokens whose probabilities add up to this.
            samples: Number of continuations per text.
            seed: Random seed.

        Returns:
            For each text, what ``generate`` returns.

        Example:
            >>> [[first, second]] = cloze.load("runs/gpt").generate_all(["He opened the"], samples=2)
        """
        require_head(self.bert, "lm")
        return continue_texts(self, texts, tokens, Sampling(temperature, top_k, top_p), samples, seed)

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


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen from its distribution."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise RequestError(f"temperature is {self.temperature}; expected at least 0 (0: the most probable token)")
        if self.top_k is not None and self.top_k < 1:
            raise RequestError(f"top_k is {self.top_k}; expected at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise RequestError(f"top_p is {self.top_p}; expected a probability above 0 and at most 1")

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the distribution to sample from: (R, V) -> (R, V)."""
        if self.temperature == 0:
            return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
        logits = logits / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            least = logits.topk(self.top_k).values[:, -1:]  # (R, 1)
            logits = logits.masked_fill(logits < least, float("-inf"))
        probabilities = logits.softmax(-1)
        if self.top_p is None:
            return probabilities
        ordered, order = probabilities.sort(-1, descending=True)
        # A token is kept while those before it have less than top_p, so the most probable one always is.
        dropped = ordered.cumsum(-1) - ordered >= self.top_p
        kept = ordered.masked_fill(dropped, 0.0)
        return torch.zeros_like(probabilities).scatter_(-1, order, kept / kept.sum(-1, keepdim=True))


@dataclass
class _Row:
    """A text that is being continued."""

    text: str
    ids: list[int]  # [CLS] and the text, then the continuation
    start: int  # number of tokens of the beginning
    generator: torch.Generator
    log_probability: float = 0.0
    ended: bool = False  # the model has predicted [SEP]

    @classmethod
    def of(cls, text: str, ids: list[int], seed: int, sample: int) -> "_Row":
        """Return a row whose random numbers depend only on the text, the seed and the number of the sample."""
        digest = hashlib.sha256(f"{seed} {sample} {text}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
        return cls(text, ids, len(ids), generator)


def continue_texts(
    model: "LanguageModel", texts: Sequence[str], tokens: int, sampling: Sampling, samples: int, seed: int
) -> list[list[Generated]]:
    """Return ``samples`` continuations of each text, of at most ``tokens`` tokens."""
    if isinstance(texts, str):
        raise RequestError("expected a list of texts, got a single text; put it into a list")
    for name, value in (("tokens", tokens), ("samples", samples)):
        if value < 1:
            raise RequestError(f"{name} is {value}; expected at least 1")
    cls_id = model.tokenizer.cls_id
    beginnings = [[cls_id, *ids] for ids in model.tokenizer.encode_ids(texts)]
    rows = [
        _Row.of(text, list(ids), seed, sample)
        for text, ids in zip(texts, beginnings, strict=True)
        for sample in range(samples)
    ]
    for first in range(0, len(rows), _ROWS):
        _continue(model, rows[first : first + _ROWS], tokens, sampling)
    results = [_to_result(model, row) for row in rows]
    return [results[first : first + samples] for first in range(0, len(results), samples)]


@torch.inference_mode()
def _continue(model: "LanguageModel", rows: Sequence[_Row], tokens: int, sampling: Sampling) -> None:
    """Extend rows until all have ended or have ``tokens`` new tokens."""
    sep_id = model.tokenizer.sep_id
    # Special tokens are never generated, except for the end of a sequence.
    allowed = torch.zeros(model.bert.config.vocab_size, dtype=torch.bool)
    allowed[[*model.tokenizer.ordinary_ids, sep_id]] = True
    longest = model.tokenizer.max_length
    for _ in range(tokens):
        growing = [row for row in rows if not row.ended]
        if not growing:
            return
        # [CLS] and the last tokens that fit.
        read = [[row.ids[0], *row.ids[1:][-(longest - 1) :]] for row in growing]
        logits = _next_logits(model, read).masked_fill(~allowed, float("-inf"))
        logs, probabilities = logits.log_softmax(-1), sampling.probabilities(logits)
        for number, row in enumerate(growing):
            if sampling.temperature == 0:
                token = int(probabilities[number].argmax())
            else:
                token = int(torch.multinomial(probabilities[number], 1, generator=row.generator))
            row.log_probability += float(logs[number, token])
            row.ended = token == sep_id
            if not row.ended:
                row.ids.append(token)


def _next_logits(model: "LanguageModel", sequences: Sequence[list[int]]) -> Tensor:
    """Return the logits of the token after each sequence, (R, V), on the CPU."""
    width = max(map(len, sequences))
    ids = torch.full((len(sequences), width), model.tokenizer.pad_id)
    for row, sequence in zip(ids, sequences, strict=True):
        row[: len(sequence)] = torch.tensor(sequence)
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    mask = None if int(lengths.min()) == width else (torch.arange(width) < lengths[:, None]).to(model.device)
    last = torch.arange(len(sequences)) * width + lengths - 1  # flat positions of the last tokens
    ids = ids.to(model.device)
    return model.bert.next_logits(ids, torch.zeros_like(ids), mask, last.to(model.device)).float().cpu()


def _to_result(model: "LanguageModel", row: _Row) -> Generated:
    new = row.ids[row.start :]
    continuation = model.tokenizer.decode(new)
    whole = model.tokenizer.decode(row.ids[1:])
    pieces = tuple(model.tokenizer.piece(token) for token in new)
    return Generated(whole, continuation, pieces, row.log_probability, row.ended)
