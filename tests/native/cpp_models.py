"""The C++ library opens and runs bundles exactly as the Python loader does.

The bundles are built by edgepack; both loaders use the same onnxruntime, so outputs are compared
bit for bit, and the closeness of goldens that were moved a little to a millionth of a decibel.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
from edgepack.base.processes import run_program
from edgepack.builder.build import build
from edgepack.ondevice.runtime import edgepack_loader as loader
from edgepack.ondevice.runtime import edgepack_providers as providers

from tests.mobile.proofs import Proof, require
from tests.mobile.session_options import require_all, set_all
from tests.mobile.signatures import (
    BUCKETS,
    CONV,
    DETECTOR,
    DYNAMIC_BATCH,
    HALF,
    SEVERAL_INPUTS,
    Signature,
)
from tests.native.programs import (
    TARGET,
    build_bundle,
    compile_program,
    describe,
    describe_in_python,
    find_library,
    read_tensors,
    run_described,
    write_tensors,
)
from tests.support.reports.tiny_bundle import change_manifest

REAL = "imagenet/mobilenet_v1_0.25_128_fp32.onnx"
BATCHES = replace(
    DYNAMIC_BATCH,
    name="batches",
    project="dims: {batch: [1, 4]}",
    variants="[{backend: cpu, recipe: fp32, shapes: static}]",
    files=(),
)
BUNDLES: list[tuple[Signature, str]] = [
    (SEVERAL_INPUTS, TARGET),
    (DYNAMIC_BATCH, TARGET),
    (HALF, TARGET),
    (BUCKETS, TARGET),
    (DETECTOR, TARGET),
    (replace(CONV, name="absent", variants=""), "linux-x86-64-xnnpack"),
    (BATCHES, TARGET),
]
"""Three types; int8; float16; lengths with masks; palettes; an absent provider; batches."""
SIZES = (1, 2, 3, 4, 5, 8)
"""Of symbolic dimensions."""


def compare_choice(_work: Path) -> str:
    """Both choose the same variant for the same reasons, and measure the same goldens."""
    passed = 0
    for signature, target in BUNDLES:
        found = describe(build_bundle(signature, target))
        found.require_equal(describe_in_python(build_bundle(signature, target)))
        passed += len(found.passed_over)
    require(passed > 0, "no variant is passed over")
    return f"{len(BUNDLES)} bundles, {passed} passed over"


def compare_outputs(work: Path) -> str:
    """Both give the same bits for the same inputs, in each variant and at each size."""
    compared = 0
    for signature, target in BUNDLES:
        bundle = build_bundle(signature, target)
        for variant in list_usable(bundle):
            compared += compare_runs(bundle, variant, work / f"{signature.name}-{variant}")
    return f"{compared} runs"


def list_usable(bundle: Path) -> list[str]:
    """Return the variants that open here."""
    entries = loader.Bundle(bundle).list_variants(None)
    here = ("CPUExecutionProvider",)
    return [each["id"] for each in entries if each["providers"][0]["name"] in here]


def compare_runs(bundle: Path, variant: str, work: Path) -> int:
    """Compare a variant's outputs for random inputs of several sizes; return how many ran."""
    model = loader.load(bundle, variant)
    inputs, outputs = ([s.name for s in each] for each in (model.inputs, model.outputs))
    feeds = list(list_feeds(model))
    words: list[str | Path] = []
    for number, feed in enumerate(feeds):
        words += [write_tensors(work / f"in-{number}", inputs, feed), work / f"out-{number}"]
        (work / f"out-{number}").mkdir()
    plain = describe(bundle, "--variant", variant, *words)
    require(plain.variant == variant, f"{plain.variant} is not {variant}")
    ways = [()] if model.buckets else [(), ("--bound",)]
    for way in ways:
        describe(bundle, "--variant", variant, *way, *words)
        for number, feed in enumerate(feeds):
            found = read_tensors(work / f"out-{number}", outputs)
            for name, array in model(feed).items():
                same = found[name].dtype == array.dtype and found[name].tobytes() == array.tobytes()
                require(same, f"{bundle.name}, {variant} {way}: {name} of {number} differs")
    return len(feeds) * len(ways)


