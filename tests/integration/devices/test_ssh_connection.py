"""What can go wrong between here and a device, and the ways around: one sentence and a remedy."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import asyncssh
import pytest
from edgepack.demo.server import LoopbackServer, make_key
from edgepack.devices.inventory import Device
from edgepack.devices.ssh import connect as ssh_connect
from edgepack.devices.ssh.trust import trust
from edgepack.devices.transports import connect
from edgepack.errors import DeviceError

from tests.support.servers.loopback import lives, require_openssh, ssh_device, wait_until
from tests.support.servers.ssh_agents import running_agent

CANARY = "canary-7d1f"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LoopbackServer]:
    with LoopbackServer(tmp_path / "server", password=CANARY) as running:
        yield running


def failure(device: Device) -> str:
    with pytest.raises(DeviceError) as caught, connect(device):
        pass
    assert caught.value.where == device.name
    assert CANARY not in repr(caught.value) + str(caught.value)
    return str(caught.value)


def answers(device: Device) -> bool:
    with connect(device) as transport:
        return transport.send(["true"], [], timeout_s=20).exit_code == 0


def test_refused_connection_says_how_to_start_the_server(server: LoopbackServer) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        message = failure(ssh_device(server, port=unused.getsockname()[1]))
    assert "refuses connections" in message
    assert "systemctl" in message


def test_unknown_name_says_so(server: LoopbackServer) -> None:
    assert "cannot be resolved" in failure(ssh_device(server, host="no-such-host.invalid"))


@pytest.fixture
def other_service() -> Iterator[int]:
    """A service that takes connections, says something that is not SSH, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10)


def test_other_service_is_named_as_not_ssh(server: LoopbackServer, other_service: int) -> None:
    assert "is not an SSH server" in failure(ssh_device(server, port=other_service))


