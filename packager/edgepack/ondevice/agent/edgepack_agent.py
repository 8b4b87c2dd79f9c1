"""Take a bundle's chunks from stdin and put a release in its place, whole or not at all.

Runs on the device with nothing but Python 3.8. The first bytes of stdin are the source of
``edgepack_releases.py`` and this one, which a short ``python3 -c`` reads and runs: one connection,
and nothing is left on the device. What follows is what the operation reads.

``push ROOT PROJECT DIGEST SIGNED THEN KEEP FROM BY``: answers ``have`` if the release with that
manifest digest is there with every byte, ``sign`` if only its signature is not the one with the
SHA-256 ``SIGNED``, else ``send``. ``-`` stands for no signature, and takes none away. Nothing is
changed before it has read on: after ``have`` a line with 0, after ``sign`` a line with a length,
and so long a signature. After ``send`` it reads a header, a line with its length and a JSON
document: the manifest's text, the signature's, and for each file the chunks it is made of. It
answers with the missing chunks, 16 digits of length and JSON ranges, and reads these, one after the
other: from stdin, or where ``FROM`` is ``relay`` as ``edgepack_fetch.py`` says. Chunks are taken
from other releases and from what broken pushes have left, where their hashes hold; files that
another release has are linked. Nothing gets its name under ``releases/`` before every hash was
checked and every file synced; ``current`` is a relative symlink that is replaced in one rename.
Where ``THEN`` is ``stay`` it is left alone. ``KEEP`` releases are kept, the current one and the new
one among them. Engines and compiled models that no release needs any more are removed with them.
``BY``, ``user@host``, goes into the history.

``switch ROOT PROJECT RELEASE ACTION KEEP BY``: points ``current`` at a release that is there, ``-``
for the one before; ``ACTION``, ``switch`` or ``rollback``, goes into the history.

At the end it prints a JSON line: the release's path, and which release was current before.

A push that breaks leaves its folder, ``.partial-*``, to the next one. Nobody else writes there: it
is locked while a push runs.

Exit codes: 0 done, 2 what came is not what was announced, 28 no space left, 75 the relay was not
reached, 1 other.
"""

import contextlib
import errno
import hashlib
import json
import os
import signal
import sys
from itertools import chain
from typing import Any, BinaryIO, Dict, Iterator, List, NamedTuple, Optional, Tuple, cast

if __package__:
    from . import edgepack_releases as releases
else:
    import edgepack_releases as releases  # type: ignore[import-not-found,no-redef]

HEADER_BYTES = 64 << 20
FOLDERS = 100
SPARE_BYTES = 1 << 20
SIGNATURE = "manifest.json.sig"


class File(NamedTuple):
    """A file of the release: what the manifest says, and its chunks."""

    path: str
    size: int
    mode: int
    sha256: str
    chunks: List[int]


class Place(NamedTuple):
    """Where a chunk lies, or goes."""

    path: str
    offset: int


def read_exactly(stream: BinaryIO, size: int, what: str) -> bytes:
    """Return so many bytes, or refuse."""
    data = stream.read(size)
    if len(data) != size:
        raise releases.Refused("the stream ends in the middle of %s" % what)
    return data


def parse_length(stream: BinaryIO) -> int:
    """Return the length that a line names."""
    line = stream.readline(32)
    if not line.strip().isdigit() or int(line) > HEADER_BYTES:
        raise releases.Refused("the stream does not begin with a header")
    return int(line)


def say(text: str) -> None:
    """Write an answer for the host, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


class Header:
    """What a push announces: the manifest, and the chunks of every file."""

    def __init__(self, document: bytes, digest: str) -> None:
        try:
            header = json.loads(document.decode("utf-8"))
            self.manifest = header["manifest"].encode("utf-8")
            self.signature = header["signature"]
            self.chunks = [(str(sha256), int(size)) for sha256, size in header["chunks"]]
            of = header["files"]
            if hashlib.sha256(self.manifest).hexdigest() != digest:
                raise releases.Refused("the manifest is not the one that was announced")
            self.files = [
                File(
                    one["path"],
                    int(one["size_bytes"]),
                    0o755 if one["mode"] == "755" else 0o644,
                    one["sha256"],
                    [int(number) for number in of[one["path"]]],
                )
                for one in releases.list_files(self.manifest)
            ]
            sizes = [sum(self.chunks[k][1] for k in one.chunks) for one in self.files]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise releases.Refused("the header cannot be read: %r" % error)  # noqa: B904
        if sizes != [one.size for one in self.files]:
            raise releases.Refused("the chunks of a file are not as long as the file")
        if any(size <= 0 for _, size in self.chunks):
            raise releases.Refused("a chunk has no bytes")
        if set(of) != {one.path for one in self.files}:
            raise releases.Refused("the header has other files than the manifest")

    def find_unlisted(self, digest: str) -> Dict[str, bytes]:
        """Return the files that no manifest lists, by name."""
        found = {
            releases.MANIFEST: self.manifest,
            releases.MANIFEST + ".sha256": ("%s  %s\n" % (digest, releases.MANIFEST)).encode(
                "ascii"
            ),
        }
        if self.signature is not None:
            found[SIGNATURE] = self.signature.encode("ascii")
        return found

    def make_table(self) -> Dict[str, Any]:
        """Return where each file's chunks lie, as it is kept for later pushes."""
        return {
            "files": {
                one.path: [one.sha256, [self.chunks[number] for number in one.chunks]]
                for one in self.files
            }
        }

    def find_places(self, files: List[File], folder: str) -> Dict[int, List[Place]]:
        """Return where each chunk of files goes, in the order of the files."""
        found = {}  # type: Dict[int, List[Place]]
        for one in files:
            offset = 0
            for number in one.chunks:
                found.setdefault(number, []).append(
                    Place(releases.find_inside(folder, one.path), offset)
                )
                offset += self.chunks[number][1]
        return found


