"""Copy pairs: ``[CLS] A [SEP] A' [SEP]``, where A' is A with words dropped or moved, and one side is masked.

Most masked tokens of such a pair can be copied from the other side, once the model has found their positions there. So
it learns early to compare two segments token by token, which full sentences do not teach and next-sentence prediction
teaches slowly. Only one side is masked, so that the answer is always visible on the other.

Dimensions: B sequences, T tokens, E examples of an epoch, N tokens of A'.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from cloze.corpus.sampling import SPECIAL_TOKENS, START, STOP, EpochPlan, Flags, Ids, Sequences, cut, walk_documents
from cloze.corpus.settings import SHORTEST, ExampleSettings
from cloze.corpus.shards import Corpus

_MOVED_SHARE = 0.5  # fraction of the copies in which words are moved


def plan_copies(corpus: Corpus, settings: ExampleSettings, generator: np.random.Generator) -> EpochPlan:
    """Plan an epoch of copy pairs: every sentence is used once, as A and as its own copy."""
    room = (settings.max_length - SPECIAL_TOKENS) // 2
    of_one_side = replace(settings, max_length=max(SHORTEST, room + SPECIAL_TOKENS))
    walk = walk_documents(corpus, of_one_side, generator)[:, [START, STOP]]
    segments = cut(walk, np.minimum(walk[:, 1] - walk[:, 0], room), generator)
    chunks = np.zeros((len(walk), 2, 3), np.int64)
    chunks[:, :, :2], chunks[:, 1, 2] = segments[:, None], 1
    rows = np.arange(0, 2 * len(walk) + 1, 2)
    return EpochPlan(chunks.reshape(-1, 3), rows, np.zeros(0, np.int64), np.zeros(0, bool))


def change_copies(
    sequences: Sequences, generators: Iterable[np.random.Generator], settings: ExampleSettings, pad_id: int
) -> Sequences:
    """Drop and move words of the copies, and leave only one side of each pair free to be masked.

    Args:
        sequences: Copy pairs with equal sides, (B, T), read with word starts.
        generators: A random generator for each row.
        settings: Share of dropped words and distance of moves.
        pad_id: Id of the padding token.

    Returns:
        The changed sequences, as wide as before; rows are shorter by the dropped words.
    """
    ids, segments, lengths = sequences.ids.copy(), sequences.segments.copy(), sequences.lengths.copy()
    free, starts = sequences.free.copy(), sequences.starts.copy()
    for row, generator in enumerate(generators):
        begin, end = _copy_range(sequences, row)
        order = _changed_order(sequences.starts[row, begin:end], generator, settings)
        stop = begin + len(order)  # position of the second [SEP]
        ids[row, begin:stop] = sequences.ids[row, begin + order]
        starts[row, begin:stop] = sequences.starts[row, begin + order]
        ids[row, stop], starts[row, stop] = sequences.ids[row, end], True
        ids[row, stop + 1 :], segments[row, stop + 1 :], starts[row, stop + 1 :] = pad_id, 0, True
        lengths[row] = stop + 1
        free[row, stop:] = False
        hidden = slice(0, begin) if generator.random() < 1 / 2 else slice(begin, None)
        free[row, hidden] = False
    return Sequences(ids, segments, lengths, free, starts)


def _copy_range(sequences: Sequences, row: int) -> tuple[int, int]:
    """Return the first token of A' and the position of the [SEP] after it."""
    end = int(sequences.lengths[row]) - 1
    begin = int(np.argmax(sequences.segments[row] == 1))
    return begin, end


def _changed_order(starts: Flags, generator: np.random.Generator, settings: ExampleSettings) -> Ids:
    """Return the indices of the tokens of A' that are kept, in their new order: (N,) -> (at most N,)."""
    words = np.cumsum(starts) - 1  # the word of each token; truncation may have cut the first one
    words -= words[0]
    count = int(words[-1]) + 1
    keys = np.arange(count, dtype=float)
    if generator.random() < _MOVED_SHARE:
        # Adding less than the distance to the indices moves a word by fewer positions than that.
        keys += generator.random(count) * settings.move_distance
    kept = generator.random(count) >= settings.drop_share
    kept[int(generator.integers(count))] = True  # never an empty copy
    order: Ids = np.lexsort((np.arange(len(words)), keys[words]))
    chosen: Ids = order[kept[words[order]]]
    return chosen
