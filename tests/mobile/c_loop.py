"""The measuring program of phones, compiled here and run against this machine's onnxruntime.

The header is Debian's (``libonnxruntime-dev``, in the root file system of the Swift proofs), the
library that of the Python wheel. adb, Android and the NDK are doubles
(``tests/support/doubles/phone_doubles.py``); the NDK's compiler is this machine's, so that
``edgepack bench`` goes its whole way to a phone but for the phone. What the program finds is
compared with the Python loader and harness.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import random
import re
import shutil
import signal
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from edgepack.base.processes import ProgramResult, run_program
from edgepack.base.resources import find_ondevice_dir
from edgepack.builder.build import build
from edgepack.bundle.manifest import Manifest
from edgepack.bundle.reading import Bundle
from edgepack.errors import ToolError
from edgepack.measure.bench.run import bench
from edgepack.measure.phones.native_build import SOURCES, build_measure
from edgepack.measure.phones.plugins import QNN
from edgepack.native.plans import Planner
from edgepack.ondevice.harness import edgepack_load
from edgepack.ondevice.runtime import edgepack_loader as loader
from edgepack.project.profile import load_profile
from edgepack.records.run import NotMeasured, RunReport

from tests.lab.rootfs import mirrors
from tests.mobile.jvm import ANDROID, jars
from tests.mobile.proofs import KEPT, Proof, require
from tests.mobile.session_options import SETTINGS, require_all
from tests.mobile.signatures import ALL, BUCKETS, CONV, DYNAMIC_BATCH, Signature
from tests.mobile.swift_rootfs import toolchain
from tests.support.doubles.phone_doubles import make_phone, write_ndk, write_package
from tests.support.nets.stream_nets import WIDTH, doubling, frames, gru

TARGET = "android-nnapi"
WARNINGS = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror")
NEAR_DB = 1e-6
"""Two sums of the same squares, in another order."""


@dataclass(frozen=True)
class Tools:
    """The program, built as for a phone, and what it was built with."""

    program: Path
    library: Path
    header: Path
    package: Path
    ndk: Path

    def run(self, *arguments: str, folder: Path, text: str = "") -> ProgramResult:
        """Run the program; it may be refused."""
        argv = [str(self.program), *arguments, "--runtime", str(self.library)]
        return run_program(argv, timeout_s=120, cwd=folder, input_bytes=text.encode())

    def document(self, *arguments: str, folder: Path, text: str = "") -> dict[str, Any]:
        """Return what the program says."""
        done = self.run(*arguments, folder=folder, text=text)
        require(done.exit_code == 0, f"{arguments[0]}: {done.text}{done.last_lines}")
        found: dict[str, Any] = json.loads(done.text)
        return found


@cache
def tools() -> Tools:
    """Build the program once, through the code that builds it for phones."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise ToolError("there is no C compiler on PATH", hint="install gcc or clang")
    root = toolchain().root / "usr" / "include"
    header = next(root.rglob("onnxruntime_c_api.h"), None)
    if header is None:
        raise ToolError(f"{root} has no onnxruntime_c_api.h", hint="remove that folder")
    found = importlib.util.find_spec("onnxruntime")
    library = next(Path(str(found and found.origin)).parent.glob("capi/libonnxruntime.so.1.*"))
    work = _emptied(KEPT / "c" / "tools")
    package = write_package(work / "onnxruntime-android.aar", header, library)
    ndk = write_ndk(work / "ndk", compiler)
    os.environ["ANDROID_NDK_HOME"] = str(ndk)
    built = build_measure(package, "arm64-v8a", cache=work / "built")
    return Tools(built.program, built.library, header, package, ndk)


_BUILT: dict[str, Bundle] = {}


def built(signature: Signature) -> Bundle:
    """Build a bundle once."""
    if signature.name not in _BUILT:
        _BUILT[signature.name] = _build(signature)
    return _BUILT[signature.name]


def _build(signature: Signature) -> Bundle:
    work = _emptied(KEPT / "c" / signature.name)
    project = signature.write(work / "project", TARGET)
    return build(project=project, out=work / "dist").bundles[0].bundle


