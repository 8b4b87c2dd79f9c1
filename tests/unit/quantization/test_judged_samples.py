"""Which of the held-out samples places are judged on."""

from __future__ import annotations

from dataclasses import dataclass

from edgepack.model.reading import write_model
from edgepack.quantization.search.closeness import Chosen, FloatOutputs, HeldOut
from edgepack.quantization.search.making import JudgingMaker, QdqMaker, QdqSettings
from edgepack.quantization.search.scheme import Scheme

from tests.support.nets import int8_nets
from tests.support.nets.equalization_nets import Net, images

SAMPLES = 16


@dataclass
class Samples:
    """As much of a sample set as a judge reads."""

    feeds: list

    def read_inputs(self, index):
        return self.feeds[index]


def test_places_when_the_first_samples_are_dark_are_judged_on_others_too(tmp_path):
    model = Net().conv("x", "a", (4, 3, 1, 1), bias=0).conv("a", "y", (4, 4, 1, 1), bias=0)
    model = model.model("y")
    write_model(model, tmp_path / "float.onnx")
    feeds = images(SAMPLES)
    for feed in feeds[: SAMPLES // 2]:
        feed["x"][:] = 0
    chosen = Chosen(Samples(feeds), tuple(range(SAMPLES)))
    held_out = HeldOut(FloatOutputs(tmp_path / "float.onnx", chosen))
    maker = JudgingMaker(QdqMaker(QdqSettings(int8_nets.CPU), tmp_path), held_out, lambda s: s)
    ranges = dict.fromkeys("xay", (-5.0, 5.0))
    trial = maker.make(Scheme(model, model, ranges))
    assert trial is not None
    found = maker.measure_costs(trial)
    assert {each.places for each in found.tensors} == {("x",), ("a",), ("y",)}
    assert all(each.cost > 0 for each in (*found.tensors, *found.nodes))
