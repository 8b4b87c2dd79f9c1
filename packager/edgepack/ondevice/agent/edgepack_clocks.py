"""Set this device's clocks to their highest during a measurement, and restore them afterwards.

Runs on the device with nothing but Python 3.8; its arguments are ``DO FOLDER ROOT SILENCE_S``.
Answers are lines of JSON on stdout.

``hold`` sets the governor of every cpufreq policy to ``performance``, or calls ``jetson_clocks``
where there is one, and answers ``{"settings": [{"name", "before", "during"}, ...]}``. Where that
cannot be done, everything is as before, and the answer is ``{"problem": ..., "hint": ...}``. The
program restores the old settings at the end of stdin, and also after silence for longer than
``SILENCE_S`` (each byte on stdin breaks it) and after SIGTERM, SIGINT and SIGHUP. The last answer
is ``{"given_back": [name, ...]}``.

It writes the old settings to ``FOLDER/clocks.json`` before it changes anything. If this program
itself is killed, the next ``hold`` or ``give-back`` restores them. A lock on ``FOLDER/clocks.lock``
shows who is alive. After a reboot there is nothing to give back: neither setting outlives one.

Actions that need root go through ``sudo -n``: ``tee`` of a governor's file, and ``jetson_clocks``.

Sources: Linux's Documentation/admin-guide/pm/cpufreq.rst; NVIDIA Jetson Linux Developer Guide,
"Jetson Orin Nano Series, ...: Maximizing Jetson performance" (jetson_clocks --store, --restore).
"""

import contextlib
import fcntl
import glob
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from typing import Any, Dict, Iterator, List

FASTEST = "performance"
JETSON = "jetson_clocks"
PROGRAM_S = 30.0

Json = Dict[str, Any]


class Problem(Exception):  # noqa: N818
    """Why clocks cannot be held, and what to do about it."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.hint = hint


class Busy(Problem):
    """Somebody else holds the clocks now."""


class Governor:
    """The frequency governor of one cpufreq policy."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = "governor of %s" % os.path.basename(os.path.dirname(path))

    def read(self) -> str:
        """Return which it is."""
        with open(self.path) as file:
            return file.read().strip()

    def hold(self) -> None:
        """Set the fastest."""
        with open(os.path.join(os.path.dirname(self.path), "scaling_available_governors")) as file:
            offered = file.read().split()
        if FASTEST not in offered:
            raise Problem(
                "the %s cannot be %r, only %s" % (self.name, FASTEST, ", ".join(offered)),
                "measure without --tune",
            )
        self.write(FASTEST)

    def write(self, value: str) -> None:
        """Set it, as root if need be."""
        try:
            with open(self.path, "w") as file:
                file.write(value)
        except PermissionError:
            run_as_root(["tee", self.path], value)
        if self.read() != value:
            raise Problem("the %s stays %r" % (self.name, self.read()), "measure without --tune")

    def give_back(self, before: str) -> None:
        """Set what was before."""
        if self.read() != before:
            self.write(before)


class JetsonClocks:
    """All clocks of a Jetson, in the power mode that it has."""

    name = "clocks"

    def __init__(self, stored: str) -> None:
        self.path = stored

    def read(self) -> str:
        """Return what sets the clocks; their frequencies are in a file of jetson_clocks."""
        return JETSON if os.path.exists(self.path) else "dynamic"

    def hold(self) -> None:
        """Set each to its highest."""
        with contextlib.suppress(FileNotFoundError):  # from before a reboot: it would ask
            os.unlink(self.path)
        run_as_root([JETSON, "--store", self.path])
        run_as_root([JETSON])

    def give_back(self, _before: str) -> None:
        """Set what was before."""
        if os.path.exists(self.path):
            run_as_root([JETSON, "--restore", self.path])
            os.unlink(self.path)


def run_as_root(argv: List[str], text: str = "") -> None:
    """Run a program as root; raise Problem if it fails."""
    program = shutil.which(argv[0]) or argv[0]
    command = [program, *argv[1:]] if os.geteuid() == 0 else ["sudo", "-n", program, *argv[1:]]
    try:
        done = subprocess.run(
            command,
            input=text.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PROGRAM_S,
            check=False,
        )
        failed, said = done.returncode != 0, done.stdout.decode("utf-8", "replace").strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        failed, said = True, str(error)
    if failed:
        line = " ".join([program, *argv[1:]])
        if os.geteuid() == 0:
            raise Problem("%s failed: %s" % (line, said[-300:]), "measure without --tune")
        raise Problem(
            "%s needs root, and 'sudo -n' refuses it: %s" % (line, said[-300:]),
            "allow it and its like on the device (sudo visudo): '%s ALL=(root) NOPASSWD: %s', or"
            " measure without --tune"
            % (os.environ.get("USER") or "USER", line.replace(":", "\\:")),
        )


