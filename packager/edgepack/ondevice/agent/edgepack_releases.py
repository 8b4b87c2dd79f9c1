"""A project's folder on this device: its releases, which one is current, the history.

``current`` is a relative symlink that is replaced in one rename. ``history.jsonl`` records what was
done and by whom, each line with the hash of the one before.

The host sends it in front of ``edgepack_agent.py``. Needs Python 3.8 or newer, and nothing else.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

BLOCK_BYTES = 1 << 20
MANIFEST = "manifest.json"
PARTIAL = ".partial-"
SHA256_DIGITS = 64

Source = Tuple[str, Dict[str, Any]]
"""A folder that may have chunks, and where these lie: by file, its hash and its chunks."""


class Refused(Exception):  # noqa: N818
    """What came is not what was announced, or what is asked for is not there."""


class Gone(Refused):
    """Somebody else has removed a release since it was found whole."""


def hash_file(path: str) -> str:
    """Return the SHA-256 of a file in hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(BLOCK_BYTES), b""):
            digest.update(block)
    return digest.hexdigest()


def is_file(path: str) -> bool:
    """Return whether a file itself is there, and no link to one."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def list_files(manifest: bytes) -> List[Dict[str, Any]]:
    """Return the entries of a manifest's files."""
    try:
        found = json.loads(manifest.decode("utf-8"))["files"]
        return [{k: one[k] for k in ("path", "sha256", "size_bytes", "mode")} for one in found]
    except (ValueError, KeyError, TypeError) as error:
        raise Refused("the manifest cannot be read: %r" % error)  # noqa: B904  (3.8 has no use)


def is_whole(release: str, digest: str) -> bool:
    """Return whether a release is there with every byte of it."""
    manifest = os.path.join(release, MANIFEST)
    try:
        if not is_file(manifest) or hash_file(manifest) != digest:
            return False
        with open(manifest, "rb") as file:
            entries = list_files(file.read())
        paths = {entry["path"]: os.path.join(release, entry["path"]) for entry in entries}
        return all(is_file(path) for path in paths.values()) and all(
            hash_file(paths[entry["path"]]) == entry["sha256"] for entry in entries
        )
    except FileNotFoundError:
        return False  # somebody else removes it meanwhile


