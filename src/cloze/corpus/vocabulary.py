"""``cloze vocab``: text files -> a folder with a vocabulary."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from cloze.corpus.documents import read_lines
from cloze.corpus.settings import VocabularySettings
from cloze.errors import DataError
from cloze.files import replaced_folder
from cloze.progress import Progress, Silent
from cloze.text import Tokenizer, learn_pieces

# What a vocabulary's folder holds; one with anything else in it, such as a model, is not ours to replace.
FILES = {"vocab.txt", "tokenizer.json", "tokenizer_config.json"}


def train_vocabulary(
    texts: Sequence[str | Path],
    out: str | Path,
    *,
    words: str | Path | None = None,
    settings: VocabularySettings | None = None,
    progress: Progress | None = None,
) -> Path:
    """Learn a WordPiece vocabulary from text files; the same input gives the same bytes. ``words`` is one a line."""
    settings, progress = settings or VocabularySettings(), progress or Silent()
    folder = Path(out)
    if folder.exists() and not (folder.is_dir() and {path.name for path in folder.iterdir()} <= FILES):
        raise DataError(f"{folder}: exists and is not a vocabulary's folder; choose another --out")
    guaranteed = [line for line in read_lines(Path(words)) if line] if words is not None else []
    pieces = learn_pieces(
        _lines([Path(text) for text in texts]),
        settings.size,
        lowercase=not settings.cased,
        words=guaranteed,
        minimum_frequency=settings.minimum_frequency,
        progress=progress,
    )
    with replaced_folder(folder) as temporary:
        Tokenizer.from_vocabulary(pieces, lowercase=not settings.cased).save(temporary)
    return folder


def _lines(paths: Sequence[Path]) -> Iterator[str]:
    for path in paths:
        yield from read_lines(path)
