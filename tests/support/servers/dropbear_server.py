"""Dropbear's own server on 127.0.0.1: of this machine, or of a board that has only busybox.

Dropbear reads keys from the home that ``/etc/passwd`` names, and runs commands with the shell named
there. So each connection has a mount namespace of its own in which these are the test's: nothing of
the system's is touched, and no mount stays.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Self

import pytest
from edgepack.demo.server import format_public_key, make_key

from tests.support.servers.openssh_server import OpenSshServer

_PROGRAMS = ("dropbear", "dropbearkey", "busybox", "unshare", "chroot", "mount", "ldd")
_PACKAGES = "dropbear-bin busybox-static"

# Arguments: the board's root, dropbear's options.
_BARE = """
set -e
root=$1
shift
mount --rbind "$root" "$root"
mount --bind /dev/null "$root/dev/null"
mount -t proc proc "$root/proc"
exec chroot "$root" /usr/sbin/dropbear "$@"
"""
_WHOLE = """
set -e
root=$1
shift
mount --bind "$root/etc/passwd" /etc/passwd
mount --bind "$root/bin" /usr/local/sbin
exec dropbear "$@"
"""


def find_lacks() -> str:
    """Return what root would have to install to start a dropbear here."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    missing = [name for name in _PROGRAMS if shutil.which(name, path=path) is None]
    if missing:
        return f"needs {', '.join(missing)}: apt-get install {_PACKAGES}"
    if _libraries(_which("busybox")):
        return f"needs a busybox without libraries: apt-get install {_PACKAGES}"
    return ""


def require_dropbear() -> None:
    """Skip the test if no dropbear can be started here; in CI its packages have to be there."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("needs root on Linux, for mounts and chroot")
    reason = find_lacks()
    if reason and os.environ.get("CI"):
        pytest.fail(f"{reason}; CI must not skip this test")
    if reason:
        pytest.skip(reason)
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
        pytest.skip("needs mount namespaces")


class DropbearServer(OpenSshServer):
    """A context manager; at its end no connection is left.

    Args:
        folder: A folder of its own.
        bare: Whether commands have a root of their own with busybox and nothing else. Otherwise
            they see this machine, and ``python3`` is the Python that runs this.
    """

    def __init__(self, folder: Path, *, bare: bool) -> None:
        super().__init__(folder)
        self.user = "root"
        self.board = folder / "board"
        """What is ``/`` on a bare board."""
        self.home = self.board / "root"
        self._bare = bare

    def __enter__(self) -> Self:
        for name in ("bin", "dev", "etc", "proc", "tmp", "root/.ssh"):
            (self.board / name).mkdir(parents=True)
        self._write_keys()
        root = Path("/") if self._bare else self.board
        (self.board / "etc" / "passwd").write_text(f"root:x:0:0::{root / 'root'}:/bin/sh\n")
        if self._bare:
            fill_bare_root(self.board)
        else:
            python = self.board / "bin" / "python3"
            python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
            python.chmod(0o755)
        self._argv = ["unshare", "--mount", "sh", "-c", _BARE if self._bare else _WHOLE]
        self._argv += ["sh", str(self.board), "-i", "-s", "-m", "-r", f"{root / 'etc/host_key'}"]
        self._thread.start()
        return self

    @property
    def host_key_fingerprint(self) -> str:
        """As OpenSSH prints it."""
        return self._fingerprint

    def _write_keys(self) -> None:
        made = _output("dropbearkey", "-t", "ed25519", "-f", str(self.board / "etc" / "host_key"))
        host_key, fingerprint = re.findall(r"^(ssh-ed25519 \S+)|(SHA256:\S+)", made, re.MULTILINE)
        self._fingerprint = fingerprint[1]
        known = f"[{self.host}]:{self.port} {host_key[0]}\n"
        (self._folder / "known_hosts").write_text(known)
        key = make_key(self.client_key_path)
        keys = self.home / ".ssh" / "authorized_keys"
        keys.write_text(f"{format_public_key(key)}\n")
        for path in (self.home, keys.parent, keys):
            path.chmod(0o700)  # dropbear reads none that others may write


def fill_bare_root(board: Path) -> None:
    """Put dropbear, what it loads, and busybox into a board's root."""
    for name in ("bin", "dev", "etc", "proc", "tmp", "root/.ssh"):
        (board / name).mkdir(parents=True, exist_ok=True)
    (board / "etc" / "passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    (board / "dev" / "null").touch()
    busybox = board / "bin" / "busybox"
    shutil.copy(_which("busybox"), busybox)
    for applet in _output(str(busybox), "--list").split():
        if applet != "busybox":
            (busybox.parent / applet).symlink_to("busybox")
    dropbear = _which("dropbear")
    add_libraries(board, dropbear)
    there = board / dropbear.relative_to("/")
    there.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(dropbear, there)


def add_libraries(board: Path, *files: Path) -> None:
    """Put what programs and libraries of this machine load into a board's root."""
    for path in {each for one in files for each in _libraries(one)}:
        there = board / path.relative_to("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, there)


def _which(name: str) -> Path:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        raise FileNotFoundError(name)
    return Path(found)


def _libraries(program: Path) -> list[Path]:
    """Return what a program loads; nothing if it is linked statically."""
    said = subprocess.run(["ldd", program], check=False, capture_output=True, text=True).stdout
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", said)]


def _output(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout
