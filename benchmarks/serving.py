"""The service on MiniLM: its start, its memory, its speed beside infinity-emb's, and what it does beyond its capacity.

    python benchmarks/serving.py [--infinity ENVIRONMENT/bin/infinity_emb] [--seconds 10] [--precision auto]

infinity-emb pins other versions, and so has an environment of its own: python -m venv ENVIRONMENT, then
ENVIRONMENT/bin/pip install "infinity-emb[all]". Both serve the same folder with the same number of threads, in turn,
to the same clients with the same texts, one a request. Compared is the most that each answers in a second with the
99th percentile of its answers within the same bound.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minilm import minilm  # beside this file

ROOT = Path(__file__).parents[1]
SENTENCES = ROOT / "src" / "cloze" / "demo" / "data" / "authors_dev.tsv"
CONNECTIONS = (1, 4, 16, 64)
LOADS = (1, 2, 5, 10, 20)


@dataclass(frozen=True)
class Started:
    """A service that answers."""

    address: str
    path: str
    pid: int
    seconds: float  # until it was ready

    def memory(self) -> float:
        """Megabytes in use, of the process and those that it has started."""
        pids = [self.pid, *map(int, _children(self.pid))]
        return sum(_resident(pid) for pid in pids) / 1024

    def load(self, bodies: Path, seconds: float, connections: int, rate: float | None = None) -> dict[str, Any]:
        """Press from a process of its own."""
        words = [sys.executable, "-m", "torture.load", self.address + self.path, f"@{bodies}"]
        words += ["--seconds", str(seconds), "--connections", str(connections)]
        words += [] if rate is None else ["--rate", str(rate)]
        found: dict[str, Any] = json.loads(subprocess.run(words, cwd=ROOT, capture_output=True, check=True).stdout)
        return found


def _children(pid: int) -> list[str]:
    return [word for file in Path(f"/proc/{pid}/task").glob("*/children") for word in file.read_text().split()]


def _resident(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


@contextmanager
def started(words: list[str], port: int, path: str, ready: str) -> Iterator[Started]:
    """Start a program, wait until it is ready, and end it."""
    begin = time.monotonic()
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    address = f"http://127.0.0.1:{port}"
    try:
        while not _answers(address + ready):
            if process.poll() is not None or time.monotonic() - begin > 300:
                raise SystemExit(f"did not start: {' '.join(words)}")
            time.sleep(0.02)
        yield Started(address, path, process.pid, time.monotonic() - begin)
    finally:
        process.terminate()
        process.wait(60)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def write_bodies(folder: Path) -> Path:
    """One sentence a request, as OpenAI's clients send it."""
    rows = SENTENCES.read_text("utf-8").splitlines()[1:]
    texts = [max(row.split("\t"), key=len)[:200] for row in rows]  # about as long as a question
    path = folder / "bodies.jsonl"
    lines = [json.dumps({"input": text, "model": "model", "encoding_format": "base64"}) for text in texts]
    path.write_text("\n".join(lines), "utf-8")
    return path


def sweep(service: Started, bodies: Path, seconds: float) -> list[dict[str, Any]]:
    """The same load by more and more connections."""
    service.load(bodies, 3, 4)  # warm
    found = []
    for connections in CONNECTIONS:
        figures = service.load(bodies, seconds, connections)
        print(f"  {connections:>3} connections: {figures['per_second']:7.1f} requests/s, "
              f"p50 {1000 * figures['p50']:6.1f} ms, p99 {1000 * figures['p99']:6.1f} ms")  # fmt: skip
        found.append(figures)
    return found


def best(found: list[dict[str, Any]], bound: float) -> float:
    """The most answers a second whose 99th percentile is within a bound."""
    return max((float(one["per_second"]) for one in found if one["p99"] <= bound), default=0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--infinity", default=os.environ.get("INFINITY_EMB"), help="its program")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--port", type=int, default=8971)
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(asked.threads)
    with tempfile.TemporaryDirectory() as scratch:
        bodies = write_bodies(Path(scratch))
        folder = Path(scratch) / "model"  # so that both call it "model"
        shutil.copytree(minilm(), folder)
        words = [sys.executable, "-c", "from cloze.cli import main; main()", "serve", str(folder)]
        words += ["--port", str(asked.port), "--threads", str(asked.threads), "--precision", asked.precision]
        # "model" is named after the folder it lies in; requests may call it by any name of ours.
        with started(words, asked.port, "/v1/embeddings", "/ready") as ours:
            name = json.load(urllib.request.urlopen(f"{ours.address}/v1/models"))["data"][0]["id"]
            bodies.write_text(bodies.read_text("utf-8").replace('"model": "model"', f'"model": "{name}"'), "utf-8")
            mine = measure(ours, bodies, asked)
        compare(mine, bodies, folder, name, asked)


def measure(ours: Started, bodies: Path, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Our own figures."""
    print(f"cloze serve, {asked.precision}, {asked.threads} threads")
    print(f"  ready after {ours.seconds:.1f} s; {ours.memory():.0f} MB at rest")
    found = sweep(ours, bodies, asked.seconds)
    capacity = max(float(one["per_second"]) for one in found)
    print(f"  {ours.memory():.0f} MB under load; beyond the capacity of {capacity:.0f} requests/s:")
    for times in LOADS:
        pressed = ours.load(bodies, asked.seconds, min(800, 64 * times), rate=times * capacity)
        told = ", ".join(f"{count} x {status}" for status, count in pressed["statuses"].items())
        print(
            f"  {times:>3} times: {pressed['per_second']:7.1f} answered/s, p99 {1000 * pressed['p99']:6.0f} ms ({told})"
        )
    print(f"  {ours.memory():.0f} MB after it")
    return found


def compare(mine: list[dict[str, Any]], bodies: Path, folder: Path, name: str, asked: argparse.Namespace) -> None:
    """The same with infinity-emb, where it is."""
    if not asked.infinity or shutil.which(asked.infinity) is None:
        print("infinity-emb: not here, so not compared (--infinity ENVIRONMENT/bin/infinity_emb)")
        return
    words = [asked.infinity, "v2", "--model-id", str(folder), "--served-model-name", name, "--engine", "torch"]
    words += ["--device", "cpu", "--no-bettertransformer", "--port", str(asked.port + 1)]
    with started(words, asked.port + 1, "/embeddings", "/health") as theirs:
        print(f"infinity-emb, {asked.threads} threads")
        print(f"  ready after {theirs.seconds:.1f} s; {theirs.memory():.0f} MB at rest")
        found = sweep(theirs, bodies, asked.seconds)
        print(f"  {theirs.memory():.0f} MB under load")
    for bound in (min(float(one["p99"]) for one in found), max(float(one["p99"]) for one in found)):
        ratio = best(mine, bound) / best(found, bound)
        print(f"p99 within {1000 * bound:.0f} ms: {best(mine, bound):.1f} to {best(found, bound):.1f}, {ratio:.2f} x")


if __name__ == "__main__":
    main()
