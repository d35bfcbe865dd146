"""Compare the service with infinity-emb on MiniLM: start-up, memory, throughput at equal latency, and overload.

    python benchmarks/serving.py [--infinity ENVIRONMENT/bin/infinity_emb] [--quick] [--threads 2] [--bound 0.1]

infinity-emb pins other versions and so needs a separate environment: `python -m venv ENVIRONMENT`, then
`ENVIRONMENT/bin/pip install "infinity-emb[all]"`. All services use the same weights, clients and texts, one text per
request. "cloze" is ``cloze serve FOLDER`` without flags, which quantizes the model to int8 at its first start if the
vectors stay close enough; "cloze fp32" computes in float32. The services run at the same time and are measured
alternately, window by window, so that other load on the machine affects all of them.

The main figure is the highest offered load (requests per second) at which every request is answered and the 99th
percentile of the latency stays within a bound: four times the slowest service's latency for a single client, or --bound
seconds. Then each service is offered up to twenty times its own capacity at a fixed rate, several texts per request so
that the clients can generate enough load; the actual rate is printed as well. The windows of --quick are only
long enough for a smoke test.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from minilm import minilm  # module in benchmarks/

ROOT = Path(__file__).parents[1]
SENTENCES = ROOT / "src" / "cloze" / "demo" / "data" / "authors_dev.tsv"
CLOZE = [sys.executable, "-m", "cloze"]
NAME = "minilm"  # name of the model in requests
# Closed-loop clients, each with one request at a time: enough to fill the batches.
MANY = 32
# Connections that share an offered load; a request that is due takes a free one.
OFFERING = 128
# Share of the due requests that must be sent, and answered, for a load to count as sustained.
ANSWERED = 0.9
# Texts per request under overload; one core cannot generate twenty times int8's capacity with single texts.
TOGETHER = 8
SENDERS, WAITING = 2, 400  # load generator processes, and their connections: some services accept without limit
PATIENCE = 10.0  # client timeout in seconds


@dataclass(frozen=True)
class Plan:
    """Durations, repetitions and overload factors."""

    seconds: float = 8.0
    rounds: int = 3
    steps: int = 8
    times: tuple[int, ...] = (1, 2, 5, 10, 20)


QUICK = Plan(1.5, 1, 5, (1, 5, 20))


@dataclass(frozen=True)
class Started:
    """A running service."""

    name: str
    url: str
    pid: int
    seconds: float  # start-up time in seconds
    bodies: Path  # file of requests with one text
    several: Path  # file of requests with TOGETHER texts

    def memory(self) -> float:
        """Return the resident megabytes of the service and its child processes."""
        return sum(_resident(pid) for pid in [self.pid, *map(int, _children(self.pid))]) / 1024

    def load(
        self,
        seconds: float,
        connections: int,
        rate: float | None = None,
        *,
        together: bool = False,
        processes: int = 1,
        longest: float | None = None,
    ) -> dict[str, Any]:
        """Send requests from separate processes and return the statistics."""
        words = [sys.executable, "-m", "torture.load", self.url, f"@{self.several if together else self.bodies}"]
        words += ["--seconds", str(seconds), "--connections", str(connections), "--processes", str(processes)]
        words += [] if rate is None else ["--rate", str(rate)]
        words += [] if longest is None else ["--longest", str(longest)]
        found: dict[str, Any] = json.loads(subprocess.run(words, cwd=ROOT, capture_output=True, check=True).stdout)
        return found


def _children(pid: int) -> list[str]:
    return [word for file in Path(f"/proc/{pid}/task").glob("*/children") for word in file.read_text().split()]


def _resident(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


@contextmanager
def started(
    name: str, words: list[str], port: int, path: str, ready: str, bodies: tuple[Path, Path]
) -> Iterator[Started]:
    """Start a service, wait until it is ready, and terminate it after the block."""
    begin = time.monotonic()
    # An empty cache, so that the start-up of cloze includes the quantization.
    cache = {"XDG_CACHE_HOME": str(bodies[0].parent / "cache")}
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"} | cache
    process = subprocess.Popen(
        [*words, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    address = f"http://127.0.0.1:{port}"
    try:
        while not _answers(address + ready):
            if process.poll() is not None or time.monotonic() - begin > 300:
                raise SystemExit(f"did not start: {' '.join(words)}")
            time.sleep(0.05)
        yield Started(name, address + path, process.pid, time.monotonic() - begin, *bodies)
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:  # it may still be working on queued requests
            process.kill()
            process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def write_bodies(folder: Path, together: int) -> Path:
    """Write request bodies with this many sentences each, in the format of OpenAI's API."""
    rows = SENTENCES.read_text("utf-8").splitlines()[1:]
    texts = [max(row.split("\t"), key=len)[:200] for row in rows]  # about the length of a question
    arguments = [texts[start : start + together] for start in range(0, len(texts) - together + 1, together)]
    path = folder / f"bodies-{together}.jsonl"
    forms = [
        {"input": one if together > 1 else one[0], "model": NAME, "encoding_format": "base64"} for one in arguments
    ]
    path.write_text("\n".join(map(json.dumps, forms)), "utf-8")
    return path


