"""The methods that ``first_try.py`` compares, as a new user might apply them to labelled rows.

Each takes training and dev rows and returns one prediction per dev row: the index of a label, a number, or the tag of
each word. The dev rows are used only for the score.
"""

import json
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cloze.predict import load
from cloze.tasks.registry import TaskData
from trainer_peer import IGNORED, Rows  # module in benchmarks/

Predictions = list[Any]
# Six learning rates, from the paper's rate for large models to a typical rate for heads on frozen states.
RATES = (2e-5, 5e-5, 1e-4, 2e-4, 4e-4, 1e-3)
HELD_OUT = 5  # every fifth training row is held out to choose the learning rate


@dataclass(frozen=True)
class Job:
    """One cell: rows, a model, and an output folder."""

    data: TaskData
    model: str
    is_chinese: bool
    seed: int
    out: Path
    rate: float | None = None  # learning rate of the Trainer, or None for its default


@dataclass(frozen=True)
class Answer:
    """Predictions for the dev rows, and the seconds of training and prediction."""

    predictions: Predictions
    seconds: float
    choosing: float = 0.0  # part of the seconds that was spent on choosing a learning rate or regularization strength


def run_cloze(job: Job) -> Answer:
    """Run ``cloze finetune`` on a file with the training rows and no other flags; predict the dev rows."""
    kind, file, run = job.data.kind.name, write_rows(job.data, job.out), job.out / "run"
    words = [sys.executable, "-m", "cloze", "finetune", kind, str(file), "--model", job.model, "--out", str(run)]
    pair = ["--pair", "pair"] if getattr(job.data.train, "pairs", None) else []
    start = time.perf_counter()
    done = subprocess.run([*words, *pair, "--seed", str(job.seed)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"cloze finetune failed: {done.stderr.strip()[-500:]}")
    model, dev = load(run), job.data.dev
    if kind == "tag":
        predictions: Predictions = [[word.tag for word in tagged.words] for tagged in model.tag(_words(dev))]
    elif kind == "regress":
        predictions = model.regress(*_texts(dev)).tolist()
    else:
        assert job.data.labels is not None
        predictions = [job.data.labels.indices[str(label.label)] for label in model.classify(*_texts(dev))]
    return Answer(predictions, time.perf_counter() - start)


def write_rows(data: TaskData, folder: Path) -> Path:
    """Write the training rows in a user's format: JSON lines, or one word and tag per line."""
    folder.mkdir(parents=True, exist_ok=True)
    train: Any = data.train
    names = None if data.labels is None else data.labels.names
    if data.kind.name == "tag":
        assert names is not None
        sentences = [
            "".join(f"{word}\t{names[tag]}\n" for word, tag in zip(words, tags, strict=True))
            for words, tags in zip(train.words, train.targets, strict=True)
        ]
        path, text = folder / "train.tsv", "\n".join(sentences)
    else:
        rows = [{"text": text, "label": names[int(target)] if names else target} for text, target in _pairs_of(train)]
        for row, pair in zip(rows, train.pairs or (), strict=False):
            row["pair"] = pair
        path, text = folder / "train.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8")
    return path


def run_tf_idf(job: Job) -> Answer:
    """Fit a linear model on TF-IDF; for tagging, predict each word's most frequent tag."""
    start = time.perf_counter()
    if job.data.kind.name == "tag":
        return Answer(_commonest_tags(job.data), time.perf_counter() - start)
    from sklearn.feature_extraction.text import TfidfVectorizer

    # Chinese has no spaces between words: use characters and character bigrams.
    unit = {"analyzer": "char", "ngram_range": (1, 2)} if job.is_chinese else {"ngram_range": (1, 2)}
    vectorizer = TfidfVectorizer(**unit, sublinear_tf=True)
    vectorizer.fit([text for row in job.data.train.documents() for text in row])
    train, dev = (_join(list(map(vectorizer.transform, _texts(rows)))) for rows in (job.data.train, job.data.dev))
    return _fit_linear(job.data, train, dev, start)


def run_vectors(job: Job) -> Answer:
    """Fit a linear model on the model's sentence vectors."""
    start = time.perf_counter()
    model = load(job.model)
    train, dev = (_join([model.embed(texts) for texts in _texts(rows)]) for rows in (job.data.train, job.data.dev))
    return _fit_linear(job.data, train, dev, start)


def _join(parts: list[Any]) -> Any:
    """Return the features of single texts; for pairs, those of both texts, their distance, product and cosine."""
    from scipy import sparse
    from sklearn.preprocessing import normalize

    if len(parts) == 1:
        return parts[0]
    first, second = parts
    if sparse.issparse(first):
        product = first.multiply(second)  # TF-IDF rows have unit length
        return sparse.hstack([first, second, abs(first - second), product, product.sum(1)]).tocsr()
    cosine = (normalize(first) * normalize(second)).sum(1, keepdims=True)
    return np.hstack([first, second, abs(first - second), first * second, cosine])


