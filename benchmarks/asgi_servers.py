"""Compare ASGI servers on a trivial route: throughput, latency, and limits on slow or endless requests.

    python benchmarks/asgi_servers.py --environment ENVIRONMENT [--rounds 5] [--seconds 3] [--patience 45]

granian and hypercorn need a separate environment: python -m venv ENVIRONMENT, then ENVIRONMENT/bin/pip install
granian hypercorn uvloop. The servers alternate, round by round, under load from 16 connections; each runs uvloop in
one process with its default limits. Then every server gets the same unfinished requests. Prints the seconds until it
closes the connection and, for endless requests, the megabytes that it reads and the growth of its memory.
"""

import argparse
import asyncio
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

APP = """
async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    if scope["path"] == "/read":
        while (await receive()).get("more_body"):
            pass
    headers = [(b"content-type", b"application/json"), (b"content-length", b"15")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b'{"status":"ok"}'})
"""
UVICORN = "import sys, uvicorn; uvicorn.run('app:app', port=int(sys.argv[1]), http=sys.argv[2], log_level='critical')"
ASK = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = b"POST /read HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
POST = b"POST /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
# Bytes sent first, then the bytes repeated every half second.
SLOW = {
    "nothing": (b"", b""),
    "request head, one header at a time": (b"GET / HTTP/1.1\r\n", b"X: 1\r\n"),
    "complete request, then blank lines": (ASK, b"\r\n"),
    "answered request, then the body byte by byte": (POST, b"x"),
}
# Bytes sent first, then the bytes repeated as fast as the server reads them.
ENDLESS = {
    "trailers": (CHUNKED + b"0\r\n", b"X-Trailer: 1\r\n" * 1000),
    "chunk extensions": (CHUNKED + b"1;", b"x" * 14_000),
}


def commands(environment: Path, port: int) -> dict[str, list[str]]:
    """Return the command line of each server."""
    uvicorn = [sys.executable, "-c", UVICORN, str(port)]
    programs = environment / "bin"
    return {
        "uvicorn, httptools": [*uvicorn, "httptools"],
        "uvicorn, our limits": [*uvicorn, "cloze.serve.access:TimeoutProtocol"],
        "uvicorn, h11": [*uvicorn, "h11"],
        "hypercorn": [str(programs / "hypercorn"), "app:app", "-b", f"127.0.0.1:{port}", "-k", "uvloop"],
        "granian": [
            *(str(programs / "granian"), "app:app", "--interface", "asgi"),
            *("--port", str(port), "--loop", "uvloop", "--log-level", "critical"),
        ],
    }


@contextmanager
def serving(command: Sequence[str], folder: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start a server, wait until it accepts connections, and terminate it after the block."""
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=folder, stdout=quiet, stderr=quiet) as process:
        try:
            end = time.monotonic() + 30
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except OSError:
                    if process.poll() is not None or time.monotonic() > end:
                        raise RuntimeError(f"{command[0]} does not listen; is it installed?") from None
                    time.sleep(0.1)
            yield process
        finally:
            process.terminate()


async def press(port: int, seconds: float, connections: int = 16) -> list[float]:
    """Send requests over several connections; return the latency of each request in seconds."""
    taken: list[float] = []
    end = time.monotonic() + seconds

    async def ask() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.monotonic() < end:
            start = time.monotonic()
            writer.write(ASK)
            try:
                await reader.readuntil(b"}")
                taken.append(time.monotonic() - start)
            except (asyncio.IncompleteReadError, ConnectionError):  # hypercorn closes a connection after 1,000 requests
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()

    await asyncio.gather(*(ask() for _ in range(connections)))
    return taken


def hold_on(port: int, first: bytes, again: bytes, pause: float, patience: float) -> tuple[float | None, int]:
    """Send data forever; return the seconds until the server closed the connection (or None) and the bytes it read."""
    start, sent = time.monotonic(), 0
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(0.01)
        due, unsent = start, first
        while time.monotonic() < start + patience and sent < 50_000_000:
            try:
                if time.monotonic() >= due:
                    size = client.send(unsent)
                    sent, unsent = sent + size, unsent[size:] or again
                    due = time.monotonic() + pause
                if not pause:
                    client.setblocking(False)
                if not client.recv(1 << 16):
                    return time.monotonic() - start, sent
            except (TimeoutError, BlockingIOError):
                client.settimeout(0.01)
            except OSError:
                return time.monotonic() - start, sent
    return None, sent


def memory(pid: int) -> int:
    """Return the resident memory of a process and its children in bytes."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text("utf-8").split()
    lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    own = next(int(line.split()[1]) * 1024 for line in lines if "VmRSS" in line)
    return own + sum(memory(int(child)) for child in children)


def main() -> None:
    """Parse the arguments and print both tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--environment", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--patience", type=float, default=45.0)
    arguments = parser.parse_args()
    names = list(commands(arguments.environment, 0))
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        Path(folder, "app.py").write_text(APP, encoding="utf-8")
        ports = {name: 18_100 + number for number, name in enumerate(names)}
        processes = {
            name: stack.enter_context(serving(commands(arguments.environment, port)[name], folder, port))
            for name, port in ports.items()
        }
        taken: dict[str, list[list[float]]] = {name: [] for name in names}
        for _ in range(arguments.rounds):
            for name, port in ports.items():
                taken[name].append(asyncio.run(press(port, arguments.seconds)))
        print("| server | requests/s (median of rounds, min, max) | p50, ms | p99, ms |\n|---|---|---|---|")
        for name, rounds in taken.items():
            rates = sorted(len(one) / arguments.seconds for one in rounds)
            waits = sorted(wait * 1000 for one in rounds for wait in one)
            p50, p99 = waits[len(waits) // 2], waits[int(0.99 * len(waits))]
            print(f"| {name} | {median(rates):,.0f} ({rates[0]:,.0f}, {rates[-1]:,.0f}) | {p50:.2f} | {p99:.2f} |")
        for name, port in ports.items():
            for what, (first, again) in SLOW.items():
                seconds, _ = hold_on(port, first, again, 0.5, arguments.patience)
                print(f"{name}; {what}: {f'closed after {seconds:.1f} s' if seconds else 'open'}", flush=True)
            for what, (first, again) in ENDLESS.items():
                before = memory(processes[name].pid)
                seconds, sent = hold_on(port, first, again, 0.0, arguments.patience)
                grown = memory(processes[name].pid) - before
                end = f"closed after {seconds:.1f} s" if seconds else "open"
                print(f"{name}; {what}: {end}, {sent / 1e6:.1f} MB read, {grown / 1e6:+.1f} MB memory", flush=True)


if __name__ == "__main__":
    main()
