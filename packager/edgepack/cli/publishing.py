"""``edgepack publish``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgepack import api
from edgepack.cli.options import JsonOption
from edgepack.cli.signing import AllowedSignersOption, RequireSignatureOption

PlainHttpOption = Annotated[
    bool,
    typer.Option(
        "--plain-http", help="Speak HTTP without TLS with a registry that is not on this machine."
    ),
]


def publish(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="BUNDLE... OCI://HOST/REPOSITORY[:TAG]",
            help="Bundles' folders, or a folder of bundles; then where they go. Several bundles get"
            " the tag TAG-TARGET. Default for the tag: the project's version.",
            show_default=False,
        ),
    ],
    move: Annotated[
        bool, typer.Option("--move", help="Move a tag that leads to another bundle.")
    ] = False,
    require_signature: RequireSignatureOption = False,
    allowed_signers: AllowedSignersOption = None,
    plain_http: PlainHttpOption = False,
    as_json: JsonOption = False,
) -> None:
    """Publish bundles to an OCI registry."""
    from edgepack.base.progress import make_terminal_progress
    from edgepack.cli.printing import print_json, write_line

    *paths, address = words
    options = api.PublishOptions(
        move=move,
        require_signature=require_signature or allowed_signers is not None,
        allowed_signers=allowed_signers,
        plain_http=plain_http,
    )
    published = api.publish(
        [Path(path) for path in paths],
        api.Reference.parse(address),
        options=options,
        progress=make_terminal_progress(),
    )
    if as_json:
        print_json(published)
        return
    for each in published:
        write_line(f"{each.reference}: {_format_sent(each)}")


def _format_sent(published: api.Published) -> str:
    if not published.blobs_sent:
        return "was there already"
    there = f", {published.blobs_there} were there" if published.blobs_there else ""
    return f"{published.blobs_sent} files, {published.bytes_sent} bytes sent{there}"
