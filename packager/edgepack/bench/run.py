"""``edgepack bench``: push a bundle beside the current release, and measure it there."""

from __future__ import annotations

from pathlib import Path

from edgepack.bench.assemble import Measurements, Question, make_report
from edgepack.bench.harness import Harness
from edgepack.bench.presets import Preset, find_preset
from edgepack.bench.report import RunReport
from edgepack.bench.session import open_harness, read_bundle
from edgepack.devices import Device
from edgepack.progress import Progress, Silent


def bench(
    bundle: Path,
    device: Device,
    *,
    preset: str = "standard",
    variant: str | None = None,
    wait_s: float = 0.0,
    progress: Progress | None = None,
) -> RunReport:
    """Measure a bundle on a device and return the report, with its verdict; nothing is stored.

    The device is leased meanwhile; its current release is not touched. Every number comes from a
    process of its own on the device: one that chooses the variant, several timed ones, one for
    memory, one for placement.

    Args:
        bundle: The bundle's folder.
        device: Where to measure.
        preset: ``quick``, ``standard`` or ``smoke``.
        variant: Measure this one, rather than the first that works there.
        wait_s: How long to wait while others hold the device.
        progress: Where to report; default: nowhere.

    Raises:
        UsageError: There is no such preset or variant.
        BundleError: The bundle is incomplete or altered.
        DeviceError: The device cannot be reached or used, or is not the bundle's target; others
            hold it, or may have used it meanwhile.
        RemoteCommandError: The harness crashed, hung or printed garbage, or no variant works.
    """
    chosen = find_preset(preset)
    opened = read_bundle(bundle, device, variant)
    progress = progress or Silent()
    with open_harness(opened, device, "bench", wait_s=wait_s, progress=progress) as harness:
        measured = measure_all(harness, chosen, variant, progress)
    question = Question(device.name, opened.manifest, opened.digest, variant, chosen)
    return make_report(question, measured)


def measure_all(
    harness: Harness, preset: Preset, variant: str | None, progress: Progress
) -> Measurements:
    """Ask the harness for everything that a report needs."""
    with progress.task("bench", total=preset.runs + 3) as advance:
        selection = harness.select(variant)
        used = selection.variant
        advance(f"the device takes {used}")
        runs = []
        for number in range(1, preset.runs + 1):
            runs.append(harness.measure(used, preset))
            advance(f"process run {number} of {preset.runs}")
        memory = harness.memory(used)
        advance("memory")
        placement = harness.profile(used)
        advance("placement of the nodes")
    return Measurements(selection, runs, memory, placement)
