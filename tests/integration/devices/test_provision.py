"""Provisioning over real SSH, with small wheels of our own in place of the package index."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from edgepack.demo.server import LoopbackServer
from edgepack.devices import provisioning
from edgepack.devices.checking import check, find_runtime_python
from edgepack.devices.inventory import Device
from edgepack.devices.probing import probe
from edgepack.devices.provisioning import Provisioned, provision
from edgepack.devices.transports import connect
from edgepack.errors import DeviceError, RemoteCommandError, ToolError, UsageError
from edgepack.project.profile import find_host_target, load_profile

from tests.support.servers.loopback import ssh_device

PINS = load_profile("host").runtime.packages
ONNXRUNTIME = PINS["onnxruntime"].removeprefix("==")
PROVIDERS = "def get_available_providers():\n    return ['CPUExecutionProvider']\n"

pytestmark = pytest.mark.skipif(
    not provisioning._find_bundled_pip(),
    reason="this Python carries no pip wheel, which --offline needs",
)


def write_wheel(folder: Path, name: str, version: str, code: str = "") -> Path:
    """Write a wheel with one module."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", f"__version__ = {version!r}\n{code}")
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("wheels")
    return [
        write_wheel(folder, "onnxruntime", ONNXRUNTIME, PROVIDERS),
        write_wheel(folder, "numpy", "2.0.0"),
    ]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackServer]:
    with LoopbackServer(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture
def device(server: LoopbackServer, tmp_path: Path) -> Device:
    return ssh_device(server, target=find_host_target(), root=str(tmp_path / "root"))


@pytest.fixture(scope="module")
def first(
    server: LoopbackServer, wheels: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Provisioned]:
    """The root of a provisioned device, and what was made there."""
    root = tmp_path_factory.mktemp("first") / "root"
    device = ssh_device(server, target=find_host_target(), root=str(root))
    return root, provision(device, wheels=wheels, offline=True)


@pytest.fixture
def provisioned(first: tuple[Path, Provisioned], device: Device, tmp_path: Path) -> Device:
    """A device that is as the first one was left: the environment can be moved."""
    shutil.copytree(first[0], tmp_path / "root", symlinks=True)
    return device


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.slow(reason="takes seconds")
def test_provisioned_device_is_ready(
    device: Device, server: LoopbackServer, first: tuple[Path, Provisioned]
) -> None:
    with pytest.raises(DeviceError, match="edgepack device provision board"):
        check(device).require_ready()
    root, made = first
    device = ssh_device(server, target=find_host_target(), root=str(root))
    assert made.packages == {"onnxruntime": ONNXRUNTIME, "numpy": "2.0.0"}
    assert made.providers == ("CPUExecutionProvider",)
    assert check(device).problems == ()
    with connect(device) as transport:
        assert find_runtime_python(device, probe(device, transport)) == str(made.python)
    assert names(root) == sorted(["venv", str((root / "venv").readlink())])


@pytest.mark.slow(reason="makes virtual environments")
def test_same_wheels_are_not_installed_again(provisioned: Device, wheels: list[Path]) -> None:
    said: list[str] = []
    provision(provisioned, wheels=wheels, offline=True, progress=said.append)
    assert not [line for line in said if "pushing" in line or "installing" in line]


@pytest.mark.slow(reason="makes virtual environments")
def test_new_wheels_take_the_place_of_old_ones(
    provisioned: Device, wheels: list[Path], tmp_path: Path
) -> None:
    old = (tmp_path / "root" / "venv").readlink()
    newer = [wheels[0], write_wheel(tmp_path / "newer", "numpy", "2.1.0")]
    assert provision(provisioned, wheels=newer, offline=True).packages["numpy"] == "2.1.0"
    new = (tmp_path / "root" / "venv").readlink()
    assert names(tmp_path / "root") == sorted(["venv", str(old), str(new)])


@pytest.mark.slow(reason="makes virtual environments")
def test_runtime_that_does_not_work_is_not_switched_to(
    provisioned: Device, wheels: list[Path], tmp_path: Path
) -> None:
    before = (tmp_path / "root" / "venv").readlink()
    broken = write_wheel(tmp_path / "b", "onnxruntime", ONNXRUNTIME, "raise ImportError('libx')\n")
    with pytest.raises(DeviceError, match=r"does not work: no usable onnxruntime: libx"):
        provision(provisioned, wheels=[broken, wheels[1]], offline=True)
    assert (tmp_path / "root" / "venv").readlink() == before


def test_missing_wheel_is_named_before_anything_is_pushed(
    device: Device, wheels: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(ToolError, match=r"(?s)cannot fetch the wheels.*onnxruntime"):
        provision(device, wheels=wheels[1:], offline=True)
    assert not (tmp_path / "root").exists()


@pytest.mark.slow(reason="makes virtual environments")
def test_environment_of_someone_else_is_left_alone(
    device: Device, wheels: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "root" / "venv").mkdir(parents=True)
    (tmp_path / "root" / "venv" / "mine").write_text("mine")
    with pytest.raises(RemoteCommandError, match="not made by edgepack"):
        provision(device, wheels=wheels, offline=True)
    assert (tmp_path / "root" / "venv" / "mine").read_text() == "mine"


def test_device_with_its_own_python_is_not_provisioned(device: Device, wheels: list[Path]) -> None:
    entry = device.entry.model_copy(update={"python": "/opt/python"})
    with pytest.raises(UsageError, match="python: /opt/python"):
        provision(Device("board", entry), wheels=wheels, offline=True)
