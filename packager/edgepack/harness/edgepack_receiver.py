"""Take a bundle from stdin and put it in its place, whole or not at all.

Runs on the device as ``python3 -c SOURCE ROOT PROJECT DIGEST switch|stay`` with nothing but
Python 3.8. ``DIGEST`` is the SHA-256 of the bundle's manifest. It answers ``have`` or ``send`` on
stdout; after ``send`` it reads a tar stream whose first member is the manifest; at the end it
prints the release's path. Nothing becomes visible under ``releases/`` before every hash was
checked and every file synced; ``current`` is a relative symlink that is replaced in one rename.

Exit codes: 0 done, 2 the stream is not the bundle that was announced, 28 no space left, 1 other.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import signal
import sys
import tarfile
import time
import uuid
from typing import Any, BinaryIO, Dict

CHUNK_BYTES = 1 << 17
STALE_S = 3600
MANIFEST = "manifest.json"
UNLISTED = "manifest.json.sha256"


class Refused(Exception):  # noqa: N818
    """What came is not what was announced."""


def sha256_of(path: str) -> str:
    """Return the SHA-256 of a file in hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(CHUNK_BYTES), b""):
            digest.update(chunk)
    return digest.hexdigest()


def is_whole(release: str, digest: str) -> bool:
    """Say whether a release is there with every byte of it."""
    manifest = os.path.join(release, MANIFEST)
    if not os.path.isfile(manifest) or sha256_of(manifest) != digest:
        return False
    with open(manifest, "rb") as file:
        listed = json.load(file)["files"]
    for entry in listed:
        path = os.path.join(release, entry["path"])
        if not os.path.isfile(path) or sha256_of(path) != entry["sha256"]:
            return False
    return True


def remove_stale(releases: str) -> None:
    """Remove what crashed pushes left behind. A push that still runs holds a lock."""
    for name in os.listdir(releases):
        path = os.path.join(releases, name)
        if name.startswith(".partial-") and time.time() - os.stat(path).st_mtime > STALE_S:
            handle = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            except BlockingIOError:
                pass
            finally:
                os.close(handle)


def sync_folder(path: str) -> None:
    """Make the names in a folder survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def safe_path(folder: str, name: str) -> str:
    """Return where a member goes, which is inside the folder."""
    parts = name.split("/")
    if name.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise Refused("the path %r leaves the bundle" % name)
    return os.path.join(folder, *parts)


def write_member(source: Any, size: int, path: str) -> str:
    """Write one file, synced, and return its SHA-256."""
    digest = hashlib.sha256()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "xb") as file:
        while size:
            chunk = source.read(min(size, CHUNK_BYTES))
            if not chunk:
                raise Refused("the stream ends in the middle of %r" % os.path.basename(path))
            digest.update(chunk)
            file.write(chunk)
            size -= len(chunk)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def expected_files(path: str, digest: str) -> Dict[str, Dict[str, Any]]:
    """Read the manifest that came and return its files by path."""
    if sha256_of(path) != digest:
        raise Refused("the manifest is not the one that was announced")
    with open(path, "rb") as file:
        listed = {entry["path"]: entry for entry in json.load(file)["files"]}
    space = os.statvfs(os.path.dirname(path))
    needed = sum(entry["size_bytes"] for entry in listed.values())
    if needed > space.f_bavail * space.f_frsize:
        raise OSError(errno.ENOSPC, "the bundle needs %d bytes" % needed)
    return listed


def receive(stream: BinaryIO, folder: str, digest: str) -> None:
    """Read the tar stream into a folder and check all of it."""
    missing = {MANIFEST: {}}  # type: Dict[str, Dict[str, Any]]
    with tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK_BYTES) as archive:
        for member in archive:
            if not member.isreg():
                raise Refused("%r is not a plain file" % member.name)
            if member.name not in missing:
                raise Refused("%r is not in the manifest, or came twice" % member.name)
            entry = missing.pop(member.name)
            path = safe_path(folder, member.name)
            found = write_member(archive.extractfile(member), member.size, path)
            os.chmod(path, 0o755 if entry.get("mode") == "755" else 0o644)
            if member.name == MANIFEST:
                missing = expected_files(path, digest)
                missing[UNLISTED] = {}
            elif entry.get("sha256", found) != found:
                raise Refused("the hash of %r is wrong" % member.name)
    if missing:
        raise Refused("the stream ends before %r" % sorted(missing)[0])
    for place, _, _ in os.walk(folder):
        sync_folder(place)


def install(stream: BinaryIO, releases: str, digest: str) -> None:
    """Receive a release beside the others and rename it into its place."""
    final = os.path.join(releases, digest[:16])
    partial = os.path.join(releases, ".partial-%s-%s" % (digest[:16], uuid.uuid4().hex))
    try:
        try:
            os.mkdir(partial)
            # Held until this process ends: other pushes leave a locked folder alone.
            fcntl.flock(os.open(partial, os.O_RDONLY), fcntl.LOCK_EX)
            receive(stream, partial, digest)
            if os.path.lexists(final) and not is_whole(final, digest):
                broken = os.path.join(releases, ".partial-broken-" + uuid.uuid4().hex)
                os.rename(final, broken)
                shutil.rmtree(broken, ignore_errors=True)
            if not os.path.lexists(final):
                os.rename(partial, final)
                sync_folder(releases)
        finally:
            # When the connection breaks, the stream ends and a signal follows it: that signal must
            # not interrupt the cleaning up. One that comes even before this is too early to hurt.
            on_stop(signal.SIG_IGN)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def switch_to(base: str, release: str) -> None:
    """Point ``current`` at a release in one step."""
    link = os.path.join(base, ".current-" + uuid.uuid4().hex)
    os.symlink(os.path.join("releases", release), link)
    os.replace(link, os.path.join(base, "current"))
    sync_folder(base)


def on_stop(handler: Any) -> None:
    """Decide what the signals do that ask this process to end."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handler)


def stop(*_: object) -> None:
    """Turn a signal into an exit that still cleans up."""
    raise SystemExit(128 + signal.SIGTERM)


def main(root: str, project: str, digest: str, switch: str) -> None:
    """Do the whole push and print where the release lies."""
    base = os.path.join(os.path.expanduser(root), project)
    releases = os.path.join(base, "releases")
    os.makedirs(releases, exist_ok=True)
    remove_stale(releases)
    release = os.path.join(releases, digest[:16])
    have = is_whole(release, digest)
    sys.stdout.write("have\n" if have else "send\n")
    sys.stdout.flush()
    if not have:
        install(sys.stdin.buffer, releases, digest)
    if switch == "switch":
        switch_to(base, digest[:16])
    print(os.path.abspath(release))


if __name__ == "__main__":
    on_stop(stop)
    try:
        main(*sys.argv[1:])
    except (Refused, tarfile.TarError) as problem:
        sys.stderr.write("%s\n" % problem)
        sys.exit(2)
    except OSError as problem:
        sys.stderr.write("%s\n" % problem)
        sys.exit(28 if problem.errno in (errno.ENOSPC, errno.EDQUOT) else 1)
