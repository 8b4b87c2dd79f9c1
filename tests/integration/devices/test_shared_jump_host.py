"""Many boards behind one jump host share a connection to it, and none ends another's."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from edgepack.devices.transports import connect
from edgepack.errors import EdgepackError

from tests.support.servers.jump_host import site_in
from tests.support.servers.openssh_server import find_sshd

BOARDS = 12
VISITS = 25
"""Of each board: with a client that sent after it had closed, 3 of 10 such runs lost the way."""


@pytest.mark.slow(reason="makes hundreds of connections")
@pytest.mark.skipif(find_sshd() is None, reason="there is no sshd")
def test_boards_that_stop_reading_and_hang_up_end_no_connection_of_others(tmp_path: Path) -> None:
    lost: list[EdgepackError] = []

    def visit(number: int) -> None:
        for _ in range(VISITS):
            try:
                with connect(site.device(number)) as transport:
                    # It reads a part of what is sent: the rest is on its way when it hangs up.
                    transport.send(["head", "-c", "100000"], [bytes(1 << 17)] * 8, timeout_s=30)
                    transport.send(["head", "-c", "300000", "/dev/zero"], [], timeout_s=30)
            except EdgepackError as error:
                lost.append(error)

    with site_in(tmp_path) as site:
        threads = [threading.Thread(target=visit, args=(number,)) for number in range(BOARDS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert lost == []
