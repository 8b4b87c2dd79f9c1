"""``edgepack device``: the inventory, from an empty one on."""

from __future__ import annotations

from pathlib import Path

import pytest
from edgepack.cli.main import run
from edgepack.devices.inventory import SshEntry, add_device, find_inventory


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("text", ["", "# mine\n", "---\n", "schema_version: 1\ndevices: {}\n"])
def test_list_when_the_inventory_is_empty_says_so(
    here: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (here / "devices.yaml").write_text(text)
    assert run(["device", "list"]) == 0
    said = capsys.readouterr().out
    assert "no other devices yet: edgepack device add NAME USER@HOST" in said
    assert "from devices.yaml" in said
    entry = SshEntry(transport="ssh", host="192.0.2.7", target="raspberry-pi")
    add_device(find_inventory(), "pi", entry)
    assert run(["device", "list"]) == 0
    said = capsys.readouterr().out
    assert "192.0.2.7" in said
    assert "no other devices yet" not in said
