"""The boards of a farm, by kind: what each has, where its files lie, and how it is reached."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from edgepack.demo.server import format_public_key, make_key

from tests.farm.clocks import Clocks
from tests.farm.ground import NETWORK, call
from tests.farm.machines import PORT, Machine
from tests.lab.rootfs import USER
from tests.support.servers.bare_programs import link_programs
from tests.support.servers.dropbear_server import fill_bare_root, find_lacks
from tests.support.servers.openssh_server import find_sshd, put_python_first

Kind = Literal["openssh-python", "openssh-bare", "dropbear", "aarch64"]
"""OpenSSH with Python; OpenSSH with a shell's programs only; dropbear and busybox; emulated."""
KINDS: tuple[Kind, ...] = ("openssh-python", "openssh-bare", "dropbear", "aarch64")
WITH_PYTHON: tuple[Kind, ...] = ("openssh-python", "aarch64")
MEASURED: tuple[Kind, ...] = ("openssh-python",)
"""Those that have onnxruntime."""
TARGETS = {kind: "linux-aarch64" if kind == "aarch64" else "linux-x86-64" for kind in KINDS}
KEEPS = 2
"""Releases that stay on a board: what ``keep_releases`` is unless a user says otherwise."""
PROJECT = "tiny"
DISK_MIB = 12
DISK_INODES = 2000
BASTION = "bastion"

_CONFIG = """
ListenAddress {address}
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {keys}
PermitRootLogin prohibit-password
PidFile none
StrictModes no
UsePAM no
UseDNS no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitUserRC no
Subsystem sftp internal-sftp
LogLevel ERROR
"""


@dataclass
class Board:
    """A board, and where it lies here."""

    name: str
    kind: Kind
    machine: Machine
    disk: Path
    """Its own file system, as this machine sees it."""
    root: str
    """The same, as its commands see it, with edgepack's folder in it."""
    host_keys: tuple[str, str]
    """Its own, and the one that it has while it pretends to be another."""
    behind_bastion: bool = False
    relayed: bool = False
    tags: list[str] = field(default_factory=list)
    clock: Path | None = None
    """What its commands' clock differs by, where that can be changed."""

    @property
    def project(self) -> Path:
        """Where releases lie."""
        return self.disk / "edgepack" / PROJECT

    @property
    def leases(self) -> Path:
        """Where leases lie."""
        return self.disk / "edgepack" / "lease"

    @property
    def has_python(self) -> bool:
        """Whether it keeps chunks."""
        return self.kind in WITH_PYTHON

    def use_host_key(self, number: int) -> None:
        """Let the next start have its own host key, 0, or another one, 1."""
        shutil.copy(self.machine.folder / f"host_key_{number}", self.machine.folder / "host_key")

    def make_entry(self, config: Path) -> dict[str, Any]:
        """Return what an inventory says of it."""
        entry: dict[str, Any] = {
            "transport": "ssh",
            "host": self.name,
            "ssh_config": str(config),
            "target": TARGETS[self.kind],
            "root": self.root,
            "tags": [self.kind, *self.tags],
        }
        if self.kind == "openssh-python":
            entry["python"] = sys.executable
        if self.relayed:
            entry["relay"] = "bastion"
        return entry


def explain_missing_kind(kind: Kind, arm_root: Path | None) -> str:
    """Return what this machine lacks for a kind of board; empty if nothing."""
    if kind == "dropbear":
        return find_lacks()
    if kind == "aarch64" and arm_root is None:
        return "its root file system"
    return ""


