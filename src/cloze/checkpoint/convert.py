"""Convert checkpoints to model folders (``cloze convert``), and extend model folders (``cloze extend``).

Extending adds words to the vocabulary, positions for longer texts, or segments for more texts per sequence.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from cloze.checkpoint.adapter_folder import load_any
from cloze.checkpoint.folder import ModelFolder, find_model, load_folder, plain_card, save_folder
from cloze.checkpoint.pooling_files import EmbeddingSettings
from cloze.checkpoint.word2vec_file import SUFFIXES, read_word2vec, write_word2vec
from cloze.errors import CheckpointError, ConfigError
from cloze.files import replaced_folder
from cloze.model.static import StaticConfig, StaticVectors
from cloze.model.surgery import RowStart, WordStart, with_positions, with_segments, with_words
from cloze.models import find_source
from cloze.text import Tokenizer
from cloze.text.oov.extension import (
    Additions,
    Extension,
    extend_tokenizer,
    read_entities,
    read_similar_characters,
    read_word_list,
)
from cloze.text.tokenizer_files import TOKENIZER_FILES

# Static vectors have no positions; longer texts are cut.
MOST_TOKENS = 32_768


def convert_vectors(source: str | Path, destination: Path, *, half: bool = False) -> ModelFolder:
    """Convert between a folder of static vectors and a file of word2vec, whichever of the two has such a suffix.

    Raises:
        CheckpointError: If the file is damaged, or the folder holds another kind of model.
    """
    if Path(source).suffix in SUFFIXES:
        contents = read_vectors(Path(source))
        save_folder(contents, destination, dtype=torch.float16 if half else torch.float32)
        return contents
    contents = load_folder(find_source(source))
    if not isinstance(contents.model, StaticVectors):
        raise CheckpointError(
            f"{source}: a model of type {contents.model.model_type} has no vector per word; only static vectors "
            "(word2vec, glove) can be written in the format of word2vec"
        )
    ordinary = contents.tokenizer.ordinary_ids
    table = contents.model.embedding.weight.detach()[ordinary].numpy()
    write_word2vec(destination, [contents.tokenizer.piece(number) for number in ordinary], table)
    return contents


def read_vectors(path: Path) -> ModelFolder:
    """Return the model of a word2vec file: its words as a vocabulary, and one vector each.

    Special tokens get the vector zero. Words are matched after the tokenizer has split off punctuation, so that a word
    such as ``new-york`` is never found.
    """
    words, vectors = read_word2vec(path)
    special = [token for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if token not in words]
    lowercase = all(word == word.lower() for word in words)
    tokenizer = Tokenizer.from_vocabulary([*special, *words], lowercase=lowercase).with_max_length(MOST_TOKENS)
    model = StaticVectors(
        StaticConfig(vocab_size=tokenizer.size, hidden_size=vectors.shape[1], pad_id=tokenizer.pad_id)
    )
    with torch.no_grad():
        model.embedding.weight[len(special) :] = torch.from_numpy(vectors)
    return ModelFolder(model.eval(), tokenizer, embedding=EmbeddingSettings(pooling="mean_words"))


def convert(source: str | Path, destination: str | Path, *, half: bool = False) -> ModelFolder:
    """Load a checkpoint and write it as a model folder.

    Args:
        source: TensorFlow checkpoint, Hugging Face folder, hub name, or LoRA adapter, which is merged into its base.
        destination: The new folder.
        half: Store the weights as float16. They are still loaded as float32.

    Returns:
        The contents of the folder: model, tokenizer and task.

    Raises:
        CheckpointError: If the source cannot be read, or is an adapter that cannot be merged.

    Example:
        >>> import cloze
        >>> cloze.convert("cloze-mini", "mini-half", half=True).tokenizer.max_length
        128
    """
    contents = load_any(find_source(source))
    save_folder(contents, Path(destination), dtype=torch.float16 if half else torch.float32)
    return contents


@dataclass(frozen=True)
class ExtensionReport:
    """Result of ``extend``.

    Attributes:
        folder: The new folder.
        words: Number of added words.
        grown: Number of added words with new vocabulary entries; the others replace unused entries.
        known: Words that were already in the vocabulary.
        entities: Total number of entities.
        pieces: Size of the vocabulary.
        positions: Number of positions; None for a folder with only a vocabulary.
        segments: Number of segments; None for a folder with only a vocabulary.
    """

    folder: Path
    words: int
    grown: int
    known: tuple[str, ...]
    entities: int
    pieces: int
    positions: int | None = None
    segments: int | None = None


def extend(
    model: str | Path,
    out: str | Path,
    *,
    words: str | Path | None = None,
    entities: str | Path | None = None,
    characters: bool = False,
    look_alikes: bool = False,
    similar: str | Path | None = None,
    positions: int | None = None,
    segments: int | None = None,
    start: WordStart = "pieces",
    seed: int = 0,
) -> ExtensionReport:
    r"""Add words, entities, positions or segments to a model, and enable methods for unknown words.

    Args:
        model: Model folder, hub name, or a folder with only a vocabulary.
        out: The new folder.
        words: File with words to add, one per line.
        entities: File with entities to add: a surface form, a tab and known words per line.
        characters: Spell unknown words with known pieces and characters.
        look_alikes: Replace unknown characters by similar known ones.
        similar: File with further similar characters: a character, a tab and its replacement per line.
        positions: New number of positions (the maximum length of an input).
        segments: New number of segments (texts per sequence).
        start: Initial vectors of added words: the mean of their pieces, or random.
        seed: Seed of random vectors.

    Returns:
        A report with the numbers of added words, entities, positions and segments.

    Raises:
        ConfigError: If there is nothing to add, or the model cannot be extended in this way.
        CheckpointError: If the model cannot be read.
        DataError: If a file of words, entities or characters cannot be read.

    Example:
        >>> import cloze
        >>> from pathlib import Path
        >>> _ = Path("words.txt").write_text("immunoglobulin\n")
        >>> cloze.extend("cloze-mini", "mini-medical", words="words.txt").words
        1
    """
    additions = Additions(
        words=read_word_list(Path(words)) if words is not None else (),
        entities=read_entities(Path(entities)) if entities is not None else (),
        characters=characters,
        look_alikes=look_alikes,
        similar=read_similar_characters(Path(similar)) if similar is not None else (),
    )
    if additions == Additions() and positions is None and segments is None:
        raise ConfigError(
            "nothing to add; give --words, --entities, --characters, --look-alikes, --similar, --positions "
            "or --segments"
        )
    source, destination = find_source(model), Path(out)
    if find_model(source) is None and _has_vocabulary(source):
        if positions is not None or segments is not None:
            raise ConfigError(f"{source}: a vocabulary has no positions or segments; extend a model instead")
        return _extend_vocabulary(source, destination, additions)
    contents = load_folder(source)
    old = contents.tokenizer
    extension = extend_tokenizer(old, additions)
    extended = contents if additions == Additions() else _extend_model(contents, extension, start, seed)
    if positions is not None or segments is not None:
        extended = _extend_reach(extended, positions, segments, "copies" if start == "pieces" else "random", seed)
    save_folder(extended, destination)
    config = extended.model.config
    return replace(_report(destination, old, extension), positions=config.positions, segments=config.segments)


def _extend_vocabulary(source: Path, destination: Path, additions: Additions) -> ExtensionReport:
    old = Tokenizer.from_folder(source)
    extension = extend_tokenizer(old, additions)
    _save_vocabulary(extension.tokenizer, destination)
    return _report(destination, old, extension)


def _report(destination: Path, old: Tokenizer, extension: Extension) -> ExtensionReport:
    return ExtensionReport(
        folder=destination,
        words=len(extension.added),
        grown=extension.tokenizer.size - old.size,
        known=extension.known,
        entities=len(extension.tokenizer.settings.ladder.entities),
        pieces=extension.tokenizer.size,
    )


def _extend_model(contents: ModelFolder, extension: Extension, start: WordStart, seed: int) -> ModelFolder:
    model = with_words(contents.model, extension.added, start=start, seed=seed)
    extended = replace(contents, model=model, tokenizer=extension.tokenizer)
    return _with_note(extended, _note(extension, start))


def _extend_reach(
    contents: ModelFolder, positions: int | None, segments: int | None, start: RowStart, seed: int
) -> ModelFolder:
    model, tokenizer = contents.model, contents.tokenizer
    before = model.config
    if positions is not None:
        model = with_positions(model, positions, start=start, seed=seed)
        tokenizer = tokenizer.with_max_length(positions)
    if segments is not None:
        model = with_segments(model, segments, start=start, seed=seed)
        tokenizer = tokenizer.with_segments(max(segments, tokenizer.segments))
    initial = "copies of existing ones" if start == "copies" else "random vectors"
    return _with_note(
        replace(contents, model=model, tokenizer=tokenizer),
        "## Positions and segments\n\nExtended by cloze: "
        f"{before.positions:,} to {model.config.positions:,} positions, "
        f"{before.segments} to {model.config.segments} segments. The new ones are initialised as {initial} "
        "and need training.\n",
    )


def _with_note(contents: ModelFolder, note: str) -> ModelFolder:
    card = contents.card or plain_card(contents)
    return replace(contents, card=f"{card.rstrip()}\n\n{note}")


def _note(extension: Extension, start: WordStart) -> str:
    ladder = extension.tokenizer.settings.ladder
    rungs = [name for name, on in (("characters", ladder.characters), ("look-alikes", ladder.look_alikes)) if on]
    initial = "the mean of their pieces" if start == "pieces" else "random vectors"
    return (
        f"## Words\n\nExtended by cloze: {len(extension.added):,} words added, initialised with {initial}; "
        f"{extension.tokenizer.size:,} pieces in total; {len(ladder.entities):,} entities; "
        f"further rungs: {', '.join(rungs) or 'none'}. "
        "Additions other than vocabulary entries are stored in `ladder.json`, which only cloze uses.\n"
    )


def _has_vocabulary(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("vocab.txt", "tokenizer.json"))


def _is_ours(folder: Path) -> bool:
    """Return whether a folder contains only vocabulary files."""
    return folder.is_dir() and {path.name for path in folder.iterdir()} <= TOKENIZER_FILES


def _save_vocabulary(tokenizer: Tokenizer, destination: Path) -> None:
    if destination.exists() and not _is_ours(destination):
        raise CheckpointError(f"{destination}: exists and is not a vocabulary folder; choose another --out")
    with replaced_folder(destination) as folder:
        tokenizer.save(folder)
