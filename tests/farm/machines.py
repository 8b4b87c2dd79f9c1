"""A machine of the farm: an SSH server in namespaces of its own, which can be switched off.

Its first process is the server. Killing that ends everything on it and takes its cable out, as
pulling the plug does: nobody is told. Each start has a boot id of its own, for leases end with a
boot.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.farm.ground import BRIDGE, call
from tests.lab.board import pids_in
from tests.support.servers.loopback import wait_until

START_S = 30.0
END_S = 15.0
PORT = 22

# Arguments: a file for the boot id; the folder that commands see as /, or "/"; the address; then
# the server's command. "ready" says that the namespaces are there; the line that comes back, that
# the cable is.
_START = """
boot=$1 root=$2 address=$3
shift 3
mount -t proc proc /proc
cat /proc/sys/kernel/random/uuid >"$boot"
mount --bind "$boot" /proc/sys/kernel/random/boot_id
if [ "$root" != / ]; then
  mount --bind /dev/null "$root/dev/null"
  mount -t proc proc "$root/proc"
  mount --bind "$boot" "$root/proc/sys/kernel/random/boot_id"
  for name in passwd group shadow; do
    [ ! -e "$root/etc/$name" ] || mount --bind "$root/etc/$name" "/etc/$name"
  done
fi
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/sshd
echo ready
read -r _
ip link set lo up
ip address add "$address/16" dev eth0
ip link set eth0 up
exec "$@"
"""


class Machine:
    """It is off until :meth:`start`.

    Args:
        name: Its host name.
        address: On the farm's network.
        cable: The name of its cable's end here.
        folder: Of its own.
        argv: Starts its server.
        root: What its commands see as ``/``.
    """

    def __init__(
        self, name: str, address: str, cable: str, folder: Path, argv: Sequence[str], root: Path
    ) -> None:
        self.name = name
        self.address = address
        self.cable = cable
        self.folder = folder
        self._argv = list(argv)
        self._root = root
        self._first: subprocess.Popen[bytes] | None = None
        self._namespace = ""

    @property
    def on(self) -> bool:
        """Whether it runs."""
        return self._first is not None

    def start(self) -> None:
        """Switch it on, and wait until its server answers."""
        log = (self.folder / "log").open("ab")
        argv = ["unshare", "--net", "--mount", "--pid", "--uts"]
        argv += ["--fork", "--kill-child", "sh", "-euc", _START, "sh"]
        argv += [str(self.folder / "boot_id"), str(self._root), self.address, *self._argv]
        pipe = subprocess.PIPE
        with log:
            first = subprocess.Popen(
                argv, stdin=pipe, stdout=pipe, stderr=log, start_new_session=True
            )
        assert first.stdin is not None
        assert first.stdout is not None
        if first.stdout.readline() != b"ready\n":
            raise RuntimeError(f"{self.name} did not start: {self._last_words()}")
        self._namespace = str(Path(f"/proc/{first.pid}/ns/pid_for_children").readlink())
        self._first = first
        # The same network card at each start, or neighbours would go on sending to the old one.
        card = ":".join(f"{int(part):02x}" for part in f"2.0.{self.address}".split("."))
        peer = ["peer", "name", "eth0", "address", card, "netns", str(first.pid)]
        call("ip", "link", "add", self.cable, "type", "veth", *peer)
        call("ip", "link", "set", self.cable, "master", BRIDGE, "up")
        first.stdin.write(b"go\n")
        first.stdin.flush()
        if not wait_until(self._answers, START_S):
            raise RuntimeError(f"{self.name} does not answer: {self._last_words()}")

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self.address, PORT), timeout=2.0) as connection:
                return connection.recv(4) == b"SSH-"
        except OSError:
            return False

    def _last_words(self) -> str:
        lines = (self.folder / "log").read_text(errors="replace").splitlines()
        return " | ".join(lines[-5:]) or "it said nothing"

    def stop(self) -> None:
        """Switch it off at once."""
        if self._first is None:
            return
        self._first.kill()
        self._first.communicate()
        self._first = None
        if not wait_until(lambda: not pids_in(self._namespace), END_S):
            raise RuntimeError(f"processes of {self.name} did not end")
        # It goes with the other end, but the kernel takes its time to tidy up a network.
        argv = ["ip", "link", "delete", self.cable]
        subprocess.run(argv, check=False, capture_output=True)
        if not wait_until(lambda: f"{self.cable}:" not in list_links(), END_S):
            raise RuntimeError(f"the cable of {self.name} is still there")

    @property
    def first_pid(self) -> int:
        """Of its server."""
        return min(pids_in(self._namespace))

    def programs(self) -> list[int]:
        """Return the processes on it beside its server, those of connections included."""
        if not self.on:
            return []
        pids = sorted(pids_in(self._namespace))
        return pids[1:]

    def signal_all(self, number: signal.Signals) -> None:
        """Send a signal to all that runs on it."""
        for pid in pids_in(self._namespace):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def cut_link(self) -> None:
        """Take its cable out; no end is told."""
        call("ip", "link", "set", self.cable, "down")

    def mend_link(self) -> None:
        """Put its cable in."""
        if self.on:
            call("ip", "link", "set", self.cable, "up")

    def slow_link(self, rate: str) -> None:
        """Let no more through to it than that."""
        tail = ("root", "tbf", "rate", rate, "burst", "4kb", "latency", "400ms")
        call("tc", "qdisc", "replace", "dev", self.cable, *tail)

    def free_link(self) -> None:
        """Let everything through again."""
        if self.on:
            argv = ["tc", "qdisc", "delete", "dev", self.cable, "root"]
            subprocess.run(argv, check=False, capture_output=True)  # a new cable has no limit


def list_links() -> list[str]:
    """Return the names of the network's links here, each with a colon."""
    return [line.split()[0] for line in Path("/proc/net/dev").read_text().splitlines()]


def read_start_time(pid: int) -> str:
    """Return when a process was started, in the kernel's ticks: numbers are given again."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def say(text: str) -> None:
    """Print a line with the time of day."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)
