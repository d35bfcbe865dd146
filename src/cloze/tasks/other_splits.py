"""The rows of a published folder besides those of training and dev: what a model must not have read beforehand.

Their labels, if they bear any, are nothing to whoever looks for their texts elsewhere.
"""

from collections.abc import Sequence

from cloze.errors import DataError
from cloze.lines import RowError
from cloze.tasks.columns import read_columns
from cloze.tasks.published import PublishedTask, find_split, read_split
from cloze.tasks.source import Source
from cloze.tasks.tag import PUBLISHED_TAGS, find_tag_file, join_words
from cloze.tasks.task import find_published, find_task

# A row's place, and its texts.
Placed = tuple[str, Sequence[str]]


def read_other_splits(source: Source) -> list[Placed]:
    """The rows of the splits that are there; none of anybody's own files, nor of a single one."""
    spec = find_task(source.task)
    if not spec.published or not source.data.is_dir():
        return []
    task = find_published(source.task)
    if task is not None:
        return _read_texts(task, source)
    if spec.kind == "tag":
        return _read_words(source)
    try:
        test = spec.read(source, "test", None).examples
    except RowError:
        raise
    except DataError:  # there is no such file
        return []
    return list(zip(test.places, test.documents(), strict=True))


def _read_words(source: Source) -> list[Placed]:
    """Sentences by their words alone: a file whose tags are kept back has none, or all the same."""
    path = find_tag_file(source.data, PUBLISHED_TAGS[source.task.lower()]["test"])
    if path is None:
        return []
    sentences = read_columns(path, tagged=False, on_bad_row=source.on_bad_row or "stop").sentences
    return [(sentence.place, [join_words(sentence.words)[0]]) for sentence in sentences]


def _read_texts(task: PublishedTask, source: Source) -> list[Placed]:
    # By their files, since MNLI has two names for some.
    found = {find_split(task, source.data, split, missing_ok=True): split for split in task.files}
    known = {find_split(task, source.data, split, missing_ok=True) for split in ("train", "dev")}
    return [
        (row.place, [text for text in (row.text, row.pair) if text is not None])
        for path, split in found.items()
        if path is not None and path not in known
        for row in read_split(task, source.data, split, source.on_bad_row)
    ]
