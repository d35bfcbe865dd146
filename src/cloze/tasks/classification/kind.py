"""The kinds that label or rate texts: ``classify`` (one label), ``multilabel`` (any number), ``regress`` (a number)."""

import math
from dataclasses import replace
from functools import partial

from cloze.options import IGNORED
from cloze.progress import Progress
from cloze.tasks.classification.examples import LabelledTexts, read_own_texts, read_unlabelled_texts, sequence_items
from cloze.tasks.examples import Item
from cloze.tasks.kind import ReadingOptions, TaskKind, deferred
from cloze.text import Tokenizer


def text_items(
    examples: LabelledTexts,
    tokenizer: Tokenizer,
    options: ReadingOptions,
    progress: Progress,  # noqa: ARG001
) -> list[Item]:
    """Return training items, with the arguments of ``TaskKind.items``."""
    return sequence_items(examples, tokenizer, options.long_texts)


# These functions are imported when they are called, because decoding imports torch and the command line loads the kinds
# for --help.
_decoded = partial(deferred, "cloze.tasks.classification.decoding")
_baseline = partial(deferred, "cloze.tasks.baselines")

CLASSIFY = TaskKind(
    name="classify",
    summary="Give each text, or pair of texts, one label.",
    operation="classify",
    head="sequence",
    targets="index",
    metrics=("accuracy", "macro_f1"),
    read=partial(read_own_texts, "index"),
    items=text_items,
    evaluate=_decoded("evaluate_labels"),
    baseline=partial(_baseline("fit_tfidf"), "index"),
    floor=partial(_baseline("fit_constant"), "index"),
    respond=_decoded("respond_labels"),
    read_texts=read_unlabelled_texts,
    named_outputs=True,
    problem_type="single_label_classification",
    missing_target=lambda _: IGNORED,
    settings=frozenset({"long_texts", "augment", "class_weights", "few"}),
    cuts_texts=True,
    calibrate=_decoded("calibrate_texts"),
)
MULTILABEL = replace(
    CLASSIFY,
    name="multilabel",
    summary="Give each text, or pair of texts, any number of labels.",
    targets="flags",
    metrics=("micro_f1", "macro_f1"),
    read=partial(read_own_texts, "flags"),
    evaluate=_decoded("evaluate_label_sets"),
    baseline=partial(_baseline("fit_tfidf"), "flags"),
    floor=partial(_baseline("fit_constant"), "flags"),
    respond=_decoded("respond_label_sets"),
    problem_type="multi_label_classification",
    missing_target=lambda labels: (math.nan,) * labels,
)
REGRESS = replace(
    CLASSIFY,
    name="regress",
    summary="Give each text, or pair of texts, a number.",
    targets="number",
    metrics=("pearson", "spearman", "mse"),
    read=partial(read_own_texts, "number"),
    evaluate=_decoded("evaluate_numbers"),
    baseline=partial(_baseline("fit_tfidf"), "number"),
    floor=partial(_baseline("fit_constant"), "number"),
    respond=_decoded("respond_numbers"),
    named_outputs=False,
    problem_type="regression",
    missing_target=lambda _: math.nan,
    settings=frozenset({"long_texts", "augment", "few"}),
    answers="a number",
    calibrate=None,
)
