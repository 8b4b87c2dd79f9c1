"""The whole measurement on a phone, whose adb, Android and NDK are doubles on this machine."""

from __future__ import annotations

import json
import zipfile
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest
from edgepack.base.progress import Silent
from edgepack.bundle.reading import load_bundle
from edgepack.demo.server import LoopbackServer
from edgepack.devices.inventory import AdbEntry, Device, SshHost
from edgepack.devices.transports import connect
from edgepack.errors import (
    DeviceError,
    EdgepackError,
    ToolError,
    UnreachableError,
    UsageError,
)
from edgepack.measure.bench.run import bench
from edgepack.measure.phones.phones import open_phone
from edgepack.native.harness import NativeHarness
from edgepack.records.presets import find_preset
from edgepack.records.run import Inconclusive, Invalid, NotMeasured, OutputCheck
from edgepack.records.scenarios import make_scenario
from edgepack.results.page.table import list_device_rows

from tests.integration.ondevice.test_harness_modes import save_mixing
from tests.support.doubles.phone_doubles import (
    CANNED,
    SERIAL,
    PhoneDouble,
    make_phone,
    write_ndk,
    write_package,
    write_sdk,
)
from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle
from tests.support.slow_cases import slow_after

RUNTIME = {"com.microsoft.onnxruntime:onnxruntime-android": "1.29.0"}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = write_tiny_bundle(tmp_path / "bundle")
    change_manifest(folder, lambda m: m.update(target="android", family="android", runtime=RUNTIME))
    return folder


@pytest.fixture
def phone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PhoneDouble:
    ndk = write_ndk(tmp_path / "ndk", program=CANNED)
    monkeypatch.setenv("ANDROID_NDK_HOME", str(ndk))
    return make_phone(tmp_path / "phone", package=write_package(tmp_path / "ort.aar"))


def ready(bundle: Path, phone: PhoneDouble) -> AbstractContextManager[NativeHarness]:
    return open_phone(load_bundle(bundle), phone.device, "test", wait_s=0.0, progress=Silent())


def select(bundle: Path, phone: PhoneDouble) -> None:
    with ready(bundle, phone) as harness:
        harness.select(None)


def pushed(phone: PhoneDouble) -> list[str]:
    return [command for command in phone.commands if command.startswith("push ")]


