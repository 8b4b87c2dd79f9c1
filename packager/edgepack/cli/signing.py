"""``edgepack sign``, and the option that says who may sign."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgepack import api
from edgepack.cli.options import BundleArgument, JsonOption

AllowedSignersOption = Annotated[
    Path | None,
    typer.Option(
        help="The file of allowed signers, as ssh-keygen reads it"
        " [default: ~/.ssh/allowed_signers]",
        show_default=False,
    ),
]
RequireSignatureOption = Annotated[
    bool,
    typer.Option(
        "--require-signature", help="Refuse a bundle that none of the allowed signers has signed."
    ),
]


def sign(
    bundle: BundleArgument,
    key: Annotated[
        Path | None,
        typer.Option(
            help="Your SSH key, or the .pub file of a key that the agent has"
            " [default: the only key that the agent or ~/.ssh/id_ed25519 gives]",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Sign a bundle with your SSH key."""
    from edgepack.cli.printing import print_json, write_line

    signature = api.sign(bundle, key)
    if as_json:
        print_json(signature)
    else:
        write_line(f"{bundle / api.MANIFEST_SIGNATURE}: {signature}")
