"""The cache that a team shares: outputs of steps as objects of an S3 store.

It is a help and never a need: what it does not give in time, whole and true is made here. An object
is ``<prefix>/steps/<key>``, an entry packed as :mod:`edgepack.builder.entries` says, and is written
once and never changed.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from edgepack.base.object_store import (
    explain_store_problem,
    list_store_problems,
    open_bucket,
    require_libraries,
)
from edgepack.base.progress import Progress
from edgepack.builder.entries import INDEX, DamagedError, is_plain_name, pack_entry
from edgepack.errors import UsageError

if TYPE_CHECKING:
    from obstore.store import S3Store

VARIABLE = "EDGEPACK_CACHE_STORE"
"""The environment variable with the place: ``s3://bucket/prefix``."""
SECRET_VARIABLE = "EDGEPACK_CACHE_SECRET"  # noqa: S105  (its name)
"""The environment variable with what a team signs its entries with; without it nothing is signed,
and whoever may write to the store decides what builds take from it."""
MOST_BYTES = 512_000_000
"""Size of the largest entry's files: it is sent in one request, from memory."""
_MOST_OBJECT_BYTES = MOST_BYTES + 1_000_000
"""With its first lines; what is larger was never sent by a build."""
CONNECT_S, ANSWER_S, SEND_S = 5, 10, 120
"""How long a connection, the next bytes of an answer and a whole upload may take, in seconds."""
LEAST_BYTES_PER_S = 1_000_000
"""Below this an entry is made here sooner than it arrives."""
_WAIT_S = 30.0
_SENDERS, _MOST_WAITING = 2, 256