def compiles(work: Path) -> str:
    """No compiler here says anything about the program, with all it could say."""
    source = find_ondevice_dir() / "native" / SOURCES[0]
    header = tools().header
    framework = work / "include"
    shutil.copytree(header.parent, framework / "onnxruntime")
    places = [*("-isystem", str(framework / "onnxruntime")), *("-isystem", str(framework))]
    argv = [*WARNINGS, *places, "-c", str(source), "-o"]
    for name, more in (("plain", []), ("linked", ["-DEDGEPACK_LINKED"])):
        done = run_program(["cc", *argv, str(work / f"{name}.o"), *more], timeout_s=120)
        require(done.exit_code == 0, done.stderr.decode("utf-8", "replace"))
    for each in SOURCES:
        shutil.copy(find_ondevice_dir() / "native" / each, work)
    for each in header.parent.glob("*.h"):
        shutil.copy(each, work)
    clang = toolchain().run(
        ["clang", *WARNINGS, "-isystem", ".", "-c", SOURCES[0], "-o", "clang.o"], folder=work
    )
    return f"gcc, twice, and clang {'say nothing' if not clang.stderr else 'warn'}"


def declared_places(work: Path) -> str:
    """The functions that edgepack_ort.h declares stand where onnxruntime's own header has them."""
    ours = find_ondevice_dir() / "native" / "edgepack_ort.h"
    names = re.findall(r"\(\*(?!between_)(\w+)\)\(", ours.read_text().partition("OrtApi {")[2])
    names = names[: names.index("GetApi")]
    constants = re.findall(r"\b(O(?:RT|NNX)_[A-Z0-9_]+|Ort[A-Z]\w+) = ", ours.read_text())
    found = []
    for header in (ours, tools().header):
        asked = [f'printf("{n} %zu\\n", offsetof(OrtApi, {n}));' for n in names]
        asked += [f'printf("{name} %d\\n", (int){name});' for name in constants]
        lines = ["#include <stddef.h>", "#include <stdio.h>", f'#include "{header}"']
        (work / "places.c").write_text("\n".join([*lines, "int main(void) {", *asked, "}", ""]))
        _run(["cc", str(work / "places.c"), "-o", str(work / "places")])
        found.append(_run([str(work / "places")]).text)
    require(found[0] == found[1], f"ours:\n{found[0]}\nonnxruntime's:\n{found[1]}")
    return f"{len(names)} functions and {len(constants)} constants"


def goldens(work: Path) -> str:
    """Each golden is as near as the Python loader finds it, for every signature and variant."""
    count = 0
    for signature in ALL:
        bundle = built(signature)
        for entry in bundle.manifest.variants:
            model = loader.load(bundle.path, entry.id)
            wanted = min(model.measure_golden_db(n) for n in range(model.bundle.goldens))
            planner = Planner(
                bundle, entry, cpu_flags=frozenset(_cpu_flags()), cache=str(work), work="extra"
            )
            for name, plan in (("check", planner.plan_check()), ("check", planner.plan_goldens())):
                folder = work / f"{signature.name}-{entry.id}-{count}"
                shutil.copytree(bundle.path, folder)
                write(folder, plan.text, plan.files)
                found = tools().document(name, "--plan", "plan.txt", folder=folder)
                near = found["golden_min_sqnr_db"]
                require(
                    near >= wanted - NEAR_DB,
                    f"{signature.name} {entry.id}: {near} dB, the loader {wanted} dB",
                )
                count += 1
    return f"{count} plans of {len(ALL)} signatures, as near as the loader finds them"


