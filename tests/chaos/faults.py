"""One fault run: a push that is disturbed, and what has to hold after it.

A run begins with a device that has an old release, pushes a new one while something breaks, and
then demands that ``current`` is a whole release that was pushed, that the next push succeeds, and
that nothing is left running. All that is random comes from the seed and the run's number.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Literal, Self

from edgepack.bundle import MANIFEST, load_bundle, verify
from edgepack.devices import Device
from edgepack.errors import EdgepackError
from fault_proxy import Direction, Fault, FaultProxy, Wire
from loopback import ssh_device, wait_until
from openssh_server import OpenSshServer
from pusher import Pushed, Pusher
from tiny_bundle import write_tiny_bundle

MARK = "EDGEPACK_CHAOS"
"""A variable of every process that runs on the device."""
LINK = Wire(bytes_per_s=4e6)
"""Slow enough that faults fall into every phase of a push."""
LIMIT_S = 60.0
"""A push, disturbed or not, that takes longer hangs."""
END_S = 20.0
"""How long what a push started may take to end."""
STALL_S = 0.7
DISK_BYTES = 64 << 20
DISK_INODES = 4000


@dataclass(frozen=True)
class Bundles:
    """Three versions of one project."""

    old: Path
    new: Path
    other: Path

    @classmethod
    def write(cls, folder: Path) -> Self:
        """Make them."""
        return cls(
            old=write_tiny_bundle(folder / "old", size=8),
            new=write_tiny_bundle(folder / "new", size=56),
            other=write_tiny_bundle(folder / "other", size=48),
        )


@dataclass(frozen=True)
class Outcome:
    """What a run found."""

    number: int
    kind: str
    pushes: list[Pushed]
    ended: Literal["old", "new", "other", "corrupted"]
    """What ``current`` was after the disturbed push."""
    problems: list[str] = field(default_factory=list)


def release_of(bundle: Path) -> str:
    """Return the name that a device gives a bundle."""
    return load_bundle(bundle).digest[:16]


def on_server(server: OpenSshServer, root: Path, port: int | None = None) -> Device:
    """Return the device whose root is here, with this interpreter: ``python3`` may be a script."""
    place = {"root": str(root), "port": port or server.port}
    return ssh_device(server, **place, python=sys.executable)


class Lab:
    """A device with an old release, and two clients; a context manager. One run at a time.

    Args:
        folder: A folder of its own.
        bundles: Shared by all labs.
        name: Tells this lab's processes from others'.
    """

    def __init__(self, folder: Path, bundles: Bundles, name: str) -> None:
        self.folder = folder
        self.bundles = bundles
        self.environment = {MARK: name}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.server = stack.enter_context(OpenSshServer(self.folder / "sshd", self.environment))
            self.clients = [stack.enter_context(Pusher()) for _ in range(2)]
            self._prepare()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _prepare(self) -> None:
        """Push the old release, and learn how long a push takes and how many bytes pass."""
        first = self.push(self.bundles.old, self.device(self.folder / "base"))
        self.copy_base(self.folder / "root")
        with FaultProxy(self.server.port, to_server=LINK, to_client=LINK) as proxy:
            second = self.push(self.bundles.new, self.device(port=proxy.port))
        if not (first.ok and second.ok):
            raise RuntimeError(f"an undisturbed push failed: {first} {second}")
        self.push_s = second.seconds
        self.passed = proxy.forwarded

    def device(self, root: Path | None = None, port: int | None = None) -> Device:
        """Return the device, reached directly or through a proxy's port."""
        root = root or self.folder / "root"
        return on_server(self.server, root, port)

    def push(self, bundle: Path, device: Device) -> Pushed:
        """Push and return how it went."""
        self.clients[0].start(bundle, device)
        return self.clients[0].result(LIMIT_S)

    def copy_base(self, root: Path) -> None:
        """Make ``root`` a device with the old release."""
        shutil.rmtree(root, ignore_errors=True)
        subprocess.run(["cp", "-a", str(self.folder / "base"), str(root)], check=True)

    def programs(self) -> list[int]:
        """Return the processes that run on the device."""
        wanted = f"{MARK}={self.environment[MARK]}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found


@dataclass
class Run:
    """What a fault may use: the lab, its own random numbers, and where the device's root lies."""

    lab: Lab
    random: Random
    root: Path
    number: int

    @property
    def device(self) -> Device:
        """The device without a proxy."""
        return self.lab.device(self.root)

    def moment(self) -> float:
        """Return a moment in the push, in seconds from its start."""
        return self.random.uniform(0.0, self.lab.push_s * 1.05)

    def place(self, kind: Literal["cut", "corrupt", "stall"]) -> Fault:
        """Return a fault at a random byte of a random direction."""
        direction: Direction = self.random.choice(["to-server", "to-client"])
        return Fault(kind, direction, self.random.randrange(self.lab.passed[direction]))


