"""Process runs in a browser, whose page is played here: what becomes of its answers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from edgepack.base.schema import NotMeasured
from edgepack.devices.frames import encode
from edgepack.devices.inventory import BrowserEntry, Device
from edgepack.errors import RemoteCommandError, TooSlowError
from edgepack.measure.browsers.browsers import answer_samples
from edgepack.measure.browsers.documents import Described, Gpu, Opened, Timed
from edgepack.measure.browsers.harness import BrowserHarness
from edgepack.measure.browsers.pages import Page, Pages
from edgepack.measure.evaluate import evaluate as evaluate_module
from edgepack.records.presets import Preset
from edgepack.records.run import HIDDEN, DeviceFacts, Invalid, Selection
from edgepack.records.verdict import judge

MS = 1_000_000
PRESET = Preset(
    "brief", runs=1, duration_s=1, iterations=5, warm_up_s=0.1, window_s=0.1, warm_up_cap_s=60
)
EVENTS: list[dict[str, Any]] = [
    {"cat": "Node", "name": "conv_kernel_time", "dur": 10, "ts": 1, "ph": "X", "args": {
        "node_index": "0", "op_name": "Conv", "provider": "CPUExecutionProvider"}},
    {"cat": "Session", "name": "model_run", "dur": 12, "ts": 1, "ph": "X", "args": {}},
]  # fmt: skip


@dataclass
class PlayedPage(Page):
    """A page whose inferences take as long as it is told."""

    site: Any = field(default_factory=lambda: SimpleNamespace(was_hidden=False, name="page"))
    chromium: None = None
    gpu: Gpu = field(default_factory=Gpu)
    latencies_ns: Sequence[int] = (MS,) * 10
    tick_ns: int = 5_000
    hides: bool = False
    now_ns: int = 0
    opened: list[str | None] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    events: list[Any] = field(default_factory=lambda: EVENTS)

    def __post_init__(self) -> None:
        self.site.forget_hidden = lambda: setattr(self.site, "was_hidden", False)

    def describe(self) -> Described:
        agent = "Mozilla/5.0 (X11; Linux x86_64) Chrome/156.0.0.0"
        return Described(
            user_agent=agent, cpu_count=4, isolated=True, tick_ns=self.tick_ns, gpu=self.gpu
        )

    def open(self, variant: str | None) -> Opened:
        self.opened.append(variant)
        return Opened(
            variant=variant or "webgpu-fp32",
            passed_over=[],
            notes=["one thread"],
            onnxruntime="1.30.0",
            threads=1,
            session_create_ns=7 * MS,
            first_inference_ns=2 * MS,
            golden_min_sqnr_db=90.0,
            tick_ns=self.tick_ns,
        )

    def time(self, duration_s: float, iterations: int, timeout_s: float) -> Timed:
        assert timeout_s > duration_s
        self.times.append(duration_s)
        self.site.was_hidden |= self.hides
        begin, self.now_ns = self.now_ns, self.now_ns + int(duration_s * 1e9)
        return Timed(latencies_ns=list(self.latencies_ns), from_ns=begin, to_ns=self.now_ns)

    def ask(self, command: Any, body: bytes = b"", *, timeout_s: float) -> tuple[bytes, bytes]:
        assert command["do"] == "profile"
        return json.dumps({"events": f"[\n{json.dumps(self.events)[1:-1]}\n]"}).encode(), b""


class PlayedPages(Pages):
    """Gives one page again and again."""

    def __init__(self, page: PlayedPage) -> None:
        super().__init__(page.site, BrowserEntry.model_validate(KEYS), lambda _: None)
        self.page = page

    @contextmanager
    def opened(self) -> Iterator[Page]:
        yield self.page


KEYS = {"transport": "browser", "target": "web", "open": "by hand"}


def make_harness(page: PlayedPage, notes: list[str] | None = None) -> BrowserHarness:
    def find_variant(variant: str) -> Any:
        first = "WebGpuExecutionProvider" if "webgpu" in variant else "CPUExecutionProvider"
        return SimpleNamespace(providers=[SimpleNamespace(name=first)])

    bundle: Any = SimpleNamespace(manifest=SimpleNamespace(find_variant=find_variant))
    host: Any = None
    device = Device("page", BrowserEntry.model_validate(KEYS))
    told = [] if notes is None else notes
    return BrowserHarness(PlayedPages(page), device, bundle, host, told.append)


@dataclass
class AnsweringPage(PlayedPage):
    """Answers samples, each after a while, and notes how many came together."""

    takes_s: float = 0.0
    answer: bytes = encode({"y": np.zeros(1, np.float32)})
    pieces: list[int] = field(default_factory=list)
    now_s: float = 0.0

    def run(self, samples: bytes, timeout_s: float) -> bytes:
        count = samples.count(b'"x"')
        self.pieces.append(count)
        self.now_s += count * self.takes_s
        assert count * self.takes_s < timeout_s
        return self.answer * count


@pytest.mark.parametrize(
    ("takes_s", "outputs", "pieces"),
    [
        (0.001, 1, [1, 8, 64, 512, 4096]),
        (1.0, 1, [1, 8, 10, 10, 10]),
        (20.0, 1, [1, 1, 1, 1, 1]),
        (0.001, 1 << 22, [1, 3, 3, 3, 3]),
    ],
)
def test_samples_when_slow_or_answered_at_length_are_sent_few_at_a_time(
    monkeypatch, takes_s, outputs, pieces
):
    answer = encode({"y": np.zeros(outputs, np.float32)})
    page = AnsweringPage(takes_s=takes_s, answer=answer)
    clock = SimpleNamespace(monotonic=lambda: page.now_s)
    monkeypatch.setattr("edgepack.measure.browsers.browsers.time", clock, raising=False)
    numbers = range(sum(pieces))
    answers = answer_samples(
        make_harness(page), lambda number: {"x": np.float32([number])}, numbers, None
    )
    assert sum(1 for _ in answers) == len(numbers)
    assert page.pieces == pieces


def test_samples_when_too_slow_have_no_hint_of_presets():
    def ask(*_: Any, **__: Any) -> Any:
        raise TooSlowError("slow", hint="take a shorter preset")

    page = PlayedPage()
    page.ask = ask  # type: ignore[method-assign]
    with pytest.raises(TooSlowError) as error:
        page.run(b"", 1.0)
    assert "preset" not in error.value.hint


@pytest.mark.parametrize("changed", ["os", "driver", "python"])
def test_evaluation_when_another_browser_opens_the_page_goes_on_with_no_answers(changed):
    bundle: Any = SimpleNamespace(digest="digest")
    materials: Any = SimpleNamespace(samples_sha256="samples")
    entry = BrowserEntry.model_validate(KEYS)

    def make_key(facts: DeviceFacts) -> Any:
        selection = Selection(variant="cpu-fp32", unused=[], device=facts)
        return evaluate_module._make_key(bundle, Device("page", entry), selection, materials)

    facts = make_harness(PlayedPage()).select("cpu-fp32").device
    assert make_key(facts) == make_key(facts.model_copy())
    assert make_key(facts) != make_key(facts.model_copy(update={changed: "another"}))


def test_run_when_steady_has_the_pages_times():
    run = make_harness(PlayedPage()).measure("cpu-fp32", PRESET)
    assert run.latencies_ns == [MS] * 10
    assert (run.steady, run.session_create_ns, run.first_inference_ns) == (True, 7 * MS, 2 * MS)
    # Three windows after the first ten inferences, of ten each, as the page answers ten.
    assert run.warm_up_iterations == 40
    assert run.timed_ns == 1_000 * MS
    assert run.golden_min_sqnr_db == 90.0
    assert isinstance(run.other_work, NotMeasured)


def test_run_when_on_a_gpu_warms_up_for_longer():
    page = PlayedPage()
    make_harness(page).measure("webgpu-fp32", PRESET)
    assert page.times[0] == 3.0


def test_run_when_never_steady_says_so():
    page = PlayedPage()
    numbers = itertools.count()

    def uneven(*_: Any) -> Timed:
        number = next(numbers)
        took = (1 + number % 2) * MS
        return Timed(latencies_ns=[took] * 10, from_ns=number * MS, to_ns=(number + 1) * MS)

    page.time = uneven  # type: ignore[method-assign]
    preset = Preset("brief", runs=1, duration_s=1, iterations=5, warm_up_cap_s=0.2)
    assert not make_harness(page).measure("cpu-fp32", preset).steady


def test_run_when_the_page_is_hidden_was_slowed_down():
    run = make_harness(PlayedPage(hides=True)).measure("cpu-fp32", PRESET)
    assert run.after.throttled_now == [HIDDEN]
    run = make_harness(PlayedPage()).measure("cpu-fp32", PRESET)
    assert isinstance(run.after.throttled_now, NotMeasured)


def test_run_when_the_clock_is_coarse_is_an_error():
    page = PlayedPage(tick_ns=MS // 5)
    with pytest.raises(RemoteCommandError, match="steps of 200 µs, which is too coarse") as error:
        make_harness(page).measure("cpu-fp32", PRESET)
    assert "cross-origin isolated" in error.value.hint


def test_run_when_there_are_too_many_inferences_is_an_error():
    page = PlayedPage(latencies_ns=[100_000] * 10)
    preset = Preset("long", runs=1, duration_s=1800, iterations=5, warm_up_s=0.1, window_s=0.1)
    with pytest.raises(RemoteCommandError, match="about 18000000 inferences, and 2000000"):
        make_harness(page).measure("cpu-fp32", preset)


@pytest.mark.parametrize(
    ("variant", "gpu", "emulated"),
    [
        ("webgpu-fp32", Gpu(name="google swiftshader"), True),
        ("webgpu-fp32", Gpu(name="amd"), False),
        ("cpu-fp32", Gpu(name="google swiftshader"), False),
    ],
)
def test_selection_when_a_program_is_the_gpu_is_emulated_where_it_computes(variant, gpu, emulated):
    notes: list[str] = []
    selection = make_harness(PlayedPage(gpu=gpu), notes).select(variant)
    assert selection.device.emulated is emulated
    assert selection.device.driver == str(gpu)
    assert (selection.variant, notes) == (variant, ["one thread"])
    assert selection.device.os == "Chrome 156 on Linux"
    assert isinstance(selection.device.cpu, NotMeasured)


def test_profile_when_printed_is_where_nodes_ran():
    placement = make_harness(PlayedPage()).profile("cpu-fp32")
    assert placement.runs == 1
    assert placement.counts == {"CPUExecutionProvider": 1}


def test_memory_when_nobody_sees_the_process_is_unknown():
    assert isinstance(make_harness(PlayedPage()).memory("cpu-fp32"), NotMeasured)


@pytest.mark.parametrize(
    ("page", "variant", "verdict", "why"),
    [
        (PlayedPage(), "cpu-fp32", "valid", ""),
        (PlayedPage(hides=True), "cpu-fp32", "invalid", "slowed down: the page was not to be seen"),
        (PlayedPage(gpu=Gpu(name="llvmpipe")), "webgpu-fp32", "inconclusive", "GPU is emulated"),
    ],
)
def test_verdict_when_all_is_well_is_valid(page, variant, verdict, why):
    provider = "WebGpuExecutionProvider" if "webgpu" in variant else "CPUExecutionProvider"
    entry: Any = SimpleNamespace(
        id=variant,
        backend="cpu",
        min_sqnr_db=30.0,
        providers=[SimpleNamespace(name=provider, options={})],
        session=SimpleNamespace(intra_op_num_threads=0),
        placement=0.5,
    )
    harness = make_harness(page)
    selection = harness.select(variant)
    runs = [harness.measure(variant, PRESET)]
    node = {**EVENTS[0]["args"], "provider": provider}
    page.events = [{**EVENTS[0], "args": node}]
    found = judge(selection, runs, harness.profile(variant), entry, PRESET)
    assert (found.kind, why in str(found)) == (verdict, True)
    assert not page.hides or (isinstance(found, Invalid) and found.cause == "hidden")
