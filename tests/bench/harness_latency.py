"""The latency that the harness reports against a bare loop over ``session.run``.

Each pair is two processes, a harness in ``measure`` mode and ``bare_loop.py``, in A B B A order;
the ratio is that of their median latencies. Same bundle, variant, interpreter, environment,
session options and inputs. The harness's warm-up ends when latencies are steady, so here its cap
is 0 s, which leaves the fixed number of iterations that it begins with: both sides make the same
number of warm-up iterations, and time the same number. Both run on one core, and the harness's
sampler of sensors beside them. A row compares the bare loop with itself in the same way: what that
is away from 1 is noise.

A last row has blocks of the harness's loop and of a bare one in turn in one process, over one
session, where the noise between processes is not.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from edgepack.base.statistics import median
from edgepack.bundle.reading import load_bundle

from tests.bench.measuring import (
    Row,
    build_command,
    interleaved,
    one_core,
    own_folders,
    ratio_text,
    run,
    scratch,
)
from tests.bench.projects import SQUEEZENET, example_project, public_data, write_project

PAIRS = 20
BLOCK_PAIRS = 300
AIM = "0.99 to 1.01"
FEW_SAMPLES = "{calibration: {images: images, limit: 10}, evaluation: {images: images, limit: 10}}"


def measure() -> Iterator[Row]:
    """Yield one row for each variant of each project."""
    with scratch() as folder:
        yield from _rows("digits", example_project(), folder, iterations=3000)
    data = public_data()
    if data is None:
        return
    with scratch() as folder:
        (folder / "project").mkdir()
        project = write_project(folder / "project", SQUEEZENET, data, FEW_SAMPLES)
        yield from _rows(SQUEEZENET.name, project, folder, iterations=80)


def _rows(name: str, project: Path, folder: Path, *, iterations: int) -> Iterator[Row]:
    run(build_command(project, folder / "dist"), own_folders(folder))
    (bundle,) = (path for path in (folder / "dist").iterdir() if path.is_dir())
    variants = [variant.id for variant in load_bundle(bundle).manifest.variants]
    for variant in variants:
        what = f"harness / bare loop, {name} {variant}"
        yield _row(what, bundle, variant, harness_ms, iterations)
    what = f"noise: bare loop / bare loop, {name} {variants[-1]}"
    yield _row(what, bundle, variants[-1], bare_ms, iterations)
    yield _blocks_row(f"its loop / bare loop in one process, {name}", bundle, iterations // 20)


def _blocks_row(what: str, bundle: Path, iterations: int) -> Row:
    from edgepack.ondevice.harness import edgepack_load
    from edgepack.ondevice.runtime import edgepack_loader

    model = edgepack_loader.load(bundle)
    names = [spec.name for spec in model.outputs]
    feeds = [model.bundle.read_golden_inputs(index) for index in range(model.bundle.goldens)]
    infer = edgepack_load.Inferences(model.runner, names, feeds)
    with one_core():
        infer.time_stream(0.5, iterations)
        pairs = interleaved(
            lambda: median(infer.time_stream(0.0, iterations).latencies_ns) / 1e6,
            lambda: _bare_block_ms(model.session, names, feeds, iterations),
            BLOCK_PAIRS,
        )
    ours, theirs = (median(side) for side in zip(*pairs, strict=True))
    beside = f"medians {ours:.4f} ms, {theirs:.4f} ms"
    return Row(what, f"{BLOCK_PAIRS} pairs", ratio_text(pairs), AIM, beside)


def _bare_block_ms(session: Any, names: list[str], feeds: list[Any], iterations: int) -> float:
    gc.collect()  # as the harness does, after which the processor's caches are cold
    latencies_ns = []
    for number in range(iterations):
        feed = feeds[number % len(feeds)]
        started = time.perf_counter_ns()
        session.run(names, feed)
        latencies_ns.append(time.perf_counter_ns() - started)
    return median(latencies_ns) / 1e6


def _row(
    what: str,
    bundle: Path,
    variant: str,
    first: Callable[[Path, str, int], float],
    iterations: int,
) -> Row:
    with one_core():
        pairs = interleaved(
            lambda: first(bundle, variant, iterations),
            lambda: bare_ms(bundle, variant, iterations),
            PAIRS,
        )
    ours, theirs = (median(side) for side in zip(*pairs, strict=True))
    return Row(
        what,
        f"{PAIRS} pairs",
        ratio_text(pairs),
        AIM,
        f"medians {ours:.4f} ms, {theirs:.4f} ms",
    )


def harness_ms(bundle: Path, variant: str, iterations: int) -> float:
    """Return the median latency of one process run of the harness."""
    argv = [sys.executable, "-B", str(bundle / "harness" / "edgepack_harness.py"), "measure"]
    argv += ["--bundle", str(bundle), "--variant", variant]
    argv += ["--duration-s=0", f"--iterations={iterations}"]
    argv += ["--warm-up-s=0", f"--warm-up-iterations={iterations}", "--warm-up-cap-s=0"]
    document = json.loads(run(argv))
    return median(document["latencies_ns"]) / 1e6


def bare_ms(bundle: Path, variant: str, iterations: int) -> float:
    """Return the median latency of one process run of the bare loop."""
    script = Path(__file__).with_name("bare_loop.py")
    argv = [sys.executable, "-B", str(script), str(bundle), variant]
    return median(json.loads(run([*argv, str(iterations), str(iterations)]))) / 1e6
