"""The service on MiniLM beside infinity-emb: start, memory, speed at equal waiting, and what is beyond its capacity.

    python benchmarks/serving.py [--infinity ENVIRONMENT/bin/infinity_emb] [--quick] [--threads 2] [--bound 0.1]

infinity-emb pins other versions, and so has an environment of its own: python -m venv ENVIRONMENT, then
ENVIRONMENT/bin/pip install "infinity-emb[all]". All serve the same weights (ours in float32, and in int8 from a copy
that was quantized) with the same number of threads, to the same clients with the same texts, one a request. They run
side by side, and are asked in turn, window after window, so that whatever else the machine does meets them all.

Compared is the highest load, in requests that are offered each second, at which all are answered and the 99th
percentile of the waiting stays within one bound: four times what the slowest takes for a lone client's question,
unless --bound says another. Then each is offered up to twenty times its own capacity, as requests that are due whether
or not those before are answered, with several texts in each so that the clients can send so much; what was really sent
is printed beside. The windows of --quick are too short for more than a first look.
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

from minilm import minilm  # beside this file

ROOT = Path(__file__).parents[1]
SENTENCES = ROOT / "src" / "cloze" / "demo" / "data" / "authors_dev.tsv"
CLOZE = [sys.executable, "-m", "cloze"]
NAME = "minilm"  # what all of them call the model
# Clients that ask again as soon as they are answered: enough for full batches.
MANY = 32
# Clients that share an offered load: a question that is due finds one that is free.
OFFERING = 128
# Of the questions that are due in a window, how many must have been asked, and to keep up also answered.
ANSWERED = 0.9
# Beyond capacity. Twenty times what int8 answers is more than clients can send on a core beside it, text by text.
TOGETHER = 8  # texts of a request
SENDERS, WAITING = 2, 400  # processes that send, and their connections: some service takes whatever it is sent
PATIENCE = 10.0  # seconds until a client gives up


@dataclass(frozen=True)
class Plan:
    """How long, how often, and how far."""

    seconds: float = 8.0
    rounds: int = 3
    steps: int = 8
    times: tuple[int, ...] = (1, 2, 5, 10, 20)


QUICK = Plan(1.5, 1, 5, (1, 5, 20))


@dataclass(frozen=True)
class Started:
    """A service that answers."""

    name: str
    url: str
    pid: int
    seconds: float  # until it was ready
    bodies: Path  # a text each
    several: Path  # TOGETHER texts each

    def memory(self) -> float:
        """Megabytes in use, of the process and those that it has started."""
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
        """Press from processes of their own."""
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
    """Start a program, wait until it is ready, and end it."""
    begin = time.monotonic()
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
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
        except subprocess.TimeoutExpired:  # it may have more to answer than it should have taken
            process.kill()
            process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def write_bodies(folder: Path, together: int) -> Path:
    """So many sentences a request, as OpenAI's clients send them."""
    rows = SENTENCES.read_text("utf-8").splitlines()[1:]
    texts = [max(row.split("\t"), key=len)[:200] for row in rows]  # about as long as a question
    asked = [texts[start : start + together] for start in range(0, len(texts) - together + 1, together)]
    path = folder / f"bodies-{together}.jsonl"
    forms = [{"input": one if together > 1 else one[0], "model": NAME, "encoding_format": "base64"} for one in asked]
    path.write_text("\n".join(map(json.dumps, forms)), "utf-8")
    return path


def start_all(stack: ExitStack, scratch: Path, asked: argparse.Namespace) -> list[Started]:
    """Ours twice, and infinity-emb where it is; one after another, so that none disturbs the other's start."""
    bodies = write_bodies(scratch, 1), write_bodies(scratch, TOGETHER)
    floats, integers = scratch / "fp32" / NAME, scratch / "int8" / NAME
    shutil.copytree(minilm(), floats)
    (scratch / "few.txt").write_text("A ship at sea.\nHe shook his head.\n", "utf-8")  # what it compares with float32
    quantize = [*CLOZE, "quantize", "--model", str(floats), "--out", str(integers), "--input", str(scratch / "few.txt")]
    subprocess.run(quantize, check=True, capture_output=True)
    programs = {
        f"cloze {precision}": (
            [*CLOZE, "serve", str(folder), "--threads", str(asked.threads), "--precision", precision],
            "/v1/embeddings",
            "/ready",
        )
        for precision, folder in (("fp32", floats), ("int8", integers))
    }
    if asked.infinity and shutil.which(asked.infinity):
        words = [asked.infinity, "v2", "--model-id", str(floats), "--served-model-name", NAME]
        words += ["--engine", "torch", "--device", "cpu", "--no-bettertransformer"]
        programs["infinity-emb"] = (words, "/embeddings", "/health")
    else:
        print("infinity-emb: not here, so not compared (--infinity ENVIRONMENT/bin/infinity_emb)")
    return [
        stack.enter_context(started(name, words, asked.port + number, path, ready, bodies))
        for number, (name, (words, path, ready)) in enumerate(programs.items())
    ]


def in_turns(services: Sequence[Started], rounds: int) -> Iterator[tuple[int, Started]]:
    """Every service once a round, each round beginning with another."""
    for number in range(rounds):
        first = number % len(services)
        for service in (*services[first:], *services[:first]):
            yield number, service


