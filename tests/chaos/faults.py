"""One fault run: a push that is disturbed, and what has to hold after it.

A run begins with a device that has an old release, pushes a new one while something breaks, and
then demands that ``current`` is a whole release that was pushed, that the next push succeeds, that
every release is whole and the history unbroken, and that nothing is left behind: no process, and
after one more push no file of a push that broke. All that is random comes from the seed and the
run's number.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal

from edgepack.base.resources import find_ondevice_dir
from edgepack.bundle.manifest import MANIFEST
from edgepack.bundle.reading import verify
from edgepack.devices.inventory import Device
from edgepack.errors import EdgepackError

from tests.chaos.disks import (
    DISK_BYTES,
    DISK_INODES,
    can_cut_power,
    can_mount,
    commit_names,
    cut_power,
    on_image,
    on_plain_disk,
    on_small_disk,
    remount,
)
from tests.chaos.labs import LIMIT_S, LINK, Agent, Board, Lab, can_have, command_lines, on_server
from tests.support.servers.fault_proxy import Direction, Fault, FaultProxy
from tests.support.servers.loopback import wait_until
from tests.support.servers.openssh_server import OpenSshServer
from tests.support.servers.pusher import Pushed, Pusher

END_S = 60.0
"""How long what a push started may take to end: ``sync`` waits for all disks of this machine."""
STALL_S = 0.7
PATIENCE_S = 40.0
"""How long a push waits for a device: a length that was corrupted can make both sides wait."""
TRIES = 5
YEARS_S = 10 * 365 * 86400.0
FAKETIME = Path(f"/usr/lib/{os.uname().machine}-linux-gnu/faketime/libfaketime.so.1")
"""Where Debian's libfaketime is."""


@dataclass(frozen=True)
class Outcome:
    """What a run found."""

    number: int
    kind: str
    agent: Agent
    pushes: list[Pushed]
    ended: Literal["old", "new", "other", "corrupted"]
    """What ``current`` was after the disturbed push."""
    problems: list[str] = field(default_factory=list)


@dataclass
class Run:
    """What a fault may use: the lab, its board, random numbers, and where the board's root lies."""

    lab: Lab
    board: Board
    random: Random
    root: Path
    number: int
    promised: bool = False
    """Whether a push of the new release said that it was done, so that it has to be current."""

    @property
    def device(self) -> Device:
        """The device without a proxy."""
        return self.board.device(self.root)

    def moment(self) -> float:
        """Return a moment in the push, in seconds from its start."""
        return self.random.uniform(0.0, self.board.push_s * 1.05)

    def place(self, kind: Literal["cut", "corrupt", "stall"]) -> Fault:
        """Return a fault at a random byte of a random direction."""
        direction: Direction = self.random.choice(["to-server", "to-client"])
        return Fault(kind, direction, self.random.randrange(self.board.passed[direction]))


def one_run(lab: Lab, seed: int, number: int, kind: str, agent: Agent) -> Outcome:
    """Do one run and say what it found."""
    random = Random(f"{seed}:{number}")
    board = lab.board(agent)
    problems: list[str] = []
    with PLACES.get(kind, on_plain_disk)(lab, board) as root:
        run = Run(lab, board, random, root, number)
        with KINDS[kind](run) as pushes:
            # Here the fault is over but for what lasts: a half-open link is still half-open.
            ended = find_current(lab, root, problems)
            if run.promised and ended != "new":
                problems.append("a push was done, and its release is not current")
            after = lab.push(lab.bundles.new, run.device)
            if not after.ok:
                problems.append(f"the next push failed: {after}")
            elif find_current(lab, root, problems) != "new":
                problems.append("the next push did not make its release current")
        if not wait_until(lambda: not lab.programs(), END_S):
            problems.append(f"left running: {command_lines(lab.programs())}")
            lab.end_programs()
        problems += file_problems(run)
    problems += [f"the client crashed: {each.crash}" for each in pushes if each.crash]
    if kind in UNDISTURBED:
        problems += [f"an undisturbed push failed: {each}" for each in pushes if each.error]
    return Outcome(number, kind, agent, pushes, ended, problems)


def file_problems(run: Run) -> list[str]:
    """Return what is wrong with what lies on the device after the last push."""
    base = run.root / "tiny"
    state = drift().find_project_state(str(base))
    found = [f"not whole: {one}" for one in state["releases"] if one["differences"]]
    if state["history"]["broken_at"] is not None:
        found.append(f"the history is broken: {(base / 'history.jsonl').read_text()}")
    elif state["current"] != f"releases/{state['history']['current']}":
        found.append(f"{state['current']} is current, {state['history']['current']} by the history")
    if leftovers(base) and not any(tidied(run) for _ in range(TRIES)):
        left = [str(path.relative_to(base)) for path in leftovers(base)]
        found.append(f"{TRIES} more pushes left {left}")
    return found


def tidied(run: Run) -> bool:
    """Push once more, and say whether it left nothing of a push that broke."""
    time.sleep(0.5)  # a process that was killed has its number until its parent takes notice
    run.lab.push(run.lab.bundles.new, run.device)
    return not leftovers(run.root / "tiny")


def leftovers(base: Path) -> list[Path]:
    """Return the files and folders of pushes that broke, in a project's folder."""
    releases = [path.name for path in (base / "releases").iterdir()]
    known = {".lock", "cache", "chunks", "current", "history.jsonl", "releases"}
    return [
        *(path for path in base.iterdir() if path.name not in known),
        *(path for path in (base / "releases").iterdir() if not _RELEASE.fullmatch(path.name)),
        *(path for path in (base / "chunks").iterdir() if path.stem not in releases),
    ]


