"""Whatever a server says, one device's connection fails with one error, and soon."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from edgepack.demo.server import LoopbackServer
from edgepack.devices.ssh import connect as ssh_connect
from edgepack.devices.transports import connect
from edgepack.errors import DeviceError

from tests.support.servers.loopback import ssh_device

NAMES = b"curve25519-sha256"


def pack(payload: bytes) -> bytes:
    """Return an SSH packet before keys are exchanged (RFC 4253, 6)."""
    padding = 16 - (len(payload) + 5) % 8
    return struct.pack(">IB", len(payload) + padding + 1, padding) + payload + bytes(padding)


def offer(*lists: bytes) -> bytes:
    """Return a KEXINIT with these lists of names, the last one for all that are left."""
    names = [*lists, *[lists[-1]] * (10 - len(lists))]
    body = b"".join(struct.pack(">I", len(name)) + name for name in names)
    return pack(b"\x14" + bytes(16) + body + bytes(5))


BANNER = b"SSH-2.0-hostile\r\n"
NOISE = random.Random(7).randbytes(4096)
SAYINGS = {
    "noise": NOISE,
    "a banner and noise": BANNER + NOISE,
    "lines without end": b"hello\r\n" * 200_000,
    "one line without end": b"x" * 2_000_000,
    "version 1": b"SSH-1.5-old\r\n",
    "a version that is not ASCII": b"SSH-2.0-\xff\xfe\r\n",
    "a packet of 4 GB": BANNER + b"\xff\xff\xff\xff" + NOISE,
    "an empty packet": BANNER + bytes(64),
    "nothing in common": BANNER + offer(b"none-such"),
    "a list that ends too late": BANNER + pack(b"\x14" + bytes(16) + b"\x00\x10\x00\x00"),
    "names that are not ASCII": BANNER + offer(b"\xff\xfe"),
    "a key exchange out of turn": BANNER + pack(b"\x1f" + NOISE[:64]),
    "a login before the key": BANNER + pack(b"\x34"),
    "a disconnect": BANNER + pack(b"\x01\x00\x00\x00\x02" + b"\xff" * 12),
    "an early answer": BANNER + offer(NAMES, b"ssh-ed25519") + pack(b"\x1f" + NOISE[:96]),
}


@pytest.fixture
def saying(request: pytest.FixtureRequest) -> Iterator[int]:
    """Serve what a parameter says, over and over."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)

        def serve() -> None:
            while not ended.is_set():
                with contextlib.suppress(OSError):
                    connected, _ = listener.accept()
                    with connected:
                        connected.sendall(request.param)
                        connected.recv(100_000)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        ended.set()
        thread.join(10)


@pytest.mark.parametrize("saying", SAYINGS.values(), ids=SAYINGS.keys(), indirect=True)
def test_server_that_says_anything_else_is_one_error(
    tmp_path: Path, saying: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_connect, "HANDSHAKE_S", 2.0)
    with LoopbackServer(tmp_path / "server") as server:
        with pytest.raises(DeviceError) as caught, connect(ssh_device(server, port=saying)):
            pass
        assert str(saying) in caught.value.problem
        with connect(ssh_device(server)) as transport:  # and no other device is concerned
            assert transport.send(["true"], [], timeout_s=20).exit_code == 0
