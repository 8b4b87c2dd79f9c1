"""``edgepack export``: a bundle for a fleet manager that is there already."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgepack import api
from edgepack.cli.options import JsonOption


def export(
    bundle: Annotated[
        Path, typer.Argument(help="A bundle's folder or archive.", show_default=False)
    ],
    form: Annotated[
        api.ExportFormat,
        typer.Option("--format", help="The package's form.", show_default=False),
    ],
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="Where it goes.")] = Path("dist"),
    compatible: Annotated[
        list[str] | None,
        typer.Option(
            help="Which devices take it: a device type of Mender, repeat for more; RAUC's"
            " 'compatible'.",
        ),
    ] = None,
    slot: Annotated[str, typer.Option(help="RAUC's class of slots that it is written to.")] = "",
    key: Annotated[
        Path | None, typer.Option(help="The private key that signs, for RAUC and Mender.")
    ] = None,
    cert: Annotated[Path | None, typer.Option(help="The key's certificate, for RAUC.")] = None,
    depends: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PACKAGE", help="What a deb, ipk or recipe depends on; repeat for more."
        ),
    ] = None,
    vendor_runtime: Annotated[
        Path | None,
        typer.Option(metavar="LIBRARY", help="The libonnxruntime.so that a deb or ipk brings."),
    ] = None,
    maintainer: Annotated[
        str, typer.Option(metavar="'NAME <ADDRESS>'", help="Who answers for a deb or ipk.")
    ] = "",
    copyright_file: Annotated[
        Path | None, typer.Option("--copyright", help="The copyright file of a deb or ipk.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a bundle as a package that your fleet manager takes, with the self-test as its hook.

    An OCI layout and a recipe have none: devices that pull test what they get.
    """
    from edgepack.cli.printing import print_json, write_line

    exported = api.export_bundle(
        bundle,
        form,
        to,
        api.ExportSettings(
            compatible=compatible or [],
            slot=slot,
            key=key,
            cert=cert,
            depends=depends or [],
            vendor_runtime=vendor_runtime,
            maintainer=maintainer,
            copyright=copyright_file,
        ),
    )
    if as_json:
        print_json(exported)
    else:
        write_line(f"{exported.path}: {exported.project} {exported.version} as {exported.format}")
