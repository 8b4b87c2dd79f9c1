"""Files that several commands change at once: nothing that any of them wrote is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from edgepack.base.files import locked, write_atomically
from edgepack.devices.inventory import load_inventory
from edgepack.devices.ssh.host_keys import find_own_known_hosts

AT_ONCE = 16
ADD = """
import sys
from pathlib import Path
from edgepack.devices.inventory import SshEntry, add_device
sys.stdin.read()
entry = SshEntry(transport="ssh", target="linux-x86-64", host="board.local")
add_device(Path(sys.argv[1]), f"board-{sys.argv[2]}", entry)
"""
TRUST = """
import sys
from edgepack.devices.ssh.host_keys import HostKey, write_trusted
sys.stdin.read()
write_trusted(f"board-{sys.argv[2]}", HostKey("ssh-ed25519", sys.argv[2].encode()))
"""


def run_at_once(program: str, *arguments: str) -> None:
    """Run a program in many processes that begin their work at the same time."""
    argv = [sys.executable, "-c", program, *arguments]
    gate, opener = os.pipe()
    started = [subprocess.Popen([*argv, str(number)], stdin=gate) for number in range(AT_ONCE)]
    os.close(gate)
    os.close(opener)
    assert [process.wait() for process in started] == [0] * AT_ONCE


@pytest.mark.slow(reason="starts many processes")
@pytest.mark.parametrize("old", [None, "", "# ours\n", "schema_version: 1\ndevices:\n"])
def test_inventory_when_extended_at_once_has_every_device(tmp_path: Path, old: str | None) -> None:
    path = tmp_path / "devices.yaml"
    if old is not None:
        path.write_text(old)
    run_at_once(ADD, str(path))
    assert sorted(load_inventory(path).devices) == sorted(f"board-{n}" for n in range(AT_ONCE))
    assert [file.name for file in tmp_path.iterdir()] == ["devices.yaml"]
    assert path.read_text().startswith(old or "")


@pytest.mark.slow(reason="starts many processes")
def test_host_keys_when_trusted_at_once_are_all_known(tmp_path: Path) -> None:
    run_at_once(TRUST, str(tmp_path))
    names = [line.split()[0] for line in find_own_known_hosts().read_text().splitlines()]
    assert sorted(names) == sorted(f"board-{n}" for n in range(AT_ONCE))


def test_locked_file_when_it_is_a_link_changes_what_it_leads_to(tmp_path: Path) -> None:
    file, link = tmp_path / "kept" / "file", tmp_path / "link"
    link.symlink_to(file)
    with locked(link) as path:
        write_atomically(path, "changed")
    assert link.is_symlink()
    assert file.read_text() == "changed"


def test_locked_file_when_nothing_was_written_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no"), locked(tmp_path / "file"):
        raise ValueError("no")
    assert not list(tmp_path.iterdir())
