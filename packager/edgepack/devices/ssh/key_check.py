"""Judges the host keys that asyncssh receives, by the rules of :mod:`.host_keys`."""

from __future__ import annotations

import asyncio
import base64

import asyncssh

from edgepack.devices.ssh.certificates import SUFFIX, parse_certificate, read_kind
from edgepack.devices.ssh.config import SshSettings
from edgepack.devices.ssh.host_keys import HostKey, find_problem
from edgepack.devices.ssh.revocation import is_revocation_list
from edgepack.errors import DeviceError


class KeyCheck:
    """Judges the keys of one host.

    asyncssh cannot wait for a judgement, and nothing in its loop may run programs. Where judging
    runs one, a key is refused first, judged in a thread, and accepted when it is shown again.

    Args:
        settings: Of the host.
        pinned: The fingerprint that decides alone, if there is one.
        device: For messages.
        only_look: Whether every key is refused, after it was noted in :attr:`shown`.
    """

    def __init__(
        self, settings: SshSettings, pinned: str | None, device: str, *, only_look: bool = False
    ) -> None:
        self.shown: list[HostKey] = []
        self._settings = settings
        self._pinned = pinned
        self._device = device
        self._only_look = only_look
        self._waits = False
        self._verdicts: dict[tuple[bytes, bytes | None], DeviceError | None] = {}

    def validate(self, data: bytes) -> asyncssh.SSHKey:
        """Return the key in what a server has sent, if it is trusted.

        Raises:
            HostKeyNotVerifiable: It is not; see :meth:`find_refusal`.
        """
        received, key = _parse_host_key(data)
        self.shown.append(received)
        known = (received.blob, received.certificate)
        self._waits = not self._only_look and known not in self._verdicts and self._runs_programs()
        if self._only_look or self._waits:
            raise asyncssh.HostKeyNotVerifiable("it is not judged yet")
        if known not in self._verdicts:
            self._judge(received)
        if self._verdicts[known] is not None:
            raise asyncssh.HostKeyNotVerifiable("it is not trusted")
        return key

    def find_refusal(self) -> DeviceError:
        """Return why the key that was shown last is not trusted."""
        last = self.shown[-1]
        refusal = self._verdicts.get((last.blob, last.certificate))
        return refusal or DeviceError(
            "the host key was not judged", hint="try again", where=self._device
        )

    def find_pinned(self) -> HostKey | None:
        """Return the key with the pinned fingerprint, if it was shown."""
        return next((key for key in self.shown if key.fingerprint == self._pinned), None)

    async def judge_waiting(self) -> bool:
        """Judge a key that was refused because it was not judged; return whether there was one."""
        if self._waits:
            await asyncio.to_thread(self._judge, self.shown[-1])
        return self._waits

    def _judge(self, received: HostKey) -> None:
        problem = find_problem(received, self._settings, pinned=self._pinned, device=self._device)
        self._verdicts[received.blob, received.certificate] = (
            None if problem is None else problem.error
        )

    def _runs_programs(self) -> bool:
        return bool(self._settings.known_hosts_command) or is_revocation_list(
            self._settings.revoked_host_keys
        )


def _parse_host_key(data: bytes) -> tuple[HostKey, asyncssh.SSHKey]:
    """Return a host's key, with its certificate if it has one, from what a server sends.

    Raises:
        HostKeyNotVerifiable: It is nothing of the kind.
    """
    try:
        is_certified = read_kind(data).endswith(SUFFIX)
        blob = parse_certificate(data).key_blob if is_certified else data
        line = f"{read_kind(blob)} {base64.b64encode(blob).decode()}"
        key = asyncssh.import_public_key(line)
    except ValueError as error:
        raise asyncssh.HostKeyNotVerifiable(f"it cannot be read: {error}") from error
    return HostKey(read_kind(blob), blob, data if is_certified else None), key
