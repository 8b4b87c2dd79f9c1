"""Measure this bundle on the machine it lies on. Prints one JSON document on stdout.

::

    python harness/edgepack_harness.py select  --bundle DIR [--variant ID]
    python harness/edgepack_harness.py measure --bundle DIR --variant ID --duration-s 10
    python harness/edgepack_harness.py memory  --bundle DIR --variant ID
    python harness/edgepack_harness.py profile --bundle DIR --variant ID
    python harness/edgepack_harness.py serve   --bundle DIR --variant ID

Each is a process of its own, so that none disturbs the other's numbers. Everything but the
document goes to stderr; ``select`` says there what it is trying, as edgepack_watcher.py has it.
Exit code 3: no variant works here; the reasons are on stderr. What this machine does not tell is
``{"kind": "not-measured", "reason": ...}``, never null or zero.

``serve`` reads requests on stdin until it ends and answers each on stdout. A message is the length
of its header (4 bytes, big-endian), the header (JSON: a list of name, dtype, shape under
``tensors``), and the tensors' bytes one after the other (little-endian, C order). An answer's
header also has ``ns``, the time of the inference; or ``error`` instead of tensors.

Needs what the loader needs: Python 3.8, numpy and onnxruntime.
"""

from __future__ import annotations

import argparse
import gc
import glob
import itertools
import json
import os
import platform
import resource
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

# A release on a device is never written to, not even with byte code.
sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import edgepack_loader as loader  # type: ignore[import-not-found]  # noqa: E402
import edgepack_providers as providers  # type: ignore[import-not-found]  # noqa: E402
import numpy as np  # noqa: E402
import onnxruntime as ort  # noqa: E402

WATCHER = Path(__file__).with_name("edgepack_watcher.py")
NO_VARIANT_EXIT = 3
STEADY_WINDOWS = 3
STEADY_SPREAD = 0.03
"""The medians of the last windows of the warm-up agree within this."""
WINDOW_ITERATIONS = 30
INCOMPARABLE_DB = -200.0
"""Stands for minus infinity, which JSON has no number for."""
MEMORY_RUNS = 20
PROFILE_RUNS = 10

Json = Dict[str, Any]


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run one mode and return the exit code."""
    arguments = _parse(argv)
    out = _claim_stdout()
    try:
        if arguments.mode == "serve":
            serve(arguments, sys.stdin.buffer, out)
            return 0
        document = _MODES[arguments.mode](arguments)
    except (loader.LoadError, loader.Refused) as error:
        print(error, file=sys.stderr)
        return NO_VARIANT_EXIT
    out.write(json.dumps(document, allow_nan=False).encode() + b"\n")
    out.flush()
    return 0


def _parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure an edgepack bundle on this machine.")
    parser.add_argument("mode", choices=[*_MODES, "serve"])
    parser.add_argument("--bundle", required=True, type=Path)
    parser.add_argument("--variant", help="use this variant or none")
    parser.add_argument("--duration-s", type=float, default=10.0)
    parser.add_argument("--iterations", type=int, default=130, help="measure at least so many")
    parser.add_argument("--warm-up-s", type=float, default=1.0)
    parser.add_argument("--warm-up-iterations", type=int, default=10)
    parser.add_argument("--window-s", type=float, default=1.0, help="of the steadiness test")
    parser.add_argument("--warm-up-cap-s", type=float, default=60.0)
    return parser.parse_args(argv)


def _claim_stdout() -> BinaryIO:
    """Return the real stdout and send whatever libraries print there to stderr."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return out


def select(arguments: argparse.Namespace) -> Json:
    """Say which variant works here, and what this machine is."""
    watch = Watch()
    try:
        model = loader.load(arguments.bundle, arguments.variant, on_try=watch.begin)
    finally:
        watch.end()
    return {
        "variant": model.variant,
        "passed_over": [{"variant": name, "reason": why} for name, why in model.passed_over],
        "device": device_facts(),
    }


class Watch:
    """Has another process say on stderr which variant is being tried; see edgepack_watcher.py."""

    def __init__(self) -> None:
        self._child: Optional[subprocess.Popen[bytes]] = None

    def begin(self, variant: str, folders: Sequence[Path]) -> None:
        """Say it of this variant from now on; its engines are kept in the folders."""
        self.end()
        kept = any(path.is_file() for folder in folders for path in folder.rglob("*"))
        doing = "building" if folders and not kept else "trying"
        argv = [sys.executable, "-IS", str(WATCHER), variant, doing, *map(str, folders)]
        self._child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)

    def end(self) -> None:
        """Say nothing more."""
        if self._child is not None:
            self._child.communicate()


