"""What a device that pulls is told and remembers, in ``ROOT/.pull/PROJECT/``.

``settings.json`` and ``credentials.json`` are written at enrolment, ``allowed_signers`` and
``ca.pem`` beside them. ``state.json`` is the agent's: it is replaced in one step and synced,
because the highest sequence that was seen must not be forgotten, unless a signer is pinned no more:
it may be that signer's. ``report.json`` has the counters of reports, which a power cut may take.

Needs Python 3.8 or newer, and nothing else.
"""

import json
import os
import stat
import urllib.request
from typing import Any, Dict, List, Optional

if __package__:
    from .edgepack_registry import Login, Problem
else:
    from edgepack_registry import (  # type: ignore[import-not-found,no-redef]
        Login,
        Problem,
    )

SCHEMA_VERSION = 1
MOST_BAD = 20
"""Releases that are remembered as bad, of each channel."""
REPORT_S = 30.0
RESULTS = (
    "installed",
    "unchanged",
    "offline",
    "registry",
    "denied",
    "tls",
    "clock",
    "missing",
    "corrupt",
    "unsigned",
    "replayed",
    "older",
    "bad",
    "self-test",
    "health",
    "busy",
    "disk-full",
    "settings",
    "failed",
)
"""How a run can end."""


def read_json(path: str) -> Dict[str, Any]:
    """Return a JSON object of a file.

    Raises:
        Problem: It is none.
    """
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read().decode("utf-8"))
    except (OSError, ValueError) as error:
        raise Problem("settings", "%s cannot be read: %s" % (path, error)) from None
    if not isinstance(found, dict) or found.get("schema_version") != SCHEMA_VERSION:
        raise Problem("settings", "%s is of another version: enroll the device again" % path)
    return found


