"""``make machines``: the README's two commands, as strangers type them on their machines.

::

    sudo .venv/bin/python -m tests.machines.run [--only debian-12]

Each machine is a Debian root file system with its own Python, made once and kept in ``.machines``.
A clone of this repository lies in the home of an ordinary user there, whose environment is a
login's: ``make .venv/.ready`` sets up, with the package index of this machine; ``make demo`` and
``make test`` follow in a network of their own that has a loopback and nothing else. What is
committed is tried; all that was printed is in ``.machines/NAME.log``.

Exit codes: 0 all held, 1 something did not, 3 this machine cannot run it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from edgepack.base.processes import run_program
from edgepack.errors import ToolError

from tests.support.reports.proof_report import Check, report
from tests.support.servers.debian_roots import debian_root

CHECKOUT = Path(__file__).resolve().parents[2]
KEPT = CHECKOUT / ".machines"
CANNOT_RUN_EXIT = 3
TIMEOUT_S = 1800.0
LAST_LINES = 120
COMMANDS = {
    "set up": ["make", ".venv/.ready"],
    "demo": ["make", "demo"],
    "test": ["make", "test"],
}
HEADINGS = ("machine", "Python", *COMMANDS, "tests")
FORMAT = "{:14} {:8} {:>7} {:>7} {:>7}  {}"
USER, USER_ID = "stranger", "1000"
HOST_PACKAGES = ("mmdebstrap", "iproute2", "util-linux")
BASE = ("ca-certificates", "make", "passwd", "python3", "python3-venv")
"""What the README asks for, and useradd."""
PIP_SETTINGS = ("PIP_CERT", "PIP_DEFAULT_TIMEOUT", "PIP_INDEX_URL", "PIP_TRUSTED_HOST")
CERTIFICATES, PIP_FILE, RESOLVER = (
    Path(name)
    for name in ("/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf", "/etc/resolv.conf")
)

# Arguments: the root file system, "online" or "offline", then the program's. What is mounted goes
# with the namespace. Some programs want a terminal or shared memory, and a login has both.
_ENTER = """
root=$1 network=$2
shift 2
mount -t proc proc "$root/proc"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
if [ "$network" = offline ]; then ip link set lo up; fi
exec chroot "$root" "$@"
"""


@dataclass(frozen=True)
class Machine:
    """Somebody's machine."""

    name: str
    release: str
    packages: tuple[str, ...] = ()
    """What is installed there beside :data:`BASE`."""
    path: str = "/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games"
    """As Debian's login sets it."""


MACHINES = (
    # Like many a login's, its PATH begins with a folder that the user may not enter.
    Machine("debian-12", "bookworm", path="/root/bin:/usr/local/bin:/usr/bin:/bin"),
    Machine("debian-13", "trixie", ("git", "openssh-client", "openssh-server")),
    # Debian testing has the newest Python that onnxruntime has wheels for, 3.14.
    # Source: https://pypi.org/project/onnxruntime/1.31.1/#files (checked 2026-11-23).
    Machine("newest-python", "forky", ("openssh-client",)),
)


@dataclass(frozen=True)
class Done:
    """How a command ended on a machine."""

    seconds: float
    exit_code: int
    output: str


@dataclass
class Finding:
    """What a machine did with each command, as far as those before it went well."""

    machine: Machine
    python: str
    done: dict[str, Done] = field(default_factory=dict)

    @property
    def held(self) -> bool:
        """Whether every command was run, and went well."""
        codes = [self.done[name].exit_code for name in COMMANDS if name in self.done]
        return codes == [0] * len(COMMANDS)

    @property
    def row(self) -> tuple[str, ...]:
        """Name, Python, how long each command took, and pytest's counts."""
        took = [
            f"{self.done[name].seconds:.0f} s" if name in self.done else "-" for name in COMMANDS
        ]
        output = self.done["test"].output if "test" in self.done else ""
        counts = re.findall(r"^=* ?((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s", output, re.MULTILINE)
        return (self.machine.name, self.python, *took, counts[-1] if counts else "not run")


