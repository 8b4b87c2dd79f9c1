"""What a push cannot do, to one device and to three: a line and a hint for each, nothing changed.

Over real SSH on 127.0.0.1; each device has a release already.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
from edgepack.cli.main import run
from edgepack.demo.server import LoopbackServer, make_key
from edgepack.deploy.transfer.client import PushAgent, send_release
from edgepack.devices.transports import connect

from tests.support.reports.tiny_bundle import write_tiny_bundle
from tests.support.servers.loopback import ssh_device, ssh_entry
from tests.support.slow_cases import slow_after

NAMES = ("a", "b", "c")


@dataclass(frozen=True)
class Fleet:
    """Three boards, what lies on them, and where the test may write."""

    folder: Path
    servers: dict[str, LoopbackServer]
    bundle: Path
    """One that the boards do not have."""

    def write_inventory(self, **changes: object) -> None:
        entries = {
            name: ssh_entry(server) | {"python": sys.executable, "tags": ["lab"]} | changes
            for name, server in self.servers.items()
        }
        present = {
            name: {key: value for key, value in entry.items() if value is not None}
            for name, entry in entries.items()
        }
        document = {"schema_version": 1, "devices": present}
        (self.folder / "devices.yaml").write_text(json.dumps(document))

    def program(self, name: str, script: str) -> None:
        """Put a program before all others of its name on every board."""
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        os.environ["PATH"] = f"{path.parent}:{os.environ['PATH']}"

    def state(self) -> dict[str, str]:
        """Return all that lies on the boards, but for the leases."""
        found = {}
        for server in self.servers.values():
            for folder, folders, files in os.walk(server.home):
                for entry in (Path(folder, name) for name in (*folders, *files)):
                    if "lease" not in entry.parts:
                        plain = entry.is_file() and not entry.is_symlink()
                        held = entry.read_bytes().hex() if plain else os.path.realpath(entry)
                        found[str(entry)] = held
        return found


@pytest.fixture(scope="module")
def boards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, LoopbackServer]]:
    folder = tmp_path_factory.mktemp("boards")
    first = write_tiny_bundle(folder / "first")
    with ExitStack() as stack:
        servers = {name: stack.enter_context(LoopbackServer(folder / name)) for name in NAMES}
        for server in servers.values():
            device = ssh_device(server, python=sys.executable)
            with connect(device) as transport:
                send_release(PushAgent(first, device, transport))
        yield servers


@pytest.fixture
def fleet(
    boards: dict[str, LoopbackServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Fleet:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.environ["PATH"])  # put back in the end
    bundle = write_tiny_bundle(tmp_path / "bundle", size=10)
    made = Fleet(tmp_path, boards, bundle)
    made.write_inventory()
    return made


def has_no_route(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> NoReturn:
        raise OSError(errno.EHOSTUNREACH, "No route to host")

    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_connect", fail)


def has_another_key(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    make_key(fleet.folder / "stranger")
    fleet.write_inventory(key=str(fleet.folder / "stranger"))


def has_no_runtime(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.program("python3", f'exec {sys.executable} -S "$@"')
    fleet.write_inventory(python=None)


def is_another_machine(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet.program("uname", 'case $1 in -m) echo aarch64;; *) exec /bin/uname "$@";; esac')


def bundle_is_altered(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    with (fleet.bundle / "models" / "cpu-fp32.onnx").open("ab") as model:
        model.write(b"!")


def inventory_says(**changes: Any) -> Callable[[Fleet, pytest.MonkeyPatch], None]:
    return lambda fleet, _: fleet.write_inventory(**changes)


@dataclass(frozen=True)
class Case:
    """Something that is wrong, and what is said of it."""

    prepare: Callable[[Fleet, pytest.MonkeyPatch], None]
    problem: str
    hint: str
    code: int
    """For one device."""
    fleet_code: int = 9
    state: str = "failed"


CASES = {
    "wrong fingerprint": Case(
        inventory_says(host_key="SHA256:" + "A" * 43),
        "someone may be in the middle",
        "correct host_key in devices.yaml",
        8,
    ),
    "no route": Case(
        has_no_route, "there is no route to", "check the network", 8, fleet_code=8, state="pending"
    ),
    "login refused": Case(has_another_key, "refuses the login", "", 8),
    "folder not writable": Case(
        inventory_says(root="/proc/edgepack"), "/proc/edgepack", "'root' in devices.yaml", 9
    ),
    "bundle altered": Case(
        bundle_is_altered, "'models/cpu-fp32.onnx' does not have the hash", "build it again", 7
    ),
    "bundle of another target": Case(
        inventory_says(target="jetson"),
        "the bundle is for linux-x86-64",
        "edgepack build --target jetson",
        8,
    ),
    "device of another architecture": Case(
        is_another_machine,
        "the device is linux on aarch64, target 'linux-x86-64' is linux on x86-64",
        "set 'target: linux-aarch64' in devices.yaml",
        8,
    ),
    "device without the runtime": Case(
        has_no_runtime, "the device has no usable numpy", "edgepack device provision", 8
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_push_to_one_device_when_it_cannot_be_done_is_one_error_and_changes_nothing(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    case, before = CASES[what], fleet.state()
    case.prepare(fleet, monkeypatch)
    assert run(["push", str(fleet.bundle), "--device", "a"]) == case.code
    streams = capsys.readouterr()
    lines = streams.err.splitlines()
    (error,) = [line for line in lines if line.startswith("error: ")]
    (hint,) = [line for line in lines if line.startswith("  hint: ")]
    assert error.startswith("error: a: ") or case.code == 7  # a bundle's problem is no device's
    assert case.problem in streams.err
    assert case.hint in hint
    assert streams.out == ""
    assert "Traceback" not in streams.err
    assert fleet.state() == before


@pytest.mark.parametrize("what", slow_after(2, CASES))
def test_push_to_three_devices_when_it_cannot_be_done_is_a_line_for_each_and_changes_nothing(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    case, before = CASES[what], fleet.state()
    case.prepare(fleet, monkeypatch)
    push = ["push", str(fleet.bundle), "--device", "tag:lab", "--tries", "1"]
    assert run(push) == case.fleet_code
    streams = capsys.readouterr()
    lines = streams.out.splitlines()
    assert lines[0] == f"rollout 1 of tiny 1.0.0: 3 {case.state}"
    for name in NAMES:
        (said,) = [n for n, line in enumerate(lines) if line.startswith(f"{name} {case.state}: ")]
        assert case.problem in lines[said]
        if case.state == "failed":
            assert lines[said + 1].startswith("  hint: ")
            assert case.hint in lines[said + 1]
    if case.state == "pending":
        assert lines[-1] == "to go on: edgepack rollout resume 1"
    assert "Traceback" not in streams.err
    assert fleet.state() == before


@pytest.mark.parametrize(
    ("words", "code", "problem", "hint"),
    [
        (["--device", "aa"], 2, "there is no device 'aa'", "edgepack device add"),
        (["--device", "tag:lap"], 2, "no device with the tag 'lap'", "did you mean 'lab'?"),
        (["--device", "a", "--device", "x"], 2, "there is no device 'x'", "edgepack device list"),
        (["--device", "a", "--require-signature"], 2, "there are no allowed signers", "write it"),
        (
            ["--device", "tag:lab", "--allowed-signers", "signers"],
            7,
            "is not signed",
            "edgepack sign",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_push_when_asked_for_what_is_not_there_connects_to_no_device(  # noqa: PLR0917
    fleet, monkeypatch, capsys, words, code, problem, hint
):
    before = fleet.state()
    (fleet.folder / "signers").write_text("")

    async def fail(*_: object) -> NoReturn:
        raise AssertionError("it has connected")

    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_connect", fail)
    assert run(["push", str(fleet.bundle), *words]) == code
    said = capsys.readouterr().err
    assert problem in said
    assert hint in said
    assert said.count("error: ") == said.count("  hint: ") == 1
    assert fleet.state() == before


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["bench", "bundle", "--device", "a", "--html", "b", "--html", "c"], "--html"),
        (["build", "--project", "a.yaml", "--project=b.yaml"], "--project"),
        (["runs", "list", "--since", "2026-01-01", "--since", "2026-02-01"], "--since"),
        (["device", "add", "pi", "h", "--port", "1", "--port", "2"], "--port"),
    ],
)
def test_option_of_one_value_when_given_twice_is_refused(capsys, argv, name):
    assert run(argv) == 2
    said = capsys.readouterr().err
    assert f"error: {name}: given 2 times" in said
    assert "once for each value" in said


def test_option_that_may_be_repeated_is_taken_twice(capsys):
    assert run(["inspect", "no.onnx", "--target", "intel", "--target", "jetson"]) != 2
    assert "times" not in capsys.readouterr().err
