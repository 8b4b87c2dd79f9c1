"""Measure this bundle on the machine it lies on. Prints one JSON document on stdout.

::

    python harness/edgepack_harness.py select  --bundle DIR [--variant ID]
    python harness/edgepack_harness.py measure --bundle DIR --variant ID --duration-s 10
    python harness/edgepack_harness.py create  --bundle DIR --variant ID [--cold]
    python harness/edgepack_harness.py start   --bundle DIR --variant ID [--cold]
    python harness/edgepack_harness.py sweep   --bundle DIR --variant ID --shapes JSON [--batch 4]
    python harness/edgepack_harness.py memory  --bundle DIR --variant ID
    python harness/edgepack_harness.py bound   --bundle DIR --variant ID
    python harness/edgepack_harness.py phases  --bundle DIR --variant ID --duration-s 4
    python harness/edgepack_harness.py profile --bundle DIR --variant ID [--events 1000]
    python harness/edgepack_harness.py serve   --bundle DIR --variant ID

Each is a process of its own, so that none disturbs the other's numbers. Everything but the document
goes to stderr; ``select`` reports there what it is trying, in the format of edgepack_watcher.py.
Exit code 3: no variant works here; exit code 4: there would be more queries than can be kept; exit
code 5: a run with the state of the run before failed; the reasons are on stderr. A value that this
machine does not report is ``{"kind": "not-measured", "reason": ...}``, never null or zero.

``serve`` reads requests on stdin until it ends and answers each on stdout. A message is the length
of its header (4 bytes, big-endian), the header (JSON: a list of name, dtype, shape under
``tensors``), and the tensors' bytes one after the other (little-endian, C order). An answer's
header also has ``ns``, the time of the inference; or ``error`` instead of tensors.

Needs what the loader needs: Python 3.8, numpy and onnxruntime.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import queue
import resource
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

# A release on a device is never written to, not even with byte code.
sys.dont_write_bytecode = True
# Python does not look beside the program where PYTHONSAFEPATH is set, or with -I.
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import edgepack_binding as binding  # type: ignore[import-not-found]  # noqa: E402
import edgepack_checks as checks  # type: ignore[import-not-found]  # noqa: E402
import edgepack_conditions as conditions  # type: ignore[import-not-found]  # noqa: E402
import edgepack_joined as joining  # type: ignore[import-not-found]  # noqa: E402
import edgepack_load as load  # type: ignore[import-not-found]  # noqa: E402
import edgepack_loader as loader  # type: ignore[import-not-found]  # noqa: E402
import edgepack_nvml as nvml  # type: ignore[import-not-found]  # noqa: E402
import edgepack_pages as pages  # type: ignore[import-not-found]  # noqa: E402
import edgepack_phases as phases  # type: ignore[import-not-found]  # noqa: E402
import edgepack_providers as providers  # type: ignore[import-not-found]  # noqa: E402
import edgepack_sizes as sizes  # type: ignore[import-not-found]  # noqa: E402
import edgepack_sysfs as sysfs  # type: ignore[import-not-found]  # noqa: E402
import numpy as np  # noqa: E402
import onnxruntime as ort  # noqa: E402
from edgepack_other_work import OtherWork  # type: ignore[import-not-found]  # noqa: E402
from edgepack_sampler import Sampler, compute_energy  # type: ignore[import-not-found]  # noqa: E402

WATCHER = HERE / "edgepack_watcher.py"
NO_VARIANT_EXIT = 3
TOO_MANY_EXIT = 4
STREAM_EXIT = 5
MAX_LATENCIES = 2_000_000
"""The most queries of one process run: they are kept in memory here, and sent and kept as text."""
WINDOW_ITERATIONS = 30
COMPILING_WARM_UP_S = 3.0
"""The shortest warm-up on providers other than the CPU: they compile, move data and raise
clocks."""
MAX_PROBLEM = 1000
MEMORY_RUNS = 20
PROFILE_RUNS = 10
BOUND_RUNS = 130
"""At most, of which the first 30 warm up; fewer, and less of a warm-up, of slow models."""
BOUND_S = 10.0

READ_AHEAD = 2
"""Requests that wait in memory while one is answered."""
FLUSH_S = 0.05
"""Seconds that an answer may wait to be sent with others, while there are requests."""

Json = Dict[str, Any]


class TooManyError(Exception):
    """More queries, or samples of one, than can be kept."""


class StreamError(Exception):
    """A run failed that was fed the state of the run before."""


class WarmUp(NamedTuple):
    """The result of the warm-up."""

    iterations: int
    steady: bool
    median_ns: float
    """The latencies of the last window, or of the time before the first."""


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run one mode and return the exit code."""
    arguments = _parse_arguments(argv)
    os.environ.pop("EDGEPACK_STATS", None)  # a measurement is not what the model does in the field
    out = claim_stdout()
    try:
        if arguments.mode == "serve":
            serve(arguments, sys.stdin.buffer, out)
            return 0
        document = _MODES[arguments.mode](arguments)
    except (loader.LoadError, loader.Refused) as error:
        print(error, file=sys.stderr)
        return NO_VARIANT_EXIT
    except TooManyError as error:
        print(error, file=sys.stderr)
        return TOO_MANY_EXIT
    except StreamError as error:
        print(error, file=sys.stderr)
        return STREAM_EXIT
    out.write(json.dumps(document, allow_nan=False, separators=(",", ":")).encode() + b"\n")
    out.flush()
    return 0


