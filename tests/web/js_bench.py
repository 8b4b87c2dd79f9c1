"""``bench`` and ``evaluate`` of a bundle of the target ``web``, in a headless Chromium.

Each proof runs the command line in a process of its own, on the example ``digits``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from edgepack.base.processes import start_program
from edgepack.base.resources import find_example_dir, find_ondevice_dir
from edgepack.builder.build import build
from edgepack.bundle.manifest import MANIFEST, MANIFEST_DIGEST
from edgepack.errors import TooSlowError
from edgepack.measure.browsers.browsers import list_page_files
from edgepack.measure.browsers.pages import Page
from edgepack.measure.browsers.site import SILENT_S, serving

from tests.mobile.proofs import Proof, require
from tests.support.servers.chromium import find_chromium, launched
from tests.web.js_browser import WEBGPU, require_same
from tests.web.js_models import dist
from tests.web.js_types import compile_types
from tests.web.node import install_packages

TIMEOUT_S = 300
CPU_ALONE = "[{id: web, variants: [{backend: cpu, recipe: fp32}]}]"
COMPUTING_S = 2.0
"""The processor time after which a page times a model."""
INVALID_EXIT = 11
BUNDLE_EXIT = 7
DEVICE_EXIT = 8
REMOTE_EXIT = 9
TOOL_EXIT = 5
ADDRESS = re.compile(r"open this address in the browser: (http://127\.0\.0\.1:\d+/[\w-]+/)")


@cache
def digits() -> Path:
    """Return the folder of the example's project, with its bundle in ``dist``."""
    folder = dist() / "digits"
    shutil.copytree(find_example_dir(), folder)
    for name, targets, more in (
        ("dist", "[web]", ""),
        ("gpu", "[{id: web, variants: [{backend: webgpu, recipe: fp32}]}]", ""),
        ("shared", CPU_ALONE, "app: {runtime: shared}\n"),
    ):
        project = folder / f"{name}.yaml"
        text = (folder / "edgepack.yaml").read_text()
        project.write_text(re.sub("(?m)^targets:.*", f"targets: {targets}", text) + more)
        build(project=project, out=folder / name).require_all()
    return folder


@contextmanager
def asking(work: Path, *words: str, device: str = "", bundle: str = "") -> Iterator[Any]:
    """Run edgepack beside this process, on a device ``page``; leaving the context kills it."""
    runtime = install_packages() / "onnxruntime-web"
    given = device if "runtime" in device else f"runtime: {runtime}, {device}"
    lines = f"schema_version: 1\ndevices:\n  page: {{transport: browser, target: web, {given}}}\n"
    (work / "devices.yaml").write_text(lines)
    folders = {"HOME": "", "XDG_DATA_HOME": "/data", "XDG_CACHE_HOME": "/cache"}
    (work / "tmp").mkdir(exist_ok=True)
    environment = {name: f"{work}{below}" for name, below in folders.items()}
    environment["TMPDIR"] = str(work / "tmp")
    path = [bundle or str(digits() / "dist/digits-1.0.0-web")] if words[0] != "device" else []
    # SIGHUP is ignored where the proofs run under nohup, and so it would be by what they start.
    argv = ["env", "--default-signal=HUP", sys.executable, "-m", "edgepack"]
    argv += [*words[:1], *path, *words[1:]]
    child = start_program(argv, cwd=work, environment=environment, stdin=subprocess.DEVNULL)
    try:
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        child.communicate()


def ask(work: Path, *words: str, device: str = "", bundle: str = "") -> tuple[int, str, str]:
    """Run edgepack to its end; return its exit code and what it printed."""
    with asking(work, *words, device=device, bundle=bundle) as child:
        out, err = child.communicate(timeout=TIMEOUT_S)
    require_nothing_left(work)
    return child.returncode, out.decode(), err.decode()


def require_nothing_left(work: Path) -> None:
    """Check that no browser runs, and that its folder is gone."""
    left = [
        path for path in (work / "tmp").iterdir() if "rowser" in path.name or "hrom" in path.name
    ]
    require(not left, f"what a browser has left: {left}")
    running = [
        path.parent.name
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if str(work / "tmp").encode() in _read(path)
    ]
    require(not running, f"browsers that still run: {running}")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def prove_types(work: Path) -> str:
    """Check the page that measures with TypeScript's compiler."""
    names = ["page.js", "worker.js"]
    for name in names:
        shutil.copy(find_ondevice_dir() / "browser" / name, work / name)
    said = compile_types(work, names, module="esnext", moduleDetection="force", types=[])
    require(not said, said)
    return f"{len(names)} files"


