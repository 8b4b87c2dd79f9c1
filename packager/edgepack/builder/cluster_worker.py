"""What runs in the processes of a Dask cluster: one step of a plan at a time.

A step runs in a child of the Dask worker, with the environment that it has in a build alone, so
that its output has the same bytes, and a library that crashes costs a step and not a worker.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from distributed import Worker, WorkerPlugin, get_worker

from edgepack.base.machine import find_processor, find_vectors, read_available_memory
from edgepack.base.processes import Workers
from edgepack.builder.cache import Artifact, StepCache, hash_code
from edgepack.builder.entries import DamagedError, pack_entry, write_entry
from edgepack.errors import ToolError
from edgepack.steps.base import Step, run_step

NAME = "edgepack"
MEMORY = "MEMORY"
"""The resource of bytes of memory; a worker that declares it itself keeps what it says."""
MISSING = "not installed"
PLENTY = 1_000_000
"""How much a worker has of a resource that is not used up."""
SIMULATORS = ("onnxruntime-qnn",)
PROCESSOR = ("processor", "vector instructions")
"""Of an identity, what only those need that do steps."""
_LIBRARIES = ("distributed", "numpy", "onnx", "onnxruntime", "onnxsim", "pillow", "sympy")


def find_identity() -> dict[str, str]:
    """Return what has to be the same on all machines for their outputs to have the same bytes."""
    found = {"edgepack": f"{find_version(NAME)} (code {hash_code()[:12]})"}
    found |= {name: find_version(name) for name in _LIBRARIES}
    return found | dict(zip(PROCESSOR, (find_processor(), find_vectors()), strict=True))


def find_version(package: str) -> str:
    """Return a package's version, or that there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return MISSING


@dataclass(frozen=True)
class Order:
    """A step for a worker, with nothing of the machine that orders it but paths that both see."""

    step: Step
    key: str
    """In the cache."""
    inputs: Mapping[str, str]
    """By the input's name, the name of an entry."""
    token: str
    """The resource of workers that may do it."""
    mark: str
    """A file in the cache that both see; empty where entries travel as bytes."""
    topic: str
    """Of the events that tell how far it is."""
    most_bytes: int
    """The largest output that travels as bytes."""


@dataclass(frozen=True)
class Outcome:
    """What a worker made."""

    entry: bytes
    """Packed; empty where the cache's folder has it."""
    notes: tuple[str, ...]
    """Lines for the user."""
    worker: str
    """Its name."""
    too_large: bool = False
    """Whether it is larger than may travel, and so is not here."""
    unseen: bool = False
    """Whether nothing was made, because the worker does not see the cache's folder."""


class Station(WorkerPlugin):
    """What makes a Dask worker one that does steps: it says what it has, and keeps processes.

    A worker whose identity is another gets no resource of this one's name, and so no step.
    """

    idempotent = True

    def __init__(self, token: str, identity: Mapping[str, str]) -> None:
        """Describe the machine that orders: builds on machines alike share a worker's processes.

        Args:
            token: The name of the resource that workers like it have; it is the plugin's, too.
            identity: Of that machine.
        """
        self.name = self.token = token
        self.identity = dict(identity)
        self.processes: Workers | None = None

    async def setup(self, worker: Worker) -> None:
        """Say what the worker has."""
        os.environ["ORT_DISABLE_TELEMETRY"] = "1"
        self.processes = Workers(worker.state.nthreads)
        if find_identity() != self.identity:
            return
        resources = {self.token: PLENTY}
        if MEMORY not in worker.state.total_resources:
            limit = worker.memory_manager.memory_limit
            free = read_available_memory()
            resources[MEMORY] = min(limit, free) if limit else free
        for package in SIMULATORS:
            if (found := find_version(package)) != MISSING:
                resources[f"{package} {found}"] = 1
        await worker.set_resources(**resources)

    async def teardown(self, worker: Worker) -> None:
        """End the processes."""
        del worker
        if self.processes is not None:
            self.processes.__exit__(None, None, None)


def can_see(place: str) -> bool:
    """Return whether this machine sees a file whose name is its content."""
    try:
        return Path(place).read_text(encoding="utf-8") == Path(place).name
    except OSError:
        return False


def do_step(order: Order, *given: Outcome | bytes) -> Outcome:
    """Do one step in a worker.

    Args:
        order: The step.
        given: Its inputs in the order of ``order.inputs``, packed; none where both see the cache.

    Raises:
        EdgepackError: The step's own.
        ToolError: The worker's disk is full, or an input did not arrive.
    """
    worker = get_worker()
    try:
        if order.mark:
            return _do_in_cache(order, worker)
        return _do_by_bytes(order, given, worker)
    except (OSError, DamagedError) as error:
        raise ToolError(
            f"the worker {worker.address} could not do {order.step.name}: {error}",
            hint="look at its disk and its memory, or leave that worker out",
        ) from error


def _do_in_cache(order: Order, worker: Worker) -> Outcome:
    if not can_see(order.mark):
        return Outcome(b"", (), str(worker.name), unseen=True)
    cache, paths = StepCache(Path(order.mark).parent), {}
    for name, entry in order.inputs.items():
        found = cache.find(entry)
        if found is None:
            raise DamagedError(f"the cache's folder has no {entry} here")
        found.require_whole()
        paths[name] = found.path
    notes: list[str] = []
    cache.keep(order.key, _make_filler(order, paths, notes, worker))
    return Outcome(b"", tuple(notes), str(worker.name))


def _do_by_bytes(order: Order, given: tuple[Outcome | bytes, ...], worker: Worker) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="edgepack-", dir=worker.local_directory) as scratch:
        paths = {}
        for (name, entry), packed in zip(order.inputs.items(), given, strict=True):
            paths[name] = Path(scratch) / name
            paths[name].mkdir()
            data = packed.entry if isinstance(packed, Outcome) else packed
            write_entry(entry, [data], paths[name])
        out, notes = Path(scratch) / ".out", list[str]()
        out.mkdir()
        _make_filler(order, paths, notes, worker)(out)
        files = sorted(out.iterdir())
        size = sum(path.stat().st_size for path in files)
        if size > order.most_bytes:
            return Outcome(b"", (), str(worker.name), too_large=True)
        return Outcome(pack_entry(order.key, files), tuple(notes), str(worker.name))


def _make_filler(
    order: Order, paths: Mapping[str, Path], notes: list[str], worker: Worker
) -> Callable[[Path], object]:
    """Return what writes the step's output into an empty folder."""
    station = worker.plugins[order.token]
    if not isinstance(station, Station) or station.processes is None:
        raise OSError(f"it has no {order.token}")
    processes = station.processes

    def tell(kind: str, *what: Any) -> None:  # noqa: ANN401  (what a step reports)
        worker.log_event(order.topic, {"kind": kind, "key": order.key, "what": what})

    def fill(out: Path) -> object:
        tell("begin", str(worker.name))
        return processes.call(
            run_step,
            order.step,
            paths,
            out,
            on_progress=lambda *far: tell("progress", *far),
            on_note=notes.append,
        )

    return fill


def get_entry(artifact: Artifact) -> str:
    """Return the name of an output in the cache."""
    return artifact.path.name
