"""``modules.json`` and its folders: how ``sentence-transformers`` says a model pools its tokens into one vector."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from cloze.errors import CheckpointError
from cloze.files import read_json, read_json_value, write_json

Pooling = Literal["cls", "mean", "max", "mean_max"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)

_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
}
_MODES: dict[frozenset[str], Pooling] = {
    frozenset({"cls"}): "cls",
    frozenset({"mean"}): "mean",
    frozenset({"max"}): "max",
    frozenset({"mean", "max"}): "mean_max",
}


@dataclass(frozen=True)
class EmbeddingSettings:
    """How a folder embeds. ``unsupported`` says why not, for folders that do what cloze does not."""

    pooling: Pooling = "mean"
    normalize: bool = False
    unsupported: str | None = None


def read_embedding(folder: Path) -> EmbeddingSettings:
    """Read a folder's pooling; mean without normalisation where it says nothing."""
    path = folder / "modules.json"
    if not path.is_file():
        return EmbeddingSettings()
    modules = read_json_value(path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise CheckpointError(f"{path}: a list of modules was expected")
    pooling, normalize = EmbeddingSettings().pooling, False
    for module in modules:
        kind = str(module.get("type", "")).rpartition(".")[2]
        if kind == "Pooling":
            modes = _pooling_modes(read_json(_inside(folder, module.get("path"), path) / "config.json"))
            if modes not in _MODES:
                return EmbeddingSettings(unsupported=f"{path} pools by {', '.join(sorted(modes)) or 'nothing'}")
            pooling = _MODES[modes]
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer":
            return EmbeddingSettings(unsupported=f"{path} has a module of type {kind}")
    return EmbeddingSettings(pooling, normalize)


def _inside(folder: Path, name: Any, place: Path) -> Path:
    """A sub-folder named by an index, which must not lead outside."""
    path = folder / str(name or "")
    if "\0" in str(name) or not path.resolve().is_relative_to(folder.resolve()):
        raise CheckpointError(f"{place}: {name!r} leads outside the folder; the file may have been tampered with")
    return path


def _pooling_modes(values: dict[str, Any]) -> frozenset[str]:
    """The modes that are on, in the new spelling (``pooling_mode``) or the old (a flag each)."""
    mode = values.get("pooling_mode")
    if mode is not None:
        return frozenset(map(str, mode if isinstance(mode, list) else [mode]))
    names = {flag: name for name, flag in _FLAGS.items()}
    return frozenset(names.get(key, key) for key, on in values.items() if key.startswith("pooling_mode_") and on)


def write_embedding(folder: Path, settings: EmbeddingSettings, hidden_size: int, max_length: int) -> None:
    """Write the files in the old spelling, which every release of ``sentence-transformers`` reads."""
    if settings.unsupported is not None:
        return
    kinds = ["Transformer", "Pooling", *(["Normalize"] if settings.normalize else [])]
    paths = ["" if index == 0 else f"{index}_{kind}" for index, kind in enumerate(kinds)]
    write_json(
        folder / "modules.json",
        [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (kind, path) in enumerate(zip(kinds, paths, strict=True))
        ],
    )
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})
    modes = {name for names, pooling in _MODES.items() if pooling == settings.pooling for name in names}
    for path in paths[1:]:
        (folder / path).mkdir()
    # An empty folder does not survive git or an archive, so Normalize gets a file too.
    if settings.normalize:
        write_json(folder / "2_Normalize" / "config.json", {})
    write_json(
        folder / "1_Pooling" / "config.json",
        {"word_embedding_dimension": hidden_size} | {flag: name in modes for name, flag in _FLAGS.items()},
    )