def lone(services: Sequence[Started], plan: Plan) -> dict[str, float]:
    """How long one client waits for an answer, in the middle."""
    found: dict[str, float] = {}
    for service in services:
        service.load(1, 2)  # warm
        found[service.name] = float(service.load(plan.seconds, 1)["p50"])
        print(f"{service.name:>13}: ready after {service.seconds:5.1f} s, {service.memory():5.0f} MB; "
              f"a lone client waits {1000 * found[service.name]:6.1f} ms")  # fmt: skip
    return found


def capacities(services: Sequence[Started], plan: Plan, *, together: bool = False) -> dict[str, float]:
    """The most answers a second, however long they take."""
    found: dict[str, list[float]] = {service.name: [] for service in services}
    for _, service in in_turns(services, plan.rounds):
        found[service.name].append(float(service.load(plan.seconds, MANY, together=together)["per_second"]))
    for name, values in found.items():
        spread = f" ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else ""
        print(f"{name:>13}: {median(values):7.1f} requests/s by {MANY} clients{spread}")
    return {name: median(values) for name, values in found.items()}


def keeps_up(found: dict[str, Any], offered: float, bound: float) -> bool:
    """Whether so many were answered, nobody was refused, and the answers came in time."""
    statuses = found["statuses"]
    return set(statuses) == {"200"} and found["p99"] <= bound and statuses["200"] >= ANSWERED * offered


def highest_loads(
    services: Sequence[Started], most: dict[str, float], bound: float, plan: Plan
) -> dict[str, tuple[float, float]]:
    """The highest load that each keeps up with, and its p99 there, all of them in turn.

    It grows by half until it is too much, and the rest is halved then: what was measured as the most may be too little.
    """
    below = {service.name: (0.0, 0.0) for service in services}
    above: dict[str, float] = {}
    for _, service in in_turns(services, plan.steps):
        name = service.name
        rate = (below[name][0] + above[name]) / 2 if name in above else 1.5 * below[name][0] or most[name] / 2
        # Twice before it counts as too much: the machine may have had something else to do.
        for _ in range(2):
            found = service.load(plan.seconds, OFFERING, rate)
            if keeps_up(found, int(rate * plan.seconds), bound):
                below[name] = rate, float(found["p99"])
                break
            settle(service, bound)
        else:
            above[name] = rate
    for name in below.keys() - above.keys():
        print(f"{name:>13}: nothing was too much in {plan.steps} windows, so that the next figure says too little")
    return below


def settle(service: Started, bound: float) -> None:
    """Wait until what was too much is done: a service without a bound goes on with what nobody waits for."""
    end = time.monotonic() + 120
    while time.monotonic() < end and not float(service.load(0.3, 1)["p50"]) <= bound:
        time.sleep(0.2)


def beyond(services: Sequence[Started], bound: float, plan: Plan) -> None:
    """What each answers when it is offered so many times its capacity, whether it answers or not."""
    print(f"offered at a rate, {TOGETHER} texts a request, by {SENDERS} processes with {WAITING} connections, "
          f"who give up after {PATIENCE:g} s:")  # fmt: skip
    able = capacities(services, plan, together=True)
    for times in plan.times:
        for service in services:
            rate = times * able[service.name]
            found = service.load(plan.seconds, WAITING, rate, together=True, processes=SENDERS, longest=PATIENCE)
            row = told(found, rate, plan.seconds)
            print(f"{service.name:>13} at {times:>2} times: {service.memory():5.0f} MB, {row}")
            settle(service, bound)


def told(found: dict[str, Any], rate: float, seconds: float) -> str:
    """What was asked for, sent, answered and refused each second; and where less was sent than should have been."""
    statuses = dict(found["statuses"])
    good, refused = statuses.pop("200", 0), statuses.pop("429", 0)
    sent = found["sent"] / seconds
    waited = f"p99 {1000 * found['waited_p99']:6.0f} ms" if good else "no answer"
    parts = [f"asked {rate:6.1f}/s, sent {sent:6.1f}/s, answered {found['per_second']:6.1f}/s"]
    parts += [f"refused {refused / seconds:6.1f}/s, {waited}"]
    parts += [f"{count} x {status}" for status, count in sorted(statuses.items())]
    if sent < ANSWERED * rate:
        # Whoever waits cannot ask: of a service that refuses nobody, all connections wait in the end.
        parts.append(f"OFFERED ONLY {sent / rate:.0%} of what was asked")
    return ", ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--infinity", default=os.environ.get("INFINITY_EMB"), help="its program")
    parser.add_argument("--seconds", type=float, help="of each window")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of each service")
    parser.add_argument("--bound", type=float, help="seconds that the 99th percentile may wait")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter windows")
    parser.add_argument("--port", type=int, default=8971, help="the first of three")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no service is left behind
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    plan = QUICK if asked.quick else Plan()
    if asked.seconds:
        plan = Plan(asked.seconds, plan.rounds, plan.steps, plan.times)
    os.environ["OMP_NUM_THREADS"] = str(asked.threads)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        services = start_all(stack, scratch, asked)
        load = os.getloadavg()[0]
        print(f"{asked.threads} threads each; windows of {plan.seconds:g} s; the machine's load is {load:.1f} before")
        waits = lone(services, plan)
        bound = asked.bound or 4 * max(waits.values())
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
