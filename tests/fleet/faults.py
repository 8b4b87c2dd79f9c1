"""What can go wrong while a device pulls, and what must be current on it then.

Each kind gets a device that has a release, and a channel that offers something. It disturbs runs of
the real agent, and says which release must be current at the end. After every single run the
current release must be whole, and one that an operator has signed for this channel.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgepack.ondevice.agent.edgepack_releases import is_whole

from tests.chaos.disks import can_mount
from tests.chaos.faults import FAKETIME
from tests.support.servers.publisher import Publisher, format_signer, make_key
from tests.support.servers.pulling import Pulled, PullingDevice, write_bundle
from tests.support.servers.registry_faults import (
    Gate,
    answer_with,
    cut_at,
    flip_a_byte,
    forward_proxy,
    leave,
)

OLD, NEW, LOWER, BROKEN = "old", "new", "lower", "broken"
KILLED_S = 0.6
"""Within what time an agent is killed: as long as a run takes on a quiet machine."""
_SETTLING = 4
"""Runs without a disturbance after which a device must have what it should have."""


@dataclass
class Offers:
    """Bundles of a repository, signed and published once."""

    folder: Path
    publisher: Publisher
    key: Path
    thief: Path
    manifests: dict[str, Any] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)

    @classmethod
    def write(cls, folder: Path, host: str, repository: str) -> Offers:
        """Write, sign and publish the bundles."""
        key, thief = make_key(folder, "release"), make_key(folder, "thief")
        found = cls(folder, Publisher(host, repository), key, thief)
        for name, changes in (
            (OLD, {"version": "1.0.0"}),
            (NEW, {"version": "1.1.0"}),
            (LOWER, {"version": "0.9.0"}),
            (BROKEN, {"version": "1.2.0", "broken": True}),
        ):
            bundle = write_bundle(folder / name, name, **changes)  # type: ignore[arg-type]
            found.add(name, bundle, key)
        other = write_bundle(folder / "thiefs", "thiefs", "2.0.0")
        found.add("unsigned", other, None)
        other = write_bundle(folder / "strange", "strange", "2.0.0")
        found.add("signed by a thief", other, thief)
        return found

    def add(self, name: str, bundle: Path, key: Path | None, **changes: Any) -> None:
        """Publish a bundle under a name."""
        self.manifests[name] = self.publisher.publish(bundle, key, **changes)
        self.digests[name] = self.manifests[name]["annotations"]["dev.edgepack.manifest"]


class Wrong(Exception):  # noqa: N818
    """A device has something that it must not have."""


@dataclass
class Run:
    """One disturbed device."""

    offers: Offers
    gate: Gate
    device: PullingDevice
    channel: str
    random: random.Random
    folder: Path
    stack: ExitStack
    allowed: set[str]
    """What may be current."""
    results: list[str] = field(default_factory=list)

    def move(self, name: str, sequence: int, key: Path | None = None, /, **changes: Any) -> None:
        """Point the channel at a bundle, with an entry that the operator, or ``key``, signs."""
        manifest = self.offers.manifests[name]
        signer = key or self.offers.key
        self.offers.publisher.move(manifest, self.channel, sequence, signer, **changes)

    def move_tag(self, name: str) -> None:
        """Point the tag at a bundle, as somebody with a token of the registry can."""
        self.offers.publisher.move(self.offers.manifests[name], self.channel, 0, None)

    def pull(self, *under: str, **environment: str) -> Pulled:
        """Let the agent run, and look at what is current."""
        pulled = self.device.pull(*under, **environment)
        if not pulled.result or "Traceback" in pulled.stderr:
            raise Wrong(f"the agent ended with {pulled.code}: {pulled.stderr[-600:]}")
        self.results.append(pulled.result)
        self.look()
        return pulled

    def look(self) -> str:
        """Return which release is current, after checking that it may be, and is whole."""
        current = self.device.current or "nothing"
        names = [name for name, digest in self.offers.digests.items() if digest[:16] == current]
        name = names[0] if names else current
        if name not in self.allowed:
            raise Wrong(f"{name} is current, and {sorted(self.allowed)} may be: {self.results}")
        if not is_whole(str(self.device.base / "current"), self.offers.digests[name]):
            raise Wrong(f"{name} is current and not whole: {self.results}")
        return name

    def require(self, pulled: Pulled, *results: str) -> None:
        """Raise unless a run ended in one of these ways."""
        if pulled.result not in results:
            raise Wrong(f"a run ended with {pulled.result!r} ({pulled.text}), not {results}")

    def start(self) -> subprocess.Popen[bytes]:
        """Start the agent in the background."""
        return subprocess.Popen(
            self.device.argv(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )


Kind = Callable[[Run], str]
"""Disturbs a device; returns what must be current once nothing disturbs it any more."""


def answers_5xx(run: Run) -> str:
    status = run.random.choice([429, 500, 502, 503, 504])
    run.gate.disturb(_some_request(run), answer_with(status), times=run.random.randint(1, 9))
    run.require(run.pull(), "installed", "registry")
    return NEW


def layer_is_cut(run: Run) -> str:
    run.gate.disturb("GET .*/blobs/", cut_at(run.random.randint(0, 200_000)), times=3)
    run.require(run.pull(), "installed", "offline")
    return NEW


def bytes_are_wrong(run: Run) -> str:
    run.gate.disturb(_some_request(run), flip_a_byte, times=run.random.randint(1, 30))
    run.pull()
    return NEW


def every_byte_is_wrong(run: Run) -> str:
    run.gate.disturb("GET ", flip_a_byte)
    run.require(run.pull(), "corrupt", "unsigned")
    if run.look() != OLD:
        raise Wrong("it took what it could not check")
    return NEW


def registry_is_away(run: Run) -> str:
    run.device.write(registry="127.0.0.1:9")
    run.require(run.pull(), "offline")
    run.device.write(registry=run.gate.host)
    return NEW


def ranges_are_ignored(run: Run) -> str:
    run.gate.disturb("GET .*/blobs/", leave, without=("Range",))
    run.require(run.pull(), "installed")
    return NEW


def other_range_is_given(run: Run) -> str:
    def change(answer: Any) -> None:
        if answer.status == 206:
            answer.headers["Content-Range"] = "bytes 7-9/10"

    run.gate.disturb("GET .*/blobs/", change)
    run.pull()
    return NEW


def entry_is_replayed(run: Run) -> str:
    run.require(run.pull(), "installed")
    run.allowed = {NEW, LOWER}
    run.move(LOWER, 3, downgrade=True)
    run.require(run.pull(), "installed")
    run.move_tag(NEW)  # its entry has the sequence 2, and a good signature
    run.allowed = {LOWER}
    run.require(run.pull(), "replayed")
    return LOWER


def tag_is_moved_by_a_thief(run: Run) -> str:
    run.move_tag(run.random.choice([BROKEN, LOWER, "unsigned", "signed by a thief"]))
    run.allowed = {OLD}
    run.require(run.pull(), "unsigned")
    return OLD


def bundle_is_not_signed(run: Run) -> str:
    run.move(run.random.choice(["unsigned", "signed by a thief"]), 5)
    run.allowed = {OLD}
    run.require(run.pull(), "unsigned")
    return OLD


def entry_is_signed_by_a_thief(run: Run) -> str:
    run.move(LOWER, 9, run.offers.thief, downgrade=True)
    run.allowed = {OLD}
    run.require(run.pull(), "unsigned")
    return OLD


def entry_is_of_another(run: Run) -> str:
    others: list[dict[str, Any]] = [{"channel": "x"}, {"project": "x"}, {"target": "jetson"}, {}]
    other = run.random.choice(others)
    sequence: Any = 9 if other else run.random.choice([True, 0, -1, "9", 9.5])
    run.move(LOWER, sequence, downgrade=True, **other)
    run.allowed = {OLD}
    run.require(run.pull(), "unsigned")
    return OLD


def entry_names_another_release(run: Run) -> str:
    run.move(LOWER, 9, downgrade=True, release=run.offers.digests[NEW])
    run.allowed = {OLD}
    run.require(run.pull(), "corrupt")
    return OLD


def version_is_lower(run: Run) -> str:
    run.move(LOWER, 5)
    run.allowed = {OLD}
    run.require(run.pull(), "older")
    return OLD


def going_back_is_asked_for(run: Run) -> str:
    run.move(LOWER, 5, downgrade=True)
    run.allowed = {OLD, LOWER}
    run.require(run.pull(), "installed")
    return LOWER


def token_expires(run: Run) -> str:
    run.device.credentials = {"username": "board", "password": "right"}
    run.device.write()
    run.gate.login = "board:right"
    run.gate.tokens.add("none")
    at = run.random.randint(1, 8)
    seen = [0]

    def expire(_: Any) -> None:
        seen[0] += 1
        if seen[0] == at:
            run.gate.tokens.clear()
            run.gate.tokens.add("another")

    run.gate.disturb("GET ", expire)
    run.require(run.pull(), "installed")
    return NEW


def token_server_fails(run: Run) -> str:
    run.device.credentials = {"username": "board", "password": "right"}
    run.device.write()
    run.gate.login = "board:right"
    run.gate.tokens.add("none")
    run.gate.broken_tokens = run.random.randint(1, 9)
    run.require(run.pull(), "installed", "registry")
    run.gate.broken_tokens = 0
    return NEW


def login_is_wrong(run: Run) -> str:
    run.device.credentials = {"username": "board", "password": "wrong-canary"}
    run.device.write()
    run.gate.login, run.gate.is_basic = "board:right", run.random.random() < 0.5
    run.gate.tokens.add("none")
    pulled = run.pull()
    run.require(pulled, "denied")
    if "canary" in pulled.text + pulled.stderr:
        raise Wrong("the password is printed")
    run.device.credentials = {"username": "board", "password": "right"}
    run.device.write()
    run.require(run.pull(), "installed")
    return NEW


def disk_is_full(run: Run) -> str:
    free = run.random.randint(0, 200_000)
    filler = run.device.root / "filler"
    space = os.statvfs(run.device.root)
    with filler.open("wb") as file:
        file.write(bytes(max(0, space.f_bavail * space.f_frsize - free - (1 << 16))))
    run.require(run.pull(), "disk-full")
    filler.unlink()
    return NEW


def agent_is_killed(run: Run) -> str:
    for _ in range(3):
        agent = run.start()
        time.sleep(run.random.uniform(0.0, KILLED_S))
        agent.send_signal(run.random.choice([signal.SIGKILL, signal.SIGTERM]))
        agent.wait()
        run.look()
    return NEW


def agent_is_killed_in_its_trial(run: Run) -> str:
    mark = run.folder / "began"
    ends = run.random.choice([0, 1])
    hook = f"touch {mark}; sleep 5"
    run.device.write(health=["sh", "-c", hook])
    agent = run.start()
    while not mark.exists() and agent.poll() is None:
        time.sleep(0.01)
    agent.kill()
    agent.wait()
    if run.look() != NEW:
        raise Wrong("it was not switched to before its health check")
    run.device.write(health=["sh", "-c", f"exit {ends}"])
    run.require(run.pull(), *(["bad", "health"] if ends else ["unchanged"]))
    return OLD if ends else NEW


def clock_is_wrong(run: Run) -> str:
    years = run.random.choice(["-30y", "-5y", "+10y"])
    run.require(run.pull(LD_PRELOAD=str(FAKETIME), FAKETIME=years), "installed")
    return NEW


def goldens_differ(run: Run) -> str:
    run.move(BROKEN, 5)
    run.allowed = {OLD}
    run.require(run.pull(), "self-test")
    run.require(run.pull(), "bad")
    return OLD


def health_fails(run: Run) -> str:
    good = f"grep -q {OLD} {run.device.base}/current/name.txt"
    if run.random.random() < 0.5:
        run.device.write(health=["sh", "-c", good])
    else:
        run.device.write(health_url="http://127.0.0.1:9/health", hook_timeout_s=1.5)
    run.require(run.pull(), "health")
    if run.look() != OLD:
        raise Wrong("it did not go back")
    run.require(run.pull(), "bad")
    run.device.write(health=[], health_url=None)
    run.require(run.pull(), "bad")
    run.move(NEW, 3)
    run.require(run.pull(), "installed")
    return NEW


def one_release_is_kept(run: Run) -> str:
    run.device.write(health=["false"], keep_releases=1)
    run.require(run.pull(), "health")
    return OLD


def release_before_is_damaged(run: Run) -> str:
    before = run.device.base / "releases" / str(run.device.current)
    run.device.write(health=["sh", "-c", f"rm {before}/name.txt; exit 1"])
    run.require(run.pull(), "health")
    run.require(run.pull(), "bad")
    run.device.write(health=[])
    run.allowed = {NEW, LOWER}
    run.move(LOWER, 3, downgrade=True)
    run.require(run.pull(), "installed")
    return LOWER


def two_agents_run(run: Run) -> str:
    agents = [run.start() for _ in range(3)]
    for agent in agents:
        agent.wait()
    run.look()
    return NEW


def proxy_is_between(run: Run) -> str:
    address, asked = run.stack.enter_context(forward_proxy())
    run.device.credentials = {"proxy": address}
    run.device.write()
    run.require(run.pull(), "installed")
    if len(asked) != len(run.gate.asked):
        raise Wrong(f"{len(run.gate.asked)} requests, and {len(asked)} through the proxy")
    return NEW


def chunks_are_lies(run: Run) -> str:
    lie = json.dumps({"schema_version": 1, "files": _list_lies(run)}).encode()
    bundle = run.offers.folder / NEW
    changed = {".edgepack/chunks.json": lie}
    run.offers.manifests[run.channel] = run.offers.publisher.publish(
        bundle, run.offers.key, replaced=changed
    )
    run.move(run.channel, 5)
    run.allowed = {OLD}
    run.require(run.pull(), "corrupt")
    return OLD


def layers_are_others(run: Run) -> str:
    changed = {"name.txt": b"evil", "models/net.onnx": b"evil" * 1000}
    path = run.random.choice(sorted(changed))
    run.offers.manifests[run.channel] = run.offers.publisher.publish(
        run.offers.folder / NEW, run.offers.key, replaced={path: changed[path]}
    )
    run.move(run.channel, 5)
    run.allowed = {OLD}
    run.require(run.pull(), "corrupt")
    return OLD


def device_is_leased(run: Run) -> str:
    from edgepack.ondevice.agent import edgepack_lease as lease

    leases = lease.Leases(str(run.device.root))
    wish = {"owner": "bench", "purpose": "bench", "exclusive": True, "reserved": False}
    record = leases.take({**wish, "ttl_s": 60.0})
    run.require(run.pull(), "busy")
    leases.drop([record])
    return NEW


def state_is_torn(run: Run) -> str:
    (run.device.folder / "state.json").write_bytes(b'{"schema_version": 1, "chan')
    run.require(run.pull(), "settings")
    (run.device.folder / "state.json").unlink()
    return NEW


def _some_request(run: Run) -> str:
    return run.random.choice(
        [
            "HEAD ",
            "GET .*/manifests/",
            "GET .*/(manifests/sha256-|referrers/)",
            "GET .*/blobs/",
            "GET ",
        ]
    )


def _list_lies(run: Run) -> dict[str, Any]:
    size = (run.offers.folder / NEW / "models/net.onnx").stat().st_size
    half = size // 2
    return run.random.choice(
        [
            {"models/net.onnx": [["0" * 64, half], ["1" * 64, size - half]]},
            {"models/net.onnx": [["0" * 64, size + 1]]},
            {"models/net.onnx": [["0" * 64, -1], ["1" * 64, size + 1]]},
            {"models/net.onnx": "what"},
            {},
        ]
    )


KINDS: dict[str, Kind] = {
    kind.__name__.replace("_", "-"): kind
    for kind in (
        answers_5xx,
        layer_is_cut,
        bytes_are_wrong,
        every_byte_is_wrong,
        registry_is_away,
        ranges_are_ignored,
        other_range_is_given,
        entry_is_replayed,
        tag_is_moved_by_a_thief,
        bundle_is_not_signed,
        entry_is_signed_by_a_thief,
        entry_is_of_another,
        entry_names_another_release,
        version_is_lower,
        going_back_is_asked_for,
        token_expires,
        token_server_fails,
        login_is_wrong,
        disk_is_full,
        agent_is_killed,
        agent_is_killed_in_its_trial,
        clock_is_wrong,
        goldens_differ,
        health_fails,
        one_release_is_kept,
        release_before_is_damaged,
        two_agents_run,
        proxy_is_between,
        chunks_are_lies,
        layers_are_others,
        device_is_leased,
        state_is_torn,
    )
}


def why_not(kind: str) -> str:
    """Return what a kind needs that this machine lacks."""
    if kind == "disk-is-full" and not can_mount():
        return "the right to mount"
    if kind == "clock-is-wrong" and not FAKETIME.exists():
        return "libfaketime (apt-get install libfaketime)"
    return ""


def run_one(kind: str, offers: Offers, gate: Gate, base: Path, folder: Path, seed: str) -> str:
    """Disturb a device, and return what is wrong then; nothing if it has what it should have.

    ``base`` is the root of a device whose current release is the old one.
    """
    root = folder / "root"
    channel = f"c{seed.replace('/', '-')}"
    with ExitStack() as stack:
        if kind == "disk-is-full":
            stack.enter_context(_small_disk(root))
        shutil.copytree(base, root, symlinks=True, dirs_exist_ok=True)
        gate.forget()
        # A registry has an API for what refers to a manifest, or tags.
        gate.has_referrers = random.Random(f"referrers {seed}").random() < 0.5
        device = PullingDevice(
            root,
            gate.host,
            format_signer(offers.key),
            {"repository": offers.publisher.repository, "channel": channel, "patience_s": 3.0},
        )
        run = Run(offers, gate, device, channel, random.Random(seed), folder, stack, {OLD, NEW})
        run.move(NEW, 2)
        try:
            wanted = KINDS[kind](run)
            gate.faults.clear()
            for _ in range(_SETTLING):
                if run.pull().result in ("unchanged", "bad", "replayed", "older"):
                    break
            found = run.look()
        except Wrong as wrong:
            return str(wrong)
    return "" if found == wanted else f"{found} is current at the end, not {wanted}: {run.results}"


def make_base(offers: Offers, gate: Gate, root: Path) -> Path:
    """Pull the old release into a new root."""
    gate.forget()
    offers.publisher.move(offers.manifests[OLD], "base", 1, offers.key)
    settings = {"repository": offers.publisher.repository, "channel": "base"}
    device = PullingDevice(root, gate.host, format_signer(offers.key), settings)
    pulled = device.pull()
    if pulled.result != "installed":
        raise RuntimeError(f"the first release was not installed: {pulled}")
    (device.folder / "state.json").unlink()
    return root


@contextmanager
def _small_disk(root: Path) -> Iterator[None]:
    root.mkdir(parents=True)
    options = "size=4M,nr_inodes=1000"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(root)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(root)], check=True)
