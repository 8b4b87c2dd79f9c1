"""An Android phone on which the measuring program runs within an app's process.

Its threads are scheduled as those of an app in the foreground; the one whose screen is shown may
get more cores (``OomAdjuster.java`` in frameworks/base: instrumentations are in
``SCHED_GROUP_DEFAULT``, the shown app in ``SCHED_GROUP_TOP_APP``). The app is an instrumentation
and nothing else; models, goldens and plans lie where the shell puts them, which apps may read, and
what the program writes in the app's own folder, which ``run-as`` reads.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from edgepack.bench.android import PLAN, AndroidPhone
from edgepack.bench.app_build import INSTRUMENTATION, PACKAGE
from edgepack.bench.plans import Plan
from edgepack.devices.tool_problems import ADB_CAUSES, explain, output_of
from edgepack.devices.transport import CommandResult
from edgepack.errors import DeviceError, RemoteCommandError

FILES = "{files}"
"""In an argument: the app's folder for files."""
INSTALL_S = 300.0
NOT_STARTED_EXIT = 1
"""Of ``edgepack_measure_jni.c``."""


@dataclass
class AppPhone(AndroidPhone):
    """One phone with the measuring app, and one bundle; see :class:`~.native.Phone`."""

    @property
    def cache(self) -> str:
        """The folder for compiled models."""
        return f"/data/data/{PACKAGE}/files/cache"

    @property
    def runs_as(self) -> str:
        """What stands in a report for Python, of which the app has none."""
        return "none (within an app)"

    @property
    def scratch(self) -> str:
        """The folder for what the program writes."""
        return FILES

    def install_app(self, app: Path) -> None:
        """Install the measuring app, in place of an earlier one.

        Raises:
            DeviceError: The phone refuses it; the message says why, and what to do.
        """
        self.adb.install(app, timeout_s=INSTALL_S)
        self._shell(["chmod", "-R", "a+rX", str(self.release)], "letting the app read the models")

    def clean(self) -> None:
        """Remove what plans brought and the program wrote; the models and the app stay."""
        super().clean()
        self._as_app(["rm", "-rf", "files"], "cleaning up in the app")

    def program(self, arguments: Sequence[str]) -> list[str]:
        """Return the command that runs the measuring program within the app."""
        words = [*arguments, "--runtime", "libonnxruntime.so", "--plan", PLAN]
        joined = ",".join(quote(word, safe="/:=+-_.") for word in words)
        return [
            *("am", "instrument", "-w"),
            *("-e", "folder", str(self.release)),
            *("-e", "arguments", joined),
            INSTRUMENTATION,
        ]

    def measure(
        self, arguments: Sequence[str], plan: Plan | None, *, timeout_s: float
    ) -> CommandResult:
        """Run the measuring program; its document is the result's stdout."""
        self._send_plan(plan)
        self._shell(["chmod", "-R", "a+rX", str(self.release)], "letting the app read the plan")
        document = f"document-{secrets.token_hex(4)}.json"
        argv = self.program([*arguments, "--out", f"{FILES}/{document}"])
        ran = self.adb.shell(argv, timeout_s=timeout_s)
        found = re.search(r"^INSTRUMENTATION_RESULT: exit=(-?\d+)$", ran.text, re.MULTILINE)
        if found is None:
            raise self._not_run(ran)
        if int(found[1]) == NOT_STARTED_EXIT:
            raise DeviceError(
                f"the measuring app may not enter {self.release}",
                hint="set 'root' of the device in devices.yaml to one below /data/local/tmp, or"
                " 'inside: shell'",
                where=self.name,
            )
        said = self._as_app(["cat", f"files/{document}"], "reading the document").stdout
        return CommandResult(tuple(argv), int(found[1]), said, ran.stderr)

    def take(self, path: str) -> bytes:
        """Return a file that the program wrote, and remove it."""
        data = self._as_app(["cat", path], f"reading {path} in the app").stdout
        self._as_app(["rm", "-f", path], f"removing {path} in the app")
        return data

    def make_folder(self, path: str) -> None:
        """Make a folder in the app's."""
        self._as_app(["mkdir", "-p", path], "making a folder in the app")

    def _as_app(self, argv: Sequence[str], doing: str) -> CommandResult:
        return self._shell(["run-as", PACKAGE, *argv], doing)

    def _not_run(self, ran: CommandResult) -> Exception:
        output = output_of(ran)
        return explain(ADB_CAUSES, output, device=self.name) or RemoteCommandError(
            f"the measuring app did not end as it should: {output.strip()[-500:]!r}",
            hint="see why: adb logcat -d; 'inside: shell' in devices.yaml measures without an app",
            where=self.name,
        )
