"""The namespaces that a farm stands in: all that is started in them ends with them.

The farm has a process tree, a network and mounts of its own. When its first process dies, whatever
ends it, the kernel ends every board and every command, and takes down cables and disks.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.servers.openssh_server import find_sshd

BASE = Path("/srv")
"""Where the farm's folder lies: sshd wants every folder above a ChrootDirectory owned by root."""
INSIDE = "EDGEPACK_FARM_GROUND"
"""The variable that says, inside, which folder is the farm's."""
BRIDGE = "farm"
NETWORK = "10.88"
PROGRAMS = ("unshare", "mount", "ip", "tc", "ssh", "hostname")
PACKAGES = "openssh-server openssh-client iproute2 util-linux hostname"

# What decides is whether a bridge, a cable and a slow link can be made.
_TRIAL = """
ip link add farm type bridge
ip link add one type veth peer name two
tc qdisc add dev one root tbf rate 1mbit burst 10kb latency 100ms
mount -t tmpfs tmpfs /mnt
"""
# The first process of a process tree has to take in what others leave; a shell does that.
_FIRST = '"$@"; exit $?'


def explain_lack() -> str:
    """Return why no farm can stand on this machine; empty if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "it makes namespaces, so it needs root on Linux: sudo make farm-test"
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing or find_sshd() is None:
        return f"it needs {', '.join(missing) or 'sshd'}: apt-get install {PACKAGES}"
    done = subprocess.run([*_unshared(), "sh", "-ec", _TRIAL], check=False, capture_output=True)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        return f"namespaces with a network cannot be made here: {' '.join(said)}"
    return ""


def _unshared() -> list[str]:
    return ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]


def run_inside(module: str, arguments: Sequence[str]) -> int:
    """Run a module in new namespaces, its folder a file system in memory; return its exit code."""
    folder = tempfile.mkdtemp(prefix="edgepack-farm-", dir=BASE)
    Path(folder).chmod(0o755)
    argv = [*_unshared(), "sh", "-c", _FIRST, "sh", sys.executable, "-m", module, *arguments]
    environment = {**os.environ, INSIDE: folder}
    child = subprocess.Popen(argv, env=environment)
    try:
        return child.wait()
    finally:
        child.kill()  # and with it all the rest, if it has not ended
        child.wait()
        with contextlib.suppress(OSError):
            Path(folder).rmdir()


def prepare_ground() -> Path:
    """Set up network and disk inside the namespaces, and return the farm's folder."""
    folder = Path(os.environ[INSIDE])
    call("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(folder))
    call("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")  # processes that are killed leave files there
    call("ip", "link", "set", "lo", "up")
    call("ip", "link", "add", BRIDGE, "type", "bridge")
    call("ip", "address", "add", f"{NETWORK}.0.1/16", "dev", BRIDGE)
    call("ip", "link", "set", BRIDGE, "up")
    return folder


def call(*argv: str) -> str:
    """Run a program that has to succeed, and return what it prints."""
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: exit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout
