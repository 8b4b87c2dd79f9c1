"""Bundles whose pictures are resized as a training's library does it, by loader or model."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from edgepack.builder.build import build
from edgepack.model.running import make_session
from PIL import Image

from tests.support.nets.tiny_models import conv_net
from tests.support.reports.tiny_bundle import import_loader

PROJECT = """\
schema_version: 1
name: net
model: net.onnx
inputs: {{image: {{image: {{resize: {{width: 8, height: 8, filter: {filter}}}, scale: 0.0039}}}}}}
preprocess: {{in_graph: {in_graph}}}
samples: {{calibration: {{images: photos}}}}
targets: [{{id: host, variants: [{{backend: cpu, recipe: fp32}}]}}]
"""


def noise(width, height):
    return np.random.default_rng(width).integers(0, 256, (height, width, 3)).astype(np.uint8)


@pytest.mark.parametrize("in_graph", ["false", "true"])
@pytest.mark.parametrize("filter_", ["cv2-linear", "tf-bilinear"])
def test_predict_when_a_filter_is_named_is_fed_by_it(tmp_path, filter_, in_graph):
    conv_net(tmp_path / "net.onnx")
    (tmp_path / "photos").mkdir()
    for size in ((30, 20), (9, 40)):
        Image.fromarray(noise(*size)).save(tmp_path / "photos" / f"{size[0]}.png")
    (tmp_path / "edgepack.yaml").write_text(PROJECT.format(filter=filter_, in_graph=in_graph))
    built = build(project=tmp_path / "edgepack.yaml", out=tmp_path / "dist")
    built.require_all()
    model = import_loader().load(built.bundles[0].bundle.path)
    session = make_session(tmp_path / "net.onnx")
    for size in ((61, 33), (8, 8), (3, 17)):
        pixels = noise(*size)
        # OpenCV on floats is what TensorFlow does.
        given = pixels if filter_ == "cv2-linear" else pixels.astype(np.float32)
        scaled = cv2.resize(given, (8, 8), interpolation=cv2.INTER_LINEAR).astype(np.float32)
        tensor = np.ascontiguousarray(scaled.transpose(2, 0, 1)[None] * np.float32(0.0039))
        [expected] = session.run(None, {"image": tensor})
        [found] = model.predict(pixels).values()
        assert np.allclose(found, expected, atol=1e-4)
