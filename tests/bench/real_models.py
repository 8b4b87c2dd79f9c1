"""Builds two public models with real images, measures them here, and writes ``docs/models.md``.

::

    EDGEPACK_TEST_DATA=FOLDER python -m tests.bench.real_models [--accuracy-only] [OUT]

Calibration and evaluation images do not overlap: of a seeded permutation of all images, the first
100 calibrate, and those from the 200th on are judged by. Both variants of a model are measured in
turn, in the order A B B A, by ``bench`` on the local device. ``--accuracy-only`` leaves that out:
a machine with other work gives no VALID measurement.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
from edgepack.base.clock import format_now
from edgepack.base.machine import find_processor, read_cpu_flags
from edgepack.base.progress import Lines
from edgepack.base.statistics import Interval, log_t_interval, median
from edgepack.builder.build import build
from edgepack.bundle.manifest import Accuracy, Manifest, ManifestVariant
from edgepack.devices.inventory import Device, LocalEntry
from edgepack.measure.bench.run import bench
from edgepack.project.profile import find_host_target
from edgepack.records.run import RunReport, Valid
from edgepack.trying.verify import verify as verify_here

from tests.bench.measuring import scratch
from tests.bench.projects import (
    MOBILENET,
    SQUEEZENET,
    VARIABLE,
    PublicModel,
    public_data,
    write_project,
)

TARGETS = ("host", "raspberry-pi")
CALIBRATION = slice(0, 100)
EVALUATION = slice(200, None)
SAMPLES = (
    "{calibration: {images: calibration}, evaluation: {images: evaluation, labels: labels.csv}}"
)
ROUNDS = 2
"""Each measures both variants, in opposite orders."""
PRESET = "quick"
ATTEMPTS = 5
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "models.md"


@dataclass(frozen=True)
class Measured:
    """One model as built and measured."""

    model: PublicModel
    manifests: tuple[Manifest, ...]
    """One for each target, this machine's first."""
    reports: dict[str, list[RunReport]]
    """By variant id; none of any with ``--accuracy-only``."""

    def p50_ms(self, variant: str) -> list[float]:
        """Return the median latency of each process run, in order."""
        runs = [run for report in self.reports[variant] for run in report.runs]
        return [median(run.latencies_ns) / 1e6 for run in runs]

    def speed_up(self, variant: str, base: str) -> Interval:
        """Return how many times faster a variant is, from the process runs paired in order."""
        pairs = zip(self.p50_ms(base), self.p50_ms(variant), strict=True)
        return log_t_interval([slow / fast for slow, fast in pairs])


def main(out: Path, *, timed: bool) -> None:
    """Build, measure and write the page."""
    data = public_data()
    if data is None:
        sys.exit(f"{VARIABLE} does not name a folder of public models")
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    measured = []
    for model in (SQUEEZENET, MOBILENET):
        with scratch() as folder:
            os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
            measured.append(measure(model, data, folder, timed=timed))
    out.write_text("\n".join(page(measured)) + "\n", encoding="utf-8")
    print(f"wrote {out}")


def measure(model: PublicModel, data: Path, folder: Path, *, timed: bool) -> Measured:
    """Build one model for all targets, and measure every variant on this machine if told to."""
    (folder / "project").mkdir()
    project = write_project(folder / "project", model, data, SAMPLES)
    link_images(folder / "project")
    built = build(project=project, targets=TARGETS, out=folder / "dist", progress=Lines())
    require_goldens([one.bundle.path for one in built.bundles])
    manifests = tuple(one.bundle.manifest for one in built.bundles)
    here = LocalEntry(transport="local", target=find_host_target(), root=str(folder / "device"))
    device = Device("local", here)
    reports: dict[str, list[RunReport]] = {v.id: [] for v in manifests[0].variants}
    for variant in abba(list(reports)) if timed else ():
        reports[variant].append(valid_report(built.bundles[0].bundle.path, device, variant))
    return Measured(model, manifests, reports)


