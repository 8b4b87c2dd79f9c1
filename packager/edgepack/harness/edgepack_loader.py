"""Run this bundle's model: the best variant that works on this machine.

::

    from edgepack_loader import load

    model = load()
    outputs = model({"images": array})
    print(model.variant, model.passed_over)

The bundle's manifest lists variants, best first. :func:`load` walks the list. It skips a variant
whose execution provider or CPU flags this machine lacks, creates the session, makes sure that the
nodes are where the variant wants them, runs one golden input, compares with the variant's golden
outputs, and keeps the first variant that passes all of this.

Needs Python 3.8 or newer, numpy and onnxruntime; nothing else. A program that uses several bundles
names each: ``load("path/to/bundle")``; this module is the same in all of them.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple, Type, Union

# Official builds of onnxruntime 1.29 and newer send telemetry unless this is set before they load.
# Source: Privacy.md in the onnxruntime 1.31.1 wheel.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as _ort_state

CPU = "CPUExecutionProvider"
SCHEMA_VERSION = 1
EQUAL_DB = 200.0
"""What :func:`sqnr_db` says of equal tensors."""
MIN_EQUAL_SHARE = 0.99
"""Of the elements of an integer or bool output, such as a class index, which must be exact."""

# onnxruntime's exceptions have no common base of their own.
_ORT_KINDS = [kind for kind in vars(_ort_state).values() if isinstance(kind, type)]
ORT_ERRORS: Tuple[Type[Exception], ...] = (
    RuntimeError,
    ValueError,
    *(kind for kind in _ORT_KINDS if issubclass(kind, Exception)),
)

Arrays = Dict[str, np.ndarray]


class LoadError(RuntimeError):
    """No variant of the bundle works on this machine, or the folder is no bundle."""


class Refused(Exception):  # noqa: N818
    """Why one variant cannot be used here."""


class TensorSpec(NamedTuple):
    """One input or output of the model."""

    name: str
    dtype: str
    """A numpy dtype name."""
    shape: Tuple[Union[int, str], ...]
    """An int where fixed; any size is taken where it is a name."""

    def check(self, array: np.ndarray) -> None:
        """Raise ValueError, saying what was expected, unless the array fits."""
        if array.dtype != np.dtype(self.dtype):
            raise ValueError(
                f"input {self.name!r} is {array.dtype}, expected {self.dtype}:"
                f" convert it with array.astype({self.dtype!r})"
            )
        pairs = zip(array.shape, self.shape)  # noqa: B905 (strict is unknown to Python 3.8)
        fits = array.ndim == len(self.shape) and all(
            isinstance(want, str) or size == want for size, want in pairs
        )
        if not fits:
            raise ValueError(
                f"input {self.name!r} has shape {list(array.shape)}, expected {list(self.shape)}"
            )


class Model:
    """One variant of the bundle, proven on this machine. Calling it runs it; threads may share it.

    Attributes:
        variant: Id of the variant in use.
        passed_over: Variants that come before it, each with the reason why it is not used.
        inputs: What the model takes.
        outputs: What it gives.
        session: The onnxruntime session.
        golden_sqnr_db: How near the first golden output was, in the worst output.
        session_create_ns: How long the session took to create.
        first_inference_ns: How long its first inference took.
    """

    def __init__(self, bundle: Bundle, entry: Dict[str, Any], session: Any) -> None:
        self.bundle = bundle
        self.entry = entry
        self.session = session
        self.variant: str = entry["id"]
        self.passed_over: List[Tuple[str, str]] = []
        self.inputs = bundle.inputs
        self.outputs = bundle.outputs
        self.golden_sqnr_db = 0.0
        self.session_create_ns = 0
        self.first_inference_ns = 0

    def __call__(self, inputs: Union[Mapping[str, Any], np.ndarray]) -> Arrays:
        """Return the outputs by name.

        Args:
            inputs: One array per input, by name; or the array itself if there is one input.

        Raises:
            ValueError: A name, dtype or shape is not what the model takes.
        """
        return self.run(self.checked(inputs))

    def run(self, feed: Arrays) -> Arrays:
        """Return the outputs by name, without checking the inputs."""
        names = [spec.name for spec in self.outputs]
        arrays = self.session.run(names, feed)
        return dict(zip(names, arrays))  # noqa: B905 (strict is unknown to Python 3.8)

    def checked(self, inputs: Union[Mapping[str, Any], np.ndarray]) -> Arrays:
        """Return what the session is to be fed, or raise ValueError."""
        if not isinstance(inputs, Mapping):
            if len(self.inputs) != 1:
                names = ", ".join(spec.name for spec in self.inputs)
                raise ValueError(f"the model has several inputs: pass a dict with {names}")
            inputs = {self.inputs[0].name: inputs}
        wanted = {spec.name for spec in self.inputs}
        if set(inputs) != wanted:
            raise ValueError(f"the inputs are {sorted(inputs)}, expected {sorted(wanted)}")
        feed = {spec.name: np.asarray(inputs[spec.name]) for spec in self.inputs}
        for spec in self.inputs:
            spec.check(feed[spec.name])
        return feed

    def golden_db(self, index: int) -> float:
        """Run a golden input and return how near the worst output is, as :func:`closeness_db`."""
        return self.nearness_db(index, self.run(self.bundle.golden_inputs(index)))

    def nearness_db(self, index: int, outputs: Arrays) -> float:
        """Return how near outputs are to the golden ones of a sample, in the worst output."""
        golden = self.bundle.golden_outputs(index, self.variant)
        return min(closeness_db(golden[name], outputs[name]) for name in golden)


class Bundle:
    """A bundle's manifest and golden tensors, read from its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = _read_manifest(folder)
        self.inputs = _specs(self.manifest["inputs"])
        self.outputs = _specs(self.manifest["outputs"])

    @property
    def goldens(self) -> int:
        """The number of golden samples, at least 1."""
        return len(self.manifest["goldens"])

    def variants(self, only: Optional[str]) -> List[Dict[str, Any]]:
        """Return all variants in order, or the one that is asked for."""
        entries: List[Dict[str, Any]] = self.manifest["variants"]
        chosen = [entry for entry in entries if only in (None, entry["id"])]
        if not chosen:
            ids = ", ".join(entry["id"] for entry in entries)
            raise LoadError(f"the bundle has no variant {only!r}; it has: {ids}")
        return chosen

    def golden_inputs(self, index: int) -> Arrays:
        """Return the inputs of one golden sample."""
        return self._tensors(self.manifest["goldens"][index]["inputs"])

    def golden_outputs(self, index: int, variant: str) -> Arrays:
        """Return what a variant gave on the build host's CPU for one golden sample."""
        return self._tensors(self.manifest["goldens"][index]["outputs"][variant])

    def _tensors(self, entries: Sequence[Dict[str, Any]]) -> Arrays:
        return {entry["name"]: self._tensor(entry) for entry in entries}

    def _tensor(self, entry: Dict[str, Any]) -> np.ndarray:
        path = self.folder / entry["path"]
        dtype = np.dtype(entry["dtype"]).newbyteorder("<")
        try:
            array = np.frombuffer(path.read_bytes(), dtype).reshape(entry["shape"])
        except (OSError, ValueError) as error:
            raise LoadError(f"the bundle is damaged: {path}: {error}") from error
        return array.astype(entry["dtype"], copy=False)


