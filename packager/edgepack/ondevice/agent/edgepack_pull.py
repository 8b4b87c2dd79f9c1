"""Follow a channel of a registry: take the release that it offers, try it, switch, go back.

``python3 edgepack_pull.py ROOT PROJECT [--jitter S]`` makes one run, as a timer starts it. What it
follows was written by ``edgepack device enroll``: ``edgepack_state.py`` says where. A run asks the
registry which manifest the channel's tag names; if that is the one it has settled on, this is all.
Else ``edgepack_channel.py`` says what is offered and proves it, and the run refuses what was signed
earlier than what it has seen, is older than the current release, or was bad. The files are put in
their place by ``edgepack_agent.py``, which takes them from this program as it takes them from a
push, and links and copies what is on the device already. The release's own loader then compares its
golden outputs, ``current`` is switched, and what enrolment named as health check must succeed;
otherwise the release before becomes current again, and this one is not tried until the channel's
sequence grows.

A run that is cut off at any moment is gone on with by the next one. The clock of the wall decides
nothing.

Exit codes: 0 done or nothing new, 2 refused or wrong, 28 no space left, 75 it may work next time.
"""

import argparse
import contextlib
import errno
import fcntl
import hashlib
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
import urllib.request
from typing import IO, Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

if __package__:
    from . import edgepack_channel as channels
    from . import edgepack_lease as lease
    from . import edgepack_releases as releases
    from .edgepack_registry import GAP_BYTES, Blob, Problem, Registry, hide_logins, use_proxy
    from .edgepack_state import Folder, format_metrics, post, read_json, write_file
else:
    import edgepack_channel as channels  # type: ignore[import-not-found,no-redef]
    import edgepack_lease as lease  # type: ignore[import-not-found,no-redef]
    import edgepack_releases as releases  # type: ignore[import-not-found,no-redef]
    from edgepack_registry import (  # type: ignore[import-not-found,no-redef]
        GAP_BYTES,
        Blob,
        Problem,
        Registry,
        hide_logins,
        use_proxy,
    )
    from edgepack_state import (  # type: ignore[import-not-found,no-redef]
        Folder,
        format_metrics,
        post,
        read_json,
        write_file,
    )

LEASE_S = 180.0
TRIES = 3
"""Times that a release's health check may be begun: a release can take the device down with it."""
HEALTH_PAUSE_S = 1.0
LAST_WORDS = 300
TRY_LATER = ("offline", "registry", "busy", "clock")
EXITS = {"installed": 0, "unchanged": 0, "disk-full": 28, **dict.fromkeys(TRY_LATER, 75)}
ENVIRONMENT = dict(os.environ)
"""What programs get that are started: not the proxy, whose address may have a password."""
AGENT_EXITS = {2: "corrupt", 28: "disk-full", 76: "busy"}


class Piece(NamedTuple):
    """A chunk, and where it lies."""

    path: str
    offset: int
    size: int
    sha256: str


