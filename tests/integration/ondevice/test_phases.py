"""What a call of ``predict`` takes, phase by phase: the harness of real bundles, in processes."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from edgepack.base.schema import NotMeasured
from edgepack.base.statistics import median
from edgepack.builder.build import build
from edgepack.bundle.reading import load_bundle
from edgepack.devices.harness import PHASES, Harness
from edgepack.devices.inventory import Device, LocalEntry
from edgepack.devices.transports import connect
from edgepack.errors import RemoteCommandError
from edgepack.measure.bench.assemble import Measurements, Question
from edgepack.measure.bench.measuring import OLDER_BUNDLE, Subject, measure_phases
from edgepack.records.presets import Preset, find_preset
from edgepack.records.run import Phases, Selection

from tests.integration.ondevice.test_predict import FILES, INPUTS, OUTPUTS, write_project
from tests.support.reports.example_report import example_facts
from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle

HERE = Device("here", LocalEntry(transport="local", target="linux-x86-64", python=sys.executable))
SMOKE = find_preset("smoke")
IMAGE = {
    "resize": {"width": 8, "height": 8},
    "order": "RGB",
    "scale": 0.00784314,
    "mean": [1.0, 1.0, 1.0],
    "std": [],
    "layout": "NCHW",
}
VECTOR = {"kind": "embedding", "pooling": "none", "mask": None, "normalize": False}
SLEEP_S = 0.15
SLOW = f"""
def _slow(real):
    def slow(*given, **named):
        __import__("time").sleep({SLEEP_S})
        return real(*given, **named)
    return slow
"""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A picture to a vector."""

    def describe(manifest: dict[str, Any]) -> None:
        manifest["input_descriptions"] = {"x": {"image": IMAGE}}
        manifest["output_descriptions"] = {"y": VECTOR}

    made = write_tiny_bundle(tmp_path / "bundle")
    change_manifest(made, describe)
    return made


@pytest.fixture
def harness(bundle: Path) -> Iterator[Harness]:
    with connect(HERE) as transport:
        yield Harness(transport, PurePosixPath(bundle), sys.executable, load_timeout_s=60)


def timed(harness: Harness) -> Phases:
    found = harness.phases("cpu-fp32", SMOKE)
    assert isinstance(found, Phases), found
    return found


def add(path: Path, source: str) -> None:
    path.write_text(f"{path.read_text()}\n{source}")


def find_medians_s(found: Phases) -> dict[str, float]:
    medians = {n: median(ns) / 1e9 for n, ns in found.parts.items() if isinstance(ns, list)}
    return {**medians, "predict": median(found.predict_ns) / 1e9}


def test_phases_are_those_of_pictures_texts_and_answers(tmp_path: Path) -> None:
    project = write_project(tmp_path, FILES, INPUTS, OUTPUTS)
    built = build(project=project, out=tmp_path / "dist").bundles[0].bundle.path
    with connect(HERE) as transport:
        found = timed(Harness(transport, PurePosixPath(built), sys.executable))
    given = r"a text of \d+ characters, a picture of 1280 x 720 \(JPEG of \d+ kB\)"
    assert re.fullmatch(given, found.given)
    assert found.found == "boxes: 2, colours: 2"
    copies = (found.copy_in_ns, found.copy_out_ns)
    assert all(isinstance(each, NotMeasured) for each in copies)
    lists = [each for each in found.parts.values() if isinstance(each, list)]
    assert len(lists) == 4
    assert {len(each) for each in lists} == {len(found.predict_ns)}
    assert min(map(min, lists)) > 0


@pytest.mark.parametrize(
    ("file", "source", "phase"),
    [
        ("edgepack_images.py", "make_tensor = _slow(make_tensor)", "preprocessing"),
        ("edgepack_answers.py", "make_answer = _slow(make_answer)", "answers"),
        ("edgepack_loader.py", "Model.run = _slow(Model.run)", "run"),
        ("harness/edgepack_phases.py", "_decode = _slow(_decode)", "decode"),
    ],
)
def test_phase_that_is_slow_is_slow_in_predict_and_in_no_other(
    harness: Harness, bundle: Path, file: str, source: str, phase: str
) -> None:
    add(bundle / file, SLOW + source)
    medians_s = find_medians_s(timed(harness))
    expected = {phase} if phase == "decode" else {phase, "predict"}
    assert {name for name, each_s in medians_s.items() if each_s >= SLEEP_S} == expected


