"""``edgepack serve``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgepack import api

_DEFAULTS = api.ServiceSettings()


def serve(
    bundles: Annotated[
        list[Path],
        typer.Argument(help="Bundles' folders, or links to them.", show_default=False),
    ],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = _DEFAULTS.host,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="0: one that is free.")
    ] = _DEFAULTS.port,
    token_file: Annotated[
        Path | None, typer.Option(help="Clients have to show what this file holds.")
    ] = None,
    certificate: Annotated[Path | None, typer.Option(help="A PEM file, for TLS.")] = None,
    key: Annotated[Path | None, typer.Option(help="A PEM file with the certificate's key.")] = None,
    waiting: Annotated[
        int, typer.Option(min=1, help="Requests that wait for a model at most.")
    ] = _DEFAULTS.waiting,
    deadline_ms: Annotated[
        float, typer.Option(help="How long a request waits, unless it says less.")
    ] = 1000 * _DEFAULTS.deadline_s,
    batch: Annotated[
        int, typer.Option(min=1, help="Requests that are joined to a batch at most.")
    ] = _DEFAULTS.batch,
    batch_delay_ms: Annotated[
        float, typer.Option(min=0, help="How long the first of a batch waits for others.")
    ] = 1000 * _DEFAULTS.batch_delay_s,
    most_mb: Annotated[
        int, typer.Option(min=1, help="The largest body of a request.")
    ] = _DEFAULTS.most_bytes >> 20,
) -> None:
    """Serve bundles over HTTP: the Open Inference Protocol, answers to pictures, metrics."""
    settings = api.ServiceSettings(
        host=host,
        port=port,
        token_file=token_file,
        certificate=certificate,
        key=key,
        waiting=waiting,
        deadline_s=deadline_ms / 1000,
        batch=batch,
        batch_delay_s=batch_delay_ms / 1000,
        most_bytes=most_mb << 20,
    )
    api.serve(bundles, settings, tell=_tell)


def _tell(line: str) -> None:
    typer.echo(line, err=True)
