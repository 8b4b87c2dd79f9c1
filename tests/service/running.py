"""A container of the image: an ordinary user, a root that is read only, no capability."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgepack.base.processes import ProgramResult, run_program

from tests.mobile.proofs import NotHeldError, require
from tests.service.served import run_checked

READY_S = 90.0
_ASK = """
import sys, urllib.error, urllib.request
path, kind = sys.argv[1:]
data = sys.stdin.buffer.read() or None
url = "http://127.0.0.1:8080" + path
request = urllib.request.Request(url, data, {"Content-Type": kind} if kind else {})
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
try:
    answer = opener.open(request, timeout=60)
except urllib.error.HTTPError as error:
    answer = error
sys.stdout.buffer.write(b"%d\\n" % answer.status + answer.read())
"""


def find_child(pid: int) -> int:
    """Return the process that a process has started."""
    until = time.monotonic() + READY_S
    while not (found := Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
        require(time.monotonic() < until, f"{pid} starts nothing")
        time.sleep(0.05)
    return int(found[0])


def make_config(root: Path, image: dict[str, Any], seccomp: dict[str, Any]) -> dict[str, Any]:
    """Return a runtime's config that compose.yaml asks for too."""
    uid, gid = map(int, image["User"].split(":"))
    tmpfs = [("/dev", "mode=755"), ("/dev/shm", "mode=1777"), ("/tmp", "mode=1777")]
    none: list[str] = []
    kinds = ("bounding", "effective", "inheritable", "permitted", "ambient")
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": uid, "gid": gid},
            "args": [*image["Entrypoint"], *image["Cmd"]],
            "env": image["Env"],
            "cwd": "/",
            "capabilities": dict.fromkeys(kinds, none),
            "noNewPrivileges": True,
        },
        "root": {"path": str(root), "readonly": True},
        "hostname": "served",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            *(
                {"destination": place, "type": "tmpfs", "source": "tmpfs", "options": [mode]}
                for place, mode in tmpfs
            ),
        ],
        "linux": {
            "namespaces": [{"type": each} for each in ("pid", "network", "ipc", "uts", "mount")],
            "seccomp": seccomp,
        },
    }


class Container:
    """A container that runs."""

    def __init__(self, work: Path, name: str, config: dict[str, Any]) -> None:
        work.mkdir()
        self.name, self.log = name, work / "log"
        self.words = ["runc", "--root", str(work / "state")]
        (work / "config.json").write_text(json.dumps(config))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*self.words, "run", "--bundle", str(work), name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def execute(self, argv: Sequence[str]) -> ProgramResult:
        """Run a program in it, as its user."""
        return run_program([*self.words, "exec", self.name, *argv], timeout_s=60)

    def wait_ready(self, health: Sequence[str]) -> None:
        """Return once its health check passes.

        Raises:
            NotHeldError: It ended, or takes too long.
        """
        until = time.monotonic() + READY_S
        while self.execute(health).exit_code:
            require(self.process.poll() is None, f"it ended: {self.log.read_text()}")
            require(time.monotonic() < until, f"it is never ready: {self.log.read_text()}")
            time.sleep(0.2)

    def ask(self, path: str, data: bytes = b"", kind: str = "") -> tuple[int, bytes]:
        """Return status and body of an answer, asked from the machine in its network."""
        pid = json.loads(run_checked([*self.words, "state", self.name]))["pid"]
        argv = ["nsenter", f"--net=/proc/{pid}/ns/net", sys.executable, "-I", "-c", _ASK]
        done = run_program([*argv, path, kind], timeout_s=90, input_bytes=data)
        if done.exit_code:
            raise NotHeldError(f"{path} is not answered:{done.last_lines}")
        status, _, body = done.stdout.partition(b"\n")
        return int(status), body

    def stop(self) -> int:
        run_checked([*self.words, "kill", self.name, "TERM"])
        return self.process.wait(60)


@contextmanager
def running(work: Path, config: dict[str, Any]) -> Iterator[Container]:
    """Give a container that is gone after the block."""
    container = Container(work, f"edgepack-{os.getpid()}-{work.name}", config)
    try:
        yield container
    finally:
        run_program([*container.words, "delete", "--force", container.name], timeout_s=60)
        container.process.wait(60)
