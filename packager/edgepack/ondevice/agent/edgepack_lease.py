"""Take, renew, list and release leases of this device.

Runs on the device with nothing but Python 3.8; its arguments are ``ROOT REQUEST``. ``REQUEST`` is
a JSON object whose ``do`` is ``hold``, ``reserve``, ``release`` or ``list``. Answers are messages
on stdout: the length (4 bytes, big-endian) and a JSON object.

A lease is a file ``ROOT/lease/ID.json``; each change there is made under a lock on
``ROOT/lease/lock``. An exclusive lease excludes all others; shared ones exist together. A
reservation excludes all but its owner's own leases, so that the owner can work under it.

``hold`` lives as long as its lease: each byte on stdin renews it, the end of stdin releases it, and
so does silence for longer than ``ttl_s``. So a client that crashes releases its lease at once, and
one behind a dead connection after ``ttl_s``. If this program itself is killed, nobody renews the
file and it expires. The monotonic clock decides on expiry, which no step of the wall clock moves; a
lease from before a reboot (another boot id, or a clock that is behind it) is stale. A new lease
removes only stale ones.
"""

import contextlib
import errno
import fcntl
import json
import os
import select
import signal
import struct
import sys
import time
from typing import Any, Dict, Iterator, List, Optional

POLL_S = 0.2
SAY_S = 5.0
"""Between two messages to a client that waits: so each side sees that the other lives."""
LOCK_S = 10.0

TOLD = ("id", "owner", "purpose", "exclusive", "reserved", "taken_at")
KNOWN = {*TOLD, "boot_id", "taken_s", "expires_s"}

Record = Dict[str, Any]


class Refused(Exception):  # noqa: N818
    """Others hold the device."""

    def __init__(self, leases: List[Record]) -> None:
        super().__init__("others hold the device")
        self.leases = leases


class Lost(Exception):  # noqa: N818
    """A lease is no longer there."""


def read_boot_id() -> str:
    """Return an id that changes with each boot; empty where the system reports none."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def format_utc(seconds_from_now: float = 0.0) -> str:
    """Return this device's wall clock, for people."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds_from_now))


class Leases:
    """The leases under a root."""

    def __init__(self, root: str) -> None:
        self.folder = os.path.join(os.path.expanduser(root), "lease")
        self.boot = read_boot_id()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep others from changing leases."""
        os.makedirs(self.folder, exist_ok=True)
        handle = os.open(os.path.join(self.folder, "lock"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            deadline = time.monotonic() + LOCK_S
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.01)
            yield
        finally:
            os.close(handle)

    def find_path(self, identity: str) -> str:
        """Return a lease's file."""
        return os.path.join(self.folder, identity + ".json")

    def list_live(self) -> List[Record]:
        """Return the valid leases, oldest first; remove stale ones. The caller has the lock."""
        found = []
        for name in os.listdir(self.folder):
            identity, suffix = os.path.splitext(name)
            if suffix != ".json":
                continue
            record = self.read(identity)
            if record is None:
                self.drop([{"id": identity}])  # its holder may have dropped it by now
            else:
                found.append(record)
        return sorted(found, key=lambda record: float(record["taken_s"]))

    def read(self, identity: str) -> Optional[Record]:
        """Return a lease unless it is stale; a file that a power cut has torn is stale."""
        try:
            with open(self.find_path(identity), "rb") as file:
                record = json.loads(file.read().decode("utf-8"))
            whole = set(record) >= KNOWN and record["id"] == identity
            now = time.monotonic()
            holds = whole and record["taken_s"] <= now < record["expires_s"]
            return record if holds and record["boot_id"] == self.boot else None
        except (ValueError, TypeError, FileNotFoundError):
            return None

    def write(self, record: Record) -> None:
        """Write a lease in one step."""
        partial = os.path.join(self.folder, "." + record["id"])
        try:
            with open(partial, "w") as file:
                json.dump(record, file)
            os.replace(partial, self.find_path(record["id"]))
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(partial)
            raise

    def take(self, wish: Record) -> Record:
        """Take a lease, or raise :class:`Refused`."""
        with self.locked():
            leases = self.list_live()
            against = [record for record in leases if is_conflict(wish, record)]
            if against:
                raise Refused(against)
            if wish["reserved"]:
                self.drop(find_own_reservations(leases, wish["owner"]))
            now = time.monotonic()
            record = {key: wish[key] for key in ("owner", "purpose", "exclusive", "reserved")}
            record.update(id=os.urandom(16).hex(), boot_id=self.boot, taken_at=format_utc())
            record.update(taken_s=now, expires_s=now + wish["ttl_s"])
            self.write(record)
            return record

    def renew(self, record: Record, ttl_s: float) -> None:
        """Let a lease last for ``ttl_s`` from now, or raise :class:`Lost`.

        Its file proves that nobody had the device meanwhile: a new lease removes the file.
        """
        with self.locked():
            if not os.path.isfile(self.find_path(record["id"])):
                raise Lost("it was released, or it expired and others have had the device")
            record["expires_s"] = time.monotonic() + ttl_s
            self.write(record)

    def drop(self, records: List[Record]) -> None:
        """Remove leases. The caller has the lock, or they are the caller's own."""
        for record in records:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.find_path(record["id"]))

    @contextlib.contextmanager
    def held(self, wish: Record) -> Iterator[Record]:
        """Hold a lease; whoever works under it renews it."""
        record = self.take(wish)
        try:
            yield record
        finally:
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            self.drop([record])


