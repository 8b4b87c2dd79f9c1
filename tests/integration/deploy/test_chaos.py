"""A few of the fault runs of ``make chaos``, always the same ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from edgepack.demo.server import LoopbackServer
from edgepack.devices.ssh import transport as ssh
from edgepack.devices.transports import connect
from edgepack.errors import DeviceError

from tests.chaos.run import run_all, runnable
from tests.support.servers.fault_proxy import Fault, FaultProxy
from tests.support.servers.loopback import ssh_device
from tests.support.servers.openssh_server import find_sshd


def one_of_each_kind() -> list[int]:
    """Return the numbers of runs: every kind of fault once, the agents in turn."""
    found: dict[str, list[int]] = {}
    for number, (kind, _) in enumerate(runnable()):
        found.setdefault(kind, []).append(number)
    return [numbers[turn % len(numbers)] for turn, numbers in enumerate(found.values())]


@pytest.mark.in_turns
@pytest.mark.slow(reason="disturbs a dozen pushes")
@pytest.mark.skipif(
    find_sshd() is None or not Path("/proc/self/environ").exists(),
    reason="needs Linux and OpenSSH's server",
)
def test_push_when_something_breaks_leaves_a_whole_release_and_the_next_one_succeeds(
    tmp_path: Path,
) -> None:
    numbers = one_of_each_kind()
    outcomes = list(run_all(numbers, seed=5, jobs=3, folder=tmp_path))
    assert sorted(outcome.number for outcome in outcomes) == sorted(numbers)
    assert {outcome.kind for outcome in outcomes} == {kind for kind, _ in runnable()}
    assert {outcome.agent for outcome in outcomes} == {agent for _, agent in runnable()}
    assert not [outcome for outcome in outcomes if outcome.problems]
    assert any(not push.ok for outcome in outcomes for push in outcome.pushes)


def test_command_when_the_link_is_half_open_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "HANDSHAKE_S", 0.5)
    with LoopbackServer(tmp_path / "server") as server:
        with FaultProxy(server.port) as counting, connect(ssh_device(server, port=counting.port)):
            pass
        # Read after its thread has ended: it counts bytes when the client may have them already.
        opened = counting.forwarded["to-client"]
        # One channel's confirmation comes through; the answer to its exec request does not.
        fault = Fault("stall", "to-client", opened + 60)
        with (
            FaultProxy(server.port, fault=fault) as proxy,
            connect(ssh_device(server, port=proxy.port)) as transport,
            pytest.raises(DeviceError, match="lost"),
        ):
            transport.run(["true"], timeout_s=60)


def test_connection_when_a_byte_of_it_is_corrupted_is_said_to_be_lost(tmp_path: Path) -> None:
    """The first bytes that are encrypted: their tag is wrong."""
    with LoopbackServer(tmp_path / "server") as server:
        with FaultProxy(server.port) as counting, connect(ssh_device(server, port=counting.port)):
            pass
        opened = counting.forwarded["to-client"]
        fault = Fault("corrupt", "to-client", opened - 10)
        with (
            FaultProxy(server.port, fault=fault) as proxy,
            pytest.raises(DeviceError, match="was lost"),
            connect(ssh_device(server, port=proxy.port)),
        ):
            pass