def read_lines(path: str) -> List[str]:
    """Return the lines of a file that are no comments.

    Raises:
        Problem: It cannot be read.
    """
    try:
        with open(path, "rb") as file:
            lines = file.read().decode("utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise Problem("settings", "%s cannot be read: %s" % (path, error)) from None
    return [line.strip() for line in lines if line.strip() and line.strip()[0] != "#"]


def write_json(path: str, document: Dict[str, Any], mode: int = 0o644) -> None:
    """Replace a file in one step, so that it survives a power cut."""
    write_file(path, json.dumps(document, indent=1, sort_keys=True).encode("ascii") + b"\n", mode)


def write_file(path: str, content: bytes, mode: int = 0o644, *, synced: bool = True) -> None:
    """Replace a file in one step; with ``synced``, it survives a power cut."""
    partial = "%s.%s.part" % (path, os.urandom(8).hex())
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            if synced:
                os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError:
        os.unlink(partial)
        raise
    if synced:
        folder = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class Folder:
    """What is kept for one project.

    Raises:
        Problem: ``settings`` if it cannot be read.
    """

    def __init__(self, root: str, project: str) -> None:
        self.root = os.path.abspath(os.path.expanduser(root))
        self.path = os.path.join(self.root, ".pull", project)
        self.settings = read_json(self.find("settings.json"))
        self.credentials = self._read_credentials()

    def find(self, name: str) -> str:
        """Return the path of a file."""
        return os.path.join(self.path, name)

    @property
    def ca(self) -> Optional[str]:
        """The file of certificates to trust, if one was given."""
        return self.find("ca.pem") if os.path.exists(self.find("ca.pem")) else None

    @property
    def login(self) -> Optional[Login]:
        """The login at the registry, if one was given."""
        if "password" not in self.credentials:
            return None
        return Login(self.credentials.get("username", ""), self.credentials["password"])

    def read_state(self) -> "State":
        """Return what is remembered; the caller keeps other runs off.

        Raises:
            Problem: ``settings`` if it or the signers cannot be read.
        """
        try:
            channel = "%(registry)s/%(repository)s:%(channel)s" % self.settings
        except KeyError as error:
            raise Problem("settings", "settings.json says no %s" % error) from None
        return State(self.find("state.json"), channel, read_lines(self.find("allowed_signers")))

    def _read_credentials(self) -> Dict[str, Any]:
        path = self.find("credentials.json")
        if not os.path.exists(path):
            return {}
        mode = stat.S_IMODE(os.stat(path).st_mode)
        if mode & 0o077:
            raise Problem(
                "settings",
                "others may read %s (mode %o): chmod 600, and change them" % (path, mode),
            )
        return read_json(path)


class State:
    """What must not be forgotten: sequences that were seen, releases that were bad.

    It is forgotten when one of the signers that were pinned before is not any more.
    """

    def __init__(self, path: str, channel: str, signers: List[str]) -> None:
        self.path = path
        self.name = channel
        self.document = (
            read_json(path)
            if os.path.exists(path)
            else {"schema_version": SCHEMA_VERSION, "channels": {}, "trial": None}
        )
        if set(self.document.get("signers", signers)) - set(signers):
            self.document["channels"] = {}
        self.document["signers"] = signers
        self.channel: Dict[str, Any] = self.document["channels"].setdefault(
            channel, {"sequence": 0, "release": "", "settled": "", "bad": {}}
        )

    @property
    def trial(self) -> Optional[Dict[str, Any]]:
        """The release that was switched to and is not proven yet."""
        found: Optional[Dict[str, Any]] = self.document["trial"]
        return found

    def write(self, **changes: Any) -> None:
        """Change what is known of the channel, and ``trial``; it is on the disk then."""
        if "trial" in changes:
            self.document["trial"] = changes.pop("trial")
        self.channel.update(changes)
        write_json(self.path, self.document)

    def find_bad(self, release: str, sequence: int) -> str:
        """Return why a release is not tried again under a sequence; nothing if it may be."""
        known, why = self.channel["bad"].get(release, (0, ""))
        return str(why) if sequence <= known else ""

    def add_bad(self, release: str, sequence: int, why: str) -> Dict[str, Any]:
        """Return the bad releases with one more, without the oldest."""
        others = {key: value for key, value in self.channel["bad"].items() if key != release}
        return dict([*others.items(), (release, (sequence, why[:300]))][-MOST_BAD:])


def format_metrics(facts: Dict[str, Any]) -> str:
    """Return a report in Prometheus' text format, for node_exporter's textfile collector."""
    project = '{project="%s"}' % escape(facts["project"])
    lines = [
        "# HELP edgepack_pull_info Which release is current, and which channel the device follows.",
        "# TYPE edgepack_pull_info gauge",
        "edgepack_pull_info{%s} 1"
        % ",".join(
            '%s="%s"' % (key, escape(facts[key]))
            for key in ("project", "registry", "repository", "channel", "release", "version")
        ),
    ]
    for name, kind, text in METRICS:
        if facts.get(name) is not None:
            lines += [
                "# HELP edgepack_pull_%s %s" % (name, text),
                "# TYPE edgepack_pull_%s %s" % (name, kind),
                "edgepack_pull_%s%s %s" % (name, project, facts[name]),
            ]
    lines += [
        "# HELP edgepack_pull_runs_total Runs by how they ended.",
        "# TYPE edgepack_pull_runs_total counter",
        *(
            'edgepack_pull_runs_total{project="%s",result="%s"} %d'
            % (escape(facts["project"]), result, facts["runs"].get(result, 0))
            for result in RESULTS
        ),
        "# HELP edgepack_pull_result 1 for how the last run ended.",
        "# TYPE edgepack_pull_result gauge",
        *(
            'edgepack_pull_result{project="%s",result="%s"} %d'
            % (escape(facts["project"]), result, facts["result"] == result)
            for result in RESULTS
        ),
    ]
    return "\n".join(lines) + "\n"


METRICS = (
    ("sequence", "gauge", "The highest signed sequence of the channel that was seen."),
    ("follows", "gauge", "1 if the current release is the one of the highest sequence."),
    ("run_timestamp_seconds", "gauge", "When the last run ended, by the device's clock."),
    ("contact_timestamp_seconds", "gauge", "When the registry last answered."),
    ("success_timestamp_seconds", "gauge", "When a run last ended with the channel's release."),
    ("clock_offset_seconds", "gauge", "By how much the registry's clock is ahead."),
    ("received_bytes_total", "counter", "Bytes of the registry's answers."),
    ("requests_total", "counter", "Requests to the registry."),
)


def escape(value: object) -> str:
    """Return a label's value (Prometheus, "Text-based format")."""
    return str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def post(url: str, facts: Dict[str, Any], token: Optional[str]) -> None:
    """Send a report to an address of the operator's.

    Raises:
        OSError: It was not taken.
    """
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(  # noqa: S310  (enrolment takes http and https)
        url, json.dumps(facts).encode("ascii"), headers
    )
    if token:
        request.add_unredirected_header("Authorization", "Bearer " + token)
    with urllib.request.urlopen(request, timeout=REPORT_S):  # noqa: S310
        pass