def list_feeds(model: loader.Model) -> Iterator[dict[str, np.ndarray]]:
    """Return random inputs of each size that the model takes, and without masks that it lacks."""
    random = np.random.default_rng(7)
    dims = {dim for spec in model.inputs for dim in spec.shape if isinstance(dim, str)}
    for size in SIZES if dims else SIZES[:1]:
        feed = {}
        for spec in model.bundle.shapes.needed:
            shape = [size if isinstance(dim, str) else dim for dim in spec.shape]
            numbers = (
                random.integers(0, 5, shape)
                if spec.dtype != "float32"
                else random.normal(size=shape)
            )
            feed[spec.name] = np.asarray(numbers).astype(spec.dtype)
        try:
            model.check_sizes(model.check_inputs(feed))
        except ValueError:
            continue
        yield feed
        full = model.check_inputs(feed)
        if len(full) > len(feed):
            masks = {name: np.zeros_like(full[name]) for name in full if name not in feed}
            yield {**feed, **masks}


def compare_goldens(work: Path) -> str:
    """Goldens that were moved by less or more are as near, or too far, for both."""
    seen = []
    for signature in (DYNAMIC_BATCH, HALF, BUCKETS):
        bundle = build_bundle(signature)
        for step in (1e-4, 1e-2, 0.3):
            copy = work / f"{signature.name}-{step}"
            shutil.copytree(bundle, copy)
            move_goldens(copy, step)
            found, expected = describe(copy), describe_in_python(copy)
            found.require_equal(expected)
            seen.append(f"{found.golden_sqnr_db:.0f}")
    require(len(set(seen)) > 3, f"the goldens moved too little: {seen}")
    return f"{', '.join(seen)} dB"


def move_goldens(bundle: Path, step: float) -> None:
    """Move the golden outputs of floats, and let variants be that far.

    Quantities, strides and their limits are as the manifest has them; so that there are some, the
    first output gets two quantities.
    """

    def change(manifest: dict[str, Any]) -> None:
        for variant in manifest["variants"]:
            variant["min_sqnr_db"] = -100.0
        for golden in manifest["goldens"]:
            for entries in golden["outputs"].values():
                for entry in entries:
                    move(bundle / entry["path"], entry["dtype"], step)
                entries[0]["quantities"] = {
                    "size": 1,
                    "runs": [[1, 0], [2, 1]],
                    "extra_db": [0.5, -2.0],
                }

    change_manifest(bundle, change)


def move(path: Path, dtype: str, step: float) -> None:
    """Move the values of a golden file, each by another part of the step."""
    values = np.fromfile(path, dtype)
    if values.dtype.kind == "f":
        noise = np.random.default_rng(values.size).normal(size=values.size)
        (values + step * noise * np.abs(values)).astype(dtype).tofile(path)


def compare_limits(work: Path) -> str:
    """A golden output that is too far makes both pass the variant over, with the same words."""
    bundle = work / "bundle"
    shutil.copytree(build_bundle(DYNAMIC_BATCH), bundle)
    first = json.loads((bundle / "manifest.json").read_text())["variants"][0]["id"]
    golden = next(iter(sorted((bundle / "golden").rglob(f"*{first}*"))))
    files = [golden] if golden.is_file() else sorted(golden.rglob("*"))
    for path in files:
        if path.is_file():
            np.fromfile(path, np.float32)[::-1].tofile(path)
    found, expected = describe(bundle), describe_in_python(bundle)
    found.require_equal(expected)
    require(len(found.passed_over) == 1, f"nothing is passed over: {found}")
    return found.passed_over[0][1]


def compare_requirements(work: Path) -> str:
    """CPU flags, settings and libraries that are not here: both say the same of each."""
    changes: list[tuple[str, Any]] = [
        ("requires", {"cpu": ["zz_flag", "aa_flag"]}),
        ("session", {"graph_optimization_level": "most", "execution_mode": "fast", "config": {}}),
        ("providers", [{"name": "CUDAExecutionProvider", "options": {}}]),
        ("model", "models/not-there.onnx"),
        ("min_sqnr_db", 250.0),
    ]
    reasons = []
    for key, value in changes:
        bundle = work / key
        shutil.copytree(build_bundle(DYNAMIC_BATCH), bundle)

        def change(manifest: dict[str, Any], key: str = key, value: object = value) -> None:
            first = manifest["variants"][0]
            first[key] = {"intra_op_num_threads": 0, **value} if key == "session" else value
            manifest["provider_sources"] = {"CUDAExecutionProvider": {"about": "From NVIDIA."}}

        change_manifest(bundle, change)
        found, expected = describe(bundle), describe_in_python(bundle)
        found.require_equal(expected)
        require(len(found.passed_over) == 1, f"{key} is not missed: {found}")
        reasons.append(found.passed_over[0][1])
    return "; ".join(reasons)[:300]


