"""The service's application: what each path answers, and how it lives.

Needs what ``edgepack_serve.py`` needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import re
import signal
import threading
import time
from pathlib import Path
from typing import (
    Any,
    AsyncIterator,
    Callable,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Type,
)

import numpy as np
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

if __package__:
    from ..runtime.edgepack_answers import AnswerOptions
    from . import edgepack_hosting as hosting
    from . import edgepack_media as media
    from . import edgepack_protocol as protocol
    from . import edgepack_systemd as systemd
    from .edgepack_bodies import Bodies, refusing, wait_gone
    from .edgepack_metrics import PHASES, ROUTES, Metrics
    from .edgepack_openapi import Described
    from .edgepack_queue import CLOCK, Queue, RefusedError
    from .edgepack_settings import Limits, ServiceSettings, read_token
else:  # a bundle's
    import edgepack_hosting as hosting  # type: ignore[import-not-found,no-redef]
    import edgepack_media as media  # type: ignore[import-not-found,no-redef]
    import edgepack_protocol as protocol  # type: ignore[import-not-found,no-redef]
    import edgepack_systemd as systemd  # type: ignore[import-not-found,no-redef]
    from edgepack_answers import AnswerOptions  # type: ignore[import-not-found,no-redef]
    from edgepack_bodies import (  # type: ignore[import-not-found,no-redef]
        Bodies,
        refusing,
        wait_gone,
    )
    from edgepack_metrics import (  # type: ignore[import-not-found,no-redef]
        PHASES,
        ROUTES,
        Metrics,
    )
    from edgepack_openapi import Described  # type: ignore[import-not-found,no-redef]
    from edgepack_queue import (  # type: ignore[import-not-found,no-redef]
        CLOCK,
        Queue,
        RefusedError,
    )
    from edgepack_settings import (  # type: ignore[import-not-found,no-redef]
        Limits,
        ServiceSettings,
        read_token,
    )

_LARGE = 1 << 16
"""Bodies of so many bytes are read in a thread, so that others need not wait for that."""
_PHASE = time.perf_counter


class Place:
    """A hosted bundle with what runs it, for the event loop in which it is made.

    Args:
        name: Of the project.
        hosted: The bundle.
        settings: How it is served.
        metrics: What is counted.
    """

    def __init__(
        self, name: str, hosted: hosting.Hosted, settings: ServiceSettings, metrics: Metrics
    ) -> None:
        self.name = name
        self.hosted = hosted
        limits = Limits(settings.waiting, settings.batch, settings.batch_delay_s)
        self.queue = Queue(self._run, limits, self._start, f"edgepack-{name}")
        self.took = {phase: metrics.seconds.labels(name, phase) for phase in PHASES}
        self.answered = {route: metrics.requests.labels(name, route, 200) for route in ROUTES}
        self._joined = metrics.batch.labels(name)

    def _run(self, works: Sequence[Work]) -> List[Dict[str, np.ndarray]]:
        began = _PHASE()
        try:
            outputs = works[0].release.run([work.feed for work in works])
        except hosting.FAILURES as error:
            raise InferenceError(str(error)) from error
        self.took["infer"].observe(_PHASE() - began)
        return outputs

    def _start(self, seconds: Sequence[float]) -> None:
        self._joined.observe(len(seconds))
        for each in seconds:
            self.took["wait"].observe(each)

    def read_gauges(self) -> Dict[str, Any]:
        """Return what is true now, as :class:`Metrics` takes it."""
        release, waiting = self.hosted.release, len(self.queue)
        if release is None:
            return {"waiting": waiting, "ready": 0, "info": (), "outside": {}}
        outside = dict(release.model.outside) if release.model is not None else {}
        info = (release.version, release.digest, release.variant)
        return {"waiting": waiting, "ready": 1, "info": info, "outside": outside}


class Work(NamedTuple):
    """A request that waits: by which release it is answered, and its checked inputs."""

    release: hosting.Release
    feed: Dict[str, np.ndarray]


class InferenceError(Exception):
    """The model failed on inputs that it should take."""


class Service:
    """Bundles in one process, as an ASGI application.

    Args:
        folders: The bundles', or links to them.
        settings: How they are served.
        tell: Gets a line about what happens, for people.

    Attributes:
        failed: Whether it stopped because no variant of a bundle works here.
        crash: What ended it otherwise; None unless that is a fault of its own.

    Raises:
        LoadError: A folder is no bundle, or two are of one project.
        OSError: The token's file cannot be read.
        ValueError: It holds no token.
    """

    def __init__(
        self, folders: Sequence[Path], settings: ServiceSettings, tell: Callable[[str], None]
    ) -> None:
        self.settings = settings
        self._token = read_token(settings.token_file) if settings.token_file else ""
        self.failed = False
        self.crash: Optional[BaseException] = None
        self._tell = tell
        self._metrics = Metrics(self._read_gauges)
        self._bodies = Bodies(settings.most_bytes, settings.deadline_s)
        self._stop: Callable[[], None] = lambda: None
        self._hosted: Dict[str, hosting.Hosted] = {}
        for folder in folders:
            name = hosting.read_name(folder)
            if name in self._hosted:
                other = self._hosted[name].folder
                raise hosting.LoadError(f"{other} and {folder} are both of the project {name!r}")
            self._hosted[name] = hosting.Hosted(folder, settings.batch)
        self._places: Dict[str, Place] = {}
        self._described = self._describe_app()
        handled = ExceptionMiddleware(self._answer_infer, dict(self._list_handlers()))
        self._inference = ServerErrorMiddleware(handled, self._fail)

    def stop_with(self, stop: Callable[[], None]) -> None:
        """Say what stops the server: called where it cannot go on."""
        self._stop = stop

    # Its life

    @contextlib.asynccontextmanager
    async def _live(self, _: FastAPI) -> AsyncIterator[None]:
        # Here, because before Python 3.10 asyncio's events belong to the loop they are made in.
        for name, hosted in self._hosted.items():
            self._places[name] = Place(name, hosted, self.settings, self._metrics)
        changed = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, changed.set)
        follow = asyncio.ensure_future(self._follow(changed))
        follow.add_done_callback(self._notice)
        yield
        self._notify("STOPPING=1")
        follow.cancel()
        closed = [place.queue.close() for place in self._places.values()]
        await asyncio.gather(*closed, follow, return_exceptions=True)
        self._bodies.close()

    def _notice(self, task: "asyncio.Future[None]") -> None:
        """Stop where following has failed: no other release would be taken."""
        if not task.cancelled() and task.exception() is not None:
            self.crash = task.exception()
            self._stop()

    async def _follow(self, changed: asyncio.Event) -> None:
        """Open what the folders lead to, now and whenever that is something else."""
        for place in self._places.values():
            await self._open(place.hosted)
        releases = [hosted.release for hosted in self._hosted.values()]
        served = [f"{release.name} {release.version}" for release in releases if release]
        if len(served) < len(releases):
            self.failed = True
            self._stop()
            return
        self._notify("READY=1", f"STATUS={', '.join(served)}")
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(changed.wait(), self.settings.follow_s or None)
            again = changed.is_set()
            changed.clear()
            for hosted in self._hosted.values():
                current = await _in_daemon(hosted.is_current)
                if not current or (again and hosted.refused):
                    await self._open(hosted)

    async def _open(self, hosted: hosting.Hosted) -> None:
        await _in_daemon(hosted.open)
        release = hosted.release
        if hosted.refused:
            self._tell(f"{hosted.folder}: not served: {hosted.refused}")
        elif release is not None:
            self._tell(
                f"{release.name} {release.version}: {release.variant}, proven in"
                f" {release.load_s:.1f} s, {release.folder}"
            )

    def _notify(self, *states: str) -> None:
        try:
            systemd.notify(*states)
        except OSError as error:
            self._tell(f"systemd is not told {states[0]}: {error}")

    def _read_gauges(self) -> Dict[str, Dict[str, Any]]:
        return {name: place.read_gauges() for name, place in self._places.items()}

    # What it answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as an ASGI application: inference by itself, all else by FastAPI.

        FastAPI's layers and routes cost as much as all that is done here.
        """
        if scope["type"] == "http" and scope["method"] == "POST":
            found = _INFER.fullmatch(scope["path"])
            if found is not None:
                scope["path_params"] = found.groupdict()
                await self._inference(scope, receive, send)
                return
        await self._described(scope, receive, send)

    async def _answer_infer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        await self._check_token(request)
        response = await self._infer(request, **request.path_params)
        await response(scope, receive, send)

    def _describe_app(self) -> FastAPI:
        app = FastAPI(
            title="edgepack",
            version="2",
            docs_url=None,
            redoc_url=None,
            openapi_url=None,
            redirect_slashes=False,
            lifespan=self._live,
        )
        closed = [Depends(self._check_token)]
        app.get("/v2/health/live")(self._tell_live)
        app.get("/v2/health/ready")(self._tell_ready)
        app.get("/v2", dependencies=closed)(self._describe_server)
        app.get("/metrics", dependencies=closed, response_class=Response)(self._write_metrics)
        app.get("/openapi.json", dependencies=closed)(self._describe_paths)
        for path in _MODELS:
            app.get(path, dependencies=closed)(self._describe_model)
            app.get(f"{path}/ready", dependencies=closed)(self._tell_model_ready)
            app.post(f"{path}/infer", dependencies=closed)(self._infer)
        for path in ("/predict", "/predict/{name}"):
            app.post(path, dependencies=closed)(self._predict)
        for error, handler in self._list_handlers():
            app.exception_handler(error)(handler)
        app.exception_handler(Exception)(self._fail)
        return app

    def _list_handlers(self) -> List[Tuple[Type[Exception], Any]]:
        return [
            (RefusedError, self._refuse),
            (AnyHTTPException, self._refuse_http),
            (RequestValidationError, self._refuse_query),
            (ClientDisconnect, self._leave),
            (InferenceError, self._fail),
        ]

    async def _check_token(self, request: Request) -> None:
        if not self._token:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        same = hmac.compare_digest(given.strip().encode(), self._token.encode())
        if not (same and scheme.lower() == "bearer"):
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
        for name in self._hosted:
            self._find(name)
        return {"ready": True}

    async def _tell_model_ready(self, name: str, version: Optional[str] = None) -> Dict[str, Any]:
        self._find(name, version)
        return {"name": name, "ready": True}

    async def _describe_server(self) -> Dict[str, Any]:
        return {"name": "edgepack", "version": "2", "extensions": ["binary_tensor_data"]}

    async def _describe_paths(self) -> Dict[str, Any]:
        releases = [hosted.release for hosted in self._hosted.values()]
        served = {release.name: release.version for release in releases if release}
        first = releases[0]
        # Zeros are no picture's file.
        example = protocol.make_example(first.inputs) if first and not first.decodes else None
        closed = bool(self._token)
        return Described(served, list(_READERS), closed=closed, example=example).make()

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

    def _write_metrics(self) -> Response:
        return Response(generate_latest(self._metrics.registry), media_type=_PROMETHEUS)

    async def _infer(self, request: Request, name: str, version: Optional[str] = None) -> Response:
        request.state.counted = (name, "infer")
        place, release = self._find(name, version)
        place.queue.check_room()
        async with self._bodies.read(request) as body:
            began = _PHASE()
            length = request.headers.get(protocol.HEADER_LENGTH)
            size = len(body)
            if not release.decodes:  # values in a body are not read, but pointed at
                size = refusing(lambda: protocol.read_header_length(length, len(body)))
            asked, feed = await self._read(size, lambda: _read_asked(release, body, length))
            place.took["read"].observe(_PHASE() - began)
            outputs = await self._run(place, Work(release, feed), request, asked.timeout_us)
        began = _PHASE()
        size = sum(array.nbytes for array in outputs.values())
        data, header = await self._read(
            size, lambda: protocol.write_response(name, release.version, asked, outputs)
        )
        place.took["write"].observe(_PHASE() - began)
        place.answered["infer"].inc()
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
        if name is None and len(self._hosted) > 1:
            known = ", ".join(f"/predict/{each}" for each in self._hosted)
            raise HTTPException(404, f"there are several models: {known}")
        chosen = name or next(iter(self._hosted))
        request.state.counted = (chosen, "predict")
        place, release = self._find(chosen)
        options = refusing(lambda: AnswerOptions(score=score, iou=iou, most=most, top=top))
        refusing(lambda: release.check_options(options))
        kind = _find_kind(request, release)
        place.queue.check_room()
        async with self._bodies.read(request) as body:
            began = _PHASE()
            feed = await self._bodies.work(lambda: _make_feed(release, kind, body))
            place.took["read"].observe(_PHASE() - began)
            outputs = await self._run(place, Work(release, feed.arrays), request, None)
        began = _PHASE()
        text = await self._bodies.work(
            lambda: _write_answers(release, lambda: release.make_answers(outputs, feed, options))
        )
        place.took["write"].observe(_PHASE() - began)
        place.answered["predict"].inc()
        return Response(text, media_type="application/json")

    async def _read(self, size: int, read: Callable[[], Any]) -> Any:
        """Return what ``read`` makes of so many bytes, in a thread if they are many."""
        return await self._bodies.work(read) if size > _LARGE else refusing(read)

    async def _run(
        self, place: Place, work: Work, request: Request, timeout_us: Optional[int]
    ) -> Dict[str, np.ndarray]:
        seconds = self.settings.deadline_s
        if timeout_us is not None:
            seconds = min(seconds, timeout_us / 1e6)
        kind = None
        if self.settings.batch > 1:
            kind = work.release.find_kind(work.feed)
        queue, deadline_s = place.queue, CLOCK() + seconds
        if not queue.is_running and not len(queue):
            found: Dict[str, np.ndarray] = await queue.submit(work, kind, deadline_s)
            return found
        # Who is gone while it waits need not be run.
        waiting = asyncio.ensure_future(queue.submit(work, kind, deadline_s))
        gone = asyncio.ensure_future(wait_gone(request))
        try:
            await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise ClientDisconnect
            return dict(await waiting)
        finally:
            waiting.cancel()
            gone.cancel()

    # What it refuses

    async def _refuse(self, request: Request, error: RefusedError) -> Response:
        return self._answer_error(request, error.status, error.reason, str(error))

    async def _refuse_http(self, request: Request, error: AnyHTTPException) -> Response:
        reason = _REASONS.get(error.status_code, "request")
        response = self._answer_error(request, error.status_code, reason, str(error.detail))
        response.headers.update(error.headers or {})
        return response

    async def _refuse_query(self, request: Request, error: RequestValidationError) -> Response:
        found = "; ".join(f"{each['loc'][-1]}: {each['msg']}" for each in error.errors())
        return self._answer_error(request, 400, "request", found)

    async def _leave(self, request: Request, _: ClientDisconnect) -> Response:
        # Nobody reads it: the status is the one that proxies have for this.
        return self._answer_error(request, 499, "gone", "the client is gone")

    async def _fail(self, request: Request, error: Exception) -> Response:
        self._tell(f"inference failed: {error}")
        return self._answer_error(request, 500, "inference", f"inference failed: {error}")

    def _answer_error(self, request: Request, status: int, reason: str, text: str) -> Response:
        name, route = getattr(request.state, "counted", ("", ""))
        # Names that clients made up would fill the memory of who collects the metrics.
        known = (name, route) if name in self._hosted else ("", "")
        self._metrics.errors.labels(known[0], reason).inc()
        self._metrics.requests.labels(*known, status).inc()
        response = JSONResponse({"error": text}, status)
        if status in (429, 503):
            response.headers["Retry-After"] = "1"
        return response


