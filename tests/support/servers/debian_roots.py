"""Root file systems of Debian releases, made once and kept; only root can make and enter them."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from edgepack.base.processes import run_program
from edgepack.errors import ToolError

MAKE_TIMEOUT_S = 1800.0
# Of this machine's settings for apt, those that decide whether it reaches and accepts a mirror.
_KEPT_SETTINGS = ("Acquire::http", "Acquire::https", "Acquire::Check-", "Acquire::Retries")


def debian_root(kept: Path, release: str, packages: Sequence[str], arch: str = "") -> Path:
    """Return a root file system with these packages; it is made if it is not there.

    Args:
        kept: The folder for all of them.
        release: The name of a Debian release.
        packages: What it has beside apt and what is essential.
        arch: Debian's word for another processor, whose programs this kernel has to start.

    Raises:
        ToolError: This is not root, mmdebstrap or a mirror is missing, or it cannot be made.
    """
    if os.geteuid() != 0:
        raise ToolError(
            f"Debian {release} is a root file system, which only root can make and enter",
            hint="run this as root",
        )
    recipe = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:8]
    root = kept / "-".join([release, *([arch] if arch else []), recipe])
    with locked(kept):
        if not root.is_dir():
            _make(root, release, packages, arch)
    return root


def _make(root: Path, release: str, packages: Sequence[str], arch: str) -> None:
    """Make the root file system, whole or not at all."""
    if shutil.which("mmdebstrap") is None:
        raise ToolError(
            "there is no 'mmdebstrap' on PATH, which makes Debian root file systems",
            hint="install it; on Debian: apt-get install mmdebstrap",
        )
    new = root.with_name(f"{root.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    argv = ["mmdebstrap", "--quiet", "--mode=root", "--variant=apt"]
    argv += [f"--include={','.join(packages)}", "--dpkgopt=force-unsafe-io"]
    argv += [f"--arch={arch}"] if arch else []
    argv += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "locale", "man")]
    argv += [f"--aptopt={line}" for line in _apt_settings()]
    done = run_program([*argv, release, str(new), find_mirror(release)], timeout_s=MAKE_TIMEOUT_S)
    if done.exit_code:
        said = done.stderr.decode("utf-8", "replace").strip()[-2000:]
        raise ToolError(
            f"mmdebstrap cannot make Debian {release}:\n{said}",
            hint="see that apt-get update works on this machine",
        )
    new.rename(root)


def find_mirror(release: str) -> str:
    """Return a line of sources.list for the release, from this machine's own mirror of Debian.

    Raises:
        ToolError: Its apt knows none.
    """
    wanted = "$(ORIGIN) $(COMPONENT) $(REPO_URI)"
    argv = ["apt-get", "indextargets", "--format", wanted, "Created-By: Packages"]
    for words in map(str.split, run_program(argv, timeout_s=60).text.splitlines()):
        if words[:2] == ["Debian", "main"] and "security" not in words[2]:
            return f"deb {words[2]} {release} main"
    raise ToolError(
        "this machine's apt has no source of Debian", hint="add one, and run apt-get update"
    )


def _apt_settings() -> list[str]:
    lines = run_program(["apt-config", "dump", "--no-empty"], timeout_s=60).text.splitlines()
    return [line.removesuffix(";") for line in lines if line.startswith(_KEPT_SETTINGS)]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder; a second process waits."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
