"""Provisioning of a Debian package, with the real apt, dpkg-deb and linker."""

from __future__ import annotations

import hashlib
import io
import platform
import re
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from edgepack.demo.server import LoopbackServer
from edgepack.devices.inventory import Device
from edgepack.devices.probing import Missing
from edgepack.devices.provisioning import provision as provisioning
from edgepack.devices.provisioning import wheels as fetching
from edgepack.devices.provisioning.debian import DebianRuntime, ask_debian
from edgepack.devices.provisioning.debian_wheel import make_wheel
from edgepack.devices.provisioning.provision import provision
from edgepack.devices.provisioning.wheelhouse import Wheelhouse
from edgepack.devices.transports import connect
from edgepack.errors import DeviceError, ToolError
from edgepack.project.profile import DebianPackage, find_host_target, find_target_file

from tests.integration.devices.test_provision import ONNXRUNTIME, PROVIDERS, write_wheel
from tests.support.servers.apt_repository import Repository, serve_repository
from tests.support.servers.loopback import ssh_device

PACKAGE = DebianPackage(kind="debian", package="python3-onnxruntime", at_least=ONNXRUNTIME)
HERE = platform.python_version()
MODULES = "usr/lib/python3/dist-packages"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
MODULE = f"""
import ctypes, pathlib
__version__ = {ONNXRUNTIME!r}
_state = ctypes.CDLL(str(pathlib.Path(__file__).parent / "capi" / "state.so"))
def get_available_providers():
    return ["XnnpackExecutionProvider"] if _state.state() == 42 else []
"""


def compile_library(folder: Path, name: str, code: str, *needed: Path) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    (folder / "code.c").write_text(code)
    argv = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(path)]
    subprocess.run([*argv, str(folder / "code.c"), *map(str, needed)], check=True)
    return path


class Board(LoopbackServer):
    """A device whose apt reads a repository."""

    apt_conf: Path
    path = ""

    def start(self, command: str) -> subprocess.Popen[bytes]:
        path = f"PATH={self.path}; " if self.path else ""
        return super().start(f"{path}export APT_CONFIG={self.apt_conf}; {command}")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    """What Debian has, in small: a module that needs a library, which needs another."""
    folder = tmp_path_factory.mktemp("debian")
    with serve_repository(folder) as served:
        made = folder / "made"
        deep = compile_library(made, "libdeep.so.2", "int deep(void) { return 42; }")
        edge = compile_library(
            made, "libedge.so.1", "int deep(void); int edge(void) { return deep(); }", deep
        )
        state = compile_library(
            made, "state.so", "int edge(void); int state(void) { return edge(); }", edge
        )
        served.add("python3", f"{HERE}-1", {})
        served.add("libstdc++6", "12.2.0-14", {f"{LIBRARIES}/libstdc++.so.6": b""})
        served.add("libdeep2", "2:2.0-1", {f"{LIBRARIES}/{deep.name}": deep.read_bytes()})
        libedge = {
            f"{LIBRARIES}/{edge.name}": edge.read_bytes(),
            "usr/share/doc/libedge1/copyright": b"whose it is",
        }
        served.add("libedge1", "1.0-1", libedge, "libdeep2")
        served.add("libunused7", "7", {f"{LIBRARIES}/libunused.so.7": deep.read_bytes()})
        module = {
            f"{MODULES}/onnxruntime/__init__.py": MODULE.encode(),
            f"{MODULES}/onnxruntime/capi/state.so": state.read_bytes(),
            f"{MODULES}/onnxruntime-{ONNXRUNTIME}.egg-info/PKG-INFO": b"Name: onnxruntime\n",
        }
        depends = "python3, libstdc++6, libedge1, libunused7"
        served.add("python3-onnxruntime", f"{ONNXRUNTIME}+dfsg-1", module, depends)
        served.publish()
        yield served


@pytest.fixture(autouse=True)
def _computing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The onnxruntime of these packages has no session; the lab's boards have a real one."""
    monkeypatch.setattr(provisioning, "find_broken_providers", lambda *_: {})


@pytest.fixture
def board(repository: Repository, tmp_path: Path) -> Iterator[Board]:
    repository.asked_for.clear()
    with Board(tmp_path / "board") as running:
        running.apt_conf = repository.apt_conf
        yield running