def find_settings(folder: str, root: str) -> List[Any]:
    """Return what there is to hold, not yet held."""
    if shutil.which(JETSON):
        return [JetsonClocks(os.path.join(folder, "jetson_clocks.conf"))]
    pattern = os.path.join(root, "sys/devices/system/cpu/cpufreq/policy*/scaling_governor")
    found = [Governor(path) for path in sorted(glob.glob(pattern))]
    if not found:
        raise Problem(
            "the device has no cpufreq governor and no %s" % JETSON,
            "measure without --tune; where it is a virtual machine, its host has the clocks",
        )
    return [setting for setting in found if setting.read() != FASTEST]


def hold(folder: str, root: str, stop: int, silence_s: float) -> None:
    """Hold the clocks until stdin ends or is silent for too long."""
    with locked(folder):
        give_back(folder)
        settings = find_settings(folder, root)
        kept = [
            {
                "kind": type(each).__name__,
                "path": each.path,
                "name": each.name,
                "before": each.read(),
            }
            for each in settings
        ]
        keep(folder, kept)
        try:
            for setting in settings:
                setting.hold()
            held = [
                {"name": each["name"], "before": each["before"], "during": setting.read()}
                for each, setting in zip(kept, settings)  # noqa: B905  (Python 3.8)
            ]
            answer({"settings": held})
            wait_for_end(stop, silence_s)
        finally:
            given = give_back(folder)
        answer({"given_back": given})


def give_back_left(folder: str) -> List[str]:
    """Restore what a killed program left; a running program's settings stay."""
    if not os.path.isdir(folder):
        return []
    try:
        with locked(folder):
            return give_back(folder)
    except Busy:
        return []


def give_back(folder: str) -> List[str]:
    """Restore all settings; return the names of those that were restored."""
    path = os.path.join(folder, "clocks.json")
    try:
        with open(path) as file:
            kept = json.load(file)
    except FileNotFoundError:
        return []
    given, problems = [], []
    for each in kept["settings"] if kept["boot_id"] == read_boot_id() else []:
        setting: Any = {"Governor": Governor, "JetsonClocks": JetsonClocks}[each["kind"]](
            each["path"]
        )
        try:
            setting.give_back(each["before"])
            given.append(each["name"])
        except (Problem, OSError) as error:
            problems.append("%s: %s" % (each["name"], error))
    if problems:
        raise Problem(
            "not restored: %s" % "; ".join(problems),
            "set it by hand: the values from before are in %s on the device" % path,
        )
    os.unlink(path)
    return given


def keep(folder: str, settings: List[Json]) -> None:
    """Write to disk what has to be restored, whatever happens."""
    path = os.path.join(folder, "clocks.json")
    with open(path + ".partial", "w") as file:
        json.dump({"boot_id": read_boot_id(), "settings": settings}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".partial", path)


def read_boot_id() -> str:
    """Return an id that changes with each boot; empty where the system reports none."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Lock the clocks for this program; raise Problem if somebody else has them."""
    os.makedirs(folder, exist_ok=True)
    descriptor = os.open(os.path.join(folder, "clocks.lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(
                "another measurement holds the device's clocks", "wait until it has ended"
            ) from None
        yield
    finally:
        os.close(descriptor)


def watch_signals() -> int:
    """Return a descriptor that becomes readable once a signal says to stop.

    The signals do nothing else: nothing stops this program half way.
    """
    stop, stopper = os.pipe()
    os.set_blocking(stopper, False)
    signal.set_wakeup_fd(stopper)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return stop


def wait_for_end(stop: int, silence_s: float) -> None:
    """Return when stdin ends or is silent for too long, or a signal has said to stop."""
    while True:
        ready = select.select([0, stop], [], [], silence_s)[0]
        if ready != [0] or not os.read(0, 4096):
            return


def answer(document: Json) -> None:
    """Send an answer to the client, if it is still there."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(document).encode() + b"\n")


def main(do: str, folder: str, root: str, silence_s: str) -> int:
    """Do the requested action and return the exit code."""
    folder = os.path.join(os.path.expanduser(folder), "clocks")
    stop = watch_signals()
    try:
        if do == "hold":
            hold(folder, root, stop, float(silence_s))
        else:
            answer({"given_back": give_back_left(folder)})
    except (Problem, OSError) as error:
        answer({"problem": str(error), "hint": getattr(error, "hint", "measure without --tune")})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:5]))
