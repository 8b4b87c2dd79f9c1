"""A board with dropbear, busybox and glibc, and no Python: checked, provisioned and measured."""

from __future__ import annotations

import importlib.util
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from edgepack.deploy.operations import provision_device
from edgepack.devices.checking import check
from edgepack.deploy.fleet.store import ProvisionOptions
from edgepack.measure.bench.run import bench

from tests.support.reports.tiny_bundle import write_tiny_bundle
from tests.support.servers.boards import Board
from tests.support.servers.dropbear_server import DropbearServer, add_libraries, require_dropbear
from tests.support.servers.loopback import ssh_device

CAPI = Path(str(importlib.util.find_spec("onnxruntime").origin)).parent / "capi"  # type: ignore[union-attr]


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A wheel of this machine's onnxruntime that has nothing but the library."""
    [library] = CAPI.glob("libonnxruntime.so.1.*")
    version = library.name.removeprefix("libonnxruntime.so.")
    path = tmp_path / f"onnxruntime-{version}-cp311-cp311-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        about = f"Metadata-Version: 2.1\nName: onnxruntime\nVersion: {version}\n"
        archive.writestr(f"onnxruntime-{version}.dist-info/METADATA", about)
        archive.writestr(f"onnxruntime-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        archive.writestr("onnxruntime/__init__.py", "")
        archive.write(library, f"onnxruntime/capi/{library.name}")
    return path


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    require_dropbear()
    with DropbearServer(tmp_path / "server", bare=True) as server:
        add_libraries(server.board, *CAPI.glob("libonnxruntime.so.1.*"))
        yield Board(ssh_device(server, root="/data"), server.board)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_tiny_bundle(tmp_path / "bundle")


def test_x(board: Board, wheel: Path, bundle: Path) -> None:
    print(check(board.device).facts.format_lines())
    made = provision_device(board.device, ProvisionOptions(wheels=[wheel]))
    print(made)
    report = bench(bundle, board.device, preset="smoke")
    d = json.loads(report.model_dump_json())
    for r in d["runs"]:
        r["latencies_ns"] = len(r["latencies_ns"])
    d["latencies_ns"] = 0
    print(json.dumps(d)[:9000])
    assert 0
