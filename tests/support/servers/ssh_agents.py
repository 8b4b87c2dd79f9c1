"""A real ssh-agent of a test's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.servers.loopback import wait_until


@contextmanager
def running_agent() -> Iterator[str]:
    """Start an agent without keys, and give the socket that it answers at."""
    if shutil.which("ssh-agent") is None:
        pytest.skip("there is no ssh-agent")
    # Sockets have short names: a test's own folder has too long a one on some systems.
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/agent"
        child = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
        try:
            # The socket is there before the agent listens.
            assert wait_until(lambda: _answers(path))
            yield path
        finally:
            child.terminate()
            child.wait()


def _answers(path: str) -> bool:
    """Return whether an agent lists its keys, or says that it has none (exit code 1)."""
    environment = {**os.environ, "SSH_AUTH_SOCK": path}
    argv = ["ssh-add", "-l"]
    return subprocess.run(argv, env=environment, capture_output=True, check=False).returncode < 2
