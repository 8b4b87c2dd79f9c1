"""The proxy that stands for a slow, long or broken link."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest

from tests.support.servers.fault_proxy import Direction, Fault, FaultProxy, Wire

DATA = bytes(range(256)) * 4000
WAIT_S = 20.0


class Echo:
    """A server that sends back what comes; a context manager."""

    def __init__(self) -> None:
        self.received = bytearray()
        """Over all connections."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(WAIT_S)

    def _start(self, run: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=run, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._start(self._echo, self._listener.accept()[0])

    def _echo(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(1 << 16):
                self.received += data
                connection.sendall(data)


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo() as server:
        yield server


def exchange(port: int, data: bytes) -> bytes:
    """Send, end the sending, and return what came back until the end or a reset."""
    received = bytearray()
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.settimeout(WAIT_S)
        sender = threading.Thread(target=send_all, args=(client, data), daemon=True)
        sender.start()
        with contextlib.suppress(ConnectionError):
            while chunk := client.recv(1 << 16):
                received += chunk
        sender.join(WAIT_S)
    return bytes(received)


def open_sockets() -> set[str]:
    """Return the sockets of this process, each by the number that the kernel gave it."""
    found = set()
    for entry in Path("/dev/fd").iterdir():
        with contextlib.suppress(OSError):  # closed since, as the folder itself is
            found.add(str(entry.readlink()))
    return {name for name in found if name.startswith("socket:")}


def read_until_silent(client: socket.socket) -> bytes:
    """Return what comes until nothing does for a while; the end of the connection is an error."""
    received = b""
    with contextlib.suppress(TimeoutError):
        while chunk := client.recv(100):
            received += chunk
        raise ConnectionError
    return received


def read_exactly(client: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size and (chunk := client.recv(size - len(received))):
        received += chunk
    return received


def send_all(client: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)


def test_proxy_when_nothing_is_asked_passes_both_directions_and_their_ends(echo: Echo) -> None:
    with FaultProxy(echo.port) as proxy:
        assert exchange(proxy.port, DATA) == DATA
        assert exchange(proxy.port, b"") == b""
    assert proxy.forwarded == {"to-server": len(DATA), "to-client": len(DATA)}


def test_connections_when_there_are_several_are_kept_apart(echo: Echo) -> None:
    found: dict[int, bytes] = {}
    with FaultProxy(echo.port, to_server=Wire(0.002), to_client=Wire(0.001)) as proxy:

        def one(number: int) -> None:
            found[number] = exchange(proxy.port, bytes([number]) * 100_000)

        threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
    assert found == {number: bytes([number]) * 100_000 for number in range(8)}


def test_delay_when_both_wires_have_one_is_never_shorter(echo: Echo) -> None:
    with (
        FaultProxy(echo.port, to_server=Wire(0.02), to_client=Wire(0.03)) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port)) as client,
    ):
        client.settimeout(WAIT_S)
        for _ in range(5):
            began = time.monotonic()
            client.sendall(b"x")
            assert client.recv(1) == b"x"
            assert time.monotonic() - began >= 0.05


@pytest.mark.parametrize("slow", ["to-server", "to-client"])
def test_rate_when_a_wire_has_one_bounds_that_direction(echo: Echo, slow: Direction) -> None:
    wires = {slow.replace("-", "_"): Wire(bytes_per_s=len(DATA) / 0.2)}
    with FaultProxy(echo.port, **wires) as proxy:
        began = time.monotonic()
        assert exchange(proxy.port, DATA) == DATA
        assert time.monotonic() - began >= 0.2


def test_reader_when_it_does_not_read_stops_the_writer(echo: Echo) -> None:
    with (
        FaultProxy(echo.port) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port)) as client,
    ):
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.sendall(bytes(200_000_000))
        assert proxy.forwarded["to-server"] < 100_000_000


