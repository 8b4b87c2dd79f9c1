"""A TCP proxy on 127.0.0.1 that is a slow, long or broken link, for tests and benchmarks.

It needs no root and no kernel module: one thread forwards all connections between user-space
sockets. A direction is a wire: bytes leave at its rate (a token bucket as deep as half a
millisecond of it), travel for its delay, and arrive in order. TCP's own reaction to a long link
(slow start, loss) is not part of it: both halves of a connection are loopback.

How exact: nothing is early. With other work on both of two cores, a byte was late by 0.2 ms in each
direction at the median, and by as long as the scheduler made it wait in the worst case; 45 MB at
12.5 MB/s took 1.02 times as long as the wire, and an unbounded wire passed 225 MB/s. In the process
of a client that computes, Python's lock adds up to 5 ms: measure from another process.
"""

from __future__ import annotations

import collections
import contextlib
import math
import select
import socket
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Self

QUANTUM_S = 0.0005
"""Bytes travel in pieces of this much of the rate: a smaller piece is only more work."""
WAITING_BYTES = 1 << 20
"""How much of a direction may wait for its turn on the wire; then the proxy stops reading. At
12.5 MB/s the wire stays busy even if the proxy is not scheduled for 80 ms."""
_READ_BYTES = 1 << 16

Direction = Literal["to-server", "to-client"]


@dataclass(frozen=True)
class Wire:
    """One direction of a link."""

    delay_s: float = 0.0
    """One way."""
    bytes_per_s: float = math.inf


@dataclass(frozen=True)
class Fault:
    """What happens to each connection when a byte follows ``after_bytes`` in one direction."""

    kind: Literal["cut", "corrupt", "stall", "drip"]
    """``cut``: both ends see the connection close. ``corrupt``: one bit of the next byte is
    flipped. ``stall``: nothing is forwarded any more, in neither direction, and nothing closes.
    ``drip``: the rest of this direction goes at ``drip_bytes_per_s``."""
    direction: Direction
    after_bytes: int
    drip_bytes_per_s: float = 100.0


class FaultProxy:
    """Forwards connections to a port of this machine; a context manager.

    Leaving the context closes everything: its port, all connections, its thread.

    Args:
        server_port: Where connections are forwarded to, on 127.0.0.1.
        to_server: The wire from the client to the server.
        to_client: The wire back.
        fault: What happens to each connection, if anything.
    """

    host = "127.0.0.1"

    def __init__(
        self,
        server_port: int,
        *,
        to_server: Wire | None = None,
        to_client: Wire | None = None,
        fault: Fault | None = None,
    ) -> None:
        self.forwarded: dict[Direction, int] = {"to-server": 0, "to-client": 0}
        """Bytes that arrived, over all connections."""
        self._server_port = server_port
        self._wires = {"to-server": to_server or Wire(), "to-client": to_client or Wire()}
        self._fault = fault
        self._connections: list[_Connection] = []
        self._wake, self._woken = socket.socketpair()
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WAITING_BYTES)
        self._listener.bind((self.host, 0))
        self._listener.listen(128)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._wake.close()
        self._thread.join()

    def _serve(self) -> None:
        try:
            while True:
                readable = self._wait()
                if self._woken in readable:
                    return
                if self._listener in readable:
                    self._accept()
                self._forward(readable)
        finally:
            for connection in self._connections:
                connection.close()
            for each in (self._listener, self._woken):
                each.close()

    def _wait(self) -> set[socket.socket]:
        """Wait until a socket can be read or written, or a piece has arrived."""
        ways = [way for connection in self._connections for way in connection.ways]
        sources = [way.source for way in ways if way.reads]
        sinks = [way.sink for way in ways if way.blocked]
        due = min((way.due for way in ways if not way.blocked), default=math.inf)
        timeout = None if due == math.inf else max(0.0, due - time.monotonic())
        readable, writable, _ = select.select(
            [self._listener, self._woken, *sources], sinks, [], timeout
        )
        for way in ways:
            way.blocked = way.blocked and way.sink not in writable
        return set(readable)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection((self.host, self._server_port))
        except OSError:
            client.close()
            return
        self._connections.append(_Connection(client, server, self._wires, self._fault))

    def _forward(self, readable: set[socket.socket]) -> None:
        now = time.monotonic()
        for connection in list(self._connections):
            for way in connection.ways:
                try:
                    if way.source in readable and way.reads:
                        way.read(now)
                    self.forwarded[way.direction] += way.deliver(time.monotonic())
                except OSError:  # an end closed in its own way: the other end sees a close too
                    connection.open = False
            if not connection.open:
                connection.close()
                self._connections.remove(connection)


