"""A process that pushes when it is told to: its imports are done, and it can be killed.

Run as a program it reads a JSON object a line (``bundle``, ``name``, ``entry``, ``stall_s``) and
answers each with another, a :class:`Pushed`.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from edgepack.devices.inventory import Device, SshEntry

from tests.support.doubles.peak_memory import peak_bytes


@dataclass(frozen=True)
class Pushed:
    """How a push went."""

    seconds: float
    """Of the whole push, connecting included."""
    bytes_sent: int = 0
    error: str = ""
    """What edgepack said; empty if it succeeded."""
    crash: str = ""
    """The traceback of an exception that is none of edgepack's."""
    peak_bytes: int = 0
    """The most memory that this process has had since its start."""

    @property
    def ok(self) -> bool:
        """Whether the push succeeded."""
        return not self.error and not self.crash


class Pusher:
    """The process, seen from outside; a context manager that ends it."""

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _start(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.support.servers.pusher"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[3],
        )
        self._answer(60.0)  # its imports are done

    def _end(self) -> None:
        self._child.kill()
        self._child.communicate()

    def start(self, bundle: Path, device: Device, stall_s: float = 60.0) -> None:
        """Begin a push that gives up after so long without an answer from the device."""
        order = {
            "bundle": str(bundle),
            "name": device.name,
            "entry": device.entry.model_dump(),
            "stall_s": stall_s,
        }
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(order).encode() + b"\n")
        self._child.stdin.flush()

    def result(self, within_s: float) -> Pushed:
        """Return how the push went; a process that hangs is replaced, which is a crash."""
        try:
            return Pushed(**self._answer(within_s))
        except (TimeoutError, ValueError) as error:
            self.kill()
            return Pushed(within_s, crash=f"no answer within {within_s:g} s: {error}")

    @property
    def running(self) -> bool:
        """Whether no answer has come yet."""
        return not self._poll(0.0)

    def kill(self) -> None:
        """Kill the process at once, and start another."""
        self._end()
        self._start()

    def _poll(self, within_s: float) -> bool:
        return bool(select.select([self._child.stdout], [], [], within_s)[0])

    def _answer(self, within_s: float) -> dict[str, Any]:
        if not self._poll(within_s):
            raise TimeoutError
        assert self._child.stdout is not None
        found: dict[str, Any] = json.loads(self._child.stdout.readline())
        return found


def main() -> None:
    """Answer orders until stdin ends."""
    # all that a push imports
    from edgepack.deploy.transfer import client, shell_agent
    from edgepack.devices.ssh import connect as ssh_connect
    from edgepack.devices.ssh import transport as ssh

    answers = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        print(json.dumps({}), file=answers, flush=True)
        for line in sys.stdin:
            order = json.loads(line)
            client.STALL_S = shell_agent.STALL_S = order["stall_s"]
            ssh.HANDSHAKE_S = ssh_connect.HANDSHAKE_S = min(20.0, 3 * order["stall_s"])
            device = Device(order["name"], SshEntry(**order["entry"]))
            pushed = _push(Path(order["bundle"]), device)
            answer = asdict(replace(pushed, peak_bytes=peak_bytes()))
            print(json.dumps(answer), file=answers, flush=True)


def _push(bundle: Path, device: Device) -> Pushed:
    from edgepack.deploy.transfer.client import PushAgent, send_release
    from edgepack.devices.transports import connect
    from edgepack.errors import EdgepackError

    began = time.perf_counter()
    try:
        with connect(device) as transport:
            pushed = send_release(PushAgent(bundle, device, transport))
    except EdgepackError as error:
        return Pushed(time.perf_counter() - began, error=f"{type(error).__name__}: {error.problem}")
    except Exception:  # noqa: BLE001  (the one who asked judges it)
        return Pushed(time.perf_counter() - began, crash=traceback.format_exc())
    return Pushed(time.perf_counter() - began, pushed.bytes_sent)


if __name__ == "__main__":
    main()
