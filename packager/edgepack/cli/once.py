"""Options that take one value are given once: of two, the last would win without a word."""

from __future__ import annotations

from collections import Counter
from typing import Any

from typer.core import TyperCommand

from edgepack.errors import UsageError


class OnceCommand(TyperCommand):
    """A command that refuses an option given twice, unless it may be repeated or has no value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401  (private to typer)
        """Take the command line apart.

        Raises:
            UsageError: An option is given twice.
        """
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option, times in Counter(given).items():
            single = not (getattr(option, "multiple", True) or getattr(option, "is_flag", False))
            if times > 1 and single and not ctx.resilient_parsing:
                name = option.opts[-1]
                raise UsageError(
                    f"given {times} times, and {ctx.command_path} takes it once",
                    hint=f"give {name} once, or run the command once for each value",
                    where=name,
                )
        return super().parse_args(ctx, args)
