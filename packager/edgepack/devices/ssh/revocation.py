"""``RevokedHostKeys`` of the SSH configuration: keys with which no host may prove itself any more.

A file is a list of public keys, or a key revocation list, which stock ``ssh-keygen -Q`` reads. As
in OpenSSH, no host is trusted if the file cannot be read (ssh_config(5)).
"""

from __future__ import annotations

import base64
import binascii
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from edgepack.base.processes import run_program
from edgepack.devices.ssh.certificates import SUFFIX, parse_certificate, read_kind
from edgepack.errors import DeviceError

_KRL_MAGIC = b"SSHKRL\n\0"
_TIMEOUT_S = 20.0


def is_revoked(blobs: Sequence[bytes], path: Path, where: str) -> bool:
    """Return whether a file of revoked keys has one of some keys or certificates.

    Args:
        blobs: Each as it goes over the wire: a host's key, its certificate, their authority.
        path: The file.
        where: The device's name, for errors.

    Raises:
        DeviceError: The file cannot be read, so it is unknown what is revoked.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _make_unreadable_error(path, error.strerror or str(error), where) from error
    if data.startswith(_KRL_MAGIC):
        return any(_is_in_revocation_list(blob, path, where) for blob in blobs)
    return not set(blobs).isdisjoint(_read_listed(data, path, where))


def is_revocation_list(path: Path | None) -> bool:
    """Return whether a file is a key revocation list, so that a program has to read it."""
    try:
        with (path or Path(os.devnull)).open("rb") as file:
            return file.read(len(_KRL_MAGIC)) == _KRL_MAGIC
    except OSError:
        return False


def _read_listed(data: bytes, path: Path, where: str) -> set[bytes]:
    found = set()
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), start=1):
        words = line.split()
        if not words or line.lstrip().startswith("#"):
            continue
        try:
            blob = base64.b64decode(words[1], validate=True)
            found.add(parse_certificate(blob).key_blob if words[0].endswith(SUFFIX) else blob)
        except (IndexError, ValueError, binascii.Error) as error:
            raise _make_unreadable_error(path, f"line {number} is no public key", where) from error
    return found


def _is_in_revocation_list(blob: bytes, path: Path, where: str) -> bool:
    if shutil.which("ssh-keygen") is None:
        raise _make_unreadable_error(
            path, "a key revocation list is read by ssh-keygen, not found", where
        )
    kind = read_kind(blob)
    with tempfile.TemporaryDirectory(prefix="edgepack-") as folder:
        key = Path(folder) / "key.pub"
        key.write_text(f"{kind} {base64.b64encode(blob).decode()}\n", encoding="ascii")
        argv = ["ssh-keygen", "-Q", "-f", str(path), str(key)]
        result = run_program(argv, timeout_s=_TIMEOUT_S)
    if result.exit_code and "REVOKED" not in result.text:
        raise _make_unreadable_error(path, f"ssh-keygen -Q failed{result.last_lines}", where)
    return result.exit_code != 0


def _make_unreadable_error(path: Path, problem: str, where: str) -> DeviceError:
    return DeviceError(
        f"cannot tell whether the host key is revoked by {path} (RevokedHostKeys): {problem}",
        hint="fix the file, or its name in the SSH configuration: no host is trusted without it",
        where=where,
    )
