"""What the lab needs of this machine: root, some Debian packages, aarch64 emulation.

Standard library only, so that ``run.py --packages`` answers before anything is installed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

# A Debian package, and a program of it that the lab starts.
PROGRAMS = {
    "qemu-user-static": "qemu-aarch64-static",
    "binfmt-support": "update-binfmts",
    "gcc-aarch64-linux-gnu": "aarch64-linux-gnu-gcc",
    "gcc": "gcc",
    "dropbear-bin": "dropbear",
    "busybox-static": "busybox",
    "mmdebstrap": "mmdebstrap",
    "openssh-server": "sshd",
    "openssh-client": "ssh-keygen",
    "iproute2": "ip",
    "util-linux": "unshare",
}
BASE = Path("/srv")
"""Where the boards' disks lie: sshd wants every folder above a ChrootDirectory owned by root."""
PREFIX = "edgepack-lab-"
BINFMT = Path("/proc/sys/fs/binfmt_misc")
EMULATOR = "qemu-aarch64"


class CannotRunError(Exception):
    """This machine lacks something; the message says what and what to do."""


class LabError(Exception):
    """The lab itself failed: a tool, a mount, a board that did not start."""


def run(*argv: str, timeout_s: float = 60.0) -> str:
    """Run a program of the host and return its stdout.

    Raises:
        LabError: It failed, with its last words.
    """
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
    )
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-5:]
        raise LabError(f"{' '.join(argv)}: exit code {done.returncode}: " + " | ".join(said))
    return done.stdout.decode("utf-8", "replace")


def require_host() -> None:
    """Return if the lab can run here.

    Raises:
        CannotRunError: It cannot.
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise CannotRunError("it runs on Linux on x86-64, which this is not")
    if os.geteuid() != 0:
        raise CannotRunError("it makes namespaces, so it needs root: sudo make lab")
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    missing = [name for name, program in PROGRAMS.items() if not shutil.which(program)]
    if missing:
        raise CannotRunError(
            f"missing Debian packages: apt-get install {' '.join(missing)}"
            " (all that it needs: run.py --packages)"
        )


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """Hold the lock that lets one lab run on this machine; it ends with this process.

    Raises:
        CannotRunError: Another one runs.
    """
    folder = os.open(BASE, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CannotRunError("another lab is running on this machine") from error
        yield
    finally:
        os.close(folder)


@contextlib.contextmanager
def work_folder() -> Iterator[Path]:
    """Give a folder of root's that goes when the block ends; what killed labs left goes now."""
    for old in BASE.glob(f"{PREFIX}*"):
        remove(old)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=BASE))
    folder.chmod(0o755)  # sshd reads authorized_keys as the user who logs in
    try:
        yield folder
    finally:
        remove(folder)


def remove(folder: Path) -> None:
    """Remove a folder in which nothing is mounted.

    Raises:
        LabError: Something is mounted there; nothing was removed.
    """
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        place = line.split()[4]
        if Path(place).is_relative_to(folder):
            raise LabError(f"{place} is mounted, so {folder} stays")
    shutil.rmtree(folder)


@contextlib.contextmanager
def emulation() -> Iterator[None]:
    """Let the kernel start aarch64 programs through qemu, and take back what that changed.

    The entry has flag F: the kernel holds the emulator open, so that it is found in every root.

    Raises:
        CannotRunError: This kernel or container does not allow it.
    """
    with contextlib.ExitStack() as stack:
        try:
            if not (BINFMT / "register").exists():
                run("mount", "-t", "binfmt_misc", "binfmt_misc", str(BINFMT))
                stack.callback(run, "umount", str(BINFMT))
            if not _is_registered():
                stack.callback(_unregister)
                run("update-binfmts", "--enable", EMULATOR)
        except LabError as error:
            raise CannotRunError(f"binfmt_misc cannot be set up here: {error}") from error
        flags = [line for line in _entry().splitlines() if line.startswith("flags:")]
        if not flags or "F" not in flags[0]:
            raise CannotRunError(f"the entry {BINFMT / EMULATOR} needs flag F (fix_binary)")
        yield


def _entry() -> str:
    path = BINFMT / EMULATOR
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _is_registered() -> bool:
    return _entry().startswith("enabled")


def _unregister() -> None:
    if _is_registered():
        run("update-binfmts", "--disable", EMULATOR)


def emulator_version() -> str:
    """Return qemu's version."""
    return run(PROGRAMS["qemu-user-static"], "--version").splitlines()[0].split()[2]
