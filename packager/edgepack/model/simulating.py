"""Runs models in a vendor's simulator: the provider's own software, on this machine's processor.

A simulator may crash, print, take seconds for an inference or never end: it runs in a process of
its own, with limits.
"""

from __future__ import annotations

import importlib
import importlib.util
import resource
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from edgepack.base.arrays import Array
from edgepack.base.machine import read_available_memory
from edgepack.base.processes import Workers, run_program
from edgepack.errors import BugError, ModelError, StepError, ToolError
from edgepack.model.running import format_runtime_error, list_runtime_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnxruntime

Value = TypeVar("Value")


@dataclass(frozen=True)
class Simulator:
    """A plugin whose library computes here what the provider's hardware computes elsewhere."""

    package: str
    """The distribution that holds it."""
    version: str
    module: str
    """The Python module that tells where the library is."""

    def __str__(self) -> str:
        return f"{self.package} {self.version}"


@dataclass(frozen=True)
class Simulation:
    """How models of a variant are simulated."""

    simulator: Simulator
    provider: str
    options: tuple[tuple[str, str], ...]
    """The provider's."""
    config: tuple[tuple[str, str], ...]
    """Session config entries."""
    budget_s: float
    """About how long it computes evaluation samples of one model, in seconds; it is stopped after
    twice that."""

    def __str__(self) -> str:
        return str(self.simulator)


def find_simulator(package: str, module: str) -> Simulator | None:
    """Return an installed simulator, without loading it; None if it is not installed."""
    if importlib.util.find_spec(module) is None:
        return None
    return Simulator(package, version(package), module)


@dataclass(frozen=True)
class SimulatedOutput:
    """An output of a simulated model."""

    name: str


class SimulatedSession:
    """A session in a simulator's process, with the two methods of onnxruntime's that runs need."""

    def __init__(
        self, call: Callable[..., Any], module: str, outputs: Sequence[str], nodes: Counter[str]
    ) -> None:
        self._call = call
        self._module = module
        self._outputs = [SimulatedOutput(name) for name in outputs]
        self.nodes = nodes
        """How many of the graph's nodes are on each execution provider."""

    def get_outputs(self) -> list[SimulatedOutput]:
        """Return the model's outputs."""
        return self._outputs

    def run(self, names: Sequence[str], feed: Mapping[str, Array], /) -> list[Array]:
        """Return the outputs of those names.

        Raises:
            StepError: The simulator fails, or takes too long.
        """
        found: list[Array] = self._call(_run_model, list(names), dict(feed))
        return found

    def find_missing_library(self) -> str:
        """Return what libraries of the plugin's lack on this machine; empty if nothing."""
        return str(self._call(_find_missing_library, self._module))


@contextmanager
def open_simulated(
    simulator: Simulator,
    model: Path,
    options: Mapping[str, str],
    config: Mapping[str, str],
    *,
    limit_s: float,
) -> Iterator[SimulatedSession]:
    """Open a session in a simulator; leaving the context ends its process.

    Args:
        simulator: An installed one.
        model: The file.
        options: The provider's.
        config: Session config entries.
        limit_s: After so many seconds from now the process is killed.

    Raises:
        StepError: The simulator refuses the model, crashes or takes too long.
    """
    with Workers(1) as workers:
        is_late = threading.Event()

        def stop() -> None:
            is_late.set()
            workers.kill()

        def call(function: Callable[..., Value], *arguments: object) -> Value:
            try:
                return workers.call(function, *arguments)
            except BugError:
                raise
            except (ModelError, ToolError) as error:
                why = f"took longer than {limit_s:g} s" if is_late.is_set() else error.problem
                raise StepError(f"{simulator}: {why}", hint=_INSTEAD) from error

        timer = threading.Timer(limit_s, stop)
        timer.daemon = True
        timer.start()
        try:
            outputs, nodes = call(_open_model, simulator.module, model, options, config)
            yield SimulatedSession(call, simulator.module, outputs, nodes)
        finally:
            timer.cancel()
            # Nobody else may get this process: the library stays loaded, and so does its limit.
            workers.kill()