def measure(arguments: argparse.Namespace) -> Json:
    """Check all goldens, warm up, and time inferences: one process run."""
    model = loader.load(arguments.bundle, arguments.variant)
    goldens_db = [model.golden_db(index) for index in range(model.bundle.goldens)]
    feeds = [model.bundle.golden_inputs(index) for index in range(model.bundle.goldens)]
    infer = Inferences(model.runner, [spec.name for spec in model.outputs], feeds)
    before = conditions()
    warm_up_iterations, steady = warm_up(infer, arguments)
    latencies_ns = infer.timed(arguments.duration_s, arguments.iterations)
    return {
        "variant": model.variant,
        "session_create_ns": model.session_create_ns,
        "first_inference_ns": model.first_inference_ns,
        "warm_up_iterations": warm_up_iterations,
        "steady": steady,
        "latencies_ns": latencies_ns,
        "golden_min_sqnr_db": max(min(goldens_db), INCOMPARABLE_DB),
        "boot_id": boot_id(),
        "before": before,
        "after": conditions(),
    }


class Inferences:
    """Repeats inferences over prepared inputs, in turn, and times each."""

    def __init__(
        self,
        run: Callable[[List[str], loader.Arrays], Any],
        names: List[str],
        feeds: List[loader.Arrays],
    ) -> None:
        self._run = run
        self._names = names
        self._feeds: Iterator[loader.Arrays] = itertools.cycle(feeds)

    def timed(self, duration_s: float, iterations: int) -> List[int]:
        """Run for a duration, and at least so often; return the ``perf_counter_ns`` latencies.

        Nothing but the call stands between the two clock readings, and the garbage collector is
        off, so this is a bare loop over ``session.run``; of a variant with a model for each of
        several sizes, over what also chooses one, pads and cuts.
        """
        run, names, feeds, clock = self._run, self._names, self._feeds, time.perf_counter_ns
        latencies_ns: List[int] = []
        gc.collect()
        gc.disable()
        end = clock() + int(duration_s * 1e9)
        after = 0
        while after < end or len(latencies_ns) < iterations:
            feed = next(feeds)
            before = clock()
            run(names, feed)
            after = clock()
            latencies_ns.append(after - before)
        gc.enable()
        return latencies_ns


def warm_up(infer: Inferences, arguments: argparse.Namespace) -> Tuple[int, bool]:
    """Run until latencies are steady or the cap is reached; return iterations and steadiness."""
    deadline = time.monotonic() + arguments.warm_up_cap_s
    iterations = len(infer.timed(arguments.warm_up_s, arguments.warm_up_iterations))
    medians: List[float] = []
    while time.monotonic() < deadline:
        window = infer.timed(arguments.window_s, WINDOW_ITERATIONS)
        iterations += len(window)
        medians.append(median(window))
        if is_steady(medians):
            return iterations, True
    return iterations, False


def is_steady(medians: Sequence[float]) -> bool:
    """Tell whether the last windows' medians agree."""
    last = medians[-STEADY_WINDOWS:]
    return len(last) == STEADY_WINDOWS and max(last) <= min(last) * (1 + STEADY_SPREAD)


def memory(arguments: argparse.Namespace) -> Json:
    """Report the peak of resident memory without a model, after loading it and after some runs."""
    baseline = peak_rss_bytes()
    model = loader.load(arguments.bundle, arguments.variant)
    loaded = peak_rss_bytes()
    for _ in range(MEMORY_RUNS):
        model.run(model.bundle.golden_inputs(0))
    return {
        "baseline_bytes": baseline,
        "loaded_bytes": loaded,
        "peak_bytes": peak_rss_bytes(),
        "runs": MEMORY_RUNS,
    }


def peak_rss_bytes() -> int:
    """Return this process's peak resident set size.

    On Linux from VmHWM: ``ru_maxrss`` starts at the parent's peak there, because exec carries it
    over. Source: ``setmax_mm_hiwater_rss`` in Linux's fs/exec.c; getrusage(2) for the units.
    """
    for line in _read("/proc/self/status").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024


def profile(arguments: argparse.Namespace) -> Json:
    """Report which provider ran each node, and for how long."""
    bundle = loader.Bundle(arguments.bundle)
    entry = bundle.variants(arguments.variant)[0]
    nodes = loader.profile_nodes(bundle, entry, PROFILE_RUNS)
    return {"variant": entry["id"], "runs": PROFILE_RUNS, "nodes": nodes}