BENCH = ("bench", "--device", "page", "--preset", "smoke")


def prove_bench(work: Path) -> str:
    """Measure a bundle: the report and verdict are as on a board."""
    code, out, err = ask(work, *BENCH, "--json")
    require_same(code, INVALID_EXIT, f"the exit code ({err})")
    report = json.loads(out)
    require_same(report["verdict"]["kind"], "inconclusive", "the verdict of 'smoke'")
    require("'smoke' is too short" in report["verdict"]["reason"], str(report["verdict"]))
    require_same(report["variant_used"], "cpu-int8-static", "the variant")
    require("no adapter" in report["unused"][0]["reason"], str(report["unused"]))
    require(report["facts"]["os"].startswith("Chrome "), str(report["facts"]))
    require(not report["facts"]["emulated"], "emulated")
    require_same(report["facts"]["onnxruntime"], "1.30.0", "the runtime")
    require("cross-origin isolated" in report["facts"]["python"], str(report["facts"]))
    providers = {node["provider"] for node in report["placement"]["nodes"]}
    require_same(providers, {"CPUExecutionProvider"}, "providers")
    require(len(report["canary"]["medians_ns"]) == 2, str(report["canary"]))
    memory = report["memory"]
    require(50e6 < memory["baseline_bytes"] <= memory["loaded_bytes"] < 2e9, str(memory))
    for run in report["runs"]:
        require(run["golden_min_sqnr_db"] >= 30, f"golden: {run['golden_min_sqnr_db']} dB")
        require(len(run["latencies_ns"]) >= 20, "too few latencies")
        require(run["other_work"].get("own_cores", 0) > 0, str(run["other_work"]))
        took = run["timed_to_ns"] - run["timed_from_ns"]
        require(sum(run["latencies_ns"]) <= took * 1.001, "latencies are longer than the run")
    return f"p50 {sorted(report['runs'][0]['latencies_ns'])[10] / 1e6:.2f} ms"


def prove_variants(work: Path) -> str:
    """Measure all variants in turn, and another size."""
    code, out, err = ask(work, *BENCH, "--variant", "all", "--json")
    require_same(code, INVALID_EXIT, f"the exit code ({err})")
    found = json.loads(out)
    reports = found["reports"] if isinstance(found, dict) else found
    variants = [report["variant_used"] for report in reports]
    require_same(variants, ["cpu-int8-static", "cpu-fp32"], "variants")
    require(reports[0]["speedup"]["ratio"] > 0, "no speedup")
    code, _, err = ask(work, *BENCH, "--variant", "webgpu-fp16")
    require_same(code, REMOTE_EXIT, f"the exit code ({err})")
    require("page: WebGpuExecutionProvider needs a GPU" in err, err)
    return f"int8 is {reports[0]['speedup']['ratio']:.2f} times as fast"


def prove_metric(work: Path) -> str:
    """Evaluate: the metric is that of the same samples on this machine."""
    project = ("--project", str(digits() / "dist.yaml"))
    code, out, err = ask(work, "evaluate", "--device", "page", "--json", *project)
    require_same(code, 0, f"the exit code ({err})")
    report = json.loads(out)
    manifest = json.loads((digits() / "dist/digits-1.0.0-web" / MANIFEST).read_text())
    [entry] = [each for each in manifest["variants"] if each["id"] == report["variant"]]
    wanted, measured = entry["accuracy"], report["measured"]
    require_same(measured["metric"], wanted["metric"], "the metric")
    require(abs(measured["value"] - wanted["value"]) <= 0.005, f"{measured}, not {wanted}")
    require_same(measured["samples"], 360, "samples")
    require_same(len(report["inference_ns"]), 360, "answers")
    return f"{measured['metric']} {measured['value']:.4f} of {measured['samples']} samples"