def load(bundle: Union[str, Path, None] = None, variant: Optional[str] = None) -> Model:
    """Return the first variant of the bundle that works on this machine.

    Args:
        bundle: The bundle's folder; by default the one that this file lies in.
        variant: Use this variant or none.

    Raises:
        LoadError: None works, with the reason for each; or the folder is no bundle.
    """
    opened = Bundle(Path(bundle) if bundle else Path(__file__).resolve().parent)
    passed_over: List[Tuple[str, str]] = []
    for entry in opened.variants(variant):
        try:
            model = _try_variant(opened, entry)
        except Refused as refusal:
            passed_over.append((entry["id"], str(refusal)))
            continue
        model.passed_over = passed_over
        return model
    reasons = "".join(f"\n  {name}: {reason}" for name, reason in passed_over)
    raise LoadError(f"no variant of {opened.folder} works on this machine:{reasons}")


def _try_variant(bundle: Bundle, entry: Dict[str, Any]) -> Model:
    check_requirements(entry)
    started = time.perf_counter_ns()
    session = open_session(bundle.folder, entry)
    created = time.perf_counter_ns()
    model = Model(bundle, entry, session)
    model.session_create_ns = created - started
    feed = bundle.golden_inputs(0)
    try:
        started = time.perf_counter_ns()
        outputs = model.run(feed)
        model.first_inference_ns = time.perf_counter_ns() - started
        model.golden_sqnr_db = model.nearness_db(0, outputs)
        _check_golden(entry, model.golden_sqnr_db)
        _check_share(bundle, entry, session)
    except ORT_ERRORS as error:
        raise Refused(f"inference failed: {error}") from error
    return model


def _check_golden(entry: Dict[str, Any], found_db: float) -> None:
    limit_db = entry["min_sqnr_db"]
    if found_db < limit_db:
        raise Refused(
            f"its output is {found_db:.1f} dB near the golden one, {limit_db:.1f} dB are needed"
        )


