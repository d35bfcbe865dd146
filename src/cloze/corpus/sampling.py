"""Shards -> sequences: which ranges of the corpus form the examples of an epoch, and their tokens.

The second step of making a batch: shards -> **sampling** -> masking -> batch. Sentences are adjacent in the corpus, so
that several whole sentences are a range of tokens, here called a chunk. An epoch is first planned as chunks, without
reading a token; ``assemble`` then reads the examples of one batch. Every example is ``[CLS]`` and its chunks, each
followed by ``[SEP]``: two chunks for sentence pairs, one or more for full sentences.

    nsp   next-sentence prediction (Devlin et al. 2019, section 3.1): B follows A, or is from another document
    sop   sentence-order prediction (Lan et al. 2020, section 3.1): A and B are adjacent, or swapped
    relation  as nsp, but half of the wrong pairs are from elsewhere in A's document
    none  FULL-SENTENCES (Liu et al. 2019, section 4.2): whole sentences, as many as fit; where a document ends, the
          next one continues after a ``[SEP]``; everything is segment 0

Both kinds of pairs walk through each document by the algorithm of the original ``create_pretraining_data``: collect
sentences up to the target length, and split them in two at a random sentence. With nsp, if B is
random, the sentences that would have been the true B start the next example.

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
_BLOCK = 4096  # random numbers drawn at once
# With fewer documents, plain loops are faster than arrays.
_MANY = 24
# Columns of a walk. If A is a single sentence with nothing after it, _MIDDLE equals STOP.
_DOCUMENT, START, _MIDDLE, STOP, _TARGET, _WRONG = range(6)


@dataclass(frozen=True)
class EpochPlan:
    """The examples of an epoch, in the order of the corpus."""

    chunks: Ids  # (C, 3): first token, one after the last token, segment
    rows: Ids  # (E + 1,): first chunk of each example, and the end
    # (E,): 1 where B is random (nsp) or A and B are swapped (sop); for relation, 0 where B follows A, 1 where it is
    # from another document, 2 where it is from elsewhere in A's document; (0,) without pairs
    labels: Ids
    tossed: Flags  # (E,) or (0,): whether the label was random, not forced because nothing follows A

    @property
    def count(self) -> int:
        """Number of examples."""
        return len(self.rows) - 1

    @cached_property
    def lengths(self) -> Ids:
        """Tokens of each example, the special ones included: (E,)."""
        sizes = self.chunks[:, 1] - self.chunks[:, 0] + 1  # and its [SEP]
        ends = np.concatenate([[0], np.cumsum(sizes)])
        lengths: Ids = ends[self.rows[1:]] - ends[self.rows[:-1]] + 1  # and [CLS]
        return lengths

    def chunks_of(self, examples: Ids) -> tuple[Ids, Ids]:
        """Return the chunks of some examples, concatenated (N, 3), and the number of chunks of each (B,)."""
        firsts = self.rows[examples]
        counts = self.rows[examples + 1] - firsts
        numbers = np.arange(counts.sum()) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)
        return self.chunks[numbers], counts


def drawing(generator: np.random.Generator) -> Callable[[], float]:
    """Return a function that returns random numbers in [0, 1), drawn in blocks so that a call is cheap.

    For walks in which the next draw depends on the last one, so that arrays cannot be used.
    """
    blocks = (generator.random(_BLOCK).tolist() for _ in repeat(None))
    return chain.from_iterable(blocks).__next__


def plan_next_sentences(corpus: Corpus, settings: ExampleSettings, generator: np.random.Generator) -> EpochPlan:
    """Plan an epoch of next-sentence prediction: every sentence is used once, as A or as the true B."""
    if corpus.document_count < 2:
        raise DataError(
            f"the corpus has {corpus.document_count} document; next-sentence prediction takes its wrong answers from "
            "other documents, so at least two are needed: put a blank line between documents, or use --objective sop "
            "or none"
        )
    walk = walk_documents(corpus, settings, generator, returns_rest=True)
    first, second = walk[:, [START, _MIDDLE]], walk[:, [_MIDDLE, STOP]]
    wrong = walk[:, _WRONG] == 1
    wanted = walk[wrong, _TARGET] - (first[wrong, 1] - first[wrong, 0])
    second[wrong] = _random_segments(corpus, walk[wrong, _DOCUMENT], wanted, generator)
    tossed = walk[:, _MIDDLE] < walk[:, STOP]
    return _plan(first, second, walk[:, _WRONG], tossed, settings, generator)


def plan_relations(corpus: Corpus, settings: ExampleSettings, generator: np.random.Generator) -> EpochPlan:
    """Plan an epoch of relations: B follows A, is from another document, or from elsewhere in A's, a third each.

    Negatives from the same document share its topic and words, so that the model has to compare the segments and cannot
    rely on the topic alone. A document with nothing outside A and the sentence after it has no such negatives, and gets
    one from another document.
    """
    next_sentences = plan_next_sentences(corpus, replace(settings, random_share=2 / 3), generator)
    chunks, labels = next_sentences.chunks.reshape(-1, 2, 3).copy(), next_sentences.labels.copy()
    chosen = np.flatnonzero((labels == 1) & (generator.random(len(labels)) < 1 / 2))
    elsewhere, exists = _segments_elsewhere(corpus, chunks[chosen], generator)
    chosen, elsewhere = chosen[exists], elsewhere[exists]
    chunks[chosen, 1, :2], labels[chosen] = elsewhere, 2
    return EpochPlan(chunks.reshape(-1, 3), next_sentences.rows, labels, next_sentences.tossed)


def _segments_elsewhere(corpus: Corpus, pairs: Ids, generator: np.random.Generator) -> tuple[Ids, Flags]:
    """Return sentences of A's document that neither overlap A nor follow it, (N, 2), and whether there are any, (N,).

    They are at most as long as the present B, so that the sequences stay within their maximum length.
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
    """Plan an epoch of sentence order: every sentence is used once, and ``random_share`` of the pairs are swapped.

    ALBERT's code gives a single sentence (the last of its document, or a long one) a random partner and labels the pair
    swapped. Here it is split in two at a random token, so that the label always means the order, and one document is
    enough. A single sentence of one token has no order and is left out.
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

    Where an example starts depends on the one before it. So one example of every document is taken at a time, as NumPy
    arrays, until few documents are left; the rest of each of those is walked in a plain loop.
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
    """Take one example of each document; return the examples and the first sentences of the next ones."""
    room, count, sentences = settings.max_length - SPECIAL_TOKENS, len(documents), corpus.sentences
    # The original draws this once per document, so that the share of short examples depends on document lengths; here
    # it is drawn for every example, so that the share is that of the settings.
    is_short = generator.random(count) < settings.short_share
    targets = np.where(is_short, generator.integers(2, room + 1, count), room)
    begins = sentences[starts]
    stops = np.minimum(np.searchsorted(sentences, begins + targets), corpus.documents[documents + 1])
    alone = stops == starts + 1
    split = starts + 1 + (generator.random(count) * (stops - starts - 1)).astype(np.int64)
    middles = np.where(alone, stops, split)
    wrong = generator.random(count) < settings.random_share
    if returns_rest:
        wrong |= alone
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
    """Do what ``_wave`` does in a plain loop, for one document from a sentence to its end."""
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
    """Return sentences of another document, from a random one on, up to ``wanted`` tokens or its end: (N, 2)."""
    others = generator.integers(corpus.document_count - 1, size=len(documents))
    others += others >= documents  # never the same document
    last = corpus.documents[others + 1]
    sentences = generator.integers(corpus.documents[others], last)
    starts = corpus.sentences[sentences]
    # The first sentence end at or beyond the wanted length, after at least one sentence.
    ends = np.searchsorted(corpus.sentences, starts + np.maximum(1, wanted))
    return np.stack([starts, corpus.sentences[np.minimum(ends, last)]], axis=1)


def _plan(
    first: Ids, second: Ids, labels: Ids, tossed: Flags, settings: ExampleSettings, generator: np.random.Generator
) -> EpochPlan:
    first, second = _truncate(first, second, settings.max_length - SPECIAL_TOKENS, generator)
    chunks = np.zeros((len(first), 2, 3), np.int64)
    chunks[:, 0, :2], chunks[:, 1, :2], chunks[:, 1, 2] = first, second, 1
    return EpochPlan(chunks.reshape(-1, 3), np.arange(0, 2 * len(first) + 1, 2), labels.copy(), tossed)


def _truncate(first: Ids, second: Ids, room: int, generator: np.random.Generator) -> tuple[Ids, Ids]:
    """Truncate the longer segment first, each token at a random end, so that neither end is favoured."""
    kept_first, kept_second = _shared(first[:, 1] - first[:, 0], second[:, 1] - second[:, 0], room)
    return cut(first, kept_first, generator), cut(second, kept_second, generator)


def cut(segments: Ids, kept: Ids, generator: np.random.Generator) -> Ids:
    """Truncate segments (N, 2) to ``kept`` tokens, each surplus token at a random end: (N, 2)."""
    surplus = segments[:, 1] - segments[:, 0] - kept
    starts = segments[:, 0].copy()
    long = surplus > 0
    starts[long] += generator.binomial(surplus[long], 0.5)
    return np.stack([starts, starts + kept], axis=1)


def _shared(first: Ids, second: Ids, room: int) -> tuple[Ids, Ids]:
    """Return the lengths after truncating the longer segment first: (long, long) with room 125 -> (63, 62)."""
    # Of equally long segments B loses a token first, as in the original, so that A keeps the odd token.
    half_first, half_second = room - room // 2, room // 2
    kept_first = np.minimum(first, np.maximum(half_first, room - second))
    kept_second = np.minimum(second, np.maximum(half_second, room - first))
    return kept_first, kept_second


def plan_full_sentences(corpus: Corpus, settings: ExampleSettings, generator: np.random.Generator) -> EpochPlan:
    """Plan an epoch of full sentences: every token is used once. A sentence longer than a sequence is cut.

    The order of documents is new in every epoch. Within a long document the sequences repeat, as RoBERTa's do, and only
    the masks are new. No sequence is short on purpose.
    """
    room = left = settings.max_length - 1  # without [CLS]
    chunks, rows = array("q"), array("q", [0])
    for document in generator.permutation(corpus.document_count).tolist():
        places = corpus.sentences[corpus.documents[document] : corpus.documents[document + 1] + 1].tolist()
        start, end = places[0], places[-1]
        while start < end:
            # One of the tokens left is for [SEP]; there may not even be room for that.
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
    return EpochPlan(np.array(chunks).reshape(-1, 3), np.array(rows), np.zeros(0, np.int64), np.zeros(0, bool))


@dataclass(frozen=True)
class Sequences:
    """Sequences before masking."""

    ids: Ids  # (B, T)
    segments: Ids  # (B, T)
    lengths: Ids  # (B,) real tokens of each sequence; the rest is padding
    free: Flags  # (B, T) tokens of the text, which may be masked; special tokens and padding may not
    starts: Flags  # (B, T) first tokens of words; also true where not free


def assemble(
    corpus: Corpus, tokenizer: Tokenizer, plan: EpochPlan, examples: Ids, *, width: int, words: bool
) -> Sequences:
    """Read the tokens of some examples of a plan.

    Args:
        corpus: Where to read.
        tokenizer: Names the special tokens.
        plan: The examples of an epoch.
        examples: Which of them, (B,).
        width: Tokens per row, T; shorter sequences are padded.
        words: Whether to read word starts; without them, every token is a word of its own. The rest of a word that
            was truncated is a word.
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
    ids.reshape(-1)[tokens] = np.concatenate([corpus.read(start, stop) for start, stop in ranges])
    ids.reshape(-1)[ends] = tokenizer.sep_id
    segments.reshape(-1)[tokens] = np.repeat(numbers, sizes)
    segments.reshape(-1)[ends] = numbers
    free.reshape(-1)[tokens] = True
    if words:
        starts.reshape(-1)[tokens] = np.concatenate([corpus.word_starts(start, stop) for start, stop in ranges])
        starts.reshape(-1)[places] = True
    return Sequences(ids, segments, plan.lengths[examples], free, starts)


def _places(sizes: Ids, counts: Ids, width: int) -> Ids:
    """Return where each chunk starts in the flattened (B * T): the first of a row after ``[CLS]``, then in turn."""
    before = np.cumsum(sizes) - sizes
    firsts = np.cumsum(counts) - counts
    places: Ids = before + np.repeat(np.arange(len(counts)) * width + 1 - before[firsts], counts)
    return places