def prove_shared(work: Path) -> str:
    """Measure a bundle that shares its code; that of another edgepack is refused."""
    bundle = digits() / "shared/digits-1.0.0-web"
    code, out, err = ask(work, *BENCH, "--json", bundle=str(bundle))
    require_same(code, INVALID_EXIT, f"the exit code ({err})")
    require_same(json.loads(out)["variant_used"], "cpu-fp32", "the variant")
    shutil.copytree(bundle, work / "other")
    manifest = json.loads((bundle / MANIFEST).read_text())
    manifest["built_on"]["tools"]["edgepack"] = "9.9.9"
    write_manifest(work / "other", manifest)
    code, _, err = ask(work, *BENCH, bundle=str(work / "other"))
    require_same(code, BUNDLE_EXIT, f"the exit code ({err})")
    require("shares its code, and that is edgepack 9.9.9's" in err, err)
    return err.splitlines()[0]


def write_manifest(folder: Path, manifest: Any) -> None:
    """Write a bundle's manifest and its digest."""
    (folder / MANIFEST).write_text(json.dumps(manifest))
    digest = hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()
    (folder / MANIFEST_DIGEST).write_text(f"{digest}  {MANIFEST}\n")


def copy_spoiled(work: Path) -> Path:
    """Copy the bundle with other golden outputs, as a whole one."""
    folder = work / "spoiled"
    shutil.copytree(digits() / "dist/digits-1.0.0-web", folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    for golden in manifest["goldens"]:
        for tensors in golden["outputs"].values():
            path = folder / tensors[0]["path"]
            path.write_bytes(path.read_bytes()[::-1])
    for file in manifest["files"]:
        file["sha256"] = hashlib.sha256((folder / file["path"]).read_bytes()).hexdigest()
    write_manifest(folder, manifest)
    return folder


def prove_wrong(work: Path) -> str:
    """Measure a bundle whose golden outputs are others: no variant works."""
    code, _, err = ask(work, *BENCH, bundle=str(copy_spoiled(work)))
    require_same(code, REMOTE_EXIT, f"the exit code ({err})")
    found = re.search(r"cpu-int8-static: its output is (\S+) dB near the golden one", err)
    require(found is not None, err)
    return f"refused: {found[1] if found else ''} dB"


def write_script(path: Path, text: str) -> Path:
    """Write a program for the shell."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def prove_busy(work: Path) -> str:
    """Measure while others take the cores: the verdict says so."""
    loop = "import time; e = time.time() + 60\nwhile time.time() < e: pass"
    burners = [
        start_program([sys.executable, "-c", loop], stdin=subprocess.DEVNULL)
        for _ in range(os.cpu_count() or 1)
    ]
    try:
        words = ("bench", "--device", "page", "--preset", "quick", "--runs", "2", "--json")
        code, out, err = ask(work, *words)
    finally:
        for burner in burners:
            burner.kill()
            burner.communicate()
    require_same(code, INVALID_EXIT, f"the exit code ({err})")
    verdict = json.loads(out)["verdict"]
    require_same(verdict["kind"], "invalid", "the verdict")
    why = [each for each in verdict["reasons"] if "others took" in each]
    require_same(len(why), 2, "runs that were disturbed")
    return str(why[0])


def prove_webgpu(work: Path) -> str:
    """Measure WebGPU on SwiftShader: it is marked as emulated, and never VALID."""
    bundle = str(digits() / "gpu/digits-1.0.0-web")
    options = f"options: [{', '.join(WEBGPU)}]"
    code, out, err = ask(work, *BENCH, "--json", device=options, bundle=bundle)
    require_same(code, INVALID_EXIT, f"the exit code ({err})")
    report = json.loads(out)
    require(report["facts"]["emulated"], "not emulated")
    require("simulated in software" in report["facts"]["driver"], report["facts"]["driver"])
    require("GPU is emulated" in report["verdict"]["reason"], str(report["verdict"]))
    providers = {node["provider"] for node in report["placement"]["nodes"]}
    require("WebGpuExecutionProvider" in providers, str(providers))
    code, out, err = ask(work, "device", "check", "page", device=options)
    require_same(code, 0, f"the exit code ({err})")
    require("simulated in software" in out, out)
    return report["facts"]["driver"]


def prove_missing(work: Path) -> str:
    """Measure without a browser, without and with another onnxruntime-web."""
    other = work / "other"
    (other / "dist").mkdir(parents=True)
    (other / "package.json").write_text('{"version": "1.29.0"}')
    idle = write_script(work / "idle", "exec sleep 60")
    cases = (
        ("browser: no-such-browser", TOOL_EXIT, "no 'no-such-browser' on this machine"),
        ("browser: /bin/false", DEVICE_EXIT, "the browser ended with exit code 1"),
        (f"browser: {idle}, opening_s: 3", DEVICE_EXIT, "the page was not opened within 3 s"),
        (f"runtime: {work}/none", TOOL_EXIT, "has no onnxruntime-web"),
        (f"runtime: {other}", TOOL_EXIT, "onnxruntime-web is 1.29.0 there, and 1.30.0 is pinned"),
    )
    for device, wanted, said in cases:
        code, _, err = ask(work, *BENCH, device=device)
        require(code == wanted and said in err, f"{device}: {code}, {err}")
    code, out, err = ask(work, "device", "check", "page", device=cases[-1][0])
    require(code == DEVICE_EXIT and "1.29.0" in out, f"{code}, {out}, {err}")
    return f"{len(cases) + 1} mistakes"


@contextmanager
def measuring(work: Path, device: str = "") -> Iterator[tuple[Any, str]]:
    """Begin a long measurement; yield it when it has begun to time, and the page's address."""
    words = ("bench", "--device", "page", "--preset", "standard", "--runs", "2")
    with asking(work, *words, device=device) as child:
        said = ""
        while "latency, process run 1" not in said:
            line = child.stderr.readline().decode()
            require(bool(line), f"edgepack ended early: {said}")
            said += line
            if found := ADDRESS.search(said):
                yield child, found[1]
                return
        while count_page_cpu_s(work) < COMPUTING_S:
            require(child.poll() is None, "edgepack ended early")
            time.sleep(0.2)
        yield child, ""


def count_page_cpu_s(work: Path) -> float:
    """Return the processor time of the process that has the page."""
    ticks = 0
    for process in find_browser_processes(work):
        path = Path(f"/proc/{process}")
        if b"--type=renderer" in _read(path / "cmdline"):
            columns = _read(path / "stat").rpartition(b")")[2].split()
            ticks += sum(map(int, columns[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def find_browser_processes(work: Path) -> list[int]:
    """Return the ids of the processes of the browser that edgepack has started."""
    return [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if str(work / "tmp").encode() in _read(path) and b"--user-data-dir" in _read(path)
    ]


def prove_stopped(name: str, stop: Callable[[Path, Any], None], code: int, said: str) -> Proof:
    """Return a proof that a measurement which is stopped ends with one error, and is cleaned up."""

    def look(work: Path) -> str:
        with measuring(work) as (child, _):
            stop(work, child)
            _, err = child.communicate(timeout=TIMEOUT_S)
        require(child.returncode == code and said in err.decode(), f"{child.returncode}: {err!r}")
        require_nothing_left(work)
        return f"exit code {code}"

    return Proof(name, look)


def kill_browser(work: Path, child: Any) -> None:
    del child
    os.kill(min(find_browser_processes(work)), signal.SIGKILL)


def kill_page(work: Path, child: Any) -> None:
    """Kill the process that has the page, and not the browser."""
    del child
    for process in find_browser_processes(work):
        if b"--type=renderer" in _read(Path(f"/proc/{process}/cmdline")):
            os.kill(process, signal.SIGKILL)


def end(work: Path, child: Any) -> None:
    del work
    child.terminate()  # SIGINT is ignored where the proofs run in the background


def hang_up(work: Path, child: Any) -> None:
    del work
    child.send_signal(signal.SIGHUP)


def read_status(url: str) -> int:
    """Return the status of an answer."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def prove_by_hand(work: Path) -> str:
    """Open the page by hand: a second one and a wrong token are refused."""
    path = str(find_chromium())
    with (
        asking(work, *BENCH, "--json", device="open: by hand, opening_s: 60") as child,
        launched(path) as browser,
    ):
        address = wait_for_address(child)
        wrong = re.sub(r"/[\w-]+/$", "/wrong/", address)
        tried = [wrong, f"{wrong}worker.js", f"{address}../", f"{address}bundle/../../etc/passwd"]
        require_same([read_status(url) for url in tried], [404] * len(tried), "statuses")
        first, second = browser.new_page(), browser.new_page()
        first.goto(address)
        first.get_by_text("measures in this page").wait_for()
        second.goto(address)
        second.get_by_text("Another page").wait_for()
        out, err = child.communicate(timeout=TIMEOUT_S)
        require_same(child.returncode, INVALID_EXIT, f"the exit code ({err.decode()})")
        report = json.loads(out)
        require_same(report["facts"]["cpu"]["kind"], "not-measured", "the processor")
        require_same(len(report["runs"]), 2, "runs")
        first.get_by_text("has ended").wait_for()
    return report["facts"]["os"]


def wait_for_address(child: Any) -> str:
    """Return the page's address as soon as edgepack prints it."""
    said = ""
    while not (found := ADDRESS.search(said)):
        line = child.stderr.readline().decode()
        require(bool(line), f"edgepack ended early: {said}")
        said += line
    return found[1]


def prove_closed(work: Path) -> str:
    """Open the page by hand, and close it in the middle of a run."""
    words = ("bench", "--device", "page", "--preset", "standard", "--runs", "2")
    with (
        asking(work, *words, device="open: by hand, opening_s: 60") as child,
        launched(str(find_chromium())) as browser,
    ):
        page = browser.new_page()
        page.goto(wait_for_address(child))
        while b"latency, process run 1" not in child.stderr.readline():
            require(child.poll() is None, "edgepack ended early")
        time.sleep(2)
        page.close()
        _, err = child.communicate(timeout=TIMEOUT_S)
    said = err.decode()
    require(child.returncode == DEVICE_EXIT, f"{child.returncode}: {said}")
    require("page: the page was closed" in said, said)
    return "exit code 8"


def prove_renewed(work: Path) -> str:
    """Have a page that is opened by hand begin anew while its worker computes."""
    del work
    served = list_page_files(install_packages() / "onnxruntime-web" / "dist")
    slow = {"do": "canary", "warm_up_s": 60, "duration_s": 60, "iterations": 1}
    with (
        serving("page", "127.0.0.1:0", served) as site,
        launched(str(find_chromium())) as browser,
    ):
        browser.new_page().goto(site.url)
        page = Page(site, None)
        site.open(TIMEOUT_S, page.explain_end)
        page.describe()
        try:
            page.ask(slow, timeout_s=COMPUTING_S)
        except TooSlowError:
            site.renew(page.explain_end, SILENT_S)
            return page.describe().browser
    raise AssertionError("a minute's work took two seconds")


def prove_insecure(work: Path) -> str:
    """Open the page by hand where it is no secure context: one thread, and a coarse clock."""
    project = ("--project", str(digits() / "dist.yaml"))
    cases = (
        (("evaluate", "--device", "page", *project), 0, "WebAssembly has one thread"),
        (BENCH, REMOTE_EXIT, "the page's clock moves in steps of 100 µs, which is too coarse"),
    )
    path = str(find_chromium())
    for words, wanted, expected in cases:
        with (
            asking(work, *words, device="open: by hand, opening_s: 60") as child,
            launched(path, "--host-resolver-rules=MAP measured.test 127.0.0.1") as browser,
        ):
            address = wait_for_address(child).replace("127.0.0.1", "measured.test")
            browser.new_page().goto(address)
            out, err = child.communicate(timeout=TIMEOUT_S)
        said = f"{out.decode()}{err.decode()}"
        require(child.returncode == wanted and expected in said, f"{child.returncode}: {said}")
    return "the metric, and no time"


PROOFS = (
    Proof("the page that measures is strict TypeScript", prove_types),
    Proof("bench in Chromium", prove_bench),
    Proof("bench of all variants in Chromium", prove_variants),
    Proof("evaluate in Chromium", prove_metric),
    Proof("bench of wrong golden outputs", prove_wrong),
    Proof("bench of a bundle that shares its code", prove_shared),
    Proof("bench beside other work", prove_busy),
    Proof("bench of WebGPU, simulated by SwiftShader", prove_webgpu),
    Proof("bench without a browser or a runtime", prove_missing),
    prove_stopped(
        "a browser that crashes", kill_browser, DEVICE_EXIT, "the browser ended with exit code -9"
    ),
    prove_stopped("a page that crashes", kill_page, DEVICE_EXIT, "has said nothing for 30 s"),
    prove_stopped("a measurement that is ended", end, 143, ""),
    prove_stopped("a measurement whose terminal is gone", hang_up, 129, ""),
    Proof("a page that is opened by hand", prove_by_hand),
    Proof("a page whose worker computes too long", prove_renewed),
    Proof("a page that is closed", prove_closed),
    Proof("a page in no secure context", prove_insecure),
)
