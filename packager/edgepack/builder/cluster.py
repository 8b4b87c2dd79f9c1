"""Gives steps of builds to the workers of a Dask cluster.

Steps that read the user's own files run on this machine, and so does whatever no worker can take:
workers get outputs of steps, and give outputs of steps. These move through the cache's folder where
all workers see it, and else as bytes, between the workers themselves where they can.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgepack.builder.cache import Artifact, StepCache
from edgepack.builder.entries import pack_entry, write_entry
from edgepack.builder.room import Room
from edgepack.errors import ToolError, UsageError
from edgepack.model.simulating import Simulator
from edgepack.steps.base import Step

if TYPE_CHECKING:
    from distributed import Client, Future

MOST_BYTES = 256_000_000
"""The largest output that travels as bytes, and the most that the inputs of a step may have."""
CONNECT_S = 10
PREPARE_S = 60
"""How long the workers may take to answer before the first step, in seconds: they import much."""
LONE_S = 60.0
"""How long a build waits while its scheduler has no worker, in seconds."""
_LOOK_S, _TRIES = 2.0, 3
_CANCELLED = (asyncio.CancelledError, concurrent.futures.CancelledError)


@dataclass(frozen=True)
class Told:
    """Who hears how far a step on a worker is."""

    owner: threading.Event
    """Of the build that ordered it: set when that is given up."""
    begin: Callable[[str], None]
    """Takes the worker's name."""
    progress: Callable[..., None]
    note: Callable[[str], None]


