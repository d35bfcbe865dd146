"""The files in deploy/ agree with the package: its flags, its limits, and its torch version."""

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from cloze.serve.settings import Limits

ROOT = Path(__file__).parents[2]
HELP = (ROOT / "src/cloze/cli/help/serve.txt").read_text("utf-8")
DRAINING = 10  # seconds beyond --timeout


def deployed(name: str) -> str:
    return (ROOT / "deploy" / name).read_text("utf-8")


def number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found is not None, pattern
    return int(found[1])


def test_the_image_has_a_torch_that_the_package_takes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = next(one for one in map(Requirement, project["dependencies"]) if one.name == "torch")
    found = re.search(r"torch==([\d.]+)", deployed("Dockerfile"))
    assert found is not None
    assert wanted.specifier.contains(found[1])


def test_the_image_is_built_from_included_files() -> None:
    let_in = {line[1:] for line in deployed("Dockerfile.dockerignore").splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", deployed("Dockerfile"), re.MULTILINE)
    names = {name for words in copied for name in words.split()}
    assert names == let_in
    assert all((ROOT / name).exists() for name in names)


def test_flags_are_those_of_the_command() -> None:
    for name in ("Dockerfile", "cloze.service", "nginx.conf"):
        text = deployed(name)
        lines = [line for line in text.replace("\\\n#", "").splitlines() if "cloze serve" in line]
        flags = {flag for line in lines for flag in re.findall(r"--[a-z-]+", line.partition("cloze serve")[2])}
        assert all(f"{flag} " in HELP for flag in flags), (name, flags)


def test_stop_timeouts_allow_draining() -> None:
    needed = Limits().timeout + DRAINING
    assert number(r"TimeoutStopSec=(\d+)", deployed("cloze.service")) >= needed
    assert number(r"--stop-timeout (\d+)", deployed("Dockerfile")) >= needed


def test_the_balancer_limits_exceed_those_of_the_service() -> None:
    text = deployed("nginx.conf")
    assert number(r"proxy_read_timeout (\d+)s", text) > Limits().timeout
    assert number(r"client_max_body_size (\d+)m", text) * 2**20 >= Limits().body
