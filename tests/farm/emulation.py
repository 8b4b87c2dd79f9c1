"""The root file system of emulated boards: the lab's, shared by all of the farm's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.farm.machines import say
from tests.lab import host
from tests.lab.kinds import OLDER
from tests.lab.rootfs import find_rootfs, unpack
from tests.lab.run import cache_folder

TARBALL = "EDGEPACK_FARM_ARM"
"""The variable that says, inside the namespaces, where the root file system is packed."""


@contextmanager
def emulated() -> Iterator[None]:
    """Let aarch64 programs start here, and find their root file system, where that is possible."""
    with ExitStack() as stack:
        try:
            host.require_host()
            stack.enter_context(host.only_one())  # a lab removes what others have left
            work = stack.enter_context(host.work_folder())
            stack.enter_context(host.emulation())
            os.environ[TARBALL] = str(find_rootfs(cache_folder(), work, say, OLDER))
        except (host.CannotRunError, host.LabError) as error:
            say(f"farm: no emulated boards: {error}")
        yield


def unpack_root(folder: Path) -> Path | None:
    """Unpack the root file system, and return it; None if there is none."""
    if TARBALL not in os.environ:
        return None
    unpack(Path(os.environ[TARBALL]), folder)
    return folder
