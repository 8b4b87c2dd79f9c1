"""What a device prints beyond all measure costs neither memory nor the next push."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from edgepack.devices.checking import check
from edgepack.devices.harness import Harness
from edgepack.devices.inventory import Device, LocalEntry
from edgepack.devices.transports import connect
from edgepack.errors import DeviceError, RemoteCommandError
from edgepack.records.presets import find_preset

from tests.support.reports.tiny_bundle import write_tiny_bundle
from tests.support.servers.bare_programs import link_programs
from tests.support.servers.loopback import ssh_device, wait_until
from tests.support.servers.openssh_server import OpenSshServer, find_sshd
from tests.support.servers.pusher import Pushed, Pusher

MARK = "EDGEPACK_OUTPUT_TEST"
STALL_S = 2.0
PEAK_BYTES = 400 << 20
"""What a client has anyway (100 MiB), and some times the most output that is held (64 MiB)."""
AGENTS = pytest.mark.parametrize("agent", ["python", "shell"])

pytestmark = pytest.mark.skipif(
    find_sshd() is None or not Path("/proc/self/environ").exists(),
    reason="needs Linux and OpenSSH's server",
)


@pytest.fixture(scope="module")
def client() -> Iterator[Pusher]:
    with Pusher() as pusher:
        yield pusher


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bundle(tmp_path_factory.mktemp("tiny") / "bundle")


def serve(tmp_path: Path, agent: str, login: str) -> OpenSshServer:
    """Return a server whose commands have Python, or a few programs only."""
    path = tmp_path / "bin"
    if not path.exists():
        link_programs(path)
    environment = {MARK: tmp_path.name} | ({"PATH": str(path)} if agent == "shell" else {})
    folder = tmp_path / "sshd"
    shutil.rmtree(folder, ignore_errors=True)
    return OpenSshServer(folder, environment, login=login)


def device(server: OpenSshServer, agent: str, root: Path) -> Device:
    python = {"python": sys.executable} if agent == "python" else {}
    return ssh_device(server, root=str(root), **python)


def push(
    client: Pusher, bundle: Path, tmp_path: Path, agent: str, *, login: str = ""
) -> tuple[Pushed, bool]:
    """Push, and return how it went and whether everything that it started ended."""
    with serve(tmp_path, agent, login) as server:
        client.start(bundle, device(server, agent, tmp_path / "root"), STALL_S if login else 60.0)
        pushed = client.result(60.0)
    return pushed, wait_until(lambda: not running(tmp_path.name))


def running(mark: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found


@pytest.mark.slow(reason="reads hundreds of megabytes")
@AGENTS
@pytest.mark.parametrize(
    ("login", "said"),
    [
        ("cat /dev/zero", ("before the agent's answer",)),
        ("cat /dev/zero >&2", ("took longer than 2 s",)),
        # Which of a command's questions meets the line first depends on when the login prints it.
        (r"printf '\377\376 hello\n'", (r"printed b'\xff\xfe hello\n", "\ufffd\ufffd hello")),
    ],
    ids=["stdout", "stderr", "not-utf8"],
)
def test_push_when_the_login_prints_is_an_error_and_takes_no_memory(
    client: Pusher, bundle: Path, tmp_path: Path, agent: str, login: str, said: tuple[str, ...]
) -> None:
    disturbed, ended = push(client, bundle, tmp_path, agent, login=login)
    assert any(words in disturbed.error for words in said)
    assert ended
    after, ended = push(client, bundle, tmp_path, agent)
    assert after.ok
    assert ended
    assert after.peak_bytes < PEAK_BYTES


@AGENTS
def test_push_when_the_login_writes_other_than_utf8_to_stderr_succeeds(
    client: Pusher, bundle: Path, tmp_path: Path, agent: str
) -> None:
    pushed, ended = push(client, bundle, tmp_path, agent, login=r"printf '\377\376\n' >&2")
    assert pushed.ok
    assert ended


@pytest.mark.slow(reason="reads hundreds of megabytes")
def test_push_when_the_device_prints_and_does_not_read_takes_no_memory(
    client: Pusher, tmp_path: Path
) -> None:
    """The client waits for the device to read the stream of files, and output comes meanwhile."""
    large = write_tiny_bundle(tmp_path / "bundle", size=500)
    tar = link_programs(tmp_path / "bin") / "tar"
    real = tar.readlink()
    tar.unlink()
    tar.write_text("#!/bin/sh\nexec cat /dev/zero\n")
    tar.chmod(0o755)
    with serve(tmp_path, "shell", "") as server:
        client.start(large, device(server, "shell", tmp_path / "root"), 4.0)
        disturbed = client.result(60.0)
    assert "took longer than 4 s" in disturbed.error or "printed more than" in disturbed.error
    assert wait_until(lambda: not running(tmp_path.name))
    tar.unlink()
    tar.symlink_to(real)
    after, _ = push(client, large, tmp_path, "shell")
    assert after.ok
    assert after.peak_bytes < PEAK_BYTES


PRINTED = """
import json, sys
from edgepack.devices.inventory import Device, LocalEntry
from edgepack.devices.transports import connect
from edgepack.errors import DeviceError, RemoteCommandError
sys.path.append(sys.argv.pop(1))
from tests.support.doubles.peak_memory import peak_bytes

