"""The kinds of board: which Debian, which target, and what has to run there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

CPU = "CPUExecutionProvider"
XNNPACK = "XnnpackExecutionProvider"


@dataclass(frozen=True)
class Kind:
    """A system that boards have, and the target of it."""

    release: str
    """The name of a Debian release."""
    arch: Literal["aarch64", "x86-64"]
    """Of what the board runs; another one than this machine's is emulated."""
    packages: str
    """What its root file system has beside the essential packages."""
    target: str
    variant: str
    """The one that the loader has to choose."""
    provider: str
    """Where that has to run."""
    brings: str
    """Of which origin the provisioned onnxruntime has to be."""

    @property
    def is_emulated(self) -> bool:
        """Whether its processor is another one than that of the machine, which is x86-64."""
        return self.arch != "x86-64"

    @property
    def debian_arch(self) -> str:
        """What Debian calls the architecture."""
        return {"aarch64": "arm64", "x86-64": "amd64"}[self.arch]

    @property
    def machine(self) -> str:
        """What ``uname -m`` calls the architecture."""
        return {"aarch64": "aarch64", "x86-64": "x86_64"}[self.arch]


# libstdc++6: onnxruntime's wheel needs it, and the essential packages do not.
OLDER = Kind(
    release="bookworm",
    arch="aarch64",
    packages="libstdc++6,passwd,python3,python3-venv",
    target="raspberry-pi",
    variant="cpu-int8-static",
    provider=CPU,
    brings="",
)
# As Raspberry Pi OS since October 2025: its own apt has an onnxruntime with XNNPACK. A stock Debian
# has Python without ensurepip: the boards of Debian 13 are such.
NEWER = Kind(
    release="trixie",
    arch="aarch64",
    packages="apt,libstdc++6,passwd,python3,python3-venv",
    target="raspberry-pi-xnnpack",
    variant="xnnpack-int8-static",
    provider=XNNPACK,
    brings="python3-onnxruntime 1.21.0",
)
# Nothing of this one is emulated: it is a Debian 13 on the processor of its target.
NATIVE = replace(NEWER, arch="x86-64", target="linux-x86-64-xnnpack")
KINDS = (OLDER, NEWER, NATIVE)