@pytest.fixture
def device(board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device of a target that takes Debian's package first; its index has another."""
    profile = yaml.safe_load(find_target_file(find_host_target()).read_text(encoding="utf-8"))
    profile["id"] = "own"
    profile["runtime"]["origins"] = [PACKAGE.model_dump()]
    (tmp_path / "targets").mkdir()
    (tmp_path / "targets" / "own.yaml").write_text(yaml.safe_dump(profile))
    monkeypatch.chdir(tmp_path)
    index = tmp_path / "index"
    write_wheel(index, "onnxruntime", ONNXRUNTIME, PROVIDERS)
    write_wheel(index, "numpy", "2.0.0")
    found = fetching.find_bundled_pip()
    if not found:
        pytest.skip("this Python carries no pip wheel, which the index here lacks too")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{index} {Path(found[0]).parent}")
    return ssh_device(board, target="own", root=str(tmp_path / "root"))


@pytest.fixture
def ask(device: Device) -> Callable[..., DebianRuntime | Missing]:
    def ask_device(wanted: DebianPackage = PACKAGE, python: str = HERE) -> DebianRuntime | Missing:
        with connect(device) as transport:
            return ask_debian(wanted, python, device.name, transport)

    return ask_device


@pytest.mark.slow(reason="makes virtual environments")
def test_package_of_the_devices_own_system_is_provisioned_without_root(
    device: Device, repository: Repository
) -> None:
    made = provision(device)
    assert made.providers == ("XnnpackExecutionProvider",)
    assert made.packages == {"onnxruntime": ONNXRUNTIME, "numpy": "2.0.0"}
    assert f"from python3-onnxruntime {ONNXRUNTIME}+dfsg-1 of the device's own system" in str(made)
    fetched = [path for path in repository.asked_for if path.endswith(".deb")]
    # What the base system has is not fetched; a library that nothing needs is, and stays here.
    assert not [path for path in fetched if "libstdc" in path or "/python3_" in path]
    said: list[str] = []
    repository.asked_for.clear()
    assert provision(device, progress=said.append) == made
    assert repository.asked_for == []
    assert not [line for line in said if "pushing" in line or "installing" in line]


def test_wheel_has_the_libraries_that_are_needed_and_says_what_it_is_made_of(
    ask: Callable[..., DebianRuntime], repository: Repository
) -> None:
    wheel = make_wheel(ask(), "cp311-cp311-manylinux_2_36_x86_64")
    assert wheel.name == f"onnxruntime-{ONNXRUNTIME}+dfsg.1-cp311-cp311-manylinux_2_36_x86_64.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        libraries = [name for name in names if name.startswith("onnxruntime.libs/")]
        [made_of] = [archive.read(name) for name in names if name.endswith("debian.json")]
        [whose] = [archive.read(name) for name in names if name.endswith("licenses/libedge1")]
    assert libraries == ["onnxruntime.libs/libdeep.so.2", "onnxruntime.libs/libedge.so.1"]
    assert f"{repository.address}/./libedge1_1.0-1_all.deb".encode() in made_of
    assert whose == b"whose it is"
    again = wheel.read_bytes()
    for path in wheel.parent.iterdir():
        path.unlink()
    wheel.parent.rmdir()
    assert make_wheel(ask(), "cp311-cp311-manylinux_2_36_x86_64").read_bytes() == again


def test_wheelhouse_gets_the_wheel_that_a_device_would_get(device: Device, tmp_path: Path) -> None:
    fetched = Wheelhouse(tmp_path / "house").fetch(device)
    assert [name for name in fetched.files if name.startswith("onnxruntime-") and "dfsg" in name]
    assert fetched.needs.runtime is not None


def test_what_the_devices_apt_has_downloaded_already_is_named_too(
    ask: Callable[..., DebianRuntime], repository: Repository
) -> None:
    before = ask()
    archives = repository.apt_conf.parent / "cache" / "archives"
    for package in repository.folder.glob("*.deb"):
        shutil.copy(package, archives)
    assert ask() == before


@pytest.mark.parametrize(
    ("changes", "python", "why"),
    [
        (
            {"package": "python3-other"},
            HERE,
            "apt-get says: Unable to locate package python3-other",
        ),
        ({"at_least": "99.0"}, HERE, rf"is {ONNXRUNTIME}\+dfsg-1, older than 99\.0"),
        ({}, "3.2.1", rf"is for Python {HERE}-1, and python3 there is 3\.2\.1"),
    ],
)
def test_package_that_a_device_cannot_use_is_passed_over_with_the_reason(
    ask: Callable[..., Missing], changes: dict[str, str], python: str, why: str
) -> None:
    found = ask(PACKAGE.model_copy(update=changes), python)
    assert isinstance(found, Missing)
    assert re.search(why, found.reason)


@pytest.mark.slow(reason="makes virtual environments")
def test_device_without_apt_gets_the_package_index_and_hears_why(
    device: Device, board: Board, tmp_path: Path
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for program in Path(folder).iterdir():
            copy = tools / program.name
            # A link that leads nowhere does not "exist", and is there.
            if program.name != "apt-get" and not copy.is_symlink():
                copy.symlink_to(program)
    board.path = str(tools)
    made = provision(device)
    assert made.providers == ("CPUExecutionProvider",)
    assert made.origin == ""
    assert str(made).endswith(
        "; not from the package python3-onnxruntime of its own system: there is no apt-get"
    )


def runtime_of(ask: Callable[..., DebianRuntime], **changes: object) -> DebianRuntime:
    found = ask()
    return replace(found, files=tuple(replace(file, **changes) for file in found.files))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"sha256": "0" * 64}, "is another file than the device's apt names"),
        ({"size_bytes": 10}, "is another file than the device's apt names"),
        ({"uri": "http://127.0.0.1:9/a.deb"}, "cannot fetch http://127.0.0.1:9/a.deb"),
        ({"size_bytes": 1 << 30}, "has 4096 MiB, more than"),
    ],
)
def test_file_that_is_not_what_apt_names_ends_it_and_leaves_nothing(
    ask: Callable[..., DebianRuntime],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    changes: dict[str, object],
    problem: str,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(ToolError, match=problem):
        make_wheel(runtime_of(ask, **changes), "cp311-cp311-linux_x86_64")
    assert list((tmp_path / "cache" / "edgepack" / "runtimes").iterdir()) == []


def test_package_that_would_write_elsewhere_is_refused(
    ask: Callable[..., DebianRuntime],
    repository: Repository,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def serve(data: bytes) -> DebianRuntime:
        return serve_hostile(repository, ask(), data)

    outside = tarfile.TarInfo(f"./{MODULES}/../../../../../outside")
    with pytest.raises(ToolError, match=r"cannot be unpacked: .*outside"):
        make_wheel(serve(pack(outside)), "cp311-cp311-linux_x86_64")
    bomb = tarfile.TarInfo(f"./{MODULES}/onnxruntime/bomb")
    bomb.size = (1 << 31) + 1
    for data, why in (
        (b"<html>", "no Debian package"),
        (b"!<arch>\n", "it has no files"),
        (b"!<arch>\n" + b"control".ljust(48) + b"-60".ljust(10) + b"`\n", "is cut short"),
        (pack(bomb), "unpacks to more than"),
    ):
        with pytest.raises(ToolError, match=f"cannot be unpacked: .*{why}"):
            make_wheel(serve(data), "cp311-cp311-linux_x86_64")
    assert not list(tmp_path.rglob("outside"))
    with pytest.raises(ToolError, match="has no module onnxruntime"):
        make_wheel(serve(pack()), "cp311-cp311-linux_x86_64")


def serve_hostile(repository: Repository, runtime: DebianRuntime, data: bytes) -> DebianRuntime:
    """Return a runtime whose one file is this, as a device may claim it."""
    (repository.folder / "hostile").write_bytes(data)
    file = replace(
        runtime.files[0],
        uri=f"{repository.address}/hostile",
        sha256=hashlib.sha256(data).hexdigest(),
        size_bytes=len(data),
    )
    return replace(runtime, files=(file,))


def pack(*members: tarfile.TarInfo) -> bytes:
    """Return a Debian package with these members, whose content is missing."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as archive:
        for member in members:
            archive.addfile(member)
    size = str(len(packed.getvalue())).encode()
    header = b"data.tar.xz".ljust(48) + size.ljust(10) + b"`\n"
    return b"!<arch>\n" + header + packed.getvalue()


def test_link_among_modules_brings_nothing_of_this_machine_into_the_wheel(
    ask: Callable[..., DebianRuntime],
    repository: Repository,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "token").write_text("secret")
    folder = tarfile.TarInfo(f"./{MODULES}/onnxruntime")
    folder.type = tarfile.DIRTYPE
    folder.mode = 0o755
    link = tarfile.TarInfo(f"./{MODULES}/onnxruntime/stolen")
    link.type = tarfile.SYMTYPE
    link.linkname = "../../../../../../../token"
    wheel = make_wheel(
        serve_hostile(repository, ask(), pack(folder, link)), "cp311-cp311-linux_x86_64"
    )
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if "stolen" in name]


def test_wheel_of_another_version_is_another(
    ask: Callable[..., DebianRuntime], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lying = make_wheel(replace(ask(), version="9.9"), "cp311-cp311-linux_x86_64")
    assert make_wheel(ask(), "cp311-cp311-linux_x86_64").parent != lying.parent


def test_apt_that_says_something_else_is_refused(
    ask: Callable[..., Missing], board: Board, tmp_path: Path
) -> None:
    (tmp_path / "tools").mkdir()
    lying = tmp_path / "tools" / "apt-get"
    lying.write_text("#!/bin/sh\necho no such line\n")
    lying.chmod(0o755)
    board.path = f"{tmp_path}/tools:$PATH"
    with pytest.raises(DeviceError, match="names 0 files for python3-onnxruntime"):
        ask()
