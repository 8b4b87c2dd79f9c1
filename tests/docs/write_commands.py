"""Write docs/commands.md: every command with its help, its function, and the exit codes.

Run it after changing a command: ``.venv/bin/python -m tests.docs.write_commands``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edgepack.cli.app import app
from edgepack.cli.main import HUNG_UP, INTERRUPTED, READER_GONE, TERMINATED
from edgepack.errors import BugError, EdgepackError
from typer.main import get_command

PAGE = Path(__file__).resolve().parents[2] / "docs" / "commands.md"
COLUMNS = 100
FUNCTIONS = {
    "init": "init",
    "inspect": "inspect",
    "build": "build",
    "verify": "verify",
    "try": "try_bundle",
    "sign": "sign",
    "export": "export_bundle",
    "serve": "serve",
    "publish": "publish",
    "fetch": "fetch",
    "push": "push",
    "bench": "bench",
    "optimize": "optimize",
    "tune": "tune",
    "evaluate": "evaluate",
    "compare": "compare",
    "explain": "explain_run",
    "report": "report",
    "rollback": "rollback",
    "demo": "demo",
    "targets list": "list_targets",
    "targets prove": "prove",
    "targets show": "show_target",
    "targets check": "check_target",
    "targets schema": "make_target_schema",
    "device list": "load_devices",
    "device add": "add_device",
    "device share": "share_device",
    "device remove": "remove_device",
    "device import": "import_devices",
    "device trust": "trust_device",
    "device check": "check_device",
    "device wheels": "Wheelhouse",
    "device provision": "provision_device",
    "device lease": "lease_device",
    "device release": "release_device",
    "device who": "list_leases",
    "device power": "switch_power",
    "device verify": "verify_device",
    "device enroll": "enroll_device",
    "device unenroll": "unenroll_device",
    "device pulled": "list_pulled",
    "device stats": "read_stats",
    "runs list": "list_runs",
    "runs show": "show_run",
    "runs prune": "prune_runs",
    "runs import": "import_runs",
    "runs changes": "find_changes",
    "runs export": "export_runs",
    "rollout list": "list_rollouts",
    "rollout status": "read_rollout",
    "rollout resume": "resume_rollout",
    "rollout abort": "abort_rollout",
    "channel show": "list_tags",
    "jobs add": "JobQueue",
    "jobs list": "JobQueue",
    "jobs show": "JobQueue",
    "jobs cancel": "JobQueue",
    "jobs retry": "JobQueue",
    "jobs wait": "wait_for_jobs",
    "jobs work": "work_on_jobs",
    "audit export": "read_audit_log",
    "audit verify": "verify_audit_log",
    "converter list": "list_converters",
    "converter install": "install_converter",
    "runtime list": "RuntimeStore",
    "runtime show": "RuntimeStore",
    "runtime add": "RuntimeStore",
    "runtime build": "build_runtime",
    "runtime remove": "RuntimeStore",
    "runtime export": "RuntimeStore",
}
"""Each command, and the function of ``edgepack.api`` that does what it does."""
BEGINNING = """# Commands

<!-- Written by tests/docs/write_commands.py from the commands' own --help. -->

Every command, as `edgepack COMMAND --help` prints it, and the function of
[`edgepack.api`](api.md) that does the same from Python.

"""
OTHER_CODES = {
    0: "done",
    BugError.exit_code: "a bug in edgepack; the message has what is needed to report it",
    HUNG_UP: "SIGHUP: the terminal is gone",
    INTERRUPTED: "Ctrl-C; nothing half-written is left",
    READER_GONE: "whoever read the output has gone, as in `edgepack runs list \\| head -1`",
    TERMINATED: "SIGTERM",
}
OF_COMMANDS = {
    7: "`audit verify`: the log was altered",
    8: "of a rollout: devices are pending, and none failed; `jobs wait`: a job has not ended yet",
    9: "of a rollout: devices failed",
    10: "`compare` says FAIL; `runs changes --gate` found a slower model or device; of"
    " `publish --measured`: a limit is missed",
    11: "`compare` says INCONCLUSIVE; `bench` says INVALID; of `publish --measured`: no VALID"
    " benchmark is kept",
}
"""What else an exit code says, of some commands."""


def command_names() -> list[str]:
    """Return all commands, as they are typed after ``edgepack``."""
    return [" ".join(words) for words, command in _commands() if not _children(command)]


def page_text() -> str:
    """Return the page as it is committed."""
    return BEGINNING + "\n".join(_sections()) + "\n" + _exit_codes()


def _children(command):
    return getattr(command, "commands", {})


def _commands(words=(), command=None) -> Iterator[tuple[tuple[str, ...], Any]]:
    command = command or get_command(app)
    if words:
        yield words, command
    for name, child in _children(command).items():
        yield from _commands((*words, name), child)


def _sections() -> Iterator[str]:
    groups = [each for each in _commands() if _children(each[1])]
    inside = {words for words, command in groups}
    for words, command in _commands():
        if words in inside:
            yield f"## edgepack {' '.join(words)}\n\n{command.help}\n"
        else:
            level = "###" if words[:-1] in inside else "##"
            name = " ".join(words)
            function = FUNCTIONS[name]
            link = f"[`{function}`](api.md#{function.lower()})"
            yield f"{level} edgepack {name}\n\nFrom Python: {link}\n"
            yield f"```text\n{_help(words, command)}\n```\n"


def _help(words, command) -> str:
    context = command.context_class(
        command,
        info_name=f"edgepack {' '.join(words)}",
        terminal_width=COLUMNS,
        max_content_width=COLUMNS,
        help_option_names=["-h", "--help"],
    )
    lines = command.get_help(context).splitlines()
    return "\n".join(line.rstrip() for line in lines)


def _exit_codes() -> str:
    errors = {}
    for kind in EdgepackError.__subclasses__():
        first = (kind.__doc__ or "").splitlines()[0].rstrip(".")
        more = f"; {OF_COMMANDS[kind.exit_code]}" if kind.exit_code in OF_COMMANDS else ""
        errors[kind.exit_code] = f"`{kind.__name__}`: {first[0].lower()}{first[1:]}{more}"
    rows = {**OTHER_CODES, **errors}
    table = "\n".join(f"| {code} | {rows[code]} |" for code in sorted(rows))
    return (
        "## Exit codes\n\nAn error is printed on stderr with a hint, and the exit code says of"
        " which kind it is. In Python it is the error itself,\nwhose `exit_code` is the same.\n\n"
        f"| code | meaning |\n|--:|---|\n{table}\n"
    )


def main() -> None:
    """Write the page."""
    PAGE.write_text(page_text(), encoding="utf-8")


if __name__ == "__main__":
    main()