device = Device("here", LocalEntry(transport="local", target="any", python=sys.executable))
how, argv = sys.argv[1], sys.argv[2:]
with connect(device) as transport:
    try:
        if how == "run":
            transport.run(argv, timeout_s=60)
        else:
            with transport.stream(argv, timeout_s=60) as stream:
                stream.wait()
        said = "nothing"
    except RemoteCommandError as error:
        said = error.problem
print(json.dumps([said, peak_bytes()]))
"""


@pytest.mark.slow(reason="reads hundreds of megabytes")
@pytest.mark.parametrize(
    ("how", "to", "output"),
    [("run", "1", "stdout"), ("run", "2", "stderr"), ("stream", "1", "stdout")],
)
def test_command_when_it_prints_without_end_is_stopped_and_takes_no_memory(
    how: str, to: str, output: str
) -> None:
    root = str(Path(__file__).parents[3])
    argv = [sys.executable, "-c", PRINTED, root, how, "sh", "-c", f"cat /dev/zero >&{to}"]
    done = subprocess.run(argv, capture_output=True, check=True, timeout=100)
    said, peak_bytes = json.loads(done.stdout)
    assert said == f"the command printed more than 64 MiB on {output}"
    assert peak_bytes < PEAK_BYTES


@pytest.mark.slow(reason="takes up to 20 s each")
@pytest.mark.parametrize("login", ["yes", "cat /dev/zero >&2", "while echo x; do sleep 0.1; done"])
def test_check_when_the_login_prints_without_end_is_an_error_in_20_s(
    tmp_path: Path, login: str
) -> None:
    with serve(tmp_path, "python", login) as server:
        began = time.monotonic()
        with pytest.raises(DeviceError, match="the probe got no answer") as caught:
            check(device(server, "python", tmp_path / "root"))
        assert time.monotonic() - began < 22
    assert "a login that prints nothing" in caught.value.hint
    assert wait_until(lambda: not running(tmp_path.name), 30)


def test_check_when_python_prints_without_end_is_an_error_at_once(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec yes\n")
    python.chmod(0o755)
    with serve(tmp_path, "python", "") as server:
        board = ssh_device(server, root=str(tmp_path / "root"), python=str(python))
        began = time.monotonic()
        with pytest.raises(DeviceError, match="what Python says about itself is not JSON"):
            check(board)
        assert time.monotonic() - began < 10
    assert wait_until(lambda: not running(tmp_path.name))


@pytest.mark.slow(reason="takes seconds")
@pytest.mark.skipif(shutil.which("prlimit") is None, reason="needs prlimit of util-linux")
def test_measurement_when_memory_runs_out_is_an_error_and_leaves_nothing(bundle: Path) -> None:
    entry = LocalEntry(transport="local", target="linux-x86-64", python=sys.executable)
    with connect(Device("here", entry)) as transport:
        prefix = ("env", f"{MARK}=memory", "prlimit", f"--as={100 << 20}")
        harness = Harness(transport, PurePosixPath(bundle), sys.executable, prefix)
        with pytest.raises(RemoteCommandError, match="the harness failed with exit code"):
            harness.measure("cpu-fp32", find_preset("smoke"))
        assert wait_until(lambda: not running("memory"))
        assert replace(harness, run_prefix=()).measure("cpu-fp32", find_preset("smoke"))
