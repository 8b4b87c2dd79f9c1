"""A worker process: it reads calls from stdin, answers on stdout, and ends when stdin ends.

Started by :class:`edgepack.base.processes.Workers`. What libraries print goes to stderr, because
stdout carries the answers.
"""

from __future__ import annotations

import os
import pickle
import queue
import sys
import threading
import time
import traceback
from typing import IO, Any

from edgepack.errors import BugError, EdgepackError

_HEADER_BYTES = 8
_REPORT_INTERVAL_S = 0.1


def send(stream: IO[bytes], message: object) -> None:
    """Write one pickled message with its length before it."""
    data = pickle.dumps(message)
    stream.write(len(data).to_bytes(_HEADER_BYTES, "big") + data)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:  # noqa: ANN401  (any picklable value)
    """Return the next message.

    Raises:
        EOFError: The other side is gone.
    """
    data = _receive_bytes(stream)
    return pickle.loads(data)  # noqa: S301  (the other side is our own parent or child)


def _receive_bytes(stream: IO[bytes]) -> bytes:
    header = stream.read(_HEADER_BYTES)
    if len(header) < _HEADER_BYTES:
        raise EOFError
    return stream.read(int.from_bytes(header, "big"))


class _Reports:
    """Where and when calls report: a few times a second at most."""

    stream: IO[bytes] | None = None
    """Where the answers go; None in a process that is no worker."""
    due_at: float = 0.0


_reports = _Reports()


def report(done: int, total: int, doing: str = "") -> None:
    """Report to the process that made the running call how many of its parts are done.

    Outside a worker this does nothing. Call it in the thread that runs the call.

    Args:
        done: The number of finished parts of ``total``.
        total: The number of parts of the whole call, or with ``doing`` the most that this step can
            have; 0 if not known.
        doing: The call's present step, in words.
    """
    if _reports.stream is None or (done < total and time.monotonic() < _reports.due_at):
        return
    send(_reports.stream, ("progress", (done, total, doing) if doing else (done, total)))
    _reports.due_at = time.monotonic() + _REPORT_INTERVAL_S


def tell(line: str) -> None:
    """Send a line for its user to the process that made the running call; see :func:`report`."""
    if _reports.stream is not None:
        send(_reports.stream, ("note", (line,)))


def _read_calls(stream: IO[bytes], calls: queue.Queue[bytes]) -> None:
    """Queue calls; when the parent is gone, end this process whatever it is computing."""
    try:
        while True:
            calls.put(_receive_bytes(stream))
    except EOFError:
        os._exit(0)


def main() -> None:
    """Serve calls until stdin ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _reports.stream = answers
    calls: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_read_calls, args=(sys.stdin.buffer, calls), daemon=True).start()
    while True:
        call = calls.get()
        try:
            function, arguments = pickle.loads(call)  # noqa: S301
            answer = ("value", function(*arguments))
        except BugError:
            answer = ("bug", traceback.format_exc())
        except (EdgepackError, OSError) as error:
            answer = ("error", error)
        except BaseException:  # noqa: BLE001  (the parent raises it as a bug, with this traceback)
            answer = ("bug", traceback.format_exc())
        send(answers, answer)