@dataclass
class Cluster:
    """The workers that a scheduler has; methods may be called from several threads."""

    address: str
    client: Client
    cache: StepCache
    token: str
    """The resource of the workers whose outputs have this machine's bytes."""
    mark: str
    """A file in the cache's folder, where all of them see it; else empty."""
    topic: str
    slots: int
    """How many steps they do at a time."""
    told: dict[str, Told] = field(default_factory=dict)
    """By key of the steps that are under way."""
    held: dict[str, tuple[Future[Any], set[threading.Event]]] = field(default_factory=dict)
    """By entry, what holds its bytes on a worker, and which builds need it."""
    ordered: dict[str, tuple[Future[Any], threading.Event]] = field(default_factory=dict)
    """By key, steps that are under way, and of which build."""
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set when all builds are given up."""
    room: Room | None = None
    """What this machine has for several builds together; None where there is one."""
    timed: threading.Lock = field(default_factory=threading.Lock)
    making: dict[str, threading.Lock] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    seen: tuple[float, list[dict[str, float]]] = (0.0, [])
    """When the workers' resources were looked at last, and what they were."""

    def find_resources(self, step: Step, memory: int) -> dict[str, float]:
        """Return what a step takes of a worker."""
        from edgepack.builder.cluster_worker import MEMORY

        simulators = dict.fromkeys(map(str, find_simulators(step)), 1)
        return {self.token: 1, MEMORY: memory, **simulators}

    def takes(self, step: Step, memory: int, inputs: int) -> bool:
        """Return whether any worker has what a step takes.

        Args:
            step: The step.
            memory: How much it takes, in bytes.
            inputs: The size of its inputs, in bytes.
        """
        if not self.mark and inputs > MOST_BYTES:
            return False
        return self._can(self.find_resources(step, memory))

    def _can(self, needed: Mapping[str, float]) -> bool:
        return any(
            all(worker.get(name, 0) >= count for name, count in needed.items())
            for worker in self._look()
        )

    def _look(self) -> list[dict[str, float]]:
        with self.lock:
            when, found = self.seen
            if time.monotonic() - when > _LOOK_S:
                with self._explaining():
                    workers = self.client.scheduler_info(n_workers=-1)["workers"].values()
                found = [dict(worker["resources"]) for worker in workers]
                self.seen = (time.monotonic(), found)
            return found

    def make(
        self,
        step: Step,
        key: str,
        inputs: Mapping[str, Artifact],
        memory: int,
        told: Told,
    ) -> Artifact | None:
        """Have a worker do a step, and return its output, in the cache; None if it is too large.

        Raises:
            EdgepackError: The step's own.
            ToolError: The cluster lost it.
        """
        self.told[key] = told
        try:
            outcome = self._ask(step, key, inputs, memory, told.owner)
        finally:
            self.told.pop(key, None)
            self.ordered.pop(key, None)
        told.begin(outcome.worker)  # what a worker says while it is at it may come after the end
        for line in outcome.notes:
            told.note(line)
        if outcome.too_large:
            return None
        if not outcome.entry:
            return _find_written(self.cache, key)
        return self.cache.keep(key, lambda out: write_entry(key, [outcome.entry], out))

    def _ask(
        self,
        step: Step,
        key: str,
        inputs: Mapping[str, Artifact],
        memory: int,
        owner: threading.Event,
    ) -> Any:  # noqa: ANN401  (an Outcome)
        from edgepack.builder.cluster_worker import Order, do_step, get_entry

        names = {name: get_entry(artifact) for name, artifact in inputs.items()}
        for attempt in range(_TRIES):
            mark = self.mark
            order = Order(step, key, names, self.token, mark, self.topic, MOST_BYTES)
            given = [] if mark else [self._hold(each, owner) for each in inputs.values()]
            needed = self.find_resources(step, memory)
            with self._explaining(step):
                future = self.client.submit(
                    do_step,
                    order,
                    *given,
                    key=self._name(key, mark, attempt),
                    resources=needed,
                    pure=False,
                )
                with self.lock:
                    self.ordered[key] = (future, owner)
                self.require_going(owner)
                try:
                    outcome = self._wait(future, needed)
                except _CANCELLED:
                    if self.client.status != "running":
                        raise
                    # A worker that held an input is gone, and the input was no step's output there.
                    with self.lock:
                        for name in names.values():
                            self.held.pop(name, None)
                    continue
            if outcome.unseen:
                # One that came later has another disk; from now on entries travel to all of them.
                self.mark = ""
                continue
            if not mark:
                with self.lock:
                    self.held[key] = (future, {owner})
            return outcome
        raise self._make_lost_error(f"{step.name} was lost {_TRIES} times")

    def _name(self, key: str, mark: str, attempt: int) -> str:
        """Return a step's name among all of the cluster: whoever orders it too waits for it."""
        place = hashlib.sha256(str(self.cache.folder).encode()).hexdigest()[:8] if mark else "bytes"
        return f"edgepack-{key}-{place}" + (f"-{attempt}" if attempt else "")

    @contextlib.contextmanager
    def once(self, key: str) -> Iterator[None]:
        """Let only one of the builds that run at once make a step."""
        with self.lock:
            mine = self.making.setdefault(key, threading.Lock())
        with mine:
            yield

    @property
    @contextlib.contextmanager
    def timing(self) -> Iterator[None]:
        """Let only one of the builds time models on this machine.

        Raises:
            ToolError: As :meth:`require_going`.
        """
        with self.timed:
            self.require_going()
            yield

    def require_going(self, owner: threading.Event | None = None) -> None:
        """Check that a build, or all, were not given up.

        Raises:
            ToolError: They were.
        """
        if self.stopping.is_set() or (owner and owner.is_set()):
            raise ToolError("the build was stopped", hint="start it again")

    def cancel(self, owner: threading.Event) -> None:
        """Give up what a build ordered; what a worker is at goes on to its end, unheard."""
        owner.set()
        with self.lock:
            ordered = [future for future, whose in self.ordered.values() if whose is owner]
        with contextlib.suppress(ToolError), self._explaining():
            self.client.cancel(ordered)

    def stop(self) -> None:
        """Have all builds end: each looks at it before its next step, and while it waits."""
        self.stopping.set()

    def release(self, owner: threading.Event) -> None:
        """Let workers forget the outputs that only this build needed, when it ends."""
        with self.lock:
            for entry, (_, owners) in list(self.held.items()):
                owners.discard(owner)
                if not owners:
                    del self.held[entry]

    def _hold(self, artifact: Artifact, owner: threading.Event) -> Future[Any]:
        """Return what holds an output's bytes on a worker: the step that made it, or a copy."""
        from edgepack.builder.cluster_worker import get_entry

        entry = get_entry(artifact)
        with self.lock:
            if entry not in self.held:
                packed = pack_entry(entry, [artifact.path / name for name in artifact.files])
                with self._explaining():
                    self.held[entry] = (self.client.scatter(packed, hash=False), set())
            future, owners = self.held[entry]
            owners.add(owner)
            return future

    def _wait(self, future: Future[Any], needed: Mapping[str, float]) -> Any:  # noqa: ANN401
        """Return what a future becomes; while no worker can take it, not for ever."""
        ended, lone_since = threading.Event(), None
        future.add_done_callback(lambda _: ended.set())
        while not ended.wait(_LOOK_S) and not future.done():
            if self._can(needed):
                lone_since = None
                continue
            lone_since = lone_since or time.monotonic()
            if time.monotonic() - lone_since > LONE_S:
                raise self._make_lost_error(
                    f"no worker that can go on has been there for {LONE_S:.0f} s"
                )
        return future.result()

    @contextlib.contextmanager
    def _explaining(self, step: Step | None = None) -> Iterator[None]:
        """Have what Dask raises say what to do."""
        from distributed import KilledWorker
        from distributed.comm.core import CommClosedError

        try:
            yield
        except KilledWorker as error:
            name = step.name if step else "a step"
            raise ToolError(
                f"{name} ended {error.allowed_failures + 1} workers of {self.address}, the last one"
                f" {error.last_worker.address}",
                hint="see why in that worker's log; most often memory ran out: give workers more,"
                " or let them say how much they have (dask worker --resources MEMORY=BYTES)",
            ) from error
        except (*_CANCELLED, CommClosedError, OSError, RuntimeError) as error:
            raise self._make_lost_error(str(error) or "it does not answer") from error

    def _make_lost_error(self, why: str) -> ToolError:
        return ToolError(
            f"the scheduler {self.address} was lost: {why}",
            hint="see whether it and its workers run, and build again: finished steps are in the"
            " cache; without --on all is done on this machine",
        )

    def hear(self, event: tuple[float, dict[str, Any]]) -> None:
        """Pass on how far a step is."""
        message = event[1]
        told = self.told.get(message["key"])
        if told is not None:
            (told.begin if message["kind"] == "begin" else told.progress)(*message["what"])


