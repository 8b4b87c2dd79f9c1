"""Defines a backend: the facts and rules of one execution provider, in one value."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from edgepack.model.graph import Graph, Node
from edgepack.project.profile import DeviceKind, Recipe, Variant

CPU = "CPUExecutionProvider"
"""The provider that takes every node, so that all others fall back to it."""


@dataclass(frozen=True)
class Refusal:
    """Why a provider does not take a node."""

    reason: str
    """What edgepack found and what the provider takes, without the node's name."""
    remedy: str
    """What the user can do, or what edgepack does about it."""


@dataclass(frozen=True)
class Misfit:
    """Why a variant, as a profile writes it, cannot be what it says."""

    key: tuple[str | int, ...]
    """The key of the variant that is to blame, such as ``("dialect", "activations")``."""
    problem: str
    hint: str


THREADS = "{threads}"
"""Stands, in a knob's values, for each number of threads."""


@dataclass(frozen=True)
class Knob:
    """One option of a provider that changes its speed, not its results.

    ``edgepack tune`` tries its values on a device. An option is a knob only if the golden outputs
    show whether a value is right: options that trade accuracy for speed (``use_tf32``,
    ``trt_fp16_enable``, ``precision``, ``enable_fast_math``) belong to the variant. Names and
    values are compared with :mod:`~edgepack.ondevice.runtime.edgepack_names`. Only the CPU's knobs
    were tried on hardware.
    """

    key: str
    values: tuple[str, ...]
    """The values that are tried beside the default. :data:`THREADS` stands for each number of
    threads."""
    source: str
    """What the option does, and the source of that."""
    device_type: str = ""
    """The only device type for which the option has an effect, where the provider has several."""


def find_no_misfits(variant: Variant, device: DeviceKind) -> list[Misfit]:
    """Return no misfits: for backends whose variants all fit."""
    del variant, device
    return []


def count_one_core(options: Mapping[str, str], session_threads: int, cpu_count: int) -> int:
    """Return 1: one thread drives what is not the processor, a GPU or an NPU."""
    del options, session_threads, cpu_count
    return 1


def count_session_cores(options: Mapping[str, str], session_threads: int, cpu_count: int) -> int:
    """Return the session's number of threads, which is one per core unless the session sets it."""
    del options
    return session_threads or cpu_count


@dataclass(frozen=True, kw_only=True)
class Backend:
    """All facts and rules of one execution provider."""

    name: str
    """The name in profiles: lower-case letters and digits."""
    provider: str
    """The execution provider's name in onnxruntime."""
    fallbacks: frozenset[str] = frozenset({CPU})
    """Providers that its nodes may fall back to, which a variant may list behind it."""
    recipes: frozenset[Recipe]
    """Recipes whose models the provider runs in the precision that the recipe promises."""
    fuses: frozenset[Recipe] = frozenset()
    """Recipes with which it runs attention as one operator of onnxruntime's. None for providers
    that compile a graph: they know the operators of ONNX alone."""
    formats: frozenset[str] = frozenset({"onnx"})
    """File formats it loads: ``onnx``, ``ort-fixed``, ``ort-runtime``."""
    misfits: Callable[[Variant, DeviceKind], list[Misfit]] = find_no_misfits
    """Returns what is wrong with a variant on a device, above all int8 dialects that run as float.

    :mod:`edgepack.backends.targets` checks for all backends whether recipe, format, providers and
    options are among the backend's."""
    refusals: Callable[[Graph, Variant], dict[int, Refusal]]
    """Returns the nodes of a graph that the provider does not take in a variant, by index, each
    with the reason. It reads only the graph."""
    static_shapes: bool = False
    """Whether it takes only nodes whose dimensions are all known."""
    shape_options: tuple[str, ...] = ()
    """Options that set the shapes of dynamic inputs for which the provider compiles: the least, the
    best and the greatest, each as ``name:1x3x224x224`` joined by commas. None where it needs no
    such options."""
    inline_weights: bool = False
    """Whether the provider refuses nodes with weights in another file, so that models cannot share
    weights."""
    early_rewrites: tuple[str, ...] = ()
    """Names of rewrites before the graph is simplified, which folds factors into weights and so
    takes operators' pieces apart."""
    rewrites: tuple[str, ...] = ()
    """Rewrites (:mod:`edgepack.steps.graph.rewritten`) after which it takes more nodes, in
    order."""
    last_rewrites: tuple[str, ...] = ()
    """Names of rewrites of the finished model, after the recipe."""
    float32_ops: frozenset[str] = frozenset()
    """Operators that the fp16 recipe leaves in float32 for this provider."""
    per_tensor_ops: tuple[str, ...] = ()
    """Operators whose weights need one scale, even in a dialect with one per channel."""
    every_op: bool = False
    """Whether int8 is for operators of every type, not only for those that gain from it on a
    CPU."""
    least_span: float = 0.0
    """The least range of an activation in int8-static models, in the tensor's unit."""
    output_grids: tuple[tuple[str, str, float, int], ...] = ()
    """Outputs whose scale and zero point it prescribes in int8-static models: operator, integer
    type, scale, zero point."""
    knobs: tuple[Knob, ...] = ()
    """Options that ``edgepack tune`` tries: every combination of their values and absences."""
    cores: Callable[[Mapping[str, str], int, int], int] = count_one_core
    """Returns on how many of the processor's cores an inference runs, from the provider's options,
    the session's threads (0 where it sets none) and the number of cores."""
    on_processor: bool = False
    """Whether its nodes are of the same device as the CPU's to onnxruntime, so that a session runs
    both in one order. False where that is not known. Source: their constructors name no device."""
    returns_early: bool = False
    """Whether its nodes return before what they began is computed, so that a profile has the times
    of their starts. Source: onnxruntime issues 7390 and 19930."""
    plugin: str = ""
    """The Python distribution that installs the provider as a library beside onnxruntime, if there
    is one. :data:`edgepack.ondevice.runtime.edgepack_names.PLUGINS` names its module, for devices.
    """
    simulated_on: tuple[str, str] | None = None
    """The system and machine, as :mod:`platform` names them, for which the plugin's distribution
    holds a simulator of the provider's hardware; None where there is no such thing."""
    hardware_option: str = ""
    """The provider's option that names the hardware for which its compiler makes a model; empty
    where nothing is compiled during a build."""
    hardware: tuple[str, ...] = ()
    """The values of that option that its compiler knows."""
    plugin_replaces: str = ""
    """The older distribution that has onnxruntime and the provider in one, where a plugin beside
    plain onnxruntime works as well."""
    device_files: tuple[str, ...] = ()
    """What its hardware has in ``/dev`` on Linux, as patterns of shells: a service that sees no
    hardware has to be given it."""
    native_libraries: tuple[str, ...] = ()
    """The libraries of the Android system that it loads; apps for API 31 and newer have to name
    them."""

    @property
    def providers(self) -> frozenset[str]:
        """All providers that a variant of this backend may list."""
        return self.fallbacks | {self.provider}


