"""Serve bundles over HTTP: the Open Inference Protocol (v2), answers to pictures, metrics.

::

    python service/edgepack_serve.py BUNDLE... [--port 8080]
    curl localhost:8080/v2/health/ready
    curl --data-binary @cat.jpg -H 'Content-Type: image/jpeg' localhost:8080/predict

``ready`` is 200 once the golden outputs were right on this machine, in this process. A folder that
is a link is followed: when it leads to another release, that answers as soon as it is proven.

Needs what the loader needs, and what ``requirements-serve.txt`` names: FastAPI, uvicorn,
prometheus-client and Pillow. Exit codes: 0 after a signal, 2 for a wrong option, 3 where no variant
works here.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import json
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import (
    Any,
    AsyncIterator,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Type,
    TypeVar,
)

import numpy as np
import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException as AnyHTTPException

if __package__:
    from ..runtime.edgepack_answers import AnswerOptions
    from . import edgepack_hosting as hosting
    from . import edgepack_media as media
    from . import edgepack_protocol as protocol
    from . import edgepack_systemd as systemd
    from .edgepack_metrics import Metrics
    from .edgepack_queue import CLOCK, Queue, RefusedError
    from .edgepack_settings import Settings, add_arguments, is_loopback, make_settings
else:  # a bundle's, in the folder beside the loader
    # A release on a device is never written to, not even with byte code.
    sys.dont_write_bytecode = True
    sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]
    import edgepack_hosting as hosting  # type: ignore[import-not-found,no-redef]
    import edgepack_media as media  # type: ignore[import-not-found,no-redef]
    import edgepack_protocol as protocol  # type: ignore[import-not-found,no-redef]
    import edgepack_systemd as systemd  # type: ignore[import-not-found,no-redef]
    from edgepack_answers import AnswerOptions  # type: ignore[import-not-found,no-redef]
    from edgepack_metrics import Metrics  # type: ignore[import-not-found,no-redef]
    from edgepack_queue import CLOCK, Queue, RefusedError  # type: ignore[import-not-found,no-redef]
    from edgepack_settings import (  # type: ignore[import-not-found,no-redef]
        Settings,
        add_arguments,
        is_loopback,
        make_settings,
    )

T = TypeVar("T")
NO_VARIANT_EXIT = 3
_LARGE = 1 << 16
"""Bodies of so many bytes are read in a thread, so that others need not wait for that."""
_PHASE = time.perf_counter


class Place(NamedTuple):
    """A hosted bundle with what runs it."""

    hosted: hosting.Hosted
    queue: Queue
    executor: ThreadPoolExecutor


class Work(NamedTuple):
    """A request that waits: by which release it is answered, and its checked inputs."""

    release: hosting.Release
    feed: Dict[str, np.ndarray]


class InferenceError(Exception):
    """The model failed on inputs that it should take."""


class Service:
    """Bundles in one process. :attr:`app` is its ASGI application.

    Args:
        folders: The bundles', or links to them.
        settings: How they are served.
        tell: Gets a line about what happens, for people.

    Raises:
        LoadError: A folder is no bundle, or two are of one project.
    """

    def __init__(
        self, folders: Sequence[Path], settings: Settings, tell: Callable[[str], None]
    ) -> None:
        self.settings = settings
        self.failed = False
        self._tell = tell
        self._metrics = Metrics(self._read_gauges)
        self._changed = asyncio.Event()
        self._stop: Callable[[], None] = lambda: None
        self._places: Dict[str, Place] = {}
        for folder in folders:
            name = read_name(folder)
            if name in self._places:
                other = self._places[name].hosted.folder
                raise hosting.LoadError(f"{other} and {folder} are both of the project {name!r}")
            self._places[name] = self._make_place(name, folder)
        self.app = self._make_app()

    def _make_place(self, name: str, folder: Path) -> Place:
        executor = ThreadPoolExecutor(1, thread_name_prefix=f"edgepack-{name}")
        waited = self._metrics.seconds.labels(name, "wait")
        joined = self._metrics.batch.labels(name)
        took = self._metrics.seconds.labels(name, "infer")

        def run(works: Sequence[Work]) -> List[Dict[str, np.ndarray]]:
            began = _PHASE()
            try:
                outputs = works[0].release.run([work.feed for work in works])
            except hosting.FAILURES as error:
                raise InferenceError(str(error)) from error
            took.observe(_PHASE() - began)
            return outputs

        def start(seconds: Sequence[float]) -> None:
            joined.observe(len(seconds))
            for each in seconds:
                waited.observe(each)

        hosted = hosting.Hosted(folder, self.settings.limits.joined)
        return Place(hosted, Queue(run, executor, self.settings.limits, start), executor)

    def stop_with(self, stop: Callable[[], None]) -> None:
        """Say what stops the server: called where no variant works."""
        self._stop = stop

    # Its life

    @contextlib.asynccontextmanager
    async def _live(self, _: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.ensure_future(place.queue.work()) for place in self._places.values()]
        follow = asyncio.ensure_future(self._follow())
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._changed.set)
        yield
        systemd.notify("STOPPING=1")
        follow.cancel()
        for place in self._places.values():
            place.queue.close()
        await asyncio.gather(*tasks, follow, return_exceptions=True)
        for place in self._places.values():
            place.executor.shutdown()

    async def _follow(self) -> None:
        """Open what the folders lead to, now and whenever that is something else."""
        for place in self._places.values():
            await self._open(place.hosted)
        if any(place.hosted.release is None for place in self._places.values()):
            self.failed = True
            self._stop()
            return
        systemd.notify("READY=1", f"STATUS={', '.join(map(self._describe, self._places.values()))}")
        while True:
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), self.settings.follow_s or None)
            for place in self._places.values():
                if not await _in_thread(place.hosted.is_current):
                    await self._open(place.hosted)

    async def _open(self, hosted: hosting.Hosted) -> None:
        await _in_thread(hosted.open)
        release = hosted.release
        if hosted.refused:
            self._tell(f"{hosted.folder}: not served: {hosted.refused}")
        if release is not None and not hosted.refused:
            self._tell(
                f"{release.name} {release.version}: {release.variant}, proven in"
                f" {release.load_s:.1f} s, {release.folder}"
            )

    @staticmethod
    def _describe(place: Place) -> str:
        release = place.hosted.release
        return f"{release.name} {release.version}" if release else str(place.hosted.folder)

    def _read_gauges(self) -> Dict[str, Dict[str, Any]]:
        return {name: _read_gauges(place) for name, place in self._places.items()}

    # What it answers

    def _make_app(self) -> FastAPI:
        app = FastAPI(
            title="edgepack", version="2", lifespan=self._live, docs_url=None, redoc_url=None
        )
        closed = [Depends(self._check_token)]
        app.get("/v2/health/live")(self._tell_live)
        app.get("/v2/health/ready")(self._tell_ready)
        app.get("/v2", dependencies=closed)(self._describe_server)
        app.get("/metrics", dependencies=closed, response_class=Response)(self._write_metrics)
        for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
            app.get(path, dependencies=closed)(self._describe_model)
            app.get(f"{path}/ready", dependencies=closed)(self._tell_model_ready)
            app.post(f"{path}/infer", dependencies=closed, openapi_extra=_INFER)(self._infer)
        for path in ("/predict", "/predict/{name}"):
            app.post(path, dependencies=closed, openapi_extra=_PREDICT)(self._predict)
        handlers: List[Tuple[Type[Exception], Any]] = [
            (RefusedError, self._refuse),
            (AnyHTTPException, self._refuse_http),
            (RequestValidationError, self._refuse_values),
            (ValueError, self._refuse_values),
            (TypeError, self._refuse_values),
            (InferenceError, self._fail),
        ]
        for error, handler in handlers:
            app.exception_handler(error)(handler)
        return app

    async def _check_token(self, request: Request) -> None:
        given = request.headers.get("authorization", "")
        wanted = f"Bearer {self.settings.token}"
        if self.settings.token and not hmac.compare_digest(given.encode(), wanted.encode()):
            raise HTTPException(401, "a token is needed", {"WWW-Authenticate": "Bearer"})

    def _find(self, name: str, version: Optional[str] = None) -> Tuple[Place, hosting.Release]:
        if name not in self._places:
            known = ", ".join(self._places)
            raise HTTPException(404, f"there is no model {name!r}; there is: {known}")
        place = self._places[name]
        release = place.hosted.release
        if release is None:
            raise RefusedError(503, "loading", place.hosted.refused or "the model is being opened")
        if version not in (None, release.version):
            raise HTTPException(404, f"{name!r} has the version {release.version}, not {version}")
        return place, release

    async def _tell_live(self) -> Dict[str, bool]:
        return {"live": True}

    async def _tell_ready(self) -> Dict[str, bool]:
        for name in self._places:
            self._find(name)
        return {"ready": True}

    async def _tell_model_ready(self, name: str, version: Optional[str] = None) -> Dict[str, Any]:
        self._find(name, version)
        return {"name": name, "ready": True}

    async def _describe_server(self) -> Dict[str, Any]:
        return {"name": "edgepack", "version": "2", "extensions": ["binary_tensor_data"]}

    async def _describe_model(self, name: str, version: Optional[str] = None) -> Dict[str, Any]:
        place, release = self._find(name, version)
        passed_over = [{"variant": each, "reason": why} for each, why in release.passed_over]
        return {
            "name": name,
            "versions": [release.version],
            "platform": "onnxruntime_onnx",
            "inputs": [protocol.describe_tensor(*spec) for spec in release.inputs],
            "outputs": [protocol.describe_tensor(*spec) for spec in release.outputs],
            "parameters": {
                "digest": f"sha256:{release.digest}",
                "variant": release.variant,
                "passed_over": passed_over,
                "refused_release": place.hosted.refused,
            },
        }

    async def _write_metrics(self) -> Response:
        return Response(generate_latest(self._metrics.registry), media_type=_PROMETHEUS)

    async def _infer(self, request: Request, name: str, version: Optional[str] = None) -> Response:
        place, release = self._find(name, version)
        body = await self._read_body(request)
        began = _PHASE()
        length = request.headers.get(protocol.HEADER_LENGTH)
        asked, feed = await _unless_short(len(body), lambda: _read_asked(release, body, length))
        self._observe(name, "read", began)
        outputs = await self._run(place, Work(release, feed), asked.timeout_us)
        began = _PHASE()
        size = sum(array.nbytes for array in outputs.values())
        data, header = await _unless_short(
            size, lambda: protocol.write_response(name, release.version, asked, outputs)
        )
        self._observe(name, "write", began)
        self._metrics.requests.labels(name, "infer", 200).inc()
        if header is None:
            return Response(data, media_type="application/json")
        more = {protocol.HEADER_LENGTH: str(header)}
        return Response(data, headers=more, media_type="application/octet-stream")

    async def _predict(
        self,
        request: Request,
        name: Optional[str] = None,
        score: Optional[float] = None,
        iou: Optional[float] = None,
        most: Optional[int] = None,
        top: Optional[int] = None,
    ) -> Response:
        if name is None and len(self._places) > 1:
            known = ", ".join(f"/predict/{each}" for each in self._places)
            raise HTTPException(404, f"there are several models: {known}")
        chosen = name or next(iter(self._places))
        place, release = self._find(chosen)
        options = AnswerOptions(score=score, iou=iou, most=most, top=top)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in _READERS or not release.answers:
            known = ", ".join(_READERS) if release.answers else "none: the bundle takes tensors"
            raise HTTPException(415, f"the content type is {kind!r}, taken are {known}")
        body = await self._read_body(request)
        began = _PHASE()
        feed = await _in_thread(lambda: _make_feed(release, kind, body))
        self._observe(chosen, "read", began)
        outputs = await self._run(place, Work(release, feed.arrays), None)
        began = _PHASE()
        answers = await _in_thread(
            lambda: json.dumps(
                {
                    "model_name": chosen,
                    "model_version": release.version,
                    "variant": release.variant,
                    "answers": media.make_plain(release.model.make_answers(outputs, feed, options)),
                },
                allow_nan=False,
            )
        )
        self._observe(chosen, "write", began)
        self._metrics.requests.labels(chosen, "predict", 200).inc()
        return Response(answers, media_type="application/json")

    async def _run(
        self, place: Place, work: Work, timeout_us: Optional[int]
    ) -> Dict[str, np.ndarray]:
        seconds = self.settings.deadline_s
        if timeout_us is not None:
            seconds = min(seconds, timeout_us / 1e6)
        kind = None
        if self.settings.limits.joined > 1:
            kind = work.release.find_kind(work.feed)
        found: Dict[str, np.ndarray] = await place.queue.submit(work, kind, CLOCK() + seconds)
        return found

    async def _read_body(self, request: Request) -> bytes:
        most = self.settings.most_bytes
        encoding = request.headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise HTTPException(415, f"the body is encoded as {encoding!r}: send it as it is")
        parts: List[bytes] = []
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise HTTPException(413, f"the body has more than {most} bytes")
            parts.append(part)
        return b"".join(parts)

    def _observe(self, name: str, phase: str, began: float) -> None:
        self._metrics.seconds.labels(name, phase).observe(_PHASE() - began)

    # What it refuses

    async def _refuse(self, request: Request, error: RefusedError) -> Response:
        return self._answer_error(request, error.status, error.reason, str(error))

    async def _refuse_http(self, request: Request, error: AnyHTTPException) -> Response:
        reason = {401: "token", 404: "unknown", 413: "size"}.get(error.status_code, "request")
        response = self._answer_error(request, error.status_code, reason, str(error.detail))
        response.headers.update(error.headers or {})
        return response

    async def _refuse_values(self, request: Request, error: Exception) -> Response:
        return self._answer_error(request, 400, "request", str(error))

    async def _fail(self, request: Request, error: Exception) -> Response:
        self._tell(f"inference failed: {error}")
        return self._answer_error(request, 500, "inference", f"inference failed: {error}")

    def _answer_error(self, request: Request, status: int, reason: str, text: str) -> Response:
        name = request.path_params.get("name", "")
        # Names that clients made up would fill the memory of who collects the metrics.
        known = name if name in self._places else ""
        route = request.url.path.rpartition("/")[2] if known else ""
        self._metrics.errors.labels(known, reason).inc()
        self._metrics.requests.labels(known, route if route in _ROUTES else "", status).inc()
        response = JSONResponse({"error": text}, status)
        if status in (429, 503):
            response.headers["Retry-After"] = "1"
        return response


_ROUTES = ("infer", "ready", "predict")
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_READERS: Mapping[str, Callable[[bytes], Any]] = {
    "image/jpeg": media.read_picture,
    "image/png": media.read_picture,
    "text/plain": media.read_text,
}
_INFER: Dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
        },
    }
}
_PREDICT: Dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in _READERS},
    }
}


def _read_asked(
    release: hosting.Release, body: bytes, length: Optional[str]
) -> Tuple[protocol.Request, Dict[str, np.ndarray]]:
    asked = protocol.read_request(body, length)
    return asked, release.check(asked.inputs)


def _make_feed(release: hosting.Release, kind: str, body: bytes) -> Any:
    is_file = release.takes_files and kind.startswith("image/")
    feed = release.model.make_feed(body if is_file else _READERS[kind](body))
    release.model.check_sizes(feed.arrays)
    return feed


def _read_gauges(place: Place) -> Dict[str, Any]:
    release = place.hosted.release
    if release is None:
        return {"waiting": len(place.queue), "ready": 0, "info": (), "outside": {}}
    outside = release.model.outside if release.model is not None else {}
    info = (release.version, release.digest, release.variant)
    return {"waiting": len(place.queue), "ready": 1, "info": info, "outside": dict(outside)}


def read_name(folder: Path) -> str:
    """Return the project of a bundle.

    Raises:
        LoadError: The folder is none.
    """
    try:
        name = json.loads((folder / "manifest.json").read_bytes())["name"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise hosting.LoadError(f"{folder} is no complete bundle: {error}") from error
    return str(name)


async def _in_thread(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, work)


async def _unless_short(size: int, work: Callable[[], T]) -> T:
    """Return what ``work`` does, in a thread if it is about many bytes."""
    return await _in_thread(work) if size > _LARGE else work()


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        OSError: There is no such address, or another program listens there.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return socket.create_server(found[0][4][:2], family=found[0][0], backlog=2048)


@contextlib.contextmanager
def ignoring_signals() -> Iterator[None]:
    """Let signals to stop do nothing: uvicorn handles them, and raises them again at the end.

    Source: uvicorn 0.54, Server.capture_signals.
    """
    before = {
        each: signal.signal(each, lambda *_: None) for each in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def serve(folders: Sequence[Path], settings: Settings, tell: Callable[[str], None]) -> int:
    """Serve bundles until a signal, and return the exit code.

    Raises:
        LoadError: A folder is no bundle, or two are of one project.
        OSError: The address cannot be listened to.
    """
    service = Service(folders, settings, tell)
    config = uvicorn.Config(
        service.app,
        ssl_certfile=settings.certificate or None,
        ssl_keyfile=settings.key or None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(settings.stop_s),
    )
    server = uvicorn.Server(config)

    def stop() -> None:
        server.should_exit = True

    service.stop_with(stop)
    with listen(settings.host, settings.port) as listening:
        host, port = listening.getsockname()[:2]
        scheme = "https" if settings.certificate else "http"
        tell(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}")
        if not is_loopback(settings.host) and not settings.token:
            tell(f"anyone who reaches {settings.host} can use this: give a token")
        with ignoring_signals():
            server.run([listening])
    return NO_VARIANT_EXIT if service.failed else 0


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Serve what the command line names and return the exit code."""
    parser = argparse.ArgumentParser(description="Serve bundles over HTTP.")
    parser.add_argument("bundles", nargs="*", type=Path, help="default: the one this lies in")
    add_arguments(parser)
    given = parser.parse_args(argv)
    try:
        settings = make_settings(given)
        folders = given.bundles or [Path(__file__).resolve().parents[1]]
        return serve(folders, settings, lambda line: print(line, file=sys.stderr, flush=True))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    except hosting.LoadError as error:
        print(error, file=sys.stderr)
        return NO_VARIANT_EXIT


if __name__ == "__main__":
    raise SystemExit(main())