def serve(arguments: argparse.Namespace, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer inference requests until there are no more."""
    model = loader.load(arguments.bundle, arguments.variant)
    while True:
        prefix = requests.read(4)
        if len(prefix) < 4:
            return
        header = json.loads(requests.read(struct.unpack(">I", prefix)[0]))
        inputs = {spec["name"]: _read_tensor(requests, spec) for spec in header["tensors"]}
        try:
            feed = model.checked(inputs)
            started = time.perf_counter_ns()
            outputs = model.run(feed)
            ns = time.perf_counter_ns() - started
        except loader.ORT_ERRORS as error:
            _answer(answers, {"error": str(error)}, {})
            continue
        _answer(answers, {"ns": ns}, outputs)


def _read_tensor(stream: BinaryIO, spec: Json) -> np.ndarray:
    dtype = np.dtype(spec["dtype"]).newbyteorder("<")
    size = int(np.prod(spec["shape"], dtype=np.int64)) * dtype.itemsize
    array = np.frombuffer(stream.read(size), dtype).reshape(spec["shape"])
    return array.astype(spec["dtype"], copy=False)


def _answer(stream: BinaryIO, header: Json, tensors: loader.Arrays) -> None:
    header["tensors"] = [
        {"name": name, "dtype": str(array.dtype), "shape": list(array.shape)}
        for name, array in tensors.items()
    ]
    encoded = json.dumps(header).encode()
    stream.write(struct.pack(">I", len(encoded)) + encoded)
    for array in tensors.values():
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        stream.write(np.ascontiguousarray(little).tobytes())
    stream.flush()


def device_facts() -> Json:
    """Return what this machine and its software are."""
    return {
        "os": f"{platform.system()} {platform.release()}",
        "arch": platform.machine(),
        "model": device_model(),
        "cpu": cpu_model(),
        "cpu_count": os.cpu_count() or 1,
        "emulated": providers.is_emulated(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "onnxruntime": ort.__version__,
        "providers": ort.get_available_providers(),
        "boot_id": boot_id(),
        "conditions": conditions(),
    }


def conditions() -> Json:
    """Return what decides the speed of this moment: governor, temperature, throttling."""
    return {
        "governor": governor(),
        "temperature_c": temperature_c(),
        "throttle_events": throttle_events(),
        "throttled_now": throttle_causes(0),
        "throttled_since_boot": throttle_causes(16),
    }


def device_model() -> Any:
    """Return the board's or computer's model."""
    for path in ("/proc/device-tree/model", "/sys/class/dmi/id/product_name"):
        text = _read(path).strip("\0\n ")
        if text:
            return text
    return _not_measured("this system does not name its model")


def cpu_model() -> Any:
    """Return the processor's name."""
    for line in providers.cpuinfo_lines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Model"):
            return value.strip()
    return platform.processor() or _not_measured("this system does not name its processor")


def boot_id() -> Any:
    """Return what changes with every boot."""
    text = _read("/proc/sys/kernel/random/boot_id").strip() or _output(
        "sysctl", "-n", "kern.bootsessionuuid"
    )
    return text or _not_measured("this system has no boot id")


def governor() -> Any:
    """Return the frequency governors of all cores, joined where they differ."""
    paths = glob.glob("/sys/devices/system/cpu/cpufreq/policy*/scaling_governor")
    found = sorted({_read(path).strip() for path in paths} - {""})
    return "+".join(found) or _not_measured("no cpufreq governor can be read")


def temperature_c() -> Any:
    """Return the hottest thermal zone in degrees Celsius."""
    texts = [_read(path).strip() for path in glob.glob("/sys/class/thermal/thermal_zone*/temp")]
    found = [int(text) / 1000 for text in texts if text.lstrip("-").isdigit()]
    return max(found) if found else _not_measured("no thermal zone can be read")


def throttle_events() -> Any:
    """Return how often the cores of an x86 processor have been throttled since boot."""
    paths = glob.glob("/sys/devices/system/cpu/cpu*/thermal_throttle/core_throttle_count")
    texts = [_read(path).strip() for path in paths]
    found = [int(text) for text in texts if text.isdigit()]
    return sum(found) if found else _not_measured("no throttle counter can be read")


def throttle_causes(first_bit: int) -> Any:
    """Return for which causes a Raspberry Pi is (bit 0) or was since boot (bit 16) slowed down.

    Source: bits 0 to 3 and 16 to 19 of ``vcgencmd get_throttled``, Raspberry Pi documentation.
    """
    _, _, text = _output("vcgencmd", "get_throttled").partition("=")
    if not text:
        return _not_measured("there is no vcgencmd that answers")
    bits = int(text, 16) >> first_bit
    causes = ("under-voltage", "frequency capped", "throttled", "soft temperature limit")
    return [cause for number, cause in enumerate(causes) if bits >> number & 1]


def _not_measured(reason: str) -> Json:
    return {"kind": "not-measured", "reason": reason}


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _output(*argv: str) -> str:
    if shutil.which(argv[0]) is None:
        return ""
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=False, timeout=10)
    return done.stdout.decode("utf-8", "replace").strip()


_MODES: Dict[str, Callable[[argparse.Namespace], Json]] = {
    "select": select,
    "measure": measure,
    "memory": memory,
    "profile": profile,
}


if __name__ == "__main__":
    sys.exit(main())