def _find_written(cache: StepCache, key: str) -> Artifact:
    """Return an output that a worker wrote; a network's file system may show it a little later."""
    end = time.monotonic() + CONNECT_S
    while (found := cache.find(key)) is None:
        if time.monotonic() > end:
            raise ToolError(
                f"a worker wrote {key} into the cache, and it is not in {str(cache.folder)!r}",
                hint="see whether that folder is the same on all workers",
            )
        time.sleep(0.05)
    return found


def find_simulators(value: object) -> set[Simulator]:
    """Return the simulators that a step's settings name."""
    if isinstance(value, Simulator):
        return {value}
    if dataclasses.is_dataclass(value):
        fields = (getattr(value, each.name) for each in dataclasses.fields(value))
        return set().union(*map(find_simulators, fields))
    return set()


@contextlib.contextmanager
def open_cluster(address: str, cache: StepCache) -> Iterator[Cluster]:
    """Connect to a scheduler, and prepare its workers and those that come later.

    Raises:
        ToolError: Dask is not installed, nothing answers, or a worker is not like this machine.
        UsageError: It is no address of a scheduler.
    """
    try:
        from distributed import Client
    except ImportError as error:
        raise ToolError(
            "builds on a cluster need Dask's distributed, which is not installed",
            hint="pip install 'edgepack[dask]', here and on the workers",
        ) from error
    from edgepack.builder.cluster_worker import Station, can_see, find_identity

    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    nonce = uuid.uuid4().hex
    with _connected(Client, address) as client, _marking(cache.folder, nonce) as mark:
        with contextlib.suppress(TimeoutError):
            client.wait_for_workers(1, timeout=CONNECT_S)
        identity = find_identity()
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        token, topic = f"edgepack-{digest[:12]}", f"edgepack-{nonce}"
        with _preparing(address):
            _require_same(client, address, identity)
            _wait_for_answer(client, client.register_plugin, Station(token, identity))
            every = all(_wait_for_answer(client, client.run, can_see, str(mark)).values())
            slots = sum(_wait_for_answer(client, client.nthreads).values())
        cluster = Cluster(address, client, cache, token, str(mark) if every else "", topic, slots)
        client.subscribe_topic(topic, cluster.hear)
        yield cluster