_RELEASE = re.compile(r"[0-9a-f]{16}")


def drift() -> Any:
    """Return the module that ``edgepack device verify`` runs on devices."""
    path = find_ondevice_dir() / "agent/edgepack_drift.py"
    spec = importlib.util.spec_from_file_location("edgepack_drift", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find_current(
    lab: Lab, root: Path, problems: list[str]
) -> Literal["old", "new", "other", "corrupted"]:
    """Return which release is current, after hashing all of it against its manifest."""
    current = root / "tiny" / "current"
    try:
        place = current.resolve(strict=True)  # once: a program that lost its link may still switch
        release = verify(place)
        text = (place / MANIFEST).read_bytes()
    except (EdgepackError, OSError) as error:
        problems.append(f"current is not whole: {error}")
        return "corrupted"
    for name in ("old", "new", "other"):
        bundle: Path = getattr(lab.bundles, name)
        if text == (bundle / MANIFEST).read_bytes():
            if place.name == release.digest[:16]:
                return name
            break
    problems.append(f"current is no release that was pushed: {place}")
    return "corrupted"


@contextmanager
def link(run: Run, fault: Fault | None = None, stall_s: float = PATIENCE_S) -> Iterator[Pusher]:
    """Start pushing the new release over the slow link."""
    client = run.lab.clients[0]
    with FaultProxy(run.board.server.port, to_server=LINK, to_client=LINK, fault=fault) as proxy:
        client.start(run.lab.bundles.new, run.board.device(run.root, proxy.port), stall_s)
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
        run.board.server.drop_connections()
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
    whole_s = 0.0 if run.board.agent == "python" else run.board.push_s  # of the push or a stall
    with link(run, run.place("stall"), STALL_S + 1.5 * whole_s) as client:
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
    with OpenSshServer(folder, run.board.environment, under=limit) as server:
        device = on_server(server, run.board.agent, run.root)
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


@contextmanager
def power_lost(run: Run) -> Iterator[list[Pushed]]:
    """At a moment of the push or right after it; half the time names had just been written."""
    with link(run) as client:
        done = None
        if run.random.random() < 0.3:
            done = client.result(LIMIT_S)
        else:
            time.sleep(run.moment())
        if run.random.random() < 0.5:
            commit_names(run.root)
        if done is None and not client.running:
            done = client.result(LIMIT_S)
        cut_power(run.lab, run.board, run.root)
        run.promised = done is not None and done.ok
        result = done or client.result(LIMIT_S)
    yield [result]


@contextmanager
def clock_stepped(run: Run) -> Iterator[list[Pushed]]:
    """The wall clock jumps by up to ten years while one client pushes, and another pushes then.

    Releases have times of clocks that were as wrong. The times of files that are written later come
    from the kernel, which knows nothing of the step.
    """
    for path in (run.root / "tiny" / "releases").iterdir():
        then = time.time() + run.random.uniform(-YEARS_S, YEARS_S)
        os.utime(path, (then, then))
    clock = run.lab.folder / "clock"
    clock.write_text("+0\n")
    environment = {
        **run.board.environment,
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }
    clients = run.lab.clients
    with (
        OpenSshServer(run.lab.folder / "stepped", environment) as server,
        FaultProxy(server.port, to_server=LINK, to_client=LINK) as proxy,
    ):
        device = on_server(server, run.board.agent, run.root, proxy.port)
        clients[0].start(run.lab.bundles.new, device)
        time.sleep(run.moment())
        step = run.lab.folder / "clock.new"
        step.write_text(f"{run.random.choice([-1, 1]) * run.random.uniform(3600, YEARS_S):+.0f}\n")
        step.replace(clock)
        device = on_server(server, run.board.agent, run.root)
        clients[1].start(run.lab.bundles.other, device)
        pushes = [client.result(LIMIT_S) for client in clients]
        yield pushes
    for path in Path("/dev/shm").glob("*faketime_*"):  # killed processes leave them
        if not Path(f"/proc/{path.name.rpartition('_')[2]}").exists():
            path.unlink(missing_ok=True)


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
    "power lost": power_lost,
    "clock step": clock_stepped,
}
PLACES = {
    "disk full": on_small_disk,
    "out of inodes": on_small_disk,
    "read-only disk": on_small_disk,
    "power lost": on_image,
}
"""Where the root of a kind lies if not on this machine's own disk."""
UNDISTURBED = {"two clients", "pushed twice", "clock step"}
"""Nothing breaks: every push has to succeed."""


def why_not(kind: str, agent: Agent) -> str:
    """Return what this machine lacks for a kind of fault on a kind of board; empty if nothing."""
    if not can_have(agent):
        return "busybox (apt-get install busybox-static)"
    if PLACES.get(kind) == on_small_disk and not can_mount():
        return "root"
    if PLACES.get(kind) == on_image and not can_cut_power():
        return "root, loop devices and mkfs.ext4 (apt-get install e2fsprogs)"
    if kind == "clock step" and not FAKETIME.exists():
        return "libfaketime (apt-get install libfaketime)"
    if kind == "clock step" and agent == "busybox":
        return "a busybox with shared libraries, whose clock can be another"
    return ""