def is_conflict(wish: Record, record: Record) -> bool:
    """Return whether a lease prevents another one."""
    if record["owner"] == wish["owner"] and (record["reserved"] or wish["reserved"]):
        return False
    return bool(wish["exclusive"] or record["exclusive"])


def find_own_reservations(records: List[Record], owner: str) -> List[Record]:
    """Return the reservations of an owner."""
    return [record for record in records if record["reserved"] and record["owner"] == owner]


def format_lease(record: Record) -> Record:
    """Return a lease for clients: with the time left, and its end."""
    left_s = max(0.0, record["expires_s"] - time.monotonic())
    return dict({key: record[key] for key in TOLD}, left_s=left_s, until_at=format_utc(left_s))


def say(answer: str, leases: List[Record], **more: object) -> None:
    """Send one message."""
    document = dict(more, answer=answer, leases=[format_lease(record) for record in leases])
    data = json.dumps(document).encode("ascii")
    sys.stdout.buffer.write(struct.pack(">I", len(data)) + data)
    sys.stdout.buffer.flush()


def read_stdin_within(seconds: float) -> Optional[bytes]:
    """Return bytes from stdin, none at its end, None if nothing comes in time."""
    ready = select.select([0], [], [], max(0.0, seconds))[0]
    return os.read(0, 4096) if ready else None


def hold(leases: Leases, wish: Record) -> None:
    """Wait for a lease, hold it for as long as it is renewed, and release it."""
    deadline = time.monotonic() + wish["wait_s"]
    said = time.monotonic() - SAY_S
    while True:
        try:
            with leases.held(wish) as record:
                say("taken", [record])
                return keep(leases, record, wish["ttl_s"])
        except Refused as refused:
            now = time.monotonic()
            if now >= deadline:
                raise
            if now >= said + SAY_S:
                say("waiting", refused.leases)
                said = now
        if read_stdin_within(min(POLL_S, deadline - now)) == b"":
            return None


def keep(leases: Leases, record: Record, ttl_s: float) -> None:
    """Renew a lease for each byte on stdin, until its end or until silence for too long."""
    while read_stdin_within(record["expires_s"] - time.monotonic()):
        leases.renew(record, ttl_s)
        say("renewed", [record])


def release(leases: Leases, wish: Record) -> None:
    """Remove the owner's reservations, or with ``force`` all leases."""
    with leases.locked():
        found = leases.list_live()
        dropped = found if wish["force"] else find_own_reservations(found, wish["owner"])
        leases.drop(dropped)
    left = [record for record in found if record not in dropped]
    say("released", dropped)
    say("left", left)


def main(root: str, request: str) -> None:
    """Run the requested action."""
    wish, leases = json.loads(request), Leases(root)
    try:
        if wish["do"] == "hold":
            hold(leases, wish)
        elif wish["do"] == "reserve":
            say("taken", [leases.take(wish)])
        elif wish["do"] == "release":
            release(leases, wish)
        elif os.path.isdir(leases.folder):
            with leases.locked():
                say("left", leases.list_live())
        else:
            say("left", [])
    except Refused as refused:
        say("refused", refused.leases)
    except Lost as lost:
        say("lost", [], reason=str(lost))


def stop(*_: object) -> None:
    """Turn a signal into an exit that still releases."""
    raise SystemExit(128 + signal.SIGTERM)


if __name__ == "__main__":
    for wanted in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(wanted, stop)
    try:
        main(*sys.argv[1:])
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nobody reads any more: exit quietly
    except OSError as problem:
        sys.stderr.write("%s\n" % problem)
        sys.exit(28 if problem.errno in (errno.ENOSPC, errno.EDQUOT) else 1)
