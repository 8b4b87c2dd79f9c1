"""Provisioning with wheels of a second package index, with the real pip and two indexes here."""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from edgepack.demo.server import LoopbackServer
from edgepack.devices.inventory import Device
from edgepack.devices.provisioning import wheels as fetching
from edgepack.devices.provisioning.provision import provision
from edgepack.devices.provisioning.wheelhouse import Wheelhouse
from edgepack.devices.provisioning.wheels import WheelSource
from edgepack.devices.transports import connect
from edgepack.errors import ToolError
from edgepack.project.profile import find_host_target, find_target_file

from tests.integration.devices.test_provision import ONNXRUNTIME, PROVIDERS, write_wheel
from tests.support.servers.loopback import ssh_device

VENDOR = "vendor-libs"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_words: object) -> None:
        pass


@pytest.fixture
def indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Two indexes, ``usual`` and ``vendor``, which both have the vendor's package."""
    usual, vendor = tmp_path / "served" / "usual", tmp_path / "served" / "vendor"
    for folder, name, module in (
        (usual, "numpy", ""),
        (usual, "onnxruntime", ""),
        (usual, "vendor_libs", "somebody_else"),
        (vendor, "vendor_libs", "vendors_own"),
    ):
        version = {"numpy": "2.0.0", "onnxruntime": ONNXRUNTIME}.get(name, "1.0")
        place = folder / name.replace("_", "-")
        place.mkdir(parents=True)
        write_wheel(place, name, version, PROVIDERS, module)
    found = fetching.find_bundled_pip()
    if not found:
        pytest.skip("this Python carries no pip wheel, which the index here lacks too")
    (usual / "pip").mkdir()
    (usual / "pip" / Path(found[0]).name).write_bytes(Path(found[0]).read_bytes())
    handler = functools.partial(Quiet, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("PIP_INDEX_URL", f"{address}/usual")
        monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
        monkeypatch.setenv("PIP_RETRIES", "0")
        for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
            monkeypatch.delenv(name, raising=False)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield address
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def device(indexes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    monkeypatch.chdir(tmp_path)
    write_target(tmp_path, indexes)
    with LoopbackServer(tmp_path / "server") as server:
        yield ssh_device(server, target="own", root=str(tmp_path / "root"))


def write_target(site: Path, address: str, **changes: Any) -> None:
    profile = yaml.safe_load(find_target_file(find_host_target()).read_text(encoding="utf-8"))
    profile["id"] = "own"
    origin = {"kind": "index", "url": f"{address}/vendor", "packages": {VENDOR: "==1.0"}}
    profile["runtime"]["origins"] = [origin | changes]
    (site / "targets").mkdir(exist_ok=True)
    (site / "targets" / "own.yaml").write_text(yaml.safe_dump(profile))


def vendor_wheel(site: Path) -> Path:
    return next((site / "served" / "vendor").glob("*/*.whl"))


@pytest.mark.slow(reason="makes virtual environments")
def test_package_comes_from_its_index_though_the_usual_one_has_that_name(
    device: Device, tmp_path: Path, indexes: str
) -> None:
    wheel = vendor_wheel(tmp_path)
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    write_target(tmp_path, indexes, sha256={wheel.name: sha256})
    made = provision(device)
    with connect(device) as transport:
        there = "import vendors_own, importlib.util as u; print(u.find_spec('somebody_else'))"
        done = transport.run([str(made.python), "-c", there], timeout_s=60)
    assert done.text.strip() == "None"


@pytest.mark.slow(reason="makes virtual environments")
def test_wheelhouse_gets_it_too_and_gives_it_on(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = Wheelhouse(tmp_path / "house").fetch(device)
    assert vendor_wheel(tmp_path).name in fetched.files
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")
    made = provision(device, WheelSource(wheelhouse=tmp_path / "house", is_offline=True))
    with connect(device) as transport:
        done = transport.run([str(made.python), "-c", "import vendors_own"], timeout_s=60)
    assert done.exit_code == 0


def test_other_indexes_of_pips_own_settings_are_not_asked(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indexes: str
) -> None:
    """Another file of the same name and a higher build is in the usual index, which is extra."""
    write_target(tmp_path, indexes, packages={VENDOR: ">=1.0"})
    write_wheel(tmp_path / "served" / "usual" / VENDOR, "vendor_libs", "1.1", "", "somebody_else")
    (tmp_path / "pip.conf").write_text(f"[global]\nextra-index-url = {indexes}/usual\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    fetched = Wheelhouse(tmp_path / "house").fetch(device)
    assert vendor_wheel(tmp_path).name in fetched.files
    assert not [name for name in fetched.files if name.startswith("vendor_libs-1.1")]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"url": "http://127.0.0.1:9/"}, r"http://127.0.0.1:9/ gave no fitting vendor-libs==1\.0"),
        ({"packages": {VENDOR: "==2.0"}}, r"/vendor gave no fitting vendor-libs==2\.0"),
        (
            {"sha256": {"vendor_libs-1.0-py3-none-any.whl": "0" * 64}},
            "/vendor gave another vendor_libs-1.0-py3-none-any.whl than the target names",
        ),
        ({"sha256": {"other.whl": "0" * 64}}, "gave another vendor_libs-1.0-py3-none-any.whl than"),
    ],
)
def test_index_that_does_not_give_what_is_pinned_ends_it_before_anything_is_pushed(
    device: Device, tmp_path: Path, indexes: str, changes: dict[str, Any], problem: str
) -> None:
    write_target(tmp_path, indexes, **changes)
    with pytest.raises(ToolError, match=problem):
        provision(device)
    assert not (tmp_path / "root").exists()
