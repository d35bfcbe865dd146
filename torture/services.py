"""Services for the tests: in this process with models of every kind, or ``cloze serve`` in a separate process."""

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from tests.model.made import model_folder, saved

from cloze.checkpoint import TaskLabels
from cloze.options import PrecisionName
from cloze.predict.search.building import index as build_index
from cloze.serve.access import TimeoutProtocol
from cloze.serve.models import load_models
from cloze.serve.outcomes import Metrics
from cloze.serve.server import make_app
from cloze.serve.service import Service
from cloze.serve.settings import Limits, ServiceSettings
from torture.vocabulary import CLOZE

Ask = Callable[..., httpx.Response]


def made_folders(folder: Path) -> dict[str, str]:
    """Create a small random model of each kind; return the folders by name."""
    made = {
        "base": model_folder(["mlm", "nsp"]),
        "labels": model_folder(["sequence"], task=TaskLabels("classify", ("bad", "good"))),
        "several": model_folder(["sequence"], labels=3, task=TaskLabels("multilabel", ("x", "y", "z"))),
        "number": model_folder(["sequence"], labels=1, task=TaskLabels("regress")),
        "tags": model_folder(["token"], labels=3, task=TaskLabels("tag", ("B-PER", "I-PER", "O"))),
        "spans": model_folder(["span"], task=TaskLabels("answer")),
        "options": model_folder(["choice"], task=TaskLabels("choose")),
    }
    return {name: str(saved(contents, folder / name)) for name, contents in made.items()}


def made_index(folder: Path, model: str) -> str:
    """Build a small index with a model; return its folder."""
    draw = random.Random(0)
    words = ["the", "cat", "sat", "on", "a", "mat", "dog", "ran"]
    rows = [
        {"id": f"d{number}", "text": " ".join(draw.choices(words, k=9)), "year": 2000 + number} for number in range(40)
    ]
    build_index(rows, folder, model=model, precision="fp32", progress=False)
    return str(folder)


class Running:
    """A service in this process, without a socket."""

    def __init__(self, service: Service) -> None:
        self.service, self.app = service, make_app(service)

    def client(self, **options: Any) -> httpx.AsyncClient:
        """Return a client that raises the exceptions of the service."""
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60, **options)

    def run(self, ask: Callable[[httpx.AsyncClient], Any], **options: Any) -> Any:
        """Run requests in a new event loop."""

        async def inside() -> Any:
            async with self.client(**options) as client:
                return await ask(client)

        return asyncio.run(inside())

    def post(self, path: str, body: Any = None, *, content: bytes | None = None, **options: Any) -> httpx.Response:
        """Send one POST request, with JSON or bytes."""
        sent = json.dumps(body).encode() if content is None else content
        answer: httpx.Response = self.run(lambda client: client.post(path, content=sent), **options)
        return answer

    def get(self, path: str, **options: Any) -> httpx.Response:
        """Send one GET request."""
        answer: httpx.Response = self.run(lambda client: client.get(path), **options)
        return answer

    def post_paths(self) -> list[str]:
        """Return every path that takes a request body."""
        paths: dict[str, Any] = self.get("/openapi.json").json()["paths"]
        return [path for path, verbs in paths.items() if "post" in verbs]

    @contextlib.contextmanager
    def blocking(self) -> Iterator[Ask]:
        """Yield a blocking request function, backed by one event loop in a thread."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        client = self.client()

        def ask(method: str, url: str, **options: Any) -> httpx.Response:
            return asyncio.run_coroutine_threadsafe(client.request(method, url, **options), loop).result(60)

        try:
            yield ask
        finally:
            asyncio.run_coroutine_threadsafe(client.aclose(), loop).result(10)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(10)
            loop.close()


@contextlib.contextmanager
def running(settings: ServiceSettings, *, precision: PrecisionName = "fp32") -> Iterator[Running]:
    """Load and start a service, and drain it at the end."""
    metrics = Metrics()
    service = Service(settings, load_models(settings, metrics, precision=precision), metrics)
    service.models.start()
    try:
        yield Running(service)
    finally:
        service.models.drain(10)
        service.tokenizer_pool.close()


@contextlib.contextmanager
def listening(service: Running, protocol: type[TimeoutProtocol] = TimeoutProtocol, idle: int = 5) -> Iterator[str]:
    """Yield the address of an in-process service that listens on a socket, for external clients."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        config = uvicorn.Config(
            service.app, http=protocol, ws="none", lifespan="off", log_config=None, timeout_keep_alive=idle
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([found],), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{found.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)


@contextlib.contextmanager
def made_service(
    limits: Limits | None = None, *, precision: PrecisionName = "fp32", **options: Any
) -> Iterator[Running]:
    """Start a service with a model of every kind."""
    with tempfile.TemporaryDirectory() as folder:
        folders = made_folders(Path(folder))
        index = made_index(Path(folder) / "index", folders["base"])
        settings = ServiceSettings(folders, limits=limits or Limits(), index=index, **options)
        with running(settings, precision=precision) as found:
            yield found


class Process:
    """``cloze serve`` in a separate process."""

    def __init__(self, folders: list[str], *flags: str, environment: dict[str, str] | None = None) -> None:
        key = (environment or {}).get("CLOZE_KEY")
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        # The int8 weights of test models do not belong in the user's cache.
        self._cache = tempfile.TemporaryDirectory()
        words = [*CLOZE, "serve", *folders, "--port", "0", "--json", *flags]
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"XDG_CACHE_HOME": self._cache.name} | (environment or {}),
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the service did not start: {self.process.communicate()[1][-300:]}")
        self.address: str = json.loads(line)["address"]

    def wait_ready(self, longest: float = 60) -> float:
        """Wait until the service is ready; return the time since the process was started, in seconds."""
        while time.monotonic() - self.started < longest:
            if httpx.get(f"{self.address}/ready", headers=self._headers).status_code == 200:
                return time.monotonic() - self.started
            time.sleep(0.02)
        raise TimeoutError(f"not ready after {longest:.0f} s")

    def precisions(self) -> str:
        """Return the precisions of its models."""
        answer = httpx.get(f"{self.address}/info", headers=self._headers).json()
        return ", ".join(sorted({model["precision"] for model in answer["models"]}))

    def memory(self) -> int:
        """Return its resident memory in bytes."""
        line = next(
            line for line in Path(f"/proc/{self.process.pid}/status").read_text("utf-8").splitlines() if "VmRSS" in line
        )
        return int(line.split()[1]) * 1024

    def descriptors(self) -> int:
        """Return the number of its open files and sockets."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def stop(self, longest: float = 60) -> tuple[int, str]:
        """Send SIGTERM; return the exit code and the standard error output."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            said = self.process.communicate(timeout=longest)[1]
        except subprocess.TimeoutExpired:
            self.process.kill()
            said = self.process.communicate()[1]
        self._cache.cleanup()
        return self.process.returncode, said


@contextlib.contextmanager
def process(folders: list[str], *flags: str, environment: dict[str, str] | None = None) -> Iterator[Process]:
    """Start a service, yield it once it is ready, and always stop it."""
    made = Process(folders, *flags, environment=environment)
    try:
        made.wait_ready()
        yield made
    finally:
        made.stop()
