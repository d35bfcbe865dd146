"""Sequences without any pair: the FULL-SENTENCES of RoBERTa (Liu et al. 2019, section 4.2).

Whole sentences, one after the other, as many as there is room for. Where a document ends the next one goes on, behind
a ``[SEP]`` of its own. Everything is of the first segment, and nothing is asked but the hidden words.
"""

from array import array
from bisect import bisect_right

import numpy as np

from cloze.corpus.plans import Plan
from cloze.corpus.settings import ExampleSettings
from cloze.corpus.shards import Corpus


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