class Pull:
    """One run."""

    def __init__(self, folder: Folder) -> None:
        settings = folder.settings
        self.folder = folder
        self.settings = settings
        self.state = folder.read_state()
        try:
            self.follower = channels.Follower(
                settings["channel"],
                settings["project"],
                settings["target"],
                folder.find("allowed_signers"),
            )
            self.python = settings["python"]
            # Going back needs the release before, which the agent removes where one stays.
            self.keep = str(max(2, int(settings["keep_releases"])))
            self.timeout_s = float(settings["hook_timeout_s"])
        except (KeyError, ValueError, TypeError) as error:
            raise Problem("settings", "settings.json has no right %s" % error) from None
        self.registry = Registry(
            settings["registry"],
            settings["repository"],
            login=folder.login,
            plain_http=bool(settings.get("plain_http")),
            ca=folder.ca,
            patience_s=float(settings.get("patience_s", 120.0)),
        )
        by = "pull@" + settings["channel"][:90]
        self.project = releases.Project(folder.root, settings["project"], by)
        self.contact = False

    def run(self) -> Tuple[str, str]:
        """Do what there is to do; return the result's word and a sentence.

        Raises:
            Problem: It cannot be done.
        """
        if self.state.trial is not None:
            with self.leased():
                self.finish_trial()
        digest = self.registry.find_digest(self.settings["channel"])
        self.contact = True
        if digest == self.state.channel["settled"]:
            return "unchanged", "the channel has nothing new"
        entry = channels.read_entry(self.registry, digest, self.follower)
        self.require_new(entry)
        offer = channels.read_offer(self.registry, digest, entry, self.follower)
        self.require_no_downgrade(offer)
        release = entry.release[:16]
        if self.project.read_current() == release:
            self.state.write(settled=digest)
            return "unchanged", "%s is current already" % release
        with self.leased():
            self.install(offer)
            self.try_out(offer)
            self.switch(offer, digest)
        return "installed", "%s is current" % release

    def require_new(self, entry: channels.Entry) -> None:
        """Remember a signed entry's sequence, or refuse one that is replayed or known as bad."""
        seen = self.state.channel
        if entry.sequence < seen["sequence"]:
            raise Problem(
                "replayed",
                "the channel names sequence %d, and %d was seen: somebody has moved the tag back"
                % (entry.sequence, seen["sequence"]),
            )
        if entry.sequence == seen["sequence"] and entry.release != seen["release"]:
            raise Problem(
                "replayed",
                "two releases are signed with sequence %d: publish the right one with --sequence %d"
                % (entry.sequence, entry.sequence + 1),
            )
        if entry.sequence > seen["sequence"]:
            self.state.write(sequence=entry.sequence, release=entry.release)
        why = self.state.find_bad(entry.release, entry.sequence)
        if why:
            raise Problem(
                "bad",
                "%s was tried, and: %s; to have it tried again, publish it with --sequence %d"
                % (entry.release[:16], why, entry.sequence + 1),
            )

    def require_no_downgrade(self, offer: channels.Offer) -> None:
        """Refuse a release that is older than the current one, unless its entry allows it."""
        there, offered = self.read_version(), str(offer.document.get("version"))
        if not offer.entry.downgrade and there and channels.is_older(offered, there):
            raise Problem(
                "older",
                "the channel offers version %s, and %s is current: publish it with --downgrade"
                % (offered, there),
            )

    def read_version(self) -> str:
        """Return the version of the current release; nothing if there is none."""
        path = os.path.join(self.project.base, "current", releases.MANIFEST)
        try:
            with open(path, "rb") as file:
                return str(json.loads(file.read().decode("utf-8"))["version"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def install(self, offer: channels.Offer) -> None:
        """Put the release in its place, by the agent that takes pushes."""
        signed = hashlib.sha256(offer.signature).hexdigest()
        options = [offer.entry.release, signed, "stay", self.keep, "stdin", self.project.by]
        argv = self.make_agent_argv("push", options)
        os.makedirs(self.project.base, exist_ok=True)
        with subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
        ) as agent:
            try:
                with contextlib.suppress(BrokenPipeError):  # its exit code says why
                    self.talk(agent, offer)
            finally:
                with contextlib.suppress(BrokenPipeError):
                    agent.stdin.close()  # type: ignore[union-attr]
                said = agent.stderr.read()  # type: ignore[union-attr]
                agent.wait()
        check_agent(agent.returncode, said)

    def make_agent_argv(self, operation: str, options: Sequence[str]) -> List[str]:
        """Return the command of the agent that makes releases."""
        program = os.path.join(os.path.dirname(os.path.realpath(__file__)), "edgepack_agent.py")
        base = [sys.executable, "-BEsS", program, operation]
        return [*base, self.folder.root, self.settings["project"], *options]

    def talk(self, agent: "subprocess.Popen[bytes]", offer: channels.Offer) -> None:
        """Answer the agent as a host does that pushes."""
        into, out = agent.stdin, agent.stdout
        assert into is not None and out is not None  # noqa: S101, PT018
        answer = out.readline()
        if answer == b"have\n":
            into.write(b"0\n")
        elif answer == b"sign\n":
            into.write(b"%d\n" % len(offer.signature) + offer.signature)
        elif answer == b"send\n":
            header, pieces = make_header(offer)
            into.write(b"%d\n" % len(header) + header)
            into.flush()
            length = out.read(16)
            ranges = json.loads(out.read(int(length)).decode("ascii")) if length else []
            numbers = [number for first, last in ranges for number in range(first, last + 1)]
            self.feed(into, offer, [pieces[number] for number in numbers])
        into.flush()

    def feed(self, into: IO[bytes], offer: channels.Offer, pieces: List[Piece]) -> None:
        """Download chunks and pass them on, each once it is right."""
        blob: Optional[Blob] = None
        path = ""
        try:
            for piece, until in find_runs(pieces):
                if blob is None or piece.path != path:
                    if blob is not None:
                        blob.close()
                    layer = offer.layers[piece.path]
                    blob, path = Blob(self.registry, layer.digest, layer.size), piece.path
                into.write(read_piece(blob, piece, until))
        finally:
            if blob is not None:
                blob.close()

    def try_out(self, offer: channels.Offer) -> None:
        """Let the release's own loader choose a variant by its golden outputs."""
        release = offer.entry.release
        path = os.path.join(self.project.releases, release[:16])
        kind = "stages" if offer.document.get("kind") == "pipeline" else "harness"
        program = os.path.join(path, "harness", "edgepack_%s.py" % kind)
        argv = [self.python, "-B", program, "select", "--bundle", path]
        if not os.access(self.python, os.X_OK):
            raise Problem("settings", "there is no Python %s to try a release with" % self.python)
        problem = run_program(argv, float(self.settings.get("warm_up_s", 900.0)))
        if problem:
            text = "its self-test fails: %s" % problem
            bad = self.state.add_bad(release, offer.entry.sequence, text)
            self.state.write(bad=bad)
            raise Problem("self-test", "%s stays out of use: %s" % (release[:16], text))

    def switch(self, offer: channels.Offer, digest: str) -> None:
        """Make the release current, and prove it there."""
        trial = {
            "release": offer.entry.release,
            "sequence": offer.entry.sequence,
            "before": self.project.read_current(),
            "digest": digest,
            "channel": self.state.name,
            "tries": 1,
        }
        self.state.write(trial=trial)
        self.ask_agent("switch", offer.entry.release[:16])
        self.prove(trial)

    def ask_agent(self, action: str, release: str) -> None:
        """Have the agent point ``current`` at a release."""
        argv = self.make_agent_argv("switch", [release, action, self.keep, self.project.by])
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT, check=False
        )
        check_agent(done.returncode, done.stderr)

    def finish_trial(self) -> None:
        """Prove a release that was switched to when the run before was cut off."""
        trial = self.state.trial
        if trial is None:
            return
        if self.project.read_current() != trial["release"][:16]:
            self.state.write(trial=None)  # it was not switched to, or somebody has gone back
            return
        trial["tries"] += 1
        self.state.write()
        if trial["tries"] > TRIES:
            self.take_back(trial, "its health check was cut off %d times" % TRIES)
        self.prove(trial)

    def prove(self, trial: Dict[str, Any]) -> None:
        """Run what follows a switch; if that fails, go back."""
        problem = self.run_hooks()
        if problem:
            self.take_back(trial, problem)
        settled = {"settled": trial["digest"]} if trial["channel"] == self.state.name else {}
        self.state.write(trial=None, **settled)

    def run_hooks(self) -> str:
        """Return what is wrong after a switch; nothing if all is well."""
        for title in ("after_switch", "health"):
            argv = self.settings.get(title) or []
            problem = run_program(argv, self.timeout_s) if argv else ""
            if problem:
                return "%r fails: %s" % (title, problem)
        url = self.settings.get("health_url")
        return wait_for_health(url, self.timeout_s) if url else ""

    def take_back(self, trial: Dict[str, Any], why: str) -> None:
        """Make the release before current again, and say that this one is bad."""
        release, before = trial["release"], trial["before"]
        if trial["channel"] == self.state.name:
            with contextlib.suppress(OSError):  # a full disk must not keep it from going back
                self.state.write(bad=self.state.add_bad(release, trial["sequence"], why))
        text = "%s: %s" % (release[:16], why)
        if before is None:
            self.state.write(trial=None)
            raise Problem("health", text + "; it stays current, there was none before it")
        if self.project.read_current() == release[:16]:
            try:
                self.ask_agent("rollback", before)
            except Problem as problem:
                if problem.result == "disk-full":
                    raise  # the next run goes back
                self.state.write(trial=None)
                raise Problem(
                    "health", "%s; it stays current, going back failed: %s" % (text, problem)
                ) from None
            self.run_hooks()  # whatever it says, there is nothing else to do
        self.state.write(trial=None)
        raise Problem("health", "%s; %s is current again" % (text, before))

    @contextlib.contextmanager
    def leased(self) -> Iterator[None]:
        """Share the device with other pushes, and with no benchmark."""
        leases = lease.Leases(self.folder.root)
        wish = {
            "owner": "%s@%s" % (self.project.by.partition("@")[0], os.uname().nodename),
            "purpose": "pull " + self.settings["project"],
            "exclusive": False,
            "reserved": False,
            "ttl_s": LEASE_S,
        }
        try:
            record = leases.take(wish)
        except lease.Refused as refused:
            owner = refused.leases[0]["owner"] if refused.leases else "somebody"
            raise Problem("busy", "%s holds the device" % owner) from None
        ended = threading.Event()
        thread = threading.Thread(target=renew, args=(leases, record, ended), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            leases.drop([record])

    def make_facts(self) -> Dict[str, Any]:
        """Return what a report says of the channel, and what the registry was asked."""
        known = self.state.channel
        current = self.project.read_current() or ""
        facts = {
            "release": current,
            "version": self.read_version(),
            "sequence": known["sequence"],
            "follows": int(current != "" and known["release"].startswith(current)),
            "received_bytes_total": self.registry.received,
            "requests_total": self.registry.requests,
        }
        if self.contact:
            facts["contact_timestamp_seconds"] = int(time.time())
        if self.registry.clock_offset_s is not None:
            facts["clock_offset_seconds"] = int(self.registry.clock_offset_s)
        return facts


def make_header(offer: channels.Offer) -> Tuple[bytes, List[Piece]]:
    """Return what announces a release to the agent, and its chunks by number, each only once."""
    numbers: Dict[Tuple[str, int], int] = {}
    pieces: List[Piece] = []
    files: Dict[str, List[int]] = {}
    for path, chunks in offer.chunks.items():
        offset = 0
        files[path] = []
        for sha256, size in chunks:
            number = numbers.setdefault((sha256, size), len(pieces))
            if number == len(pieces):
                pieces.append(Piece(path, offset, size, sha256))
            files[path].append(number)
            offset += size
    document = {
        "manifest": offer.manifest.decode("utf-8"),
        "signature": offer.signature.decode("ascii"),
        "chunks": [(piece.sha256, piece.size) for piece in pieces],
        "files": files,
    }
    return json.dumps(document).encode("ascii"), pieces


def find_runs(pieces: List[Piece]) -> List[Tuple[Piece, int]]:
    """Return each chunk with to where its file is read in one go: over small gaps, too."""
    found: List[Tuple[Piece, int]] = []
    for piece in reversed(pieces):
        end = piece.offset + piece.size
        if found:
            after, until = found[-1]
            is_near = after.path == piece.path and 0 <= after.offset - end <= GAP_BYTES
            end = until if is_near else end
        found.append((piece, end))
    return found[::-1]


def read_piece(blob: Blob, piece: Piece, until: int) -> bytes:
    """Return a chunk whose hash is right; a wrong one is asked for once more.

    Raises:
        Problem: It cannot be had, or is wrong again.
    """
    for _ in range(2):
        data = blob.read(piece.offset, piece.size, until)
        if hashlib.sha256(data).hexdigest() == piece.sha256:
            return data
        blob.close()
    raise Problem("corrupt", "the registry gives wrong bytes of %r" % piece.path)


def check_agent(code: int, said: bytes) -> None:
    """Raise unless the agent that makes releases succeeded."""
    if code:
        words = said.decode("utf-8", "replace").strip()[-LAST_WORDS:]
        raise Problem(AGENT_EXITS.get(code, "failed"), words or "the agent ended with %d" % code)


def renew(leases: lease.Leases, record: Dict[str, Any], ended: threading.Event) -> None:
    """Keep a shared lease; work under one stays right without it."""
    while not ended.wait(LEASE_S / 4):
        with contextlib.suppress(OSError, lease.Lost):
            leases.renew(record, LEASE_S)


def run_program(argv: Sequence[str], timeout_s: float) -> str:
    """Return why a program failed; nothing if it succeeded. None of it is left when it is late."""
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=ENVIRONMENT,
            start_new_session=True,
        )
    except OSError as error:
        return "%s: %s" % (argv[0], error.strerror)
    try:
        said, _ = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return "it takes longer than %g s" % timeout_s
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        if child.stdout is not None:
            child.stdout.close()
    if child.returncode == 0:
        return ""
    words = said.decode("utf-8", "replace").strip()[-LAST_WORDS:]
    return "exit code %d: %s" % (child.returncode, words)