class Push:
    """One push of one release."""

    def __init__(
        self, project: releases.Project, digest: str, stream: BinaryIO, *, is_relayed: bool
    ) -> None:
        self.project = project
        self.digest = digest
        self.release = digest[:16]
        self.stream = stream
        self.is_relayed = is_relayed

    def run(self) -> None:
        """Receive the release and give it its name."""
        document = read_exactly(self.stream, parse_length(self.stream), "the header")
        header = Header(document, self.digest)
        for folder in (self.project.releases, self.project.tables):
            os.makedirs(folder, exist_ok=True)
        with self.adopt_push() as name:
            self.make(header, name)

    def make(self, header: Header, name: str) -> None:
        """Make the release in a folder that is locked, and give it its name."""
        folder = os.path.join(self.project.releases, name)
        self.keep_table(header, name)
        for one in header.files:
            os.makedirs(os.path.dirname(releases.find_inside(folder, one.path)), exist_ok=True)
        sources = self.project.find_sources(name)
        linked = self.link_files(header, folder, sources)
        made = [one for one in header.files if one.path not in linked]
        self.require_space(made, folder)
        self.fill(header, made, folder, sources)
        for one in made:
            path = releases.find_inside(folder, one.path)
            if releases.hash_file(path) != one.sha256:
                raise releases.Refused("the hash of %r is wrong" % one.path)
            os.chmod(path, one.mode)
            releases.sync(path)
        for path, content in header.find_unlisted(self.digest).items():
            with open(os.path.join(folder, path), "wb") as file:
                file.write(content)
            releases.sync(os.path.join(folder, path))
        self.remove_others(header, folder)
        self.finish(name)

    @contextlib.contextmanager
    def adopt_push(self) -> Iterator[str]:
        """Lock the folder of a broken push of this release, or of a new one: others leave it."""
        prefix = releases.PARTIAL + self.release + "-"
        there = [name for name in os.listdir(self.project.releases) if name.startswith(prefix)]
        for name in chain(sorted(there), (prefix + os.urandom(16).hex() for _ in range(FOLDERS))):
            if name not in there:
                os.mkdir(os.path.join(self.project.releases, name))
            with self.project.claimed(name) as mine:
                # A push that ends takes away what nobody holds: a new folder may be gone by now.
                if mine:
                    yield name
                    return
        raise OSError(errno.EBUSY, "other pushes take every folder of this one")

    def keep_table(self, header: Header, name: str) -> None:
        """Write where the chunks of a folder lie."""
        partial = self.project.find_table(name) + "." + os.urandom(16).hex()
        with open(partial, "w", encoding="ascii") as file:
            file.write(json.dumps(header.make_table()))  # dump() is many times slower than dumps()
        os.replace(partial, self.project.find_table(name))

    def link_files(self, header: Header, folder: str, sources: List[releases.Source]) -> List[str]:
        """Link files that other releases have; return their paths."""
        linked = []
        # A partial folder's files change in place: they are never linked.
        tables = [
            {entry[0]: releases.find_inside(at, name) for name, entry in table.items()}
            for at, table in sources
            if not os.path.basename(at).startswith(releases.PARTIAL)
        ]
        for one in header.files:
            path = releases.find_inside(folder, one.path)
            if os.path.lexists(path) and not releases.is_file(path):
                raise releases.Refused("%r is in the way" % path)
            for others in tables:
                other = others.get(one.sha256, "")
                if releases.is_file(other) and self.is_same(other, one):
                    with contextlib.suppress(FileNotFoundError):
                        os.remove(path)
                    try:
                        os.link(other, path)
                    except OSError:
                        break  # a file system without hard links: its chunks are copied
                    linked.append(one.path)
                    break
        return linked

    def is_same(self, path: str, file: File) -> bool:
        """Return whether a file is what the release wants, byte by byte."""
        try:
            mode = os.stat(path).st_mode & 0o777
            return mode == file.mode and releases.hash_file(path) == file.sha256
        except FileNotFoundError:  # somebody else has removed the release meanwhile
            return False

    def require_space(self, files: List[File], folder: str) -> None:
        """Raise unless there is room for the files, before a byte of them comes."""
        there = [releases.find_inside(folder, one.path) for one in files]
        used = sum(os.stat(path).st_blocks * 512 for path in there if releases.is_file(path))
        needed = sum(one.size for one in files) - used + SPARE_BYTES
        space = os.statvfs(folder)
        if needed > space.f_bavail * space.f_frsize:
            # Another release's broken push may fill the disk; its chunks then come once more.
            self.project.discard_broken()
            space = os.statvfs(folder)
        if needed > space.f_bavail * space.f_frsize:
            free = space.f_bavail * space.f_frsize
            raise OSError(errno.ENOSPC, "%d bytes are needed, %d are free" % (needed, free))
        new = sum(not releases.is_file(path) for path in there) + 8
        if space.f_files and new > space.f_favail:  # some file systems do not count them
            raise OSError(errno.ENOSPC, "%d inodes are needed, %d free" % (new, space.f_favail))

    def fill(
        self, header: Header, files: List[File], folder: str, sources: List[releases.Source]
    ) -> None:
        """Write the files' chunks: from this device as far as it has them, from the stream."""
        for one in files:
            path = releases.find_inside(folder, one.path)
            if releases.is_file(path) and os.stat(path).st_nlink > 1:
                os.remove(path)  # a broken push has linked it: it is a release's file
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            os.ftruncate(handle, one.size)
            os.close(handle)
        places = header.find_places(files, folder)
        have = set(self.copy_local(header, places, sources))
        missing = [number for number in places if number not in have]
        answer = json.dumps(find_ranges(missing))
        say("%016d%s" % (len(answer), answer))
        source = self.stream
        if missing and self.is_relayed:
            source = self.fetch([header.chunks[number][0] for number in missing])
        with contextlib.closing(Files()) as out:
            for number in missing:
                sha256, size = header.chunks[number]
                data = read_exactly(source, size, "a chunk")
                if hashlib.sha256(data).hexdigest() != sha256:
                    raise releases.Refused(
                        "the hash of a chunk is wrong: the connection altered it"
                    )
                for place in places[number]:
                    out.write(place, data)

    def fetch(self, hashes: List[str]) -> BinaryIO:
        """Return a stream of chunks that comes from the relay."""
        # It comes with this program where there is a relay.
        import edgepack_fetch  # type: ignore[import-not-found]

        address = edgepack_fetch.find_relay()
        say("%016d%s" % (len(address), address))
        offer = read_exactly(self.stream, parse_length(self.stream), "the relay's offer")
        return cast(
            BinaryIO, edgepack_fetch.fetch(address, json.loads(offer.decode("ascii")), hashes)
        )

    def copy_local(
        self, header: Header, places: Dict[int, List[Place]], sources: List[releases.Source]
    ) -> Iterator[int]:
        """Copy chunks that lie on this device, and yield them."""
        wanted = {header.chunks[number]: number for number in places}
        with contextlib.closing(Files()) as files:
            for folder, table in sources:
                for name, (_, chunks) in table.items():
                    offset = 0
                    for sha256, size in chunks:
                        number = wanted.get((sha256, size))
                        place = Place(releases.find_inside(folder, name), offset)
                        offset += size
                        if number is None:
                            continue
                        data = files.read(place, size)
                        if hashlib.sha256(data).hexdigest() != sha256:
                            continue
                        for goal in places[number]:
                            if goal != place:
                                files.write(goal, data)
                        del wanted[sha256, size]
                        yield number

    def remove_others(self, header: Header, folder: str) -> None:
        """Remove what the manifest does not have, and sync the folders."""
        known = {releases.find_inside(folder, one.path) for one in header.files}
        known |= {os.path.join(folder, name) for name in header.find_unlisted(self.digest)}
        for place, _, names in os.walk(folder):
            for name in names:
                if os.path.join(place, name) not in known:
                    os.remove(os.path.join(place, name))
            releases.sync(place)

    def finish(self, name: str) -> None:
        """Give the folder its release's name, unless a whole one has it by now."""
        final = os.path.join(self.project.releases, self.release)
        with self.project.locked():
            if os.path.lexists(final):
                if releases.is_whole(final, self.digest):
                    return
                self.project.remove(self.release)
            os.replace(self.project.find_table(name), self.project.find_table(self.release))
            os.rename(os.path.join(self.project.releases, name), final)
            releases.sync(self.project.releases)
            self.project.log("push", self.release, None)


