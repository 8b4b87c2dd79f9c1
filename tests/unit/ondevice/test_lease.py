"""The device's side of leases: what is stale, what conflicts, who wins a race."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from edgepack.ondevice.agent import edgepack_lease
from edgepack.ondevice.agent.edgepack_lease import Leases, Lost, Refused


def wish(**changes: Any) -> dict[str, Any]:
    asked = {"owner": "ann@lab", "purpose": "bench", "exclusive": True, "reserved": False}
    return {**asked, "ttl_s": 60.0, **changes}


@pytest.fixture
def leases(tmp_path: Path) -> Leases:
    return Leases(str(tmp_path / "root"))


def change(leases: Leases, record: dict[str, Any], **changes: Any) -> None:
    Path(leases.find_path(record["id"])).write_text(json.dumps({**record, **changes}))


@pytest.mark.parametrize(
    "changes",
    [
        {"boot_id": "another boot"},
        {"taken_s": time.monotonic() + 1e6},
        {"expires_s": time.monotonic()},
        {"id": "../../elsewhere"},
        {"owner": None, "taken_s": "soon"},
    ],
)
def test_take_when_the_other_lease_is_stale_removes_it(
    leases: Leases, changes: dict[str, Any]
) -> None:
    change(leases, leases.take(wish()), **changes)
    record = leases.take(wish(owner="bob@lab"))
    assert [path.stem for path in Path(leases.folder).glob("*.json")] == [record["id"]]


def test_take_when_a_power_cut_tore_the_other_lease_removes_it(leases: Leases) -> None:
    Path(leases.find_path(leases.take(wish())["id"])).write_bytes(b"")
    leases.take(wish())


@pytest.mark.parametrize("step_s", [-1e9, 1e8])
def test_take_when_the_wall_clock_steps_is_still_refused(
    leases: Leases, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    held = leases.take(wish())
    now = time.time()
    monkeypatch.setattr(edgepack_lease.time, "time", lambda: now + step_s)
    with pytest.raises(Refused) as caught:
        leases.take(wish())
    assert [record["id"] for record in caught.value.leases] == [held["id"]]


def test_take_when_there_is_no_boot_id_still_goes_by_the_monotonic_clock(
    leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases.boot = ""
    held = leases.take(wish())
    with pytest.raises(Refused):
        leases.take(wish())
    monkeypatch.setattr(edgepack_lease.time, "monotonic", lambda: held["taken_s"] - 1)
    leases.take(wish())


def test_take_when_many_race_lets_one_win(leases: Leases) -> None:
    def attempt(_: int) -> bool:
        try:
            leases.take(wish())
        except Refused:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(attempt, range(64))) == 1


def test_renew_when_others_had_the_device_meanwhile_is_lost(leases: Leases) -> None:
    mine = leases.take(wish(ttl_s=0.0))
    leases.drop([leases.take(wish())])
    with pytest.raises(Lost):
        leases.renew(mine, 60.0)
    assert list(Path(leases.folder).glob("*.json")) == []


def test_renew_when_late_and_nobody_had_the_device_holds_again(leases: Leases) -> None:
    mine = leases.take(wish(ttl_s=0.0))
    leases.renew(mine, 60.0)
    with pytest.raises(Refused):
        leases.take(wish())


def test_take_when_another_ends_while_leases_are_listed_takes_it(
    leases: Leases, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = leases.take(wish(exclusive=False))
    read = leases.read

    def read_too_late(identity: str) -> Any:
        leases.drop([other])
        return read(identity)

    monkeypatch.setattr(leases, "read", read_too_late)
    leases.take(wish(exclusive=False))