def wrong_goldens(work: Path) -> str:
    """Outputs that are not the golden ones are found to be so, by as much as they are."""
    bundle = built(DYNAMIC_BATCH)
    entry = bundle.manifest.variants[-1]
    planner = Planner(bundle, entry, cpu_flags=frozenset(_cpu_flags()), cache="c", work="extra")
    folder = work / "bundle"
    shutil.copytree(bundle.path, folder)
    plan = planner.plan_goldens()
    write(folder, plan.text, plan.files)
    output = folder / bundle.manifest.goldens[0].outputs[entry.id][0].path
    golden = np.fromfile(output, "<f4")
    changed = golden * np.float32(1.5)
    changed.tofile(output)
    real = loader.load(bundle.path, entry.id).run(loader.Bundle(bundle.path).read_golden_inputs(0))
    wanted = loader.sqnr_db(changed.reshape(1, -1), next(iter(real.values())).reshape(1, -1))
    found = tools().document("check", "--plan", "plan.txt", folder=folder)["golden_min_sqnr_db"]
    require(abs(found - wanted) < NEAR_DB, f"{found} dB, by the loader {wanted} dB")
    golden[1:].tofile(output)
    done = tools().run("check", "--plan", "plan.txt", folder=folder)
    require(done.exit_code != 0 or json.loads(done.text)["golden_min_sqnr_db"] == -200, done.text)
    return f"{found:.3f} dB, and a damaged file is noticed"


def kept_values(work: Path) -> str:
    """Some of an output's values, which have to be nearer, are compared as the loader does."""

    def change(values: Any, tensor: dict[str, Any]) -> Any:
        tensor.update(stride=3, extra_db=7.5)
        return values[::3] * 1.01

    return f"{_goldens_as_by_the_loader(work / 'bundle', change):.3f} dB of every third value"


def quantities(work: Path) -> str:
    """Each quantity of an output is compared by itself, as the loader does."""

    def change(values: Any, tensor: dict[str, Any]) -> Any:
        tensor["quantities"] = {"size": 1, "runs": [[1, 0], [1, 1]], "extra_db": [-3.0, 7.5]}
        values[1::2] *= 1.01
        return values

    return f"{_goldens_as_by_the_loader(work / 'bundle', change):.3f} dB of every other value"


