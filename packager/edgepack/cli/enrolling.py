"""``edgepack device enroll``, ``unenroll`` and ``pulled``: devices that pull from a registry."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from edgepack import api
from edgepack.cli.options import JsonOption
from edgepack.cli.rollouts import ParallelOption
from edgepack.cli.several import NamesArgument, do_on_chosen
from edgepack.errors import UsageError

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def enroll(
    names: NamesArgument,
    reference: Annotated[
        str, typer.Argument(metavar="oci://HOST/REPOSITORY", help="Where the bundles are.")
    ],
    allowed_signers: Annotated[
        Path, typer.Option(help="Whose signatures the device takes; pinned there.")
    ],
    channel: Annotated[str, typer.Option(help="The tag to follow.")] = "stable",
    project: Annotated[
        str | None,
        typer.Option(help="The bundle's name [default: the last word of REPOSITORY]"),
    ] = None,
    every: Annotated[str, typer.Option(help="How often to ask: 15m, 2h, 1d.")] = "15m",
    textfile: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Where node_exporter reads metrics, on the device."),
    ] = None,
    report_url: Annotated[
        str | None, typer.Option(help="Where each run is reported, by POST.")
    ] = None,
    report_token_env: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The environment variable with the token for that."),
    ] = None,
    health_url: Annotated[
        str | None,
        typer.Option(help="What has to answer well after a switch; else it goes back."),
    ] = None,
    credentials_env: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The environment variable with USER:PASSWORD."),
    ] = None,
    proxy_env: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The environment variable with the proxy's address."),
    ] = None,
    no_proxy: Annotated[str | None, typer.Option(help="Hosts to reach without it.")] = None,
    ca: Annotated[
        Path | None, typer.Option(help="Certificates to trust instead of the device's own.")
    ] = None,
    plain_http: Annotated[
        bool, typer.Option("--plain-http", help="The registry has no TLS.")
    ] = False,
    parallel: ParallelOption = 16,
    as_json: JsonOption = False,
) -> None:
    """Make a device pull: it follows a channel of a registry, and goes back by itself."""
    from edgepack.cli.printing import write_line

    settings = api.PullSettings(
        channel=channel,
        project=project,
        every_s=_parse_every(every),
        textfile=textfile,
        report_url=report_url,
        report_token_env=report_token_env,
        health_url=health_url,
        credentials_env=credentials_env,
        proxy_env=proxy_env,
        no_proxy=no_proxy,
        ca=ca,
        plain_http=plain_http,
    )

    def show(enrolled: api.Enrolled) -> None:
        write_line(f"{names[0]} follows {reference}, channel {channel}")
        for line in _list_left(enrolled):
            write_line(line)

    do_on_chosen(
        names,
        lambda device, _progress: api.enroll_device(device, reference, allowed_signers, settings),
        show=show,
        summarize=lambda enrolled: "; ".join(["enrolled", *_list_left(enrolled)]),
        settings=api.RolloutSettings(parallel=parallel),
        as_json=as_json,
    )


def unenroll(
    names: NamesArgument,
    project: Annotated[str, typer.Option(help="Which bundle's name.")],
    parallel: ParallelOption = 16,
    as_json: JsonOption = False,
) -> None:
    """Make a device pull a project no more; its releases stay."""
    from edgepack.cli.printing import write_line

    do_on_chosen(
        names,
        lambda device, _progress: api.unenroll_device(device, project),
        show=lambda left: write_line(f"{names[0]} pulls {project} no more. {left}".rstrip()),
        summarize=lambda left: left or "done",
        settings=api.RolloutSettings(parallel=parallel),
        as_json=as_json,
    )


def pulled(
    names: NamesArgument, parallel: ParallelOption = 16, as_json: JsonOption = False
) -> None:
    """Show what a device pulls, and how its last run ended."""
    from edgepack.cli.printing import write_line

    def show(projects: tuple[api.PulledProject, ...]) -> None:
        for line in projects or (f"{names[0]} pulls nothing",):
            write_line(str(line))

    do_on_chosen(
        names,
        lambda device, _progress: api.list_pulled(device),
        show=show,
        summarize=lambda projects: "; ".join(map(str, projects)) or "nothing",
        settings=api.RolloutSettings(parallel=parallel),
        as_json=as_json,
    )


def _list_left(enrolled: api.Enrolled) -> list[str]:
    cron = f"no systemd runs there: put this line into a crontab: {enrolled.cron}"
    return [line for line in (enrolled.left, cron if enrolled.cron else "") if line]


def _parse_every(text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,6})([smhd])", text)
    if found is None:
        raise UsageError(f"{text!r} is no time", hint="write 15m, 2h or 1d", where="--every")
    return float(found[1]) * _UNITS[found[2]]
