"""What an epoch consists of: examples as ranges of the corpus, before any token is read.

Sentences lie one after the other in the corpus, so that several whole ones are a range of tokens, here called a chunk.
Whatever the objective, an example is ``[CLS]`` and its chunks, each followed by ``[SEP]``: two for sentence pairs, one
and more for full sentences.

Pairs of segments: next-sentence prediction (Devlin et al. 2019, section 3.1) and sentence order (Lan et al. 2020).

Both walk through each document by the algorithm of the original ``create_pretraining_data``: sentences are gathered up
to the wanted length and parted in two at a random sentence. What differs is the wrong answer. For next sentences it is
a segment of another document, and the sentences that it takes the place of start the next example; for sentence order
it is the same two segments, swapped.

Sequences without any pair: the FULL-SENTENCES of RoBERTa (Liu et al. 2019, section 4.2).

Whole sentences, one after the other, as many as there is room for. Where a document ends the next one goes on, behind
a ``[SEP]`` of its own. Everything is of the first segment, and nothing is asked but the hidden words.

Planned examples -> tokens: ``[CLS]``, and each chunk followed by ``[SEP]``.

Dimensions: B sequences, T tokens.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

from cloze.corpus.settings import ExampleSettings
from cloze.corpus.shards import Corpus
from cloze.errors import DataError
from cloze.text import Tokenizer

Ids = NDArray[np.int64]
Flags = NDArray[np.bool_]

_BLOCK = 4096


@dataclass(frozen=True)
class Plan:
    """The examples of an epoch, in the order of the corpus."""

    chunks: Ids  # (C, 3): the first token, the one after the last, and the segment
    rows: Ids  # (E + 1,): the chunk that each example starts with, and the end
    labels: Ids  # (E,): 1 where the second segment is random, or the two are swapped; (0,) where nothing is asked
    tossed: Flags  # (E,) or (0,): whether chance decided the label, and not that there was nothing to follow

    @property
    def count(self) -> int:
        """How many examples there are."""
        return len(self.rows) - 1

    @cached_property
    def lengths(self) -> Ids:
        """Tokens of each example, the special ones included: (E,)."""
        sizes = self.chunks[:, 1] - self.chunks[:, 0] + 1  # and its [SEP]
        ends = np.concatenate([[0], np.cumsum(sizes)])
        lengths: Ids = ends[self.rows[1:]] - ends[self.rows[:-1]] + 1  # and [CLS]
        return lengths

    def chunks_of(self, examples: Ids) -> tuple[Ids, Ids]:
        """The chunks of some examples one after the other (N, 3), and how many each example has (B,)."""
        firsts = self.rows[examples]
        counts = self.rows[examples + 1] - firsts
        numbers = np.arange(counts.sum()) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)
        return self.chunks[numbers], counts


def drawing(generator: np.random.Generator) -> Callable[[], float]:
    """A function that returns one number from 0 up to 1 after the other, drawn in blocks: a call costs next to nothing.

    It is for walks where what is drawn next depends on what came before, and arrays are of no use.
    """
    blocks = (generator.random(_BLOCK).tolist() for _ in repeat(None))
    return chain.from_iterable(blocks).__next__


SPECIAL_TOKENS = 3  # [CLS] A [SEP] B [SEP]
# Documents from which on arrays pay.
_MANY = 24

# Columns of a walk. Where A is one sentence with nothing behind it, its end is that of the whole.
_DOCUMENT, _START, _MIDDLE, _STOP, _TARGET, _WRONG = range(6)


def plan_next_sentences(corpus: Corpus, settings: ExampleSettings, generator: np.random.Generator) -> Plan:
    """Plan one epoch: every sentence is used once as A or as the true B."""
    if corpus.document_count < 2:
        raise DataError(
            f"the corpus has {corpus.document_count} document; next-sentence prediction takes its wrong answers from "
            "other documents, so at least two are needed: put a blank line between documents, or use --objective sop "
            "or none"
        )
    walk = _walk(corpus, settings, generator, puts_back=True)
    first, second = walk[:, [_START, _MIDDLE]], walk[:, [_MIDDLE, _STOP]]
    wrong = walk[:, _WRONG] == 1
    wanted = walk[wrong, _TARGET] - (first[wrong, 1] - first[wrong, 0])
    second[wrong] = _random_segments(corpus, walk[wrong, _DOCUMENT], wanted, generator)
    tossed = walk[:, _MIDDLE] < walk[:, _STOP]
    return _plan(first, second, walk[:, _WRONG], tossed, settings, generator)


def plan_sentence_order(corpus: Corpus, settings: ExampleSettings, generator: np.random.Generator) -> Plan:
    """Plan one epoch: every sentence is used once, and ``random_share`` of the pairs are swapped.

    ALBERT's code gives a sentence that is alone, at the end of its document or too long for company, a random partner
    and calls it swapped. Here it is parted in two at a random token: so the label always means the order, and one
    document is enough. A lone sentence of a single token has no order and is left out.
    """
    walk = _walk(corpus, settings, generator, puts_back=False)
    walk = walk[walk[:, _STOP] - walk[:, _START] > 1]
    alone = walk[:, _MIDDLE] == walk[:, _STOP]
    walk[alone, _MIDDLE] = generator.integers(walk[alone, _START] + 1, walk[alone, _STOP])
    first, second = walk[:, [_START, _MIDDLE]], walk[:, [_MIDDLE, _STOP]]
    swapped = walk[:, _WRONG] == 1
    first[swapped], second[swapped] = second[swapped], first[swapped]
    tossed = np.ones(len(walk), bool)
    return _plan(first, second, walk[:, _WRONG], tossed, settings, generator)


def _walk(corpus: Corpus, settings: ExampleSettings, generator: np.random.Generator, *, puts_back: bool) -> Ids:
    """Go through each document and note where examples start, part and stop: (E, 6).

    Where an example starts depends on what became of the one before. So examples are taken one of every document at a
    time, which NumPy does at once, until few documents are left; the rest of each of those is walked on its own.
    """
    documents, starts = np.arange(corpus.document_count), corpus.documents[:-1]
    waves = [np.zeros((0, 6), np.int64)]
    while len(documents) >= _MANY:
        wave, starts = _wave(corpus, documents, starts, settings, generator, puts_back=puts_back)
        waves.append(wave)
        goes_on = starts < corpus.documents[documents + 1]
        documents, starts = documents[goes_on], starts[goes_on]
    draw = drawing(generator)
    for document, start in zip(documents.tolist(), starts.tolist(), strict=True):
        waves.append(_walk_on(corpus, document, start, settings, draw, puts_back=puts_back))
    return np.concatenate(waves)


def _wave(
    corpus: Corpus,
    documents: Ids,
    starts: Ids,
    settings: ExampleSettings,
    generator: np.random.Generator,
    *,
    puts_back: bool,
) -> tuple[Ids, Ids]:
    """One example of each of some documents, from a sentence on, and the sentence that the next one starts with."""
    room, count, sentences = settings.length - SPECIAL_TOKENS, len(documents), corpus.sentences
    # The original draws this once a document, whose share of short examples then grows with its length; here it is
    # drawn for every example, so that the share is the one that was asked for.
    is_short = generator.random(count) < settings.short_share
    targets = np.where(is_short, generator.integers(2, room + 1, count), room)
    begins = sentences[starts]
    stops = np.minimum(np.searchsorted(sentences, begins + targets), corpus.documents[documents + 1])
    alone = stops == starts + 1
    split = starts + 1 + (generator.random(count) * (stops - starts - 1)).astype(np.int64)
    middles = np.where(alone, stops, split)
    wrong = generator.random(count) < settings.random_share
    if puts_back:
        wrong |= alone
    walk = np.stack([documents, begins, sentences[middles], sentences[stops], targets, wrong], axis=1)
    return walk, np.where(wrong, middles, stops) if puts_back else stops


def _walk_on(
    corpus: Corpus, document: int, start: int, settings: ExampleSettings, draw: Callable[[], float], *, puts_back: bool
) -> Ids:
    """What ``_wave`` does, for one document from a sentence to its end, in numbers where arrays would be too short."""
    room, short_share, wrong_share = settings.length - SPECIAL_TOKENS, settings.short_share, settings.random_share
    places = corpus.sentences[start : corpus.documents[document + 1] + 1].tolist()
    found = array("q")
    start, end = 0, len(places) - 1
    while start < end:
        target = 2 + int(draw() * (room - 1)) if draw() < short_share else room
        stop = bisect_left(places, places[start] + target, start + 1, end)
        alone = stop == start + 1
        middle = stop if alone else start + 1 + int(draw() * (stop - start - 1))
        wrong = (alone and puts_back) or draw() < wrong_share
        found.extend((document, places[start], places[middle], places[stop], target, wrong))
        start = middle if wrong and puts_back else stop
    return np.array(found, dtype=np.int64).reshape(-1, 6)


def _random_segments(corpus: Corpus, documents: Ids, wanted: Ids, generator: np.random.Generator) -> Ids:
    """Sentences of another document, from a random one on, until there are ``wanted`` tokens or it ends: (N, 2)."""
    others = generator.integers(corpus.document_count - 1, size=len(documents))
    others += others >= documents  # never the same document
    last = corpus.documents[others + 1]
    sentences = generator.integers(corpus.documents[others], last)
    starts = corpus.sentences[sentences]
    # The first sentence end at or beyond what is wanted, at least one sentence on.
    ends = np.searchsorted(corpus.sentences, starts + np.maximum(1, wanted))
    return np.stack([starts, corpus.sentences[np.minimum(ends, last)]], axis=1)


def _plan(
    first: Ids, second: Ids, labels: Ids, tossed: Flags, settings: ExampleSettings, generator: np.random.Generator
) -> Plan:
    first, second = _truncate(first, second, settings.length - SPECIAL_TOKENS, generator)
    chunks = np.zeros((len(first), 2, 3), np.int64)
    chunks[:, 0, :2], chunks[:, 1, :2], chunks[:, 1, 2] = first, second, 1
    return Plan(chunks.reshape(-1, 3), np.arange(0, 2 * len(first) + 1, 2), labels.copy(), tossed)


def _truncate(first: Ids, second: Ids, room: int, generator: np.random.Generator) -> tuple[Ids, Ids]:
    """Cut the longer segment, token by token, at either end by chance, so that neither end is favoured."""
    kept_first, kept_second = _shared(first[:, 1] - first[:, 0], second[:, 1] - second[:, 0], room)
    return _cut(first, kept_first, generator), _cut(second, kept_second, generator)


def _cut(segments: Ids, kept: Ids, generator: np.random.Generator) -> Ids:
    surplus = segments[:, 1] - segments[:, 0] - kept
    starts = segments[:, 0].copy()
    long = surplus > 0
    starts[long] += generator.binomial(surplus[long], 0.5)
    return np.stack([starts, starts + kept], axis=1)


def _shared(first: Ids, second: Ids, room: int) -> tuple[Ids, Ids]:
    """What two segments keep when the longer always gives first: (long, long), 125 -> (63, 62), as the original."""
    # Ties take from B, as in the original, so that of an odd room A keeps the odd token.
    half_first, half_second = room - room // 2, room // 2
    kept_first = np.minimum(first, np.maximum(half_first, room - second))
    kept_second = np.minimum(second, np.maximum(half_second, room - first))
    return kept_first, kept_second


def plan_full_sentences(corpus: Corpus, settings: ExampleSettings, generator: np.random.Generator) -> Plan:
    """Plan one epoch: every token is used once. A sentence longer than a sequence is cut into several.

    Documents come in a new order each time; inside a long one the sequences are the same again, as RoBERTa's are, and
    what is new are the masks. None is short on purpose.
    """
    room = left = settings.length - 1  # beside [CLS]
    chunks, rows = array("q"), array("q", [0])
    for document in generator.permutation(corpus.document_count).tolist():
        places = corpus.sentences[corpus.documents[document] : corpus.documents[document + 1] + 1].tolist()
        start, end = places[0], places[-1]
        while start < end:
            # One of what is left is for [SEP]; there may be not even that.
            stop = places[max(1, bisect_right(places, start + left - 1)) - 1]
            if stop <= start:
                if left < room:
                    rows.append(len(chunks) // 3)
                    left = room
                    continue
                stop = start + room - 1
            chunks.extend((start, stop, 0))
            left -= stop - start + 1
            start = stop
    if left < room:
        rows.append(len(chunks) // 3)
    return Plan(np.array(chunks).reshape(-1, 3), np.array(rows), np.zeros(0, np.int64), np.zeros(0, bool))


@dataclass(frozen=True)
class Sequences:
    """Sequences before anything is hidden."""

    ids: Ids  # (B, T)
    segments: Ids  # (B, T)
    lengths: Ids  # (B,) real tokens of each sequence; the rest is padding
    free: Flags  # (B, T) tokens of the text, which may be chosen; what was put around them may not
    starts: Flags  # (B, T) first tokens of words; true also wherever it is not free


def assemble(corpus: Corpus, tokenizer: Tokenizer, plan: Plan, examples: Ids, *, width: int, words: bool) -> Sequences:
    """Read some examples of a plan; without ``words``, every token is a word of its own.

    What is left of a word that was cut by truncation is a word.
    """
    shape = len(examples), width
    ids = np.full(shape, tokenizer.pad_id, dtype=np.int64)
    segments = np.zeros(shape, np.int64)
    free, starts = np.zeros(shape, bool), np.ones(shape, bool)
    chunks, counts = plan.chunks_of(examples)
    begins, stops, numbers = chunks.T
    sizes = stops - begins
    places = _places(sizes + 1, counts, width)
    ends = places + sizes
    tokens = np.arange(sizes.sum()) + np.repeat(places - (np.cumsum(sizes) - sizes), sizes)
    ranges = list(zip(begins.tolist(), stops.tolist(), strict=True))
    ids[:, 0] = tokenizer.cls_id
    ids.reshape(-1)[tokens] = np.concatenate([corpus.read(*one) for one in ranges])
    ids.reshape(-1)[ends] = tokenizer.sep_id
    segments.reshape(-1)[tokens] = np.repeat(numbers, sizes)
    segments.reshape(-1)[ends] = numbers
    free.reshape(-1)[tokens] = True
    if words:
        starts.reshape(-1)[tokens] = np.concatenate([corpus.word_starts(*one) for one in ranges])
        starts.reshape(-1)[places] = True
    return Sequences(ids, segments, plan.lengths[examples], free, starts)


def _places(sizes: Ids, counts: Ids, width: int) -> Ids:
    """Where each chunk starts in the flattened (B * T): the first of a row behind its ``[CLS]``, others in turn."""
    before = np.cumsum(sizes) - sizes
    firsts = np.cumsum(counts) - counts
    places: Ids = before + np.repeat(np.arange(len(counts)) * width + 1 - before[firsts], counts)
    return places
