"""The options of a service, as the command line, the API and a bundle's own program have them."""

from __future__ import annotations

import argparse
import inspect
from dataclasses import asdict

from edgepack.cli import serving as command
from edgepack.ondevice.service.edgepack_settings import Settings, add_arguments, make_settings
from edgepack.serving.serving import ServiceSettings


def read_parser() -> dict[str, object]:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return vars(parser.parse_args([]))


def test_defaults_are_the_same_wherever_they_are_given() -> None:
    """The lists are three, because devices have neither Typer nor pydantic."""
    in_cli = {
        name: parameter.default
        for name, parameter in inspect.signature(command.serve).parameters.items()
        if name != "bundles"
    }
    # Of a path that is not given, argparse says nothing, and Typer None.
    in_bundle = {name: value or None for name, value in read_parser().items()}
    assert {name: value or None for name, value in in_cli.items()} == in_bundle
    in_api = asdict(ServiceSettings())
    assert in_api.pop("deadline_s") == in_cli["deadline_ms"] / 1000
    assert in_api.pop("batch_delay_s") == in_cli["batch_delay_ms"] / 1000
    assert in_api.pop("most_bytes") == in_cli["most_mb"] << 20
    for name, value in in_api.items():
        assert in_cli[name] == value
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert make_settings(parser.parse_args([])) == Settings()
