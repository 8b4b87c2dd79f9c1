"""A board: a root file system in namespaces of its own, with SSH on a private network.

A board is one process tree with its own network, mounts and process ids. Killing its first
process, which also happens when the lab dies, lets the kernel end every process on the board,
unmount what it had mounted and remove its network, so there is nothing to take down by name.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.lab.host import LabError, run
from tests.lab.kinds import Kind
from tests.lab.rootfs import USER, unpack

START_S = 30.0
END_S = 15.0

# What a program reads of the processor. qemu 7.2 passes the host's file on, in which libcpuinfo
# finds no ARM; Debian's onnxruntime aborts then, and without /sys/devices/system/cpu. The last line
# is what tells edgepack that this is an x86 kernel. Source of the others: Linux's
# arch/arm64/kernel/cpuinfo.c; Cortex-A76.
_CPUINFO = """processor\t: 0
BogoMIPS\t: 108.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x4
CPU part\t: 0xd0b
CPU revision\t: 1

vendor_id\t: emulated
"""  # noqa: E501

# Arguments: the board's root, its address, sshd's configuration, its /proc/cpuinfo if it is another
# one than the host's. The host's sshd answers: run under the emulator it works too, but onnxruntime
# then crashes at import. Its accounts are the board's. "ready" says that the namespaces are there;
# the line that comes back, that the cable is.
_START = """
root=$1; address=$2; config=$3
mount -t proc proc /proc
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/sshd
for name in passwd group shadow; do mount --bind "$root/etc/$name" "/etc/$name"; done
if [ -n "$4" ]; then mount --bind "$4" "$root/proc/cpuinfo"; fi
mkdir -p "$root/sys/devices/system/cpu"
mount --bind -o ro /sys/devices/system/cpu "$root/sys/devices/system/cpu"
echo ready
read -r _
ip link set lo up
ip address add "$address" dev eth0
ip link set eth0 up
exec "$(command -v sshd)" -D -e -f "$config"
"""

_CONFIG = """
ListenAddress {address}
Port {port}
HostKey {host_key}
AuthorizedKeysFile {authorized_keys}
ChrootDirectory {root}
AllowUsers {user}
Subsystem sftp internal-sftp
PidFile none
StrictModes no
UsePAM no
UseDNS no
PasswordAuthentication no
KbdInteractiveAuthentication no
AllowTcpForwarding no
X11Forwarding no
PermitUserRC no
"""


@dataclass(frozen=True)
class Board:
    """A board that runs."""

    name: str
    kind: Kind
    address: str
    port: int
    root: Path
    """Its root file system, as the host sees it."""
    host_key_fingerprint: str
    """As ``ssh-keygen -l`` prints it."""
    first_pid: int
    """Of its SSH server; the first process on the board, by the host's counting."""
    pid_namespace: str

    @property
    def login(self) -> str:
        """What ``edgepack device add`` takes."""
        return f"{USER}@{self.address}"

    def programs(self) -> list[str]:
        """Return the command lines of all that runs on the board beside its SSH server."""
        pids = [pid for pid in pids_in(self.pid_namespace) if pid != self.first_pid]
        return [line for pid in pids if (line := _command_line(pid))]

    def routes(self) -> list[str]:
        """Return the board's routes."""
        return run("nsenter", f"--net=/proc/{self.first_pid}/ns/net", "ip", "route").splitlines()

    def is_idle(self, within_s: float) -> bool:
        """Say whether all programs on the board have ended in time."""
        deadline = time.monotonic() + within_s
        while self.programs() and time.monotonic() < deadline:
            time.sleep(0.1)
        return not self.programs()


@contextlib.contextmanager
def start_board(number: int, kind: Kind, tarball: Path, key: Path, work: Path) -> Iterator[Board]:
    """Start a board with a disk of its own; at the end, nothing of it is left but its folder.

    Args:
        number: From 1; decides its name, network (10.77.NUMBER.0/30) and port.
        kind: What it is.
        tarball: Its root file system.
        key: The private key that it lets in.
        work: Its folder is made here.

    Raises:
        LabError: It did not start.
    """
    name, network, port = f"lab-{chr(96 + number)}", f"10.77.{number}", 2200 + number
    folder = work / name
    folder.mkdir()
    unpack(tarball, folder / "root")
    fingerprint = _write_config(folder, f"{network}.2", port, key)
    cable = f"edgepack{number}"
    cores = sorted(os.sched_getaffinity(0))
    core = cores[number % len(cores)]
    with (
        (folder / "log").open("wb") as log,
        _first_process(folder, kind, f"{network}.2/30", core, log) as init,
    ):
        namespace = str(Path(f"/proc/{init.pid}/ns/pid_for_children").readlink())
        try:
            with _cable(cable, f"{network}.1/30", init.pid):
                _go(init)
                _wait_for_server(folder / "log", init)
                board = Board(
                    name=name,
                    kind=kind,
                    address=f"{network}.2",
                    port=port,
                    root=folder / "root",
                    host_key_fingerprint=fingerprint,
                    first_pid=min(pids_in(namespace)),
                    pid_namespace=namespace,
                )
                yield board
        finally:
            _end(init, namespace)


