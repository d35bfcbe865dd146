"""Explain labels, numbers and tags: which output of a head is attributed to which words (``Model.explain``).

The computation is in ``integrated_gradients.py``. This module finds what to explain: of a classifier the log-odds of
each predicted label, of a regression the number, of a tagger the mean log-odds of the tags of each entity; and the
tokens of every word in the windows from which the output is computed.

Dimensions: L outputs of the head.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from cloze.errors import RequestError, did_you_mean
from cloze.options import Reference
from cloze.predict.base_model import BaseModel
from cloze.predict.integrated_gradients import Explainer, Explanation, Place, Subject, WordAttribution
from cloze.predict.preprocessing import require_head
from cloze.predict.vector_model import VectorModel
from cloze.progress import Progress, Silent
from cloze.tasks.kind import TaskLabels
from cloze.tasks.tagging.decoding import Tagged, TaggedWord, tag_texts
from cloze.tasks.tagging.kind import TAG
from cloze.tasks.tagging.sequences import (
    WordIds,
    have_entity_prefixes,
    read_words,
    split_characters,
    split_text,
    tag_windows,
)
from cloze.text import Encoding


class ExplainingModel(VectorModel):
    """The part of ``Model`` that explains its outputs."""

    def explain(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        label: str | None = None,
        baseline: Reference = "mask",
        check: bool = False,
        progress: Progress | None = None,
    ) -> list[Explanation]:
        """Explain labels, numbers or tags: attribute each output to the words of the text (integrated gradients).

        Args:
            texts: Texts, for a model fine-tuned with ``classify``, ``multilabel``, ``regress`` or ``tag``.
            pairs: One second text for each.
            label: The label to explain; by default, those that the model predicts.
            baseline: What a text is compared with: ``[MASK]`` or ``[PAD]`` in place of every word.
            check: Whether to compute occlusion and deletion curves as well, which takes longer.
            progress: Receives the number of texts that are done.

        Returns:
            One explanation per text; for ``multilabel`` and ``tag``, one per predicted label, entity or tagged word.

        Raises:
            RequestError: If the model has no such head or label, or does not compute in fp32 on its own layers.

        Example:
            >>> [why] = cloze.load("runs/reviews").explain(["A wonderful film."])
            >>> [word.text for word in why.words]
            ['A', 'wonderful', 'film', '.']
        """
        if self.precision != "fp32":
            raise RequestError(f"the model computes in {self.precision}, which has no gradients; load it in fp32")
        if self.kind is not None and self.kind.operation == TAG.operation:
            if pairs is not None:
                raise RequestError("a model that tags words takes single texts; leave out the second texts (pair)")
            subjects = tag_subjects(self, texts, label)
        else:
            require_head(self.bert, "sequence")
            windows = self._encode_long(texts, pairs)
            own = [(text,) for text in texts] if pairs is None else list(zip(texts, pairs, strict=True))
            subjects = text_subjects(self, own, windows, label)
        explainer = Explainer(self, baseline)
        found = list[Explanation]()
        for subject in subjects:
            found.append(explainer.explain(subject, check=check))
            (progress or Silent()).advance("explain", subject.row + 1, len(texts))
        return found


# -- what is explained -------------------------------------------------------------------------------------------------


def text_subjects(
    model: BaseModel,
    texts: Sequence[tuple[str, ...]],
    windows: Sequence[Sequence[Encoding]],
    label: str | None,
) -> Iterator[Subject]:
    """Yield the outputs to explain of a model that labels or rates texts."""
    kind, task = model.kind, model.task
    assert task is not None, "a model with a task head has labels"
    assert kind is not None
    wanted = None if label is None else [_label_index(task, label)]
    assert kind.respond is not None
    answers = kind.respond(model, windows, {})
    single = kind.targets == "index"
    for row, (own, encodings) in enumerate(zip(texts, windows, strict=True)):
        words, places = _find_words(model, encodings, own)
        for index in _predicted(task, answers[row]) if wanted is None else wanted:
            name = task.names[index] if task.names else None
            output = _text_output(index, task.temperature, single=single)
            yield Subject(row, own, name, None, "sequence", encodings, words, places, output)


def _predicted(task: TaskLabels, answer: Mapping[str, object]) -> list[int]:
    """Return the outputs to explain by default: those of the predicted labels; without any, of the most likely."""
    if not task.names:
        return [0]
    found = answer.get("labels", (answer.get("label"),))
    chosen = [task.names.index(name) for name in found if name is not None]  # type: ignore[attr-defined]
    shares: Mapping[str, float] = answer["probabilities"]  # type: ignore[assignment]
    return chosen or [task.names.index(max(shares, key=lambda name: shares[name]))]


def _label_index(task: TaskLabels, label: str) -> int:
    if label not in task.names:
        ability = "predicts a number" if not task.names else "has no such label"
        hint = did_you_mean(label, task.names) if task.names else "; leave out the label"
        raise RequestError(f"label is {label!r}, but this model {ability}{hint}")
    return task.names.index(label)


def _text_output(index: int, temperature: float, *, single: bool) -> Callable[[Sequence[Tensor]], Tensor]:
    """Return the function from the logits of each window, (L,), to f; predictions average the logits of windows."""

    def output(logits: Sequence[Tensor]) -> Tensor:
        mean = torch.stack(list(logits)).mean(0) / temperature
        return log_odds(mean, index) if single else mean[index]

    return output


def log_odds(logits: Tensor, index: int) -> Tensor:
    """Return log(p / (1 - p)) for the softmax of logits, (L,): the logit minus the log-sum-exp of the others."""
    if len(logits) == 1:
        return logits[0]
    others = torch.cat([logits[:index], logits[index + 1 :]])
    return logits[index] - others.logsumexp(0)


def _find_words(
    model: BaseModel, windows: Sequence[Encoding], texts: tuple[str, ...]
) -> tuple[list[WordAttribution], list[list[Place]]]:
    """Return the words of a text in reading order, and the tokens of each in the windows, which may overlap."""
    found: dict[tuple[int, int, int], list[Place]] = {}
    for number, window in enumerate(windows):
        for word in model.tokenizer.words(window, *texts):
            place = Place(number, word.first, word.first + len(word.tokens))
            found.setdefault((word.source, word.start, word.end), []).append(place)
    keys = sorted(found)
    words = [WordAttribution(texts[part][start:end], start, end, part, 0.0) for part, start, end in keys]
    return words, [found[key] for key in keys]


def tag_subjects(model: BaseModel, texts: Sequence[str], label: str | None) -> Iterator[Subject]:
    """Yield the entities, or tagged words if the tags form no entities, of a model that tags words.

    With ``label``, only entities of this type or words with this tag are explained.
    """
    tagged, task = tag_texts(model, texts), model.task
    assert task is not None
    prefixed = {name.partition("-")[2] or name for name in task.names}
    if label is not None and label not in (*prefixed, *task.names):
        raise RequestError(f"label is {label!r}, but this model has no such tag{did_you_mean(label, sorted(prefixed))}")
    for row, answer in enumerate(tagged):
        for name, first, last in _tagged_spans(task.names, answer):
            if label in (None, name):
                yield _tag_subject(model, row, answer, name, (first, last))


def _tagged_spans(names: Sequence[str], answer: Tagged) -> Iterator[tuple[str, int, int]]:
    """Yield label, first and last word of each entity; for plain tags, of each word."""
    if not have_entity_prefixes(names):
        yield from ((word.tag, index, index) for index, word in enumerate(answer.words))
        return
    starts = {word.start: index for index, word in enumerate(answer.words)}
    ends = {word.end: index for index, word in enumerate(answer.words)}
    yield from ((entity.label, starts[entity.start], ends[entity.end]) for entity in answer.entities)


def _tag_subject(model: BaseModel, row: int, answer: Tagged, name: str, span: tuple[int, int]) -> Subject:
    """Return the subject of an entity: the mean log-odds of its words' tags, in the windows that predict them."""
    assert model.task is not None
    names, ids = model.task.names, _word_ids(model, answer)
    windows, outputs = list[Encoding](), list[tuple[int, int, int]]()  # (window, token, tag)
    places: list[list[Place]] = [[] for _ in answer.words]
    for window in tag_windows(model.tokenizer, [ids]):
        (served,) = window.served
        inside = [word for word in range(span[0], span[1] + 1) if 0 <= word - served.first < len(served.places)]
        if not inside:
            continue
        for word, place in _words_in_window(ids, served.first, served.places[0], len(window.encoding.ids) - 1):
            places[word].append(Place(len(windows), *place))
        outputs += [
            (len(windows), served.places[word - served.first], names.index(answer.words[word].tag)) for word in inside
        ]
        windows.append(window.encoding)

    def output(logits: Sequence[Tensor]) -> Tensor:
        return torch.stack([log_odds(logits[window][token], tag) for window, token, tag in outputs]).mean()

    kept = [word for word, found in enumerate(places) if found]
    return Subject(
        row,
        (answer.text,),
        name,
        (answer.words[span[0]].start, answer.words[span[1]].end),
        TAG.head or "token",
        windows,
        [_untagged(answer.words[word]) for word in kept],
        [places[word] for word in kept],
        output,
    )


def _word_ids(model: BaseModel, answer: Tagged) -> WordIds:
    """Return the token ids of each word of a text, as the tagger has read them."""
    if model.task is not None and model.task.characters:
        return read_words(model.tokenizer, [split_characters(answer.text)[0]])[0]
    (pieces,) = model.tokenizer.encode_pieces([answer.text])
    return split_text(model.tokenizer, pieces)[1]


def _words_in_window(ids: WordIds, first: int, place: int, stop: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield each word in a window with its tokens, given the place of one; words cut by the window's ends are whole."""
    start = place
    for word in range(first, len(ids)):
        if start < stop:
            yield word, (start, min(stop, start + len(ids[word])))
        start += len(ids[word])
    end = place
    for word in range(first - 1, -1, -1):
        if end > 1:
            yield word, (max(1, end - len(ids[word])), end)
        end -= len(ids[word])


def _untagged(word: TaggedWord) -> WordAttribution:
    return WordAttribution(word.text, word.start, word.end, 0, 0.0)