def _parse_arguments(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure an edgepack bundle on this machine.")
    parser.add_argument("mode", choices=[*_MODES, "serve"])
    parser.add_argument("--bundle", required=True, type=Path)
    parser.add_argument("--variant", help="use this variant or none")
    parser.add_argument("--session", type=json.loads, help="measure, memory: other settings, JSON")
    parser.add_argument("--duration-s", type=float, default=10.0)
    parser.add_argument("--iterations", type=int, default=130, help="measure at least so many")
    parser.add_argument("--warm-up-s", type=float, default=1.0)
    parser.add_argument("--warm-up-iterations", type=int, default=10)
    parser.add_argument("--window-s", type=float, default=1.0, help="of the steadiness test")
    parser.add_argument("--warm-up-cap-s", type=float, default=60.0)
    parser.add_argument("--scenario", choices=_SCENARIOS, default="single-stream")
    parser.add_argument("--samples-per-query", type=int, default=1, help="of multi-stream")
    parser.add_argument("--qps", type=float, default=1.0, help="of server: queries per second")
    parser.add_argument("--seed", type=int, default=0, help="of server's arrivals")
    parser.add_argument("--max-batch", type=int, default=1, help="of server, offline: joined")
    parser.add_argument("--queue-delay-ms", type=float, default=0.0, help="waiting for others")
    parser.add_argument("--threads", type=int, default=1, help="inferences at once")
    parser.add_argument("--cold", action="store_true", help="create, start: drop the files")
    parser.add_argument("--shapes", type=json.loads, help="sweep: of each input, as JSON")
    parser.add_argument("--batch", type=int, default=0, help="sweep: the shapes join so many")
    parser.add_argument("--sizes", action="store_true", help="profile: also of packed weights")
    parser.add_argument("--events", type=int, default=0, help="profile: give so many of them")
    arguments = parser.parse_args(argv)
    if arguments.session is not None and arguments.mode not in ("measure", "memory"):
        parser.error(f"{arguments.mode} takes no --session: it uses the bundle's settings")
    return arguments


def claim_stdout() -> BinaryIO:
    """Return the real stdout and send whatever libraries print there to stderr."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return out


def select(arguments: argparse.Namespace) -> Json:
    """Report which variant works here, and what this machine is."""
    watch = Watch()
    try:
        model = loader.load(arguments.bundle, arguments.variant, on_try=watch.begin)
    finally:
        watch.end()
    return {
        "variant": model.variant,
        "unused": [
            {"variant": name, "stage": "passed over", "reason": why}
            for name, why in model.passed_over
        ],
        "device": read_device_facts(),
    }


class Watch:
    """Has another process say on stderr which variant is being tried; see edgepack_watcher.py."""

    def __init__(self) -> None:
        self._child: Optional[subprocess.Popen[bytes]] = None

    def begin(self, variant: str, folders: Sequence[Path]) -> None:
        """Begin to report this variant; its engines are kept in the folders."""
        self.end()
        kept = any(path.is_file() for folder in folders for path in folder.rglob("*"))
        doing = "building" if folders and not kept else "trying"
        argv = [sys.executable, "-IS", str(WATCHER), variant, doing, *map(str, folders)]
        self._child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    def end(self) -> None:
        """Stop reporting."""
        if self._child is not None:
            self._child.communicate()


def measure(arguments: argparse.Namespace) -> Json:
    """Check all goldens, warm up, and time inferences: one process run.

    For a model with a state, each golden is checked with its own state; the timed runs are a
    stream.

    Raises:
        StreamError: An inference fails that was fed the state of the one before.
    """
    model = loader.load(arguments.bundle, arguments.variant, settings=arguments.session)
    goldens_db = [model.measure_golden_db(index) for index in range(model.bundle.goldens)]
    feeds = [model.bundle.read_golden_inputs(index) for index in range(model.bundle.goldens)]
    infer, stream = make_inferences(model, feeds)
    joined = (
        None
        if arguments.max_batch == 1
        else joining.JoinedSamples(model, arguments.max_batch, arguments.queue_delay_ms)
    )
    before = conditions.read_conditions()
    sampler = Sampler(with_gpus=binding.find_memory(model.entry) != binding.HOST)
    try:
        warm = warm_up(joined.full if joined else infer, arguments, find_least_warm_up(model))
        others = OtherWork(sampler.pid)
        timed = _SCENARIOS[arguments.scenario](joined or infer, arguments, warm)
        other_work = others.measure()
    except loader.ORT_ERRORS as error:
        if not stream.frames:
            raise
        raise StreamError(f"after {stream.frames} frames of a stream: {error}") from error
    sampling = sampler.stop()
    return {
        "variant": model.variant,
        "session_create_ns": model.session_create_ns,
        "first_inference_ns": model.first_inference_ns,
        "warm_up_iterations": warm.iterations,
        "steady": warm.steady,
        "latencies_ns": timed.latencies_ns,
        "timed_from_ns": timed.from_ns,
        "timed_to_ns": timed.to_ns,
        "inferences": timed.inferences,
        "golden_min_sqnr_db": max(min(goldens_db), joining.INCOMPARABLE_DB),
        **({"joined": joined.summarize()} if joined else {}),
        "not_finite": sorted(stream.find_nonfinite() - load.find_nonfinite_goldens(model)),
        "boot_id": conditions.read_boot_id(),
        "before": before,
        "after": conditions.read_conditions(),
        "sampling": sampling,
        "energy": compute_energy(sampling, timed.from_ns, timed.to_ns),
        "other_work": sysfs.make_not_measured("the processor is emulated")
        if providers.is_emulated()
        else other_work,
    }


def make_inferences(model: Any, feeds: List[loader.Arrays]) -> Any:
    """Return a model's inferences over some inputs, and the streams that they are frames of.

    With a model for each of several sizes, an inference includes choosing one, padding and cutting;
    with a state, it includes taking the state from the outputs before.
    """
    names = [spec.name for spec in model.outputs]
    state: Dict[str, str] = model.bundle.manifest.get("state", {})
    stream = load.Streams(model.runner, names, state)
    return load.Inferences(stream.run if state else model.runner, names, feeds), stream


def open_pool(infer: Any, threads: int) -> Any:
    """Return threads that answer samples, one by one or joined."""
    return (
        infer.open_pool(threads)
        if isinstance(infer, joining.JoinedSamples)
        else load.Pool(infer, threads)
    )


def time_single_stream(infer: Any, arguments: argparse.Namespace, warm: WarmUp) -> Any:
    """Time one sample after the other."""
    _check_count(arguments.duration_s * load.NS / max(1.0, warm.median_ns))
    return infer.time_stream(arguments.duration_s, arguments.iterations)


def time_multi_stream(infer: Any, arguments: argparse.Namespace, warm: WarmUp) -> Any:
    """Time queries of several samples."""
    samples = arguments.samples_per_query
    turns = samples / min(samples, arguments.threads)
    _check_count(arguments.duration_s * load.NS / max(1.0, warm.median_ns * turns))
    with load.Pool(infer, arguments.threads) as pool:
        pool.rehearse(WINDOW_ITERATIONS)
        return load.run_multi_stream(pool, arguments.duration_s, arguments.iterations, samples)


def time_server(infer: Any, arguments: argparse.Namespace, _: WarmUp) -> Any:
    """Time queries that arrive at random."""
    _check_count(arguments.duration_s * arguments.qps)
    schedule_ns = load.make_poisson_schedule(
        arguments.qps, arguments.duration_s, arguments.iterations, arguments.seed
    )
    with open_pool(infer, arguments.threads) as pool:
        pool.rehearse(WINDOW_ITERATIONS)
        return load.run_server(pool, schedule_ns)


def time_offline(infer: Any, arguments: argparse.Namespace, _: WarmUp) -> Any:
    """Time one query of so many samples as should fill the duration."""
    with open_pool(infer, arguments.threads) as pool:
        rehearsed = pool.rehearse(WINDOW_ITERATIONS)
        samples = load.count_offline_samples(rehearsed, arguments.duration_s, arguments.iterations)
        _check_count(samples)
        return load.run_offline(pool, samples)


def _check_count(count: float) -> None:
    """Raise TooManyError unless so many queries or samples can be kept."""
    if count > MAX_LATENCIES:
        raise TooManyError(
            f"a process run would have about {count:.0f} queries or samples, and"
            f" {MAX_LATENCIES} can be kept"
        )


def find_least_warm_up(model: Any) -> float:
    """Return how long a model warms up at least."""
    first = model.entry["providers"][0]["name"]
    return 0.0 if first == providers.CPU else COMPILING_WARM_UP_S


def warm_up(infer: Any, arguments: argparse.Namespace, least_s: float) -> WarmUp:
    """Run until latencies are steady or the cap is reached."""
    deadline = time.monotonic() + arguments.warm_up_cap_s
    first = infer.time_stream(max(arguments.warm_up_s, least_s), arguments.warm_up_iterations)
    iterations, last = first.inferences, median(first.latencies_ns)
    windows: List[Tuple[float, float]] = []
    while time.monotonic() < deadline:
        window = infer.time_stream(arguments.window_s, WINDOW_ITERATIONS)
        iterations += window.inferences
        last = median(window.latencies_ns)
        windows.append((window.from_ns / load.NS, last))
        if load.is_steady(windows):
            return WarmUp(iterations, steady=True, median_ns=last)
    return WarmUp(iterations, steady=False, median_ns=last)


def create(arguments: argparse.Namespace) -> Json:
    """Time the creation of a variant's sessions, from files in memory or from the disk.

    Python, numpy and onnxruntime are loaded before, and so are the libraries of a provider that is
    not built into onnxruntime. Engines and compiled models that were kept are used.
    """
    bundle = loader.Bundle(arguments.bundle)
    entry = bundle.list_variants(arguments.variant)[0]
    loader.check_requirements(entry, bundle.manifest.get("provider_sources"))
    singles = loader.split_models(entry)
    if arguments.cold:
        problem = pages.drop(_list_model_files(bundle, singles))
        if problem:
            return {"session_create_ns": sysfs.make_not_measured(problem)}
    started = time.monotonic_ns()
    sessions = [loader.open_session(bundle, single) for single in singles]
    created = time.monotonic_ns()
    del sessions
    return {"session_create_ns": created - started}


def start(arguments: argparse.Namespace) -> Json:
    """Time a start: from the beginning of this process to the first answer.

    Python, numpy and onnxruntime are loaded in that time, and the loader checks the goldens.
    """
    age_ns = read_process_age_ns()
    if age_ns is None:
        problem = "the system does not tell when a process began"
        return {"start_ns": sysfs.make_not_measured(problem)}
    if arguments.cold:
        bundle = loader.Bundle(arguments.bundle)
        singles = loader.split_models(bundle.list_variants(arguments.variant)[0])
        problem = pages.drop(_list_model_files(bundle, singles))
        if problem:
            return {"start_ns": sysfs.make_not_measured(problem)}
    started = time.monotonic_ns()
    model = loader.load(arguments.bundle, arguments.variant)
    model.run(model.bundle.read_golden_inputs(0))
    return {"start_ns": age_ns + time.monotonic_ns() - started}


def read_process_age_ns() -> Optional[int]:
    """Return how long this process has run, to a tick of the system (mostly 10 ms).

    None where the system does not tell. Source: proc_pid_stat(5), starttime; qemu-user 7.2 tells 0.
    """
    try:
        text = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    ticks = int(text.rpartition(")")[2].split()[19])
    began_ns = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - began_ns if ticks else None


def _list_model_files(bundle: Any, singles: Sequence[Json]) -> List[Path]:
    """Return the models' files, with external data and cached engines."""
    folders = {(bundle.folder / single["model"]).parent for single in singles}
    kept = {providers.find_cache_folder(single, bundle.cache) for single in singles} - {None}
    found = {path for folder in folders for path in folder.iterdir()}
    found |= {path for folder in kept for path in folder.rglob("*")}
    return sorted(path for path in found if path.is_file())


def sweep(arguments: argparse.Namespace) -> Json:
    """Time inferences over golden inputs in other shapes, if the outputs for them are right."""
    model = loader.load(arguments.bundle, arguments.variant)
    try:
        point = checks.check_point(model, arguments.shapes, arguments.batch)
        if point.checked["problem"]:
            return {"latencies_ns": [], "checked": point.checked}
        infer, _ = make_inferences(model, point.feeds)
        warm = warm_up(infer, arguments, find_least_warm_up(model))
        timed = time_single_stream(infer, arguments, warm)
    except loader.ORT_ERRORS as error:
        return {"latencies_ns": [], "problem": " ".join(str(error).split())[:MAX_PROBLEM]}
    return {"latencies_ns": timed.latencies_ns, "steady": warm.steady, "checked": point.checked}


def measure_memory(arguments: argparse.Namespace) -> Json:
    """Report the peak of resident memory without a model, after loading it and after some runs.

    Of the memory of GPUs, where the variant computes on one, what was taken meanwhile: onnxruntime
    gives none back until a session ends.
    """
    [entry] = loader.Bundle(arguments.bundle).list_variants(arguments.variant)[:1]
    gpus = [] if binding.find_memory(entry) == binding.HOST else nvml.find_gpus()
    gpu_before = nvml.sum_used_bytes(gpus)
    baseline = read_peak_rss()
    model = loader.load(arguments.bundle, arguments.variant, settings=arguments.session)
    loaded = read_peak_rss()
    for _ in range(MEMORY_RUNS):
        model.run(model.bundle.read_golden_inputs(0))
    gpu_after = nvml.sum_used_bytes(gpus)
    gpu: Any = sysfs.make_not_measured("the variant computes on no GPU whose driver tells it")
    if gpu_before is not None and gpu_after is not None:
        gpu = max(0, gpu_after - gpu_before)
    return {
        "gpu_bytes": gpu,
        "baseline_bytes": baseline,
        "loaded_bytes": loaded,
        "peak_bytes": read_peak_rss(),
        "runs": MEMORY_RUNS,
    }


def measure_bound(arguments: argparse.Namespace) -> Json:
    """Time inferences whose inputs and outputs stay on the device, and the copies, each apart."""
    model = loader.load(arguments.bundle, arguments.variant)
    if model.buckets:
        why = "the variant has a model for each of several sizes"
        return {"bound": sysfs.make_not_measured(why)}
    feed = model.bundle.read_golden_inputs(0)
    try:
        bound = model.bind(feed)
        document = {"memory": bound.memory, **_time_bound(model, bound, feed)}
    except loader.ORT_ERRORS as error:
        why = " ".join(str(error).split())[:MAX_PROBLEM]
        return {"bound": sysfs.make_not_measured(why)}
    try:
        recorded = _time_bound(model, model.bind(feed, graph=True), feed)
        document["graph_run_ns"] = recorded["run_ns"]
    except (ValueError, loader.Refused, *loader.ORT_ERRORS) as error:
        why = " ".join(str(error).split())[:MAX_PROBLEM]
        document["graph_run_ns"] = sysfs.make_not_measured(why)
    return {"bound": document}


def _time_bound(model: Any, bound: Any, feed: loader.Arrays) -> Json:
    """Return how long writing, running and reading took, each time.

    Raises:
        Refused: The outputs are not the golden ones.
    """
    taken: List[Tuple[int, ...]] = []
    outputs: loader.Arrays = {}
    deadline = time.monotonic() + BOUND_S
    while not taken or (len(taken) < BOUND_RUNS and time.monotonic() < deadline):
        began = time.perf_counter_ns()
        bound.write(feed)
        written = time.perf_counter_ns()
        bound.run()
        ran = time.perf_counter_ns()
        outputs = bound.read()
        taken.append((written - began, ran - written, time.perf_counter_ns() - ran))
    loader.check_golden(model.entry, model.compute_closeness_db(0, outputs), " when bound")
    names = ("write_ns", "run_ns", "read_ns")
    warm = len(taken) * WINDOW_ITERATIONS // BOUND_RUNS
    timed = zip(*taken[warm:])  # noqa: B905 (strict is unknown to Python 3.8)
    return {name: list(each) for name, each in zip(names, timed)}  # noqa: B905


def measure_phases(arguments: argparse.Namespace) -> Json:
    """Time what a program waits for: calls of ``predict``, and their phases; edgepack_phases.py."""
    model = loader.load(arguments.bundle, arguments.variant)
    warm_up_s = max(arguments.warm_up_s, find_least_warm_up(model))
    return {"phases": phases.time_phases(model, warm_up_s, arguments.duration_s)}


def read_peak_rss() -> int:
    """Return this process's peak resident set size.

    On Linux from VmHWM: ``ru_maxrss`` starts at the parent's peak there, because exec carries it
    over. Source: ``setmax_mm_hiwater_rss`` in Linux's fs/exec.c; getrusage(2) for the units.
    """
    for line in sysfs.read(Path("/proc/self/status")).splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024


def profile(arguments: argparse.Namespace) -> Json:
    """Report which provider ran each node, for how long, and what it read and wrote."""
    bundle = loader.Bundle(arguments.bundle)
    entry = bundle.list_variants(arguments.variant)[0]
    # It registers a provider that is a library beside onnxruntime.
    loader.check_requirements(entry, bundle.manifest.get("provider_sources"))
    events = loader.record_profile(bundle, entry, PROFILE_RUNS)
    read = sizes.read_sizes(events)
    if arguments.sizes and not _is_elsewhere(entry):
        read = _record_sizes(bundle, entry)
    nodes = loader.find_profile_nodes(events)
    document = {
        "variant": entry["id"],
        "runs": PROFILE_RUNS,
        "nodes": [{**node, "sizes": read.get((node["name"], node["op"]))} for node in nodes],
        "between_us": sizes.find_between_us(events),
    }
    return {**document, "events": events[: arguments.events]} if arguments.events else document


def _is_elsewhere(entry: Json) -> bool:
    """Return whether a provider other than the CPU would compile once more for another session."""
    return bool(entry["providers"][0]["name"] != providers.CPU)


def _record_sizes(bundle: Any, entry: Json) -> Any:
    """Return what nodes read and write, from a session that packs no weights; none if it fails."""
    key, value = sizes.UNPACKED
    settings = entry["session"]
    unpacked = {**settings, "config": {**settings["config"], key: value}}
    try:
        events = loader.record_profile(bundle, {**entry, "session": unpacked}, 1)
    except (loader.Refused, *loader.ORT_ERRORS) as error:
        print(f"nodes tell no sizes: {error}", file=sys.stderr)
        return {}
    return sizes.read_sizes(events)


def serve(arguments: argparse.Namespace, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer inference requests until there are no more.

    If a request leaves the inputs of a state out, they are the model's own outputs of the run
    before.
    """
    coming = _read_ahead(requests)
    model = loader.load(arguments.bundle, arguments.variant)
    state: Dict[str, str] = model.bundle.manifest.get("state", {})
    own: loader.Arrays = {}
    flushed = time.monotonic()
    for inputs in iter(coming.get, None):
        try:
            feed = model.check_inputs({**own, **inputs})
            started = time.perf_counter_ns()
            outputs = model.run(feed)
            ns = time.perf_counter_ns() - started
            own = {name: outputs[output] for output, name in state.items()}
        except loader.ORT_ERRORS as error:
            _write_answer(answers, {"error": str(error)}, {})
        else:
            _write_answer(answers, {"ns": ns}, outputs)
        if coming.empty() or time.monotonic() - flushed > FLUSH_S:
            answers.flush()
            flushed = time.monotonic()
    answers.flush()


def _read_ahead(stream: BinaryIO) -> "queue.Queue[Optional[loader.Arrays]]":
    """Return a queue of requests that a thread reads while others are answered; None ends it."""
    coming: "queue.Queue[Optional[loader.Arrays]]" = queue.Queue(READ_AHEAD)

    def read() -> None:
        try:
            while True:
                prefix = stream.read(4)
                if len(prefix) < 4:
                    return
                header = json.loads(stream.read(struct.unpack(">I", prefix)[0]))
                coming.put({spec["name"]: _read_tensor(stream, spec) for spec in header["tensors"]})
        finally:
            coming.put(None)

    threading.Thread(target=read, daemon=True).start()
    return coming


def _read_tensor(stream: BinaryIO, spec: Json) -> np.ndarray:
    dtype = np.dtype(spec["dtype"]).newbyteorder("<")
    size = int(np.prod(spec["shape"], dtype=np.int64)) * dtype.itemsize
    array = np.frombuffer(stream.read(size), dtype).reshape(spec["shape"])
    return array.astype(spec["dtype"], copy=False)


def _write_answer(stream: BinaryIO, header: Json, tensors: loader.Arrays) -> None:
    header["tensors"] = [
        {"name": name, "dtype": str(array.dtype), "shape": list(array.shape)}
        for name, array in tensors.items()
    ]
    encoded = json.dumps(header).encode()
    stream.write(struct.pack(">I", len(encoded)) + encoded)
    for array in tensors.values():
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        stream.write(np.ascontiguousarray(little).tobytes())


def read_device_facts() -> Json:
    """Return what this machine and its software are."""
    return {
        "os": f"{platform.system()} {platform.release()}",
        "arch": platform.machine(),
        "model": read_device_model(),
        "cpu": read_cpu_model(),
        "cpu_count": os.cpu_count() or 1,
        "emulated": providers.is_emulated(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "onnxruntime": ort.__version__,
        "providers": ort.get_available_providers(),
        "driver": providers.read_driver_version()
        or sysfs.make_not_measured("no GPU driver reports its version"),
        "boot_id": conditions.read_boot_id(),
        "conditions": conditions.read_conditions(),
    }


def read_device_model() -> Any:
    """Return the board's or computer's model."""
    for path in ("/proc/device-tree/model", "/sys/class/dmi/id/product_name"):
        text = sysfs.read(Path(path)).strip("\0\n ")
        if text:
            return text
    return sysfs.make_not_measured("this system does not name its model")


def read_cpu_model() -> Any:
    """Return the processor's name."""
    for line in providers.read_cpuinfo():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model"):
            return value.strip()
    return platform.processor() or sysfs.make_not_measured(
        "this system does not name its processor"
    )


_MODES: Dict[str, Callable[[argparse.Namespace], Json]] = {
    "select": select,
    "measure": measure,
    "create": create,
    "start": start,
    "sweep": sweep,
    "memory": measure_memory,
    "bound": measure_bound,
    "phases": measure_phases,
    "profile": profile,
}
_SCENARIOS: Dict[str, Callable[[Any, argparse.Namespace, WarmUp], Any]] = {
    "single-stream": time_single_stream,
    "multi-stream": time_multi_stream,
    "server": time_server,
    "offline": time_offline,
}


if __name__ == "__main__":
    sys.exit(main())
