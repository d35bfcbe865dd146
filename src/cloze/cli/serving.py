"""``cloze serve``."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cloze.cli.console import Machine, OutputError, print_json
from cloze.cli.inputs import bundled_paragraphs
from cloze.errors import ConfigError
from cloze.options import PrecisionName
from cloze.serve.settings import Limits, ServiceSettings, name_adapters, name_models

KEY_VARIABLE = "CLOZE_KEY"


@dataclass(frozen=True)
class Access:
    """Access control of the service. The docstring of a field is its flag's help."""

    key: str | None = None
    """Bearer token for requests and password for browsers; the variable CLOZE_KEY hides it from the process list."""
    key_file: Path | None = None
    """A file that holds the key."""
    insecure: bool = False
    """Allow requests without a key even if other machines can reach the host."""
    trust: tuple[str, ...] = ()
    """Host names to accept, in addition to localhost and its addresses; * for any."""

    def find_key(self) -> str | None:
        """Return the key from the flag, the file or the environment; reject two different ones."""
        sources = {"--key": self.key, KEY_VARIABLE: os.environ.get(KEY_VARIABLE)}
        if self.key_file is not None:
            try:
                sources[f"--key-file {self.key_file}"] = self.key_file.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(f"{self.key_file}: the key cannot be read ({type(error).__name__})") from error
        for source, key in sources.items():
            # An empty variable or file is a mistake, for instance of a script, and must not disable access control.
            if key is not None and not key.strip():
                remedy = "give a key (openssl rand -hex 24 generates one), or leave it out to need none"
                raise ConfigError(f"{source} is empty; {remedy}")
        keys = {key for key in sources.values() if key is not None}
        if len(keys) > 1:
            raise ConfigError(f"two different keys were given; use one of --key, --key-file and {KEY_VARIABLE}")
        return keys.pop() if keys else None


@dataclass(frozen=True)
class ServingMachine(Machine):
    """Device, threads and precision of a service."""

    precision: PrecisionName | None = None
    """fp32, bf16, int8 or auto; by default auto on a CPU (int8 if it is faster and accurate enough), else fp32."""


KEYLESS, LIMITS, HERE = Access(), Limits(), ServingMachine()


def serve(
    folders: Annotated[
        list[str] | None, Parameter(help="Model folders or runs, each served under the folder's name or as NAME=DIR.")
    ] = None,
    /,
    *,
    adapter: list[str] | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    json: bool = False,
    access: Annotated[Access, Parameter(name="*")] = KEYLESS,
    limits: Annotated[Limits, Parameter(name="*")] = LIMITS,
    machine: Annotated[ServingMachine, Parameter(name="*")] = HERE,
) -> None:
    """Serve models over HTTP, with pages to try them in a browser, until interrupted.

    Args:
        adapter: An adapter for one of the models, as NAME=DIR; may be repeated.
        host: The address to listen on; an address that other machines can reach needs --key.
        port: The port to listen on; 0 for any free port.
        json: Print the address as JSON.
    """
    models = name_models(folders or [])
    settings = ServiceSettings(
        models,
        name_adapters(adapter or [], models),
        host,
        port,
        access.find_key(),
        access.insecure,
        access.trust,
        limits,
    )
    from cloze.serve.server import serve as run

    def print_address(bound_port: int) -> None:
        address = f"http://{f'[{host}]' if ':' in host else host}:{bound_port}"
        names = [*settings.models, *settings.adapters]
        message = f"{', '.join(names)} at {address} (Ctrl-C to stop)"
        try:
            if json:
                print_json({"address": address, "models": names})
            else:
                print(message)
            sys.stdout.flush()
        except (OutputError, BrokenPipeError):  # a full disk or a closed pipe; the service works without it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            print(f"cloze: note: standard output cannot be written; {message}", file=sys.stderr)

    def say(line: str) -> None:
        print(f"cloze: {line}", file=sys.stderr, flush=True)

    run(
        settings,
        device=machine.use(),
        precision=machine.precision,
        paragraphs=bundled_paragraphs,
        say=say,
        on_start=print_address,
    )