class Maker:
    """Makes boards and the bastion; none of them runs yet.

    Args:
        folder: Of the farm.
        keys: The file of public keys that every machine lets in.
        clocks: Makes clocks for boards.
        arm_root: A root file system for emulated boards, if there is one.
    """

    def __init__(self, folder: Path, keys: Path, clocks: Clocks, arm_root: Path | None) -> None:
        self._folder = folder
        self._keys = keys
        self._clocks = clocks
        self._arm_root = arm_root
        self._number = 0

    def make_bastion(self) -> Machine:
        """Return the machine that boards are reached through."""
        folder = self._folder / BASTION
        folder.mkdir()
        (folder / "host_key.pub").write_text(format_public_key(make_key(folder / "host_key")))
        address = f"{NETWORK}.0.9"
        # A version manager's python3 takes locks in its user's home, which last when it is killed.
        argv = self._openssh(folder, address, {"PATH": put_python_first()})
        return Machine(BASTION, address, BASTION, folder, argv, Path("/"))

    def make_board(self, kind: Kind) -> Board:
        """Return the next board: every third is behind the bastion, every sixth relayed too."""
        self._number += 1
        number = self._number
        name = f"board-{number:02}"
        folder = self._folder / name
        folder.mkdir()
        host_keys = self._make_host_keys(kind, folder)
        address = f"{NETWORK}.1.{number}"
        make = {
            "openssh-python": self._make_python_board,
            "openssh-bare": self._make_bare_board,
            "dropbear": self._make_dropbear_board,
            "aarch64": self._make_arm_board,
        }[kind]
        machine, disk, root, clock = make(name, address, folder)
        behind = number % 3 == 0
        return Board(
            name=name,
            kind=kind,
            machine=machine,
            disk=disk,
            root=f"{root}/edgepack",
            host_keys=host_keys,
            behind_bastion=behind,
            relayed=behind and number % 2 == 0 and kind in WITH_PYTHON,
            tags=[f"rack-{number % 5}"],
            clock=clock,
        )

    def _make_host_keys(self, kind: Kind, folder: Path) -> tuple[str, str]:
        found = [self._make_host_key(kind, folder / f"host_key_{number}") for number in range(2)]
        shutil.copy(folder / "host_key_0", folder / "host_key")
        return found[0], found[1]

    @staticmethod
    def _make_host_key(kind: Kind, path: Path) -> str:
        if kind != "dropbear":
            return format_public_key(make_key(path))
        made = call("dropbearkey", "-t", "ed25519", "-f", str(path))
        return re.findall(r"^(ssh-ed25519 \S+)", made, re.MULTILINE)[0]

    def _openssh(
        self, folder: Path, address: str, variables: dict[str, str], more: Sequence[str] = ()
    ) -> list[str]:
        config = _CONFIG.format(address=address, port=PORT, folder=folder, keys=self._keys)
        if variables:
            pairs = " ".join(f"{name}={value}" for name, value in variables.items())
            config += f"SetEnv {pairs}\n"
        (folder / "sshd_config").write_text(config + "".join(f"{line}\n" for line in more))
        sshd = find_sshd()
        assert sshd is not None
        return [sshd, "-D", "-e", "-f", str(folder / "sshd_config")]

    def _make_python_board(
        self, name: str, address: str, folder: Path
    ) -> tuple[Machine, Path, str, Path | None]:
        return self._make_openssh_board(name, address, folder, {})

    def _make_bare_board(
        self, name: str, address: str, folder: Path
    ) -> tuple[Machine, Path, str, Path | None]:
        programs = link_programs(folder / "programs")
        return self._make_openssh_board(name, address, folder, {"PATH": str(programs)})

    def _make_openssh_board(
        self, name: str, address: str, folder: Path, more: dict[str, str]
    ) -> tuple[Machine, Path, str, Path | None]:
        disk = mount_disk(folder / "disk")
        (folder / "home").mkdir()
        variables = {"HOME": str(folder / "home"), **more}
        clock = None
        if self._clocks.possible:
            clock = folder / "clock"
            variables |= self._clocks.make_clock(clock)
        argv = self._openssh(folder, address, variables)
        machine = Machine(name, address, f"b{self._number}", folder, argv, Path("/"))
        return machine, disk, str(disk), clock

    def _make_dropbear_board(
        self, name: str, address: str, folder: Path
    ) -> tuple[Machine, Path, str, Path | None]:
        slash = folder / "slash"
        fill_bare_root(slash)
        keys = slash / "root/.ssh/authorized_keys"
        shutil.copy(self._keys, keys)
        for path in (slash, slash / "root", keys.parent, keys):
            path.chmod(0o700)  # dropbear reads none that others may write
        # A link would lead out of the board's root, so the key that is used lies in it.
        key = slash / "etc/host_key"
        (folder / "host_key").unlink()
        shutil.copy(folder / "host_key_0", key)
        (folder / "host_key").symlink_to(key)
        disk = mount_disk(slash / "data")
        argv = ["chroot", str(slash), "/usr/sbin/dropbear", "-F", "-E", "-s", "-m"]
        argv += ["-r", "/etc/host_key", "-p", f"{address}:{PORT}"]
        return Machine(name, address, f"b{self._number}", folder, argv, slash), disk, "/data", None

    def _make_arm_board(
        self, name: str, address: str, folder: Path
    ) -> tuple[Machine, Path, str, Path | None]:
        assert self._arm_root is not None
        # All have the same root, which they only read, and a disk each in it.
        disk = mount_disk(self._arm_root / "disks" / name)
        call("chown", self._arm_owner(), str(disk))
        more = [f"ChrootDirectory {self._arm_root}", f"AllowUsers {USER}"]
        argv = self._openssh(folder, address, {}, more)
        machine = Machine(name, address, f"b{self._number}", folder, argv, self._arm_root)
        return machine, disk, f"/disks/{name}", None

    def _arm_owner(self) -> str:
        assert self._arm_root is not None
        lines = (self._arm_root / "etc/passwd").read_text().splitlines()
        return next(":".join(line.split(":")[2:4]) for line in lines if line.startswith(USER))


def mount_disk(path: Path) -> Path:
    """Mount a small file system, and return its folder."""
    path.mkdir(parents=True)
    options = f"size={DISK_MIB}m,nr_inodes={DISK_INODES}"
    call("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path))
    return path


def write_ssh_config(
    path: Path, key: Path, boards: Sequence[Board], bastion: Machine, bastion_key: str
) -> None:
    """Write what an operator's ssh knows of the boards: addresses, keys, the way to each."""
    known = path.with_name("known_hosts")
    lines = [f"Host {BASTION}", f" HostName {bastion.address}", " User root"]
    keys = [f"{bastion.address} {bastion_key}"]
    for board in boards:
        user = USER if board.kind == "aarch64" else "root"
        lines += [f"Host {board.name}", f" HostName {board.machine.address}", f" User {user}"]
        if board.behind_bastion:
            lines.append(f" ProxyJump {BASTION}")
        keys.append(f"{board.machine.address} {board.host_keys[0]}")
    lines += ["Host *", f" IdentityFile {key}", " IdentitiesOnly yes"]
    lines += [f" UserKnownHostsFile {known}", " GlobalKnownHostsFile /dev/null"]
    path.write_text("\n".join(lines) + "\n")
    known.write_text("\n".join(keys) + "\n")


def start_all(boards: Sequence[Board]) -> None:
    """Switch all boards on, some at a time."""
    _on_each(boards, lambda board: board.machine.start())


def _on_each(boards: Sequence[Board], act: Callable[[Board], None]) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(act, boards))


def fill_disk(board: Board) -> None:
    """Leave no room on its disk."""
    path = board.disk / "filling"
    argv = ["dd", "if=/dev/zero", f"of={path}", "bs=64k"]
    subprocess.run(argv, check=False, capture_output=True)


def free_disk(board: Board) -> None:
    """Give the room back."""
    (board.disk / "filling").unlink(missing_ok=True)