def check_requirements(entry: Dict[str, Any]) -> None:
    """Raise Refused if this machine lacks a provider or CPU flag that the variant needs."""
    available = ort.get_available_providers()
    for provider in entry["providers"]:
        if provider["name"] not in available:
            raise Refused(
                f"{provider['name']} is not in this onnxruntime (it has {', '.join(available)})"
            )
    missing = sorted(set(entry["requires"]["cpu"]) - cpu_flags())
    if missing:
        raise Refused(f"this CPU lacks {', '.join(missing)}")


def open_session(folder: Path, entry: Dict[str, Any], profile_prefix: str = "") -> Any:
    """Create the session of a variant as its manifest entry says.

    Args:
        folder: The bundle.
        entry: The variant's entry in the manifest.
        profile_prefix: Where onnxruntime's profile goes; none is made if empty.

    Raises:
        Refused: The session cannot be created, or onnxruntime left the first provider out.
    """
    providers = session_providers(entry)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = entry["session"]["intra_op_num_threads"]
    for key, value in session_config(entry).items():
        options.add_session_config_entry(key, value)
    if profile_prefix:
        options.enable_profiling = True
        options.profile_file_prefix = profile_prefix
    try:
        session = ort.InferenceSession(
            str(folder / entry["model"]),
            options,
            providers=[(provider["name"], provider["options"]) for provider in providers],
            enable_fallback=0,
        )
    except ORT_ERRORS as error:
        raise Refused(f"the session cannot be created: {error}") from error
    if session.get_providers()[0] != providers[0]["name"]:
        raise Refused(f"onnxruntime left {providers[0]['name']} out of the session")
    return session


