"""How a variant is chosen on a phone, and what is made of what the program there says."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from edgepack.bundle.reading import load_bundle
from edgepack.devices.provisioning.native import About
from edgepack.devices.transport import CommandResult, Transport
from edgepack.errors import RemoteCommandError, UsageError
from edgepack.measure.phones.android import is_emulator
from edgepack.measure.phones.conditions import parse_android_conditions
from edgepack.native.harness import NativeHarness
from edgepack.native.plans import Plan, add_schedule
from edgepack.native.program import ProgramRun
from edgepack.project.profile import Provider, SessionSettings
from edgepack.records.presets import find_preset
from edgepack.records.run import Conditions, DeviceFacts, NotMeasured
from edgepack.records.scenarios import make_scenario
from edgepack.records.tuning import Settings

from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle

CPU = "CPUExecutionProvider"
CHECKED = {"session_create_ns": 9, "first_inference_ns": 8, "golden_min_sqnr_db": 90.5}
Document = dict[str, Any]


@dataclass
class FakePhone:
    """A phone whose program says what a function says, given its arguments and its plan."""

    say: Callable[[list[str], str], tuple[int, Document | bytes]]
    events: list[Document] = field(default_factory=list)
    name: str = "pixel"
    cache: str = "/cache"
    work: str = "work"
    scratch: str = "work"
    cpu_flags: frozenset[str] = frozenset({"asimddp"})
    folders: list[str] = field(default_factory=list)

    @property
    def host(self) -> Transport:
        raise NotImplementedError

    def read_facts(self, about: About) -> DeviceFacts:
        return DeviceFacts(
            os="Android 15 (API 35)",
            arch="arm64-v8a",
            model="Pixel 8",
            cpu="Tensor G3",
            cpu_count=about.cpu_count,
            emulated=False,
            python="none",
            numpy="none",
            onnxruntime=about.onnxruntime,
            providers=about.providers,
            driver=NotMeasured(reason="it is a phone"),
            boot_id=self.read_boot_id(),
            conditions=self.read_conditions(),
        )

    def read_conditions(self) -> Conditions:
        return parse_android_conditions({})

    def read_boot_id(self) -> str | NotMeasured:
        return "b"

    def make_command(self, arguments: Sequence[str]) -> list[str]:
        return ["edgepack_measure", *arguments]

    def measure(
        self, arguments: Sequence[str], plan: Plan | None, *, timeout_s: float
    ) -> CommandResult:
        assert arguments[-2:] == ["--at-most-s", f"{timeout_s:.0f}"]
        if arguments[0] == "about":
            code, said = 0, {"onnxruntime": "1.29.0", "providers": [CPU], "cpu_count": 8}
        else:
            code, said = self.say(list(arguments), plan.text if plan else "")
        data = said if isinstance(said, bytes) else json.dumps(said).encode()
        return CommandResult(tuple(arguments), code, data, b"last words")

    def measure_timed(
        self, arguments: Sequence[str], plan: Plan | None, *, timeout_s: float
    ) -> ProgramRun:
        result = self.measure(arguments, plan, timeout_s=timeout_s)
        return ProgramRun(result, self.read_conditions(), self.read_conditions())

    def take(self, path: str) -> bytes:
        assert path == "work/profile.json"
        return json.dumps(self.events).encode()

    def make_folder(self, path: str) -> None:
        self.folders.append(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tiny_bundle(tmp_path / "bundle")


def harness_of(folder: Path, phone: FakePhone) -> NativeHarness:
    return NativeHarness(phone, load_bundle(folder))


def near(_arguments: list[str], _plan: str) -> tuple[int, Document | bytes]:
    return 0, CHECKED


def test_first_variant_is_chosen_when_it_works(folder: Path) -> None:
    found = harness_of(folder, FakePhone(near)).select(None)
    assert (found.variant, found.unused) == ("cpu-int8-static", [])
    assert found.device.onnxruntime == "1.29.0"


def test_variant_that_is_asked_for_is_chosen(folder: Path) -> None:
    assert harness_of(folder, FakePhone(near)).select("cpu-fp32").variant == "cpu-fp32"


def test_variant_is_found_by_its_id(folder: Path) -> None:
    manifest = load_bundle(folder).manifest
    assert [manifest.find_variant(each.id) for each in manifest.variants] == manifest.variants


def change_first(key: str, value: object) -> Callable[[Document], None]:
    def change(manifest: Document) -> None:
        manifest["variants"][0][key] = value

    return change


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        (
            "providers",
            [{"name": "NnapiExecutionProvider"}, {"name": CPU}],
            f"NnapiExecutionProvider is not in this onnxruntime (it has {CPU})",
        ),
        ("requires", {"cpu": ["asimddp", "i8mm"]}, "this CPU lacks i8mm"),
        (
            "min_sqnr_db",
            91.0,
            "its output is 90.5 dB near the golden one, 91.0 dB are needed",
        ),
    ],
)
def test_variant_is_passed_over_with_the_loaders_reason(
    folder: Path, key: str, value: object, reason: str
) -> None:
    change_manifest(folder, change_first(key, value))
    found = harness_of(folder, FakePhone(near)).select(None)
    assert found.variant == "cpu-fp32"
    assert [each.reason for each in found.unused] == [reason]


@pytest.mark.parametrize(
    ("refused", "message", "reason"),
    [
        ("session", "no such op", "the session cannot be created: no such op"),
        (
            "session",
            "fallback to CPU EP has been explicitly disabled by the user",
            (
                "the session cannot be created: its provider does not take every node, or not this"
                " device"
            ),
        ),
        ("inference", "out of memory", "inference failed: out of memory"),
        ("runtime", "dlopen failed", "the runtime does not load: dlopen failed"),
    ],
)
def test_no_variant_works_when_all_are_refused(
    folder: Path, refused: str, message: str, reason: str
) -> None:
    phone = FakePhone(lambda _, __: (3, {"refused": refused, "message": message}))
    with pytest.raises(RemoteCommandError, match="no variant of tiny-1") as caught:
        harness_of(folder, phone).select(None)
    assert f"cpu-fp32: {reason}" in caught.value.problem


def node_events(providers: Sequence[str]) -> list[Document]:
    return [
        {
            "cat": "Node",
            "name": f"node-{number}_kernel_time",
            "dur": 5,
            "args": {"op_name": "Conv", "provider": provider},
        }
        for number, provider in enumerate(providers)
    ]


def test_variant_is_passed_over_when_its_provider_runs_too_few_nodes(folder: Path) -> None:
    def change(manifest: Document) -> None:
        first = manifest["variants"][0]
        first["placement"] = 0.5
        first["providers"] = [{"name": "XnnpackExecutionProvider"}, {"name": CPU}]

    change_manifest(folder, change)

    def say(arguments: list[str], _: str) -> tuple[int, Document | bytes]:
        if arguments[0] == "profile":
            return 0, {"profile": "work/profile.json", "runs": 10}
        return 0, CHECKED

    events = node_events([CPU, CPU, "XnnpackExecutionProvider"])
    harness = harness_of(folder, FakePhone(say, events))
    harness._about = About(
        onnxruntime="1.29.0", providers=["XnnpackExecutionProvider", CPU], cpu_count=8
    )
    found = harness.select(None)
    wanted = "XnnpackExecutionProvider runs 33% of the nodes, at least 50% are needed"
    assert [each.reason for each in found.unused] == [wanted]


def test_variant_is_chosen_when_its_provider_compiles_most_nodes_into_one(folder: Path) -> None:
    def change(manifest: Document) -> None:
        first = manifest["variants"][0]
        first["placement"] = 0.5
        first["providers"] = [{"name": "CoreMLExecutionProvider"}, {"name": CPU}]

    change_manifest(folder, change)
    phone = FakePhone(lambda _, __: (0, CHECKED))

    def say(arguments: list[str], plan: str) -> tuple[int, Document | bytes]:
        if arguments[0] != "profile":
            return 0, CHECKED
        compiled = "provider CoreMLExecutionProvider" in plan
        phone.events = node_events(["CoreMLExecutionProvider", CPU, CPU] if compiled else [CPU] * 9)
        return 0, {"profile": "work/profile.json", "runs": 10}

    phone.say = say
    harness = harness_of(folder, phone)
    harness._about = About(
        onnxruntime="1.30.0", providers=["CoreMLExecutionProvider", CPU], cpu_count=6
    )
    assert harness.select(None).unused == []


@pytest.mark.parametrize(
    ("code", "said", "problem"),
    [
        (137, b"", "exit code 137"),
        (0, b"Segmentation fault", "printed no TimedAnswer: it is not JSON"),
        (0, b'{"latencies_ns": [1]}', "printed no TimedAnswer"),
        (4, b"", "failed with exit code 4"),
        (3, b'{"refused": "inference", "message": "oops"}', "inference failed: oops"),
    ],
)
def test_program_that_fails_is_an_error_with_what_it_said(
    folder: Path, code: int, said: bytes, problem: str
) -> None:
    harness = harness_of(folder, FakePhone(lambda _, __: (code, said)))
    with pytest.raises(RemoteCommandError) as caught:
        harness.measure("cpu-fp32", find_preset("smoke"))
    assert problem in caught.value.problem


def test_cache_folder_is_made_when_a_variant_keeps_compiled_models(folder: Path) -> None:
    options = {"ModelCacheDirectory": "{cache}"}
    providers = [{"name": CPU, "options": options}]
    change_manifest(folder, change_first("providers", providers))
    phone = FakePhone(near)
    harness_of(folder, phone).select(None)
    digest = load_bundle(folder).manifest.variants[0].model_sha256
    assert set(phone.folders) == {f"/cache/{digest[:16]}/onnxruntime-1.29.0"}


def test_creation_is_not_measured_cold(folder: Path) -> None:
    harness = harness_of(folder, FakePhone(lambda _, __: (0, {"session_create_ns": 7})))
    assert isinstance(harness.create("cpu-fp32", cold=True), NotMeasured)
    assert harness.create("cpu-fp32", cold=False) == 7


@pytest.mark.parametrize(
    ("properties", "emulated"),
    [
        ({"ro.boot.qemu": "1"}, True),
        ({"ro.kernel.qemu": "1"}, True),
        ({"ro.hardware": "ranchu"}, True),
        ({"ro.hardware": "shiba"}, False),
        ({}, False),
    ],
)
def test_emulators_are_known_by_their_properties(
    properties: dict[str, str],
    emulated: bool,  # noqa: FBT001
) -> None:
    assert is_emulator(properties) is emulated


def test_settings_that_are_tried_are_in_the_plan(folder: Path) -> None:
    plans: list[str] = []

    def say(arguments: list[str], plan: str) -> tuple[int, Document | bytes]:
        plans.append(plan)
        return 0, {"baseline_bytes": 1, "loaded_bytes": 2, "peak_bytes": 3, "runs": 20}

    harness = harness_of(folder, FakePhone(say))
    settings = Settings(
        variant="cpu-fp32",
        session=SessionSettings(intra_op_num_threads=3, config={"a.b": "c"}),
        providers=[Provider(name="OtherExecutionProvider", options={"d": "e"})],
    )
    harness.memory("cpu-fp32")
    replace(harness, session=settings.override).memory("cpu-fp32")
    lines = ["threads 3", "config a.b c", "provider OtherExecutionProvider", "option d e"]
    assert [line in plans[0].splitlines() for line in lines] == [False] * 4
    assert [line in plans[1].splitlines() for line in lines] == [True] * 4


def test_joined_samples_are_refused(folder: Path) -> None:
    preset = find_preset("smoke").with_scenario(make_scenario("offline", max_batch=4))
    with pytest.raises(UsageError, match="joins no samples"):
        harness_of(folder, FakePhone(near)).measure_argv("cpu-fp32", preset)


def test_queries_of_server_arrive_as_the_python_harness_draws_them(folder: Path) -> None:
    server = make_scenario("server", queries_per_s=100.0, latency_bound_ms=50.0)
    preset = find_preset("smoke").with_scenario(server)
    plan = add_schedule(Plan("fetch y\n"), "work", [5, 1 << 40])
    assert plan.text.splitlines()[-1] == "schedule work/schedule.bin"
    assert np.frombuffer(plan.files["work/schedule.bin"], "<i8").tolist() == [5, 1 << 40]
    arguments = harness_of(folder, FakePhone(near)).measure_argv("cpu-fp32", preset)
    assert arguments[arguments.index("--scenario") + 1] == "server"


def test_model_with_a_state_is_refused_another_scenario(folder: Path) -> None:
    harness = harness_of(folder, FakePhone(near))
    harness.bundle.manifest.state["y"] = "x"
    preset = find_preset("smoke").with_scenario(make_scenario("multi-stream"))
    with pytest.raises(UsageError, match="is a single stream, not multi-stream"):
        harness.measure("cpu-fp32", preset)
