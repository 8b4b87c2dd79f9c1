"""How bundles are served, and the options of the command line that say so.

Needs Python 3.8 or newer; nothing else.
"""

from __future__ import annotations

import argparse
import ipaddress
from pathlib import Path
from typing import Any, NamedTuple, Optional

LEAST_TOKEN = 16
"""Characters."""


class Limits(NamedTuple):
    """What a queue may hold."""

    waiting: int = 64
    """Requests that wait; one more is refused."""
    joined: int = 1
    """Requests in one batch at most."""
    delay_s: float = 0.0
    """How long the first of a batch waits for others."""


class ServiceSettings(NamedTuple):
    """How bundles are served."""

    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = 8080
    """0: one that is free."""
    token_file: Optional[Path] = None
    """Clients have to show what it holds, as ``Authorization: Bearer TOKEN``."""
    certificate: Optional[Path] = None
    """A PEM file, for TLS."""
    key: Optional[Path] = None
    """A PEM file with the certificate's key."""
    waiting: int = 64
    """Requests that wait for a model at most."""
    deadline_s: float = 10.0
    """How long a request waits, in seconds, unless it says less."""
    batch: int = 1
    """Requests that are joined to a batch at most."""
    batch_delay_s: float = 0.0
    """How long the first of a batch waits for others, in seconds."""
    most_bytes: int = 64 << 20
    """Of a request's body."""
    follow_s: float = 1.0
    """How often folders are looked at for another release, in seconds; 0: at SIGHUP only."""
    stop_s: float = 30.0
    """How long requests may take after a signal to stop, in seconds."""


_DEFAULTS = ServiceSettings()


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address or ``localhost``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`make_settings` to a parser."""
    add, each = parser.add_argument, _DEFAULTS
    add("--host", default=each.host, help="to listen on (%(default)s)")
    add("--port", type=int, default=each.port, help="%(default)s; 0: any")
    add("--token-file", type=Path, help="clients have to show what is in it")
    add("--certificate", type=Path, help="PEM file, for TLS")
    add("--key", type=Path, help="PEM file with its key")
    add("--waiting", type=int, default=each.waiting, help="requests (%(default)s)")
    add("--deadline-ms", type=float, default=1000 * each.deadline_s, help="%(default)s")
    add("--batch", type=int, default=each.batch, help="requests, at most (%(default)s)")
    add("--batch-delay-ms", type=float, default=1000 * each.batch_delay_s, help="%(default)s")
    add("--most-mb", type=int, default=each.most_bytes >> 20, help="of a body (%(default)s)")


def make_settings(
    *, deadline_ms: float, batch_delay_ms: float, most_mb: int, **given: Any
) -> ServiceSettings:
    """Return the settings that options name, given by their names."""
    return ServiceSettings(
        deadline_s=deadline_ms / 1000,
        batch_delay_s=batch_delay_ms / 1000,
        most_bytes=most_mb << 20,
        **given,
    )


def check(settings: ServiceSettings) -> None:
    """Raise ValueError, saying which, where a setting has no sense."""
    if bool(settings.certificate) != bool(settings.key):
        raise ValueError("a certificate and its key go together")
    least = {
        "waiting": (settings.waiting, 1),
        "batch": (settings.batch, 1),
        "batch-delay-ms": (settings.batch_delay_s, 0),
        "most-mb": (settings.most_bytes, 1),
        "port": (settings.port, 0),
    }
    for name, (number, bound) in least.items():
        if number < bound:
            raise ValueError(f"{name} has to be {bound} at least")
    if settings.deadline_s <= 0:
        raise ValueError("deadline-ms has to be above 0")


def read_token(path: Path) -> str:
    """Return the token in a file.

    Raises:
        OSError: It cannot be read.
        ValueError: It holds none.
    """
    token = path.read_text(encoding="utf-8").strip()
    if not token.isascii() or not token.isprintable() or len(token) < LEAST_TOKEN:
        raise ValueError(f"{path} holds no token: one line of {LEAST_TOKEN} characters at least")
    return token
