"""An independent, slow implementation of the SQuAD and CMRC scores, from their published definitions."""

import string
from collections.abc import Sequence
from itertools import product

import numpy as np

Case = tuple[Sequence[str], str, float]  # reference answers, prediction, no-answer score


def plain(text: str) -> list[str]:
    """Return the words of an answer in lower case, without ASCII punctuation and articles."""
    letters = [letter for letter in text.lower() if letter not in string.punctuation]
    pieces, word = [], ""
    for letter in [*letters, " "]:
        if letter.isalnum() or letter == "_":
            word += letter
        else:
            pieces += [" " if word in {"a", "an", "the"} else word, letter]
            word = ""
    return "".join(pieces).split()


def word_f1(right: list[str], prediction: list[str]) -> float:
    left, shared = list(prediction), 0
    for word in right:
        if word in left:
            left.remove(word)
            shared += 1
    if shared == 0:
        return 0.0
    precision, recall = shared / len(prediction), shared / len(right)
    return 2 * precision * recall / (precision + recall)


def first_version(cases: Sequence[Case]) -> tuple[float, float]:
    """Return exact match and F1 as the SQuAD 1.1 script computes them."""
    exact = f1 = 0.0
    for answers, prediction, _ in cases:
        exact += any(plain(right) == plain(prediction) for right in answers)
        f1 += max(word_f1(plain(right), plain(prediction)) for right in answers)
    return exact / len(cases), f1 / len(cases)


def second_version(answers: Sequence[str], prediction: str) -> tuple[float, float]:
    """Return exact match and F1 of one question as the SQuAD 2.0 script computes them."""
    golden = [plain(right) for right in answers if plain(right)]
    words = plain(prediction)
    if not golden:
        return float(not words), float(not words)
    return float(words in golden), max(word_f1(right, words) for right in golden)


def at_thresholds(cases: Sequence[Case], thresholds: Sequence[float], which: int) -> list[float]:
    """Return the mean score per threshold, with no answer where the no-answer score exceeds it."""
    nones = np.array([none for _, _, none in cases])
    silent = np.array([float(not answers) for answers, _, _ in cases])
    # For unanswerable questions, the official search does not check whether a prediction normalizes to nothing.
    prediction = np.array(
        [second_version(right, text)[which] if right else float(text == "") for right, text, _ in cases]
    )
    return [float(np.where(nones > threshold, silent, prediction).mean()) for threshold in thresholds]


def best_over_thresholds(cases: Sequence[Case], which: int) -> float:
    """Return the best score over all thresholds, by trying each."""
    nones = [none for _, _, none in cases]
    return max(at_thresholds(cases, [min(nones) - 1, *nones], which))


MARKS = set("-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")


def chinese(answers: Sequence[str], prediction: str) -> tuple[float, float]:
    """Return exact match and F1 of one CMRC question, for texts with spaces between non-Chinese words."""

    def bare(text: str) -> str:
        return "".join(letter for letter in text.lower().strip() if letter not in MARKS)

    def segments(text: str) -> list[str]:
        spaced = "".join(f" {letter} " if "\u4e00" <= letter <= "\u9fa5" else letter for letter in bare(text))
        return spaced.split()

    def f1(right: list[str], predicted: list[str]) -> float:
        stretches = [
            right[start:end]
            for start, end in product(range(len(right) + 1), repeat=2)
            if end > start
            and any(predicted[place : place + end - start] == right[start:end] for place in range(len(predicted)))
        ]
        shared = max(map(len, stretches), default=0)
        if shared == 0:
            return 0.0
        precision, recall = shared / len(predicted), shared / len(right)
        return 2 * precision * recall / (precision + recall)

    return (
        float(any(bare(right) == bare(prediction) for right in answers)),
        max(f1(segments(right), segments(prediction)) for right in answers),
    )