def start_all(stack: ExitStack, scratch: Path, arguments: argparse.Namespace) -> list[Started]:
    """Start cloze twice, and infinity-emb if available, one after another, so that start-ups do not overlap."""
    bodies = write_bodies(scratch, 1), write_bodies(scratch, TOGETHER)
    folder = scratch / "model" / NAME
    shutil.copytree(minilm(), folder)
    serve = [*CLOZE, "serve", str(folder)]
    fp32 = [*serve, "--threads", str(arguments.threads), "--precision", "fp32"]
    programs = {name: (words, "/v1/embeddings", "/ready") for name, words in (("cloze", serve), ("cloze fp32", fp32))}
    if arguments.infinity and shutil.which(arguments.infinity):
        words = [arguments.infinity, "v2", "--model-id", str(folder), "--served-model-name", NAME]
        words += ["--engine", "torch", "--device", "cpu", "--no-bettertransformer"]
        programs["infinity-emb"] = (words, "/embeddings", "/health")
    else:
        print("infinity-emb not found, skipping it (--infinity ENVIRONMENT/bin/infinity_emb)")
    return [
        stack.enter_context(started(name, words, arguments.port + number, path, ready, bodies))
        for number, (name, (words, path, ready)) in enumerate(programs.items())
    ]


def in_turns(services: Sequence[Started], rounds: int) -> Iterator[tuple[int, Started]]:
    """Yield every service once per round, starting each round with a different one."""
    for number in range(rounds):
        first = number % len(services)
        for service in (*services[first:], *services[:first]):
            yield number, service


def lone(services: Sequence[Started], plan: Plan) -> dict[str, float]:
    """Print start-up and memory; return the median latency for a single client."""
    found: dict[str, float] = {}
    for service in services:
        service.load(1, 2)  # warm-up
        found[service.name] = float(service.load(plan.seconds, 1)["p50"])
        print(f"{service.name:>13}: ready after {service.seconds:5.1f} s, {service.memory():5.0f} MB; "
              f"latency for a single client {1000 * found[service.name]:6.1f} ms")  # fmt: skip
    return found


def capacities(services: Sequence[Started], plan: Plan, *, together: bool = False) -> dict[str, float]:
    """Return the maximum throughput, regardless of latency."""
    found: dict[str, list[float]] = {service.name: [] for service in services}
    for _, service in in_turns(services, plan.rounds):
        found[service.name].append(float(service.load(plan.seconds, MANY, together=together)["per_second"]))
    for name, values in found.items():
        spread = f" ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else ""
        print(f"{name:>13}: {median(values):7.1f} requests/s with {MANY} clients{spread}")
    return {name: median(values) for name, values in found.items()}


def keeps_up(found: dict[str, Any], offered: float, bound: float) -> bool:
    """Return whether a load is sustained: nothing rejected, enough answered, p99 within the bound."""
    statuses = found["statuses"]
    return set(statuses) == {"200"} and found["p99"] <= bound and statuses["200"] >= ANSWERED * offered


