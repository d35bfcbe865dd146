"""Sampling: divide the corpus into the examples of an epoch, and assemble their token sequences.

The second step of building a batch: shards -> **sampling** -> masking -> batch. Consecutive sentences are adjacent in
the corpus, so several whole sentences are one range of tokens, called a chunk here. An epoch is first planned in terms
of chunks, without reading any tokens; ``assemble`` then reads the examples of a batch. An example consists of ``[CLS]``
and its chunks, each followed by ``[SEP]``: two chunks for sentence pairs, one or more for full sentences.

    nsp   next-sentence prediction (Devlin et al. 2019, section 3.1): B follows A, or comes from another document
    sop   sentence-order prediction (Lan et al. 2020, section 3.1): A and B are adjacent, or swapped
    relation  like nsp, but half of the negative pairs have a B from elsewhere in A's document
    copy  B is a copy of A with words dropped and moved (``masking.py``)
    none  FULL-SENTENCES (Liu et al. 2019, section 4.2): as many whole sentences as fit. At the end of a document, a
          ``[SEP]`` and the next document follow. All tokens have segment 0.

Pairs are planned with the algorithm of the original ``create_pretraining_data``, which walks through each document:
collect sentences up to a target length (one example), then split them at a random sentence boundary. For example, for a
document of sentences 1 to 7 and nsp:

    collected     split        B is         example                          next example starts at
    1 2 3         1 2 | 3      the true one [CLS] 1 2 [SEP] 3 [SEP]          4
    4 5 6         4 | 5 6      random       [CLS] 4 [SEP] x y [SEP]          5 (5 and 6 were not used)
    5 6 7         ...

With sop, pairs are swapped instead of taken from another document, so that every sentence is used in every case.

Dimensions: B sequences, T tokens, E examples of an epoch, C chunks.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
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

SPECIAL_TOKENS = 3  # [CLS] A [SEP] B [SEP]
RELATION_SHARE = 2 / 3  # fraction of relation pairs in which B does not follow A
_BLOCK = 4096  # random numbers per block
# With fewer documents, plain loops are faster than arrays.
_MANY = 24
# Columns of a walk: document; token positions where A starts, B starts and B stops; target length in tokens; whether
# the pair is negative (random or swapped). If A is a single sentence with nothing after it, _MIDDLE equals STOP.
_DOCUMENT, START, _MIDDLE, STOP, _TARGET, _WRONG = range(6)


@dataclass(frozen=True)
class EpochPlan:
    """The examples of an epoch, in the order of the corpus."""

    chunks: Ids  # (C, 3): first token, one past the last token, segment
    rows: Ids  # (E + 1,): index of the first chunk of each example, and C at the end
    # (E,): 1 if B is random (nsp) or A and B are swapped (sop); for relation, 0 if B follows A, 1 if it is from another
    # document, 2 if it is from elsewhere in A's document; (0,) without pairs
    labels: Ids
    tossed: Flags  # (E,) or (0,): true if the label was drawn at random, false if it was forced: nothing follows A

    @property
    def count(self) -> int:
        """Number of examples."""
        return len(self.rows) - 1

    @cached_property
    def lengths(self) -> Ids:
        """Tokens of each example, including special tokens: (E,)."""
        sizes = self.chunks[:, 1] - self.chunks[:, 0] + 1  # (C,), including [SEP]
        ends = np.concatenate([[0], np.cumsum(sizes)])
        lengths: Ids = ends[self.rows[1:]] - ends[self.rows[:-1]] + 1  # (E,), including [CLS]
        return lengths

    def chunks_of(self, examples: Ids) -> tuple[Ids, Ids]:
        """Return the chunks of some examples, concatenated (N, 3), and the number of chunks of each (B,)."""
        firsts = self.rows[examples]  # (B,)
        counts = self.rows[examples + 1] - firsts  # (B,)
        # Concatenated ranges firsts[i], firsts[i] + 1, ... of counts[i] numbers each: (N,).
        numbers = np.arange(counts.sum()) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)
        return self.chunks[numbers], counts


def drawing(generator: np.random.Generator) -> Callable[[], float]:
    """Return a function that returns random numbers in [0, 1), drawn in blocks so that each call is cheap.

    Used where each step depends on the previous draw, so that numbers cannot be drawn as one array.
    """
    blocks = (generator.random(_BLOCK).tolist() for _ in repeat(None))
    return chain.from_iterable(blocks).__next__


def plan_next_sentences(corpus: Corpus, settings: ExampleSettings, generator: np.random.Generator) -> EpochPlan:
    """Plan an epoch of next-sentence prediction: every sentence is used once, as A or as the true B.

    Random segments are additional: they are copied from other documents, where their sentences are also used.
    """
    if corpus.document_count < 2:
        raise DataError(
            f"the corpus has {corpus.document_count} document; next-sentence prediction takes its negatives from "
            f"other documents, so at least two are needed: put a blank line between documents, or use --objective sop "
            "or none"
        )
    walk = walk_documents(corpus, settings, generator, returns_rest=True)
    first, second = walk[:, [START, _MIDDLE]], walk[:, [_MIDDLE, STOP]]
    wrong = walk[:, _WRONG] == 1
    wanted = walk[wrong, _TARGET] - (first[wrong, 1] - first[wrong, 0])  # tokens left for B
    second[wrong] = _random_segments(corpus, walk[wrong, _DOCUMENT], wanted, generator)
    tossed = walk[:, _MIDDLE] < walk[:, STOP]
    return _plan(first, second, walk[:, _WRONG], tossed, settings, generator)


def plan_relations(corpus: Corpus, settings: ExampleSettings, generator: np.random.Generator) -> EpochPlan:
    """Plan an epoch of relations: in a third each, B follows A, comes from another document, or from elsewhere in A's.

    Negatives from the same document share its topic and words, so the model has to compare the segments and cannot rely
    on the topic alone. If a document contains only A and the sentence after it, the negative comes from another
    document.
    """
    next_sentences = plan_next_sentences(corpus, replace(settings, random_share=RELATION_SHARE), generator)
    chunks, labels = next_sentences.chunks.reshape(-1, 2, 3).copy(), next_sentences.labels.copy()
    chosen = np.flatnonzero((labels == 1) & (generator.random(len(labels)) < 1 / 2))
    elsewhere, exists = _segments_elsewhere(corpus, chunks[chosen], generator)
    chosen, elsewhere = chosen[exists], elsewhere[exists]
    chunks[chosen, 1, :2], labels[chosen] = elsewhere, 2
    return EpochPlan(chunks.reshape(-1, 3), next_sentences.rows, labels, next_sentences.tossed)


def _segments_elsewhere(corpus: Corpus, pairs: Ids, generator: np.random.Generator) -> tuple[Ids, Flags]:
    """Return sentences of A's document that neither overlap A nor follow it, (N, 2), and whether there are any, (N,).

    They are at most as long as the current B, so that the sequences stay within their maximum length.
    """
    starts, stops = pairs[:, 0, 0], pairs[:, 0, 1]
    wanted = pairs[:, 1, 1] - pairs[:, 1, 0]
    # A may have been truncated: its first sentence is the one that its first token is in.
    first = np.searchsorted(corpus.sentences, starts, side="right") - 1
    after = np.searchsorted(corpus.sentences, stops, side="left") + 1  # skips the sentence that follows A
    document = np.searchsorted(corpus.documents, first, side="right") - 1
    begin, end = corpus.documents[document], corpus.documents[document + 1]
    before_count, after_count = first - begin, np.maximum(0, end - after)
    exists = before_count + after_count > 0
    drawn = (generator.random(len(pairs)) * (before_count + after_count)).astype(np.int64)
    is_before = drawn < before_count
    sentences = np.where(is_before, begin + drawn, after + drawn - before_count)
    sentences = np.where(exists, sentences, begin)
    limits = corpus.sentences[np.where(is_before, first, end)]
    segments = np.stack([corpus.sentences[sentences], np.minimum(corpus.sentences[sentences] + wanted, limits)], axis=1)
    return segments, exists


def plan_sentence_order(corpus: Corpus, settings: ExampleSettings, generator: np.random.Generator) -> EpochPlan:
    """Plan an epoch of sentence-order prediction: every sentence is used once; ``random_share`` of pairs are swapped.

    If an example is a single sentence (the last of its document, or a long one), ALBERT's code adds a random sentence
    and labels the pair as swapped. Here the sentence is split at a random token instead, so that labels always refer to
    the order, and a corpus of one document is enough. A sentence of one token cannot be split and is dropped.
    """
    walk = walk_documents(corpus, settings, generator)
    walk = walk[walk[:, STOP] - walk[:, START] > 1]
    alone = walk[:, _MIDDLE] == walk[:, STOP]
    walk[alone, _MIDDLE] = generator.integers(walk[alone, START] + 1, walk[alone, STOP])
    first, second = walk[:, [START, _MIDDLE]], walk[:, [_MIDDLE, STOP]]
    swapped = walk[:, _WRONG] == 1
    first[swapped], second[swapped] = second[swapped], first[swapped]
    tossed = np.ones(len(walk), bool)
    return _plan(first, second, walk[:, _WRONG], tossed, settings, generator)


def walk_documents(
    corpus: Corpus, settings: ExampleSettings, generator: np.random.Generator, *, returns_rest: bool = False
) -> Ids:
    """Walk through each document and record where examples start, split and stop: (E, 6).

    An example starts where the previous one of the document stops, so a document cannot be processed in one step.
    Instead, one wave takes one example of every document, as NumPy arrays. When few documents are left, a plain loop
    finishes each of them. ``returns_rest`` (nsp): the sentences that a random B displaces start the next example.
    """
    documents, starts = np.arange(corpus.document_count), corpus.documents[:-1]
    waves = [np.zeros((0, 6), np.int64)]
    while len(documents) >= _MANY:
        wave, starts = _wave(corpus, documents, starts, settings, generator, returns_rest=returns_rest)
        waves.append(wave)
        unfinished = starts < corpus.documents[documents + 1]
        documents, starts = documents[unfinished], starts[unfinished]
    draw = drawing(generator)
    for document, start in zip(documents.tolist(), starts.tolist(), strict=True):
        waves.append(_walk_on(corpus, document, start, settings, draw, returns_rest=returns_rest))
    return np.concatenate(waves)


def _wave(
    corpus: Corpus,
    documents: Ids,
    starts: Ids,
    settings: ExampleSettings,
    generator: np.random.Generator,
    *,
    returns_rest: bool,
) -> tuple[Ids, Ids]:
    """Take one example of each of D documents: return them, (D, 6), and the first sentences of the next ones, (D,)."""
    room, count, sentences = settings.max_length - SPECIAL_TOKENS, len(documents), corpus.sentences
    # The original code decides this once per document, so that its share of short examples depends on document lengths.
    # Here it is decided for each example, so that the share matches the settings.
    is_short = generator.random(count) < settings.short_share
    targets = np.where(is_short, generator.integers(2, room + 1, count), room)  # (D,), tokens
    begins = sentences[starts]  # (D,), token positions
    # The first sentence boundary at or after the target length, but not beyond the document. A and B may exceed the
    # length by a part of a sentence; _truncate removes it.
    stops = np.minimum(np.searchsorted(sentences, begins + targets), corpus.documents[documents + 1])
    alone = stops == starts + 1  # a single sentence: nothing is left for B
    split = starts + 1 + (generator.random(count) * (stops - starts - 1)).astype(np.int64)
    middles = np.where(alone, stops, split)
    wrong = generator.random(count) < settings.random_share
    if returns_rest:
        wrong |= alone  # without a true B, the pair must be random
    walk = np.stack([documents, begins, sentences[middles], sentences[stops], targets, wrong], axis=1)
    return walk, np.where(wrong, middles, stops) if returns_rest else stops


def _walk_on(
    corpus: Corpus,
    document: int,
    start: int,
    settings: ExampleSettings,
    draw: Callable[[], float],
    *,
    returns_rest: bool,
) -> Ids:
    """Apply the steps of ``_wave`` in a plain loop to one document, from sentence ``start`` to its end."""
    room, short_share, wrong_share = settings.max_length - SPECIAL_TOKENS, settings.short_share, settings.random_share
    places = corpus.sentences[start : corpus.documents[document + 1] + 1].tolist()
    walk = array("q")
    start, end = 0, len(places) - 1
    while start < end:
        target = 2 + int(draw() * (room - 1)) if draw() < short_share else room
        stop = bisect_left(places, places[start] + target, start + 1, end)
        alone = stop == start + 1
        middle = stop if alone else start + 1 + int(draw() * (stop - start - 1))
        wrong = (alone and returns_rest) or draw() < wrong_share
        walk.extend((document, places[start], places[middle], places[stop], target, wrong))
        start = middle if wrong and returns_rest else stop
    return np.array(walk, dtype=np.int64).reshape(-1, 6)


def _random_segments(corpus: Corpus, documents: Ids, wanted: Ids, generator: np.random.Generator) -> Ids:
    """Return the token ranges of random segments from other documents: (N, 2).

    A segment starts at a random sentence. It ends with the first sentence that reaches ``wanted`` tokens, (N,), or with
    the document.
    """
    others = generator.integers(corpus.document_count - 1, size=len(documents))
    others += others >= documents  # skips the document itself, so that all others are equally likely
    last = corpus.documents[others + 1]
    sentences = generator.integers(corpus.documents[others], last)
    starts = corpus.sentences[sentences]
    # The first sentence end at or after the wanted length, but at least one sentence.
    ends = np.searchsorted(corpus.sentences, starts + np.maximum(1, wanted))
    return np.stack([starts, corpus.sentences[np.minimum(ends, last)]], axis=1)


def _plan(
    first: Ids, second: Ids, labels: Ids, tossed: Flags, settings: ExampleSettings, generator: np.random.Generator
) -> EpochPlan:
    """Truncate the segments of all pairs, (E, 2) each, and return their plan."""
    first, second = _truncate(first, second, settings.max_length - SPECIAL_TOKENS, generator)
    chunks = np.zeros((len(first), 2, 3), np.int64)
    chunks[:, 0, :2], chunks[:, 1, :2], chunks[:, 1, 2] = first, second, 1
    return EpochPlan(chunks.reshape(-1, 3), np.arange(0, 2 * len(first) + 1, 2), labels.copy(), tossed)


def _truncate(first: Ids, second: Ids, room: int, generator: np.random.Generator) -> tuple[Ids, Ids]:
    """Truncate pairs to ``room`` tokens: the longer segment first, each token at a random end to avoid a bias."""
    kept_first, kept_second = _shared(first[:, 1] - first[:, 0], second[:, 1] - second[:, 0], room)
    return cut(first, kept_first, generator), cut(second, kept_second, generator)


def cut(segments: Ids, kept: Ids, generator: np.random.Generator) -> Ids:
    """Shorten segments, (E, 2), to ``kept`` tokens; the surplus is split between both ends at random."""
    surplus = segments[:, 1] - segments[:, 0] - kept
    starts = segments[:, 0].copy()
    long = surplus > 0
    starts[long] += generator.binomial(surplus[long], 0.5)  # tokens removed at the front: a coin toss per token
    return np.stack([starts, starts + kept], axis=1)


def _shared(first: Ids, second: Ids, room: int) -> tuple[Ids, Ids]:
    """Return the lengths after truncating the longer segment first: two long segments and room 125 -> (63, 62).

    A segment shorter than half of the room keeps its length, and the other one gets the rest.
    """
    # As in the original, B loses a token first if both are equally long, so A keeps the odd token.
    half_first, half_second = room - room // 2, room // 2
    kept_first = np.minimum(first, np.maximum(half_first, room - second))
    kept_second = np.minimum(second, np.maximum(half_second, room - first))
    return kept_first, kept_second


def plan_full_sentences(corpus: Corpus, settings: ExampleSettings, generator: np.random.Generator) -> EpochPlan:
    """Plan an epoch of full sentences: every token is used once. A sentence longer than a sequence is split.

    The order of documents changes in every epoch. Within a long document the sequences stay the same, as in RoBERTa,
    and only the masks change. ``short_share`` does not apply.
    """
    room = left = settings.max_length - 1  # without [CLS]
    chunks, rows = array("q"), array("q", [0])
    for document in generator.permutation(corpus.document_count).tolist():
        places = corpus.sentences[corpus.documents[document] : corpus.documents[document + 1] + 1].tolist()
        start, end = places[0], places[-1]
        while start < end:
            # The last sentence end that fits; one of the remaining tokens is reserved for [SEP], which may not fit
            # either.
            stop = places[max(1, bisect_right(places, start + left - 1)) - 1]
            if stop <= start:  # not even one sentence fits
                if left < room:  # finish this sequence and try again in an empty one
                    rows.append(len(chunks) // 3)
                    left = room
                    continue
                stop = start + room - 1  # longer than a whole sequence: split it
            chunks.extend((start, stop, 0))
            left -= stop - start + 1
            start = stop
    if left < room:
        rows.append(len(chunks) // 3)
    return EpochPlan(np.array(chunks).reshape(-1, 3), np.array(rows), np.zeros(0, np.int64), np.zeros(0, bool))


@dataclass(frozen=True)
class Sequences:
    """A batch of sequences before masking."""

    ids: Ids  # (B, T)
    segments: Ids  # (B, T)
    lengths: Ids  # (B,) number of real tokens; the rest is padding
    free: Flags  # (B, T) tokens that may be masked: all but special tokens and padding
    starts: Flags  # (B, T) first tokens of words; also true at special tokens and padding


def assemble(
    corpus: Corpus, tokenizer: Tokenizer, plan: EpochPlan, examples: Ids, *, width: int, words: bool
) -> Sequences:
    """Read some examples of a plan and build their sequences.

    Args:
        corpus: The corpus that was planned.
        tokenizer: Provides the ids of special tokens.
        plan: The examples of an epoch.
        examples: Indices of the examples to read, (B,).
        width: Tokens per row, T; shorter sequences are padded.
        words: Whether to read word starts. Otherwise, every token is treated as a word. If truncation splits a word,
            the rest of it is treated as a word.
    """
    shape = len(examples), width
    ids = np.full(shape, tokenizer.pad_id, dtype=np.int64)
    segments = np.zeros(shape, np.int64)
    free, starts = np.zeros(shape, bool), np.ones(shape, bool)
    chunks, counts = plan.chunks_of(examples)  # (N, 3), (B,)
    begins, stops, numbers = chunks.T  # each (N,); numbers are the segment ids
    sizes = stops - begins
    places = _places(sizes + 1, counts, width)  # (N,), flat position of the first token of each chunk
    ends = places + sizes  # (N,), flat position of each [SEP]
    # Flat positions of all tokens of all chunks: concatenated ranges that start at ``places``.
    tokens = np.arange(sizes.sum()) + np.repeat(places - (np.cumsum(sizes) - sizes), sizes)
    ranges = list(zip(begins.tolist(), stops.tolist(), strict=True))
    ids[:, 0] = tokenizer.cls_id
    ids.reshape(-1)[tokens] = np.concatenate([corpus.read(start, stop) for start, stop in ranges])
    ids.reshape(-1)[ends] = tokenizer.sep_id
    segments.reshape(-1)[tokens] = np.repeat(numbers, sizes)
    segments.reshape(-1)[ends] = numbers
    free.reshape(-1)[tokens] = True
    if words:
        starts.reshape(-1)[tokens] = np.concatenate([corpus.word_starts(start, stop) for start, stop in ranges])
        starts.reshape(-1)[places] = True  # even if truncation starts the chunk inside a word
    return Sequences(ids, segments, plan.lengths[examples], free, starts)


def _places(sizes: Ids, counts: Ids, width: int) -> Ids:
    """Return the flat position in (B, T) at which each chunk starts: (N,).

    The first chunk of a row starts after ``[CLS]``; each other chunk starts after the ``[SEP]`` of the one before it.
    """
    before = np.cumsum(sizes) - sizes  # (N,), tokens of all chunks before this one, in all rows
    firsts = np.cumsum(counts) - counts  # (B,), first chunk of each row
    places: Ids = before + np.repeat(np.arange(len(counts)) * width + 1 - before[firsts], counts)
    return places