def _wait_for_answer(client: Client, what: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401  (its)
    """Return what a method of a client returns, within a time; Dask itself would wait for ever.

    In the client's own loop its methods return what is awaited (``Client.asynchronous``).

    Raises:
        TimeoutError: It took longer.
    """

    async def call() -> Any:  # noqa: ANN401
        return await what(*arguments)

    return client.sync(call, callback_timeout=PREPARE_S)


@contextlib.contextmanager
def _preparing(address: str) -> Iterator[None]:
    """Have what goes wrong before the first step say what to do."""
    try:
        yield
    except (*_CANCELLED, OSError) as error:
        why = str(error) or f"no answer within {PREPARE_S} s"
        raise ToolError(
            f"the workers of {address} could not be prepared: {why}",
            hint="see in their logs which one hangs or has ended, end it, and build again",
            where="--on",
        ) from error


@contextlib.contextmanager
def _connected(make: Callable[..., Client], address: str) -> Iterator[Client]:
    try:
        client = make(address, timeout=CONNECT_S, set_as_default=False, name="edgepack")
    except ValueError as error:
        raise UsageError(
            f"{address!r} is no address of a scheduler: {error}",
            hint="write it as 'dask scheduler' prints it: tcp://HOST:8786, or tls://HOST:8786",
            where="--on",
        ) from error
    except OSError as error:
        raise ToolError(
            f"no scheduler answers at {address}: {error}",
            hint="start one (dask scheduler), and workers (dask worker ADDRESS), with edgepack"
            " installed as here",
            where="--on",
        ) from error
    try:
        yield client
    finally:
        client.close()


def _require_same(client: Client, address: str, identity: Mapping[str, str]) -> None:
    """Check that the scheduler and its workers have the versions and the processor of this machine.

    Raises:
        ToolError: They differ; it names each difference.
    """
    from edgepack.builder.cluster_worker import PROCESSOR, find_identity

    hint = (
        "install the same versions there (pip install -c constraints.txt), or build where they are"
        " the same; else bundles would not have the bytes that they have alone"
    )
    try:
        found = dict(_wait_for_answer(client, client.run, find_identity))
        found["the scheduler"] = {
            **_wait_for_answer(client, client.run_on_scheduler, find_identity),
            **{name: identity[name] for name in PROCESSOR},
        }
    except ImportError as error:
        raise ToolError(f"workers of {address} lack what they need: {error}", hint=hint) from error
    lines = [
        f"{who} has {name} {theirs.get(name, 'of an older edgepack')}, and this machine {ours}"
        for who, theirs in found.items()
        for name, ours in identity.items()
        if theirs.get(name) != ours
    ]
    if lines:
        raise ToolError("\n  ".join([f"workers of {address} differ:", *lines]), hint=hint)
    if len(found) == 1:
        raise ToolError(
            f"{address} has no workers",
            hint=f"start some: dask worker {address}",
            where="--on",
        )


@contextlib.contextmanager
def _marking(folder: Path, nonce: str) -> Iterator[Path]:
    """Write a file into the cache by which workers know that they see it."""
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / nonce
    place.write_text(nonce, encoding="utf-8")
    try:
        yield place
    finally:
        place.unlink(missing_ok=True)