def _goldens_as_by_the_loader(folder: Path, change: Callable[[Any, dict[str, Any]], Any]) -> float:
    """Return how near golden outputs are by the C loop, once they and what is said of them change.

    What is changed is a hundredth off and has to be 7.5 dB nearer.
    """
    import numpy as np

    shutil.copytree(built(DYNAMIC_BATCH).path, folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    for golden in manifest["goldens"]:
        for tensors in golden["outputs"].values():
            for tensor in tensors:
                values = change(np.fromfile(folder / tensor["path"], tensor["dtype"]), tensor)
                values.astype(tensor["dtype"]).tofile(folder / tensor["path"])
    (folder / "manifest.json").write_text(json.dumps(manifest))
    bundle = Bundle(folder, Manifest.model_validate_json(json.dumps(manifest)), "")
    entry = bundle.manifest.variants[-1]
    model = loader.load(built(DYNAMIC_BATCH).path, entry.id)
    model.bundle = loader.Bundle(folder)
    wanted = min(model.measure_golden_db(n) for n in range(len(manifest["goldens"])))
    require(abs(wanted - (20 * math.log10(101) - 7.5)) < 0.5, f"the loader finds {wanted} dB")
    planner = Planner(bundle, entry, cpu_flags=frozenset(_cpu_flags()), cache="c", work="extra")
    plan = planner.plan_goldens()
    write(folder, plan.text, plan.files)
    found = tools().document("check", "--plan", "plan.txt", folder=folder)["golden_min_sqnr_db"]
    require(abs(found - wanted) < NEAR_DB, f"{found} dB, by the loader {wanted} dB")
    return float(found)


def steadiness(work: Path) -> str:
    """The warm-up ends where Python's would, for windows of all kinds."""
    generator = random.Random(3)
    agreed = 0
    for _ in range(300):
        count, noise = generator.randrange(1, 12), generator.choice([0.0, 0.005, 0.02, 0.05])
        slope = generator.choice([0.0, 1e-4, -1e-3, 1e-2])
        windows = [
            (float(at), 1e6 * (1 + slope * at + noise * generator.uniform(-1, 1)))
            for at in range(count)
        ]
        text = "".join(f"{begin!r} {median!r}\n" for begin, median in windows)
        found = tools().document("steady", folder=work, text=text)["steady"]
        wanted = edgepack_load.is_steady(windows)
        require(found == wanted, f"{windows}: {found}, Python says {wanted}")
        agreed += wanted
    return f"300 warm-ups, {agreed} of them steady, as Python says"


def whole_road(work: Path) -> str:
    """``edgepack bench`` measures bundles with the program, over doubles of adb and Android."""
    os.environ["ANDROID_NDK_HOME"] = str(tools().ndk)
    os.environ["XDG_CACHE_HOME"] = str(work / "cache")
    seen = []
    for signature in (DYNAMIC_BATCH, BUCKETS):
        phone = make_phone(work / signature.name, target=TARGET, package=tools().package)
        bundle = built(signature)
        report = bench(bundle.path, phone.device, preset="smoke")
        check_report(report, bundle)
        seen.append(f"{signature.name} {len(report.latencies_ns)} inferences")
    return ", ".join(seen)


def plugin(work: Path) -> str:
    """``edgepack bench`` measures on QNN, whose plugin the program registers.

    The plugin is Qualcomm's for x86-64, with its simulator, in packages as its own for Android.
    """
    found = importlib.util.find_spec("onnxruntime_qnn")
    if found is None or not found.submodule_search_locations:
        require("CI" not in os.environ, "onnxruntime-qnn is not installed here")
        return "NOT TRIED: onnxruntime-qnn is not installed here"
    folder = Path(found.submodule_search_locations[0])
    home, pins = work / "home", load_profile("android-qnn").runtime.packages
    for name in QNN.packages:
        group, artifact = name.split(":")
        version = pins[name]
        place = home / ".m2/repository" / group.replace(".", "/") / artifact / version
        place.mkdir(parents=True)
        with zipfile.ZipFile(place / f"{artifact}-{version}.aar", "w") as archive:
            for library in folder.glob("*.so"):
                if (library.name == QNN.library) == (name == QNN.packages[0]):
                    archive.write(library, f"jni/arm64-v8a/{library.name}")
    package = write_package(work / "ort.aar", newer_header(work), tools().library)
    environment = {"HOME": str(home), "XDG_CACHE_HOME": str(work / "cache")}
    environment["ANDROID_NDK_HOME"] = str(tools().ndk)
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        return _bench_on_plugin(work, package, folder.parent / "onnxruntime_qnn.libs")
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _bench_on_plugin(work: Path, package: Path, preloaded: Path) -> str:
    project = CONV.write(work / "project", "android-qnn")
    bundle = build(project=project, out=work / "dist", simulate_s=0).bundles[0].bundle
    phone = make_phone(work / "phone", target="android-qnn", package=package)
    libraries = ":".join(str(path) for path in sorted(preloaded.iterdir()))
    entry = phone.device.entry.model_copy(update={"run_prefix": ["env", f"LD_PRELOAD={libraries}"]})
    report = bench(bundle.path, replace(phone.device, entry=entry), preset="smoke")
    require(report.variant_used.startswith("qnn-"), f"{report.variant_used}, {report.unused}")
    require(not isinstance(report.placement, NotMeasured), str(report.placement))
    counts = report.placement.counts  # type: ignore[union-attr]
    require(QNN.provider in counts, str(counts))
    return f"{len(report.latencies_ns)} inferences; nodes {counts}"


def newer_header(work: Path) -> Path:
    """Return onnxruntime_c_api.h of an onnxruntime that takes plugins, Debian's newest.

    Raises:
        ToolError: apt does not get it.
    """
    folder = work / "header"
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    lines = [line.replace(" trixie ", " sid ") for line in mirrors("trixie")[:1]]
    (folder / "sources.list").write_text("\n".join([*lines, ""]))
    apt = ["apt-get", "-qq", "-o", f"Dir::Etc::sourcelist={folder}/sources.list"]
    apt += ["-o", "Dir::Etc::sourceparts=-", "-o", f"Dir::State::lists={folder}/lists"]
    apt += ["-o", f"Dir::Cache={folder}/cache"]
    for argv in ([*apt, "update"], [*apt, "download", "libonnxruntime-dev"]):
        done = run_program(argv, timeout_s=300, cwd=folder)
        if done.exit_code:
            raise ToolError(f"{' '.join(argv[-2:])} failed{done.last_lines}", hint="see there")
    [package] = folder.glob("*.deb")
    _run(["dpkg", "-x", str(package), str(folder / "x")])
    return next((folder / "x").rglob("onnxruntime_c_api.h"))


def check_report(report: RunReport, bundle: Bundle) -> None:
    """Raise NotHeldError unless a report has what the Python harness finds."""
    require(report.variant_used == bundle.manifest.variants[0].id, str(report.unused))
    require(all(len(run.latencies_ns) >= 20 for run in report.runs), "too few latencies")
    took = [sum(run.latencies_ns) for run in report.runs]
    spans = [run.timed_ns for run in report.runs]
    require(all(isinstance(s, int) and t <= s for t, s in zip(took, spans, strict=True)), "no span")
    model = loader.load(bundle.path, report.variant_used)
    nodes = loader.profile_nodes(model.bundle, model.entry, runs=2)
    require(not isinstance(report.placement, NotMeasured), str(report.placement))
    found = [(node.op, node.provider) for node in report.placement.nodes]  # type: ignore[union-attr]
    require(
        sorted(found) == sorted((node["op"], node["provider"]) for node in nodes),
        f"nodes {found}",
    )
    require(not isinstance(report.memory, NotMeasured), str(report.memory))
    require(report.memory.model_bytes > 0, "no memory")  # type: ignore[union-attr]
    require(not isinstance(report.canary, NotMeasured), str(report.canary))


def streams(work: Path) -> str:
    """A model with a state is fed its own while it is timed, and what that breaks is told."""
    told = []
    for make, state, breaks in ((doubling, "{h_out: h}", True), (gru, "{h_out: h}", False)):
        folder = _emptied(work / make.__name__)
        make(folder / "net.onnx")
        np.savez(folder / "s.npz", x=frames(32, 1 if breaks else WIDTH))
        project = folder / "edgepack.yaml"
        samples = "samples: {evaluation: {path: s.npz}}"
        head = f"schema_version: 1\nname: net\nmodel: net.onnx\ntargets: [{TARGET}]\n"
        project.write_text(f"{head}state: {state}\n{samples}\n")
        done = build(project=project, variants=["cpu-fp32"], out=folder / "dist")
        bundle = done.bundles[0].bundle
        [entry] = bundle.manifest.variants
        planner = Planner(bundle, entry, cpu_flags=frozenset(_cpu_flags()), cache="c", work="extra")
        write(bundle.path, planner.plan_goldens().text, {})
        short = ["--duration-s", "0", "--iterations", "300", "--warm-up-cap-s", "0"]
        found = tools().document("measure", "--plan", "plan.txt", *short, folder=bundle.path)
        require(found["golden_min_sqnr_db"] > 100, "goldens do not have their own state")
        wanted = {"y", "h_out"} if breaks else set()
        require(set(found["not_finite"]) == wanted, f"{make.__name__}: {found['not_finite']}")
        told.append(f"{make.__name__}: {found['not_finite'] or 'finite'}")
    return ", ".join(told)


def refusals(work: Path) -> str:
    """What does not work is a document with the reason, and what is wrong an exit code."""
    (work / "empty.onnx").write_bytes(b"")
    plan = "fetch y\nsession empty.onnx\ngolden 0\n"
    write(work, plan, {})
    done = tools().run("check", "--plan", "plan.txt", folder=work)
    require(done.exit_code == 3, f"exit code {done.exit_code}: {done.text}")
    require(json.loads(done.text)["refused"] == "session", done.text)
    write(work, plan.replace("golden", "provider NoSuchExecutionProvider\ngolden"), {})
    done = tools().run("check", "--plan", "plan.txt", folder=work)
    require(json.loads(done.text)["refused"] == "provider", done.text)
    write(work, "fetch y\nnonsense\n", {})
    done = tools().run("check", "--plan", "plan.txt", folder=work)
    require(done.exit_code == 2, f"exit code {done.exit_code}: {done.last_lines}")
    done = run_program([str(tools().program), "about", "--runtime", "/none"], timeout_s=60)
    require(json.loads(done.text)["refused"] == "runtime", done.text)
    write(work, plan, {})
    done = tools().run("about", "--plan", "plan.txt", "--out", "said.json", folder=work)
    require((done.exit_code, done.text) == (0, ""), f"exit code {done.exit_code}: {done.text}")
    require("onnxruntime" in json.loads((work / "said.json").read_text()), "no document in --out")
    done = tools().run("nonsense", "--plan", "plan.txt", "--out", "said.json", folder=work)
    log = (work / "said.json.log").read_text()
    require((done.exit_code, done.stderr) == (2, b"") and "no mode nonsense" in log, log)
    bundle = built(DYNAMIC_BATCH)
    flags, last = frozenset(_cpu_flags()), bundle.manifest.variants[-1]
    planner = Planner(bundle, last, cpu_flags=flags, cache="c", work="extra")
    shutil.copytree(bundle.path, work / "bundle")
    write(work / "bundle", planner.plan_goldens().text, {})
    slow = ["measure", "--plan", "plan.txt", "--duration-s", "60", "--at-most-s", "1"]
    done = tools().run(*slow, folder=work / "bundle")
    limited = done.exit_code == 128 + signal.SIGALRM and b"longer than --at-most-s" in done.stderr
    require(limited, f"exit code {done.exit_code}: {done.last_lines}")
    about = tools().document("about", folder=work)
    require("CPUExecutionProvider" in about["providers"], str(about))
    require(math.isfinite(tools().document("clock", folder=work)["ns"]), "no clock")
    return f"session, provider, plan, runtime, log, limit; onnxruntime {about['onnxruntime']}"


def settings(work: Path) -> str:
    """A plan's settings are those of the sessions."""
    bundle = built(DYNAMIC_BATCH)
    folder, last = work / "bundle", bundle.manifest.variants[-1]
    shutil.copytree(bundle.path, folder)
    session = last.session.model_copy(update=SETTINGS)
    entry = last.model_copy(update={"session": session})
    flags = frozenset(_cpu_flags())
    plan = Planner(bundle, entry, cpu_flags=flags, cache="c", work="extra").plan_goldens()
    write(folder, plan.text, plan.files)
    done = tools().run("check", "--plan", "plan.txt", folder=folder)
    require(done.exit_code == 0, f"check: {done.text}{done.last_lines}")
    return require_all(done.stderr.decode("utf-8", "replace"))


DRIVER = """
import java.lang.reflect.Method;

public final class Driver {
  public static void main(String[] arguments) throws Exception {
    System.load(arguments[0]);
    Class<?> type = Class.forName("edgepack.measure.MeasureInstrumentation");
    Method measure = type.getDeclaredMethod("measure", String[].class, String.class);
    measure.setAccessible(true);
    String[] words = {"check", "--plan", "plan.txt", "--runtime", arguments[1], "--out", "o.json"};
    System.out.println(measure.invoke(null, words, arguments[2]));
  }
}
"""

STAND_IN = """
package android.app;

public class Instrumentation {
  public void onCreate(android.os.Bundle arguments) {}
  public void start() {}
  public void onStart() {}
  public android.content.Context getTargetContext() { return null; }
  public void finish(int code, android.os.Bundle result) {}
}
"""
"""The real one wants Android's native code when it is loaded; it is compiled against that one."""


def within_java(work: Path) -> str:
    """The app's instrumentation compiles against Android, and its library runs below Java."""
    native = find_ondevice_dir() / "native"
    [android] = jars(ANDROID)
    javac = shutil.which("javac")
    if javac is None:
        raise ToolError("there is no javac on PATH", hint="install a JDK")
    (work / "Driver.java").write_text(DRIVER)
    (work / "stand-in").mkdir()
    (work / "Instrumentation.java").write_text(STAND_IN)
    sources = [str(native / "android" / "MeasureInstrumentation.java"), str(work / "Driver.java")]
    flags = ["-nowarn", "-source", "8", "-target", "8"]
    _run([javac, *flags, "-classpath", str(android), "-d", str(work), *sources])
    stand_in = ["-d", str(work / "stand-in"), str(work / "Instrumentation.java")]
    _run([javac, *flags, "-classpath", str(android), *stand_in])
    jdk = Path(javac).resolve().parents[1] / "include"
    library = work / "libedgepack_measure.so"
    shared = ["cc", *WARNINGS, "-fPIC", "-shared", "-o", str(library)]
    places = [tools().header.parent, jdk, jdk / "linux"]
    shared += [word for place in places for word in ("-isystem", str(place))]
    shared += ["-I", str(native), str(native / SOURCES[0])]
    _run([*shared, str(native / "android" / "edgepack_measure_jni.c"), "-lm", "-ldl"])
    bundle = built(DYNAMIC_BATCH)
    entry = bundle.manifest.variants[-1]
    folder = work / "bundle"
    shutil.copytree(bundle.path, folder)
    planner = Planner(bundle, entry, cpu_flags=frozenset(_cpu_flags()), cache="c", work="extra")
    write(folder, planner.plan_goldens().text, {})
    java = str(Path(javac).with_name("java"))
    argv = [
        java,
        "-cp",
        f"{work}/stand-in:{work}:{android}",
        "Driver",
        str(library),
        str(tools().library),
    ]
    done = _run([*argv, str(folder)])
    require(done.text.strip() == "0", f"exit {done.text}{done.last_lines}")
    found = json.loads((folder / "o.json").read_text())["golden_min_sqnr_db"]
    require(found >= entry.min_sqnr_db, f"{found} dB")
    return f"goldens {found:.0f} dB near, from Java"


def objective_c(work: Path) -> str:
    """The measuring app of iPhones has the types that Apple documents."""
    native = find_ondevice_dir() / "native"
    shutil.copytree(native, work / "native")
    shutil.copytree(Path(__file__).with_name("objc"), work / "objc")
    flags = [
        "-fsyntax-only",
        "-fobjc-arc",
        "-fobjc-runtime=ios-17.0",
        "-Wall",
        "-Wextra",
        "-Werror",
    ]
    flags += ["-Wno-unused-parameter", "-I", "objc", "-I", "native"]
    for path, more in (
        ("native/apple/Host/main.m", ["-std=gnu11"]),
        ("native/apple/Tests/EdgepackMeasureTests.mm", ["-std=gnu++17"]),
    ):
        toolchain().run(["clang", *flags, *more, path], folder=work)
    return "clang says nothing of the app and its test"


def _run(argv: list[str]) -> ProgramResult:
    done = run_program(argv, timeout_s=300)
    require(done.exit_code == 0, f"{argv[0]}: {done.text}{done.last_lines}")
    return done


def write(folder: Path, plan: str, files: Any) -> None:
    """Write a plan and its files as a phone has them."""
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    (folder / "plan.txt").write_text(plan, encoding="utf-8")


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _cpu_flags() -> set[str]:
    from edgepack.ondevice.runtime.edgepack_providers import read_cpu_flags

    found: set[str] = read_cpu_flags()
    return found


PROOFS = (
    Proof("the measuring program compiles without a warning", compiles),
    Proof("boards' own header has onnxruntime's places", declared_places),
    Proof("its goldens are as near as the loader's", goldens),
    Proof("wrong outputs are found to be wrong", wrong_goldens),
    Proof("some values of large outputs are compared", kept_values),
    Proof("each quantity of an output is compared", quantities),
    Proof("its warm-up ends as Python's does", steadiness),
    Proof("edgepack bench measures with it", whole_road),
    Proof("it measures on a plugin", plugin),
    Proof("a model with a state is timed over a stream", streams),
    Proof("its sessions have a plan's settings", settings),
    Proof("what does not work is said", refusals),
    Proof("the measuring app of iPhones has Apple's types", objective_c),
    Proof("it runs within a process of Java, as in an app", within_java),
)
