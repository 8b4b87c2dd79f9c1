"""What a backend is: the facts and rules of one execution provider, under the same few names."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from edgepack.model.graph import Graph, Node
from edgepack.project.profile import BackendName, DeviceKind, Recipe, Variant


@dataclass(frozen=True)
class Refusal:
    """Why a provider does not take a node."""

    reason: str
    """What was found and what the provider takes, without the node's name."""
    remedy: str
    """What the user can do, or what edgepack does about it."""


@dataclass(frozen=True)
class Misfit:
    """Why a variant, as a profile writes it, cannot be what it says."""

    key: tuple[str | int, ...]
    """The key of the variant that is to blame, such as ``("dialect", "activations")``."""
    problem: str
    hint: str


class Backend(Protocol):
    """A backend module: constants, and functions that read a graph and nothing else."""

    NAME: BackendName
    PROVIDER: str
    """The execution provider that the backend is about."""
    PROVIDERS: frozenset[str]
    """All that a variant of this backend may list: this one and those that nodes fall back to."""
    RECIPES: frozenset[Recipe]
    FORMATS: frozenset[str]
    """File formats it loads: ``onnx``, ``ort-fixed``, ``ort-runtime``."""
    STATIC_SHAPES: bool
    """Whether it takes only nodes whose dimensions are all known."""
    REWRITES: tuple[str, ...]
    """Rewrites (:mod:`edgepack.steps.graph.rewritten`) that give it more nodes, in order."""
    LAST_REWRITES: tuple[str, ...]
    """Names of rewrites of the finished model, after the recipe."""
    FLOAT32_OPS: frozenset[str]
    """Operators that the fp16 recipe leaves in float32 for it."""
    PER_TENSOR_OPS: tuple[str, ...]
    """Operators whose weights it wants with one scale, even in a dialect with one per channel."""
    QUANTIZES_EVERY_OP: bool
    """Whether int8 is for operators of every type, not for those that gain from it on a CPU."""

    def misfits(self, variant: Variant, device: DeviceKind) -> list[Misfit]:
        """Return what is wrong with a variant, int8 dialects that run as float above all.

        Whether recipe, format, providers and options are among the backend's is checked for all
        backends alike (:mod:`edgepack.targets`), not here.
        """

    def refusals(self, graph: Graph, variant: Variant) -> dict[int, Refusal]:
        """Return the nodes that the provider does not take, by index, each with the reason."""


@dataclass(frozen=True)
class NodePlacement:
    """Where one node is predicted to run."""

    node: Node
    provider: str
    refusal: Refusal | None
    """Why it does not run on the backend's provider; None if it does."""


@dataclass(frozen=True)
class Placement:
    """Where every node of a graph is predicted to run."""

    nodes: tuple[NodePlacement, ...]
    partitions: int
    """Connected pieces of the graph that go to the backend's provider."""

    @property
    def share(self) -> float:
        """The part of the nodes that the backend's provider takes, 0 to 1."""
        taken = sum(placed.refusal is None for placed in self.nodes)
        return taken / len(self.nodes) if self.nodes else 0.0


def predict(backend: Backend, graph: Graph, variant: Variant) -> Placement:
    """Return where the nodes of a graph will run, from the backend's rules."""
    refusals = backend.refusals(graph, variant)
    fallback = next(
        (p.name for p in variant.providers if p.name != backend.PROVIDER), "CPUExecutionProvider"
    )
    placed = tuple(
        NodePlacement(
            node,
            fallback if node.index in refusals else backend.PROVIDER,
            refusals.get(node.index),
        )
        for node in graph.nodes
    )
    taken = [p.node for p in placed if p.refusal is None]
    return Placement(placed, len(partitions(graph, taken)))


def partitions(graph: Graph, taken: Collection[Node]) -> list[list[Node]]:
    """Return the pieces of the graph that a provider gets at once, in topological order.

    A node that the provider takes joins a piece unless it depends on a node outside which itself
    depends on that piece; then the next piece begins. Nodes that do not touch may share a piece.
    Source: onnxruntime core/providers/partitioning_utils.cc groups them so (1.24, read).
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
