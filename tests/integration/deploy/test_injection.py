"""No value from YAML, a model or a device becomes a command: each stays the argument that it is."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from edgepack.base.processes import run_program
from edgepack.demo.server import LoopbackServer
from edgepack.deploy.leases import leased
from edgepack.devices.commands import format_command
from edgepack.devices.harness import Harness
from edgepack.devices.inventory import Device, load_inventory
from edgepack.devices.probing import probe
from edgepack.devices.transport import Transport
from edgepack.devices.transports import connect
from edgepack.errors import EdgepackError, ProfileError, RemoteCommandError
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle
from tests.support.servers.loopback import ssh_device
from tests.support.slow_cases import slow_after

CANARY = "canary-was-here"
"""A file that appears, in the home folder of whoever runs commands, if one of these runs."""
ATTACKS = [
    f"$(touch {CANARY})", f"`touch {CANARY}`", f"; touch {CANARY} ;", f"| touch {CANARY}",
    f"&& touch {CANARY}", f"' ; touch {CANARY} ; '", f'" ; touch {CANARY} ; "',
    f"\n touch {CANARY} \n", f"\\'; touch {CANARY}; \\'", f"${{IFS}};touch {CANARY}", "$HOME", "~",
    "*", "?", "[a-z]", "{a,b}", "-rf", "--", "--help", "!", "!!", "#", "%s%n", "\\", "\\\\", "'",
    '"', "''", "", " ", "\t", "a=b", "é", "e\u0301", "日本", "\u202e", "\u2028", "\U0001f600",
    "\x01", "\x1b[31m", "<", ">", "&", "(", ")",
]  # fmt: skip
PLAIN = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12)
WORDS = st.lists(st.sampled_from(ATTACKS) | PLAIN, min_size=1, max_size=6)
JOINED = st.lists(st.sampled_from(ATTACKS) | PLAIN, max_size=4).map("".join)
SHOW = "import json, sys; print(json.dumps(sys.argv[1:]))"
LINES = [attack for attack in ATTACKS if attack.isprintable() and attack != ""]
FOLDERS = [attack.replace("/", "") for attack in LINES]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackServer]:
    with LoopbackServer(tmp_path_factory.mktemp("server")) as running:
        yield running
    assert not list(running.home.rglob(CANARY))


@pytest.fixture(scope="module")
def board(server: LoopbackServer) -> Iterator[Transport]:
    with connect(ssh_device(server, python=sys.executable)) as connected:
        yield connected


@settings(max_examples=40, deadline=None)
@given(words=WORDS)
@example(words=ATTACKS)
def test_argv_when_a_real_shell_reads_its_line_is_the_same(words: list[str]) -> None:
    line = format_command(["printf", r"%s\0", *words])
    for shell in filter(shutil.which, ("sh", "bash", "dash", "busybox")):
        argv = [shell, "sh"] if shell == "busybox" else [shell]
        result = run_program([*argv, "-c", line], timeout_s=20)
        assert result.stdout == b"".join(word.encode() + b"\0" for word in words)


@pytest.mark.slow(reason="takes seconds")
@settings(max_examples=30, deadline=None)
@given(words=WORDS)
@example(words=ATTACKS)
def test_argv_when_it_goes_over_ssh_is_the_same(board: Transport, words: list[str]) -> None:
    result = board.run(["printf", r"%s\0", *words], timeout_s=30)
    assert result.stdout == b"".join(word.encode() + b"\0" for word in words)


@pytest.mark.parametrize("name", ["eval", "if", "a=b", "cd", "exit", "time", "!", ".", "$(x)"])
def test_program_when_a_shell_has_its_name_for_itself_is_still_a_program(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = [name, f"touch {CANARY}"]
    result = run_program(["sh", "-c", format_command(argv)], timeout_s=20, cwd=tmp_path)
    assert result.exit_code in (126, 127)
    if name != ".":
        program = tmp_path / name
        program.write_text('#!/bin/sh\nprintf "ran %s" "$1"\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        result = run_program(["sh", "-c", format_command(argv)], timeout_s=20, cwd=tmp_path)
        assert result.stdout == f"ran touch {CANARY}".encode()
    assert not (tmp_path / CANARY).exists()


@pytest.mark.parametrize("folder", slow_after(3, FOLDERS))
def test_root_when_it_looks_like_a_command_is_a_folder(
    server: LoopbackServer, board: Transport, tmp_path: Path, folder: str
) -> None:
    root = tmp_path / folder / "root"
    device = ssh_device(server, python=sys.executable, root=str(root))
    with leased(board, device, folder) as lease:
        assert lease.purpose == folder
        [file] = (root / "lease").glob("*.json")
        assert json.loads(file.read_text())["purpose"] == folder
    assert not list(server.home.rglob(CANARY))


def test_root_python_and_prefix_when_they_look_like_commands_are_probed_and_run_as_they_are(
    server: LoopbackServer, tmp_path: Path
) -> None:
    folder = tmp_path / "".join(part for part in FOLDERS if "=" not in part and len(part) < 30)
    folder = Path(str(folder)[:200].rstrip())
    folder.mkdir()
    python = folder / "py $(touch x)"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    prefix = ["env", *(f"A{number}={line}" for number, line in enumerate(LINES))]
    device = ssh_device(server, python=str(python), root=str(folder), run_prefix=prefix)
    with connect(device) as transport:
        facts = probe(device, transport)
        assert (facts.root, facts.python_path) == (folder, str(python))
        argv = [*device.entry.run_prefix, facts.python_path, "-c", "import os; print(os.environ)"]
        said = transport.run(argv, timeout_s=30).text
        assert all(repr(line) in said for line in LINES)
    assert not list(server.home.rglob(CANARY))


def test_variant_when_it_looks_like_a_command_is_an_argument(
    server: LoopbackServer, board: Transport, tmp_path: Path
) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle")
    (bundle / "harness/edgepack_harness.py").write_text(f"{SHOW}; sys.exit(9)")
    for name in LINES[::4]:
        harness = Harness(board, bundle, sys.executable)  # type: ignore[arg-type]
        result = board.run(harness.make_argv("select", name), timeout_s=30)
        assert json.loads(result.text) == ["select", "--bundle", str(bundle), "--variant", name]
    assert not list(server.home.rglob(CANARY))


def test_device_when_it_answers_paths_that_look_like_commands_runs_none(
    server: LoopbackServer, board: Transport
) -> None:
    device: Device = ssh_device(server, python=sys.executable)
    facts = probe(device, board)
    for line in LINES[::3]:
        answered = replace(facts, python_path=f"/nowhere/{line}")
        harness = Harness(board, facts.root / line, answered.python_path)
        with pytest.raises((RemoteCommandError, EdgepackError)):
            harness.select(line)
    assert not list(server.home.rglob(CANARY))


FIELDS = ["host", "user", "key", "password_env", "ssh_config", "root", "python"]
LISTS = ["tags", "run_prefix", "after_switch", "health"]


@pytest.mark.parametrize("field", [*FIELDS, *LISTS])
@pytest.mark.parametrize("bad", ["\\0", "\\n", "\\r", "\\x1b", "\\x7f"])
def test_inventory_when_a_value_has_a_control_character_is_refused(
    tmp_path: Path, field: str, bad: str
) -> None:
    values = {"transport": "ssh", "host": "pi", "target": "raspberry-pi"}
    flow = [f"{key}: {value}" for key, value in values.items() if key != field]
    text = f'"/a{bad}proxycommand touch {CANARY}"'
    flow.append(f"{field}: [{text}]" if field in LISTS else f"{field}: {text}")
    path = tmp_path / "devices.yaml"
    path.write_text(f"schema_version: 1\ndevices:\n  pi: {{{', '.join(flow)}}}\n")
    with pytest.raises(ProfileError, match=field):
        load_inventory(path)


@pytest.mark.parametrize("python", ["-c", "--help", "A=b", "/opt/a=b/python", ""])
def test_inventory_when_python_would_be_an_option_or_an_assignment_is_refused(
    tmp_path: Path, python: str
) -> None:
    path = tmp_path / "devices.yaml"
    path.write_text(
        "schema_version: 1\ndevices:\n"
        f"  here: {{transport: local, target: linux-x86-64, python: {json.dumps(python)}}}\n"
    )
    with pytest.raises(ProfileError, match="python"):
        load_inventory(path)


@pytest.mark.slow(reason="takes seconds")
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(purpose=JOINED, owner=JOINED)
def test_lease_when_its_words_are_anything_comes_back(
    server: LoopbackServer,
    board: Transport,
    tmp_path: Path,
    purpose: str,
    owner: str,
) -> None:
    from edgepack.deploy import leases

    device = ssh_device(server, python=sys.executable, root=str(tmp_path / "root"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leases, "find_own_name", lambda: owner)
        with leased(board, device, purpose) as lease:
            assert (lease.purpose, lease.owner) == (purpose, owner)


def test_lease_program_when_sent_fits_a_command_line_of_dropbear() -> None:
    """Dropbear's MAX_CMD_LEN is 9,000; the supervisor takes its part of that."""
    from edgepack.base.resources import find_ondevice_dir
    from edgepack.deploy import leases
    from edgepack.devices.programs import BOOTSTRAP

    supervisor = (find_ondevice_dir() / "agent/edgepack_supervisor.py").read_text()
    wish = leases._make_wish("x" * 500, exclusive=True)
    words = [supervisor, BOOTSTRAP, "/" + "r" * 1000, json.dumps(wish)]
    assert len(shlex.join(words)) < 8500


def test_project_when_its_name_looks_like_a_command_is_no_project(tmp_path: Path) -> None:
    from edgepack.bundle.reading import load_bundle
    from edgepack.errors import BundleError

    bundle = write_tiny_bundle(tmp_path / "bundle")
    for name in ATTACKS:
        change_manifest(bundle, lambda manifest, name=name: manifest.update(name=name))
        with pytest.raises(BundleError, match="is wrong at name"):
            load_bundle(bundle)
