"""The kinds of board: which Debian, which target, and what has to run there."""

from __future__ import annotations

from dataclasses import dataclass

CPU = "CPUExecutionProvider"
XNNPACK = "XnnpackExecutionProvider"


@dataclass(frozen=True)
class Kind:
    """A system that boards have, and the target of it."""

    release: str
    """The name of a Debian release."""
    packages: str
    """What its root file system has beside the essential packages."""
    target: str
    variant: str
    """The one that the loader has to choose."""
    provider: str
    """Where that has to run."""
    brings: str
    """Of which origin the provisioned onnxruntime has to be."""


# libstdc++6: onnxruntime's wheel needs it, and the essential packages do not.
OLDER = Kind(
    release="bookworm",
    packages="libstdc++6,passwd,python3,python3-venv",
    target="raspberry-pi",
    variant="cpu-int8-static",
    provider=CPU,
    brings="",
)
# As Raspberry Pi OS since October 2025: its own apt has an onnxruntime with XNNPACK.
NEWER = Kind(
    release="trixie",
    packages="apt,libstdc++6,passwd,python3,python3-venv",
    target="raspberry-pi-xnnpack",
    variant="xnnpack-int8-static",
    provider=XNNPACK,
    brings="python3-onnxruntime 1.21.0",
)
"""A stock Debian has Python without ensurepip: this board is one."""