def _write_config(folder: Path, address: str, port: int, key: Path) -> str:
    """Write sshd's configuration and a host key; return the key's fingerprint."""
    host_key = folder / "host_key"
    make_key(host_key)
    config = _CONFIG.format(
        address=address,
        port=port,
        host_key=host_key,
        authorized_keys=f"{key}.pub",
        root=folder / "root",
        user=USER,
    )
    (folder / "sshd_config").write_text(config, encoding="utf-8")
    return run("ssh-keygen", "-l", "-f", f"{host_key}.pub").split()[1]


def make_key(path: Path) -> None:
    """Write a new ed25519 key pair without a passphrase."""
    run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "edgepack-lab", "-f", str(path))


@contextlib.contextmanager
def _first_process(
    folder: Path, kind: Kind, address: str, core: int, log: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the board's first process and wait until its namespaces are there."""
    # A core each, as far as there are: onnxruntime's threads spin, and those of two boards would
    # wait for each other.
    argv = ["taskset", "--cpu-list", str(core)]
    argv += ["setpriv", "--pdeathsig=KILL", "unshare", "--net", "--mount", "--pid", "--uts"]
    argv += ["--fork", "--kill-child", "sh", "-euc", _START, "sh"]
    (folder / "cpuinfo").write_text(_CPUINFO, encoding="ascii")
    argv += [str(folder / "root"), address, str(folder / "sshd_config")]
    argv.append(str(folder / "cpuinfo") if kind.is_emulated else "")
    pipe = subprocess.PIPE
    child = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=log, start_new_session=True)
    try:
        if child.stdout is None or child.stdout.readline() != b"ready\n":
            raise LabError(f"a board did not start: {_last_words(folder / 'log')}")
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(signal.SIGKILL)
        child.communicate()


@contextlib.contextmanager
def _cable(name: str, address: str, board_pid: int) -> Iterator[None]:
    """Put a veth pair between the host and the board; the board's end is its only way out."""
    peer = ["peer", "name", "eth0", "netns", str(board_pid)]
    run("ip", "link", "add", name, "type", "veth", *peer)
    try:
        run("ip", "address", "add", address, "dev", name)
        run("ip", "link", "set", name, "up")
        yield
    finally:
        if Path("/sys/class/net", name).exists():
            run("ip", "link", "delete", name)


def _go(init: subprocess.Popen[bytes]) -> None:
    if init.stdin is None:
        raise LabError("a board's first process is started with a pipe")
    init.stdin.write(b"go\n")
    init.stdin.flush()


def _wait_for_server(log: Path, init: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while "listening on" not in log.read_text(errors="replace"):
        if init.poll() is not None or time.monotonic() > deadline:
            raise LabError(f"a board's SSH server did not start: {_last_words(log)}")
        time.sleep(0.05)


def _end(init: subprocess.Popen[bytes], namespace: str) -> None:
    """Kill the first process, which ends all others, and wait until they are gone."""
    init.kill()
    init.wait()
    deadline = time.monotonic() + END_S
    while left := pids_in(namespace):
        if time.monotonic() > deadline:
            raise LabError(f"processes of a board did not end: {left}")
        time.sleep(0.05)


def pids_in(namespace: str) -> list[int]:
    """Return the host's numbers of all processes in a process id namespace."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str((entry / "ns" / "pid").readlink()) == namespace:
                found.append(int(entry.name))
    return found


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def _last_words(log: Path) -> str:
    return " | ".join(log.read_text(errors="replace").splitlines()[-5:]) or "it said nothing"


def take_out(board: Board, pattern: str) -> None:
    """Remove a folder from a board's disk.

    Raises:
        LabError: It has none such.
    """
    found = list(board.root.glob(pattern))
    if not found:
        raise LabError(f"{board.name} has no {pattern}")
    for folder in found:
        shutil.rmtree(folder)