def compile_model(
    simulator: Simulator,
    model: Path,
    options: Mapping[str, str],
    config: Mapping[str, str],
    out: Path,
    *,
    limit_s: float,
) -> None:
    """Write a model as the provider's compiler makes it: EPContext nodes and a file beside.

    Args:
        simulator: The plugin, which holds the compiler.
        model: The file.
        options: The provider's; they name the hardware.
        config: Session config entries.
        out: The file to write; what it holds lies beside it, under its name and ``_qnn.bin``.
        limit_s: After so many seconds from now the process is killed.

    Raises:
        StepError: The compiler refuses the model, crashes or takes too long, takes no node, or
            lacks a library here.
    """
    keys = {_COMPILE: "1", _EMBED: "0", _COMPILED: str(out)}
    with open_simulated(simulator, model, options, {**config, **keys}, limit_s=limit_s) as session:
        if out.is_file():
            return
        # onnxruntime goes on without a provider that cannot load a library, and says nothing.
        if missing := session.find_missing_library():
            raise StepError(
                f"{simulator} compiles nothing here: {missing}",
                hint="install that library: docs/install.md names what the extras need",
            )
        raise StepError(
            f"{simulator} took no node of the model",
            hint="edgepack inspect says why; leave compiled_for out",
        )


_COMPILE, _EMBED = "ep.context_enable", "ep.context_embed_mode"
_COMPILED = "ep.context_file_path"
_INSTEAD = "the variant is shipped without this proof: what counts is what a device does"

_opened: list[onnxruntime.InferenceSession] = []
"""The session of this process, which is a simulator's."""


def _open_model(
    module: str, model: Path, options: Mapping[str, str], config: Mapping[str, str]
) -> tuple[list[str], Counter[str]]:
    """Open the session of this process; return its outputs and where its nodes are."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    for key, value in {_RECORD: "1", **config}.items():
        settings.add_session_config_entry(key, value)
    try:
        _limit_memory()
        plugin = importlib.import_module(module)
        name = plugin.get_ep_name()
        onnxruntime.register_execution_provider_library(name, plugin.get_library_path())
        devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]
        settings.add_provider_for_devices(devices[:1], dict(options))
        session = onnxruntime.InferenceSession(str(model), settings, enable_fallback=0)
    except _list_errors() as error:
        problem = format_runtime_error(error) or type(error).__name__
        raise ModelError(problem, hint=_INSTEAD) from error
    _opened.append(session)
    nodes: Counter[str] = Counter()
    for part in session.get_provider_graph_assignment_info():
        nodes[part.ep_name] += len(part.get_nodes())
    return [output.name for output in session.get_outputs()], nodes


def _limit_memory() -> None:
    """Let this process take what is free, and no more than the user's own limit allows."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    free = read_available_memory()
    soft = free if most == resource.RLIM_INFINITY else min(free, most)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, most))


_RECORD = "session.record_ep_graph_assignment_info"


def _list_errors() -> tuple[type[Exception], ...]:
    """Return what a session raises, and a plugin that is not whole or has too little memory."""
    return (*list_runtime_errors(), AttributeError, ImportError, MemoryError, OSError)


def _find_missing_library(module: str) -> str:
    """Ask the dynamic linker: loading a library only to see whether it loads may crash."""
    folder = Path(importlib.import_module(module).get_library_path()).parent
    lacking = [
        f"{file.name} needs {line.split()[0]}, which is not there"
        for file in sorted(folder.glob("*.so"))
        for line in run_program(["ldd", str(file)], timeout_s=_LDD_S).text.splitlines()
        if line.endswith("=> not found")
    ]
    return "; ".join(lacking)


_LDD_S = 30.0


def _run_model(names: Sequence[str], feed: Mapping[str, Array]) -> list[Array]:
    try:
        found: list[Array] = _opened[-1].run(list(names), dict(feed))
    except _list_errors() as error:
        problem = format_runtime_error(error) or type(error).__name__
        raise ModelError(problem, hint=_INSTEAD) from error
    return found
