"""``optimized: true`` ships the graph as onnxruntime optimizes it, proven as a loader opens it."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx
import pytest
from edgepack.builder.build import build
from edgepack.bundle.reading import Bundle, load_bundle
from edgepack.project.profile import OrtFormat
from edgepack.steps.graph.ort_file import find_kernels
from onnx import numpy_helper

from tests.support.nets import tiny_models
from tests.support.reports.tiny_bundle import import_loader

VARIANTS = """\
targets:
  - id: linux-x86-64
    variants:
      - {backend: cpu, recipe: fp32, optimized: true}
      - {backend: cpu, recipe: fp32, id: cpu-fp32-plain}
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("optimized")
    project = tiny_models.write_project(folder, VARIANTS)
    return build(project=project, out=folder / "dist").bundles[0].bundle


def test_variant_when_optimized_has_the_graph_that_onnxruntime_makes(bundle: Bundle):
    optimized, plain = load_bundle(bundle.path).manifest.variants
    assert optimized.model_format == OrtFormat(ort="fixed", platform="amd64")
    assert plain.model_format == "onnx"
    operators = {name for _, _, name in find_kernels((bundle.path / optimized.model).read_bytes())}
    # Conv, BatchNormalization and Relu are one operator of onnxruntime's own.
    assert "FusedConv" in operators
    assert not operators & {"BatchNormalization", "Relu"}


def test_goldens_of_an_optimized_variant_tell_when_its_file_computes_something_else(
    bundle: Bundle, tmp_path: Path
):
    loader = import_loader()
    model = loader.load(bundle.path)
    assert model.variant == "cpu-fp32"
    assert model.golden_sqnr_db >= bundle.manifest.variants[0].min_sqnr_db
    folder = tmp_path / "copy"
    shutil.copytree(bundle.path, folder)
    file = folder / bundle.manifest.variants[0].model
    net = onnx.load(str(bundle.path.parent.parent / "net.onnx"))
    [bias] = [numpy_helper.to_array(each) for each in net.graph.initializer if each.name == "b2"]
    data = file.read_bytes()
    assert data.count(bias.tobytes()) == 1
    file.write_bytes(data.replace(bias.tobytes(), (bias + 1).tobytes()))
    assert loader.load(folder).variant == "cpu-fp32-plain"