def highest_loads(
    services: Sequence[Started], most: dict[str, float], bound: float, plan: Plan
) -> dict[str, tuple[float, float]]:
    """Return the highest load that each service sustains, and its p99 at that load; services alternate.

    The load grows by half until it is too high; then the interval is bisected. The measured capacity is only a starting
    point, since it may be too low.
    """
    below = {service.name: (0.0, 0.0) for service in services}
    above: dict[str, float] = {}
    for _, service in in_turns(services, plan.steps):
        name = service.name
        rate = (below[name][0] + above[name]) / 2 if name in above else 1.5 * below[name][0] or most[name] / 2
        # A load is too high only if it fails twice: the machine may have been busy the first time.
        for _ in range(2):
            found = service.load(plan.seconds, OFFERING, rate)
            if keeps_up(found, int(rate * plan.seconds), bound):
                below[name] = rate, float(found["p99"])
                break
            settle(service, bound)
        else:
            above[name] = rate
    for name in below.keys() - above.keys():
        print(f"{name:>13}: sustained every load in {plan.steps} windows; the next figure is a lower bound")
    return below


def settle(service: Started, bound: float) -> None:
    """Wait until the backlog is done; a service without a queue limit keeps working on abandoned requests."""
    end = time.monotonic() + 120
    while time.monotonic() < end and not float(service.load(0.3, 1)["p50"]) <= bound:
        time.sleep(0.2)


def beyond(services: Sequence[Started], bound: float, plan: Plan) -> None:
    """Print throughput and rejections under loads that exceed the capacity, sent at a fixed rate."""
    print(f"offered at a rate, {TOGETHER} texts per request, by {SENDERS} processes with {WAITING} connections, "
          f"which time out after {PATIENCE:g} s:")  # fmt: skip
    able = capacities(services, plan, together=True)
    for times in plan.times:
        for service in services:
            rate = times * able[service.name]
            found = service.load(plan.seconds, WAITING, rate, together=True, processes=SENDERS, longest=PATIENCE)
            row = overload_row(found, rate, plan.seconds)
            print(f"{service.name:>13} at {times:>2} times: {service.memory():5.0f} MB, {row}")
            settle(service, bound)


def overload_row(found: dict[str, Any], rate: float, seconds: float) -> str:
    """Format the due, sent, answered and rejected requests per second; flag loads that could not be generated."""
    statuses = dict(found["statuses"])
    good, refused = statuses.pop("200", 0), statuses.pop("429", 0)
    sent = found["sent"] / seconds
    waited = f"p99 {1000 * found['waited_p99']:6.0f} ms" if good else "no answer"
    parts = [f"due {rate:6.1f}/s, sent {sent:6.1f}/s, answered {found['per_second']:6.1f}/s"]
    parts += [f"rejected {refused / seconds:6.1f}/s, {waited}"]
    parts += [f"{count} x {status}" for status, count in sorted(statuses.items())]
    if sent < ANSWERED * rate:
        # A waiting client cannot send requests: if a service rejects none, all connections end up waiting.
        parts.append(f"SENT ONLY {sent / rate:.0%} OF THE DUE REQUESTS")
    return ", ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--infinity", default=os.environ.get("INFINITY_EMB"), help="path of infinity_emb")
    parser.add_argument("--seconds", type=float, help="seconds per window")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads per service")
    parser.add_argument("--bound", type=float, help="bound of the 99th percentile of the latency, in seconds")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter windows")
    parser.add_argument("--port", type=int, default=8971, help="first of three consecutive ports")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the services end with this process
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    plan = QUICK if arguments.quick else Plan()
    if arguments.seconds:
        plan = Plan(arguments.seconds, plan.rounds, plan.steps, plan.times)
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        services = start_all(stack, scratch, arguments)
        load = os.getloadavg()[0]
        print(f"{arguments.threads} threads each; windows of {plan.seconds:g} s; load average before: {load:.1f}")
        waits = lone(services, plan)
        bound = arguments.bound or 4 * max(waits.values())
        most = capacities(services, plan)
        found = highest_loads(services, most, bound, plan)
        print(f"the highest load with p99 within {1000 * bound:.0f} ms:")
        theirs = found.get("infinity-emb", (0.0, 0.0))[0]
        for name, (rate, waited) in found.items():
            ratio = f", {rate / theirs:.2f} x infinity-emb" if theirs and name != "infinity-emb" else ""
            print(f"{name:>13}: {rate:7.1f} requests/s, p99 {1000 * waited:.0f} ms{ratio}")
        beyond(services, bound, plan)


if __name__ == "__main__":
    main()
