"""An Android phone on which the measuring program runs within an app's process.

Its threads are scheduled as those of an app in the foreground; the one whose screen is shown may
get more cores (``OomAdjuster.java`` in frameworks/base: instrumentations are in
``SCHED_GROUP_DEFAULT``, the shown app in ``SCHED_GROUP_TOP_APP``). The app is only an
instrumentation. Models, goldens and plans are where the shell puts them, which apps may read. The
program writes into the app's own folder, which ``run-as`` reads.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from edgepack.base.progress import Progress
from edgepack.bundle.reading import Bundle
from edgepack.devices.phones.tool_problems import join_output
from edgepack.devices.transport import CommandResult
from edgepack.errors import DeviceError, EdgepackError, RemoteCommandError
from edgepack.measure.phones.android import PLAN, AndroidPhone
from edgepack.measure.phones.app_build import INSTRUMENTATION, PACKAGE
from edgepack.native.documents import ANSWERED
from edgepack.native.plans import Plan

FILES = "{files}"
"""In an argument: the app's folder for files."""
INSTALL_S = 300.0
NOT_STARTED_EXIT = 1
"""Of ``edgepack_measure_jni.c``."""
LOGCAT = ("logcat", "-d", "-v", "tag", "-b", "main,system,crash")
LOG_TAGS = ("DEBUG:F", "AndroidRuntime:E", "lowmemorykiller:I", "ActivityManager:I", "*:S")
MOST_LINES = 10
"""The most lines of a crash that are reported."""
_TELLING = re.compile(
    r"signal \d+ \(|Abort message|#\d\d pc |FATAL EXCEPTION|\w(?:Exception|Error)\b"
    rf"|Kill '{PACKAGE}'|Process {PACKAGE} .*has died"
)
"""Lines of Android's log that say how the app ended. Sources: ``tombstone_proto_to_text.cpp`` in
system/core, RuntimeInit.java and ActivityManagerService.java in frameworks/base, ``lmkd.cpp``. Not
seen on a phone."""


@dataclass
class AppPhone(AndroidPhone):
    """One phone with the measuring app, and one bundle; see :class:`~.program.NativeDevice`."""

    @property
    def cache(self) -> str:
        """The folder for compiled models."""
        return f"/data/data/{PACKAGE}/files/cache"

    @property
    def runs_as(self) -> str:
        """The report's entry in place of Python, which the app does not use."""
        return "none (within an app)"

    @property
    def scratch(self) -> str:
        """The folder for what the program writes."""
        return FILES

    def install(self, bundle: Bundle, progress: Progress) -> None:
        """Put the models on the phone, and the measuring app.

        Raises:
            DeviceError: The phone refuses the app; the message says why, and what to do.
        """
        self._send(bundle, [], progress)
        self._run(["chmod", "-R", "a+rX", str(self.release)], "letting the app read the models")
        # One that another machine has signed cannot be replaced.
        self.adb.uninstall(PACKAGE, timeout_s=INSTALL_S)
        [app] = self.programs
        self.adb.install(app, timeout_s=INSTALL_S)

    def clean(self) -> None:
        """Remove the app, which ends it, and what plans brought; the models stay."""
        self.adb.uninstall(PACKAGE, timeout_s=INSTALL_S)
        super().clean()

    def make_command(self, arguments: Sequence[str]) -> list[str]:
        """Return the command that runs the measuring program within the app."""
        words = [*arguments, "--runtime", "libonnxruntime.so", *self._list_plugin("{libraries}")]
        words += ["--plan", PLAN]
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
        if self._send_plan(plan):
            self._run(["chmod", "-R", "a+rX", str(self.release)], "letting the app read the plan")
        document = f"document-{secrets.token_hex(4)}.json"
        argv = self.make_command([*arguments, "--out", f"{FILES}/{document}"])
        began = self.adb.read(["date", "+%s"]).strip()
        ran = self.adb.shell(argv, timeout_s=timeout_s)
        found = re.search(r"^INSTRUMENTATION_RESULT: exit=(-?\d+)$", ran.text, re.MULTILINE)
        if found is None:
            printed = self._read_printed(document).splitlines()[-MOST_LINES:]
            raise self._make_not_run_error(ran, [*printed, *self._read_log(began)])
        code = int(found[1])
        if code == NOT_STARTED_EXIT:
            raise DeviceError(
                f"the measuring app may not enter {self.release}",
                hint="set 'root' of the device in devices.yaml to one below /data/local/tmp, or"
                " 'inside: shell'",
                where=self.name,
            )
        if code not in ANSWERED:
            return CommandResult(tuple(argv), code, b"", self._read_printed(document).encode())
        said = self._run_in_app(["cat", f"files/{document}"], "reading the document").stdout
        return CommandResult(tuple(argv), code, said, b"")

    def take(self, path: str) -> bytes:
        """Return a file that the program wrote, and remove it."""
        data = self._run_in_app(["cat", path], f"reading {path} in the app").stdout
        self._run_in_app(["rm", "-f", path], f"removing {path} in the app")
        return data

    def make_folder(self, path: str) -> None:
        """Make a folder in the app's."""
        self._run_in_app(["mkdir", "-p", path], "making a folder in the app")

    def _run_in_app(self, argv: Sequence[str], doing: str) -> CommandResult:
        return self._run(["run-as", PACKAGE, *argv], doing)

    def _read_printed(self, document: str) -> str:
        """Return what the program printed besides its document."""
        return self.adb.read(["run-as", PACKAGE, "cat", f"files/{document}.log"])

    def _read_log(self, began: str) -> Iterator[str]:
        """Yield Android's log lines since then about how the app ended."""
        lines = self.adb.read([*LOGCAT, "-t", f"{began}.0", *LOG_TAGS]).splitlines()
        if any(PACKAGE in line for line in lines):
            yield from [line for line in lines if _TELLING.search(line)][:MOST_LINES]

    def _make_not_run_error(self, ran: CommandResult, told: Sequence[str]) -> EdgepackError:
        output = join_output(ran).strip()
        said = ["the measuring app did not end as it should", *output.splitlines()[-MOST_LINES:]]
        error = self.adb.explain_output(output) or RemoteCommandError(
            "\n  | ".join(said),
            hint="see why: adb logcat -d; 'inside: shell' in devices.yaml measures without an app",
            where=self.name,
        )
        problem = "\n  | ".join([error.problem, *told])
        return type(error)(problem, hint=error.hint, where=error.where)
