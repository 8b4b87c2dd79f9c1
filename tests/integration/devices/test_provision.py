"""Provisioning over real SSH, with small wheels of our own in place of the package index."""

from __future__ import annotations

import json
import platform
import re
import shutil
import threading
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from edgepack.base.processes import ProgramResult
from edgepack.cli.main import run
from edgepack.demo.server import LoopbackServer
from edgepack.deploy.fleet.store import ProvisionOptions
from edgepack.deploy.leases import leased
from edgepack.deploy.operations import provision_device
from edgepack.devices.checking import check, find_runtime_python
from edgepack.devices.inventory import Device
from edgepack.devices.probing import Missing, probe
from edgepack.devices.provisioning import wheels as fetching
from edgepack.devices.provisioning.provision import Provisioned
from edgepack.devices.provisioning.wheelhouse import Wheelhouse
from edgepack.devices.provisioning.wheels import WheelNeeds
from edgepack.devices.transports import connect
from edgepack.errors import BusyError, DeviceError, RemoteCommandError, ToolError, UsageError
from edgepack.project.profile import find_host_target, load_profile

from tests.support.servers.loopback import ssh_device, ssh_entry

PINS = load_profile("host").runtime.packages
ONNXRUNTIME = PINS["onnxruntime"].removeprefix("==")
PROVIDERS = "def get_available_providers():\n    return ['CPUExecutionProvider']\n"

pytestmark = pytest.mark.skipif(
    not fetching.find_bundled_pip(),
    reason="this Python carries no pip wheel, which --offline needs",
)


def provision(
    device: Device, *, progress: Callable[[str], None] = lambda _: None, **options: Any
) -> Provisioned:
    """Provision a device with these options."""
    return provision_device(device, ProvisionOptions(**options), progress=progress)


def write_wheel(folder: Path, name: str, version: str, code: str = "", module: str = "") -> Path:
    """Write a wheel with one module, which has its name if no other is given."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{module or name}/__init__.py", f"__version__ = {version!r}\n{code}")
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
    """What is in a device's root, without the leases."""
    return sorted(path.name for path in folder.iterdir() if path.name != "lease")


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
    with pytest.raises(ToolError, match=f"--wheel has no wheel of onnxruntime=={ONNXRUNTIME} for"):
        provision(device, wheels=wheels[1:], offline=True)
    assert not (tmp_path / "root").exists()


def test_wheel_that_is_cut_short_or_no_wheel_is_refused_before_anything_is_asked(
    device: Device, wheels: list[Path], tmp_path: Path
) -> None:
    short = tmp_path / wheels[0].name
    short.write_bytes(wheels[0].read_bytes()[:-30])
    (tmp_path / "onnxruntime.whl").write_bytes(wheels[0].read_bytes())
    for path in (short, tmp_path / "onnxruntime.whl"):
        with pytest.raises(UsageError, match=f"{path}' is no whole wheel"):
            provision(device, wheels=[path, wheels[1]], offline=True)


@pytest.mark.parametrize("tag", ["cp27-cp27m-linux_x86_64", "py3-none-win_amd64"])
def test_wheel_for_another_kind_of_device_is_refused_with_both_kinds(
    device: Device, wheels: list[Path], tmp_path: Path, tag: str
) -> None:
    other = tmp_path / f"onnxruntime-{ONNXRUNTIME}-{tag}.whl"
    other.write_bytes(wheels[0].read_bytes())
    said = rf"{other.name} is for {tag}, and the device has Python {platform.python_version()} on "
    with pytest.raises(ToolError, match=re.escape(said).replace("\\ ", " ")):
        provision(device, wheels=[other, wheels[1]], offline=True)
    assert not (tmp_path / "root").exists()


