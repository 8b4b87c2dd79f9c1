"""``edgepack tune``: which settings a bundle runs fastest with on a device, searched there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgepack.base.progress import Progress, Silent
from edgepack.bundle.reading import Bundle
from edgepack.bundle.unused import Unused
from edgepack.devices.inventory import Device
from edgepack.devices.probing import probe
from edgepack.devices.transports import connect, require_machine
from edgepack.errors import EdgepackError, RemoteCommandError, UsageError
from edgepack.measure.bench.joining import can_check
from edgepack.measure.bench.session import (
    INTERRUPTS,
    ask_processors,
    explain_end,
    open_harness,
    read_variants,
    require_topology,
)
from edgepack.measure.limits import split_by_limits
from edgepack.measure.tune.assembling import make_report
from edgepack.measure.tune.norms import has_norms
from edgepack.measure.tune.searching import Site, TuneQuestion, TuneSearch
from edgepack.measure.tune.space import list_settings
from edgepack.records.topology import Topology
from edgepack.records.tuning import Settings, TuneReport


@dataclass(frozen=True)
class TunePlan:
    """What would be tried."""

    device: str
    bundle: str
    topology: Topology
    candidates: list[Settings]
    unused: list[Unused]


def plan_tuning(question: TuneQuestion, device: Device) -> TunePlan:
    """Return what :func:`tune` would try; this only asks the device for its processors.

    Raises:
        EdgepackError: As :func:`tune`, before anything is pushed.
    """
    bundle = _open_bundle(question, device)
    variants, unused = split_by_limits(bundle.manifest, question.variants, question.limits)
    with connect(device) as transport:
        facts = probe(device, transport)
        topology = ask_processors(device, transport, facts)
    return TunePlan(
        device.name,
        bundle.manifest.id,
        topology,
        [
            settings
            for each in variants
            for settings in list_settings(
                each,
                topology,
                arch=facts.arch,
                lean=question.limits.memory_mb is not None,
                older=not can_check(bundle.manifest),
                norms=has_norms(bundle, each),
            )
        ],
        unused,
    )


def tune(
    question: TuneQuestion,
    device: Device,
    *,
    progress: Progress | None = None,
    on_unfinished: Callable[[TuneReport], None] = lambda _: None,
) -> TuneReport:
    """Search the settings with which a bundle is fastest on a device; nothing is stored.

    The device is leased meanwhile and its current release is not touched. Every candidate must
    reach the golden outputs, like the bundle's variants. The fastest is the answer only if pairs of
    process runs show that it is no slower than onnxruntime's defaults.

    Args:
        question: What and how.
        device: Where.
        progress: Where to report; default: nowhere.
        on_unfinished: Called with the report of what was measured if it ends early, whose answer is
            the defaults; then the error or interrupt is raised.

    Raises:
        UsageError: There is no such variant, or the budget is too small for any answer.
        BundleError: The bundle is incomplete or altered.
        LimitError: Every variant misses a limit.
        DeviceError: The device cannot be reached or used, or is not the bundle's target; others
            hold it, or may have used it meanwhile.
        RemoteCommandError: No variant works there, or none with onnxruntime's defaults.
    """
    bundle = _open_bundle(question, device)
    variants, unused = split_by_limits(bundle.manifest, question.variants, question.limits)
    progress = progress or Silent()
    search: TuneSearch | None = None
    try:
        with open_harness(
            bundle, device, "tune", wait_s=question.wait_s, progress=progress
        ) as harness:
            selection = harness.select(variants[0].id if len(variants) == 1 else None)
            topology = require_topology(harness)
            unused += selection.unused
            out = {each.variant for each in unused}
            left = [variant for variant in variants if variant.id not in out]
            if not left:
                raise RemoteCommandError(
                    "none of the variants works there: "
                    + "; ".join(f"{each.variant}: {each.reason}" for each in unused),
                    hint=f"it takes {selection.variant}: leave --variant out",
                    where=device.name,
                )
            site = Site(question, device, bundle, harness, selection, topology, unused, progress)
            search = TuneSearch(site, left)
            search.run()
    except (EdgepackError, *INTERRUPTS) as end:
        if search and search.base and not isinstance(end, UsageError):
            on_unfinished(make_report(search, unfinished=explain_end(end)))
        raise
    return make_report(search)


def _open_bundle(question: TuneQuestion, device: Device) -> Bundle:
    require_machine(device)
    return read_variants(question.bundle, device, question.variants)