def wait_for_health(url: str, timeout_s: float) -> str:
    """Return why an address of this device does not answer well within a time."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + timeout_s
    while True:
        left = deadline - time.monotonic()
        try:
            with opener.open(url, timeout=max(0.1, min(left, 10.0))):
                return ""
        # An HTTP error is an OSError, too; what answers may speak no HTTP at all.
        except (OSError, ValueError, http.client.HTTPException) as error:
            problem = str(error)
        if left <= HEALTH_PAUSE_S:
            return "%s is not healthy within %g s: %s" % (url, timeout_s, problem)
        time.sleep(HEALTH_PAUSE_S)


def make_report(folder: Folder, result: str, text: str, told: Dict[str, Any]) -> Dict[str, Any]:
    """Return what a run reports: what the one before did, with what is new."""
    try:
        kept = read_json(folder.find("report.json"))
    except Problem:
        kept = {"schema_version": 1, "runs": {}}
    now = int(time.time())
    kept["runs"] = dict(kept.get("runs", {}), **{result: kept.get("runs", {}).get(result, 0) + 1})
    for key in ("received_bytes_total", "requests_total"):
        kept[key] = kept.get(key, 0) + told.pop(key, 0)
    for key in ("project", "registry", "repository", "channel", "target", "device"):
        kept[key] = folder.settings.get(key, "")
    if result in ("installed", "unchanged"):
        kept["success_timestamp_seconds"] = now
    kept.update(told, result=result, detail=text, run_timestamp_seconds=now)
    return dict({"release": "", "version": ""}, **kept)


def tell(folder: Folder, facts: Dict[str, Any]) -> None:
    """Report a run: to a file, as a textfile, and to the operator's address, each by itself."""
    with told_apart():
        write_file(folder.find("report.json"), json.dumps(facts).encode("ascii"), synced=False)
    textfile = folder.settings.get("textfile")
    if textfile:
        with told_apart():
            path = os.path.join(textfile, "edgepack_pull_%s.prom" % facts["project"])
            write_file(path, format_metrics(facts).encode("utf-8"), synced=False)
    if folder.settings.get("report_url"):
        with told_apart():
            token = folder.credentials.get("report_token")
            post(folder.settings["report_url"], facts, token)


