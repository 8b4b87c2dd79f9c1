"""Run a command in its own session, and kill it when nobody listens any more.

Runs on the device as ``python3 -c SOURCE MODE COMMAND...`` with nothing but Python 3.8. A command
keeps running when its SSH channel closes; this program ties the two together.

``--run``: the command's stdin is empty and ours is the lifeline: its end kills the command.
``--stream``: the command owns stdin; the lifeline is whoever reads our stdout.

The exit code is the command's, as a shell says it: 128 + N for signal N, 127 if there is no such
program, 126 if it cannot be run.
"""

import errno
import os
import select
import signal
import subprocess
import sys
import threading
import time
from typing import Callable, List

GRACE_S = 5.0
"""Between SIGTERM and SIGKILL."""


def kill_group(child: "subprocess.Popen[bytes]") -> None:
    """Ask the command's process group to end, then end it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
        except (ProcessLookupError, PermissionError):  # macOS says EPERM for a group of zombies
            return
        deadline = time.monotonic() + GRACE_S
        while number == signal.SIGTERM and is_group_alive(child) and time.monotonic() < deadline:
            time.sleep(0.02)


def is_group_alive(child: "subprocess.Popen[bytes]") -> bool:
    """Return whether some process of the command's group still runs."""
    child.poll()
    try:
        os.killpg(child.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def wait_for_stdin_end() -> None:
    """Return when stdin ends; bytes that come before are dropped."""
    while os.read(0, 4096):
        pass


def wait_for_reader_end() -> None:
    """Return when nobody reads our stdout any more."""
    poll = select.poll()
    poll.register(1, 0)  # hang-ups are reported without being asked for
    while not any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(500)):
        pass


def kill_after(wait: Callable[[], object], child: "subprocess.Popen[bytes]") -> None:
    """Kill the command's group, in a thread, once ``wait`` has returned."""

    def watch() -> None:
        wait()
        kill_group(child)

    threading.Thread(target=watch, daemon=True).start()


def is_nowhere(program: str) -> bool:
    """Return whether no folder of PATH has a program.

    If the user may not enter one of the folders, the system reports EACCES for a missing program.
    """
    from shutil import which

    return "/" not in program and which(program) is None


def main(mode: str, argv: List[str]) -> int:
    """Run ``argv`` to its end and return its exit code."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    told_to_stop = threading.Event()  # an exception could hit before the child has a name
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: told_to_stop.set())
    stdin = None if mode == "--stream" else subprocess.DEVNULL
    try:
        child = subprocess.Popen(argv, stdin=stdin, start_new_session=True)
    except OSError as error:
        cause = errno.ENOENT if is_nowhere(argv[0]) else error.errno or 0
        sys.stderr.write("edgepack: cannot run %r: %s\n" % (argv[0], os.strerror(cause)))
        return 127 if cause == errno.ENOENT else 126
    kill_after(told_to_stop.wait, child)
    kill_after(wait_for_reader_end if mode == "--stream" else wait_for_stdin_end, child)
    code = child.wait()
    kill_group(child)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
