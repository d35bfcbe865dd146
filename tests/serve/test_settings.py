"""The settings of ``cloze serve``: names, hosts, keys and limits; every error is one line."""

import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from cloze.errors import ConfigError
from cloze.models import SENTENCE_MODEL, SHIPPED_MODEL
from cloze.serve.settings import Limits, ServiceSettings, is_local, name_adapters, name_models
from tests.cli.conftest import Cloze
from tests.cli.conftest import run as run  # a fixture

KEY = "0123456789abcdef"


def test_models_are_called_by_their_folders() -> None:
    assert name_models(["runs/books", "runs/authors/model/", "x/bert-base"]) == {
        "books": "runs/books",
        "authors": "runs/authors/model/",
        "bert-base": "x/bert-base",
    }


def test_models_can_be_given_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["base=runs/books", "other=hub/name", "runs/authors"]
    assert name_models(words) == {"base": "runs/books", "other": "hub/name", "authors": "runs/authors"}
    monkeypatch.chdir(tmp_path)
    Path("lr=1e-4").mkdir()
    assert name_models(["lr=1e-4"]) == {"lr=1e-4": "lr=1e-4"}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "localhost"])
def test_hosts_of_this_machine_alone(host: str) -> None:
    assert is_local(host)
    assert ServiceSettings({}, host=host).key is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_other_hosts_need_a_key(host: str) -> None:
    with pytest.raises(ConfigError, match="which other machines can reach; give --key"):
        ServiceSettings({}, host=host)
    assert ServiceSettings({}, host=host, key=KEY).key == KEY
    assert ServiceSettings({}, host=host, insecure=True).insecure


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["base", "--port", 99999], "port is 99999; expected 1 to 65535, or 0 for any free port"),
        (["base", "--key", "short"], "the key has 5 characters; expected at least 16 ASCII characters"),
        (["base", "--key", "ключ" * 5], "the key has 20 characters; expected at least 16 ASCII characters"),
        (
            ["base", "--key", ""],
            "--key is empty; give a key (openssl rand -hex 24 generates one), or leave it out to need",
        ),
        (["base", "--host", "0.0.0.0"], "host is 0.0.0.0, which other machines can reach; give --key"),
        (["base", "--timeout", 0], "timeout is 0.0; expected more than 0"),
        (["base", "--queue", -1], "queue is -1; expected more than 0"),
        (
            ["base", "--trust", "https://bert.example"],
            "--trust 'https://bert.example'; expected only a host name, such as bert.",
        ),
        (
            ["base", "--trust", "bert.example:443"],
            "--trust 'bert.example:443'; expected only a host name, such as bert.example.org",
        ),
        (["base", "--host", "ü..", "--insecure"], "cannot listen on ü..:8000 ("),
        (["base", "--patience", 0], "patience is 0.0; expected more than 0"),
        (["base", "--proposals", 0], "proposals is 0; expected more than 0"),
        (["a/base", "b/base"], "b/base and a/base would both be called 'base'; name one of them: NAME=DIR"),
        (["x=a/base", "x=b/base"], "b/base and a/base would both be called 'x'; name one of them: NAME=DIR"),
        (["=base"], "'=base'; expected NAME=DIR"),
        (["a b=base"], "'a b=base'; expected NAME=DIR"),
        (["x="], "'x='; expected NAME=DIR"),
        (["base", "--adapter", "x"], "--adapter 'x'; expected NAME=DIR"),
        (["base", "--adapter", "base=x"], "--adapter 'base=x': the name 'base' is already taken; choose another"),
        (["base", "--key-file", "nowhere"], "nowhere: the key cannot be read (FileNotFoundError)"),
        (["nowhere", "--port", 0], "nowhere: "),
    ],
)
def test_mistakes(words: list[object], message: str, run: Cloze) -> None:
    result = run("serve", *words)
    assert result.code == 2
    assert result.complaint.startswith(message)


def test_the_models_of_the_package_are_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloze.serve.settings.shipped_folder", lambda _: tmp_path)
    assert name_models([]) == {name: name for name in (SHIPPED_MODEL, SENTENCE_MODEL)}


def test_no_model_at_all(run: Cloze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloze.serve.settings.shipped_folder", lambda _: tmp_path / "nowhere")
    assert run("serve").complaint == "no model to serve; name one or more model folders: cloze serve FOLDER"


def test_two_keys_are_one_too_many(run: Cloze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOZE_KEY", KEY)
    (tmp_path / "key").write_text("another key, as long as that\n")
    result = run("serve", "base", "--key-file", tmp_path / "key")
    assert result.complaint == "two different keys were given; use one of --key, --key-file and CLOZE_KEY"


def test_a_port_that_is_taken(run: Cloze, folders: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("serve", folders["base"], "--port", port)
    assert result.complaint.startswith(f"cannot listen on 127.0.0.1:{port} (Address already in use); choose another")


def test_a_host_that_is_not_known(run: Cloze, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:  # like the resolver, whose error numbers are not the system's
        raise OSError(-2, "Name or service not known (while attempting to bind on address ('nowhere', 8000))")

    monkeypatch.setattr(socket, "create_server", refuse)
    expected = "cannot listen on nowhere:8000 (Name or service not known); choose another --port or --host"
    assert run("serve", "base", "--host", "nowhere", "--insecure").complaint == expected


def test_an_adapter_of_no_base_that_is_served(run: Cloze, folders: dict[str, str]) -> None:
    result = run("serve", folders["base"], "--port", 0, "--adapter", f"x={folders['labels']}")
    assert "not an adapter; use a folder written by 'cloze finetune --adapter'" in result.complaint


def test_names_of_adapters() -> None:
    assert name_adapters(["a=runs/a", "b=x=y"], {}) == {"a": "runs/a", "b": "x=y"}


def test_bodies_held_together_follow_the_limit_of_one() -> None:
    assert Limits(body=100).held == 3200


@pytest.mark.parametrize("value", ["", " ", "\n"])
def test_an_empty_key_is_not_no_key(value: str, run: Cloze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text(value)
    result = run("serve", "base", "--key-file", tmp_path / "key")
    assert (result.code, result.complaint.partition(" is empty;")[0]) == (2, f"--key-file {tmp_path / 'key'}")
    monkeypatch.setenv("CLOZE_KEY", value)
    result = run("serve", "base")
    assert (result.code, result.complaint.partition(" is empty;")[0]) == (2, "CLOZE_KEY")
    with pytest.raises(ConfigError, match="the key is empty"):
        ServiceSettings({}, key=value)


def test_output_that_cannot_be_written_stops_nothing(folders: dict[str, str]) -> None:
    command = [sys.executable, "-m", "cloze", "serve", folders["base"], "--port", "0"]
    with (
        Path("/dev/full").open("w") as full,
        subprocess.Popen(command, stdout=full, stderr=subprocess.PIPE, text=True) as service,
    ):
        assert service.stderr is not None
        message = next(line for line in service.stderr if "standard output" in line)
        assert message.startswith("cloze: note: standard output cannot be written; base at http")
        address = message.partition(" at ")[2].split()[0]
        assert httpx.get(f"{address}/health").status_code == 200
        service.terminate()
        rest = service.communicate(timeout=60)[1]
    assert (service.returncode, rest) == (0, "")
