"""Credentials as podman and docker keep them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from edgepack.errors import ToolError
from edgepack.registry.credentials import Credentials, find_credentials
from edgepack.registry.reference import Reference

SECRET = "s3cr3t-word"


def entry(user: str, password: str = SECRET) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


def find(host: str = "reg.example.com", repository: str = "acme/models/tiny") -> Credentials | None:
    return find_credentials(Reference(host, repository))


@pytest.fixture
def podman(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "DOCKER_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    path = own_home / ".config" / "containers" / "auth.json"
    path.parent.mkdir(parents=True)
    return path


def write(path: Path, **content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def test_credentials_when_no_file_has_any_are_none(podman: Path):
    assert find() is None
    write(podman, auths={"other.example.com": entry("alice")})
    assert find() is None


def test_credentials_when_keys_have_paths_are_of_the_most_specific(podman: Path):
    users = {
        "reg.example.com": "host",
        "reg.example.com/acme": "acme",
        "reg.example.com/acme/models/tiny": "tiny",
        "reg.example.com/acme/mod": "no folder",
    }
    write(podman, auths={key: entry(user) for key, user in users.items()})
    assert (find() or Credentials()).user == "tiny"
    assert (find(repository="acme/models/other") or Credentials()).user == "acme"
    assert (find(repository="acmes") or Credentials()).user == "host"


def test_credentials_when_several_files_have_some_are_of_the_first(
    podman: Path, own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write(own_home / ".docker" / "config.json", auths={"https://reg.example.com/v1/": entry("d")})
    assert (find() or Credentials()).user == "d"
    write(podman, auths={"reg.example.com": entry("p")})
    assert (find() or Credentials()).user == "p"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    write(tmp_path / "containers" / "auth.json", auths={"reg.example.com": entry("r")})
    assert (find() or Credentials()).user == "r"
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "own.json"))
    assert find() is None
    write(tmp_path / "own.json", auths={"reg.example.com": entry("own")})
    assert (find() or Credentials()).user == "own"


def test_credentials_when_a_token_is_kept_are_that_token(podman: Path):
    write(podman, auths={"reg.example.com": {"auth": "", "identitytoken": SECRET}})
    assert find() == Credentials(identity_token=SECRET)


def test_credentials_when_they_are_shown_hide_the_secret():
    found = Credentials("alice", SECRET, SECRET)
    assert SECRET not in f"{found!r} {found}"
    assert base64.b64decode(found.basic.removeprefix("Basic ")).decode() == f"alice:{SECRET}"


@pytest.mark.parametrize(
    "content", ["no JSON", "[]", '{"auths": {"reg.example.com": {"auth": "?"}}}']
)
def test_credentials_when_a_file_is_broken_say_which(podman: Path, content: str):
    podman.write_text(content)
    with pytest.raises(ToolError, match="no file of credentials") as error:
        find()
    assert str(podman) in str(error.value)


def test_credentials_when_half_of_a_pair_is_there_do_not_print_it(podman: Path):
    write(podman, auths={"reg.example.com": {"auth": base64.b64encode(SECRET.encode()).decode()}})
    with pytest.raises(ToolError) as error:
        find()
    assert SECRET not in str(error.value)
    assert error.value.__cause__ is None


def put_helper(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(exist_ok=True)
    program = folder / f"docker-credential-{name}"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


ANSWERS = """read host; [ "$1 $host" = "get reg.example.com" ] || exit 9
echo '{"ServerURL": "x", "Username": "USER", "Secret": "SECRET"}'""".replace("SECRET", SECRET)


@pytest.mark.parametrize(
    "content", [{"credHelpers": {"reg.example.com": "fake"}}, {"credsStore": "fake"}]
)
def test_credentials_when_a_helper_keeps_them_are_asked_of_it(
    content: Any, podman: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write(podman, auths={"reg.example.com": {}}, **content)
    put_helper(tmp_path / "bin", "fake", ANSWERS.replace("USER", "alice"), monkeypatch)
    assert find() == Credentials("alice", SECRET)
    put_helper(tmp_path / "bin", "fake", ANSWERS.replace("USER", "<token>"), monkeypatch)
    assert find() == Credentials(identity_token=SECRET)


def test_credentials_when_a_helper_has_none_or_fails_say_so_without_its_output(
    podman: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write(podman, credHelpers={"reg.example.com": "fake"})
    with pytest.raises(ToolError, match="docker-credential-fake, not found"):
        find()
    nothing = "echo credentials not found in native keychain; exit 1"
    put_helper(tmp_path / "bin", "fake", nothing, monkeypatch)
    assert find() is None
    for script, said in ((f"echo {SECRET}; exit 3", "exit code 3"), (f"echo {SECRET}", "no user")):
        put_helper(tmp_path / "bin", "fake", script, monkeypatch)
        with pytest.raises(ToolError, match=said) as error:
            find()
        assert SECRET not in str(error.value)


@pytest.mark.parametrize("name", ["../evil", "a b", "x;touch y", ""])
def test_credentials_when_a_helpers_name_is_a_path_do_not_run_it(
    name: str, podman: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    evil = tmp_path / "docker-credential-.." / "evil"
    evil.parent.mkdir()
    evil.write_text(f"#!/bin/sh\n{ANSWERS}\n")
    evil.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    write(podman, credHelpers={"reg.example.com": name})
    with pytest.raises(ToolError, match="not found here"):
        find()
