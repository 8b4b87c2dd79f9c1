"""Models of trees: only CPUs run them, and no recipe makes them smaller."""

from __future__ import annotations

import numpy as np
import pytest
from edgepack.builder.build import build
from edgepack.bundle.reading import verify

from tests.support.nets.tree_nets import leaf, split, write_trees

TREE = [split("BRANCH_LEQ", 0, 0.5), leaf(1), split("BRANCH_LEQ", 1, 0, 3, 4), leaf(2), leaf(0)]


@pytest.fixture
def project(tmp_path):
    write_trees(tmp_path, [TREE], op="TreeEnsembleClassifier")
    rows = np.random.default_rng(3).normal(size=(40, 1, 3)).astype(np.float32)
    left, down = rows[:, 0, 0] <= 0.5, rows[:, 0, 1] <= 0
    right = np.where(left, 1, np.where(down, 2, 0))
    right[:4] = (right[:4] + 1) % 3
    np.savez(tmp_path / "s.npz", x=rows, labels=right)
    path = tmp_path / "edgepack.yaml"
    path.write_text(
        "schema_version: 1\nname: trees\nmodel: model.onnx\nsamples:\n"
        "  evaluation: {path: s.npz, labels: labels, metric: top1}\n"
        "targets: [raspberry-pi, jetson, ios, android]\n"
    )
    return path


def test_bundles_of_trees_have_the_cpu_alone_and_say_why(project, tmp_path):
    result = build(project=project, out=tmp_path / "dist")
    result.require_all()
    assert len(result.bundles) == 4
    for built in result.bundles:
        manifest = verify(built.bundle.path).manifest
        [variant] = manifest.variants
        assert (variant.backend, variant.recipe) == ("cpu", "fp32")
        assert (variant.accuracy.metric, variant.accuracy.value) == ("top1", 0.9)
        unused = {each.variant: each for each in result.unused[manifest.target]}
        assert unused
        for name, each in unused.items():
            assert each.stage == "refused"
            wanted = "float32" if "fp32" not in name else "TreeEnsembleClassifier"
            assert wanted in each.reason
            assert "samples" not in each.hint