def require_goldens(bundles: Sequence[Path]) -> None:
    """Stop unless every variant of every bundle gives its golden outputs on this machine."""
    for bundle in bundles:
        for check in verify_here(bundle).goldens:
            if not check.passed:
                sys.exit(f"{bundle.name} {check.variant}: {check.outcome}")


def valid_report(bundle: Path, device: Device, variant: str) -> RunReport:
    """Measure a variant, again if the verdict is not VALID, and stop if it never is."""
    for _ in range(ATTEMPTS):
        report = bench(bundle, device, preset=PRESET, variant=variant, progress=Lines())
        if isinstance(report.verdict, Valid):
            return report
        print(f"not valid: {report.verdict}", file=sys.stderr)
    sys.exit(f"{variant} could not be measured: is the machine idle?")


def link_images(project: Path) -> None:
    """Make the folders ``calibration`` and ``evaluation`` of links to the images."""
    files = sorted((project / "images").iterdir())
    order = np.random.default_rng(0).permutation(len(files))
    for name, part in (("calibration", CALIBRATION), ("evaluation", EVALUATION)):
        (project / name).mkdir()
        for index in order[part]:
            (project / name / files[index].name).symlink_to(files[index])


def abba(variants: Sequence[str]) -> Iterator[str]:
    """Yield the variants forwards, then backwards, and so on."""
    for number in range(ROUNDS):
        yield from variants if number % 2 == 0 else reversed(variants)


def page(measured: Sequence[Measured]) -> Iterator[str]:
    """Yield the lines of the page."""
    yield "# Two real models, fp32 against int8"
    yield ""
    yield "Generated by `tests/bench/real_models.py`; do not edit."
    yield ""
    yield from accuracy_table(measured)
    if is_timed(measured):
        yield from latency_table(measured)
    yield from how(measured)


def is_timed(measured: Sequence[Measured]) -> bool:
    """Return whether latencies were measured."""
    return any(reports for one in measured for reports in one.reports.values())


def accuracy_table(measured: Sequence[Measured]) -> Iterator[str]:
    """Yield size and accuracy of every variant."""
    yield "## Size and accuracy"
    yield ""
    yield (
        "| model | variant | size MB | top-1 | drop against fp32, points (95 % interval)"
        " | same top-1 as fp32 | SQNR of the worst output dB |"
    )
    yield "|---|---|--:|--:|--:|--:|--:|"
    for one in measured:
        for variant in reversed(one.manifests[0].variants):
            yield accuracy_row(one, variant)
    yield ""


