"""Finds what podman and docker keep of the user: passwords and tokens for registries.

Sources: containers-auth.json(5) of containers/image, and docker's "credential helpers" (docker
login, "Credential helper protocol"). The first file that knows the registry counts, and in a file
the most specific key: ``host/path/repository`` before ``host/path`` before ``host``.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgepack.base.processes import run_program
from edgepack.errors import ToolError
from edgepack.registry.reference import Reference

HELPER_S = 60.0
_DOCKER_HUB = "https://index.docker.io/v1/"
"""What docker calls docker.io in its file."""
_IDENTITY = "<token>"
"""The user that a helper names where the secret is an identity token."""


@dataclass(frozen=True)
class Credentials:
    """What a registry is shown; it prints as its user alone."""

    user: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)
    """A refresh token of OAuth 2, which stands for user and password."""

    @property
    def basic(self) -> str:
        """The value of an ``Authorization`` header."""
        pair = f"{self.user}:{self.password}".encode()
        return f"Basic {base64.b64encode(pair).decode('ascii')}"


def find_credentials(reference: Reference) -> Credentials | None:
    """Return what the user's files have for a repository; None if they have nothing.

    Raises:
        ToolError: A file that counts is broken, or a helper that it names is missing or failed.
    """
    for path in _list_files():
        if path.is_file() and (found := _find_in(path, reference)) is not None:
            return found
    return None


def _list_files() -> Iterator[Path]:
    if named := os.environ.get("REGISTRY_AUTH_FILE"):
        yield Path(named)
        return
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(runtime) / "containers" / "auth.json"
    config = os.environ.get("XDG_CONFIG_HOME")
    yield (Path(config) if config else Path.home() / ".config") / "containers" / "auth.json"
    docker = os.environ.get("DOCKER_CONFIG")
    yield (Path(docker) if docker else Path.home() / ".docker") / "config.json"


def _find_in(path: Path, reference: Reference) -> Credentials | None:
    try:
        content = json.loads(path.read_bytes())
        helpers, auths = (_get_table(content, key) for key in ("credHelpers", "auths"))
        store = content.get("credsStore")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise _make_file_error(path) from error
    for key in _list_keys(reference):
        if isinstance(helper := helpers.get(key), str):
            return _ask_helper(helper, key)
        if isinstance(entry := auths.get(key), dict) and (found := _read_entry(path, entry)):
            return found
    if isinstance(store, str) and store:
        for key in _list_hosts(reference):
            if found := _ask_helper(store, key):
                return found
    return None


def _get_table(content: dict[str, Any], key: str) -> dict[str, Any]:
    """Return a table, whose keys lose the scheme and path that old versions of docker write."""
    table = content.get(key) or {}
    return {_normalize(name): value for name, value in table.items()}


def _normalize(key: str) -> str:
    if key == _DOCKER_HUB:
        return key
    bare = re.sub(r"^https?://", "", key)
    return re.sub(r"/v[12]/?$|/$", "", bare)


def _list_hosts(reference: Reference) -> list[str]:
    return [reference.host, *([_DOCKER_HUB] if reference.host == "docker.io" else [])]


def _list_keys(reference: Reference) -> Iterator[str]:
    words = reference.repository.split("/")
    for count in range(len(words), 0, -1):
        yield "/".join((reference.host, *words[:count]))
    yield from _list_hosts(reference)


def _read_entry(path: Path, entry: dict[str, Any]) -> Credentials | None:
    """Return what an entry has; docker leaves an empty one where a helper has the password."""
    token = entry.get("identitytoken")
    if isinstance(token, str) and token:
        return Credentials(identity_token=token)
    auth = entry.get("auth")
    if not isinstance(auth, str) or not auth:
        return None
    try:
        pair = base64.b64decode(auth, validate=True).decode()
    except (binascii.Error, ValueError):
        pair = ""
    user, colon, password = pair.partition(":")
    if not colon:
        # Without what was read: it may be half of a password.
        raise _make_file_error(path) from None
    return Credentials(user, password.rstrip("\0"))


def _ask_helper(name: str, key: str) -> Credentials | None:
    """Return what ``docker-credential-NAME get`` has; None if it says that it has nothing."""
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name) or not (
        program := shutil.which(f"docker-credential-{name}")
    ):
        raise ToolError(
            f"the credentials for {key} are kept by docker-credential-{name}, not found here",
            hint="install it and put it on PATH, or log in again: podman login, docker login",
        )
    result = run_program([program, "get"], timeout_s=HELPER_S, input_bytes=key.encode())
    if result.exit_code:
        if b"credentials not found" in result.stdout + result.stderr:
            return None
        # Without its output, which may hold a secret.
        raise ToolError(
            f"docker-credential-{name} failed for {key} with exit code {result.exit_code}",
            hint=f"ask it yourself: echo {key} | docker-credential-{name} get",
        )
    try:
        found = json.loads(result.stdout)
        user, secret = found["Username"], found["Secret"]
    except (ValueError, KeyError, TypeError, RecursionError):
        user = secret = None
    if not isinstance(user, str) or not isinstance(secret, str):
        raise ToolError(
            f"docker-credential-{name} answers for {key} what is no user and secret",
            hint="log in again: podman login, docker login",
        ) from None
    return Credentials(identity_token=secret) if user == _IDENTITY else Credentials(user, secret)


def _make_file_error(path: Path) -> ToolError:
    return ToolError(
        f"{str(path)!r} is no file of credentials as podman and docker write them",
        hint="log in again: podman login, docker login, skopeo login",
        where=str(path),
    )
