"""A Swift compiler for Linux: Debian trixie's, in a root file system that is made once.

::

    tools = toolchain()
    tools.run(["swiftc", "-o", "proof", "main.swift"], folder=work)
    done = tools.run(["./proof", "bundle"], folder=work)

Programs run in that file system, in a mount namespace of their own: whatever ends them, no mount of
theirs stays. A folder of this machine is at ``/work`` there, and the onnxruntime that edgepack runs
with at ``/runtime``. Needs root, mmdebstrap and a Debian mirror.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgepack.base.processes import ProgramResult, run_program
from edgepack.errors import ToolError

from tests.mobile.proofs import KEPT
from tests.support.servers.debian_roots import debian_root, locked

RELEASE = "trixie"
PACKAGES = ("clang", "libc6-dev", "libonnxruntime-dev", "libstdc++-14-dev", "swiftlang")
"""Swift 6.0, the headers of onnxruntime 1.21, and what both need."""
VARIABLE = "EDGEPACK_SWIFT_ROOTFS"
"""Names a root file system with these packages that is there already."""
RUN_TIMEOUT_S = 900.0
_SWIFT_LIBRARIES = "/usr/libexec/swift/lib/swift/linux"

# Arguments: the root file system, the folders for /work and /runtime, the program's.
_ENTER = """
root=$1 work=$2 runtime=$3
shift 3
mkdir -p "$root/work" "$root/runtime" && mount -t proc proc "$root/proc" &&
mount --bind "$work" "$root/work" && mount --bind "$runtime" "$root/runtime" &&
exec chroot "$root" sh -c 'cd /work && exec "$@"' sh "$@"
"""


@dataclass(frozen=True)
class SwiftToolchain:
    """A root file system with Swift."""

    root: Path
    runtime: Path
    """A folder with ``libonnxruntime.so.1``."""

    def run(
        self, argv: Sequence[str | Path], *, folder: Path, timeout_s: float = RUN_TIMEOUT_S
    ) -> ProgramResult:
        """Run a program to its end, in ``/work``.

        Args:
            argv: The program and its arguments, with paths as they are there.
            folder: What ``/work`` is.
            timeout_s: It is killed after so long.

        Raises:
            ToolError: It took longer, or its exit code is not 0; with what it said.
        """
        environment = ["env", "-i", "HOME=/root", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
        environment += [f"LD_LIBRARY_PATH={_SWIFT_LIBRARIES}:/runtime"]
        places = [str(self.root), str(folder), str(self.runtime)]
        isolated = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        inner = [*environment, *map(str, argv)]
        done = run_program(
            [*isolated, "sh", "-c", _ENTER, "sh", *places, *inner], timeout_s=timeout_s
        )
        if done.exit_code:
            said = f"{done.text}\n{done.stderr.decode('utf-8', 'replace')}".strip()
            raise ToolError(
                f"{argv[0]} ended with exit code {done.exit_code}:\n{said[-8000:]}",
                hint="mend what it names",
            )
        return done


def toolchain() -> SwiftToolchain:
    """Return the root file system with Swift; it is made if it is not there.

    Raises:
        ToolError: This is not root, mmdebstrap or a mirror is missing, or it cannot be made.
    """
    named = os.environ.get(VARIABLE)
    kept = KEPT / "swift"
    root = Path(named).absolute() if named else debian_root(kept, RELEASE, PACKAGES)
    with locked(kept):
        return SwiftToolchain(root, _runtime())


def _runtime() -> Path:
    """Return a folder with edgepack's own onnxruntime under the name that programs load."""
    found = importlib.util.find_spec("onnxruntime")
    if found is None or found.origin is None:
        raise ToolError("there is no onnxruntime here", hint="install what edgepack needs")
    library = next(Path(found.origin).parent.glob("capi/libonnxruntime.so.1.*"))
    folder = KEPT / "swift" / library.name.removeprefix("lib")
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
        if not (folder / name).exists():
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(library, folder / name)
    return folder