def test_phases_of_tensors_are_timed_without_a_picture(tmp_path: Path) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle")
    with connect(HERE) as transport:
        found = timed(Harness(transport, PurePosixPath(bundle), sys.executable))
    assert (found.given, found.found) == ("tensors", "")
    assert found.decode_ns == NotMeasured(reason="no input is a picture")
    medians_s = find_medians_s(found)
    assert set(medians_s) == {"preprocessing", "run", "answers", "predict"}


def test_phases_where_pillow_is_not_installed_are_those_of_a_decoded_picture(
    harness: Harness, bundle: Path
) -> None:
    (bundle / "harness/PIL.py").write_text("raise ImportError('not here')\n")
    found = timed(harness)
    assert found.given == "a picture of 1280 x 720"
    why = "there is no Pillow that reads JPEG: not here"
    assert found.decode_ns == NotMeasured(reason=why)
    assert isinstance(found.preprocess_ns, list)


def test_phases_when_the_model_has_a_memory_of_its_own_have_the_copies(
    harness: Harness, bundle: Path
) -> None:
    """Here it is the processor's, which takes copies as well."""
    source = "HOST = 'another'\nfind_memory = lambda _: 'cpu'\n"
    source += "Bound.write, Bound.read = _slow(Bound.write), _slow(Bound.read)\n"
    add(bundle / "edgepack_binding.py", SLOW + source)
    medians_s = find_medians_s(timed(harness))
    # The loader's predict takes other ways.
    slow = {name for name, each_s in medians_s.items() if each_s >= SLEEP_S}
    assert slow == {"copy in", "copy out"}


def test_phases_when_inputs_cannot_stay_on_the_device_have_the_copies_in_the_run(
    harness: Harness, bundle: Path
) -> None:
    add(bundle / "edgepack_binding.py", "find_memory = lambda _: 'cuda'\n")
    found = timed(harness)
    assert isinstance(found.copy_in_ns, NotMeasured)
    assert found.copy_in_ns.reason.startswith("the copies are in the run: ")
    assert found.copy_out_ns == found.copy_in_ns


def test_phases_when_predict_fails_say_why(harness: Harness, bundle: Path) -> None:
    def describe(manifest: dict[str, Any]) -> None:
        manifest["output_descriptions"] = {"y": {"kind": "classification", "top": 5}}

    change_manifest(bundle, describe)
    found = harness.phases("cpu-fp32", SMOKE)
    assert isinstance(found, NotMeasured)
    assert found.reason.startswith("no call of predict could be timed: the output is [1, 4, 8, 8]")


class Failing(Harness):
    """Its process crashes."""

    def phases(self, variant: str, preset: Preset) -> Phases | NotMeasured:
        raise RemoteCommandError(f"{variant} crashed", hint="")


@pytest.fixture
def make_subject(bundle: Path) -> Callable[[Harness], Subject]:
    opened = load_bundle(bundle)

    def make(harness: Harness) -> Subject:
        question = Question("here", opened.manifest, "0" * 64, None, SMOKE)
        selection = Selection(variant="cpu-fp32", unused=[], device=example_facts())
        return Subject(harness, question, Measurements(selection))

    return make


def test_bench_when_no_phases_can_be_timed_goes_on_with_the_reason(
    harness: Harness, make_subject: Callable[[Harness], Subject]
) -> None:
    failing = Failing(harness.transport, harness.release, sys.executable)
    subject = make_subject(failing)
    assert measure_phases(subject) == NotMeasured(reason="cpu-fp32 crashed")
    files = [file for file in subject.question.manifest.files if file.path != PHASES]
    older = subject.question.manifest.model_copy(update={"files": files})
    object.__setattr__(subject.question, "manifest", older)
    assert measure_phases(subject) is OLDER_BUNDLE
