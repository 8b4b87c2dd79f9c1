"""``edgepack serve``: the service of ``ondevice/service`` in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from edgepack.errors import BundleError, ToolError, UsageError, VariantRefusedError
from edgepack.ondevice.runtime.edgepack_loader import LoadError
from edgepack.ondevice.service.edgepack_hosting import read_name
from edgepack.ondevice.service.edgepack_settings import ServiceSettings, check, read_token


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
    _check_settings(settings)
    _check_bundles(bundles)
    try:
        code = service.serve(bundles, settings, tell)
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


def _check_settings(settings: ServiceSettings) -> None:
    try:
        check(settings)
    except ValueError as error:
        raise UsageError(str(error), hint="see: edgepack serve --help") from error
    path = settings.token_file
    if path is None:
        return
    try:
        read_token(path)
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