class Files:
    """Open files, one at a time for reading and one for writing: chunks come file by file."""

    def __init__(self) -> None:
        self.handles = {}  # type: Dict[int, Tuple[str, int]]

    def close(self) -> None:
        """Close what is open."""
        for _, handle in self.handles.values():
            os.close(handle)

    def _open(self, path: str, flags: int) -> int:
        if flags in self.handles:
            before, handle = self.handles[flags]
            if before == path:
                return handle
            os.close(handle)
            del self.handles[flags]
        handle = os.open(path, flags | os.O_NOFOLLOW)
        self.handles[flags] = path, handle
        return handle

    def read(self, place: Place, size: int) -> bytes:
        """Return bytes of a file, fewer at its end, none if there is no such file."""
        try:
            return os.pread(self._open(place.path, os.O_RDONLY), size, place.offset)
        except OSError:
            return b""

    def write(self, place: Place, data: bytes) -> None:
        """Write bytes into a file."""
        handle, done = self._open(place.path, os.O_WRONLY), 0
        while done < len(data):
            done += os.pwrite(handle, data[done:], place.offset + done)


def find_ranges(numbers: List[int]) -> List[Tuple[int, int]]:
    """Return numbers as ranges, ends included, in their order."""
    found = []  # type: List[Tuple[int, int]]
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found


