"""Which variant Swift opens, and what it says of the others, where the runtime only pretends.

The bundle's own code walks its variants with a runtime that replays golden outputs and fails as a
case says. The reasons are those that the Python loader gives. The same program compares the code's
float16 with the processor's.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from edgepack.base.resources import find_templates_dir
from edgepack.builder.build import build

from tests.mobile.proofs import Proof, require
from tests.mobile.sealing import seal
from tests.mobile.signatures import DYNAMIC_BATCH
from tests.mobile.swift_models import STRICT, SWIFT
from tests.mobile.swift_rootfs import toolchain

COREML = "CoreMLExecutionProvider"
CPU = "CPUExecutionProvider"
BOTH = (COREML, CPU)
APPLE = {
    "arm64-apple-ios15.1-simulator": "true",
    "x86_64-apple-ios15.1-simulator": "true",
    "arm64-apple-ios15.1": "false",
}
NO_FALLBACK = (
    "This session contains graph nodes that are assigned to the default CPU EP, but fallback to CPU"
    " EP has been explicitly disabled by the user."
)


@dataclass(frozen=True)
class Case:
    """What this device has and what goes wrong, and what follows."""

    what: str
    variant: str | None
    reasons: Sequence[str] = ()
    """Of the variants before it; of all where none is taken."""
    faults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    providers: Sequence[str] = BOTH
    cpu: Sequence[str] = ("asimddp",)
    only: str | None = None
    is_x86: bool = False
    is_simulator: bool = False
    sessions: Sequence[str] = ()
    """Beginnings of what was asked of the runtime, where that is looked at."""


ASSIGNED = {"assigned": [COREML, COREML, COREML, CPU]}
ALL_FAIL = {name: {"run": "broken"} for name in ("all.onnx", "share.onnx", "dot.ort", "plain.onnx")}

CASES = (
    Case("the best works", "coreml-all", sessions=[f"all.onnx {COREML} session.disable_cpu"]),
    Case(
        "a provider lacks",
        "cpu-dot",
        [f"{COREML} is not in this onnxruntime (it has {CPU})"] * 2,
        providers=[CPU],
    ),
    Case(
        "a provider and a CPU flag lack",
        "cpu-plain",
        [f"{COREML} is not in this onnxruntime (it has {CPU})"] * 2 + ["this CPU lacks asimddp"],
        providers=[CPU],
        cpu=[],
    ),
    Case(
        "a provider does not take every node",
        "coreml-share",
        [f"the session cannot be created: {COREML} does not take every node, or not this device"],
        {"all.onnx": {"created": [NO_FALLBACK, NO_FALLBACK]}, "share.onnx": ASSIGNED},
    ),
    Case(
        "a provider takes too few nodes",
        "cpu-dot",
        [
            "the session cannot be created: no",
            f"{COREML} runs 25% of the nodes, at least 50% are needed",
        ],
        {
            "all.onnx": {"created": ["no", "no"]},
            "share.onnx": {"assigned": [COREML, CPU, CPU, CPU]},
        },
    ),
    Case(
        "this is the simulator",
        "cpu-dot",
        [f"{COREML} is for devices, and this is the simulator"] * 2,
        is_simulator=True,
    ),
    Case(
        "outputs are too far",
        "coreml-share",
        ["its output is 2.0 dB near the golden one, 20.0 dB are needed"],
        {"all.onnx": {"noise": 0.5}, "share.onnx": ASSIGNED},
    ),
    Case(
        "an inference fails",
        "coreml-share",
        ["inference failed: out of memory"],
        {"all.onnx": {"run": "out of\nmemory"}, "share.onnx": ASSIGNED},
    ),
    Case(
        "what lies in the cache is broken",
        "coreml-all",
        faults={"all.onnx": {"created": ["truncated"]}},
        sessions=[f"all.onnx cached {COREML}", f"all.onnx {COREML}"],
    ),
    Case(
        "one variant is asked for",
        None,
        ["this CPU lacks asimddp"],
        only="cpu-dot",
        cpu=[],
    ),
    Case(
        "precise kernels do not load",
        "cpu-plain",
        faults={"plain.onnx": {"created": ["no kernel"]}},
        only="cpu-plain",
        is_x86=True,
        sessions=[f"plain.onnx {CPU} session.x64quantprecision=1", f"plain.onnx {CPU}"],
    ),
    Case("none works", None, ["inference failed: broken"] * 4, ALL_FAIL),
)


def choices_hold(work: Path) -> str:
    """Compile the bundle's sources with the pretending runtime, and look at every case."""
    result = build(project=DYNAMIC_BATCH.write(work / "project", "ios"), out=work / "dist")
    (work / "swift").mkdir()
    bundle = work / "swift" / "bundle"
    result.bundles[0].bundle.path.rename(bundle)
    _write_variants(bundle)
    module = next((bundle / "Sources").glob("Edgepack*")).name
    tools = toolchain()
    sources = [path.name for path in sorted((bundle / "Sources" / module).glob("*.swift"))]
    (work / "swift" / "Choice.swift").write_bytes((SWIFT / "Choice.swift").read_bytes())
    argv = ["swiftc", *STRICT, "-parse-as-library", "-module-name", module]
    argv += ["-I", f"bundle/Sources/C{module}/include", "-o", "choice", "Choice.swift"]
    argv += [f"bundle/Sources/{module}/{name}" for name in sources]
    tools.run([*argv, "-L/runtime", "-lonnxruntime"], folder=work / "swift")
    (work / "swift" / "cases.json").write_text(json.dumps(list(map(_as_json, CASES))))
    # The cases share a cache, and each session leaves something there.
    done = tools.run(["./choice", "bundle", "cases.json", "cache"], folder=work / "swift")
    *digests, said = done.text.splitlines()
    for size, digest in enumerate(digests):
        wanted = hashlib.sha256(bytes(n * 7 % 251 for n in range(size))).hexdigest()
        require(digest == wanted, f"SHA-256 of {size} bytes: {digest}")
    for case, found in zip(CASES, json.loads(said), strict=True):
        _compare(case, found)
    return f"{len(CASES)} cases, {len(digests)} digests"


