"""A PostgreSQL server of our own on a Unix socket in a temporary folder, for as long as a block."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
"""Where Debian has them; elsewhere they are on the PATH."""
START_S = 60
USER = "edgepack"


def require_postgres() -> Path:
    """Return the folder of PostgreSQL's programs; skip where there is none, and fail in CI."""
    found = shutil.which("initdb")
    if found or BINARIES:
        return Path(found).resolve().parent if found else BINARIES[-1]
    if os.environ.get("CI"):
        pytest.fail("PostgreSQL is not installed; CI must not skip these tests")
    pytest.skip("PostgreSQL is not installed")


@contextmanager
def postgres_server() -> Iterator[str]:
    """Start a server with one empty database, and give its URL. It trusts whoever sees its socket.

    It does not wait for the disk: what a test writes need not survive a power loss.
    """
    programs = require_postgres()
    # The path of a socket has at most 107 characters, which pytest's folders may take already.
    folder = Path(tempfile.mkdtemp(prefix="edgepack-pg-"))
    who = _unprivileged()
    try:
        if who:
            os.chown(folder, who.pw_uid, who.pw_gid)
        _run([programs / "initdb", "-D", folder / "data", "-U", USER, "-A", "trust", "-N"], who)
        with _started(programs, folder, who):
            yield f"postgresql://{USER}@/postgres?host={folder}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def stop_server(url: str) -> None:
    """Stop the server of a URL at once, as a crash does; its block goes on without."""
    folder = Path(url.rpartition("host=")[2])
    process = int((folder / "data/postmaster.pid").read_text().split()[0])
    os.kill(process, signal.SIGQUIT)
    while _answers(require_postgres(), folder):
        time.sleep(0.02)


@contextmanager
def started_again(url: str) -> Iterator[None]:
    """Start a server that was stopped, with what it had, and stop it at the end of the block."""
    with _started(require_postgres(), Path(url.rpartition("host=")[2]), _unprivileged()):
        yield


@contextmanager
def postgres_databases() -> Iterator[Callable[[], str]]:
    """Start a server, and give what gives the URL of another empty database each time."""
    import psycopg

    numbers = itertools.count()
    with postgres_server() as url:

        def another() -> str:
            name = f"db{next(numbers)}"
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {name}")
            return url.replace("/postgres?", f"/{name}?")

        yield another


@contextmanager
def _started(programs: Path, folder: Path, who: pwd.struct_passwd | None) -> Iterator[None]:
    settings = {
        "listen_addresses": "",
        "unix_socket_directories": str(folder),
        "fsync": "off",
        "max_connections": "20",
        "shared_buffers": "16MB",
    }
    argv = [programs / "postgres", "-D", folder / "data"]
    argv += [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    with (folder / "log").open("wb") as log:
        words = [str(word) for word in argv]
        server = subprocess.Popen(words, stdout=log, stderr=log, cwd="/", **_as(who))
    try:
        end = time.monotonic() + START_S
        while not _answers(programs, folder) and time.monotonic() < end:
            assert server.poll() is None, (folder / "log").read_text()
            time.sleep(0.02)
        assert _answers(programs, folder), (folder / "log").read_text()
        yield
    finally:
        server.send_signal(signal.SIGQUIT)  # at once: nothing of it is kept
        server.wait(START_S)


def _answers(programs: Path, folder: Path) -> bool:
    argv = [str(programs / "pg_isready"), "-q", "-h", str(folder)]
    return subprocess.run(argv, check=False).returncode == 0


def _run(argv: list[object], who: pwd.struct_passwd | None) -> None:
    words = [str(word) for word in argv]
    done = subprocess.run(words, capture_output=True, check=False, cwd="/", **_as(who))
    assert done.returncode == 0, done.stderr.decode()


def _unprivileged() -> pwd.struct_passwd | None:
    """Return whom the server runs as: it refuses root, and others cannot be anybody else."""
    return None if os.getuid() else pwd.getpwnam("nobody")


def _as(who: pwd.struct_passwd | None) -> dict[str, Any]:
    return {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": []} if who else {}
