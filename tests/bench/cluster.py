"""What a Dask cluster adds to a build, and what one more model costs: small models, five targets.

Projects are built from an empty cache by one process, once alone and once with a LocalCluster of
two workers of different sizes, and counted is the processor time of all of its processes, which
other work on the machine does not change. The cost of one more model is the slope between a few and
many; what starting Python, Dask and onnxruntime costs once is not in it.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.measuring import Row, Table, own_folders, run, scratch
from tests.support.nets import tiny_models

COUNTS = tuple(map(int, os.environ.get("EDGEPACK_BENCH_MODELS", "5,10,20").split(",")))
TARGETS = ("raspberry-pi", "android-xnnpack", "intel", "ios", "web")


def measure() -> Iterator[Row | Table]:
    """Yield the costs, and the ratio of the costs of one more model."""
    rows, found = [], {}
    with scratch() as folder:
        for count in COUNTS:
            for how in ("alone", "cluster"):
                place = folder / f"{how}-{count}"
                place.mkdir()
                done = run(
                    [sys.executable, "-m", "tests.bench.cluster", how, str(count), str(place)],
                    own_folders(place),
                )
                cpu, wall = map(float, done.split()[-2:])
                found[how, count] = cpu
                rows.append((f"{count} {how}", f"{cpu:.1f}", f"{wall:.1f}", f"{cpu / count:.2f}"))
    heads = ("models", "CPU s", "wall s", "CPU s a model")
    yield Table(f"{len(TARGETS)} targets, small models of two convolutions", heads, tuple(rows))
    few, most = COUNTS[0], COUNTS[-1]
    more = {h: (found[h, most] - found[h, few]) / (most - few) for h in ("alone", "cluster")}
    yield Row(
        "one more model: cluster / alone, in CPU time",
        f"{few} to {most} models",
        f"{more['cluster'] / more['alone']:.3f}",
        "at most 1.05",
        f"{more['cluster']:.2f} against {more['alone']:.2f} s",
    )
    for how in ("alone", "cluster"):
        middle = COUNTS[len(COUNTS) // 2]
        straight = found[how, few] + more[how] * (middle - few)
        yield Row(
            f"{middle} models {how}: measured / on the line between {few} and {most}",
            "1 build",
            f"{found[how, middle] / straight:.3f}",
            "1: cost grows linearly",
        )


def main(how: str, count: int, folder: Path) -> None:
    """Build so many projects and print the seconds of processor and wall time that it took."""
    paths = [_write(folder / f"net{number}", number) for number in range(count)]
    began = time.perf_counter()
    if how == "alone":
        _build(paths, folder, None)
    else:
        from distributed import LocalCluster

        with LocalCluster(
            n_workers=1, threads_per_worker=1, memory_limit="2GB", dashboard_address=None
        ) as cluster:
            cluster.scale(2)
            _build(paths, folder, cluster.scheduler_address)
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    cpu = sum(each.ru_utime + each.ru_stime for each in used)
    print(cpu, time.perf_counter() - began)


def _build(paths: list[Path], folder: Path, on: str | None) -> None:
    from edgepack.builder.many import build_projects

    built = build_projects(paths, targets=TARGETS, out=folder / "dist", jobs=2, on=on)
    if errors := [each.error for each in built if each.error]:
        sys.exit(str(errors[0]))


def _write(folder: Path, number: int) -> Path:
    """Write a project whose model is unlike the others', so that they share no step but samples."""
    import onnx

    folder.mkdir()
    project = tiny_models.write_project(folder)
    project.write_text(project.read_text().replace("name: net\n", f"name: net{number}\n"))
    model = onnx.load(folder / "net.onnx")
    weights = onnx.numpy_helper.to_array(model.graph.initializer[0]) * (1 + number / 1000)
    model.graph.initializer[0].CopyFrom(
        onnx.numpy_helper.from_array(weights, model.graph.initializer[0].name)
    )
    onnx.save(model, folder / "net.onnx")
    return project


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