@pytest.mark.slow(reason="each of a dozen processes loads onnxruntime")
def test_bench_on_a_phone_runs_the_models_there(
    bundle: Path, phone: PhoneDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANDROID_NDK_HOME", str(write_ndk(tmp_path / "real")))
    report = bench(bundle, phone.device, preset="smoke", shapes=["x=2x3x8x8", "x=2x3x9x9"])
    assert all(run.golden_min_sqnr_db > 40 for run in report.runs)
    assert [node.op for node in report.placement.nodes][:1] == ["Conv"]
    assert [bool(point.problem) for point in report.sweep] == [False, True]


@pytest.mark.slow(reason="each of a dozen processes loads onnxruntime")
def test_bench_on_a_phone_compares_batches_with_golden_outputs(
    tmp_path: Path, phone: PhoneDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANDROID_NDK_HOME", str(write_ndk(tmp_path / "real")))
    for mixes in (False, True):
        folder = write_tiny_bundle(
            tmp_path / f"bundle-{mixes}", save=save_mixing if mixes else None
        )
        change_manifest(
            folder, lambda m: m.update(target="android", family="android", runtime=RUNTIME)
        )
        report = bench(folder, phone.device, preset="smoke", batches=[3], shapes=["x=2x3x8x8"])
        batch, other = report.sweep
        assert isinstance(batch.checked, OutputCheck)
        assert batch.checked.how == "golden outputs, over the whole batch"
        assert bool(batch.checked.problem) == batch.is_wrong == mixes
        assert bool(batch.latencies_ns) != mixes
        assert isinstance(other.checked, NotMeasured)
        assert other.latencies_ns
        assert isinstance(report.verdict, Invalid if mixes else Inconclusive)


@pytest.mark.slow(reason="takes seconds")
def test_bench_on_a_phone_makes_a_report(bundle: Path, phone: PhoneDouble, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    report = bench(bundle, phone.device, preset="smoke", shapes=["x=2x3x8x8"], perfetto=trace)
    events = json.loads(trace.read_text())["traceEvents"]
    assert [event["name"] for event in events if event.get("cat") == "Node"] == ["n"]
    assert (report.device, report.variant_used) == ("pixel", "cpu-int8-static")
    assert not report.facts.emulated
    shown = dict(list_device_rows(report))
    assert shown["system"] == "Android 15 (API 35)"
    assert (shown["model"], shown["processor"]) == (
        "Google Pixel 8",
        "Google Tensor G3, 8 cores, arm64-v8a",
    )
    assert (shown["temperature (°C)"], shown["slowed down now"]) == ("31.5", "none")
    assert (shown["power mode"], shown["battery (%)"]) == ("normal", "84.0")
    assert all(run.after.battery_percent == 84 for run in report.runs)
    assert [len(run.latencies_ns) >= 20 for run in report.runs] == [True, True]
    assert report.placement.compute_share("CPUExecutionProvider") == 1.0
    assert isinstance(report.creation.cold_ns, NotMeasured)
    assert isinstance(report.phases, NotMeasured)
    assert "has tensors" in report.phases.reason
    assert len(report.canary.medians_ns) == 2
    assert [point.problem for point in report.sweep] == [""]
    assert isinstance(report.verdict, Inconclusive)
    assert "too short" in report.verdict.reason
    assert not list((phone.folder / "root").rglob("work"))


@pytest.mark.slow(reason="takes seconds")
def test_phone_gets_only_what_it_lacks(bundle: Path, phone: PhoneDouble) -> None:
    with ready(bundle, phone):
        pass
    sent = pushed(phone)
    model = next((phone.folder / "root").rglob("cpu-fp32.onnx"))
    model.write_bytes(b"something else")
    with ready(bundle, phone):
        assert model.read_bytes() == (bundle / "models/cpu-fp32.onnx").read_bytes()
    assert [line for line in sent if "cpu-fp32.onnx" in line]
    assert len(pushed(phone)) == len(sent) + 1
    change_manifest(bundle, lambda manifest: manifest.update(version="1.0.1"))
    root = phone.folder / "root"
    (root / "tools" / "arm64-v8a-0123456789abcdef").mkdir()
    (root / "tiny" / "of somebody else").mkdir()
    with ready(bundle, phone):
        assert len(list((root / "tiny").iterdir())) == 2
        assert len(list((root / "tools").iterdir())) == 1
    assert (root / "tiny" / "of somebody else").exists()


@pytest.mark.slow(reason="an SSH server and a whole measurement")
def test_bench_through_another_machine_uses_its_adb(
    bundle: Path, phone: PhoneDouble, tmp_path: Path
) -> None:
    with LoopbackServer(tmp_path / "server") as server:
        via = SshHost(
            host=server.host,
            port=server.port,
            user=server.user,
            key=str(server.client_key_path),
            host_key=server.host_key_fingerprint,
            ssh_config="/dev/null",
        )
        entry = phone.device.entry.model_copy(update={"via": via})
        report = bench(bundle, Device("pixel", entry), preset="smoke", variant="cpu-fp32")
    assert report.variant_used == "cpu-fp32"


@pytest.fixture
def in_app(phone: PhoneDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PhoneDouble:
    sdk = write_sdk(tmp_path / "sdk")
    monkeypatch.setenv("ANDROID_HOME", str(sdk))
    monkeypatch.setenv("JAVA_HOME", str(sdk / "jdk"))
    entry = phone.device.entry.model_copy(update={"inside": "app"})
    return PhoneDouble(phone.folder, Device("pixel", entry))


@pytest.mark.slow(reason="takes seconds")
def test_phone_is_measured_within_an_app_when_the_inventory_says_so(
    bundle: Path, in_app: PhoneDouble
) -> None:
    with suppress(KeyboardInterrupt), ready(bundle, in_app) as harness:
        selection = harness.select(None)
        run = harness.measure(selection.variant, find_preset("smoke"))
        placement = harness.profile(selection.variant)
        names = zipfile.ZipFile(in_app.folder / "installed.apk").namelist()
        raise KeyboardInterrupt  # which leaves nothing more behind than a good end
    assert {"classes.dex", "lib/arm64-v8a/libonnxruntime.so"} <= set(names)
    assert len(run.latencies_ns) == 20
    assert placement.compute_share("CPUExecutionProvider") == 1.0
    assert any(" am instrument -w " in command for command in in_app.commands)
    assert not (in_app.folder / "app").exists()
    assert not list((in_app.folder / "root").rglob("work"))
    assert not (in_app.folder / "installed.apk").exists()


@pytest.mark.parametrize(
    ("command", "said", "problem", "hint"),
    slow_after(
        1,
        [
            (
                "am instrument",
                "INSTRUMENTATION_RESULT: exit=1\nINSTRUMENTATION_CODE: -1\n",
                "may not enter",
                "'inside: shell'",
            ),
            (
                "install",
                "Failure [INSTALL_FAILED_USER_RESTRICTED: Install canceled by user]",
                "refused to install over USB",
                "Install via USB",
            ),
            (
                "am instrument",
                "INSTRUMENTATION_RESULT: shortMsg=Process crashed.\nINSTRUMENTATION_CODE: 0",
                "the measuring app crashed",
                f"adb -s {SERIAL} logcat",
            ),
        ],
    ),
)
def test_app_that_does_not_work_is_said_with_what_to_do(
    bundle: Path, in_app: PhoneDouble, command: str, said: str, problem: str, hint: str
) -> None:
    in_app.say(command, stdout=said, code=0)
    with pytest.raises(EdgepackError, match=problem) as caught:
        select(bundle, in_app)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("command", "stderr", "error", "problem", "hint"),
    slow_after(
        2,
        [
            (
                "get-state",
                "error: device unauthorized.\n",
                DeviceError,
                "has not authorized",
                "Allow USB",
            ),
            (
                "get-state",
                "error: device offline\n",
                UnreachableError,
                "does not answer",
                "plug it",
            ),
            (
                "push",
                (
                    "adb: error: failed to copy 'a' to 'b': "
                    "remote write failed: No space left on device\n"
                ),
                DeviceError,
                "storage is full",
                "free some",
            ),
            ("measure", "error: closed\n", UnreachableError, "was lost", "cable"),
        ],
    ),
)
def test_bench_says_what_to_do_when_adb_fails(  # noqa: PLR0917
    bundle: Path,
    phone: PhoneDouble,
    command: str,
    stderr: str,
    error: type[Exception],
    problem: str,
    hint: str,
) -> None:
    phone.say(command, stderr=stderr)
    with pytest.raises(error) as caught:
        bench(bundle, phone.device, preset="smoke")
    assert problem in str(caught.value)
    assert hint in str(caught.value)


def test_bench_names_adb_when_there_is_none(bundle: Path, phone: PhoneDouble) -> None:
    entry = phone.device.entry.model_copy(update={"adb": "/nowhere/adb"})
    with pytest.raises(ToolError, match="there is no adb"):
        bench(bundle, Device("pixel", entry), preset="smoke")


def test_bench_refuses_a_phone_that_is_older_than_the_target(
    bundle: Path, phone: PhoneDouble
) -> None:
    phone.set(ro__build__version__sdk="23")
    with pytest.raises(DeviceError, match="API level 23, and target android needs"):
        bench(bundle, phone.device, preset="smoke")


def test_bench_refuses_what_phones_cannot_do(bundle: Path, phone: PhoneDouble) -> None:
    with pytest.raises(UsageError, match="single stream"):
        bench(bundle, phone.device, preset="smoke", scenario=make_scenario("offline"))
    with pytest.raises(UsageError, match="clocks of a phone"):
        bench(bundle, phone.device, preset="smoke", tune=True)


def test_push_to_a_phone_is_refused_with_what_can_be_done(phone: PhoneDouble) -> None:
    with pytest.raises(UsageError, match="an app contains it") as caught:
        connect(phone.device)
    assert "edgepack bench" in caught.value.hint


def test_phone_is_leased_on_the_machine_that_has_it(phone: PhoneDouble) -> None:
    host = phone.device.host
    assert host.entry.root.endswith(f"/phones/{SERIAL}")
    assert host.host is host
    assert isinstance(phone.device.entry, AdbEntry)
