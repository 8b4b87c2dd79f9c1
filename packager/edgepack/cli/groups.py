"""Groups of commands, whose own options cost nothing where a command is called."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command_name
from typer.models import CommandInfo, TyperInfo


def narrow_app(app: typer.Typer, words: Sequence[str]) -> typer.Typer:
    """Return an app that has the called command alone; the whole app where the words call none.

    typer makes every command that an app has, before it calls one. The app's own help needs no
    commands of its groups.
    """
    if words in (["--help"], ["-h"]):
        return _copy_app(app, app.registered_commands, app.registered_groups, words)
    commands = [each for each in app.registered_commands if words[:1] == [_find_name(each)]]
    groups = [each for each in app.registered_groups if words[:1] == [each.name]]
    if not (commands or groups):
        return app
    return _copy_app(app, commands, groups, words[1:])


def _copy_app(
    app: typer.Typer,
    commands: list[CommandInfo],
    groups: list[TyperInfo],
    words: Sequence[str],
) -> typer.Typer:
    """Return an app with some commands and groups, these without what the words do not call."""
    copied = copy(app)
    copied.registered_commands = commands
    copied.registered_groups = [copy(each) for each in groups]
    for group in copied.registered_groups:
        if group.typer_instance is not None and len(groups) > 1:
            group.typer_instance = _copy_app(group.typer_instance, [], [], words)
        elif group.typer_instance is not None:
            group.typer_instance = narrow_app(group.typer_instance, words)
    copied.callback()(_stay_group)
    return copied


def _find_name(command: CommandInfo) -> str:
    if command.name or command.callback is None:
        return command.name or ""
    return get_command_name(command.callback.__name__)


def _stay_group() -> None:
    """Do nothing: an app with one command and no callback would be that command itself."""


class QuickGroup(TyperGroup):
    """A group that looks at its options only if it was given some.

    typer converts each parameter with pydantic, the defaults of options too, and to load that takes
    longer than all else that ``--help`` of a command does.
    """

    _is_asked = True

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  (private to typer)
        """Take the command line apart up to the command."""
        self._is_asked = not args or args[0].startswith("-")
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401
        """Return the group's options; none before a command's name."""
        return super().get_params(ctx) if self._is_asked else []


class Edgepack(QuickGroup):
    """All commands, and ``--version``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401
        """Take the command line apart up to the command, or print the version."""
        if args[:1] == ["--version"]:
            from edgepack.base.revision import format_version

            typer.echo(f"edgepack {format_version()}")
            raise typer.Exit
        return super().parse_args(ctx, args)
