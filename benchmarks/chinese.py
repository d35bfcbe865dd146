"""Measure word and sentence splitting: speed, lossless reassembly, and agreement with jieba.

    pip install jieba    # for comparison; included in the extra "bench"
    python benchmarks/chinese.py [--data ../shared/data] [--megabytes 2] [--sample 0.3] [--whole]

Splits every text of each corpus (the first ``--megabytes``, or all of it with ``--whole``) and reassembles it from the
spans and the gaps. Speeds are MB of UTF-8 per second. jieba is pure Python and about ten times slower, so it gets only
``--sample`` megabytes of each Chinese corpus, in chunks that alternate with those of cloze. Agreement is the share of
jieba's spans that cloze returns as well. Prints a table and some example lines.
"""

import argparse
import logging
import lzma
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from cloze.text import WordSplitter, sentence_spans
from cloze.text.boundaries import is_ideograph
from public_data import add_data, find_data  # module in benchmarks/

Spans = list[tuple[int, int]]


def read_texts(path: Path, megabytes: float) -> list[str]:
    """Return the lines of a corpus, one text each, up to a size."""
    texts, size = [], 0
    with lzma.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            texts.append(line.rstrip("\n"))
            size += len(line.encode())
            if size >= megabytes * 1e6:
                break
    return [text for text in texts if text]


def reassembles(text: str, spans: Spans) -> bool:
    """Return whether the spans are in order and not empty, with only whitespace between them."""
    place = 0
    for start, end in spans:
        if not place <= start < end or text[place:start].strip():
            return False
        place = end
    return not text[place:].strip()


def split_all(texts: Iterable[str], split: Callable[[str], Iterator[tuple[int, int]]]) -> tuple[float, int, int]:
    """Return the seconds, the number of spans, and the number of texts that do not reassemble."""
    seconds, count, failures = 0.0, 0, 0
    for text in texts:
        start = time.perf_counter()
        spans = list(split(text))
        seconds += time.perf_counter() - start
        count += len(spans)
        failures += not reassembles(text, spans)
    return seconds, count, failures


def jieba_spans(text: str) -> Spans:
    import jieba  # type: ignore[import-untyped,import-not-found,unused-ignore]

    spans, place = [], 0
    for word in jieba.cut(text):
        spans.append((place, place + len(word)))
        place += len(word)
    return spans


def compare(texts: list[str], splitter: WordSplitter, megabytes: float) -> tuple[float, float, float]:
    """Return the seconds of cloze and jieba, alternating on the same texts, and the share of equal Chinese words."""
    ours = theirs = 0.0
    equal = total = size = 0
    for text in texts:
        start = time.perf_counter()
        found = set(splitter.spans(text))
        middle = time.perf_counter()
        expected = jieba_spans(text)
        theirs += time.perf_counter() - middle
        ours += middle - start
        chinese = [(first, last) for first, last in expected if any(map(is_ideograph, text[first:last]))]
        equal += sum(span in found for span in chinese)
        total += len(chinese)
        size += len(text.encode())
        if size >= megabytes * 1e6:
            break
    return ours, theirs, equal / max(total, 1)


def main() -> None:
    """Print one line per corpus, then example lines split into words."""
    parser = argparse.ArgumentParser(description="Measure word and sentence splitting on whole corpora.")
    add_data(parser)
    parser.add_argument("--megabytes", type=float, default=2)
    parser.add_argument("--sample", type=float, default=0.3)
    parser.add_argument("--whole", action="store_true")
    arguments = parser.parse_args()
    arguments.data = find_data(arguments.data, "corpus_zh")
    import jieba  # type: ignore[import-untyped,import-not-found,unused-ignore]

    jieba.setLogLevel(logging.WARNING)
    jieba.initialize()
    splitter = WordSplitter()
    splitter.words("中文")
    examples = []
    print("corpus               texts     MB  sentences  MB/s   words      MB/s  lost  jieba MB/s  ratio  agreement")
    for path in sorted(arguments.data.glob("corpus_*/*.txt.xz")):
        texts = read_texts(path, float("inf") if arguments.whole else arguments.megabytes)
        size = sum(len(text.encode()) for text in texts) / 1e6
        sentence_seconds, sentences, lost_sentences = split_all(texts, sentence_spans)
        word_seconds, words, lost_words = split_all(texts, splitter.spans)
        line = (
            f"{path.name.removesuffix('.txt.xz'):18} {len(texts):7,} {size:6.1f} {sentences:10,} "
            f"{size / sentence_seconds:5.1f} {words:10,} {size / word_seconds:6.1f} {lost_sentences + lost_words:5}"
        )
        if path.parent.name == "corpus_zh":
            ours, theirs, agreement = compare(texts, splitter, arguments.sample)
            sample = min(size, arguments.sample)
            line += f" {sample / theirs:11.2f} {theirs / ours:6.1f} {agreement:10.2%}"
            examples.append(texts[len(texts) // 2])
        print(line, flush=True)
    print("\nlost: texts that do not reassemble. ratio: speed relative to jieba on the same chunks.\n")
    for text in examples[:5]:
        print(" | ".join(splitter.words(text[:120])))


if __name__ == "__main__":
    main()