class _Connection:
    """A client's connection, the one to the server, and the two ways between them."""

    def __init__(
        self,
        client: socket.socket,
        server: socket.socket,
        wires: dict[str, Wire],
        fault: Fault | None,
    ) -> None:
        self.open = True
        self.stalled = False
        self._ends = (client, server)
        for end in self._ends:
            end.settimeout(0.0)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        there, back = wires["to-server"], wires["to-client"]
        self.ways = (
            _Way(self, "to-server", client, server, there, fault),
            _Way(self, "to-client", server, client, back, fault),
        )

    def close(self) -> None:
        """Let both ends see an end."""
        for end in self._ends:
            with contextlib.suppress(OSError):  # not connected any more
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def end_of(self, way: _Way) -> None:
        """Pass the end of one direction on; the connection ends with the second."""
        way.sink.shutdown(socket.SHUT_WR)
        way.ended = True
        self.open = not all(each.ended for each in self.ways)


class _Way:
    """One direction of one connection: what was read waits here until it arrives."""

    def __init__(
        self,
        connection: _Connection,
        direction: Direction,
        source: socket.socket,
        sink: socket.socket,
        wire: Wire,
        fault: Fault | None,
    ) -> None:
        self.direction = direction
        self.source = source
        self.sink = sink
        self.blocked = False
        """Whether the sink takes nothing now."""
        self.ended = False
        self._connection = connection
        self._fault = fault if fault and fault.direction == direction else None
        self._delay_s = wire.delay_s
        self._bytes_per_s = wire.bytes_per_s
        self._free_at = 0.0
        """When the last piece has left for the wire."""
        self._read_bytes = 0
        self._waiting_bytes = 0
        self._closed = False
        self._pieces: collections.deque[tuple[float, bytes, str]] = collections.deque()
        """When each arrives, and what happens after it."""

    @property
    def reads(self) -> bool:
        """Whether there is room for more."""
        room = self._waiting_bytes < WAITING_BYTES + self._delay_s * min(self._bytes_per_s, 1e9)
        return room and not self._closed and not self._connection.stalled

    @property
    def due(self) -> float:
        """When the next piece arrives, on the monotonic clock."""
        return self._pieces[0][0] if self._pieces and not self._connection.stalled else math.inf

    def read(self, now: float) -> None:
        """Put on the wire what has come."""
        try:
            data = self.source.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:  # reset: what is on the wire arrives first
            self._closed = True
            self._send(now, b"", "cut")
            return
        self._closed = not data
        if self._closed:
            self._send(now, b"", "end")
            return
        until_fault = self._fault.after_bytes - self._read_bytes if self._fault else len(data)
        self._read_bytes += len(data)
        if self._fault and 0 <= until_fault < len(data):
            self._send(now, data[:until_fault], "")
            self._send_faulty(now, data[until_fault:], self._fault)
        else:
            self._send(now, data, "")

    def _send_faulty(self, now: float, rest: bytes, fault: Fault) -> None:
        if fault.kind == "corrupt":
            self._send(now, bytes([rest[0] ^ 1]) + rest[1:], "")
        elif fault.kind == "drip":
            self._bytes_per_s = fault.drip_bytes_per_s
            self._send(now, rest, "")
        else:
            self._closed = True
            self._send(now, b"", fault.kind)

    def _send(self, now: float, data: bytes, then: str) -> None:
        for piece in self._cut(data):
            self._free_at = max(now, self._free_at) + len(piece) / self._bytes_per_s
            self._pieces.append((self._free_at + self._delay_s, piece, then))
        self._waiting_bytes += len(data)

    def _cut(self, data: bytes) -> Iterable[bytes]:
        if math.isinf(self._bytes_per_s) or not data:
            return [data]
        size = max(1, int(self._bytes_per_s * QUANTUM_S))
        return [data[start : start + size] for start in range(0, len(data), size)]

    def deliver(self, now: float) -> int:
        """Hand over what has arrived, as far as it is taken, and return how many bytes."""
        total = 0
        while self.due <= now and not self.blocked:
            due, piece, then = self._pieces.popleft()
            try:
                sent = self.sink.send(piece) if piece else 0
            except BlockingIOError:
                sent = 0
                self.blocked = True
            total += sent
            if sent < len(piece):
                self._pieces.appendleft((due, piece[sent:], then))
            elif then:
                self._happen(then)
        self._waiting_bytes -= total
        return total

    def _happen(self, then: str) -> None:
        if then == "end":
            self._connection.end_of(self)
        elif then == "cut":
            self._connection.open = False
        else:
            self._connection.stalled = True
