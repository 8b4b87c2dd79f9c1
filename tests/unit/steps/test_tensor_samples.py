"""The tensors that are made of pictures keep what is known of the pictures."""

from __future__ import annotations

import numpy as np
from edgepack.model.facts import TensorSpec
from edgepack.ondevice.runtime.edgepack_images import find_placement
from edgepack.project.inputs import ImageInput
from edgepack.samples.sample_set import SampleSet, write_sample_set
from edgepack.steps.in_graph.picture_samples import TensorSamples


def test_tensors_of_pictures_have_their_labels_and_places(tmp_path):
    image = ImageInput.model_validate({"resize": {"letterbox": 8}})
    places = [find_placement(width, 4, {"letterbox": 8}) for width in (4, 16)]
    pictures = [np.zeros((4, place.picture_width, 3), np.uint8) for place in places]
    labels = np.array([[[0, 0, 0, 4, 4]], [[1, 0, 0, 16, 4]]], np.float64)
    given, out = tmp_path / "given", tmp_path / "out"
    for folder in (given, out):
        folder.mkdir()
    samples = [(str(n), {"x": picture}) for n, picture in enumerate(pictures)]
    spec = TensorSpec("x", "uint8", ("height", "width", 3))
    write_sample_set(given, [spec], samples, labels, places=places)
    step = TensorSamples((TensorSpec("x", "float32", (1, 3, 8, 8)),), (("x", image),))
    step.run({"samples": given}, out)
    made = SampleSet.read(out)
    assert made.places == tuple(places)
    assert made.labels is not None
    assert np.array_equal(made.labels, labels)
