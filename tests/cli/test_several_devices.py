"""Commands on several devices: what chooses them, one table, one exit code, over real SSH."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from edgepack.bundle.reading import load_bundle
from edgepack.cli.main import run
from edgepack.demo.server import LoopbackServer
from edgepack.deploy.fleet.many import choose_exit_code
from edgepack.devices.ssh.host_keys import find_own_known_hosts
from edgepack.errors import (
    BugError,
    BusyError,
    InconclusiveError,
    LimitError,
    RemoteCommandError,
    UnreachableError,
)
from edgepack.results.store.store import ResultsStore

from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle
from tests.support.servers.loopback import ssh_entry


class Cutting(LoopbackServer):
    """Cuts the connection once it has started a command with a certain word."""

    cut_at = ""

    def start(self, command: str) -> subprocess.Popen[bytes]:
        child = super().start(command)
        if self.cut_at and self.cut_at in command:
            for connection in list(self.connections):
                connection.abort()
        return child


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[dict[str, Cutting]]:
    with ExitStack() as stack:
        yield {name: stack.enter_context(Cutting(tmp_path / name)) for name in "ab"}


@pytest.fixture
def boards(
    servers: dict[str, Cutting], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, dict[str, Any]]:
    """Two boards tagged ``lab``, and one that is off."""
    entries = {
        name: ssh_entry(server) | {"python": sys.executable, "tags": ["lab"]}
        for name, server in servers.items()
    }
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        entries["off"] = entries["a"] | {"port": unused.getsockname()[1], "tags": []}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    write_inventory(entries)
    write_tiny_bundle(tmp_path / "dist" / "tiny-1.0.0-linux-x86-64")
    return entries


def write_inventory(entries: dict[str, dict[str, Any]]) -> None:
    Path("devices.yaml").write_text(json.dumps({"schema_version": 1, "devices": entries}))


def rows(printed: str) -> dict[str, str]:
    """Return the lines of a table by their first cell."""
    lines = [line.strip("│ ").split("│") for line in printed.splitlines() if line.startswith("│")]
    return {cells[0].strip(): " | ".join(cell.strip() for cell in cells[1:]) for cells in lines}


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["device", "check", "tag:lab"], "linux on"),
        (["device", "who", "tag:lab"], "free"),
        (["device", "verify", "tag:lab"], "no bundle"),
        (["device", "release", "a", "b"], "was free"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_command_on_several_boards_is_one_table(boards, capsys, words, found):
    assert run(words) == 0
    table = rows(capsys.readouterr().out)
    assert set(table) == {"a", "b"}
    assert all(found in row and row.startswith("done") for row in table.values())


def test_command_when_a_board_is_off_has_the_others_and_says_it_once(boards, capsys):
    assert run(["device", "who", "all"]) == 8
    streams = capsys.readouterr()
    table = rows(streams.out)
    assert list(table) == ["off", "a", "b"]
    assert "refuses connections" in table["off"]
    assert streams.out.count("hint: ") == 1
    assert run(["device", "who", "all", "--json"]) == 8
    document = json.loads(capsys.readouterr().out)["devices"]
    assert {name: each["state"] for name, each in document.items()} == {
        "a": "done",
        "b": "done",
        "off": "failed",
    }
    assert document["off"]["exit_code"] == 8
    assert document["a"]["result"] == []


def test_lease_of_several_boards_holds_each_and_is_released(boards, capsys):
    assert run(["device", "lease", "tag:lab", "--for", "5"]) == 0
    assert run(["device", "who", "tag:lab"]) == 0
    assert all("work by hand" in row for row in rows(capsys.readouterr().out).values())
    assert run(["device", "release", "tag:lab"]) == 0
    assert "released: " in capsys.readouterr().out


def test_trust_of_several_boards_asks_for_each_and_goes_on(boards, servers, capsys, monkeypatch):
    write_inventory({name: each | {"host_key": None} for name, each in boards.items()})
    answers = iter([True, False])
    monkeypatch.setattr("typer.confirm", lambda *_, **__: next(answers))
    assert run(["device", "trust", "off", "a", "b"]) == 8
    streams = capsys.readouterr()
    assert "refuses connections" in streams.err
    assert "was not accepted" in streams.err
    assert find_own_known_hosts().read_text() == servers["a"].known_hosts_line + "\n"
    assert run(["device", "trust", "a", "b", "--fingerprint", "SHA256:x"]) == 2


@pytest.fixture
def two_releases(boards: dict[str, Any], tmp_path: Path) -> list[str]:
    """Push two releases to both boards, and return their names."""
    pushed = []
    bundle = tmp_path / "dist" / "tiny-1.0.0-linux-x86-64"
    for version in ("1.0.0", "1.0.1"):
        change_manifest(bundle, lambda manifest, v=version: manifest.update(version=v))
        assert run(["push", "dist", "--device", "tag:lab", "--no-self-test"]) == 0
        pushed.append(load_bundle(bundle).digest[:16])
    return pushed


def current(server: LoopbackServer) -> str:
    return (server.home / ".local/share/edgepack/tiny/current").readlink().name


def test_rollback_of_several_boards_is_a_rollout(boards, servers, two_releases, capsys):
    first, second = two_releases
    assert {current(server) for server in servers.values()} == {second}
    capsys.readouterr()
    assert run(["rollback", "tiny", "--device", "all", "--to", first, "--tries", "1"]) == 8
    said = capsys.readouterr().out
    assert "rollout 3 back, of tiny: 2 done, 1 pending" in said
    assert {current(server) for server in servers.values()} == {first}
    write_inventory(boards | {"off": boards["b"]})
    assert run(["rollout", "resume"]) == 0
    assert run(["rollout", "status", "3"]) == 0
    assert run(["rollback", "tiny", "--device", "a", "--to", second]) == 0
    assert (current(servers["a"]), current(servers["b"])) == (second, first)
    assert run(["rollback", "tiny", "--device", "all", "--to", "xyz"]) == 2


def test_rollback_when_the_link_breaks_is_not_tried_again_unless_the_release_is_named(
    boards, servers, two_releases, capsys
):
    first, _ = two_releases
    servers["a"].cut_at = "edgepack_releases"
    assert run(["rollback", "tiny", "--device", "a", "--device", "b"]) == 9
    said = capsys.readouterr().out
    assert "it is not known whether the device went back" in said
    assert current(servers["b"]) == first
    assert run(["rollback", "tiny", "--device", "a", "--device", "b", "--to", first]) == 8
    servers["a"].cut_at = ""
    assert run(["rollout", "resume"]) == 0
    assert [current(servers[name]) for name in "ab"] == [first, first]


@pytest.mark.slow(reason="measures several boards")
def test_bench_of_several_boards_is_one_table_one_page_and_a_run_of_each(
    boards, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("EDGEPACK_RESULTS", f"sqlite:///{tmp_path}/results.sqlite")
    words = ["--preset", "smoke", "--html", "page.html"]
    assert run(["bench", "dist", "--device", "all", *words]) == 8
    table = rows(capsys.readouterr().out)
    assert "refuses connections" in table["off"]
    assert all("cpu-int8-static: p50 " in table[name] for name in "ab"), table
    assert all(table[name].startswith("inconclusive") for name in "ab")
    page = (tmp_path / "page.html").read_text()
    assert len(ResultsStore().rows()) == 2
    assert all(f'"{name}"' in page or f">{name}<" in page for name in "ab")


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["bench", "dist", "--self-test"], "--self-test"),
        (["bench", "dist", "--perfetto", "trace.json"], "--perfetto"),
        (["tune", "dist", "--dry-run"], "--dry-run"),
    ],
)
def test_option_for_one_device_when_several_are_chosen_is_refused(boards, capsys, words, option):
    assert run([*words, "--device", "tag:lab"]) == 2
    assert f"{option} is for one device" in capsys.readouterr().err


def test_exit_code_of_several_boards_is_the_weightiest():
    codes = [
        error("x", hint="y")
        for error in (InconclusiveError, LimitError, BusyError, UnreachableError)
    ]
    assert choose_exit_code([None]) == 0
    assert choose_exit_code([None, codes[0]]) == 11
    assert choose_exit_code(codes[:2]) == 10
    assert choose_exit_code(codes) == 8
    assert choose_exit_code([*codes, RemoteCommandError("x", hint="y")]) == 9
    assert choose_exit_code([*codes, BugError("x")]) == 70
