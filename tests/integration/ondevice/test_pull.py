"""Devices that pull: the real agent against a real registry, with what can go wrong on the way."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers.publisher import Publisher, format_signer, make_key
from tests.support.servers.pulling import PullingDevice, write_bundle
from tests.support.servers.registry import running_registry
from tests.support.servers.registry_faults import (
    Gate,
    answer_with,
    cut_at,
    gate,
    leave,
)

Offered = Any
"""An image manifest."""


@dataclass
class Site:
    """A registry with a gate before it, who publishes, and a device."""

    folder: Path
    publisher: Publisher
    key: Path
    gate: Gate
    device: PullingDevice

    def offer(self, name: str, **changes: Any) -> Offered:
        """Publish a small bundle, and return its manifest."""
        bundle = write_bundle(self.folder / "bundles" / name, name, **changes)
        return self.publisher.publish(bundle, self.key)

    def move(self, offered: Offered, sequence: int, **changes: Any) -> str:
        """Move the channel there; return the release."""
        self.publisher.move(offered, "stable", sequence, self.key, **changes)
        release: str = offered["annotations"]["dev.edgepack.manifest"][:16]
        return release


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_registry(tmp_path_factory.mktemp("registry")) as server:
        yield server.host


@pytest.fixture
def site(registry: str, tmp_path: Path) -> Iterator[Site]:
    key = make_key(tmp_path, "release")
    publisher = Publisher(
        registry, f"team{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:8]}/tiny"
    )
    with gate(registry) as standing:
        device = PullingDevice(
            tmp_path / "root",
            standing.host,
            format_signer(key),
            {"repository": publisher.repository},
        )
        yield Site(tmp_path, publisher, key, standing, device)


def test_a_release_is_installed_and_a_second_run_makes_one_small_request(site: Site) -> None:
    release = site.move(site.offer("one"), 1)
    assert site.device.pull().result == "installed"
    assert site.device.current == release
    text = (site.device.base / "current/name.txt").read_text()
    assert text == "one"
    assert (site.device.base / "current/manifest.json.sig").exists()
    before = len(site.gate.asked)
    pulled = site.device.pull()
    assert (pulled.code, pulled.result) == (0, "unchanged")
    [asked] = site.gate.asked[before:]
    assert asked.startswith("HEAD ")
    assert asked.endswith("/manifests/stable")


def test_only_chunks_that_differ_come_when_another_release_has_the_others(site: Site) -> None:
    site.move(site.offer("one"), 1)
    site.device.pull()
    before = read_received(site.device)
    release = site.move(site.offer("two"), 2)
    site.gate.asked.clear()
    assert site.device.pull().result == "installed"
    assert site.device.current == release
    assert (site.device.base / "current/models/net.onnx").read_bytes() == (
        site.folder / "bundles/two/models/net.onnx"
    ).read_bytes()
    ranged = [line for line in site.gate.asked if "bytes=" in line]
    assert ranged
    assert read_received(site.device) - before < 200_000
    assert (site.device.base / "current/golden/0.bin").stat().st_nlink == 2


def read_received(device: PullingDevice) -> int:
    report = json.loads((device.folder / "report.json").read_text())
    return int(report["received_bytes_total"])


def test_the_whole_blob_is_read_when_the_registry_ignores_ranges(site: Site) -> None:
    site.move(site.offer("one"), 1)
    site.device.pull()
    release = site.move(site.offer("two"), 2)
    site.gate.disturb("GET .*/blobs/", leave, without=("Range",))
    assert site.device.pull().result == "installed"
    assert site.device.current == release


def test_a_download_goes_on_where_it_broke(site: Site) -> None:
    release = site.move(site.offer("one"), 1)
    fault = site.gate.disturb("GET .*/blobs/", cut_at(120_000), times=200)
    pulled = site.device.pull()
    assert pulled.result == "installed", pulled
    assert fault.seen > 3
    assert site.device.current == release
    assert [line for line in site.gate.asked if "bytes=120000-" in line]


def test_a_busy_registry_is_asked_again_after_what_it_says(site: Site) -> None:
    site.move(site.offer("one"), 1)
    site.gate.disturb("GET .*/blobs/", answer_with(503), times=1)
    site.gate.disturb("HEAD ", answer_with(429, Retry_After="1"), times=1)
    assert site.device.pull().result == "installed"


def test_a_registry_that_stays_down_ends_the_run_and_changes_nothing(site: Site) -> None:
    site.move(site.offer("one"), 1)
    site.device.pull()
    site.device.write(patience_s=1.0)
    site.move(site.offer("two"), 2)
    before = site.device.current
    site.gate.disturb("GET .*/blobs/", answer_with(503))
    pulled = site.device.pull()
    assert (pulled.code, pulled.result) == (75, "registry")
    assert site.device.current == before
    site.gate.faults.clear()
    assert site.device.pull().result == "installed"