def set_options(work: Path) -> str:
    """Session settings that are not the defaults reach onnxruntime, which prints them."""
    bundle = work / "bundle"
    shutil.copytree(build_bundle(DYNAMIC_BATCH), bundle)
    set_all(bundle, "cpu-fp32")
    done = run_described(bundle, "--variant", "cpu-fp32")
    require(done.exit_code == 0, done.text)
    return require_all(done.stderr.decode("utf-8", "replace"))


def compare_threads(_work: Path) -> str:
    """A process that may use one processor gives its sessions one thread, as in Python."""
    if (os.cpu_count() or 1) < 2:
        return "not looked at: this machine has one processor"
    bundle = build_bundle(DYNAMIC_BATCH)
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        expected = providers.choose_threads({"intra_op_num_threads": 0, "config": {}})
        program = compile_program("parts.cc")
        said = run_parts(program, "threads", bundle)
    finally:
        os.sched_setaffinity(0, allowed)
    require(int(said) == expected == 1, f"{said} threads, {expected} in Python")
    require(int(run_parts(program, "threads", bundle)) == 0, "a process that may use all is bound")
    return "1 thread"


def run_parts(program: Path, what: str, bundle: Path, text: bytes = b"") -> str:
    """Return what the program of parts prints."""
    argv = [str(program), what, str(find_library()), str(bundle)]
    done = run_program(argv, timeout_s=120, input_bytes=text)
    require(done.exit_code == 0, f"{what}: {done.last_lines}")
    return done.text.strip()


def compare_parts(work: Path) -> str:
    """JSON, binary16, the name of the cache and the providers of nodes are Python's."""
    program = compile_program("parts.cc")
    document = {"b": [1, True, None, 'é"\\\n\u2028\U0001f600\x7f', {}], "a": {"z": "", "y": -3}}
    for ascii_only in (True, False):
        text = json.dumps(document, ensure_ascii=ascii_only).encode()
        said = run_parts(program, "json", work, text)
        require(said == json.dumps(document, sort_keys=True), f"json: {said}")
    lines = run_parts(program, "half", work).splitlines()
    for bits, line in enumerate(lines):
        value, again, between = line.split()
        half = np.array([bits], np.uint16).view(np.float16)[0]
        same = float.fromhex(value) == float(half) or (np.isnan(half) and "nan" in value)
        require(same and (int(again) == bits or np.isnan(half)), f"binary16 {bits:#x}: {line}")
        if np.isfinite(half) and bits & 0x7FFF < 0x7BFF:
            next_half = np.array([bits + 1], np.uint16).view(np.float16)[0]
            middle = np.float64(half) + (np.float64(next_half) - np.float64(half)) / 2
            require(int(between) == middle.astype(np.float16).view(np.uint16), f"{bits:#x}: {line}")
    bundle = work / "cached"
    shutil.copytree(build_bundle(DYNAMIC_BATCH), bundle)

    def change(manifest: dict[str, Any]) -> None:
        manifest["variants"][0]["providers"][0]["options"] = {"z": "é {cache}", "a": '"\\'}
        manifest["variants"][0]["session"]["config"] = {"k": "v"}

    change_manifest(bundle, change)
    entry = loader.Bundle(bundle).list_variants(None)[0]
    expected = providers.find_cache_folder(entry, Path("/tmp/cache"))
    require(run_parts(program, "cache", bundle) == str(expected), f"the cache is not {expected}")
    compare_errors(program, work)
    return f"{len(lines)} binary16 numbers; {compare_assigned(program, work)}"


def compare_errors(program: Path, work: Path) -> None:
    """Raise NotHeldError unless long errors are cut at the same characters as in Python."""
    for text in ("a" * 400, "a" * 401, "\u00e9" * 390, "\u20ac" * 401, "x\U0001f600 " * 300):
        said = run_parts(program, "shorten", work, text.encode())
        require(said == providers._shorten_error(Exception(text)), f"{text[:2]!r}: {said}")


CACHES: tuple[tuple[dict[str, str], str], ...] = (
    ({}, ""),
    ({"HOME": "/h/"}, ""),
    ({"HOME": ""}, ""),
    ({"XDG_CACHE_HOME": "/x"}, ""),
    ({"HOME": "/h", "EDGEPACK_CACHE": "~/c"}, ""),
    ({"EDGEPACK_CACHE": "~/c"}, ""),
    ({"EDGEPACK_CACHE": "~root/c"}, ""),
    ({"HOME": "/h", "EDGEPACK_CACHE": "a/../~"}, ""),
    ({"HOME": "/h"}, "~/c/../d"),
    ({}, "~"),
)
"""Environments, and the folder for caches that is asked for."""


