"""Relays: chunks go once to the host that devices are behind, and each device takes them there.

Where that host's link to here is slow and many devices are behind it, this is what counts. The host
gets the chunks as they are; what each device fetches is encrypted, and hashed again there.
"""

from __future__ import annotations

import datetime
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Self

from edgepack.deploy.transfer.chunks import Chunk
from edgepack.devices.inventory import Device, SshEntry
from edgepack.devices.programs import open_program
from edgepack.devices.transport import Stream
from edgepack.errors import DeviceError, RemoteCommandError, UnreachableError

STALL_S = 300.0
"""Seconds that a relay may not read."""
_PORT_BYTES = 6


class Relays:
    """The relays of one rollout; they end with its context."""

    def __init__(self) -> None:
        self._relays: dict[object, Relay] = {}
        self._finding = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for relay in self._relays.values():
            relay.close()

    def find(self, device: Device) -> Relay | None:
        """Return the relay on the last host on the way to a device, if devices.yaml asks for it.

        Raises:
            DeviceError: No ``ProxyJump`` names a host on the way.
        """
        if not isinstance(device.entry, SshEntry) or device.entry.relay is None:
            return None
        from edgepack.devices.ssh.connect import find_way

        way = find_way(device.entry, device.name)
        if not way:
            raise DeviceError(
                f"'relay: {device.entry.relay}' is set, and no host is on the way to {device.name}",
                hint="name one with ProxyJump in ~/.ssh/config (a ProxyCommand does not say which"
                " it is), or leave 'relay' out of devices.yaml",
                where=device.name,
            )
        with self._finding:
            return self._relays.setdefault(way, Relay(device))


class Relay:
    """Chunks on a host on the way, for all devices behind it; threads may share it."""

    def __init__(self, device: Device) -> None:
        self._device = device
        """Any one behind the host."""
        self._using = threading.Lock()
        self._stack = ExitStack()
        self._stream: Stream | None = None
        self._there: set[str] = set()
        self._ports: dict[str, int] = {}
        self._token = secrets.token_urlsafe(32)

    def close(self) -> None:
        """End the program on the host, and with it what it holds."""
        self._stream = None
        self._there.clear()
        self._ports.clear()
        self._stack.close()

    def put(self, chunks: Sequence[Chunk], device: str, advance: Callable[[int], object]) -> int:
        """Send the chunks that the host lacks, and return their bytes.

        Args:
            chunks: What a device lacks.
            device: Its name, for messages.
            advance: Called with the bytes of each chunk that was sent.

        Raises:
            DeviceError: The host cannot hold them.
        """
        size = 0
        with self._used_for(device) as stream:
            for chunk in chunks:
                if chunk.sha256 not in self._there:
                    stream.write(b"chunk %s %d\n" % (chunk.sha256.encode(), chunk.size))
                    stream.write(chunk.read())
                    self._there.add(chunk.sha256)
                    advance(chunk.size)
                    size += chunk.size
        return size

    def offer(self, address: str, device: str) -> dict[str, str | int]:
        """Return where a device finds the chunks, and what proves both to each other.

        Args:
            address: The host's, as the device sees it.
            device: The device's name, for messages.

        Raises:
            DeviceError: The host does not have this address, or is lost.
        """
        with self._used_for(device) as stream:
            if address not in self._ports:
                stream.write(b"listen %s 0\n" % address.encode())
                said = stream.read(_PORT_BYTES)
                if not said.strip().isdigit():
                    raise RemoteCommandError(
                        f"it cannot listen on {address}{stream.wait().last_lines}",
                        hint="the device sees another address of it, as through NAT",
                    )
                self._ports[address] = int(said)
            return {
                "port": self._ports[address],
                "certificate": self._identity[0],
                "token": self._token,
            }

    @contextmanager
    def _used_for(self, device: str) -> Iterator[Stream]:
        with self._using:
            try:
                if self._stream is None:
                    self._stream = self._start()
                yield self._stream
            except (RemoteCommandError, DeviceError) as error:
                self.close()
                kind = UnreachableError if isinstance(error, UnreachableError) else DeviceError
                raise kind(
                    f"the relay on the way: {error.problem}",
                    hint=f"{error.hint}; without 'relay' in devices.yaml each device is sent all",
                    where=device,
                ) from error

    def _start(self) -> Stream:
        from edgepack.devices.ssh.transport import LastJump

        transport = self._stack.enter_context(LastJump(self._device))
        opened = open_program(transport, "python3", "edgepack_relay", timeout_s=STALL_S)
        stream = self._stack.enter_context(opened)
        identity = "".join(self._identity).encode()
        stream.write(b"identity %s %d\n" % (self._token.encode(), len(identity)) + identity)
        return stream

    @cached_property
    def _identity(self) -> tuple[str, str]:
        return make_identity()


def make_identity() -> tuple[str, str]:
    """Return a new certificate that signs itself, and its key, in PEM.

    It is valid at any time: the clocks of boards are not to be relied on.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "edgepack relay")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC))
        .not_valid_after(datetime.datetime(9999, 12, 31, tzinfo=datetime.UTC))
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return made.public_bytes(Encoding.PEM).decode("ascii"), secret.decode("ascii")
