"""Hash the bundles on this device and report where they differ from their manifests.

Runs on the device with nothing but Python 3.8, its arguments being ``ROOT [PROJECT]``, changes
nothing and follows no link. It prints one JSON document: for each project its releases, with what
is missing, altered or added in them, where ``current`` points, and whether the history is an
unbroken chain: ``previous`` of each line is the SHA-256 of the line before, its end included. If a
crash cut a line off, the next line has the hash of it without an end.
"""

import hashlib
import json
import os
import re
import stat
import sys
from typing import Any, Dict, Iterator, Optional

MANIFEST = "manifest.json"
MOST = 100
"""Differences of one release that are listed; the others are counted."""


def make_printable(name: str) -> str:
    """Return a file name as text that every reader takes."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


def hash_file(path: str) -> str:
    """Return the SHA-256 of a file in hex."""
    digest = hashlib.sha256()
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def list_found(folder: str) -> Iterator[str]:
    """Yield all there is but folders, links to folders too, as paths in a manifest."""
    for place, folders, files in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        for name in links + files:
            yield os.path.relpath(os.path.join(place, name), folder)


def find_problem(path: str, entry: Dict[str, Any]) -> str:
    """Return how a file differs from its entry; nothing if it does not."""
    try:
        mode = os.lstat(path).st_mode
        if not stat.S_ISREG(mode):
            return "it is no plain file"
        if hash_file(path) != entry["sha256"]:
            return "its hash is another"
    except OSError as error:
        return "it cannot be read: %s" % error.strerror
    wanted = entry.get("mode")
    if wanted and (mode & 0o100 != 0) != (wanted == "755"):
        return "its mode is not %s" % wanted
    return ""


def read_listed(folder: str, digest: str) -> Dict[str, Dict[str, Any]]:
    """Return the files that a release should have, by path."""
    with open(os.path.join(folder, MANIFEST), "rb") as file:
        entries = {entry["path"]: entry for entry in json.loads(file.read().decode())["files"]}
    line = "%s  %s\n" % (digest, MANIFEST)
    entries[MANIFEST] = {"sha256": digest}
    entries[MANIFEST + ".sha256"] = {"sha256": hashlib.sha256(line.encode()).hexdigest()}
    return entries


def compare_release(folder: str) -> Dict[str, Any]:
    """Compare a release with its manifest, whose hash is the release's name."""
    name, digest = os.path.basename(folder), ""
    try:
        digest = hash_file(os.path.join(folder, MANIFEST))
        problem = "" if digest[:16] == name else "it is not the manifest of this release"
    except OSError as error:
        problem = "it cannot be read: %s" % error.strerror
    state = {"name": name, "digest": digest, "files": 0, "more": 0}
    if problem:
        return dict(state, differences=[{"path": MANIFEST, "kind": "altered", "why": problem}])
    entries = read_listed(folder, digest)
    found = set(list_found(folder)) - {MANIFEST + ".sig"}
    differences = []
    for path in sorted(found | set(entries)):
        kind, why = "", ""
        if path not in found:
            kind = "missing"
        elif path not in entries:
            kind = "added"
        else:
            why = find_problem(os.path.join(folder, path), entries[path])
            kind = "altered" if why else ""
        if kind:
            differences.append({"path": make_printable(path), "kind": kind, "why": why})
    more = max(0, len(differences) - MOST)
    return dict(state, files=len(entries), differences=differences[:MOST], more=more)


def check_history(path: str) -> Dict[str, Any]:
    """Return whether the history's lines follow each other, and what it says is current."""
    state = {"lines": 0, "broken_at": None, "current": None}  # type: Dict[str, Any]
    before, torn, links = b"", False, [""]
    try:
        with open(path, "rb") as file:
            for line in file:
                state["lines"] += 1
                one = parse_record(line)
                # A line that was cut off has no content; the next line's hash covers it.
                linked = not torn if one is None else one.get("previous") in links
                if not linked and state["broken_at"] is None:
                    state["broken_at"] = state["lines"]
                if one is not None and one.get("action") in ("switch", "rollback"):
                    state["current"] = make_printable(str(one.get("release")))
                before, torn = line, one is None
                links = [hashlib.sha256(end).hexdigest() for end in (line, line.rstrip(b"\n"))]
    except FileNotFoundError:
        pass
    if torn and before.endswith(b"\n") and state["broken_at"] is None:
        state["broken_at"] = state["lines"]
    return state


def parse_record(line: bytes) -> Optional[Dict[str, Any]]:
    """Return a line of the history; None if it is no record."""
    try:
        one = json.loads(line.decode("utf-8"))
    except ValueError:
        return None
    return one if isinstance(one, dict) else None


def find_project_state(base: str) -> Dict[str, Any]:
    """Return what a project has on this device."""
    releases = []
    for name in sorted(os.listdir(os.path.join(base, "releases"))):
        folder = os.path.join(base, "releases", name)
        if re.match("[0-9a-f]{16}$", name) and os.path.isdir(folder) and not os.path.islink(folder):
            state = compare_release(folder)
            if os.path.isdir(folder):  # a push may remove an old release meanwhile
                releases.append(state)
    try:
        current = make_printable(os.readlink(os.path.join(base, "current")))  # type: Optional[str]
    except OSError:
        current = None
    history = check_history(os.path.join(base, "history.jsonl"))
    name = make_printable(os.path.basename(base))
    return {"name": name, "releases": releases, "current": current, "history": history}


def main(root: str, project: str = "") -> None:
    """Print the state of everything under the root."""
    root = os.path.expanduser(root)
    names = sorted(os.listdir(root)) if os.path.isdir(root) else []
    names = [name for name in names if os.path.isdir(os.path.join(root, name, "releases"))]
    chosen = [name for name in names if project in ("", name)]
    projects = [find_project_state(os.path.join(root, name)) for name in chosen]
    print(json.dumps({"all": [make_printable(name) for name in names], "projects": projects}))


if __name__ == "__main__":
    main(*sys.argv[1:])