@pytest.mark.slow(reason="makes virtual environments")
def test_runtime_under_another_name_takes_the_place_of_the_pinned_one(
    device: Device, wheels: list[Path], tmp_path: Path
) -> None:
    """Of providers that no variant of the target names, none is tried."""
    code = PROVIDERS.replace("'CPU", "'CUDAExecutionProvider', 'CPU")
    own = write_wheel(tmp_path / "own", "onnxruntime_gpu", ONNXRUNTIME, code, "onnxruntime")
    made = provision(device, wheels=[own, wheels[1]], offline=True)
    assert made.providers == ("CUDAExecutionProvider", "CPUExecutionProvider")
    with connect(device) as transport:
        facts = probe(device, transport)
    assert not isinstance(facts.python, Missing)
    assert facts.python.distributions == {"onnxruntime_gpu": ONNXRUNTIME}


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


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package index that refuses every connection, here and on boards."""
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")
    monkeypatch.setenv("PIP_RETRIES", "0")


@pytest.fixture
def wheelhouse(wheels: list[Path], tmp_path: Path) -> Path:
    folder = tmp_path / "wheelhouse"
    folder.mkdir()
    for path in [*wheels, *map(Path, fetching.find_bundled_pip())]:
        shutil.copy(path, folder)
    return folder


@pytest.mark.slow(reason="makes virtual environments")
@pytest.mark.usefixtures("no_index")
def test_wheelhouse_is_enough_for_a_board_whose_python_has_no_pip(
    device: Device, server: LoopbackServer, wheelhouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor has this machine's Python a wheel of pip to give."""
    lacking = server.home / "lacking"
    for name in ("pip", "ensurepip"):
        (lacking / name).mkdir(parents=True)
        (lacking / name / "__init__.py").write_text("raise ImportError('not installed')\n")
    start = server.start
    monkeypatch.setattr(server, "start", lambda line: start(f"export PYTHONPATH={lacking}; {line}"))
    monkeypatch.setattr(fetching, "find_bundled_pip", list)
    with connect(device) as transport:
        for name in ("pip", "ensurepip"):
            assert transport.send(["python3", "-m", name], [], timeout_s=60).exit_code != 0
    made = provision(device, wheelhouse=wheelhouse)
    assert made.packages == {"onnxruntime": ONNXRUNTIME, "numpy": "2.0.0"}


@pytest.mark.usefixtures("no_index")
@pytest.mark.parametrize("missing", ["onnxruntime", "pip"])
def test_wheel_that_a_wheelhouse_lacks_is_named_with_the_command_that_fetches_it(
    device: Device,
    wheelhouse: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    missing: str,
) -> None:
    monkeypatch.setattr(fetching, "find_bundled_pip", list)
    next(wheelhouse.glob(f"{missing}-*")).unlink()
    wanted = f"onnxruntime=={ONNXRUNTIME}" if missing == "onnxruntime" else "pip"
    version = platform.python_version_tuple()
    said = rf"{wheelhouse} has no wheel of {wanted} for Python {version[0]}\.\d+\.\d+ on \S+ with "
    with pytest.raises(ToolError, match=said) as caught:
        provision(device, wheelhouse=wheelhouse)
    assert f"edgepack device wheels board --to {wheelhouse}" in caught.value.hint
    assert not (tmp_path / "root").exists()


def test_wheelhouse_that_is_not_there_is_named(device: Device, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder") as caught:
        provision(device, wheelhouse=tmp_path / "none")
    assert "edgepack device wheels" in caught.value.hint
    with pytest.raises(UsageError, match="there is no wheel"):
        provision(device, wheels=[tmp_path / "none.whl"], offline=True)


@pytest.mark.slow(reason="makes virtual environments")
def test_environment_that_was_cut_off_is_made_anew(
    device: Device, server: LoopbackServer, wheelhouse: Path, tmp_path: Path
) -> None:
    def cut(stage: str) -> None:
        if stage.startswith("installing"):
            threading.Timer(0.5, server.drop_connections).start()

    with pytest.raises(DeviceError):
        provision(device, wheelhouse=wheelhouse, progress=cut)
    root = tmp_path / "root"
    assert not (root / "venv").exists()
    made = provision(device, wheelhouse=wheelhouse)
    [place] = root.glob("venv-*")
    assert names(root) == ["venv", place.name]
    (place / ".whole").unlink()
    said: list[str] = []
    assert provision(device, wheelhouse=wheelhouse, progress=said.append) == made
    assert "installing on the device" in said
    assert (place / ".whole").exists()


@pytest.mark.slow(reason="makes virtual environments")
def test_device_that_others_hold_is_not_provisioned(
    device: Device, wheels: list[Path], tmp_path: Path
) -> None:
    with connect(device) as transport:
        with (
            leased(transport, device, "bench digits"),
            pytest.raises(BusyError, match="bench digits"),
        ):
            provision(device, wheels=wheels, offline=True)
        assert not (tmp_path / "root" / ".wheels").exists()
        assert provision(device, wheels=wheels, offline=True).packages
        with leased(transport, device, "bench digits"):
            pass


@pytest.mark.slow(reason="makes virtual environments")
def test_two_that_provision_a_device_at_once_do_it_one_after_the_other(
    device: Device, wheels: list[Path], tmp_path: Path
) -> None:
    newer = [wheels[0], write_wheel(tmp_path / "newer", "numpy", "2.1.0")]
    said: list[str] = []

    def provide(given: list[Path]) -> str:
        made = provision(device, wheels=given, offline=True, wait_s=120, progress=said.append)
        return made.packages["numpy"]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(provide, (wheels, newer))) == ["2.0.0", "2.1.0"]
    assert any("is leased by" in line for line in said)
    with connect(device) as transport:
        python = find_runtime_python(device, probe(device, transport))
    assert python == str(tmp_path / "root" / "venv" / "bin" / "python")
    assert not (tmp_path / "root" / ".wheels").exists()


