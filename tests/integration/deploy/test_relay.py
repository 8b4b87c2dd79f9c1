"""``relay: bastion``: a bundle crosses the link to the jump host once, for all boards behind it."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from edgepack.deploy.push import push
from edgepack.deploy.transfer.chunks import cut_file
from edgepack.deploy.transfer.relay import Relay, Relays, make_identity
from edgepack.devices.inventory import Device
from edgepack.errors import DeviceError, RemoteCommandError, UnreachableError
from edgepack.ondevice.agent import edgepack_relay

from tests.support.reports.tiny_bundle import write_tiny_bundle
from tests.support.servers.fault_proxy import Fault, FaultProxy
from tests.support.servers.jump_host import Site, site_in
from tests.support.servers.loopback import lives, wait_until
from tests.support.servers.openssh_server import find_sshd

BOARDS = 4
SIDE = 512
"""Of the bundle's images: its goldens are random and take 4 MB."""

pytestmark = [
    pytest.mark.slow(reason="pushes 4 MB to several boards"),
    pytest.mark.skipif(find_sshd() is None, reason="there is no sshd"),
]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_in(tmp_path) as running:
        yield running


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_tiny_bundle(tmp_path / "bundle", size=SIDE)


def size_of(bundle: Path) -> int:
    return sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file())


def push_to_all(bundle: Path, devices: list[Device]) -> None:
    def push_to(device: Device) -> None:
        push(bundle, device, self_test=False, relays=relays)

    with Relays() as relays, ThreadPoolExecutor(len(devices)) as pool:
        list(pool.map(push_to, devices))


def is_whole(device: Device, bundle: Path) -> bool:
    current = Path(device.entry.root) / "tiny/current"
    files = [path for path in bundle.rglob("*") if path.is_file()]
    return all(
        (current / path.relative_to(bundle)).read_bytes() == path.read_bytes() for path in files
    )


def test_bytes_cross_the_link_once_for_all_boards(site: Site, bundle: Path) -> None:
    devices = [site.device(number, relay="bastion") for number in range(BOARDS)]
    with FaultProxy(site.gate.port) as link:
        site.write_config(link.port)
        push_to_all(bundle, devices)
    assert all(is_whole(device, bundle) for device in devices)
    assert size_of(bundle) < link.forwarded["to-server"] < 1.5 * size_of(bundle)


def test_without_a_relay_each_board_is_sent_all(site: Site, bundle: Path) -> None:
    devices = [site.device(number) for number in range(BOARDS)]
    with FaultProxy(site.gate.port) as link:
        site.write_config(link.port)
        push_to_all(bundle, devices)
    assert link.forwarded["to-server"] > BOARDS * size_of(bundle)


def test_relay_ends_with_its_rollout_and_leaves_nothing(site: Site, bundle: Path) -> None:
    files = sorted(site.gate.home.rglob("*"))
    with FaultProxy(site.gate.port) as link:
        site.write_config(link.port)
        push_to_all(bundle, [site.device(0, relay="bastion")])
        assert wait_until(lambda: not relays_of(site))
    assert sorted(site.gate.home.rglob("*")) == files


def relays_of(site: Site) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes()
            environment = (path / "environ").read_bytes()
        except OSError:
            continue
        own = f"HOME={site.gate.home}\0".encode()
        if b"edgepack_relay" in words and own in environment and lives(int(path.name)):
            found.append(int(path.name))
    return found


def test_relay_serves_only_who_has_its_token_and_only_over_tls(site: Site, bundle: Path) -> None:
    chunks = cut_file(next((bundle / "golden").iterdir()))
    with FaultProxy(site.gate.port) as link:
        site.write_config(link.port)
        with Relays() as relays:
            relay = relays.find(site.device(0, relay="bastion"))
            assert relay is not None
            assert relay.put(chunks, "board-0", lambda _: None) == sum(one.size for one in chunks)
            assert relay.put(chunks, "board-1", lambda _: None) == 0
            assert len(relays_of(site)) == 1
            offer = relay.offer("127.0.0.1", "board-0")
            wanted = [one.sha256 for one in chunks]
            data = b"".join(one.read() for one in chunks)
            assert ask(offer, wanted, str(offer["token"])) == (200, data)
            assert ask(offer, wanted, "another")[0] == 403
            assert ask(offer, ["0" * 64], str(offer["token"]))[0] == 404
            with pytest.raises((http.client.HTTPException, OSError)):
                ask(offer, wanted, str(offer["token"]), http.client.HTTPConnection)
            other = Relay(site.device(0, relay="bastion"))
            with pytest.raises(ssl.SSLCertVerificationError):
                ask({**offer, "certificate": other._identity[0]}, wanted, str(offer["token"]))


