"""``edgepack publish``, ``fetch`` and ``channel show``: what is in registries."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from edgepack import api
from edgepack.cli.groups import QuickGroup
from edgepack.cli.options import JsonOption, ResultsOption
from edgepack.cli.signing import AllowedSignersOption, RequireSignatureOption
from edgepack.errors import UsageError

channel_app = typer.Typer(
    cls=QuickGroup, help="Channels in registries.", no_args_is_help=True, rich_markup_mode=None
)

PlainHttpOption = Annotated[
    bool,
    typer.Option(
        "--plain-http", help="Speak HTTP without TLS with a registry that is not on this machine."
    ),
]
AddressArgument = Annotated[
    str,
    typer.Argument(
        metavar="ADDRESS",
        help="As oci://HOST/REPOSITORY[:TAG][@DIGEST], or s3://BUCKET/PREFIX[:TAG][@DIGEST].",
        show_default=False,
    ),
]


def publish(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[BUNDLE]... ADDRESS",
            help="Bundles' folders, or a folder of bundles; then where they go:"
            " oci://HOST/REPOSITORY[:TAG] or s3://BUCKET/PREFIX[:TAG]. Several bundles get the tag"
            " TAG-TARGET. Default for the tag: the project's version.",
            show_default=False,
        ),
    ],
    channel: Annotated[
        str, typer.Option(help="Also move this channel to them; of several: CHANNEL-TARGET.")
    ] = "",
    after: Annotated[
        str,
        typer.Option(
            metavar="CHANNEL",
            help="Instead of bundles: exactly what this other channel, a tag or a digest leads to.",
        ),
    ] = "",
    key: Annotated[
        Path | None,
        typer.Option(
            help="The SSH key that signs the channel's entry, or the .pub file of a key that the"
            " agent has.",
            show_default=False,
        ),
    ] = None,
    downgrade: Annotated[
        bool,
        typer.Option(
            "--downgrade", help="Let the channel, and devices, go back to an older version."
        ),
    ] = False,
    sequence: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=2**53 - 1,
            help="The least number of the channel's entry. Nothing that is there counts then but"
            " what a known signer has signed [default: the next one]",
        ),
    ] = None,
    measured: Annotated[
        bool,
        typer.Option(
            "--measured",
            help="Refuse a release without a VALID benchmark in the results store, and one that"
            " misses the project's limits there.",
        ),
    ] = False,
    move: Annotated[
        bool, typer.Option("--move", help="Move a tag that leads to another bundle.")
    ] = False,
    require_signature: RequireSignatureOption = False,
    allowed_signers: AllowedSignersOption = None,
    plain_http: PlainHttpOption = False,
    results: ResultsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish bundles to an OCI registry or a bucket, and move channels in registries."""
    from edgepack.base.progress import make_terminal_progress
    from edgepack.cli.printing import print_json, write_line

    *paths, address = words
    options = api.PublishOptions(
        move=move,
        require_signature=require_signature or allowed_signers is not None,
        allowed_signers=allowed_signers,
        plain_http=plain_http,
        channel=channel,
        key=key,
        downgrade=downgrade,
        sequence=sequence,
    )
    if measured:
        store = api.ResultsStore(results)
        options = replace(options, gate=lambda release: api.require_measured(store, release))
    reference = api.Reference.parse(address)
    _require_sense(paths, options, after)
    progress = make_terminal_progress()
    if after:
        published = api.promote(reference, after, options=options, progress=progress)
    else:
        folders = [Path(path) for path in paths]
        published = api.publish(folders, reference, options=options, progress=progress)
    if as_json:
        print_json(published)
        return
    for each in published:
        write_line(f"{each.reference}: {_format_sent(each)}")
        if len(each.tags) > 1:
            write_line(f"  also {', '.join(each.tags[1:])}")


def _require_sense(paths: list[str], options: api.PublishOptions, after: str) -> None:
    """Check that options belong together.

    Raises:
        UsageError: They do not.
    """
    if bool(paths) == bool(after):
        raise UsageError(
            "bundles and --after are two ways to say what is published"
            if paths
            else "nothing is named that could be published",
            hint="name bundles before the address, or --after CHANNEL and no bundle",
        )
    needy = {
        "--after": after,
        "--key": options.key,
        "--downgrade": options.downgrade,
        "--sequence": options.sequence,
    }
    if not options.channel and (given := [name for name, value in needy.items() if value]):
        raise UsageError(
            f"{given[0]} is about a channel, and none is named",
            hint="name the channel that is moved: --channel stable",
            where=given[0],
        )


def _format_sent(published: api.Published) -> str:
    if not published.blobs_sent:
        return "was there already"
    files = "1 file" if published.blobs_sent == 1 else f"{published.blobs_sent} files"
    return f"{files}, {published.bytes_sent} bytes sent; {published.blobs_there} were there"


def fetch(
    address: AddressArgument,
    out: Annotated[Path, typer.Option(help="Where bundles go.")] = Path("dist"),
    require_signature: RequireSignatureOption = False,
    allowed_signers: AllowedSignersOption = None,
    plain_http: PlainHttpOption = False,
    as_json: JsonOption = False,
) -> None:
    """Get a bundle from an OCI registry or a bucket as a folder."""
    from edgepack.base.progress import make_terminal_progress
    from edgepack.cli.printing import print_json, write_line

    options = api.FetchOptions(
        allowed_signers=allowed_signers,
        require_signature=require_signature or allowed_signers is not None,
        plain_http=plain_http,
    )
    fetched = api.fetch(
        api.Reference.parse(address), out=out, options=options, progress=make_terminal_progress()
    )
    if as_json:
        print_json(fetched)
        return
    for each in fetched:
        write_line(f"{each.path}: {each.signature or 'not signed'}")


def verify_published(
    address: str, allowed_signers: Path | None, *, plain_http: bool
) -> list[api.Verification]:
    """Get all of what is in a registry anew, and verify it as a folder is."""
    from edgepack.base.progress import make_terminal_progress

    options = api.FetchOptions(allowed_signers=allowed_signers, plain_http=plain_http)
    with tempfile.TemporaryDirectory(prefix="edgepack-") as scratch:
        fetched = api.fetch(
            api.Reference.parse(address),
            out=Path(scratch),
            options=options,
            progress=make_terminal_progress(),
        )
        return [
            replace(api.verify(each.path, allowed_signers), bundle=each.reference)
            for each in fetched
        ]


@channel_app.command(
    "show",
    epilog="Examples: edgepack channel show oci://registry.example.com/detector  |  "
    "edgepack channel show oci://registry.example.com/detector:stable",
)
def show(
    address: AddressArgument,
    allowed_signers: AllowedSignersOption = None,
    plain_http: PlainHttpOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show where the tags and channels of a repository lead, and who signed that."""
    from edgepack.cli.printing import print_json, print_rows

    listed = api.list_tags(
        api.Reference.parse(address), allowed_signers=allowed_signers, plain_http=plain_http
    )
    if as_json:
        print_json(listed)
        return
    print_rows(
        ("tag", "bundle", "release", "signed", "channel"), [_make_row(tag) for tag in listed]
    )


def _make_row(tag: api.ListedTag) -> tuple[str, ...]:
    if tag.problem:
        return (tag.tag, tag.problem, "n/a", "n/a", "n/a")
    channel = "n/a"
    if tag.sequence is not None:
        signed = tag.entry_signature or "not signed"
        channel = f"{tag.sequence}{', downgrade' if tag.downgrade else ''}, {signed}"
    return (tag.tag, tag.bundle, tag.release[:16], tag.signature or "no", channel)