@contextlib.contextmanager
def told_apart() -> Iterator[None]:
    """Say that a report was not taken, and go on."""
    try:
        yield
    except (OSError, ValueError, http.client.HTTPException) as error:
        sys.stderr.write("a report was not taken: %s\n" % hide_logins(str(error)))


@contextlib.contextmanager
def alone(folder: Folder) -> Iterator[bool]:
    """Say whether no other run of this project is in progress, and keep others off."""
    handle = os.open(folder.find("lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(handle)


def run_once(root: str, project: str) -> Tuple[str, str]:
    """Make one run and report it; return the result's word and a sentence."""
    folder = Folder(root, project)
    with alone(folder) as is_alone:
        if not is_alone:
            return "busy", "another run is in progress"
        told: Dict[str, Any] = {}
        result, text = follow(folder, told)
        tell(folder, make_report(folder, result, text, told))
    return result, text


def follow(folder: Folder, told: Dict[str, Any]) -> Tuple[str, str]:
    """Make a run, whatever happens; ``told`` gets what a report says of it."""
    try:
        use_proxy(folder.credentials.get("proxy"), folder.settings.get("no_proxy"))
        pull = Pull(folder)
        try:
            return pull.run()
        finally:
            told.update(pull.make_facts())
    except Problem as problem:
        return problem.result, str(problem)
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return "disk-full" if is_full else "failed", hide_logins(str(error))
    except Exception as error:  # noqa: BLE001  (a device that nobody sees has to report it)
        return "failed", explain_defect(error)


def explain_defect(error: Exception) -> str:
    """Return where a program was wrong; not what was said there, which may have a secret."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    place = "%s:%s" % (os.path.basename(last.filename), last.lineno)
    return "%s at %s: this is a defect of the agent" % (type(error).__name__, place)


def stop(*_: object) -> None:
    """Turn a signal into an exit that still gives the lease back."""
    raise SystemExit(128 + signal.SIGTERM)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Make one run; return the exit code."""
    parser = argparse.ArgumentParser(description="Follow a channel of a registry.")
    parser.add_argument("root")
    parser.add_argument("project")
    parser.add_argument("--jitter", type=float, default=0.0, help="wait up to so many seconds")
    arguments = parser.parse_args(argv)
    time.sleep(random.SystemRandom().uniform(0.0, arguments.jitter))
    try:
        result, text = run_once(arguments.root, arguments.project)
    except Problem as problem:
        result, text = problem.result, str(problem)
    except OSError as error:
        result, text = "failed", str(error)
    print("%s: %s" % (result, text), flush=True)
    return EXITS.get(result, 2)


if __name__ == "__main__":
    for wanted in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(wanted, stop)
    sys.exit(main())
