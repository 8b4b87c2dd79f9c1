"""Folders of programs that are all that a device's commands find: no Python among them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

PROGRAMS = (
    *("awk", "cat", "chmod", "cp", "cut", "date", "df", "env", "find"),
    *("grep", "head", "ln", "ls", "mkdir", "mv", "printf", "readlink", "rm", "rmdir"),
    *("sed", "sh", "sha256sum", "sleep", "sort", "sync", "tail", "tar", "wc"),
)
"""What the agent for devices without Python calls."""


def link_programs(folder: Path) -> Path:
    """Fill a new folder with links to this machine's :data:`PROGRAMS`, and return it."""
    folder.mkdir()
    for name in PROGRAMS:
        if (found := shutil.which(name)) is not None:
            (folder / name).symlink_to(os.path.realpath(found))
    return folder


def link_busybox(folder: Path) -> Path:
    """Fill a new folder with busybox's applets, and return it.

    Raises:
        FileNotFoundError: There is no busybox.
    """
    folder.mkdir()
    busybox = shutil.which("busybox")
    if busybox is None:
        raise FileNotFoundError("busybox")
    subprocess.run([busybox, "--install", "-s", str(folder)], check=True)
    return folder