def ask(
    offer: dict[str, Any],
    wanted: list[str],
    token: str,
    protocol: type[http.client.HTTPConnection] = http.client.HTTPSConnection,
) -> tuple[int, bytes]:
    context = ssl.create_default_context(cadata=offer["certificate"])
    context.check_hostname = False
    options = {"context": context} if protocol is http.client.HTTPSConnection else {}
    with contextlib.closing(
        protocol("127.0.0.1", offer["port"], timeout=10, **options)
    ) as connection:
        connection.request("POST", "/", json.dumps(wanted), {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_board_that_cannot_reach_the_relay_is_pending_and_others_are_not(
    site: Site, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Relay.offer

    def offer(self: Relay, address: str, device: str) -> dict[str, str | int]:
        made = real(self, address, device)
        return {**made, "port": 1} if device == "board-1" else made  # a firewall refuses

    monkeypatch.setattr(Relay, "offer", offer)
    with FaultProxy(site.gate.port) as link:
        site.write_config(link.port)
        with Relays() as relays:
            with pytest.raises(UnreachableError, match=r"127\.0\.0\.1 port 1: .*refused"):
                push(bundle, site.device(1, relay="bastion"), self_test=False, relays=relays)
            push(bundle, site.device(0, relay="bastion"), self_test=False, relays=relays)
    assert is_whole(site.device(0, relay="bastion"), bundle)


@pytest.fixture
def own_relay(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[edgepack_relay.Store]:
    """Let boards ask a relay of this process, and return what it holds: the bundle's chunks."""
    certificate, key = make_identity()
    store = edgepack_relay.Store()
    for path in bundle.rglob("*"):
        for chunk in cut_file(path) if path.is_file() else ():
            store.add(chunk.sha256, chunk.read())
    context = edgepack_relay.read_identity(f"{certificate}{key}".encode())
    server = edgepack_relay.Server("127.0.0.1", store, context, "token")
    offer = {"port": server.server_address[1], "certificate": certificate, "token": "token"}
    monkeypatch.setattr(Relay, "offer", lambda *_: offer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield store
    server.shutdown()
    server.server_close()
    thread.join()
    store.file.close()


def test_wrong_bytes_of_a_relay_are_refused_and_what_was_right_stays(
    site: Site, bundle: Path, own_relay: edgepack_relay.Store
) -> None:
    right = dict(own_relay.places)
    sha256, (offset, size) = max(right.items(), key=lambda item: item[1][1])
    own_relay.places[sha256] = offset + 1, size
    with FaultProxy(site.gate.port) as link:
        site.write_config(link.port)
        with pytest.raises(RemoteCommandError, match="the hash of a chunk is wrong"):
            push(bundle, site.device(0, relay="bastion"), self_test=False)
        assert not (Path(site.device(0, relay="bastion").entry.root) / "tiny/current").exists()
        own_relay.places.update(right)
        push(bundle, site.device(0, relay="bastion"), self_test=False)
    assert is_whole(site.device(0, relay="bastion"), bundle)


def test_fetch_that_was_cut_goes_on_where_it_ended(
    site: Site, bundle: Path, own_relay: edgepack_relay.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FaultProxy(site.gate.port) as link:
        site.write_config(link.port)
        with monkeypatch.context() as patched:
            patched.setattr(own_relay, "read", CutAfter(own_relay, 2 << 20).read)
            with pytest.raises(UnreachableError, match="the relay on the way"):
                push(bundle, site.device(0, relay="bastion"), self_test=False)
        sent = push(bundle, site.device(0, relay="bastion"), self_test=False).bytes_sent
    assert is_whole(site.device(0, relay="bastion"), bundle)
    assert sent < size_of(bundle) - (1 << 20)


class CutAfter:
    """Reads from a store until so many bytes were read."""

    def __init__(self, store: edgepack_relay.Store, size: int) -> None:
        self._read = store.read
        self._left = size

    def read(self, offset: int, size: int) -> bytes:
        self._left -= size
        if self._left < 0:
            raise ConnectionResetError
        return self._read(offset, size)


def test_lost_jump_host_while_it_is_sent_to_is_unreachable_and_the_next_push_works(
    site: Site, bundle: Path
) -> None:
    cut = Fault("cut", "to-server", after_bytes=1_000_000)
    with FaultProxy(site.gate.port, fault=cut) as link:
        site.write_config(link.port)
        with pytest.raises(UnreachableError):
            push(bundle, site.device(0, relay="bastion"), self_test=False)
    with FaultProxy(site.gate.port) as link:
        site.write_config(link.port)
        push(bundle, site.device(0, relay="bastion"), self_test=False)
    assert is_whole(site.device(0, relay="bastion"), bundle)


@pytest.mark.parametrize(
    ("gate", "problem"),
    [
        ({"under": ["prlimit", "--fsize=100000"]}, "File too large"),
        ({"environment": {"PATH": "/nowhere"}}, "there is no 'python3'"),
    ],
    ids=["full", "without Python"],
)
def test_jump_host_that_cannot_hold_chunks_is_an_error_with_its_reason(
    tmp_path: Path, bundle: Path, gate: dict[str, Any], problem: str
) -> None:
    with site_in(tmp_path, **gate) as site, FaultProxy(site.gate.port) as link:
        site.write_config(link.port)
        with pytest.raises(DeviceError, match=re.escape(problem)) as caught:
            push(bundle, site.device(0, relay="bastion"), self_test=False)
    assert not isinstance(caught.value, UnreachableError)
    assert "without 'relay' in devices.yaml" in caught.value.hint


def test_relay_without_a_jump_host_is_refused(site: Site, bundle: Path) -> None:
    with FaultProxy(site.gate.port) as link:
        site.write_config(link.port, way="ServerAliveInterval 15")
        with pytest.raises(DeviceError, match="no host is on the way to board-0"):
            push(bundle, site.device(0, relay="bastion"), self_test=False)