@dataclass
class SharedCache:
    """Entries of step outputs in a store that may lie, be slow, refuse, or go away at any time.

    Methods may be called from several threads. Nothing that the store does is raised: it is told
    once to ``tell``, and after a store that is slow or out of order it is left alone.
    """

    url: str
    secret: bytes = field(default=b"", repr=False)
    wait_s: float = _WAIT_S
    """How long :meth:`finish` waits in all."""
    tell: Callable[[str], object] = lambda _: None
    """Takes a line for the user."""
    fetched: int = 0
    sent: int = 0
    in_use: bool = False
    """Inside of :func:`using`."""
    _reads: bool = True
    _writes: bool = True
    _told: set[str] = field(default_factory=set, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _clients: dict[str, S3Store] = field(default_factory=dict, repr=False)
    _waiting: queue.Queue[tuple[str, Path]] = field(
        default_factory=lambda: queue.Queue(_MOST_WAITING), repr=False
    )
    _senders: list[threading.Thread] = field(default_factory=list, repr=False)

    def find(self, key: str) -> Iterable[bytes] | None:
        """Return an entry's bytes as they arrive, or None where there is none to be had."""
        if not self._reads:
            return None
        import obstore

        try:
            answer = obstore.get(self._open("read"), f"steps/{key}")
            size = answer.meta["size"]
            if size > _MOST_OBJECT_BYTES:
                self.report_damage(key, DamagedError(f"it has {size} bytes, more than any entry"))
                return None
            return self._receive(answer.stream(min_chunk_size=1), size)
        except FileNotFoundError:
            return None
        except list_store_problems() as error:
            self._leave_alone(error)
            return None

    def _receive(self, stream: Iterable[Any], size: int) -> Iterator[bytes]:
        """Yield an answer's bytes, but not for longer than making the entry here is worth."""
        end = time.monotonic() + ANSWER_S + size / LEAST_BYTES_PER_S
        try:
            for chunk in stream:
                yield bytes(chunk)
                if time.monotonic() > end:
                    raise TimeoutError(f"{size} bytes did not arrive within their time")
        except list_store_problems() as error:
            self._leave_alone(error)
            raise DamagedError(str(error)) from error

    def report_damage(self, key: str, error: DamagedError) -> None:
        """Tell that an entry was passed over; of several, only the first."""
        if self._reads:
            self._tell_once(
                "damage",
                f"warning: the entry steps/{key} of {self.url} is passed over: {error}. It is made"
                " here; remove that object, so that it can be sent again",
            )

    def report_unkept(self, key: str, error: Exception) -> None:
        """Tell that an entry found no place here; of several, only the first."""
        self._tell_once(
            "unkept",
            f"warning: the entry steps/{key} of {self.url} could not be kept: {error}. It is made"
            " here",
        )

    def send(self, key: str, folder: Path) -> None:
        """Send an entry later, in another thread; where too many wait it is left out."""
        if not self._writes:
            return
        with self._lock:
            if not self._senders:
                self._senders += [
                    threading.Thread(target=self._send_all, daemon=True) for _ in range(_SENDERS)
                ]
                for sender in self._senders:
                    sender.start()
        try:
            self._waiting.put_nowait((key, folder))
        except queue.Full:
            self._tell_once("full", f"{self.url} takes entries too slowly: some are not sent")

    def finish(self) -> None:
        """Wait until all is sent, but not longer than the rest of the time for it."""
        began = time.monotonic()
        with self._waiting.all_tasks_done:
            while self._writes and self._waiting.unfinished_tasks and self.wait_s > 0:
                left = began + self.wait_s - time.monotonic()
                if not self._waiting.all_tasks_done.wait(max(0.0, left)):
                    break
            missing = self._waiting.unfinished_tasks
        self.wait_s = max(0.0, self.wait_s - (time.monotonic() - began))
        if missing and self._writes:
            self._writes = False
            self._tell_once(
                "late", f"warning: {missing} entries were not sent to {self.url} in time"
            )

    def _send_all(self) -> None:
        while True:
            key, folder = self._waiting.get()
            try:
                if self._writes:
                    self._send_one(key, folder)
            finally:
                self._waiting.task_done()

    def _send_one(self, key: str, folder: Path) -> None:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            paths = [path for path in folder.iterdir() if path.name != INDEX]
            size = sum(path.stat().st_size for path in paths)
            if size > MOST_BYTES or not all(is_plain_name(path.name) for path in paths):
                return
            data = pack_entry(key, paths, self.secret)
            # Whoever was first stays: what others read meanwhile never changes.
            obstore.put(self._open("write"), f"steps/{key}", data, mode="create")
            self.sent += 1
        except (AlreadyExistsError, PreconditionError):
            return
        except list_store_problems() as error:
            self._stop_writing(error)

    def _open(self, what: str) -> S3Store:
        """Return the client that reads or writes; they differ in how long an answer may take."""
        with self._lock:
            if what not in self._clients:
                self._clients[what] = _open_store(self.url, reads=what == "read")
            return self._clients[what]

    def _leave_alone(self, error: BaseException) -> None:
        self._reads = self._writes = False
        self._tell_once(
            "alone",
            f"warning: the shared cache {self.url} is left alone for the rest of this build:"
            f" {explain_store_problem(error)}",
        )

    def _stop_writing(self, error: BaseException) -> None:
        self._writes = False
        if self._reads:
            self._tell_once(
                "write", f"nothing is sent to {self.url}: {explain_store_problem(error)}"
            )

    def _tell_once(self, what: str, line: str) -> None:
        with self._lock:
            if what in self._told:
                return
            self._told.add(what)
        self.tell(line)


@contextmanager
def using(shared: SharedCache | None, progress: Progress) -> Iterator[None]:
    """Tell what a team's store does, and at the end give it time for what is being sent.

    Inside of another one it does nothing: several builds have one time, at the end of all.
    """
    if shared is None or shared.in_use:
        yield
        return
    shared.in_use, shared.tell = True, progress.note
    before = shared.fetched
    try:
        yield
    finally:
        shared.in_use = False
    shared.finish()
    if count := shared.fetched - before:
        progress.note(f"{count} steps from {shared.url}")


def open_shared_cache() -> SharedCache | None:
    """Return the cache that the environment names, or None; nothing is asked of it yet.

    Raises:
        UsageError: The place is none of S3's.
        ToolError: The libraries for it are not installed.
    """
    url = os.environ.get(VARIABLE, "").rstrip("/")
    if not url:
        return None
    parts = urlsplit(url)
    if parts.scheme != "s3" or not parts.hostname or parts.query or "@" in parts.netloc:
        raise UsageError(
            f"{VARIABLE} is no place in an S3 store",
            hint=f"write {VARIABLE}=s3://bucket/prefix; credentials are found as AWS's tools find"
            " them",
            where=VARIABLE,
        )
    require_libraries(f"{VARIABLE} is set", f"unset {VARIABLE}")
    return SharedCache(url, os.environ.get(SECRET_VARIABLE, "").encode())


def _open_store(url: str, *, reads: bool) -> S3Store:
    return open_bucket(
        url,
        connect_s=CONNECT_S,
        whole_s=ANSWER_S + MOST_BYTES / LEAST_BYTES_PER_S if reads else SEND_S,
        answer_s=ANSWER_S if reads else None,
        retries=(1, ANSWER_S),
    )
