"""Browsers as devices, without a browser: their documents, entries, runtime and refusals."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from edgepack.base.schema import NotMeasured
from edgepack.devices.inventory import BrowserEntry, Device, load_inventory
from edgepack.devices.transports import require_machine
from edgepack.errors import (
    ProfileError,
    RemoteCommandError,
    ToolError,
    UsageError,
)
from edgepack.measure.browsers.browsers import (
    find_runtime,
    list_page_files,
    require_asked_of_browsers,
    require_browser,
    require_pinned,
)
from edgepack.measure.browsers.chromium import find_browser, started
from edgepack.measure.browsers.documents import Described, Gpu, Opened, read_document, read_events
from edgepack.measure.browsers.own_machine import OwnWork
from edgepack.records.run import OtherWork, Scenario

PINS = {"onnxruntime-web": "1.30.0"}
TEN_MS = 10_000_000
BLINK = "AppleWebKit/537.36 (KHTML, like Gecko)"


def make_device(**keys: Any) -> Device:
    values = {"transport": "browser", "target": "web", **keys}
    return Device("page", BrowserEntry.model_validate(values))


def read_inventory(folder: Path, entry: str) -> Any:
    path = folder / "devices.yaml"
    path.write_text(f"schema_version: 1\ndevices:\n  page: {{transport: browser, {entry}}}\n")
    return load_inventory(path).devices["page"]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("target: web, open: by hand, browser: chromium", "'browser' and 'options' are of a"),
        ("target: web, open: by hand, options: [--x]", "'browser' and 'options' are of a"),
        ("target: web, listen: '0.0.0.0:80'", "'listen' is for a page that is opened by hand"),
        ("target: web, open: by hand, listen: here", "listen"),
        ("target: web, open: now", "open"),
        ("target: web, opening_s: 0", "opening_s"),
        ("open: headless", "target"),
    ],
)
def test_entry_when_wrong_is_an_error(tmp_path, entry, said):
    with pytest.raises(ProfileError) as error:
        read_inventory(tmp_path, entry)
    assert said in str(error.value)


def test_entry_when_it_has_no_more_is_a_headless_browser(tmp_path):
    entry = read_inventory(tmp_path, "target: web")
    assert (entry.open, entry.listen) == ("headless", "127.0.0.1:0")
    host = Device("page", entry).host
    assert (host.entry.transport, host.entry.root) == ("local", "~/.local/share/edgepack")


def test_entry_when_opened_by_hand_has_leases_of_its_own(tmp_path):
    entry = read_inventory(tmp_path, "target: web, open: by hand, listen: '[::1]:8765'")
    assert Device("page", entry).host.entry.root == "~/.local/share/edgepack/browsers/page"


@pytest.mark.parametrize(
    ("system", "rest", "browser"),
    [
        (
            "X11; Linux x86_64",
            f"{BLINK} HeadlessChrome/156.0.0.0 Safari/537.36",
            "Chrome 156 on Linux",
        ),
        (
            "Linux; Android 15; K",
            f"{BLINK} Chrome/156.0.0.0 Safari/537.36",
            "Chrome 156 on Android",
        ),
        (
            "Windows NT 10.0",
            f"{BLINK} Chrome/156.0.0.0 Safari/537.36 Edg/156.0.0.0",
            "Edge 156 on Windows",
        ),
        ("X11; Linux x86_64; rv:140.0", "Gecko/20100101 Firefox/140.0", "Firefox 140 on Linux"),
        (
            "iPhone; CPU iPhone OS 18_0 like Mac OS X",
            f"{BLINK} Version/18.0 Mobile/15E148 Safari/604.1",
            "Safari 18 on iOS",
        ),
        ("none", "", "a browser"),
    ],
)
def test_browser_when_it_tells_its_agent_has_name_and_system(system, rest, browser):
    agent = f"Mozilla/5.0 ({system}) {rest}"
    described = Described(user_agent=agent, cpu_count=2, isolated=True, tick_ns=5000, gpu=Gpu())
    assert described.browser == browser


@pytest.mark.parametrize(
    ("gpu", "is_software", "said"),
    [
        (Gpu(name="google swiftshader"), True, "simulated in software"),
        (Gpu(name="amd rdna-3", features=["shader-f16"]), False, "WebGPU on amd rdna-3"),
        (Gpu(name="mesa llvmpipe (LLVM 19)"), True, "without shader-f16, simulated in software"),
        (Gpu(name="acme", is_fallback=True), True, "simulated in software"),
        (Gpu(), False, "a GPU that the browser does not name"),
        (Gpu(absence="navigator.gpu has no adapter"), False, "no WebGPU: navigator.gpu has no"),
    ],
)
def test_gpu_when_a_program_stands_in_for_it_is_software(gpu, is_software, said):
    assert (gpu.is_software, said in str(gpu)) == (is_software, True)


def make_opened(**changed: Any) -> bytes:
    values = {
        "variant": "cpu-fp32",
        "passed_over": [{"variant": "webgpu-fp16", "reason": "no GPU"}],
        "notes": [],
        "onnxruntime": "1.30.0",
        "threads": 2,
        "session_create_ns": 1,
        "first_inference_ns": 2,
        "golden_min_sqnr_db": 200,
        "tick_ns": 5000,
    }
    return json.dumps({**values, **changed}).encode()


def test_document_when_right_is_read():
    [unused] = read_document(Opened, make_opened(), "page").list_unused()
    assert (unused.variant, unused.stage, unused.reason) == (
        "webgpu-fp16", "passed over", "no GPU"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (make_opened(threads=0), "is wrong at threads"),
        (make_opened(session_create_ns=-1), "is wrong at session_create_ns"),
        (make_opened(more=1), "is wrong at more"),
        (b"{", "is not JSON"),
        (b'{"threads": NaN}', "NaN"),
    ],
)
def test_document_when_wrong_is_an_error(header, said):
    with pytest.raises(RemoteCommandError, match="the page answered no Opened") as error:
        read_document(Opened, header, "page")
    assert said in error.value.problem


def test_profile_when_other_lines_are_printed_is_without_them():
    printed = 'a line [of] text\n[\n{"name": "a"},\n{"name": "b"}\n]\nanother line'
    assert json.loads(read_events(printed)) == [{"name": "a"}, {"name": "b"}]
    assert read_events("nothing") == b"nothing"


def test_target_when_for_something_else_is_an_error():
    with pytest.raises(ProfileError, match="reaches browsers, and target 'android' is for android"):
        require_browser(make_device(target="android"))


@pytest.mark.parametrize(
    ("scenario", "tune", "said"),
    [
        (Scenario(name="offline"), False, "single stream, not as offline"),
        (Scenario(), True, "clocks"),
    ],
)
def test_measurement_when_browsers_have_none_is_refused(scenario, tune, said):
    with pytest.raises(UsageError, match=said):
        require_asked_of_browsers(make_device(), scenario, tune=tune)


def test_browser_when_it_is_to_take_a_bundle_is_refused():
    with pytest.raises(UsageError, match="page is a browser: push") as error:
        require_machine(make_device())
    assert "edgepack bench BUNDLE --device page" in error.value.hint


def write_runtime(folder: Path, package: str) -> Path:
    (folder / "dist").mkdir(parents=True)
    (folder / "package.json").write_text(package)
    for name in ("ort.wasm.bundle.min.mjs", "ort.wasm", "ort.js"):
        (folder / "dist" / name).write_text(name)
    return folder


def test_runtime_when_there_is_served_without_other_files(tmp_path):
    folder = write_runtime(tmp_path / "ort", '{"version": "1.30.0"}')
    for given in (folder, folder / "dist"):
        device = make_device(runtime=str(given))
        assert find_runtime(device) == (folder / "dist", "1.30.0")
    files = list_page_files(folder / "dist")
    names = {name for name in files if name.startswith("onnxruntime/")}
    assert names == {"onnxruntime/ort.wasm.bundle.min.mjs", "onnxruntime/ort.wasm"}
    assert all(isinstance(each, bytes) or each.is_file() for each in files.values())


@pytest.mark.parametrize("package", [None, "no json", "{}", "[]"])
def test_runtime_when_it_is_none_is_an_error(tmp_path, package):
    if package is not None:
        write_runtime(tmp_path / "ort", package)
    with pytest.raises(ToolError, match="has no onnxruntime-web") as error:
        find_runtime(make_device(runtime=str(tmp_path / "ort")))
    assert "npm install onnxruntime-web@1.30.0" in error.value.hint


def test_runtime_when_of_another_version_is_an_error():
    require_pinned(make_device(), "1.30.0", PINS)
    for version in ("1.29.0", "1.30.1"):
        with pytest.raises(ToolError, match=f"is {version} there, and 1.30.0 is pinned"):
            require_pinned(make_device(), version, PINS)


def test_browser_when_missing_is_an_error(monkeypatch, tmp_path):
    with pytest.raises(ToolError, match="no 'no-such' on this machine"):
        find_browser(BrowserEntry(transport="browser", target="web", browser="no-such"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("edgepack.measure.browsers.chromium.NAMES", ("chromium",))
    with pytest.raises(ToolError, match="no Chromium or Chrome is found"):
        find_browser(BrowserEntry(transport="browser", target="web"))


def write_program(path: Path, text: str) -> BrowserEntry:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return BrowserEntry(transport="browser", target="web", browser=str(path), options=["--own"])


def wait_for(holds: Any) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_browser_when_left_is_stopped_with_its_children_and_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    text = f'echo "$@" > {tmp_path}/said\nsleep 60 & echo $! > {tmp_path}/child\nwait'
    entry = write_program(tmp_path / "browser", text)
    with started(entry, "http://address/") as chromium:
        wait_for((tmp_path / "child").is_file)
        wait_for((tmp_path / "child").read_text)
        assert not chromium.explain_end()
        [folder] = tmp_path.glob("edgepack-browser-*")
    words = (tmp_path / "said").read_text().split()
    assert words[-2:] == ["--own", "http://address/"]
    assert f"--user-data-dir={folder}" in words
    child = int((tmp_path / "child").read_text())
    wait_for(lambda: not is_running(child))
    assert not folder.exists()


def is_running(process: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False


def test_browser_when_it_ends_tells_its_last_lines(tmp_path):
    entry = write_program(tmp_path / "browser", "echo no display >&2; exit 3")
    with started(entry, "http://address/") as chromium:
        wait_for(chromium.explain_end)
        said = chromium.explain_end()
    assert said == "the browser ended with exit code 3\n  | no display"


def test_processor_time_when_a_child_works_counts_it(tmp_path):
    if not Path("/proc/stat").exists():
        pytest.skip("needs /proc")
    loop = "import time; e = time.process_time() + 0.3\nwhile time.process_time() < e: pass"
    text = f"{sys.executable} -c '{loop}' & sleep 60"
    with started(write_program(tmp_path / "browser", text), "x") as chromium:
        wait_for(lambda: (chromium.count_cpu_ns() or 0) >= 200_000_000)


def test_other_work_when_the_browser_works_is_not_the_browsers(monkeypatch):
    counted = {"cores": 2, "own_cores": 0.1, "other_cores": 1.0, "stolen_cores": 0.0, "waiting": 0}
    monkeypatch.setattr(
        "edgepack.measure.browsers.own_machine.other_work.OtherWork",
        lambda: SimpleNamespace(measure=lambda: counted),
    )
    times = iter([0, 5 * TEN_MS])
    work = OwnWork(lambda: next(times))
    time.sleep(0.1)
    found = work.measure()
    assert isinstance(found, OtherWork)
    assert 0.1 < found.own_cores < 0.6
    assert found.other_cores == pytest.approx(1.1 - found.own_cores, abs=1e-3)


def test_other_work_when_nothing_counts_the_browser_is_unknown():
    work = OwnWork(lambda: None)
    assert isinstance(work.measure(), NotMeasured)
