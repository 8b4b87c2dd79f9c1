"""The unit under a systemd of its own, in namespaces, on this machine's root with a layer above it.

What is started is what a device's operator installs: ``/opt/edgepack`` with releases and
``current``, an environment beside them, the unit as the bundle has it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgepack.base.processes import ProgramResult, run_program
from edgepack.ondevice.runtime import edgepack_ring as ring

from tests.mobile.proofs import ROOT, NotHeldError, Proof, require
from tests.service.container import break_goldens
from tests.service.image import fetch_wheels
from tests.service.running import find_child
from tests.service.served import make_bundle, run_checked

UNIT = "edgepack-digits.service"
PYTHON = Path("/usr/bin/python3")
"""The system's: the unit sees no home, where other ones lie."""
START_S = 120.0

# Arguments: a folder on a tmpfs, the folder for /opt/edgepack, and the folder of systemd's cgroup.
# The namespaces end with systemd; so do mounts.
_ENTER = """
echo $$ > "$3/cgroup.procs"
exec unshare --mount --pid --fork --kill-child --net --uts --ipc --cgroup sh -euc "$0" sh "$@"
"""
_BOOT = """
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
root=$1/root
mount -t overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" overlay "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
  mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
else
  mount -t tmpfs tmpfs "$root/sys/fs/cgroup"
  mkdir "$root/sys/fs/cgroup/systemd"
  mount -t cgroup -o none,name=systemd cgroup "$root/sys/fs/cgroup/systemd"
fi
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for name in null zero full random urandom tty; do
  touch "$root/dev/$name"
  mount --bind "/dev/$name" "$root/dev/$name"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
for place in run tmp var/log; do mount -t tmpfs tmpfs "$root/$place"; done
rm -rf "$root"/etc/systemd/system/*.wants
mkdir -p "$root/opt/edgepack"
mount --bind "$2" "$root/opt/edgepack"
cp "$2"/digits/current/service/*.service "$root/etc/systemd/system/"
ip link set lo up
cd "$root"
mkdir .before
pivot_root . .before
umount --lazy /.before
exec env -i container=edgepack PATH=/usr/sbin:/usr/bin:/sbin:/bin \\
  /lib/systemd/systemd --system --unit=basic.target
"""


class Machine:
    """Where a systemd runs."""

    def __init__(self, process: subprocess.Popen[bytes], opt: Path) -> None:
        self.process, self.opt = process, opt

    def run(self, *argv: str) -> ProgramResult:
        """Run a program there, as root."""
        require(self.process.poll() is None, "systemd ended")
        pid = find_child(self.process.pid)
        inside = ["nsenter", f"--target={pid}", "--mount", "--pid", "--net", "--uts", "--ipc"]
        return run_program([*inside, *argv], timeout_s=START_S)

    def systemctl(self, *argv: str) -> ProgramResult:
        return self.run("systemctl", "--no-pager", *argv)

    def wait_up(self) -> None:
        """Return once systemd takes commands."""
        until = time.monotonic() + START_S
        while "basic.target" not in self.systemctl("list-units", "--state=active").text:
            require(time.monotonic() < until, "systemd takes no command")
            time.sleep(0.2)

    def read_version(self) -> str:
        """Return the version that answers."""
        code = "import json, urllib.request as u; print(json.load(u.urlopen(u.Request("
        code += "'http://127.0.0.1:8080/v2/models/digits')))['versions'][0])"
        return self.run("env", "-i", str(PYTHON), "-I", "-c", code).text.strip()

    def switch(self, release: str) -> None:
        """Have ``current`` lead to a release, as a push does."""
        link = self.opt / "digits" / ".next"
        link.symlink_to(f"releases/{release}")
        link.replace(self.opt / "digits" / "current")


@contextmanager
def booted(work: Path, opt: Path) -> Iterator[Machine]:
    """Give a machine that is gone after the block."""
    hierarchy = Path("/sys/fs/cgroup")
    if not (hierarchy / "cgroup.controllers").exists():
        hierarchy /= "systemd"
    group, above = hierarchy / f"edgepack-service-{os.getpid()}", work / "above"
    group.mkdir()
    above.mkdir()
    with (work / "log").open("wb") as log:
        argv = ["sh", "-euc", _ENTER, _BOOT, str(above), str(opt), str(group)]
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        machine = Machine(process, opt)
        try:
            machine.wait_up()
        except NotHeldError as error:
            raise NotHeldError(f"{error}: {(work / 'log').read_text()}") from error
        yield machine
    finally:
        process.kill()
        process.wait(60)
        _remove(group)


