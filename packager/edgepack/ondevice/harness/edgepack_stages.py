"""Measure a bundle of several models on the machine it lies on. Prints one JSON document.

::

    python harness/edgepack_stages.py select  --bundle DIR
    python harness/edgepack_stages.py measure --bundle DIR [--duration-s 10]

Like edgepack_harness.py, by whose code it times and reads this machine: each is a process of its
own, everything but the document goes to stderr, and exit code 3 means that no variants work here.
``measure`` times whole calls over the golden inputs, and within each call every stage. With a state
the calls are one stream. Each stage's times are between two readings of one clock within the call,
so that their sum is the call's time less what passes values on.

Needs what the loader needs: Python 3.8, numpy and onnxruntime.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

# A release on a device is never written to, not even with byte code.
sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import edgepack_binding as binding  # type: ignore[import-not-found]  # noqa: E402
import edgepack_conditions as conditions  # type: ignore[import-not-found]  # noqa: E402
import edgepack_harness as harness  # type: ignore[import-not-found]  # noqa: E402
import edgepack_load as load  # type: ignore[import-not-found]  # noqa: E402
import edgepack_loader as loader  # type: ignore[import-not-found]  # noqa: E402
import edgepack_pipeline as pipelines  # type: ignore[import-not-found]  # noqa: E402
import edgepack_providers as providers  # type: ignore[import-not-found]  # noqa: E402
import edgepack_sysfs as sysfs  # type: ignore[import-not-found]  # noqa: E402
from edgepack_other_work import OtherWork  # type: ignore[import-not-found]  # noqa: E402
from edgepack_sampler import Sampler, compute_energy  # type: ignore[import-not-found]  # noqa: E402

Json = Dict[str, Any]
MOST_STAGE_TIMES = 100_000
"""Of each stage: they are sent as text."""


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run one mode and return the exit code."""
    arguments = _parse_arguments(argv)
    os.environ.pop("EDGEPACK_STATS", None)  # a measurement is not what the models do in the field
    out = harness.claim_stdout()
    try:
        document = _MODES[arguments.mode](arguments)
    except (loader.LoadError, loader.Refused) as error:
        print(error, file=sys.stderr)
        return int(harness.NO_VARIANT_EXIT)
    except harness.StreamError as error:
        print(error, file=sys.stderr)
        return int(harness.STREAM_EXIT)
    out.write(json.dumps(document, allow_nan=False, separators=(",", ":")).encode() + b"\n")
    out.flush()
    return 0


def _parse_arguments(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure a pipeline on this machine.")
    parser.add_argument("mode", choices=[*_MODES])
    parser.add_argument("--bundle", required=True, type=Path)
    parser.add_argument("--duration-s", type=float, default=10.0)
    parser.add_argument("--iterations", type=int, default=130, help="measure at least so many")
    parser.add_argument("--warm-up-s", type=float, default=1.0)
    parser.add_argument("--warm-up-iterations", type=int, default=10)
    parser.add_argument("--window-s", type=float, default=1.0, help="of the steadiness test")
    parser.add_argument("--warm-up-cap-s", type=float, default=60.0)
    return parser.parse_args(argv)


def select(arguments: argparse.Namespace) -> Json:
    """Report which variants of the parts work here together, and what this machine is."""
    watch = harness.Watch()
    try:
        pipeline = pipelines.load(
            arguments.bundle,
            # The watcher's lines have the form of a variant's id.
            on_try=lambda name, folders: watch.begin(name.replace("=", "-"), folders),
        )
    finally:
        watch.end()
    return {
        "variant": pipeline.combination,
        "unused": [
            {"variant": f"{part}={name}", "stage": "passed over", "reason": why}
            for part, model in pipeline.parts.items()
            for name, why in model.passed_over
        ],
        "device": harness.read_device_facts(),
    }


class Calls:
    """Calls of a pipeline's chain, with how long each stage of each took."""

    def __init__(self, pipeline: Any) -> None:
        self.chain = pipeline.chain
        self.stages_ns: List[List[int]] = []
        self.tokens: List[Dict[int, int]] = []
        self.crops: List[Dict[int, int]] = []
        self.outputs: Dict[str, Any] = {}
        self.count = 0

    def run(self, _: List[str], feed: Any) -> None:
        """Make one call; a stream goes on where the call before ended."""
        self.outputs = self.chain(feed)
        self.count += 1
        self.stages_ns.append(self.chain.stage_ns)
        if self.chain.tokens:
            self.tokens.append(dict(self.chain.tokens))
        if self.chain.crops:
            self.crops.append(dict(self.chain.crops))

    def forget(self) -> None:
        """Drop the times so far: they are the warm-up's."""
        self.stages_ns, self.tokens, self.crops = [], [], []

    def summarize(self) -> List[Json]:
        """Return each stage's times, and what it gave or cut out, evenly chosen of many."""
        stage = -(-len(self.stages_ns) // MOST_STAGE_TIMES)
        kept, tokens, crops = self.stages_ns[::stage], self.tokens[::stage], self.crops[::stage]
        return [
            {
                "part": stage.name,
                "latencies_ns": [times[number] for times in kept],
                "tokens": [each[number] for each in tokens if number in each],
                "crops": [each[number] for each in crops if number in each],
            }
            for number, stage in enumerate(self.chain.stages)
        ]


def measure(arguments: argparse.Namespace) -> Json:
    """Check the goldens, warm up, and time calls: one process run.

    Raises:
        StreamError: A call fails that was fed the state of the one before.
    """
    pipeline = pipelines.load(arguments.bundle)
    feeds = pipeline.read_golden_inputs()
    calls = Calls(pipeline)
    infer = load.Inferences(calls.run, [], feeds)
    before = conditions.read_conditions()
    models = list(pipeline.parts.values())
    sampler = Sampler(with_gpus=any(binding.find_memory(m.entry) != binding.HOST for m in models))
    least_s = max(harness.find_least_warm_up(model) for model in models)
    try:
        warm = harness.warm_up(infer, arguments, least_s)
        calls.forget()
        others = OtherWork(sampler.pid)
        timed = infer.time_stream(arguments.duration_s, arguments.iterations)
        other_work = others.measure()
    except loader.ORT_ERRORS as error:
        raise harness.StreamError(f"after {calls.count} frames of a stream: {error}") from error
    sampling = sampler.stop()
    return {
        "variant": pipeline.combination,
        "session_create_ns": sum(model.session_create_ns for model in models),
        "first_inference_ns": sum(model.first_inference_ns for model in models),
        "warm_up_iterations": warm.iterations,
        "steady": warm.steady,
        "latencies_ns": timed.latencies_ns,
        "timed_from_ns": timed.from_ns,
        "timed_to_ns": timed.to_ns,
        "inferences": timed.inferences,
        "golden_min_sqnr_db": pipeline.golden_db,
        "not_finite": [n for n, array in calls.outputs.items() if not load.is_finite(array)],
        "boot_id": conditions.read_boot_id(),
        "before": before,
        "after": conditions.read_conditions(),
        "sampling": sampling,
        "energy": compute_energy(sampling, timed.from_ns, timed.to_ns),
        "other_work": sysfs.make_not_measured("the processor is emulated")
        if providers.is_emulated()
        else other_work,
        "stages": calls.summarize(),
    }


_MODES = {"select": select, "measure": measure}

if __name__ == "__main__":
    sys.exit(main())
