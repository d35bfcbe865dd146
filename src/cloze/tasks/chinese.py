"""Chinese tasks of texts as they are published: reviews, questions that mean the same, and how alike two sentences are.

Pairs come as lines of two texts and a label between tabs, without a header (LCQMC, AFQMC and STS-B as many collections
have them), or as CLUE's JSON, an object a line. A quote is a character like any other.
"""

from cloze.tasks.published import PublishedTask

PAIR = ("sentence1", "sentence2", "label")
_HEADERS = {"train": PAIR, "dev": PAIR, "test": PAIR}


def _files(*names: str) -> dict[str, tuple[str, ...]]:
    """Where the splits are; ``{}`` stands for the name of the split."""
    return {split: tuple(name.format(split) for name in names) for split in ("train", "dev", "test")}


CHINESE: dict[str, PublishedTask] = {
    "chnsenticorp": PublishedTask(
        "chnsenticorp", "chnsenticorp", text="text_a", pair=None, label="label", test_labels=True
    ),
    "lcqmc": PublishedTask(
        "lcqmc",
        "LCQMC",
        text="sentence1",
        pair="sentence2",
        label="label",
        files=_files("{}.txt"),
        headers=_HEADERS,
        test_labels=True,
    ),
    # The labels of its test rows are not published.
    "afqmc": PublishedTask(
        "afqmc",
        "AFQMC",
        text="sentence1",
        pair="sentence2",
        label="label",
        files=_files("{}.txt", "{}.json"),
        headers=_HEADERS | {"test": PAIR[:2]},
    ),
    "sts-b-zh": PublishedTask(
        "sts-b-zh",
        "Chinese-STS-B",
        text="sentence1",
        pair="sentence2",
        label="label",
        labels=None,
        metrics=("spearman", "pearson"),
        main="spearman",
        files=_files("sts-b-{}.txt"),
        headers=_HEADERS,
        test_labels=True,
    ),
}