_INFER = re.compile("/v2/models/(?P<name>[^/]+)(?:/versions/(?P<version>[^/]+))?/infer")
_MODELS = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
_REASONS = {401: "token", 404: "unknown", 408: "slow", 413: "size"}
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_READERS: Mapping[str, Callable[[bytes], Any]] = {
    "image/jpeg": media.read_picture,
    "image/png": media.read_picture,
    "text/plain": media.read_text,
    # RFC 2361 registers none; these are what clients send.
    **dict.fromkeys(("audio/wav", "audio/x-wav", "audio/wave", "audio/vnd.wave"), bytes),
}


def _find_kind(request: Request, release: hosting.Release) -> str:
    """Return the content type of a request for answers.

    Raises:
        HTTPException: It is not one that the release reads.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    taken = [each for each in _READERS if each.partition("/")[0] in release.takes]
    if kind not in taken:
        known = ", ".join(taken) or "none: the bundle takes tensors"
        raise HTTPException(415, f"the content type is {kind!r}, taken are {known}")
    return kind


def _read_asked(
    release: hosting.Release, body: bytes, length: Optional[str]
) -> Tuple[protocol.Request, Dict[str, np.ndarray]]:
    asked = protocol.read_request(body, length)
    known = [spec.name for spec in release.outputs]
    for wanted in asked.outputs:
        if wanted.name not in known:
            raise protocol.ProtocolError(f"there is no output {wanted.name!r}; there are {known}")
    return asked, release.check(asked.inputs)


def _make_feed(release: hosting.Release, kind: str, body: bytes) -> Any:
    return release.make_feed(body if release.decodes else _READERS[kind](body))


def _write_answers(release: hosting.Release, make: Callable[[], Mapping[str, Any]]) -> str:
    """Return the answers as JSON.

    Raises:
        InferenceError: The outputs are not as they are described, or hold what JSON cannot.
    """
    try:
        document = {
            "model_name": release.name,
            "model_version": release.version,
            "variant": release.variant,
            "answers": make(),
        }
        return json.dumps(document, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InferenceError(f"its outputs give no answers: {error}") from error


async def _in_daemon(work: Callable[[], Any]) -> Any:
    """Return what ``work`` does in a thread that does not keep the process from ending.

    Opening a release may take minutes, where a provider makes an engine.
    """
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    async def call() -> Any:
        return work()

    async def collect() -> Any:
        return await asyncio.gather(call(), return_exceptions=True)

    def finish(outcome: Any) -> None:
        if done.cancelled():
            return
        if isinstance(outcome, BaseException):
            done.set_exception(outcome)
        else:
            done.set_result(outcome)

    def run() -> None:
        (outcome,) = asyncio.run(collect())
        with contextlib.suppress(RuntimeError):  # the service has ended, and its loop is closed
            loop.call_soon_threadsafe(finish, outcome)

    threading.Thread(target=run, name="edgepack-open", daemon=True).start()
    return await done