def push(root: str, name: str, *asked: str) -> None:
    """Do the whole push."""
    digest, signed, then, keep, source, by = asked
    project = releases.Project(root, name, by)
    release = os.path.join(project.releases, digest[:16])
    signature = os.path.join(release, SIGNATURE)
    if not releases.is_whole(release, digest):
        say("send\n")
        Push(project, digest, sys.stdin.buffer, is_relayed=source == "relay").run()
    elif signed == "-" or (releases.is_file(signature) and releases.hash_file(signature) == signed):
        say("have\n")
        read_exactly(sys.stdin.buffer, len("0\n"), "what to do")
    else:
        say("sign\n")
        sign(signature, signed, sys.stdin.buffer)
    before = project.read_current()
    if then == "switch":
        before = project.point_at(digest[:16], "switch")
    project.collect_garbage(int(keep), digest[:16])
    end(release, before)


def sign(path: str, signed: str, stream: BinaryIO) -> None:
    """Give a release that is there its signature, in one step."""
    text = read_exactly(stream, parse_length(stream), "the signature")
    if hashlib.sha256(text).hexdigest() != signed:
        raise releases.Refused("the signature is not the one that was announced")
    partial = os.path.join(
        os.path.dirname(os.path.dirname(path)), releases.PARTIAL + os.urandom(16).hex()
    )
    with open(partial, "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    releases.sync(os.path.dirname(path))


def switch(root: str, name: str, release: str, *asked: str) -> None:
    """Point ``current`` at a release that is there."""
    action, keep, by = asked
    project = releases.Project(root, name, by)
    if action == "rollback" and project.read_current() is None:
        raise releases.Refused("no release of %s is current here" % name)
    goal = project.find_before() if release == "-" else release
    folder = releases.find_inside(project.releases, goal)
    manifest = os.path.join(folder, releases.MANIFEST)
    if action == "switch" and not os.path.exists(folder):
        raise releases.Gone("the release %s is not here any more" % goal)
    digest = releases.hash_file(manifest) if releases.is_file(manifest) else ""
    if digest[:16] != goal or not releases.is_whole(folder, digest):
        raise releases.Refused("the release %s is not here any more, or not whole" % goal)
    before = project.point_at(goal, action)
    project.collect_garbage(int(keep), goal)
    end(folder, before)


def end(release: str, before: Optional[str]) -> None:
    """Print the answer."""
    print(json.dumps({"path": os.path.abspath(release), "from": before}))


def stop(*_: object) -> None:
    """Turn a signal into an exit; what was received stays for the next push."""
    raise SystemExit(128 + signal.SIGTERM)


if __name__ == "__main__":
    for wanted in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(wanted, stop)
    try:
        if sys.argv[1] == "push":
            push(*sys.argv[2:])
        else:
            switch(*sys.argv[2:])
    except releases.Refused as problem:
        sys.stderr.write("%s\n" % problem)
        sys.exit(76 if isinstance(problem, releases.Gone) else 2)
    except OSError as problem:
        sys.stderr.write("%s\n" % problem)
        sys.exit(28 if problem.errno in (errno.ENOSPC, errno.EDQUOT) else 1)
