"""``edgepack serve``: the service of ``ondevice/service`` in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgepack.errors import BundleError, ToolError, UsageError, VariantRefusedError
from edgepack.ondevice.runtime.edgepack_loader import LoadError
from edgepack.ondevice.service.edgepack_hosting import read_name
from edgepack.ondevice.service.edgepack_settings import Limits, Settings, check, read_token


@dataclass(frozen=True)
class ServiceSettings:
    """How bundles are served."""

    host: str = "127.0.0.1"
    """The address to listen on."""
    port: int = 8080
    """0: one that is free."""
    token_file: Path | None = None
    """Clients have to show what it holds, as ``Authorization: Bearer TOKEN``."""
    certificate: Path | None = None
    """A PEM file, for TLS."""
    key: Path | None = None
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


def serve(
    bundles: Sequence[Path],
    settings: ServiceSettings | None = None,
    *,
    tell: Callable[[str], None] = print,
) -> None:
    """Serve bundles over HTTP until a signal: the Open Inference Protocol, answers, metrics.

    Args:
        bundles: Their folders, or links to them, which are followed.
        settings: Where and how; by default on 127.0.0.1, port 8080.
        tell: Gets a line about what happens: the address, releases that are taken or refused.

    Raises:
        UsageError: A setting has no sense, or two bundles are of one project.
        BundleError: A folder is no bundle.
        ToolError: ``edgepack[serve]`` is not installed, or the address cannot be listened to.
        VariantRefusedError: No variant of a bundle works on this machine.
    """
    try:
        from edgepack.ondevice.service import edgepack_serve as service
    except ImportError as error:
        raise ToolError(
            f"serving needs {error.name}, which is not installed",
            hint="pip install 'edgepack[serve]'",
        ) from error
    settings = settings or ServiceSettings()
    made = _make_settings(settings)
    _check_bundles(bundles)
    try:
        code = service.serve(bundles, made, tell)
    except OSError as error:
        raise ToolError(
            f"{settings.host}:{settings.port} cannot be listened to: {error}",
            hint="give another --port, or stop what uses it; check --certificate and --key",
        ) from error
    if code:
        raise VariantRefusedError(
            "no variant of a bundle works on this machine; the lines above say why",
            hint="build for this machine: edgepack build --target host",
        )


def _make_settings(given: ServiceSettings) -> Settings:
    made = Settings(
        host=given.host,
        port=given.port,
        token=_read_token(given.token_file) if given.token_file else "",
        certificate=str(given.certificate or ""),
        key=str(given.key or ""),
        limits=Limits(given.waiting, given.batch, given.batch_delay_s),
        deadline_s=given.deadline_s,
        most_bytes=given.most_bytes,
    )
    try:
        check(made)
    except ValueError as error:
        raise UsageError(str(error), hint="see: edgepack serve --help") from error
    return made


def _read_token(path: Path) -> str:
    try:
        return read_token(path)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{str(path)!r} gives no token: {error}",
            hint=f"make one: openssl rand -hex 32 > {path}",
        ) from error


def _check_bundles(bundles: Sequence[Path]) -> None:
    names: dict[str, Path] = {}
    for bundle in bundles:
        try:
            name = read_name(bundle)
        except LoadError as error:
            hint = "name the folder that a build wrote: dist/NAME-VERSION-TARGET"
            if bundle.is_file() and bundle.name.endswith(".tar.gz"):
                hint = f"unpack it first: tar -xf {bundle}"
            raise BundleError(str(error), hint=hint) from error
        if name in names:
            raise UsageError(
                f"{str(names[name])!r} and {str(bundle)!r} are both of the project {name!r}",
                hint="serve the other in a process of its own, at another --port",
            )
        names[name] = bundle