def session_providers(entry: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Return the providers to name: without the CPU where all nodes are to be elsewhere."""
    providers: List[Dict[str, Any]] = entry["providers"]
    if wants_no_cpu(entry):
        return [provider for provider in providers if provider["name"] != CPU]
    return providers


def session_config(entry: Dict[str, Any]) -> Dict[str, str]:
    """Return the session config entries of a variant on this machine."""
    config: Dict[str, str] = {}
    if _is_x86_without_vnni():
        # The default int8 kernels saturate there; these are exact at half the speed.
        config["session.x64quantprecision"] = "1"
    if wants_no_cpu(entry):
        config["session.disable_cpu_ep_fallback"] = "1"
    if wants_share(entry):
        config["session.record_ep_graph_assignment_info"] = "1"
    config.update(entry["session"]["config"])
    return config


def wants_no_cpu(entry: Dict[str, Any]) -> bool:
    """Tell whether all nodes have to be on a provider other than the CPU."""
    return bool(entry["placement"] == "all" and entry["providers"][0]["name"] != CPU)


def wants_share(entry: Dict[str, Any]) -> bool:
    """Tell whether some of the nodes may be on the CPU, but not too many."""
    return bool(entry["placement"] != "all" and entry["providers"][0]["name"] != CPU)


def _check_share(bundle: Bundle, entry: Dict[str, Any], session: Any) -> None:
    if not wants_share(entry):
        return
    first = entry["providers"][0]["name"]
    providers = _assigned_providers(session)
    if not providers:
        providers = [node["provider"] for node in profile_nodes(bundle, entry, runs=1)]
    share = providers.count(first) / len(providers) if providers else 0.0
    if share < entry["placement"]:
        raise Refused(
            f"{first} runs {share:.0%} of the nodes, at least {entry['placement']:.0%} are needed"
        )


def _assigned_providers(session: Any) -> List[str]:
    """Return the provider of each node before fusion; nothing where onnxruntime cannot tell.

    A profile counts what a provider compiled as one node, so this comes first. Source: there is
    no such call in older onnxruntime, and it is empty for .ort models (1.31.1, observed).
    """
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return []
    subgraphs = session.get_provider_graph_assignment_info()
    return [subgraph.ep_name for subgraph in subgraphs for _ in subgraph.get_nodes()]


def profile_nodes(bundle: Bundle, entry: Dict[str, Any], runs: int) -> List[Dict[str, Any]]:
    """Run a golden input under onnxruntime's profiler, in a session of its own.

    Returns:
        For each node that ran: name, op, provider, and mean_us over all runs but the first (which
        also allocates), in microseconds. A node that a provider compiled is one node.
    """
    with tempfile.TemporaryDirectory(prefix="edgepack-profile-") as folder:
        session = open_session(bundle.folder, entry, os.path.join(folder, "profile"))
        feed = bundle.golden_inputs(0)
        for _ in range(runs):
            session.run(None, feed)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    return nodes_of_profile(events)


def nodes_of_profile(events: Sequence[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Return the nodes in the events of a profile that onnxruntime wrote.

    Source: node events have cat "Node", a name that ends in "_kernel_time", and args.provider
    (onnxruntime 1.31.1, observed).
    """
    suffix = "_kernel_time"
    nodes: Dict[Tuple[str, str], Dict[str, Any]] = {}
    durations_us: Dict[Tuple[str, str], List[float]] = {}
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") != "Node" or not name.endswith(suffix):
            continue
        facts = event["args"]
        key = (str(facts.get("node_index", "")), name)
        nodes.setdefault(
            key,
            {
                "name": name[: -len(suffix)],
                "op": facts["op_name"],
                "provider": facts["provider"],
            },
        )
        durations_us.setdefault(key, []).append(float(event["dur"]))
    for key, node in nodes.items():
        counted = durations_us[key][1:] or durations_us[key]
        node["mean_us"] = sum(counted) / len(counted)
    return list(nodes.values())


def sqnr_db(reference: np.ndarray, output: np.ndarray) -> float:
    """Return the ratio of signal to quantization noise in dB, at most 200.

    ``10 log10(sum(reference^2) / sum((reference - output)^2))``, in float64. Equal tensors have
    200. Another shape, or a NaN or infinity that the other tensor has not, gives minus infinity.
    """
    if reference.shape != output.shape:
        return float("-inf")
    ref = reference.astype(np.float64)
    out = output.astype(np.float64)
    finite = np.isfinite(ref)
    if not np.array_equal(ref[~finite], out[~finite], equal_nan=True):
        return float("-inf")
    ref, out = ref[finite], out[finite]
    noise = float(np.sum((ref - out) ** 2))
    signal = float(np.sum(ref**2))
    if noise == 0.0:
        return EQUAL_DB
    if not np.isfinite(noise) or signal == 0.0:
        return float("-inf")
    return float(min(EQUAL_DB, 10 * np.log10(signal / noise)))


def closeness_db(reference: np.ndarray, output: np.ndarray) -> float:
    """Return :func:`sqnr_db` of float tensors; others pass (200) if 99 % of them are equal."""
    if reference.dtype != output.dtype or reference.shape != output.shape:
        return float("-inf")
    if reference.dtype.kind == "f":
        return sqnr_db(reference, output)
    share = float(np.mean(reference == output)) if reference.size else 1.0
    return EQUAL_DB if share >= MIN_EQUAL_SHARE else float("-inf")


def cpu_flags() -> Set[str]:
    """Return this CPU's flags as Linux spells them; on macOS, those that have a Linux name."""
    if platform.system() == "Darwin":
        return _darwin_flags()
    flags: Set[str] = set()
    for line in cpuinfo_lines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            flags.update(value.split())
    return flags


def is_emulated() -> bool:
    """Tell whether an ARM system runs on an x86 kernel, as under qemu-user: its time is not real.

    An emulator that also emulates /proc/cpuinfo is not noticed.
    """
    if platform.machine().lower() not in ("aarch64", "arm64", "armv7l"):
        return False
    return any(line.startswith("vendor_id") for line in cpuinfo_lines())


def cpuinfo_lines() -> List[str]:
    """Return the lines of ``/proc/cpuinfo``; none where there is no such file."""
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


# Source: Apple, "Determining instruction set characteristics", and Linux's arm64 elf_hwcaps.
_DARWIN_NAMES = {
    "hw.optional.arm.FEAT_DotProd": "asimddp",
    "hw.optional.arm.FEAT_FP16": "asimdhp",
    "hw.optional.arm.FEAT_I8MM": "i8mm",
    "hw.optional.arm.FEAT_BF16": "bf16",
}


def _darwin_flags() -> Set[str]:
    listed = subprocess.run(
        ["/usr/sbin/sysctl", "hw.optional"], stdout=subprocess.PIPE, check=False, timeout=10
    ).stdout.decode("utf-8", "replace")
    return {name for key, name in _DARWIN_NAMES.items() if f"{key}: 1" in listed}


def _is_x86_without_vnni() -> bool:
    if platform.machine().lower() not in ("x86_64", "amd64", "i686"):
        return False
    return not cpu_flags() & {"avx512_vnni", "avx_vnni"}


def _specs(entries: Sequence[Dict[str, Any]]) -> List[TensorSpec]:
    return [TensorSpec(entry["name"], entry["dtype"], tuple(entry["shape"])) for entry in entries]


def _read_manifest(folder: Path) -> Dict[str, Any]:
    path = folder / "manifest.json"
    try:
        manifest: Dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LoadError(f"{folder} is no complete bundle: {path.name}: {error}") from error
    if manifest.get("schema_version") != SCHEMA_VERSION:
        raise LoadError(
            f"{path} has schema version {manifest.get('schema_version')!r},"
            f" this loader reads {SCHEMA_VERSION}: use the loader that came with the bundle"
        )
    return manifest
