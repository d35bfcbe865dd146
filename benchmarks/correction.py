"""Correction of mistakes: a model against counting, on SIGHAN 2015 and on English with made misspellings.

    python scripts/make_similar.py ../shared/data/sighan_csc/confusion.txt similar.txt
    python benchmarks/correction.py chinese --model runs/chinese --text CHINESE.txt --similar similar.txt
    python benchmarks/correction.py english --model cloze-mini --text ENGLISH.txt --test HELD_OUT.txt

The baseline proposes the same characters and words (SIGHAN's confusion set; words within two mistakes) and decides in
the same way, but by a Kneser-Ney model of both sides, counted on ``--text``: give what the model was trained on. Both
choose their threshold on other rows than the test's: SIGHAN's training sentences, or other lines of the held-out text.
"""

import argparse
import json
import lzma
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from cloze.corpus.documents import read_documents
from cloze.predict import Model, load
from cloze.predict.correction import Corrector
from cloze.tasks.correction_files import Corrections, read_corrections
from cloze.tasks.correction_metrics import score_corrections
from cloze.tasks.correction_settings import CorrectionSettings
from cloze.tasks.edits import Similar, read_synonyms
from ngram_correction import NgramCorrector  # beside this file

Changes = list[list[tuple[int, str, str, float]]]  # by text: where, what stood there, what should, how sure
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SHOWN = ("correction_f1", "detection_f1", "character_correction_f1", "character_detection_f1", "false_alarms")
MOST_FALSE_ALARMS = 0.05


def misspell(text: str, generator: np.random.Generator) -> str:
    """Make one mistake in one word of at least four letters; the text itself if it has none."""
    words = text.split(" ")
    usable = [place for place, word in enumerate(words) if word.isalpha() and word.islower() and len(word) > 3]
    if not usable:
        return text
    place = usable[int(generator.integers(len(usable)))]
    word = words[place]
    spot = int(generator.integers(1, len(word) - 1))  # first letters are seldom wrong
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
    """Lines of a text, every other one with a mistake: to choose the threshold on, and to test."""
    generator = np.random.default_rng(seed)
    lines = [line for document in read_documents([path]) for line in document if 40 <= len(line) <= 300]
    chosen = [lines[index] for index in generator.permutation(len(lines))[: 2 * rows]]
    wrong = [misspell(line, generator) if number % 2 else line for number, line in enumerate(chosen)]
    made = Corrections(wrong, chosen, [str(number) for number in range(len(chosen))])
    return cut(made, 0, rows), cut(made, rows, 2 * rows)


def cut(rows: Corrections, start: int, stop: int) -> Corrections:
    """Some of the rows."""
    return Corrections(rows.sources[start:stop], rows.targets[start:stop], rows.places[start:stop])


def chinese_rows(data: Path, rows: int, scratch: Path) -> tuple[Corrections, Corrections]:
    """SIGHAN's training sentences, of which half have no mistake any more, and the test of 2015."""
    folder = scratch / "training"
    folder.mkdir(parents=True, exist_ok=True)
    with lzma.open(data / "merged" / "TrainingInputAll.txt.xz", "rt", encoding="utf-8") as file:
        lines = file.read().splitlines()
    truths = (data / "merged" / "TrainingTruthAll.txt").read_text(encoding="utf-8").splitlines()
    # "(sighan13-id=0), 13, ..." names its sentence as "(sighan13-id=0)"; the reader wants one way to name.
    named = [f"(id={number})\t{line.split(chr(9), 1)[-1]}" for number, line in enumerate(lines)]
    told = [f"{number},{truth.partition('),')[2]}" for number, truth in enumerate(truths)]
    (folder / "TestInput.txt").write_text("\n".join(named), encoding="utf-8")
    (folder / "TestTruth.txt").write_text("\n".join(told), encoding="utf-8")
    tune = cut(read_corrections(folder), 0, rows)
    sources = [
        source if number % 2 else target
        for number, (source, target) in enumerate(zip(tune.sources, tune.targets, strict=True))
    ]
    return replace(tune, sources=sources), cut(read_corrections(data / "sighan15"), 0, rows)


def model_changes(model: Model, texts: Sequence[str], settings: CorrectionSettings, similar: Similar) -> Changes:
    """What the model would change, however unsure."""
    corrector = Corrector(model, replace(settings, threshold=0.0), similar=similar)
    return [
        [(one.position, one.wrong, one.right, one.confidence) for one in text.corrections]
        for text in corrector.correct(texts)
    ]


def counted_changes(counts: NgramCorrector, texts: Sequence[str]) -> Changes:
    """What counting would change, however unsure."""
    return [[(word.start, word.text, right, sure) for word, right, sure in counts.scored(text)] for text in texts]


def applied(texts: Sequence[str], changes: Changes, threshold: float) -> list[str]:
    """The texts with the changes that are sure enough."""
    made = []
    for text, own in zip(texts, changes, strict=True):
        for start, wrong, right, sure in sorted(own, reverse=True):
            if sure >= threshold:
                text = text[:start] + right + text[start + len(wrong) :]
        made.append(text)
    return made


def choose_threshold(rows: Corrections, changes: Changes) -> float:
    """The one with the best correction, of those with few false alarms."""
    grid = [1 - 10**-power for power in np.arange(0.25, 7, 0.25)]
    scored = [(score_corrections(rows.sources, rows.targets, applied(rows.sources, changes, at)), at) for at in grid]
    quiet = [(found["correction_f1"], at) for found, at in scored if found["false_alarms"] < MOST_FALSE_ALARMS]
    return max(quiet)[1] if quiet else grid[-1]


def main() -> None:
    """Print the figures of both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("language", choices=["chinese", "english"])
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", type=Path, required=True, help="what the baseline counts")
    parser.add_argument("--test", type=Path, help="English: held-out text to misspell")
    parser.add_argument("--data", type=Path, default=Path("../shared/data/sighan_csc"))
    parser.add_argument("--similar", type=Path, help="Chinese: characters that are mistaken for each other")
    parser.add_argument("--reading", choices=["hidden", "seen"], default="hidden")
    parser.add_argument("--rows", type=int, default=1100, help="to choose the threshold on, and to test on")
    parser.add_argument("--lines", type=int, default=200_000, help="of the text that is counted")
    parser.add_argument("--scratch", type=Path, default=Path("/tmp/cloze-correction"))
    given = parser.parse_args()
    if given.language == "english" and given.test is None:
        raise SystemExit("--test is missing: a text that the model has not read")
    chinese = given.language == "chinese"
    if chinese and given.similar is None:
        raise SystemExit("--similar is missing: a list of characters, as scripts/make_similar.py makes it")
    tune, test = (
        chinese_rows(given.data, given.rows, given.scratch) if chinese else english_rows(given.test, given.rows)
    )
    similar: Similar = read_synonyms(given.similar) if chinese else {}
    settings = CorrectionSettings(reading=given.reading)
    model = load(given.model)
    lines = list(islice((line for document in read_documents([given.text]) for line in document), given.lines))
    counts = NgramCorrector(model.tokenizer, lines, CorrectionSettings(), similar)
    ways = {
        "model": [model_changes(model, rows.sources, settings, similar) for rows in (tune, test)],
        "counting": [counted_changes(counts, rows.sources) for rows in (tune, test)],
    }
    for name, (tuning, testing) in ways.items():
        threshold = choose_threshold(tune, tuning)
        found = score_corrections(test.sources, test.targets, applied(test.sources, testing, threshold))
        print(json.dumps({"way": name, "threshold": threshold, **{key: round(100 * found[key], 2) for key in SHOWN}}))


if __name__ == "__main__":
    main()
