"""Settings of the service: address, key, trusted hosts and limits.

Imports nothing heavy: the CLI loads this for ``--help``.
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cloze.errors import ConfigError, DataError
from cloze.files import OUR_JSON_LIMIT, read_json
from cloze.models import SENTENCE_MODEL, SHIPPED_MODEL, shipped_folder

SHORTEST_KEY = 16
_NAME = re.compile(r"[\w.-]+", re.ASCII)


@dataclass(frozen=True)
class Limits:
    """Limits per request and for all requests together; beyond each, a request gets a specific 4xx error."""

    body: int = 2_000_000
    """Maximum size of a request body in bytes."""
    inputs: int = 2048
    """Maximum number of texts per request."""
    characters: int = 400_000
    """Maximum number of characters per request, over all its texts."""
    proposals: int = 100_000
    """Maximum number of words in a response of /fill: the number of blanks times the requested number per blank."""
    queue: int = 65_536
    """Maximum number of waiting tokens; further requests are rejected with status 429."""
    patience: float = 5.0
    """Maximum expected wait in seconds at the current throughput; further requests are rejected with status 429."""
    batch: int = 1024
    """Maximum number of tokens per forward pass."""
    timeout: float = 30.0
    """Time limit in seconds for computing a response, for receiving a request and for sending a response."""
    connections: int = 1000
    """Maximum number of requests in progress; further ones are rejected with status 429."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value < float("inf"):
                raise ConfigError(f"{name} is {value}; expected more than 0")

    @property
    def held(self) -> int:
        """Return the maximum bytes of all bodies being received, so that slow clients cannot fill the memory."""
        return 32 * self.body


@dataclass(frozen=True)
class ServiceSettings:
    """Settings of a service: its models and adapters by name, its address, access control and limits."""

    models: Mapping[str, str]
    adapters: Mapping[str, str] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 8000
    key: str | None = None
    insecure: bool = False
    trusted: tuple[str, ...] = ()
    limits: Limits = Limits()
    index: str | None = None  # the folder of an index that /search uses

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ConfigError(f"port is {self.port}; expected 1 to 65535, or 0 for any free port")
        if self.key is not None and not self.key.strip():
            raise ConfigError("the key is empty; give a key (openssl rand -hex 24 generates one), or omit it")
        if self.key is not None and (
            len(self.key) < SHORTEST_KEY or not self.key.isascii() or not self.key.isprintable()
        ):
            raise ConfigError(
                f"the key has {len(self.key)} characters; expected at least {SHORTEST_KEY} ASCII characters (openssl "
                f"rand -hex 24 generates one)"
            )
        for name in self.trusted:
            if name != "*" and not _NAME.fullmatch(name):
                raise ConfigError(f"--trust {name!r}; expected only a host name, such as bert.example.org")
        if self.key is None and not self.insecure and not is_local(self.host):
            raise ConfigError(
                f"host is {self.host}, which other machines can reach; give --key (or --key-file, or CLOZE_KEY), or "
                f"--insecure to allow everyone"
            )


def is_local(host: str) -> bool:
    """Return whether an address can be reached only from this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def index_model(index: Path) -> str:
    """Return the name or folder of the model that an index was built with, without reading the index."""
    if not (index / "index.json").is_file():
        raise ConfigError(f"--index {index}: no index there; build one with cloze index FILES --out {index}")
    model = read_json(index / "index.json", DataError, OUR_JSON_LIMIT).get("model")
    if not isinstance(model, dict) or not isinstance(model.get("source"), str):
        raise ConfigError(f"--index {index}: its index.json names no model; build the index again")
    return str(model["source"])


def default_models() -> list[str]:
    """Return the models to serve by default: the shipped models for words and for vectors."""
    names = (SHIPPED_MODEL, SENTENCE_MODEL)
    found = [name for name in names if (folder := shipped_folder(name)) is not None and folder.is_dir()]
    if not found:
        raise ConfigError("no model to serve; name one or more model folders: cloze serve FOLDER")
    return found


def name_models(folders: list[str]) -> dict[str, str]:
    """Name each model as given (NAME=DIR), or after its folder; "runs/authors/model" is named after the run."""
    if not folders:
        folders = default_models()
    named: dict[str, str] = {}
    for word in folders:
        given, equals, folder = word.partition("=")
        if not equals or Path(word).exists():  # the name of a folder may contain "="
            given, folder = "", word
        elif not (_NAME.fullmatch(given) and folder):
            raise ConfigError(f"{word!r}; expected NAME=DIR, with a name of letters, digits, '.', '_' and '-'")
        name = given or _folder_name(folder)
        if name in named:
            raise ConfigError(f"{folder} and {named[name]} would both be called {name!r}; name one of them: NAME=DIR")
        named[name] = folder
    return named


def _folder_name(folder: str) -> str:
    path = Path(folder).resolve()
    return path.parent.name if path.name == "model" and path.parent.name else path.name


def name_adapters(words: list[str], models: Mapping[str, str]) -> dict[str, str]:
    """Parse adapters given as NAME=DIR."""
    named: dict[str, str] = {}
    for word in words:
        name, equals, folder = word.partition("=")
        if not (name and equals and folder):
            raise ConfigError(f"--adapter {word!r}; expected NAME=DIR")
        if name in named or name in models:
            raise ConfigError(f"--adapter {word!r}: the name {name!r} is already taken; choose another")
        named[name] = folder
    return named
