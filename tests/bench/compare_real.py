"""How often ``edgepack compare`` is wrong on this machine: A/A, and slowdowns by known shares.

::

    python -m tests.bench.compare_real [COMPARISONS]

So many comparisons (2) are made of each case, the cases in turn, so that whatever else the machine
does falls on all alike; Ctrl-C ends it with what there is. The candidate is a copy of the base
whose loader spins after each inference for a share of what that took, which slows every latency by
that share, whatever the machine does. There are two models: one convolution, and depthwise and
pointwise ones in turn, as MobileNet has them.

How to read it: of 0 %, FAIL is wrong; of 5 % and 8 %, PASS is. INCONCLUSIVE is never wrong: the
machine was too noisy for so many pairs, or runs could not be used, for the reasons that are counted
below. ``of p50 alone`` has the answers PASS/FAIL/INCONCLUSIVE that its ratios alone would give.
What is found should be the true slowdown. The correlation is that of the logarithm of one pair's
ratio with the next one's: the interval takes pairs as independent, and is too narrow where that is
far above 0.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import log
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from edgepack.base.statistics import median, standard_deviation
from edgepack.devices.inventory import Device, LocalEntry
from edgepack.measure.compare.comparing import CompareQuestion, compare, compute_pair_ratios
from edgepack.project.profile import find_host_target
from edgepack.records.comparison import DeviceComparison
from edgepack.records.presets import Preset

from tests.bench.measuring import Table, scratch
from tests.support.reports.tiny_bundle import change_manifest, save_model, write_tiny_bundle

COMPARISONS = 2
SHARES = (0.0, 0.05, 0.08)
SIZE = 64
CHANNELS = 32
BLOCKS = 6
SHORT = Preset(
    "short",
    runs=6,
    duration_s=0.3,
    iterations=130,
    warm_up_s=0.1,
    window_s=0.1,
    warm_up_cap_s=2,
)
LOADER = "edgepack_loader.py"
SPIN = """

def _spinning(run, clock=time.perf_counter_ns):
    def slow(names, feed):
        before = clock()
        outputs = run(names, feed)
        end = before + _planted_ns(clock() - before)
        while clock() < end:
            pass
        return outputs
    return slow


_plain = Model.runner
Model.runner = property(lambda self: _spinning(_plain.__get__(self)))
"""
"""Of a loader that has ``_planted_ns``: how long an inference shall take which took so long."""
BY_SHARE = """

def _planted_ns(taken_ns):
    return int(taken_ns * {slowness})