def _fit_linear(data: TaskData, train: Any, dev: Any, start: float) -> Answer:
    """Fit logistic or ridge regression; cross-validation on the training rows chooses the regularization strength."""
    from scipy import sparse
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.model_selection import GridSearchCV, KFold
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import StandardScaler

    # Vector dimensions differ in scale. TF-IDF is already scaled, and centring would make it dense.
    scale = "passthrough" if sparse.issparse(train) else StandardScaler()
    if data.labels is None:
        model, scoring, grid = Ridge(), "r2", {"model__alpha": [0.1, 1.0, 10.0, 100.0, 1000.0, 10_000.0]}
    else:
        model, scoring, grid = LogisticRegression(max_iter=1000), "accuracy", {"model__C": [0.001, 0.01, 0.1, 1.0]}
    if sparse.issparse(train) and data.labels is not None:
        grid = {"model__C": [0.1, 1.0, 10.0, 100.0]}
    steps = Pipeline([("scale", scale), ("model", model)])
    search = GridSearchCV(steps, grid, cv=KFold(3, shuffle=True, random_state=0), scoring=scoring)
    fitting = time.perf_counter()
    search.fit(train, data.train.strata())  # the labels or numbers
    choosing = time.perf_counter() - fitting - search.refit_time_
    return Answer(search.predict(dev).tolist(), time.perf_counter() - start, choosing)


def _commonest_tags(data: TaskData) -> Predictions:
    assert data.labels is not None
    train, dev = data.train, data.dev
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    every: Counter[int] = Counter()
    for words, tags in zip(_words(train), _targets(train), strict=True):
        every.update(tags)
        for word, tag in zip(words, tags, strict=True):
            counts[word][tag] += 1
    usual = every.most_common(1)[0][0]
    names = data.labels.names
    return [
        [names[counts[word].most_common(1)[0][0] if word in counts else usual] for word in words]
        for words in _words(dev)
    ]


def run_trainer(job: Job) -> Answer:
    """Train with transformers' Trainer and its default settings, truncating rows to 128 tokens."""
    import transformers

    start, data, tags = time.perf_counter(), job.data, job.data.kind.name == "tag"
    transformers.set_seed(job.seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(job.model)
    kind: Any = (
        transformers.AutoModelForTokenClassification if tags else transformers.AutoModelForSequenceClassification
    )
    labels = 1 if data.labels is None else len(data.labels)
    model = kind.from_pretrained(job.model, num_labels=labels, dtype=torch.float32)
    collator: Any = transformers.DataCollatorForTokenClassification if tags else transformers.DataCollatorWithPadding
    rate: dict[str, Any] = {} if job.rate is None else {"learning_rate": job.rate}
    arguments = transformers.TrainingArguments(
        output_dir=str(job.out / "trainer"),
        seed=job.seed,
        use_cpu=True,
        save_strategy="no",  # output options that do not affect training
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        **rate,
    )
    trainer = transformers.Trainer(
        model,
        arguments,
        data_collator=collator(tokenizer),
        train_dataset=Rows(data.train, tokenizer),
        processing_class=tokenizer,
    )
    trainer.train()
    answers: Any = trainer.predict(Rows(data.dev, tokenizer))
    return Answer(_read_answers(data, answers), time.perf_counter() - start)


def _read_answers(data: TaskData, answers: Any) -> Predictions:
    if data.labels is None:
        return list(answers.predictions[:, 0].tolist())
    best = answers.predictions.argmax(-1)
    if data.kind.name != "tag":
        return list(best.tolist())
    names = data.labels.names
    found = [[names[tag] for tag in row[marks != IGNORED]] for row, marks in zip(best, answers.label_ids, strict=True)]
    # The Trainer does not see words beyond the model's length; they are scored as outside of entities.
    return [tags + ["O"] * (len(words) - len(tags)) for tags, words in zip(found, _words(data.dev), strict=True)]


def choose_rate(job: Job, score: Callable[[TaskData, Predictions], float]) -> float:
    """Return the best of six learning rates for the Trainer, chosen on held-out training rows."""
    rows = range(len(job.data.train))
    scored = [row for row in rows if row % HELD_OUT == 0]
    others = [row for row in rows if row % HELD_OUT]
    part = replace(job.data, train=job.data.train.select(others), dev=job.data.train.select(scored))
    return max(RATES, key=lambda rate: score(part, run_trainer(replace(job, data=part, rate=rate)).predictions))


def _texts(examples: Any) -> list[list[str]]:
    return [examples.texts] if examples.pairs is None else [examples.texts, examples.pairs]


def _pairs_of(examples: Any) -> list[tuple[str, Any]]:
    return list(zip(examples.texts, examples.targets, strict=True))


def _words(examples: Any) -> list[list[str]]:
    words: list[list[str]] = examples.words
    return words


def _targets(examples: Any) -> Sequence[Sequence[int]]:
    targets: Sequence[Sequence[int]] = examples.targets
    return targets
