"""A device that pulls, in a folder: its settings, and runs of the agent as a timer makes them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgepack.base.resources import find_ondevice_dir

AGENT = find_ondevice_dir() / "agent" / "edgepack_pull.py"
_SELF_TEST = """#!/bin/sh
# Stands for the device's Python where the loader itself is not what a test is about.
# Called as: -B RELEASE/harness/PROGRAM select --bundle RELEASE
if [ -e "$5/broken" ]; then echo "the golden outputs differ" >&2; exit 3; fi
echo '{}'
"""


def write_bundle(
    folder: Path, name: str, version: str = "1.0.0", *, broken: bool = False, size: int = 300_000
) -> Path:
    """Write what is a bundle for a device: a manifest, a large file and small ones."""
    folder.mkdir(parents=True)
    seed = hashlib.sha256(name.encode()).digest()
    shared = b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(size // 32))
    files = {
        "models/net.onnx": shared[: size // 2] + seed + shared[size // 2 :],
        "golden/0.bin": shared[:1000],
        "empty.txt": b"",
        "name.txt": name.encode(),
        **({"broken": b"x"} if broken else {}),
    }
    listed = []
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        listed.append({"path": path, "sha256": digest, "size_bytes": len(content), "mode": "644"})
    document = {
        "schema_version": 1,
        "name": "tiny",
        "version": version,
        "target": "linux-x86-64",
        "files": listed,
    }
    (folder / "manifest.json").write_text(json.dumps(document))
    return folder


@dataclass(frozen=True)
class Pulled:
    """How a run ended."""

    code: int
    result: str
    text: str
    stderr: str


@dataclass
class PullingDevice:
    """A device's root, enrolled for one channel."""

    root: Path
    registry: str
    signers: str
    settings: dict[str, Any] = field(default_factory=dict)
    credentials: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.python = self.root / "self-test"
        self.python.write_text(_SELF_TEST)
        self.python.chmod(0o755)
        self.write()

    @property
    def folder(self) -> Path:
        """Where the agent's settings and state are."""
        return self.root / ".pull" / "tiny"

    @property
    def base(self) -> Path:
        """The project's folder."""
        return self.root / "tiny"

    @property
    def current(self) -> str | None:
        """The current release."""
        link = self.base / "current"
        return link.readlink().name if link.is_symlink() else None

    @property
    def state(self) -> dict[str, Any]:
        """What the agent remembers of its channel."""
        document = json.loads((self.folder / "state.json").read_text())
        [found] = document["channels"].values()
        return {**found, "trial": document["trial"]}

    def write(self, **changes: Any) -> None:
        """Write settings, as enrolment does."""
        self.settings |= changes
        document = {
            "schema_version": 1,
            "registry": self.registry,
            "repository": "team/tiny",
            "channel": "stable",
            "project": "tiny",
            "target": "linux-x86-64",
            "python": str(self.python),
            "keep_releases": 2,
            "hook_timeout_s": 5.0,
            "patience_s": 8.0,
            "plain_http": True,
            **self.settings,
        }
        (self.folder / "settings.json").write_text(json.dumps(document))
        (self.folder / "allowed_signers").write_text(self.signers)
        if self.credentials is not None:
            path = self.folder / "credentials.json"
            path.write_text(json.dumps({"schema_version": 1, **self.credentials}))
            path.chmod(0o600)

    def argv(self) -> list[str]:
        """Return the command that a timer runs."""
        return [sys.executable, "-BEsS", str(AGENT), str(self.root), "tiny"]

    def pull(self, *under: str, **environment: str) -> Pulled:
        """Make one run."""
        done = subprocess.run(
            [*under, *self.argv()],
            capture_output=True,
            text=True,
            timeout=120.0,
            env={**os.environ, **environment},
            check=False,
        )
        result, _, text = done.stdout.partition(": ")
        return Pulled(done.returncode, result, text.strip(), done.stderr)
