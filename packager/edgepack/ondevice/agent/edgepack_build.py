"""Runs a long build on a device, which goes on when nobody is connected.

Runs as ``python3 -c SOURCE COMMAND FOLDER`` with nothing but Python 3.8. The folder has the
steps as shell scripts, a marker for each that is done, the log, and how it ended. A build that was
killed, or whose device was switched off, goes on with its first step that is not done.

The commands, with what they read on stdin:

``survey FOLDER {"paths": [...], "packages": [...]}``: what the device has, before anything begins.
``start FOLDER {"steps": [[name, script], ...]}``: start, unless it runs or has ended well.
``look FOLDER {"log_from": bytes}``: how it stands.
``stop FOLDER {}``: kill it.
``remove FOLDER {}``: kill it and remove the folder.

Each prints one JSON object.
"""

import contextlib
import fcntl
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional

LOG_BYTES = 16384
"""The most of the log that one answer has: its end."""
STOP_S = 10.0
LOOK_S = 2.0
"""How long others that only look may share the lock."""

# Each step is a script of its own, as only the outermost shell heeds -e.
BUILD = """
cd "$(dirname "$0")" || exit
rm -f exit failed
for script in steps/*.sh; do
  name=$(basename "$script" .sh)
  [ -e "done/$name" ] && continue
  echo "=== $name"
  sh -e "$script"
  code=$?
  if [ "$code" != 0 ]; then
    echo "$name" > failed
    echo "$code" > exit
    exit "$code"
  fi
  : > "done/$name"
done
echo 0 > exit
"""


def survey(folder: str, asked: Dict[str, List[str]]) -> Dict[str, Any]:
    """Return memory, cores and free space, and which of the asked things are missing."""
    memory = {}
    with open("/proc/meminfo") as file:
        for line in file:
            name, _, rest = line.partition(":")
            memory[name] = int(rest.split()[0]) * 1024
    there = folder
    while not os.path.isdir(there):
        there = os.path.dirname(there)
    installed = set()
    if asked["packages"] and shutil.which("dpkg-query"):
        argv = ["dpkg-query", "--show", "--showformat", "${Package} ${db:Status-Status}\n"]
        done = subprocess.run(argv, stdout=subprocess.PIPE, check=True)
        for line in done.stdout.decode("utf-8", "replace").splitlines():
            name, _, status = line.partition(" ")
            if status == "installed":
                installed.add(name)
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": memory["MemAvailable"],
        "swap_bytes": memory.get("SwapFree", 0),
        "free_bytes": shutil.disk_usage(there).free,
        "missing_paths": [path for path in asked["paths"] if not glob.glob(path)],
        "missing_packages": [name for name in asked["packages"] if name not in installed],
    }


def lock(folder: str, kind: int = fcntl.LOCK_EX, wait_s: float = 0.0) -> Optional[int]:
    """Return a file that holds the build's lock; None if a build holds it.

    The build's shell inherits it: it is held until that has ended. Who only looks shares it.
    """
    deadline = time.monotonic() + wait_s
    handle = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT, 0o600)
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
            return handle
        if time.monotonic() >= deadline:
            os.close(handle)
            return None
        time.sleep(0.05)


def start(folder: str, steps: List[List[str]]) -> None:
    """Start the build, detached; nothing happens if it runs or has ended well."""
    os.makedirs(os.path.join(folder, "done"), exist_ok=True)
    handle = lock(folder, wait_s=LOOK_S)
    if handle is None or read(folder, "exit") == "0":
        return
    scripts = os.path.join(folder, "steps")
    shutil.rmtree(scripts, ignore_errors=True)
    os.makedirs(scripts)
    for number, (name, script) in enumerate(steps):
        write(os.path.join(scripts, "%02d-%s.sh" % (number, name)), script)
    program = os.path.join(folder, "build.sh")
    write(program, BUILD)
    for name in ("exit", "failed"):
        if os.path.exists(os.path.join(folder, name)):
            os.remove(os.path.join(folder, name))
    with open(os.path.join(folder, "log"), "ab") as log:
        child = subprocess.Popen(
            ["/bin/sh", program],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=[handle],
        )
    write(os.path.join(folder, "pid"), str(child.pid))


def look(folder: str, log_from: int) -> Dict[str, Any]:
    """Return how the build stands, and the end of what the log has from an offset on."""
    handle = lock(folder, fcntl.LOCK_SH) if os.path.isdir(folder) else None
    exists = os.path.exists(os.path.join(folder, "log"))
    runs = exists and handle is None
    if handle is not None:
        os.close(handle)
    log, size = b"", 0
    if exists:
        with open(os.path.join(folder, "log"), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(min(log_from, size), size - LOG_BYTES))
            log = file.read()
    code = read(folder, "exit")
    return {
        "runs": runs,
        "exit_code": int(code) if code and not runs else None,
        "failed": read(folder, "failed"),
        "done": sorted(os.listdir(os.path.join(folder, "done"))) if exists else [],
        "log": log.decode("utf-8", "replace"),
        "log_bytes": size,
    }


def stop(folder: str) -> None:
    """Kill the build, and wait until it has gone."""
    if not os.path.isdir(folder):
        return
    handle = lock(folder, wait_s=LOOK_S)
    if handle is None:
        pid = read(folder, "pid")
        if not is_build(pid, folder):
            sys.exit("the build in %s is just beginning or ending: try again" % folder)
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(pid), number)
            deadline = time.monotonic() + STOP_S
            while handle is None and time.monotonic() < deadline:
                time.sleep(0.1)
                handle = lock(folder)
    if handle is None:
        sys.exit("the build in %s does not end" % folder)
    os.close(handle)


def is_build(pid: str, folder: str) -> bool:
    """Return whether a process is the build's shell: another may have got its number."""
    try:
        with open("/proc/%s/cmdline" % pid, "rb") as file:
            return os.path.join(folder, "build.sh").encode() in file.read().split(b"\0")
    except OSError:
        return False


def read(folder: str, name: str) -> str:
    """Return what a small file has; empty if there is none."""
    try:
        with open(os.path.join(folder, name)) as file:
            return file.read().strip()
    except FileNotFoundError:
        return ""


def write(path: str, text: str) -> None:
    """Write a file whole or not at all."""
    with open(path + ".partial", "w") as file:
        file.write(text)
    os.replace(path + ".partial", path)


def main(command: str, folder: str, asked: Dict[str, Any]) -> None:
    """Do one command and print its answer."""
    answer = {}  # type: Dict[str, Any]
    if command == "survey":
        answer = survey(folder, asked)
    elif command == "start":
        start(folder, asked["steps"])
    elif command == "look":
        answer = look(folder, asked["log_from"])
    else:
        stop(folder)
        if command == "remove":
            shutil.rmtree(folder, ignore_errors=True)
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.load(sys.stdin))