def test_silent_server_is_given_up(server: LoopbackServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh_connect, "HANDSHAKE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        message = failure(ssh_device(server, port=listener.getsockname()[1]))
    assert "not an SSH server" in message


def test_server_without_a_safe_host_key_says_how_to_make_one(
    server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_connect, "_KINDS", ("ecdsa-sha2-nistp256",))
    assert "ssh-keygen -A" in failure(ssh_device(server))


def test_wrong_key_is_named(server: LoopbackServer, tmp_path: Path) -> None:
    make_key(tmp_path / "stranger")
    message = failure(ssh_device(server, key=str(tmp_path / "stranger")))
    assert f"demo@127.0.0.1:{server.port} refuses the login" in message
    assert f"refused: {tmp_path}/stranger" in message
    assert "ssh-copy-id" in message


def test_missing_key_file_is_named(server: LoopbackServer) -> None:
    assert "there is no key file '/no/such/key'" in failure(ssh_device(server, key="/no/such/key"))


def test_no_key_at_all_says_where_was_looked(server: LoopbackServer, own_home: Path) -> None:
    message = failure(ssh_device(server, key=None))
    assert "no key was found" in message
    assert str(own_home / ".ssh" / "id_ed25519") in message


def test_key_with_a_passphrase_asks_for_the_agent(server: LoopbackServer, tmp_path: Path) -> None:
    require_openssh()  # and its ssh-keygen
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", CANARY, "-f", str(tmp_path / "locked")]
    subprocess.run(argv, check=True)
    message = failure(ssh_device(server, key=str(tmp_path / "locked")))
    assert f"needs a passphrase: {tmp_path}/locked" in message
    assert f"ssh-add {tmp_path}/locked" in message


def test_file_that_is_no_key_is_named(server: LoopbackServer, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a key\n")
    assert f"unusable: {tmp_path}/text" in failure(ssh_device(server, key=str(tmp_path / "text")))


def test_password_comes_from_the_environment(
    server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BOARD_PASSWORD", CANARY)
    device = ssh_device(server, key=None, password_env="BOARD_PASSWORD")
    transport = connect(device)
    assert CANARY not in repr(device) + repr(transport) + repr(vars(transport))
    assert answers(device)


def test_wrong_password_is_not_shown(
    server: LoopbackServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = f"{CANARY}-wrong"
    monkeypatch.setenv("BOARD_PASSWORD", wrong)
    caplog.set_level("DEBUG")
    message = failure(ssh_device(server, key=None, password_env="BOARD_PASSWORD"))
    assert "refused: the password in BOARD_PASSWORD" in message
    assert CANARY not in caplog.text


def test_missing_password_variable_is_named(server: LoopbackServer) -> None:
    message = failure(ssh_device(server, key=None, password_env="BOARD_PASSWORD"))
    assert "'BOARD_PASSWORD' (password_env) is not set" in message


def test_agent_key_is_used(
    server: LoopbackServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_agent() as socket:
        monkeypatch.setenv("SSH_AUTH_SOCK", socket)
        subprocess.run(["ssh-add", "-q", str(server.client_key_path)], check=True)
        assert answers(ssh_device(server, key=None))
        config = tmp_path / "config"
        config.write_text("IdentityAgent none\n")
        assert "no key was found" in failure(ssh_device(server, key=None, ssh_config=str(config)))


def jump_config(tmp_path: Path, server: LoopbackServer, jump: LoopbackServer) -> str:
    """Write a configuration that reaches ``server`` as ``board``, through ``jump``."""
    config = tmp_path / "config"
    config.write_text(
        f"Host board\n HostName 127.0.0.1\n Port {server.port}\n User {server.user}\n"
        f" IdentityFile {server.client_key_path}\n ProxyJump gate\n"
        f"Host gate\n HostName 127.0.0.1\n Port {jump.port}\n User {jump.user}\n"
        f" IdentityFile {jump.client_key_path}\n"
        f"Host *\n IdentitiesOnly yes\n UserKnownHostsFile {tmp_path}/known\n"
    )
    return str(config)


def via_config(server: LoopbackServer, config: str) -> Device:
    return ssh_device(
        server, host="board", port=None, user=None, key=None, host_key=None, ssh_config=config
    )


def test_proxy_jump_verifies_and_logs_in_to_each_host(
    server: LoopbackServer, tmp_path: Path
) -> None:
    with LoopbackServer(tmp_path / "jump") as jump:
        device = via_config(server, jump_config(tmp_path, server, jump))
        assert f"[127.0.0.1]:{jump.port} is not known" in failure(device)
        (tmp_path / "known").write_text(jump.known_hosts_line + "\n")
        assert f"[127.0.0.1]:{server.port} is not known" in failure(device)
        trust(device, server.host_key_fingerprint, lambda _: False)
        assert answers(device)


def test_proxy_jump_says_when_the_device_cannot_be_reached_from_there(
    server: LoopbackServer, tmp_path: Path
) -> None:
    with LoopbackServer(tmp_path / "jump") as jump, socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        (tmp_path / "known").write_text(jump.known_hosts_line + "\n")
        config = jump_config(tmp_path, server, jump)
        port = unused.getsockname()[1]
        text = Path(config).read_text().replace(f"Port {server.port}", f"Port {port}")
        Path(config).write_text(text)
        assert "the host on the way does not connect" in failure(via_config(server, config))


def test_trust_asks_for_each_host_on_the_way(server: LoopbackServer, tmp_path: Path) -> None:
    with LoopbackServer(tmp_path / "jump") as jump:
        device = via_config(server, jump_config(tmp_path, server, jump))
        lines = trust(device, None, lambda _: True).splitlines()
        assert [line.split()[0] for line in lines[:2]] == [
            f"[127.0.0.1]:{jump.port}",
            f"[127.0.0.1]:{server.port}",
        ]
        assert answers(device)


PIPE = """
import socket, sys, threading, os
wire = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def up():
    while data := os.read(0, 65536):
        wire.sendall(data)
    wire.shutdown(socket.SHUT_WR)
threading.Thread(target=up, daemon=True).start()
while data := wire.recv(65536):
    os.write(1, data)
"""


def test_proxy_command_runs_without_a_shell(server: LoopbackServer, tmp_path: Path) -> None:
    (tmp_path / "pipe.py").write_text(PIPE)
    config = tmp_path / "config"
    config.write_text(f"ProxyCommand {sys.executable} {tmp_path}/pipe.py %p\n")
    assert answers(ssh_device(server, ssh_config=str(config)))


def test_command_fails_when_the_connection_is_lost(server: LoopbackServer) -> None:
    with connect(ssh_device(server)) as transport:
        timer = threading.Timer(1.0, server.drop_connections)
        timer.start()
        with pytest.raises(DeviceError, match="the connection was lost"):
            transport.run(["sleep", "600"], timeout_s=60)
        timer.join()
        with pytest.raises(DeviceError, match="the connection was lost"):
            transport.run(["true"], timeout_s=60)


def test_device_without_python_is_named(server: LoopbackServer) -> None:
    with (
        connect(ssh_device(server, python="/no/python")) as transport,
        pytest.raises(DeviceError, match="there is no '/no/python' on the device"),
    ):
        transport.run(["true"], timeout_s=20)


CLIENT = """
import json, sys
from edgepack.devices.inventory import Device, SshEntry
from edgepack.devices.transports import connect
with connect(Device("board", SshEntry(**json.loads(sys.argv[1])))) as transport:
    transport.run(["sh", "-c", "echo $$ > " + sys.argv[2] + "; sleep 600"], timeout_s=600)
"""


@pytest.mark.slow(reason="waits for deadlines")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_remote_command_ends_when_the_client_is_killed(
    server: LoopbackServer, tmp_path: Path, number: signal.Signals
) -> None:
    entry = ssh_device(server).entry.model_dump_json()
    pid_file = tmp_path / "pid"
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, entry, str(pid_file)],
        stderr=subprocess.DEVNULL,
        env=os.environ,
    )
    assert wait_until(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"))
    pid = int(pid_file.read_text())
    assert lives(pid)
    client.send_signal(number)
    assert client.wait(30) != 0
    assert wait_until(lambda: not lives(pid))


def test_certificate_beside_its_key_is_no_obstacle(server: LoopbackServer, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        f"IdentityFile {server.client_key_path}\n"
        f"CertificateFile {server.client_key_path}-cert.pub\n"
    )
    assert answers(ssh_device(server, key=None, ssh_config=str(config)))


async def run_late(server: LoopbackServer) -> list[int | None]:
    settings = {"username": server.user, "client_keys": [str(server.client_key_path)]}
    async with asyncssh.connect(
        server.host, server.port, known_hosts=None, config=None, **settings
    ) as connection:
        first = await connection.create_process("sleep 0.3")
        last = await connection.create_process("true")
        return [(await each.wait()).exit_status for each in (last, first)]


def test_commands_at_the_same_time_have_channels_of_their_own(server: LoopbackServer) -> None:
    assert asyncio.run(run_late(server)) == [0, 0]