def accuracy_row(one: Measured, variant: ManifestVariant) -> str:
    """Return the row of one variant."""
    files = {file.path: file.size_bytes for file in one.manifests[0].files}
    size_bytes = files[variant.model]
    found = accuracy_of(variant)
    cells = [
        one.model.name,
        variant.id,
        f"{size_bytes / 1e6:.2f}",
        f"{100 * found.value:.1f} %",
        drop_text(found),
        f"{100 * (found.agreement or 0):.1f} %",
        "equal" if found.worst.sqnr_db >= 200 else f"{found.worst.sqnr_db:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def accuracy_of(variant: ManifestVariant) -> Accuracy:
    """Return what the evaluation found; these projects all have evaluation samples."""
    if not isinstance(variant.accuracy, Accuracy) or variant.accuracy.drop_interval is None:
        raise TypeError("every variant here is evaluated by top-1")
    return variant.accuracy


def drop_text(found: Accuracy) -> str:
    """Return the drop in points with its interval."""
    low, high = found.drop_interval or (0.0, 0.0)
    return f"{100 * found.drop:+.2f} ({100 * low:+.2f} to {100 * high:+.2f})"


def latency_table(measured: Sequence[Measured]) -> Iterator[str]:
    """Yield the latency of every variant on this machine."""
    yield f"## Latency on {machine()}"
    yield ""
    yield "| model | variant | p50 ms | times as fast as fp32 (95 % interval) |"
    yield "|---|---|--:|--:|"
    for one in measured:
        ids = [variant.id for variant in reversed(one.manifests[0].variants)]
        for variant in ids:
            cells = [
                one.model.name,
                variant,
                f"{median(one.p50_ms(variant)):.2f}",
                "1" if variant == ids[0] else speed_text(one.speed_up(variant, ids[0])),
            ]
            yield f"| {' | '.join(cells)} |"
    yield ""


def speed_text(found: Interval) -> str:
    """Return a ratio with its interval."""
    return f"{found.estimate:.2f} ({found.low:.2f} to {found.high:.2f})"


def machine() -> str:
    """Return what kind of machine this is, without naming it."""
    kind = "AVX512-VNNI" if "avx512_vnni" in read_cpu_flags() else "AVX-VNNI"
    flags = f" with {kind}" if find_processor() == "x86-64-vnni" else ""
    return f"{find_processor().removesuffix('-vnni')}{flags}, {os.cpu_count()} cores"


def how(measured: Sequence[Measured]) -> Iterator[str]:
    """Yield how all of it was measured, and what it does not say."""
    first = measured[0]
    samples = accuracy_of(first.manifests[0].variants[0]).samples
    tools = ", ".join(f"{name} {version(name)}" for name in ("onnxruntime", "onnx", "onnxsim"))
    yield "## How it was measured"
    yield ""
    for one in measured:
        yield f"- **{one.model.name}**: {one.model.origin}."
    yield (
        f"- {format_now()[:10]}, {platform.system()}, Python {platform.python_version()}, {tools},"
        f" {machine()}, one image at a time."
    )
    yield (
        f"- **Samples**: 1,000 labelled photographs, one for each ImageNet class; 100 calibrate,"
        f" {samples} others are judged by, 100 are not used. The short side is scaled to the"
        " model's size / 0.875 and the centre is cut out. squeezenet1.1 takes BGR minus"
        " (103.939, 116.779, 123.68) without scaling; mobilenet_v1_0.25_128 takes RGB / 127.5 - 1."
    )
    yield (
        "- **Do not quote these figures as ImageNet accuracy.** The models were probably trained"
        " on these very photographs. They serve to compare int8 with fp32 on the same input, and"
        " the interval of the drop is a paired one."
    )
    runs = len(first.p50_ms(first.manifests[0].variants[0].id))
    yield (
        "- **Latency** was not measured in this run."
        if not runs
        else f"- **Latency** is the median over {runs} process runs of each run's median, by"
        f" `edgepack bench --preset {PRESET}` on the device `local`; the variants were measured in"
        " turn (A B B A), and the ratio is the geometric mean over pairs of process runs. Golden"
        " outputs were checked in each run. A measurement that was not VALID was repeated whole."
    )
    yield from targets_lines(measured)


def targets_lines(measured: Sequence[Measured]) -> Iterator[str]:
    """Yield what is known about the targets that are not this machine."""
    same = all(
        [v.model_sha256 for v in manifest.variants]
        == [v.model_sha256 for v in one.manifests[0].variants]
        for one in measured
        for manifest in one.manifests[1:]
    )
    names = ", ".join(manifest.target for manifest in measured[0].manifests)
    compared = "the same bytes" if same else "other bytes than this machine's"
    yield (
        f"- **Targets**: bundles were built for {names}. The model files of raspberry-pi have"
        f" {compared}; all bundles reproduced their golden outputs here. Accuracy is simulated on"
        " this machine's x86 processor for both. Nothing here was measured on a Raspberry Pi:"
        " there is no latency from one."
    )


if __name__ == "__main__":
    arguments = [word for word in sys.argv[1:] if word != "--accuracy-only"]
    main(Path(arguments[0]) if arguments else DOCUMENT, timed="--accuracy-only" not in sys.argv)
