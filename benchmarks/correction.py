"""Compare a correction model with an n-gram baseline, on SIGHAN 2015 and on synthetic English misspellings.

    python scripts/make_similar.py ../shared/data/sighan_csc/confusion.txt similar.txt
    python benchmarks/correction.py chinese --model runs/chinese --text CHINESE.txt --similar similar.txt --reading seen
    python benchmarks/correction.py english --model cloze-mini --text ENGLISH.txt --test HELD_OUT.txt

The baseline proposes the same candidates (SIGHAN's confusion set; words within edit distance two) and decides in the
same way, but scores them with a Kneser-Ney model of both contexts, counted on ``--text``, which should be the model's
training text. From ``--pairs``, the rows that the model was fine-tuned on, it also estimates how often one character is
written for another. For both, the threshold is tuned outside the test set: on SIGHAN 2014, or on other held-out lines.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from cloze.corpus.documents import read_documents
from cloze.predict import load
from cloze.predict.corrector import proposed_changes
from cloze.tasks.correction.examples import Corrections, Similar, read_corrections
from cloze.tasks.correction.kind import CorrectionSettings
from cloze.tasks.correction.metrics import Changes, applied, choose_threshold, score_corrections
from cloze.train.finetuning.augmentation import read_synonyms
from ngram_correction import NgramCorrector  # module in benchmarks/
from public_data import add_data, find_data  # module in benchmarks/

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SHOWN = ("correction_f1", "detection_f1", "character_correction_f1", "character_detection_f1", "false_alarms")


def misspell(text: str, generator: np.random.Generator) -> str:
    """Misspell one word of at least four letters; return the text unchanged if it has none."""
    words = text.split(" ")
    usable = [place for place, word in enumerate(words) if word.isalpha() and word.islower() and len(word) > 3]
    if not usable:
        return text
    place = usable[int(generator.integers(len(usable)))]
    word = words[place]
    spot = int(generator.integers(1, len(word) - 1))  # people rarely misspell the first letter
    letter = LETTERS[int(generator.integers(26))]
    kinds = (
        word[:spot] + word[spot + 1 :],
        word[:spot] + letter + word[spot:],
        word[:spot] + letter + word[spot + 1 :],
        word[:spot] + word[spot + 1] + word[spot] + word[spot + 2 :],
    )
    words[place] = kinds[int(generator.integers(4))]
    return " ".join(words)


def english_rows(path: Path, rows: int, seed: int = 0) -> tuple[Corrections, Corrections]:
    """Read the lines of a text and misspell every second line; return tuning and test rows."""
    generator = np.random.default_rng(seed)
    lines = [line for document in read_documents([path]) for line in document if 40 <= len(line) <= 300]
    chosen = [lines[index] for index in generator.permutation(len(lines))[: 2 * rows]]
    wrong = [misspell(line, generator) if number % 2 else line for number, line in enumerate(chosen)]
    synthetic = Corrections(wrong, chosen, [str(number) for number in range(len(chosen))])
    return synthetic.select(range(rows)), synthetic.select(range(rows, 2 * rows))


def chinese_rows(data: Path) -> tuple[Corrections, Corrections]:
    """Read SIGHAN's tests of 2014 (for tuning) and 2015."""
    return read_corrections(data / "sighan14"), read_corrections(data / "sighan15")


def counted_changes(counts: NgramCorrector, texts: Sequence[str]) -> Changes:
    """Return every correction that the n-gram model proposes, regardless of its score."""
    return [[(word.start, word.text, right, sure) for word, right, sure in counts.scored(text)] for text in texts]


def print_scores(
    method: str, tune: Corrections, test: Corrections, changes_of: Callable[[Sequence[str]], Changes]
) -> None:
    """Choose a threshold on the tuning rows; print the scores on the tuning and on the test rows."""
    tuning, testing = changes_of(tune.sources), changes_of(test.sources)
    threshold = choose_threshold(tune.sources, tune.targets, tuning)
    for split, rows, changes in (("tuning", tune, tuning), ("test", test, testing)):
        found = score_corrections(rows.sources, rows.targets, applied(rows.sources, changes, threshold))
        figures = {key: round(100 * found[key], 2) for key in SHOWN}
        print(json.dumps({"way": method, "rows": split, "threshold": threshold, **figures}), flush=True)


def main() -> None:
    """Parse the arguments and print the scores of both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("language", choices=["chinese", "english"])
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", type=Path, help="training text of the baseline; without it, only the model is scored")
    parser.add_argument(
        "--pairs", type=Path, help="Chinese: the model's fine-tuning rows, for the baseline's error counts"
    )
    parser.add_argument("--test", type=Path, help="English: held-out text to misspell")
    add_data(parser)
    parser.add_argument("--similar", type=Path, help="Chinese: file of easily confused characters")
    parser.add_argument("--reading", choices=["hidden", "seen"], nargs="*", default=["hidden"])
    parser.add_argument("--rows", type=int, default=1100, help="English: number of rows for tuning and for the test")
    parser.add_argument(
        "--lines", type=int, default=200_000, help="maximum lines of --text to count (default: 200,000)"
    )
    arguments = parser.parse_args()
    needed = ("sighan_csc/sighan14", "sighan_csc/sighan15") if arguments.language == "chinese" else ()
    arguments.data = find_data(arguments.data, *needed) / "sighan_csc"
    if arguments.language == "english" and arguments.test is None:
        raise SystemExit("--test is missing: name a text that the model was not trained on")
    chinese = arguments.language == "chinese"
    if chinese and arguments.similar is None:
        raise SystemExit("--similar is missing: write the list of characters with scripts/make_similar.py")
    tune, test = chinese_rows(arguments.data) if chinese else english_rows(arguments.test, arguments.rows)
    similar: Similar = read_synonyms(arguments.similar) if chinese else {}
    model = load(arguments.model)
    for reading in arguments.reading:
        settings = CorrectionSettings(reading=reading)
        ask = partial(proposed_changes, model, settings=settings)
        print_scores(f"model, {reading}", tune, test, partial(ask, similar=similar))
        if chinese:
            print_scores(f"model, {reading}, any character", tune, test, ask)
    if arguments.text is not None:
        lines = list(
            islice((line for document in read_documents([arguments.text]) for line in document), arguments.lines)
        )
        methods = {"n-grams": None} | (
            {"n-grams, with pairs": read_corrections(arguments.pairs, training=True)} if arguments.pairs else {}
        )
        for method, rows in methods.items():
            counts = NgramCorrector(model.tokenizer, lines, CorrectionSettings(), similar, rows)
            print_scores(method, tune, test, partial(counted_changes, counts))


if __name__ == "__main__":
    main()