def sync(path: str) -> None:
    """Make a file's content, or the names in a folder, survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def find_inside(folder: str, name: str) -> str:
    """Return where a file goes, which is inside the folder."""
    parts = name.split("/")
    if name.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise Refused("the path %r leaves the bundle" % name)
    return os.path.join(folder, *parts)


class Project:
    """A project's folder on this device."""

    def __init__(self, root: str, name: str, by: str) -> None:
        self.by = by
        self.base = os.path.join(os.path.expanduser(root), name)
        self.releases = os.path.join(self.base, "releases")
        self.tables = os.path.join(self.base, "chunks")

    def read_current(self) -> Optional[str]:
        """Return the name of the current release."""
        try:
            return os.path.basename(os.readlink(os.path.join(self.base, "current")))
        except OSError:
            return None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep others from switching, and from removing releases."""
        handle = os.open(os.path.join(self.base, ".lock"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def point_at(self, release: str, action: str) -> Optional[str]:
        """Make a release the current one, in one step, and return which one was."""
        with self.locked():
            # Whoever pushes or goes back meanwhile may have removed it, and only under the lock.
            if not is_file(os.path.join(self.releases, release, MANIFEST)):
                raise Gone("the release %s is not here any more" % release)
            before = self.read_current()
            if before != release:
                link = os.path.join(self.base, ".next")
                with contextlib.suppress(FileNotFoundError):
                    os.remove(link)  # of a switch that was cut off
                os.symlink(os.path.join("releases", release), link)
                # The history comes first: if this is cut off in between, the earlier release is
                # still current, and the next switch records it again.
                self.log(action, release, before)
                os.replace(link, os.path.join(self.base, "current"))
                sync(self.base)
        return before

    def log(self, action: str, release: str, before: Optional[str]) -> None:
        """Append to the history; the lock is held."""
        lines = self.read_history()
        record = {
            "previous": hashlib.sha256(lines[-1]).hexdigest() if lines else "",
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "action": action,
            "release": release,
            "from": before,
            "by": self.by,
        }
        with open(os.path.join(self.base, "history.jsonl"), "ab") as file:
            # A line that a crash has cut off stays one of its own, for whoever checks the chain.
            torn = bool(lines) and not lines[-1].endswith(b"\n")
            file.write((b"\n" if torn else b"") + json.dumps(record).encode("ascii") + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def read_history(self) -> List[bytes]:
        """Return the lines of the history, each with its end."""
        try:
            with open(os.path.join(self.base, "history.jsonl"), "rb") as file:
                return file.readlines()
        except FileNotFoundError:
            return []

    def read_records(self) -> List[Dict[str, Any]]:
        """Return the history's records that can be read, the last one first."""
        found = []
        for line in reversed(self.read_history()):
            with contextlib.suppress(ValueError):
                found.append(json.loads(line.decode("utf-8")))
        return [one for one in found if isinstance(one, dict)]

    def find_before(self) -> str:
        """Return the release that was current before the current one was switched to."""
        now = self.read_current()
        for one in self.read_records():
            if one.get("action") == "switch" and one.get("release") == now and one.get("from"):
                return str(one["from"])
        raise Refused("no release was current before %s, which stays current" % now)

    def find_sources(self, partial: str) -> List[Source]:
        """Return folders that may have chunks, with where these lie: the given one first."""
        found = []
        for name in sorted(os.listdir(self.releases), key=lambda name: name != partial):
            path = self.find_table(name)
            with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
                table = json.loads(file.read().decode("utf-8"))["files"]
                found.append((os.path.join(self.releases, name), table))
        return found

    def find_table(self, name: str) -> str:
        """Return where the table of a folder's chunks is kept."""
        return os.path.join(self.tables, name + ".json")

    def remove(self, name: str) -> None:
        """Remove a release; what is left if this is cut off is a partial one."""
        gone = PARTIAL + "gone-" + os.urandom(16).hex()
        with contextlib.suppress(FileNotFoundError):
            os.rename(os.path.join(self.releases, name), os.path.join(self.releases, gone))
        self.discard(gone)

    def discard(self, partial: str) -> None:
        """Remove what a push has left: its folder, or a signature that did not get its place."""
        path = os.path.join(self.releases, partial)
        if is_file(path):
            os.remove(path)
        else:
            shutil.rmtree(path, ignore_errors=True)

    def discard_broken(self) -> None:
        """Remove what broken pushes left: nobody holds their folders."""
        for name in os.listdir(self.releases):
            if name.startswith(PARTIAL):
                with self.claimed(name) as mine:
                    if mine:
                        self.discard(name)

    def collect_garbage(self, keep: int, newest: str) -> None:
        """Remove what broken pushes left, and all but the last releases that were current."""
        with self.locked():
            there = os.listdir(self.releases)
            self.discard_broken()
            now = self.read_current()
            recent = [str(one.get("release")) for one in self.read_records()]
            order = [name for name in dict.fromkeys([newest, now, *recent, *there]) if name]
            releases = [n for n in order if n in there and not n.startswith(PARTIAL)]
            for name in releases[max(keep, 2 if now not in (None, newest) else 1) :]:
                self.remove(name)
            # The tables first: a push makes its folder before its table.
            tables = os.listdir(self.tables)
            left = os.listdir(self.releases)
            for table in tables:
                if table.partition(".json")[0] not in left:
                    os.remove(os.path.join(self.tables, table))
            self.remove_caches(left)

    def remove_caches(self, releases: List[str]) -> None:
        """Remove engines and compiled models, by their models' hashes, that no release has."""
        cache = os.path.join(self.base, "cache")
        if not os.path.isdir(cache):
            return
        manifests = b""
        for name in releases:
            path = os.path.join(self.releases, name, MANIFEST)
            with contextlib.suppress(OSError), open(path, "rb") as file:
                manifests += file.read()
        for model in os.listdir(cache):
            if len(model) == SHA256_DIGITS and model.encode() not in manifests:
                shutil.rmtree(os.path.join(cache, model), ignore_errors=True)

    @contextlib.contextmanager
    def claimed(self, partial: str) -> Iterator[bool]:
        """Lock a push's folder unless that push still runs, and say whether it is locked now."""
        path = os.path.join(self.releases, partial)
        handle = -1
        try:
            handle = os.open(path, os.O_RDONLY)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # It may have become a release in between.
            mine = os.path.exists(path)
        except (FileNotFoundError, BlockingIOError):
            mine = False
        try:
            yield mine
        finally:
            if handle >= 0:
                os.close(handle)
