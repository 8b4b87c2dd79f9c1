"""Reads the bodies of requests: each within a size and a time, all within a bound of memory.

Needs Python 3.8 or newer and starlette.
"""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any, AsyncIterator, Callable, List, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

if __package__:
    from .edgepack_queue import RefusedError
else:  # a bundle's
    from edgepack_queue import RefusedError  # type: ignore[import-not-found,no-redef]

T = TypeVar("T")
_LARGEST = 4
"""Bodies of the largest size that are held at a time, smaller ones in proportion."""
_THREADS = 2
"""That read pictures and values. Each may hold a picture's pixels."""


class Bodies:
    """The bodies of a service.

    Args:
        most_bytes: Of one.
        most_s: How long one may take to come, in seconds.
    """

    def __init__(self, most_bytes: int, most_s: float) -> None:
        self.most_bytes = most_bytes
        self.most_s = most_s
        self._held = 0
        self._readers = ThreadPoolExecutor(_THREADS, thread_name_prefix="edgepack-read")

    @contextlib.asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """Give a request's body, which counts as held as long as the block.

        Raises:
            HTTPException: It is encoded, too large, or does not come in time.
            RefusedError: Others hold all memory.
            ClientDisconnect: The client is gone.
        """
        encoding = request.headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            raise HTTPException(415, f"the body is encoded as {encoding!r}: send it as it is")
        parts: List[bytes] = []
        try:
            await self._collect_in_time(request, parts)
            yield parts[0] if len(parts) == 1 else b"".join(parts)
        finally:
            self._held -= sum(map(len, parts))

    async def _collect_in_time(self, request: Request, parts: List[bytes]) -> None:
        # As asyncio.timeout of Python 3.11; wait_for makes a task of its own before 3.12.
        late: List[bool] = []
        task: Any = asyncio.current_task()

        def stop() -> None:
            late.append(True)
            task.cancel()

        timer = asyncio.get_running_loop().call_later(self.most_s, stop)
        try:
            await self._collect(request, parts)
        except asyncio.CancelledError:
            if not late:
                raise
            raise HTTPException(408, f"the body took more than {self.most_s:g} s") from None
        finally:
            timer.cancel()

    async def _collect(self, request: Request, parts: List[bytes]) -> None:
        # Not by request.stream(): its generator costs as much as all else here.
        size, more = 0, True
        while more:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            part, more = message.get("body", b""), message.get("more_body", False)
            size += len(part)
            if size > self.most_bytes:
                raise HTTPException(413, f"the body has more than {self.most_bytes} bytes")
            if self._held + len(part) > _LARGEST * self.most_bytes:
                raise RefusedError(503, "memory", "others send large bodies now: try later")
            parts.append(part)
            self._held += len(part)

    async def work(self, read: Callable[[], T]) -> T:
        """Return what ``read`` makes of a body, in a thread; what is wrong with it is refused.

        Raises:
            RefusedError: It raised ValueError or TypeError.
        """
        return await asyncio.get_running_loop().run_in_executor(
            self._readers, lambda: refusing(read)
        )

    def close(self) -> None:
        """End the threads, without waiting for them."""
        self._readers.shutdown(wait=False)


def refusing(read: Callable[[], T]) -> T:
    """Return what ``read`` makes of a request.

    Raises:
        RefusedError: It raised ValueError or TypeError, as for what is wrong in a request.
    """
    try:
        return read()
    except (TypeError, ValueError) as error:
        raise RefusedError(400, "request", str(error)) from error


async def wait_gone(request: Request) -> None:
    """Return when the client of a request, whose body is read, is gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
