"""The options of a service, as the command line and a bundle's own program have them."""

from __future__ import annotations

import argparse
import inspect

from edgepack.cli import serving as command
from edgepack.ondevice.service.edgepack_settings import (
    ServiceSettings,
    add_arguments,
    make_settings,
)


def read_parser() -> dict[str, object]:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return vars(parser.parse_args([]))


def test_the_command_and_a_bundles_program_have_the_same_options() -> None:
    """The lists are two, because devices have no Typer."""
    in_cli = {
        name: parameter.default
        for name, parameter in inspect.signature(command.serve).parameters.items()
        if name != "bundles"
    }
    assert in_cli == read_parser()
    assert make_settings(**in_cli) == ServiceSettings()
