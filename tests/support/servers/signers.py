"""SSH keys of the tests' own, and files that say who may sign."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.servers.tools import require_tool


def make_key(path: Path) -> Path:
    """Make a key without a passphrase; skip where there is no OpenSSH."""
    require_tool("ssh-keygen")
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)]
    subprocess.run(argv, check=True, capture_output=True)
    return path


def write_allowed(path: Path, **keys: Path) -> Path:
    """Write a file of allowed signers: keys by their owners' names."""
    lines = [
        f'{name} namespaces="edgepack,edgepack-channel" {key.with_suffix(".pub").read_text()}'
        for name, key in keys.items()
    ]
    path.write_text("".join(lines))
    return path
