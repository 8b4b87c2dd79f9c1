"""How bundles are served, and the options of the command line that say so.

Needs Python 3.8 or newer; nothing else.
"""

from __future__ import annotations

import argparse
import ipaddress
from pathlib import Path
from typing import NamedTuple

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


class Settings(NamedTuple):
    """How bundles are served."""

    host: str = "127.0.0.1"
    port: int = 8080
    """0: one that is free."""
    token: str = ""
    """What clients have to show, as ``Authorization: Bearer TOKEN``; health is told to all."""
    certificate: str = ""
    """A PEM file, for TLS; with the key in ``key``."""
    key: str = ""
    limits: Limits = Limits()
    """Of each model's queue."""
    deadline_s: float = 10.0
    """How long a request waits, unless it says less."""
    most_bytes: int = 64 << 20
    """Of a body."""
    follow_s: float = 1.0
    """How often folders are looked at for another release; 0: at SIGHUP only."""
    stop_s: float = 30.0
    """How long requests may take after a signal to stop."""


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address or ``localhost``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of :func:`make_settings` to a parser."""
    parser.add_argument("--host", default="127.0.0.1", help="to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=8080, help="%(default)s; 0: any")
    parser.add_argument("--token-file", type=Path, help="clients have to show what is in it")
    parser.add_argument("--certificate", default="", help="PEM file, for TLS")
    parser.add_argument("--key", default="", help="PEM file with its key")
    parser.add_argument("--waiting", type=int, default=64, help="requests (%(default)s)")
    parser.add_argument("--deadline-ms", type=float, default=10_000.0, help="%(default)s")
    parser.add_argument("--batch", type=int, default=1, help="requests, at most (%(default)s)")
    parser.add_argument("--batch-delay-ms", type=float, default=0.0, help="%(default)s")
    parser.add_argument("--most-mb", type=int, default=64, help="of a body (%(default)s)")


def make_settings(given: argparse.Namespace) -> Settings:
    """Return the settings that options name.

    Raises:
        OSError: The token's file cannot be read.
        ValueError: It holds none, or an option has no sense.
    """
    settings = Settings(
        host=given.host,
        port=given.port,
        token=read_token(given.token_file) if given.token_file else "",
        certificate=given.certificate,
        key=given.key,
        limits=Limits(given.waiting, given.batch, given.batch_delay_ms / 1000),
        deadline_s=given.deadline_ms / 1000,
        most_bytes=given.most_mb << 20,
    )
    check(settings)
    return settings


def check(settings: Settings) -> None:
    """Raise ValueError, saying which, where a setting has no sense."""
    if bool(settings.certificate) != bool(settings.key):
        raise ValueError("a certificate and its key go together")
    least = {
        "waiting": (settings.limits.waiting, 1),
        "batch": (settings.limits.joined, 1),
        "batch-delay-ms": (settings.limits.delay_s, 0),
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
