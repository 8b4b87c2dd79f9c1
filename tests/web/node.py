"""Node and the npm packages that the proofs need.

``package.json`` and ``package-lock.json`` beside this file pin them; npm installs them into
``.web``, once for each lock. Their install scripts do not run: onnxruntime-node's fetches
libraries for CUDA.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from edgepack.base.processes import ProgramResult, run_program
from edgepack.errors import ToolError

from tests.mobile.jvm import require_tool
from tests.mobile.proofs import ROOT

HERE = Path(__file__).parent
KEPT = ROOT / ".web"
"""What the proofs fetch once; git ignores it."""
INSTALL_TIMEOUT_S = 900.0
_LOCK = "package-lock.json"
_DEBIAN = {"node": "nodejs", "npm": "npm"}


def install_packages() -> Path:
    """Return the folder ``node_modules`` with the pinned packages.

    Raises:
        ToolError: There is no npm, or it cannot fetch them.
    """
    digest = hashlib.sha256((HERE / _LOCK).read_bytes()).hexdigest()[:12]
    folder = KEPT / f"packages-{digest}"
    KEPT.mkdir(exist_ok=True)
    with (KEPT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _install(folder)
    return folder / "node_modules"


def _install(folder: Path) -> None:
    """Have npm install the packages into a folder, which is whole or absent."""
    new = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    for name in ("package.json", _LOCK):
        shutil.copy(HERE / name, new / name)
    argv = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = run_tool(argv, timeout_s=INSTALL_TIMEOUT_S, cwd=new)
    if done.exit_code:
        raise ToolError(
            f"npm cannot install the packages{done.last_lines}",
            hint="connect to the npm registry, or name a mirror of it in ~/.npmrc",
        )
    new.rename(folder)


def run_node(script: Path, *arguments: str | Path, timeout_s: float = 300) -> ProgramResult:
    """Run a script to its end, and return what it printed.

    Raises:
        ToolError: There is no Node, it took longer, or its exit code is not 0; with what it said.
    """
    argv = ["node", str(script), *map(str, arguments)]
    done = run_tool(argv, timeout_s=timeout_s)
    if done.exit_code:
        said = done.stderr.decode("utf-8", "replace").strip()
        raise ToolError(
            f"{script.name} ended with exit code {done.exit_code}:\n{said}",
            hint="mend what it names",
        )
    return done


def run_tool(argv: Sequence[str], *, timeout_s: float, cwd: Path | None = None) -> ProgramResult:
    """Run Node or npm.

    Raises:
        ToolError: It is missing; the hint names its Debian package. Or it took longer.
    """
    require_tool(argv[0], "Node 20 or newer and npm", _DEBIAN[argv[0]])
    return run_program(argv, timeout_s=timeout_s, cwd=cwd)
