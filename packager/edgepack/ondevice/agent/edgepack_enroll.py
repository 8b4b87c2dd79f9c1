"""Make this device pull a project from a registry, or no more, and say how that goes.

Runs on the device with nothing but Python 3.8; its arguments are ``ROOT DO``. ``enroll`` and
``unenroll`` read a line with a length and so long a JSON document from stdin; ``show`` reads
nothing. The answer is one JSON line.

``enroll`` writes the agent's programs into a folder of their version and starts a timer: of the
system where root runs this, of the user else. Where systemd does not run it answers with the line
for cron instead. Credentials (for nobody else to read), signers and settings come last, each in one
step: what fails before leaves the device pulling as it did. What the device remembers stays; the
agent forgets the highest sequence if a signer is pinned no more.

Exit codes: 0 done, 2 the device cannot do it, 28 no space left, 1 other.
"""

import contextlib
import errno
import hashlib
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Any, Dict, List, Optional, Tuple

if __package__:
    from . import edgepack_channel as channels
    from .edgepack_registry import Problem
    from .edgepack_releases import Project
    from .edgepack_state import read_json, write_file, write_json
else:
    import edgepack_channel as channels  # type: ignore[import-not-found,no-redef]
    from edgepack_registry import Problem  # type: ignore[import-not-found,no-redef]
    from edgepack_releases import Project  # type: ignore[import-not-found,no-redef]
    from edgepack_state import (  # type: ignore[import-not-found,no-redef]
        read_json,
        write_file,
        write_json,
    )

BOOTED = "/run/systemd/system"
"""It exists where systemd runs the system: sd_booted(3)."""
SYSTEM_UNITS = "/etc/systemd/system"
COMMAND_S = 60.0
TOLD = ("registry", "repository", "channel", "project", "target", "every_s", "device")
PRIVILEGED = ("sudo", "doas", "su", "pkexec")
"""Programs that a unit without new privileges cannot run."""

SERVICE = """[Unit]
Description=edgepack: pull {project} from its channel
{network}
[Service]
Type=oneshot
ExecStart={command}
SuccessExitStatus=75
TimeoutStartSec=12h
Nice=10
UMask=0022
{hardening}"""
NETWORK = """Wants=network-online.target
After=network-online.target
"""
HARDENING = """NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native
"""
SYSTEM_HARDENING = """ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
ReadWritePaths={writable}
"""
# By time since the last run and not by the clock, which may be wrong by years.
TIMER = """[Unit]
Description=edgepack: when {project} is pulled

[Timer]
OnActiveSec=30s
OnUnitInactiveSec={every_s}s
RandomizedDelaySec={spread_s}s

[Install]
WantedBy=timers.target
"""


def quote_word(text: str) -> str:
    """Return a word of ``ExecStart`` (systemd.service(5), "Command lines")."""
    for char, written in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$")):
        text = text.replace(char, written)
    return '"%s"' % text


def quote_path(text: str) -> str:
    """Return a path of a setting that takes several."""
    for char, written in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%")):
        text = text.replace(char, written)
    return '"%s"' % text


