"""Runs the harness of a bundle on a device and reads what it prints."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TypeVar

from pydantic import ValidationError

from edgepack.bench.presets import Preset
from edgepack.bench.report import Memory, Placement, ProcessRun, Selection, Trial
from edgepack.devices.answers import parse_json
from edgepack.devices.transport import CommandResult, Transport
from edgepack.errors import RemoteCommandError
from edgepack.profile import StrictModel

HARNESS = "harness/edgepack_harness.py"
NO_VARIANT_EXIT = 3
LOAD_TIMEOUT_S = 300.0
_TRIAL = re.compile(rb"edgepack-progress ([^\n]*)\n")
"""What ``edgepack_watcher.py`` writes to stderr, perhaps behind what others wrote."""

_Document = TypeVar("_Document", bound=StrictModel)


@dataclass(frozen=True)
class Harness:
    """A bundle's harness on a device. Each call is a process of its own there.

    Every call raises:
        RemoteCommandError: The process crashed, hung or printed something else than its document.
        DeviceError: The connection broke.
    """

    transport: Transport
    release: PurePosixPath
    """The bundle's folder on the device."""
    python: str
    run_prefix: tuple[str, ...] = ()
    """An argv put before the measured process, such as ``taskset -c 2-3``."""
    load_timeout_s: float = LOAD_TIMEOUT_S
    """For a process that loads the model and runs it a few times."""

    def select(
        self, variant: str | None, on_trial: Callable[[Trial], None] = lambda _: None
    ) -> Selection:
        """Let the loader choose a variant, and learn what the device is.

        Args:
            variant: This one or none.
            on_trial: Told every two seconds how far it is, by the calling thread.

        Raises:
            TooSlowError: It took longer than ``load_timeout_s``, and was stopped there.
        """

        def on_stderr(line: str) -> None:
            if found := _TRIAL.search(line.encode() + b"\n"):
                with suppress(ValueError):  # a broken line is only a line less
                    on_trial(Trial.model_validate(parse_json(found[1])))

        argv = self.argv("select", variant)
        return self._document(Selection, argv, timeout_s=self.load_timeout_s, on_stderr=on_stderr)

    def measure(self, variant: str, preset: Preset) -> ProcessRun:
        """Make one process run."""
        argv = [*self.run_prefix, *self.argv("measure", variant), *preset.arguments]
        longest_s = 2 * preset.duration_s + preset.warm_up_s + preset.warm_up_cap_s
        return self._document(ProcessRun, argv, timeout_s=self.load_timeout_s + longest_s)

    def memory(self, variant: str) -> Memory:
        """Measure peak memory."""
        argv = self.argv("memory", variant)
        return self._document(Memory, argv, timeout_s=self.load_timeout_s)

    def profile(self, variant: str) -> Placement:
        """Learn which provider runs each node."""
        argv = self.argv("profile", variant)
        return self._document(Placement, argv, timeout_s=self.load_timeout_s)

    def argv(self, mode: str, variant: str | None) -> list[str]:
        """Return the command for a mode. ``-B``: a release is never written to."""
        argv = [self.python, "-B", str(self.release / HARNESS), mode]
        argv += ["--bundle", str(self.release)]
        return [*argv, "--variant", variant] if variant else argv

    def _document(
        self,
        model: type[_Document],
        argv: list[str],
        *,
        timeout_s: float,
        on_stderr: Callable[[str], None] | None = None,
    ) -> _Document:
        result = self.transport.run(argv, timeout_s=timeout_s, on_stderr=on_stderr)
        result = replace(result, stderr=_TRIAL.sub(b"", result.stderr))
        self.check(result)
        try:
            parse_json(result.stdout)  # for its limits
            return model.model_validate_json(result.stdout)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"])
            raise self._no_document(model, f"{place} {first['msg']}", result) from error
        except ValueError as error:
            raise self._no_document(model, f"it {error}", result) from error

    def _no_document(
        self, model: type[_Document], problem: str, result: CommandResult
    ) -> RemoteCommandError:
        return RemoteCommandError(
            f"the harness printed no {model.__name__}: {problem};"
            f" it began with {result.text[:80]!r}",
            hint="see whether something on the device prints to stdout when Python starts",
            where=self.transport.name,
        )

    def check(self, result: CommandResult) -> None:
        """Raise RemoteCommandError, with the harness's last words, unless it succeeded."""
        if result.exit_code == NO_VARIANT_EXIT:
            result.check(
                "loading the bundle",
                device=self.transport.name,
                hint="install what the variants need (edgepack device provision"
                f" {self.transport.name}), or choose one with --variant",
            )
        result.check(
            "the harness",
            device=self.transport.name,
            hint="its last lines are above; exit code 137 often means out of memory",
        )
