"""One process that plays many boards over real SSH: each has the release already.

What a board's programs would answer is answered here, so that the boards cost next to nothing and
the client's own cost shows. Run as ``python -m tests.support.servers.played_boards COUNT FOLDER``;
it writes ``devices.yaml`` into the folder, prints a line, and ends with its stdin.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import struct
import sys
from pathlib import Path

import asyncssh
from edgepack.demo.server import USER, make_key

HOST = "127.0.0.1"
LEASE = {
    "id": "0" * 32,
    "owner": "somebody@host",
    "purpose": "push",
    "exclusive": False,
    "reserved": False,
    "taken_at": "2026-01-01T00:00:00Z",
    "until_at": "2026-01-01T00:03:00Z",
    "left_s": 180.0,
}


class _Board(asyncssh.SSHServer):
    """Lets in whoever has the key."""

    def __init__(self, key: asyncssh.SSHKey) -> None:
        self._key = key

    def begin_auth(self, _username: str) -> bool:
        return True

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return username == USER and key.public_data == self._key.public_data


async def play(process: asyncssh.SSHServerProcess[bytes]) -> None:
    """Answer one program: that of leases, or the agent of a push."""
    command = process.command or ""
    sizes = [int(size) for size in re.findall(r"edgepack_\w+:(\d+)", command)]
    with contextlib.suppress(asyncio.IncompleteReadError, asyncssh.Error, OSError):
        await process.stdin.readexactly(sum(sizes))
        if "edgepack_lease" in command:
            await _lend(process)
        elif "edgepack_agent" in command:
            process.stdout.write(b"have\n")
            await process.stdin.readexactly(2)
            release = re.findall(r" push \S+ \S+ ([0-9a-f]{16})", command)[0]
            path = f"/played/tiny/releases/{release}"
            process.stdout.write(json.dumps({"path": path, "from": release}).encode() + b"\n")
        process.exit(0)


async def _lend(process: asyncssh.SSHServerProcess[bytes]) -> None:
    """Lend the board, as often as the lease is renewed."""
    answer = "taken"
    while True:
        message = json.dumps({"answer": answer, "leases": [LEASE]}).encode()
        process.stdout.write(struct.pack(">I", len(message)) + message)
        if not await process.stdin.read(1):
            return
        answer = "renewed"


async def serve(count: int, folder: Path) -> None:
    """Play boards until stdin ends."""
    client, host = make_key(folder / "client_key"), make_key(folder / "host_key")
    entries = {}
    for number in range(count):
        acceptor = await asyncssh.listen(
            HOST,
            0,
            server_factory=lambda: _Board(client),
            process_factory=play,
            server_host_keys=[host],
            encoding=None,
            config=None,
        )
        entries[f"board-{number:03}"] = {
            "transport": "ssh",
            "host": HOST,
            "port": acceptor.get_port(),
            "user": USER,
            "key": str(folder / "client_key"),
            "host_key": host.get_fingerprint(),
            "ssh_config": os.devnull,
            "python": "/usr/bin/python3",
            "target": "linux-x86-64",
        }
    document = {"schema_version": 1, "devices": entries}
    (folder / "devices.yaml").write_text(json.dumps(document))
    print("ready", flush=True)  # noqa: T201  (to the parent)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), Path(sys.argv[2])))