def simulator_is_known(work: Path) -> str:
    """Evaluate the condition for Apple's systems, whose libraries the compiler here lacks."""
    source = (find_templates_dir() / "apple" / "Sources" / "Device.swift").read_text("utf-8")
    condition = re.findall(r"#if targetEnvironment.*?#endif", source, re.DOTALL)
    require(len(condition) == 1, "Device.swift does not ask where it is compiled for")
    said = re.sub(r"private static let simulator = (\w+)", r'#warning("it is \1")', condition[0])
    (work / "condition.swift").write_text(said)
    for target, wanted in APPLE.items():
        argv = ["swiftc", "-frontend", "-typecheck", "-parse-stdlib", "-target", target]
        done = toolchain().run([*argv, "condition.swift"], folder=work)
        found = re.findall(r"warning: it is (\w+)", done.stderr.decode())
        require(set(found) == {wanted}, f"{target}: {found}")
    return ", ".join(APPLE)


def _as_json(case: Case) -> dict[str, Any]:
    return {
        "providers": case.providers,
        "cpu": case.cpu,
        "isX86": case.is_x86,
        "isSimulator": case.is_simulator,
        "only": case.only,
        "faults": case.faults,
    }


def _compare(case: Case, found: Mapping[str, Any]) -> None:
    said = f"{case.what}: {found}"
    require(found.get("variant") == case.variant, said)
    if case.variant is None:
        lines = found["error"].split("\n  ")[1:]
        require([line.split(": ", 1)[1] for line in lines] == list(case.reasons), said)
    else:
        require([reason for _, reason in found["passedOver"]] == list(case.reasons), said)
    if case.sessions:
        require(len(found["sessions"]) == len(case.sessions), said)
        for asked, begins in zip(found["sessions"], case.sessions, strict=True):
            require(asked.startswith(begins), said)


def _write_variants(bundle: Path) -> None:
    """Give a bundle four variants, whose golden outputs are the first one's."""
    manifest = json.loads((bundle / "manifest.json").read_text("utf-8"))
    first = manifest["variants"][0]
    golden = manifest["goldens"][0]
    outputs = golden["outputs"][first["id"]]
    # Of the second half a power of 1 against noise of 0.25 is 6.02 dB, and 4 dB more are needed
    # than of others; the first half hides it in the whole.
    values = np.full(outputs[0]["shape"], 100, np.float32).reshape(2, -1)
    values[1] = 1
    outputs[0]["quantities"] = {
        "size": values.shape[1],
        "runs": [[1, 0], [1, 1]],
        "extra_db": [0.0, 4.0],
    }
    (bundle / outputs[0]["path"]).write_bytes(values.tobytes())
    coreml = {"name": COREML, "options": {"ModelCacheDirectory": "{cache}"}}
    cpu = {"name": CPU, "options": {}}
    made = [
        ("coreml-all", "all.onnx", [coreml, cpu], "all", []),
        ("coreml-share", "share.onnx", [coreml, cpu], 0.5, []),
        ("cpu-dot", "dot.ort", [cpu], "all", ["asimddp"]),
        ("cpu-plain", "plain.onnx", [cpu], "all", []),
    ]
    manifest["variants"] = [
        {
            **first,
            "id": name,
            "model": f"models/{model}",
            "model_sha256": name,
            "providers": providers,
            "placement": placement,
            "requires": {"cpu": flags},
            "min_sqnr_db": 20.0,
        }
        for name, model, providers, placement, flags in made
    ]
    manifest["goldens"] = [{**golden, "outputs": {name: outputs for name, *_ in made}}]
    (bundle / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    for _, model, *_ in made:
        (bundle / "models" / model).touch()
    seal(bundle)


PROOFS = (
    Proof("which variant is opened, and why not others", choices_hold),
    Proof("what is compiled for the simulator knows it", simulator_is_known),
)