def make_units(
    argv: List[str], settings: Dict[str, Any], root: str, *, is_system: bool
) -> Dict[str, str]:
    """Return the unit files by name."""
    project = settings["project"]
    hooks = " ".join(" ".join(settings.get(key) or []) for key in ("after_switch", "health"))
    hardening = HARDENING
    # Also within what a hook gives to a shell.
    if any(os.path.basename(word) in PRIVILEGED for word in re.split(r"[^\w./-]+", hooks)):
        hardening = ""
    if is_system:
        # With "-", a folder that is gone does not keep the unit from starting (systemd.exec(5)).
        writable = [root, *(["-" + settings["textfile"]] if settings.get("textfile") else [])]
        hardening += SYSTEM_HARDENING.format(writable=" ".join(map(quote_path, writable)))
    name = "edgepack-pull@%s" % project
    every_s = int(settings["every_s"])
    return {
        name + ".service": SERVICE.format(
            project=project,
            command=" ".join(map(quote_word, argv)),
            network=NETWORK if is_system else "",
            hardening=hardening,
        ),
        name + ".timer": TIMER.format(project=project, every_s=every_s, spread_s=every_s // 2),
    }


def make_cron_line(argv: List[str], every_s: int) -> str:
    """Return a line of a crontab that runs the agent about as often."""
    minutes = max(1, every_s // 60)
    when = "*/%d * * * *" % minutes if minutes < 60 else "0 */%d * * *" % min(23, minutes // 60)
    words = " ".join("'%s'" % word.replace("'", "'\\''").replace("%", "\\%") for word in argv)
    return "%s %s --jitter %d >/dev/null 2>&1" % (when, words, every_s // 3)


class Scheduler:
    """The systemd that runs here: of the system for root, of the user else."""

    def __init__(self) -> None:
        self.is_system = os.getuid() == 0
        home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
        self.units = SYSTEM_UNITS if self.is_system else os.path.join(home, "systemd", "user")
        self.systemctl = ["systemctl", *([] if self.is_system else ["--user"]), "--no-ask-password"]
        runtime = "/run/user/%d" % os.getuid()
        if not self.is_system and "XDG_RUNTIME_DIR" not in os.environ:
            os.environ["XDG_RUNTIME_DIR"] = runtime  # a login by SSH may have none

    def prepare(self) -> str:
        """Raise unless it answers: that of a user may not run. Return what is still to be done."""
        left = ""
        # Else the timer of a user ends with the user's last login.
        if not self.is_system and run(["loginctl", "--no-ask-password", "enable-linger"])[0]:
            user = pwd.getpwuid(os.getuid()).pw_name
            left = "it runs only while %s is logged in, until root does this there:" % user
            left += " loginctl enable-linger %s" % user
        self.ask("show", "--property=Version")
        return left

    def start(self, units: Dict[str, str]) -> None:
        """Write unit files and start the timer."""
        os.makedirs(self.units, exist_ok=True)
        for name, text in units.items():
            write_file(os.path.join(self.units, name), text.encode("utf-8"))
        self.ask("daemon-reload")
        [timer] = [name for name in units if name.endswith(".timer")]
        self.ask("enable", timer)
        self.ask("restart", timer)

    def stop(self, project: str) -> None:
        """Stop the timer and remove the unit files."""
        names = ["edgepack-pull@%s.%s" % (project, kind) for kind in ("timer", "service")]
        for name in names:
            if os.path.exists(os.path.join(self.units, name)):
                if name.endswith(".timer"):
                    self.ask("disable", "--now", name)
                os.remove(os.path.join(self.units, name))
        self.ask("daemon-reload")

    def ask(self, *words: str) -> None:
        """Run systemctl."""
        code, said = run([*self.systemctl, *words])
        if code:
            raise Problem("settings", "systemctl %s: %s" % (" ".join(words), said))


def run(argv: List[str]) -> Tuple[int, str]:
    """Return a program's exit code and its last words."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, str(error)
    return done.returncode, done.stdout.decode("utf-8", "replace").strip()[-300:]


def find_scheduler() -> Optional[Scheduler]:
    """Return the systemd of this system, if it runs."""
    return Scheduler() if os.path.isdir(BOOTED) and shutil.which("systemctl") else None


def write_programs(folder: str, sources: Dict[str, str]) -> str:
    """Put the agent's programs into a folder of their version; return the path to run them by."""
    joined = json.dumps(sources, sort_keys=True).encode("utf-8")
    version = hashlib.sha256(joined).hexdigest()[:16]
    os.makedirs(folder, exist_ok=True)
    if not os.path.isdir(os.path.join(folder, version)):
        partial = tempfile.mkdtemp(prefix=".part-", dir=folder)
        for name, text in sources.items():
            write_file(os.path.join(partial, name), text.encode("utf-8"))
        with contextlib.suppress(FileExistsError):  # another enrolment has just made it
            os.rename(partial, os.path.join(folder, version))
    current = os.path.join(folder, "current")
    before = os.readlink(current) if os.path.islink(current) else version
    link = os.path.join(folder, ".link-" + os.urandom(8).hex())
    os.symlink(version, link)
    os.replace(link, current)
    for name in os.listdir(folder):  # a run that is in progress may still read the one before
        if name not in (version, before, "current"):
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
    return os.path.join(current, "edgepack_pull.py")


def require_usable(asked: Dict[str, Any]) -> None:
    """Raise unless this device can do what it is asked."""
    with tempfile.NamedTemporaryFile(prefix="edgepack-") as signers:
        signers.write(asked["signers"].encode("utf-8"))
        signers.flush()
        files = ["-f", signers.name, "-s", os.devnull]
        channels.run_ssh_keygen(["-Y", "find-principals", *files], b"")
    textfile = asked["settings"].get("textfile")
    if textfile and not (os.path.isdir(textfile) and os.access(textfile, os.W_OK)):
        raise Problem("settings", "this user cannot write into the folder %s" % textfile)


def enroll(root: str, asked: Dict[str, Any]) -> Dict[str, Any]:
    """Write all that a run reads, and have a timer make runs."""
    settings = asked["settings"]
    project = settings["project"]
    scheduler = find_scheduler()
    require_usable(asked)
    left = scheduler.prepare() if scheduler is not None else ""
    program = write_programs(os.path.join(root, ".pull", ".programs"), asked["programs"])
    argv = [sys.executable, "-BEsS", program, root, project]
    answer = {"timer": "none", "left": "", "cron": make_cron_line(argv, settings["every_s"])}
    if scheduler is not None:
        units = make_units(argv, settings, root, is_system=scheduler.is_system)
        scheduler.start(units)
        answer = {"timer": "system" if scheduler.is_system else "user", "left": left, "cron": ""}
    write_settings(os.path.join(root, ".pull", project), asked)
    return answer


def write_settings(folder: str, asked: Dict[str, Any]) -> None:
    """Write all that a run reads, one file right after the other."""
    os.makedirs(folder, exist_ok=True)
    os.chmod(folder, 0o700)
    for name, content, mode in (
        ("credentials.json", asked["credentials"], 0o600),
        ("ca.pem", asked["ca"], 0o644),
        ("allowed_signers", asked["signers"], 0o644),
    ):
        path = os.path.join(folder, name)
        if content is None:
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)
        else:
            write_file(path, content.encode("utf-8"), mode)
    write_json(os.path.join(folder, "settings.json"), asked["settings"])


def unenroll(root: str, project: str) -> Dict[str, Any]:
    """Stop pulling a project; its releases stay."""
    folder = os.path.join(root, ".pull", project)
    if not os.path.isdir(folder):
        raise Problem("settings", "%s is not pulled here" % project)
    scheduler = find_scheduler()
    if scheduler is not None:
        scheduler.stop(project)
    textfile: Any = None
    with contextlib.suppress(Problem):
        textfile = read_json(os.path.join(folder, "settings.json")).get("textfile")
    if textfile:
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(textfile, "edgepack_pull_%s.prom" % project))
    shutil.rmtree(folder)
    return {"cron": "" if scheduler else "take the line with edgepack_pull.py out of the crontab"}


def show(root: str) -> Dict[str, Any]:
    """Return what is pulled here, and how that goes; nothing that is secret."""
    found = []
    base = os.path.join(root, ".pull")
    for project in sorted(os.listdir(base)) if os.path.isdir(base) else []:
        folder = os.path.join(base, project)
        if project.startswith(".") or not os.path.isdir(folder):
            continue
        settings = read_json(os.path.join(folder, "settings.json"))
        facts: Dict[str, Any] = {key: settings.get(key) for key in TOLD}
        facts["release"] = Project(root, project, "").read_current() or ""
        with contextlib.suppress(Problem):  # it has made no run yet
            told = read_json(os.path.join(folder, "report.json"))
            for key in ("result", "detail", "sequence", "follows", "run_timestamp_seconds"):
                facts[key] = told.get(key)
        found.append(facts)
    return {"projects": found}


def main(root: str, do: str) -> Dict[str, Any]:
    """Do what is asked; return the answer."""
    root = os.path.abspath(os.path.expanduser(root))
    if do == "show":
        return show(root)
    size = int(sys.stdin.buffer.readline(32))
    asked = json.loads(sys.stdin.buffer.read(size).decode("utf-8"))
    return enroll(root, asked) if do == "enroll" else unenroll(root, asked["project"])


if __name__ == "__main__":
    try:
        print(json.dumps(main(*sys.argv[1:])))
    except Problem as problem:
        sys.stderr.write("%s\n" % problem)
        sys.exit(2)
    except OSError as problem:
        sys.stderr.write("%s\n" % problem)
        sys.exit(28 if problem.errno in (errno.ENOSPC, errno.EDQUOT) else 1)
