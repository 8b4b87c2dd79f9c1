"""Fetch chunks from the host that this device is behind, where ``edgepack_relay.py`` has them.

A line with the host's address is printed first. Then the agent reads where the chunks are: a line
with a length and a JSON document with the port, the certificate that the host shows, and a token.
For each MiB that has come, a dot is printed.
"""

import http.client
import os
import ssl
import sys
from typing import Any, Dict, List

WAIT_S = 120
DOT_BYTES = 1 << 20
NOT_REACHED = 75


class NotReached(SystemExit):
    """The end of this program: the host is not reached, or no more."""

    def __init__(self, why: object) -> None:
        sys.stderr.write("%s\n" % why)
        super().__init__(NOT_REACHED)


class Chunks:
    """Chunks as they come, one behind the other."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.answer = answer
        self.received = 0

    def read(self, size: int) -> bytes:
        """Return so many bytes."""
        try:
            data = self.answer.read(size)
        except (OSError, http.client.HTTPException) as error:
            raise NotReached(error)  # noqa: B904
        if len(data) < size:
            raise NotReached("the connection has ended")
        dots = (self.received + size) // DOT_BYTES - self.received // DOT_BYTES
        self.received += size
        sys.stdout.write("." * dots)
        sys.stdout.flush()
        return data


def find_relay() -> str:
    """Return the address from which this device was connected to."""
    # Source: sshd(8): SSH_CONNECTION has the client's address and port, and the server's.
    words = os.environ.get("SSH_CONNECTION", "").split()
    if not words:
        raise NotReached("the SSH server does not say from where it was connected to")
    return words[0]


def fetch(address: str, offer: Dict[str, Any], hashes: List[str]) -> Chunks:
    """Ask for chunks by their SHA-256."""
    # The certificate was made for this program alone and holds no name. It is valid at any time,
    # for the clocks of boards often are not.
    context = ssl.create_default_context(cadata=offer["certificate"])
    context.check_hostname = False
    connection = http.client.HTTPSConnection(
        address, offer["port"], timeout=WAIT_S, context=context
    )
    asked = "[%s]" % ",".join('"%s"' % each for each in hashes)
    try:
        connection.request("POST", "/", asked, {"Authorization": "Bearer " + offer["token"]})
        answer = connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        raise NotReached("%s port %d: %s" % (address, offer["port"], error))  # noqa: B904
    if answer.status != http.client.OK:
        raise NotReached("%s port %d answers %d" % (address, offer["port"], answer.status))
    return Chunks(answer)
