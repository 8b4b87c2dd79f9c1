"""What docs/team.md has a team start: the registry by its very settings, and the file's form."""

from __future__ import annotations

import shlex
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from edgepack.base.processes import run_program

from tests.support.servers.registry import PASSWORD, USER, make_htpasswd, running_registry
from tests.support.servers.tools import require_tool

DOCS = Path(__file__).resolve().parents[3] / "docs"
COMPOSE = DOCS / "team" / "compose.yaml"


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the page's commands make, for a host of another name."""
    require_tool("openssl")
    folder = tmp_path_factory.mktemp("secrets")
    make_htpasswd(folder)
    page = (DOCS / "team.md").read_text().replace("hub.lab", "localhost")
    [line] = [line for line in page.splitlines() if line.startswith("openssl req")]
    argv = shlex.split(line.replace("secrets/", f"{folder}/"))
    done = run_program(argv, timeout_s=60)
    assert not done.exit_code, done.last_lines
    return folder


@pytest.fixture(scope="module")
def host(secrets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    said = yaml.safe_load(COMPOSE.read_text())["services"]["registry"]["environment"]
    environment = {key: value.replace("/secrets", str(secrets)) for key, value in said.items()}
    folder = tmp_path_factory.mktemp("registry")
    with running_registry(folder, environment=environment) as registry:
        yield registry.host.replace("127.0.0.1", "localhost")


def ask(host: str, secrets: Path, password: str | None) -> int:
    manager = urllib.request.HTTPPasswordMgrWithDefaultRealm()
    if password is not None:
        manager.add_password(None, f"https://{host}/", USER, password)
    context = ssl.create_default_context(cafile=str(secrets / "registry.pem"))
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}),
        urllib.request.HTTPSHandler(context=context),
        urllib.request.HTTPBasicAuthHandler(manager),
    )
    try:
        with opener.open(f"https://{host}/v2/", timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_registry_when_started_as_the_compose_file_says_lets_in_whom_it_knows(
    host: str, secrets: Path
):
    assert ask(host, secrets, PASSWORD) == 200


@pytest.mark.parametrize("password", [None, "wrong"])
def test_registry_when_started_as_the_compose_file_says_lets_in_nobody_else(
    host: str, secrets: Path, password: str | None
):
    assert ask(host, secrets, password) == 401


def test_compose_file_when_held_against_the_specification_is_one():
    argv = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = run_program([*argv, str(COMPOSE)], timeout_s=60)
    assert not done.exit_code, done.text + done.last_lines