def as_index(wheelhouse: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Let pip find these wheels as it would find those of its index; return how it is called."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheelhouse))
    called: list[list[str]] = []
    run = fetching.run_program

    def counted(argv: list[str], **options: float) -> ProgramResult:
        called.append(argv)
        return run(argv, **options)

    monkeypatch.setattr(fetching, "run_program", counted)
    return called


def test_wheels_are_fetched_once_for_all_devices_that_need_the_same(
    server: LoopbackServer,
    wheelhouse: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    called = as_index(wheelhouse, monkeypatch)
    monkeypatch.chdir(tmp_path)
    entry = ssh_entry(server) | {"target": find_host_target(), "tags": ["lab"]}
    devices = {f"b{number}": entry for number in range(3)}
    text = json.dumps({"schema_version": 1, "devices": devices})
    (tmp_path / "devices.yaml").write_text(text)
    assert run(["device", "wheels", "tag:lab", "--to", "there", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["devices"]
    assert sorted(found) == sorted(devices)
    assert len(called) == 1
    assert names(tmp_path / "there") == names(wheelhouse) == found["b1"]["result"]["files"]
    next(wheelhouse.glob("numpy-*")).unlink()
    assert run(["device", "wheels", "tag:lab", "--to", "elsewhere", "--json"]) == 5
    found = json.loads(capsys.readouterr().out)["devices"]
    assert "the package index gave no wheel of numpy" in found["b2"]["problem"]
    assert len(called) == 2
    assert names(tmp_path / "elsewhere") == []


def test_wheels_when_interrupted_leave_nothing_half_written(
    device: Device, wheelhouse: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(argv: list[str], **_options: float) -> ProgramResult:
        [folder] = [word.partition("=")[2] for word in argv if word.startswith("--dest=")]
        (Path(folder) / "numpy-2.0.0-py3-none-any.whl").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(fetching, "run_program", interrupt)
    with pytest.raises(KeyboardInterrupt):
        Wheelhouse(tmp_path / "there").fetch(device)
    assert names(tmp_path / "there") == []


@pytest.mark.slow(reason="downloads wheels")
def test_real_wheels_are_fetched_for_each_kind_of_board(tmp_path: Path) -> None:
    house = Wheelhouse(tmp_path / "there")
    pins = (f"numpy{PINS['numpy']}", "protobuf")
    for python, arch, libc in [
        ("3.11.2", "aarch64", "glibc 2.36"),
        ("3.12.3", "x86-64", "glibc 2.39"),
    ]:
        house._fetch(WheelNeeds(python, arch, libc, pins), "board")
    found = names(tmp_path / "there")
    for tags in ("cp311-.*_aarch64", "cp312-.*_x86_64"):
        assert [name for name in found if re.search(f"^numpy-.*{tags}", name)]
    assert [name for name in found if name.startswith("pip-")]
    with pytest.raises(ToolError, match=r"package index gave no wheel of numpy.* for Python 3\.11"):
        house._fetch(WheelNeeds("3.11.2", "riscv64", "glibc 2.36", pins), "board")
    assert names(tmp_path / "there") == found
