"""Execution providers that edgepack does not know: plugins that a user's own profile names.

All that is known of one is what the profile says: its package, its library, which of its devices to
take, and the operators that it takes. The loader asks onnxruntime for the rest, on the device.
"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.utils import canonicalize_name

from edgepack.backends.base import Backend, Misfit, Refusal
from edgepack.model.graph import Graph
from edgepack.project.profile import DeviceKind, Profile, Variant

PLUGIN = "plugin"
"""The word for all such providers in a profile's ``backend``."""


def make_backend(variant: Variant) -> Backend:
    """Return what is known of the provider that a variant of :data:`PLUGIN` lists first."""
    return Backend(
        name=PLUGIN,
        provider=variant.providers[0].name if variant.providers else "",
        recipes=frozenset({"fp32", "fp16", "int8-static", "int8-dynamic"}),
        misfits=find_misfits,
        refusals=find_refusals,
    )


def find_misfits(variant: Variant, device: DeviceKind) -> list[Misfit]:
    """Return why a variant names no plugin that a loader could register."""
    found = []
    if device.os != "linux":
        problem = f"bundles for {device.os} register no plugin of a profile"
        found.append(Misfit(("backend",), problem, "give the target's own backends there"))
    if variant.providers and variant.providers[0].plugin is None:
        problem = f"nothing says where {variant.providers[0].name} is from"
        hint = "add plugin: {package: NAME, library: FOLDER/LIBRARY.so, ops: [Conv, ...]}"
        found.append(Misfit(("providers", 0), problem, hint))
    return found


def find_refusals(graph: Graph, variant: Variant) -> dict[int, Refusal]:
    """Return the nodes whose operators are not among those that the profile says, by index."""
    first = variant.providers[0]
    ops = first.plugin.ops if first.plugin else []
    return {
        node.index: Refusal(
            f"{node.qualified_op} is not among the operators that the profile says of {first.name}",
            "add it to 'ops' if the plugin takes it; else it runs on the CPU",
        )
        for node in graph.nodes
        if node.qualified_op not in ops
    }


def check_plugins(variant: Variant, profile: Profile) -> Iterator[Misfit]:
    """Yield plugins that no loader would register, or whose package nothing installs."""
    for place, provider in enumerate(variant.providers):
        if provider.plugin is None:
            continue
        key: tuple[str | int, ...] = ("providers", place, "plugin")
        if variant.backend != PLUGIN or place:
            problem = f"{provider.name} is given a plugin, and is not the first of backend {PLUGIN}"
            yield Misfit(key, problem, f"leave it out, or write backend: {PLUGIN}")
        elif canonicalize_name(provider.plugin.package) not in set(
            map(canonicalize_name, profile.runtime.packages)
        ):
            problem = f"runtime.packages has no {provider.plugin.package}, so no device installs it"
            hint = f'add {provider.plugin.package}: "==VERSION" there'
            yield Misfit((*key, "package"), problem, hint)
