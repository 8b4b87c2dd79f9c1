"""``edgepack device lease``, ``who`` and ``release`` on this machine."""

from __future__ import annotations

import json

import pytest
from edgepack.cli.main import run
from edgepack.deploy import leases


def test_device_lease_when_taken_is_shown_and_kept_from_others_until_released(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["device", "lease", "local", "--for", "5", "--purpose", "a new fan", "--json"]) == 0
    taken = json.loads(capsys.readouterr().out)
    assert 290 < taken["left_s"] <= 300
    assert run(["device", "who", "local", "--json"]) == 0
    [shown] = json.loads(capsys.readouterr().out)
    assert (shown["id"], shown["purpose"]) == (taken["id"], "a new fan")

    with monkeypatch.context() as other:
        other.setattr(leases, "find_own_name", lambda: "bob@elsewhere")
        assert run(["device", "lease", "local"]) == 8
        assert f"leased by {taken['owner']} for 'a new fan'" in capsys.readouterr().err
        assert run(["device", "release", "local"]) == 8
        assert "you have no reservation there" in capsys.readouterr().err

    assert run(["device", "release", "local"]) == 0
    assert "released: " in capsys.readouterr().out
    assert run(["device", "who", "local"]) == 0
    assert capsys.readouterr().out == "local is free\n"


def test_device_release_when_forced_takes_others_leases(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as other:
        other.setattr(leases, "find_own_name", lambda: "bob@elsewhere")
        assert run(["device", "lease", "local"]) == 0
    assert run(["device", "release", "local", "--force"]) == 0
    assert "released: bob@elsewhere" in capsys.readouterr().out
    assert run(["device", "release", "local"]) == 0
    assert capsys.readouterr().out == "local was free\n"