def compare_caches(work: Path) -> str:
    """Caches lie where Python has them, whatever HOME and the variables say."""
    program = str(compile_program("parts.cc"))
    bundle = work / "bundle"
    for environment, asked in CACHES:
        alone = ["env", "-i", *(f"{name}={value}" for name, value in environment.items())]
        done = run_program([*alone, program, "root", str(bundle), "tiny", asked], timeout_s=60)
        with mock.patch.dict(os.environ, environment, clear=True):
            expected = str(loader._find_cache(bundle, "tiny", asked or None))
        require(done.text.strip() == expected, f"{environment}: {done.text}, not {expected}")
    (work / "loop").symlink_to("loop")
    asked = str(work / "loop" / "c")
    done = run_program([program, "root", str(bundle), "tiny", asked], timeout_s=60)
    require(done.exit_code == 3 and asked in done.last_lines, f"{done.text}{done.last_lines}")
    return f"{len(CACHES)} environments, a loop of links"


def keep_environment(_work: Path) -> str:
    """Telemetry is off; an environment that says so is not written to."""
    argv = [str(compile_program("parts.cc")), "telemetry", str(find_library()), "/nowhere"]
    for value, expected in (("=1", "kept 1"), ("=0", "set 1"), ("", "set 1")):
        variable = f"ORT_DISABLE_TELEMETRY{value}"
        alone = ["env", "-i", variable] if value else ["env", "-i"]
        done = run_program([*alone, *argv], timeout_s=60)
        require(done.text.strip() == expected, f"{variable}: {done.text}{done.last_lines}")
    return "1, 0 and none"


def compare_assigned(program: Path, work: Path) -> str:
    """Onnxruntime tells C++ the providers of the nodes that it tells Python."""
    bundle = work / "assigned"
    shutil.copytree(build_bundle(DYNAMIC_BATCH), bundle)
    asked = {"session.record_ep_graph_assignment_info": "1"}

    def change(manifest: dict[str, Any]) -> None:
        manifest["variants"][0]["session"]["config"] = asked

    change_manifest(bundle, change)
    opened = loader.Bundle(bundle)
    session = loader.open_session(opened, opened.list_variants(None)[0])
    expected = loader._find_assigned_providers(session)
    found = run_parts(program, "assigned", bundle).splitlines()
    require(found == expected and bool(found), f"nodes are on {found}, not {expected}")
    return f"{len(found)} nodes assigned"


def run_real(work: Path) -> str:
    """A real model gives the same bits, fp32 and int8."""
    data = os.environ.get("EDGEPACK_TEST_DATA")
    if not data:
        return "not run: EDGEPACK_TEST_DATA names no folder"
    project = work / "project"
    project.mkdir()
    shutil.copy(Path(data) / REAL, project / "model.onnx")
    random = np.random.default_rng(1)
    shape = [1, 3, 128, 128]
    name = onnx.load(str(project / "model.onnx"), load_external_data=False).graph.input[0].name
    np.savez(
        project / "samples.npz", **{name: random.normal(size=[16, *shape[1:]]).astype(np.float32)}
    )
    (project / "edgepack.yaml").write_text(
        "schema_version: 1\nname: real\nversion: '1.0.0'\nmodel: model.onnx\n"
        "samples: {calibration: {path: samples.npz}, evaluation: {path: samples.npz}}\n"
        f"targets: [{{id: {TARGET}, variants: [{{backend: cpu, recipe: int8-static}},"
        " {backend: cpu, recipe: fp32}]}]\n"
    )
    build(project=project / "edgepack.yaml", out=work / "dist")
    bundle = next(path for path in (work / "dist").iterdir() if path.is_dir())
    found = describe(bundle)
    found.require_equal(describe_in_python(bundle))
    runs = sum(compare_runs(bundle, each, work / each) for each in list_usable(bundle))
    return f"{', '.join(list_usable(bundle))}: {runs} runs"


PROOFS = (
    Proof("the same variant, reasons and goldens", compare_choice),
    Proof("the same bits", compare_outputs),
    Proof("goldens that moved", compare_goldens),
    Proof("a golden that is too far", compare_limits),
    Proof("what is not here", compare_requirements),
    Proof("session options", set_options),
    Proof("threads", compare_threads),
    Proof("parts", compare_parts),
    Proof("caches", compare_caches),
    Proof("the environment", keep_environment),
    Proof("a real model", run_real),
)