def main() -> int:
    parser = argparse.ArgumentParser(description="Run demo and tests on machines of strangers.")
    names = [machine.name for machine in MACHINES]
    parser.add_argument("--only", choices=names, action="append", help="repeat for more")
    arguments = parser.parse_args()
    missing = [name for name in ("mmdebstrap", "ip", "unshare") if shutil.which(name) is None]
    if os.geteuid() != 0 or missing:
        why = f"there is no {', '.join(missing)}" if missing else "it makes roots, so it needs root"
        say(f"machines: cannot run here: {why}")
        say(f"on Debian: apt-get install {' '.join(HOST_PACKAGES)}")
        return CANNOT_RUN_EXIT
    began = time.monotonic()
    chosen = [machine for machine in MACHINES if machine.name in (arguments.only or names)]
    try:
        findings = [try_out(machine) for machine in chosen]
    except ToolError as error:
        say(f"machines: FAILED: {error}")
        return 1
    say("")
    for row in (HEADINGS, *(finding.row for finding in findings)):
        say(FORMAT.format(*row))
    held = all(finding.held for finding in findings)
    checks = [Check(f.machine.name, "" if f.held else " ".join(f.row)) for f in findings]
    report("-".join(["machine", *(arguments.only or ["all"])]), checks, time.monotonic() - began)
    say(f"machines: {'all held' if held else 'FAILED'}")
    return 0 if held else 1


def try_out(machine: Machine) -> Finding:
    """Run the commands on one machine, until one fails.

    Raises:
        ToolError: The machine cannot be made.
    """
    kept = debian_root(KEPT, machine.release, (*BASE, *machine.packages))
    with a_copy(kept) as root, (KEPT / f"{machine.name}.log").open("w") as log:
        folder = prepared(root)
        version = login(machine, root, ["python3", "--version"], folder).output.split()[-1]
        finding = Finding(machine, version)
        for name, argv in COMMANDS.items():
            say(f"{machine.name}: Python {version}: {' '.join(argv)}")
            done = login(machine, root, argv, folder, online=name == "set up")
            finding.done[name] = done
            log.write(done.output)
            if done.exit_code:
                say(f"{machine.name}: exit code {done.exit_code}, and it said last:")
                lines = [line for line in done.output.splitlines() if "SKIPPED [" not in line]
                say("\n".join(f"  | {line}" for line in lines[-LAST_LINES:]))
                break
    return finding


@contextmanager
def a_copy(kept: Path) -> Iterator[Path]:
    """Give a copy of a root file system that goes with the block."""
    with tempfile.TemporaryDirectory(prefix="edgepack-machine-", dir=KEPT) as name:
        root = Path(name) / "root"
        checked(["cp", "--archive", "--reflink=auto", "--", str(kept), str(root)])
        yield root


def prepared(root: Path) -> Path:
    """Make the user with a clone of this repository, and return its path as the user sees it."""
    chroot = ["chroot", str(root)]
    checked([*chroot, "useradd", "--create-home", "--uid", USER_ID, "--shell", "/bin/bash", USER])
    (root / "root" / "bin").mkdir(exist_ok=True)
    (root / "root").chmod(0o700)
    home = Path("/home", USER)
    inside = home / "edgepack"
    checked(["git", "clone", "--quiet", str(CHECKOUT), str(root / inside.relative_to("/"))])
    checked([*chroot, "chown", "--recursive", f"{USER}:{USER}", str(home)])
    for file in (CERTIFICATES, PIP_FILE, RESOLVER):
        if file.exists():
            place = root / file.relative_to("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)
    return inside


def login(
    machine: Machine, root: Path, argv: Sequence[str], folder: Path, *, online: bool = False
) -> Done:
    """Run a command as the user, with the environment of a login, and return how it ended."""
    isolated = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    isolated += [] if online else ["--net"]
    home = f"/home/{USER}"
    environment = [f"HOME={home}", f"USER={USER}", f"LOGNAME={USER}", "SHELL=/bin/bash"]
    environment += [f"PATH={machine.path}", "LANG=C.UTF-8", "TERM=dumb"]
    environment += [f"{name}={os.environ[name]}" for name in PIP_SETTINGS if name in os.environ]
    inside = ["setpriv", f"--reuid={USER_ID}", f"--regid={USER_ID}", "--init-groups"]
    inside += ["--no-new-privs", "env", "--ignore-environment", f"--chdir={folder}", *environment]
    began = time.monotonic()
    done = run_program(
        [
            *isolated,
            "sh",
            "-euc",
            _ENTER,
            "sh",
            str(root),
            "online" if online else "offline",
            *inside,
            *argv,
        ],
        timeout_s=TIMEOUT_S,
    )
    output = f"{done.text}\n{done.stderr.decode('utf-8', 'replace')}"
    return Done(time.monotonic() - began, done.exit_code, output)


def checked(argv: Sequence[str]) -> None:
    """Run a program of this machine.

    Raises:
        ToolError: It failed, with what it said.
    """
    done = run_program(list(argv), timeout_s=300)
    if done.exit_code:
        said = done.stderr.decode("utf-8", "replace").strip()[-2000:]
        raise ToolError(f"{' '.join(argv)}: {said}", hint="mend what it names")


def say(line: str) -> None:
    """Print a line now."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