def _remove(group: Path) -> None:
    """Remove a cgroup whose processes end."""
    until = time.monotonic() + START_S
    while any(path.read_text() for path in group.rglob("cgroup.procs")):
        require(time.monotonic() < until, f"processes stay in {group}")
        time.sleep(0.1)
    for folder in sorted((p for p in group.rglob("*") if p.is_dir()), reverse=True):
        folder.rmdir()
    group.rmdir()


def prepare(opt: Path) -> None:
    """Make what an operator has under /opt/edgepack: three releases, and an environment."""
    releases = opt / "digits" / "releases"
    for name in ("one", "two", "broken"):
        shutil.copytree(make_bundle(), releases / name)
    manifest = releases / "two" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": "2.0.0"}))
    break_goldens(releases / "broken")
    (opt / "digits" / "current").symlink_to("releases/one")
    environment = opt / "serve"
    run_checked([str(PYTHON), "-m", "venv", "--without-pip", str(environment)])
    argv = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python")]
    argv += ["install", "--quiet", "--no-index", "--find-links", str(fetch_wheels(make_bundle()))]
    for name in ("requirements.txt", "requirements-serve.txt"):
        argv += ["--requirement", str(make_bundle() / name)]
    run_checked(argv)


def look(work: Path) -> str:
    """It starts, is walled in, follows ``current``, stops; and does not start what is broken."""
    opt = work / "opt"
    prepare(opt)
    work.chmod(0o755)
    with booted(work, opt) as machine:
        started = machine.systemctl("start", UNIT)
        status = machine.systemctl("status", "--lines=20", UNIT).text
        require(not started.exit_code, f"it does not start: {status}")
        require("digits 1.0.0" in status, f"it does not say what answers: {status}")
        require(machine.read_version() == "1.0.0", "it does not answer")
        look_at_walls(machine)
        machine.switch("two")
        machine.systemctl("reload", UNIT)
        until = time.monotonic() + START_S
        while machine.read_version() != "2.0.0":
            require(time.monotonic() < until, "it does not follow current")
        require(not machine.systemctl("stop", UNIT).exit_code, "it does not stop")
        result = machine.systemctl("show", "--property=Result", UNIT).text.strip()
        require(result == "Result=success", f"it stops with {result}")
        look_at_counts(machine)
        machine.switch("broken")
        require(machine.systemctl("start", UNIT).exit_code == 1, "it starts with broken goldens")
    return (
        "started, walled in, followed current at a reload, stopped, counted with the docs' drop-in;"
        " broken goldens do not start"
    )


def look_at_walls(machine: Machine) -> None:
    """It is nobody, may nothing, and has no privileges to gain."""
    pid = machine.systemctl("show", "--property=MainPID", "--value", UNIT).text.strip()
    who = machine.run("cat", f"/proc/{pid}/status").text
    user = next(line.split()[1] for line in who.splitlines() if line.startswith("Uid:"))
    require(int(user) > 0, "it is root")
    for line in ("CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"):
        require(line in who, f"{line} is not so: {who}")


def look_at_counts(machine: Machine) -> None:
    """It counts with the drop-in of ``docs/field.md``, as an account that this machine has."""
    block = (ROOT / "docs/field.md").read_text().split("```ini\n")[1].split("```")[0]
    (machine.opt / "counting.conf").write_text(block.replace("User=bench", "User=daemon"))
    (machine.opt / "stats").mkdir()
    shutil.chown(machine.opt / "stats", "daemon")
    place = f"/etc/systemd/system/{UNIT}.d/counting.conf"
    machine.run("install", "-D", "/opt/edgepack/counting.conf", place)
    machine.systemctl("daemon-reload")
    started = machine.systemctl("start", UNIT)
    status = machine.systemctl("status", "--lines=20", UNIT).text
    require(not started.exit_code, f"it does not start with the drop-in: {status}")
    machine.systemctl("stop", UNIT)
    found = [ring.read(str(path)) for path in (machine.opt / "stats").glob("*.ring")]
    require([each and each["loads"] for each in found] == [1], f"it counted {found}: {status}")


PROOFS = (Proof("the unit under systemd", look),)
