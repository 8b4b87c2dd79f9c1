"""Serve bundles over HTTP: the Open Inference Protocol (v2), answers to pictures, metrics.

::

    python service/edgepack_serve.py BUNDLE... [--port 8080]
    curl localhost:8080/v2/health/ready
    curl --data-binary @cat.jpg -H 'Content-Type: image/jpeg' localhost:8080/predict

``ready`` is 200 once the golden outputs were right on this machine, in this process. A folder that
is a link is followed: when it leads to another release, that answers as soon as it is proven.

Needs what the loader needs, and what ``requirements-serve.txt`` names: FastAPI, uvicorn, orjson,
prometheus-client and Pillow. Exit codes: 0 after a signal, 2 for a wrong option, 3 where no variant
works here.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import socket
import sys
from pathlib import Path
from typing import Callable, Iterator, Optional, Sequence

import uvicorn

if __package__:
    from .edgepack_app import Service
    from .edgepack_hosting import LoadError
    from .edgepack_settings import (
        ServiceSettings,
        add_arguments,
        check,
        is_loopback,
        make_settings,
    )
else:  # a bundle's, in the folder beside the loader
    # A release on a device is never written to, not even with byte code.
    sys.dont_write_bytecode = True
    sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]
    from edgepack_app import Service  # type: ignore[import-not-found,no-redef]
    from edgepack_hosting import LoadError  # type: ignore[import-not-found,no-redef]
    from edgepack_settings import (  # type: ignore[import-not-found,no-redef]
        ServiceSettings,
        add_arguments,
        check,
        is_loopback,
        make_settings,
    )

NO_VARIANT_EXIT = 3


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


def serve(folders: Sequence[Path], settings: ServiceSettings, tell: Callable[[str], None]) -> int:
    """Serve bundles until a signal, and return the exit code.

    Raises:
        LoadError: A folder is no bundle, or two are of one project.
        OSError: The address cannot be listened to, or the token's file cannot be read.
        ValueError: It holds no token.
    """
    service = Service(folders, settings, tell)
    config = uvicorn.Config(
        service,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
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
        if not is_loopback(settings.host) and not settings.token_file:
            tell(f"anyone who reaches {settings.host} can use this: give a token")
        with ignoring_signals():
            server.run([listening])
    if service.crash is not None:
        raise service.crash
    return NO_VARIANT_EXIT if service.failed else 0


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Serve what the command line names and return the exit code."""
    parser = argparse.ArgumentParser(description="Serve bundles over HTTP.")
    parser.add_argument("bundles", nargs="*", type=Path, help="default: the one this lies in")
    add_arguments(parser)
    given = vars(parser.parse_args(argv))
    folders = given.pop("bundles") or [Path(__file__).resolve().parents[1]]
    try:
        settings = make_settings(**given)
        check(settings)
        return serve(folders, settings, lambda line: print(line, file=sys.stderr, flush=True))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    except LoadError as error:
        print(error, file=sys.stderr)
        return NO_VARIANT_EXIT


if __name__ == "__main__":
    raise SystemExit(main())
