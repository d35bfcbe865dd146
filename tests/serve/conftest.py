"""A service with small models of every kind, and clients for it."""

from collections.abc import Iterator

import httpx
import pytest
import torch
from torture.services import Running, made_folders, made_index, running

from cloze.predict import Model, load
from cloze.serve.settings import Limits, ServiceSettings

SMALL = Limits(body=20_000, inputs=20, characters=5000, queue=4000, batch=256, timeout=10)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A model folder of each kind, by name."""
    return made_folders(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def models(folders: dict[str, str]) -> dict[str, Model]:
    """The same models, for comparison."""
    return {name: load(folder) for name, folder in folders.items()}


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use a temporary cache: services must not write into the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: with such small models, synchronization costs more than it gains."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def index(folders: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small index of the model "base"."""
    return made_index(tmp_path_factory.mktemp("index") / "index", folders["base"])


@pytest.fixture(scope="module")
def served(folders: dict[str, str], index: str) -> Iterator[Running]:
    """All models behind one app with small limits; created per test, since an idle service probes its models."""
    with running(ServiceSettings(folders, limits=SMALL, index=index)) as found:
        yield found


def error_of(response: httpx.Response) -> tuple[int, str, str]:
    """Return the status, type and message of an error response."""
    error = response.json()["error"]
    assert set(error) == {"type", "message", "code", "param"}
    return response.status_code, error["type"], error["message"]