@dataclass(frozen=True)
class NodePlacement:
    """The provider on which one node is predicted to run."""

    node: Node
    provider: str
    refusal: Refusal | None
    """Why the node does not run on the backend's provider; None if it does."""


@dataclass(frozen=True)
class PredictedPlacement:
    """The provider on which each node of a graph is predicted to run."""

    nodes: tuple[NodePlacement, ...]
    partitions: int
    """Connected pieces of the graph that go to the backend's provider."""

    @property
    def share(self) -> float:
        """The part of the nodes that the backend's provider takes, 0 to 1."""
        taken = sum(placed.refusal is None for placed in self.nodes)
        return taken / len(self.nodes) if self.nodes else 0.0


def predict(backend: Backend, graph: Graph, variant: Variant) -> PredictedPlacement:
    """Return where the nodes of a graph will run, from the backend's rules."""
    refusals = backend.refusals(graph, variant)
    fallback = next((p.name for p in variant.providers if p.name != backend.provider), CPU)
    placed = tuple(
        NodePlacement(
            node,
            fallback if node.index in refusals else backend.provider,
            refusals.get(node.index),
        )
        for node in graph.nodes
    )
    taken = [p.node for p in placed if p.refusal is None]
    return PredictedPlacement(placed, len(find_partitions(graph, taken)))


def find_partitions(graph: Graph, taken: Collection[Node]) -> list[list[Node]]:
    """Return the pieces of the graph that a provider gets at once, in topological order.

    A node that the provider takes joins a piece unless it depends on a node outside which itself
    depends on that piece; then the next piece begins. Nodes that are not connected may share a
    piece. Source: onnxruntime core/providers/partitioning_utils.cc, which groups them this way
    (1.24, read).
    """
    wanted = {node.index for node in taken}
    pieces: dict[int, list[Node]] = {}
    rank: dict[int, int] = {}
    """By node: how often a path to it has left a piece."""
    for node in graph.nodes:
        inside = node.index in wanted
        names = (*node.inputs, *node.outer_inputs)
        before = [graph.producers[name] for name in names if name in graph.producers]
        rank[node.index] = max(
            (rank[source.index] + (source.index in wanted and not inside) for source in before),
            default=0,
        )
        if inside:
            pieces.setdefault(rank[node.index], []).append(node)
    return [pieces[key] for key in sorted(pieces)]