"""
HEADS = ("true slowdown", "PASS", "FAIL", "INCONCLUSIVE", "of p50 alone", "pairs", "p50 found")


@dataclass
class Case:
    """A candidate that is slower by a known share, and the comparisons with it."""

    group: str
    share: float
    base: Path
    candidate: Path
    found: list[DeviceComparison] = field(default_factory=list)
    before: Callable[[], object] = lambda: None
    """Called before each comparison."""


def measure(comparisons: int = COMPARISONS) -> Iterator[Table]:
    """Yield two tables for each model: the answers, and the noise."""
    models = {"one convolution": save_model, "separable convolutions": save_separable}
    with scratch() as folder:
        cases = [
            case for name, save in models.items() for case in _cases(name, save, folder / name)
        ]
        yield from measured(cases, comparisons, folder)


def measured(cases: Sequence[Case], comparisons: int, folder: Path) -> Iterator[Table]:
    """Make so many comparisons of each case, in turn, and yield two tables for each group."""
    entry = LocalEntry(transport="local", target=find_host_target(), root=str(folder / "root"))
    device = Device("this-machine", entry)
    with suppress(KeyboardInterrupt):
        for case in [*cases] * comparisons:
            case.before()
            _compare(case, device)
    for name in dict.fromkeys(case.group for case in cases if case.found):
        mine = [case for case in cases if case.group == name and case.found]
        yield _answers(name, mine)
        yield _noise(name, mine)


def _compare(case: Case, device: Device) -> None:
    question = CompareQuestion(case.candidate, base=case.base, preset=SHORT)
    (found,) = compare(question, [device]).devices
    case.found.append(found)
    p50 = found.metrics[0]
    print(
        f"{case.group}, {case.share:.0%}: {found.outcome} after {found.pairs} pairs,"
        f" p50 {p50.outcome} {p50.ratio - 1:+.1%}",
        file=sys.stderr,
    )


def _cases(name: str, save: Callable[[Path, int], object], folder: Path) -> Iterator[Case]:
    plain = host_bundle(folder / "plain", save)
    base = spinning(plain, "base", BY_SHARE.format(slowness=1))
    for share in SHARES:
        candidate = base
        if share:
            candidate = spinning(plain, f"{share:.0%}", BY_SHARE.format(slowness=1 + share))
        yield Case(name, share, base, candidate)


def host_bundle(folder: Path, save: Callable[[Path, int], object]) -> Path:
    """Write a small bundle for this machine and return it."""
    plain = write_tiny_bundle(folder, size=SIZE, save=save)
    change_manifest(plain, lambda manifest: manifest.update(target=find_host_target()))
    return plain


def spinning(plain: Path, name: str, planted_ns: str) -> Path:
    """Return a copy, in which every inference takes as long as the function ``_planted_ns`` says.

    Args:
        planted_ns: The function's source.
    """
    bundle = plain.with_name(name)
    shutil.copytree(plain, bundle)
    loader = bundle / LOADER
    loader.write_text(loader.read_text() + planted_ns + SPIN)
    data = loader.read_bytes()

    def change(manifest: dict[str, Any]) -> None:
        (file,) = (each for each in manifest["files"] if each["path"] == LOADER)
        file |= {"sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)}

    change_manifest(bundle, change)
    return bundle


def _answers(group: str, cases: list[Case]) -> Table:
    rows = []
    for case in cases:
        overall = Counter(each.outcome for each in case.found)
        alone = Counter(each.metrics[0].outcome for each in case.found)
        ratios = [each.metrics[0].ratio for each in case.found]
        spread = f" +-{standard_deviation(ratios):.1%}" if len(ratios) > 1 else ""
        rows.append(
            (
                f"{case.share:.0%}",
                *(str(overall[name]) for name in ("PASS", "FAIL", "INCONCLUSIVE")),
                "/".join(str(alone[name]) for name in ("PASS", "FAIL", "INCONCLUSIVE")),
                f"{median([each.pairs for each in case.found]):.0f}",
                f"{fmean(ratios) - 1:+.1%}{spread}",
            )
        )
    return Table(f"{group}: {len(cases[0].found)} comparisons each", HEADS, tuple(rows))


def _noise(group: str, cases: list[Case]) -> Table:
    """Say how noisy the machine was, over all comparisons of a group."""
    found = [each for case in cases for each in case.found]
    medians_us = [median(run.latencies_ns) / 1e3 for each in found for run in each.base.runs]
    ratios = [
        [log(r) for r in compute_pair_ratios(each.base.runs, each.candidate.runs, 50)]
        for each in found
    ]
    reasons = Counter(
        _kind(reason)
        for each in found
        for side in (each.base, each.candidate)
        for reason in side.reasons
    )
    rows = [
        ("base p50", f"{median(medians_us):.1f} us"),
        ("deviation of a run's p50", f"{fmean([_run_deviation(each) for each in found]):.1%}"),
        (
            "deviation of a pair's ratio",
            f"{fmean([standard_deviation(each) for each in ratios]):.1%}",
        ),
        ("correlation of a pair with the next", f"{_correlation(ratios):+.2f}"),
        *((f"reason: {reason}", f"{count} sides") for reason, count in reasons.most_common()),
    ]
    return Table(f"{group}: the machine's noise", ("", ""), tuple(rows))


def _run_deviation(found: DeviceComparison) -> float:
    return standard_deviation([log(median(run.latencies_ns)) for run in found.base.runs])


def _kind(reason: str) -> str:
    return re.sub(r"[\d.]+", "N", reason)


def _correlation(series: list[list[float]]) -> float:
    """Return the lag-one autocorrelation, each series around its own mean.

    Its bias, about -1 over the length, is put right.
    """
    products, squares, bias = 0.0, 0.0, 0.0
    for values in series:
        centred = [value - fmean(values) for value in values]
        products += sum(a * b for a, b in itertools.pairwise(centred))
        squares += sum(value**2 for value in centred)
        bias += 1 / len(values)
    return products / squares + bias / len(series)


def save_separable(path: Path, size: int) -> None:
    """Save blocks of depthwise and pointwise convolutions, with the inputs of ``save_model``."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(5)
    nodes, weights = [], {}
    layers = [(1, CHANNELS, 3), *[(CHANNELS, CHANNELS, 1), (1, CHANNELS, CHANNELS)] * BLOCKS]
    last = "x"
    for number, (group, out, into) in enumerate(layers):
        name, kernel = f"w{number}", 1 if group == 1 and number else 3
        values = random.standard_normal((out, into, kernel, kernel)) / np.sqrt(into * kernel**2)
        weights[name] = values.astype(np.float32)
        pads = [kernel // 2] * 4
        nodes.append(helper.make_node("Conv", [last, name], [f"c{number}"], group=group, pads=pads))
        nodes.append(helper.make_node("Relu", [f"c{number}"], [f"r{number}"]))
        last = f"r{number}"
    weights["end"] = random.standard_normal((4, CHANNELS, 1, 1)).astype(np.float32)
    nodes.append(helper.make_node("Conv", [last, "end"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "separable",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, size, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4, size, size])],
        [numpy_helper.from_array(values, name) for name, values in weights.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)


if __name__ == "__main__":
    from tests.bench.run import print_table

    for table in measure(int(sys.argv[1]) if len(sys.argv) > 1 else COMPARISONS):
        print_table(table)