def one_run(lab: Lab, seed: int, number: int, kind: str) -> Outcome:
    """Do one run and say what it found."""
    random = Random(f"{seed}:{number}")
    place = on_small_disk if kind in ON_SMALL_DISK else on_plain_disk
    problems: list[str] = []
    with place(lab) as root:
        run = Run(lab, random, root, number)
        with KINDS[kind](run) as pushes:
            # Here the fault is over but for what lasts: a half-open link is still half-open.
            ended = find_current(lab, root, problems)
            after = lab.push(lab.bundles.new, run.device)
            if not after.ok:
                problems.append(f"the next push failed: {after}")
            elif find_current(lab, root, problems) != "new":
                problems.append("the next push did not make its release current")
        if not wait_until(lambda: not lab.programs(), END_S):
            problems.append(f"left running: {[command_line(pid) for pid in lab.programs()]}")
            end_all(lab)
    problems += [f"the client crashed: {each.crash}" for each in pushes if each.crash]
    if kind in UNDISTURBED:
        problems += [f"an undisturbed push failed: {each}" for each in pushes if each.error]
    return Outcome(number, kind, pushes, ended, problems)


def find_current(
    lab: Lab, root: Path, problems: list[str]
) -> Literal["old", "new", "other", "corrupted"]:
    """Return which release is current, after hashing all of it against its manifest."""
    current = root / "tiny" / "current"
    try:
        release = verify(current.resolve(strict=True))
        text = (current / MANIFEST).read_bytes()
    except (EdgepackError, OSError) as error:
        problems.append(f"current is not whole: {error}")
        return "corrupted"
    for name in ("old", "new", "other"):
        bundle: Path = getattr(lab.bundles, name)
        if text == (bundle / MANIFEST).read_bytes():
            if current.readlink().name == release.digest[:16]:
                return name
            break
    problems.append(f"current is no release that was pushed: {current.readlink()}")
    return "corrupted"