@pytest.mark.parametrize("after_bytes", [0, 1, 70_000, len(DATA) - 1])
def test_cut_when_a_byte_follows_lets_exactly_those_before_it_through(
    echo: Echo, after_bytes: int
) -> None:
    with FaultProxy(echo.port, fault=Fault("cut", "to-server", after_bytes)) as proxy:
        received = exchange(proxy.port, DATA)
    assert proxy.forwarded["to-server"] == after_bytes
    assert DATA.startswith(received)
    assert len(received) <= after_bytes


def test_cut_when_it_is_in_the_answer_leaves_the_request_whole(echo: Echo) -> None:
    with FaultProxy(echo.port, fault=Fault("cut", "to-client", 1000)) as proxy:
        received = exchange(proxy.port, DATA[:5000])
    assert received == DATA[:1000]
    assert bytes(echo.received) == DATA[:5000]


def test_cut_when_fewer_bytes_come_does_not_happen(echo: Echo) -> None:
    with FaultProxy(echo.port, fault=Fault("cut", "to-server", len(DATA))) as proxy:
        assert exchange(proxy.port, DATA) == DATA


@pytest.mark.parametrize("direction", ["to-server", "to-client"])
@pytest.mark.parametrize("after_bytes", [0, 65_536, len(DATA) - 1])
def test_corrupt_when_the_byte_comes_changes_one_bit_of_it(
    echo: Echo, direction: Direction, after_bytes: int
) -> None:
    with FaultProxy(echo.port, fault=Fault("corrupt", direction, after_bytes)) as proxy:
        received = exchange(proxy.port, DATA)
    expected = bytearray(DATA)
    expected[after_bytes] ^= 1
    assert received == bytes(expected)
    assert bytes(echo.received) == (bytes(expected) if direction == "to-server" else DATA)


@pytest.mark.parametrize("direction", ["to-server", "to-client"])
def test_stall_when_it_has_begun_passes_nothing_and_closes_nothing(
    echo: Echo, direction: Direction
) -> None:
    with (
        FaultProxy(echo.port, fault=Fault("stall", direction, 10)) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port)) as client,
    ):
        client.settimeout(WAIT_S)
        client.sendall(b"0123456789")
        assert read_exactly(client, 10) == b"0123456789"
        client.sendall(b"more")
        client.settimeout(0.2)
        assert read_until_silent(client) == b""
        assert proxy.forwarded[direction] == 10
        client.sendall(b"still open")
    assert bytes(echo.received) in (b"0123456789", b"0123456789more")


def test_drip_when_it_has_begun_goes_byte_by_byte(echo: Echo) -> None:
    fault = Fault("drip", "to-client", 100, drip_bytes_per_s=50.0)
    with (
        FaultProxy(echo.port, fault=fault) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port)) as client,
    ):
        client.settimeout(WAIT_S)
        began = time.monotonic()
        client.sendall(DATA[:1000])
        assert read_exactly(client, 105) == DATA[:105]
        # Sooner it cannot be, however late this thread gets to read them.
        assert time.monotonic() - began >= 0.05


def test_server_when_it_is_not_there_closes_the_connection() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with FaultProxy(unused.getsockname()[1]) as proxy:
            assert exchange(proxy.port, b"x") == b""


@pytest.mark.parametrize("fault", [None, Fault("stall", "to-server", 3)])
def test_leaving_when_connections_are_open_ends_everything(fault: Fault | None) -> None:
    # What earlier tests left may end in the meantime: only what is new counts.
    threads, sockets = set(threading.enumerate()), open_sockets()
    with Echo() as echo:
        with FaultProxy(echo.port, to_client=Wire(0.001), fault=fault) as proxy:
            client = socket.create_connection(("127.0.0.1", proxy.port))
            client.settimeout(WAIT_S)
            client.sendall(b"abc")
            assert read_exactly(client, 3) == b"abc"
            client.sendall(b"def")
        with client, contextlib.suppress(ConnectionError):
            while client.recv(100):
                pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", proxy.port))
    assert not set(threading.enumerate()) - threads
    assert not open_sockets() - sockets