def command_line(pid: int) -> str:
    """Return the first 200 characters of a process's command line."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
    return ""


def end_all(lab: Lab) -> None:
    """Kill what is left on the device, so that the next run begins clean."""
    for pid in lab.programs():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def on_plain_disk(lab: Lab) -> Iterator[Path]:
    """Give a root with the old release."""
    root = lab.folder / "root"
    lab.copy_base(root)
    yield root


@contextmanager
def on_small_disk(lab: Lab) -> Iterator[Path]:
    """Give a root with the old release on a file system of its own."""
    disk = lab.folder / "disk"
    disk.mkdir(exist_ok=True)
    options = f"size={DISK_BYTES},nr_inodes={DISK_INODES}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], check=True)
    try:
        lab.copy_base(disk / "root")
        yield disk / "root"
    finally:
        end_all(lab)
        subprocess.run(["umount", str(disk)], check=True)


def remount(root: Path, options: str) -> bool:
    """Change a small disk; say whether the kernel did."""
    argv = ["mount", "-o", f"remount,{options}", str(root.parent)]
    return subprocess.run(argv, check=False, capture_output=True).returncode == 0


def can_mount() -> bool:
    """Say whether this process may make file systems."""
    status = Path("/proc/self/status").read_text()
    capabilities = int(status.partition("CapEff:")[2].split()[0], 16)
    return bool(capabilities >> 21 & 1)  # CAP_SYS_ADMIN


@contextmanager
def link(run: Run, fault: Fault | None = None, stall_s: float = LIMIT_S) -> Iterator[Pusher]:
    """Start pushing the new release over the slow link."""
    client = run.lab.clients[0]
    with FaultProxy(run.lab.server.port, to_server=LINK, to_client=LINK, fault=fault) as proxy:
        client.start(run.lab.bundles.new, run.lab.device(run.root, proxy.port), stall_s)
        yield client


@contextmanager
def client_killed(run: Run) -> Iterator[list[Pushed]]:
    with link(run) as client:
        time.sleep(run.moment())
        client.kill()
    yield []


@contextmanager
def agent_killed(run: Run) -> Iterator[list[Pushed]]:
    with link(run) as client:
        time.sleep(run.moment())
        while client.running:
            if pids := run.lab.programs():
                with suppress(ProcessLookupError):
                    os.kill(run.random.choice(pids), signal.SIGKILL)
                break
        result = client.result(LIMIT_S)
    yield [result]


@contextmanager
def sshd_killed(run: Run) -> Iterator[list[Pushed]]:
    with link(run) as client:
        time.sleep(run.moment())
        run.lab.server.drop_connections()
        result = client.result(LIMIT_S)
    yield [result]


@contextmanager
def link_cut(run: Run) -> Iterator[list[Pushed]]:
    with link(run, run.place("cut")) as client:
        result = client.result(LIMIT_S)
    yield [result]


@contextmanager
def byte_corrupted(run: Run) -> Iterator[list[Pushed]]:
    with link(run, run.place("corrupt")) as client:
        result = client.result(LIMIT_S)
    yield [result]


@contextmanager
def link_half_open(run: Run) -> Iterator[list[Pushed]]:
    """The device does not learn that the client has given up while the next one pushes."""
    with link(run, run.place("stall"), STALL_S) as client:
        yield [client.result(LIMIT_S)]


@contextmanager
def disk_full(run: Run) -> Iterator[list[Pushed]]:
    needed = sum(path.stat().st_size for path in run.lab.bundles.new.rglob("*"))

    def limit(disk: os.statvfs_result) -> str:
        used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize
        return f"size={used + run.random.randrange(needed)}"

    yield [push_while_disk_shrinks(run, limit, f"size={DISK_BYTES}")]


@contextmanager
def out_of_inodes(run: Run) -> Iterator[list[Pushed]]:
    needed = len(list(run.lab.bundles.new.rglob("*")))

    def limit(disk: os.statvfs_result) -> str:
        return f"nr_inodes={disk.f_files - disk.f_ffree + run.random.randrange(needed)}"

    yield [push_while_disk_shrinks(run, limit, f"nr_inodes={DISK_INODES}")]


def push_while_disk_shrinks(
    run: Run, limit: Callable[[os.statvfs_result], str], back: str
) -> Pushed:
    """Push to a disk that has little left, from the start or from a moment after it."""
    with link(run) as client:
        time.sleep(run.random.choice([0.0, run.moment()]))
        while client.running and not remount(run.root, limit(os.statvfs(run.root))):
            pass  # more was written than there would have been place for
        result = client.result(LIMIT_S)
    if not remount(run.root, back):
        raise RuntimeError(f"mount -o remount,{back} failed")
    return result


@contextmanager
def read_only(run: Run) -> Iterator[list[Pushed]]:
    """From before the push, or from the first moment in it at which no file is open to write."""
    client = run.lab.clients[0]
    with link(run):
        time.sleep(run.random.choice([0.0, run.moment()]))
        while client.running and not remount(run.root, "ro"):
            time.sleep(0.002)
        result = client.result(LIMIT_S)
    remount(run.root, "rw")
    yield [result]


@contextmanager
def files_limited(run: Run) -> Iterator[list[Pushed]]:
    """No file may grow beyond a size: writing fails in the middle of one, as on a full disk."""
    biggest = max(path.stat().st_size for path in run.lab.bundles.new.rglob("*"))
    limit = ["prlimit", f"--fsize={run.random.randrange(biggest)}"]
    folder = run.lab.folder / "limited"
    with OpenSshServer(folder, run.lab.environment, under=limit) as server:
        device = on_server(server, run.root)
        result = run.lab.push(run.lab.bundles.new, device)
    yield [result]


@contextmanager
def two_at_once(run: Run, second: Path | None = None) -> Iterator[list[Pushed]]:
    clients = run.lab.clients
    clients[0].start(run.lab.bundles.new, run.device)
    time.sleep(run.random.choice([0.0, run.moment()]))
    clients[1].start(second or run.lab.bundles.other, run.device)
    yield [client.result(LIMIT_S) for client in clients]


@contextmanager
def pushed_twice(run: Run) -> Iterator[list[Pushed]]:
    with two_at_once(run, run.lab.bundles.new) as pushes:
        yield pushes


KINDS: dict[str, Callable[[Run], AbstractContextManager[list[Pushed]]]] = {
    "client killed": client_killed,
    "agent killed": agent_killed,
    "sshd killed": sshd_killed,
    "link cut": link_cut,
    "byte corrupted": byte_corrupted,
    "link half-open": link_half_open,
    "file size limited": files_limited,
    "two clients": two_at_once,
    "pushed twice": pushed_twice,
    "disk full": disk_full,
    "out of inodes": out_of_inodes,
    "read-only disk": read_only,
}
ON_SMALL_DISK = {"disk full", "out of inodes", "read-only disk"}
"""They need a file system of their own, and so root."""
UNDISTURBED = {"two clients", "pushed twice"}
"""Nothing breaks: every push has to succeed."""
