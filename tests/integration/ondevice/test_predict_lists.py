"""Lists of pictures and texts: as one by one, joined where the model takes it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from edgepack.builder.build import build
from onnx import TensorProto, helper

from tests.integration.ondevice.test_predict import FILES, INPUTS, OUTPUTS, write_project
from tests.support.nets import tiny_models
from tests.support.reports.tiny_bundle import change_manifest, import_loader, write_tiny_bundle

FLOAT = TensorProto.FLOAT


@pytest.fixture(scope="module")
def loader() -> ModuleType:
    return import_loader()


def build_bundle(folder: Path, *dims: str) -> Path:
    """A detector, a classifier and vectors in one model, of pictures and texts."""
    folder.mkdir()
    project = write_project(folder, FILES, INPUTS, OUTPUTS)
    text = project.read_text().replace("dims: {batch: 1}", "\n".join(dims))
    project.write_text(text)
    return build(project=project, out=folder / "dist").bundles[0].bundle.path


@pytest.fixture(scope="module")
def free(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_bundle(tmp_path_factory.mktemp("lists") / "free")


def give(count: int) -> list[dict[str, Any]]:
    """Pictures of other sizes, and texts of which each third is longer."""
    rng = np.random.default_rng(5)
    return [
        {
            "picture": rng.integers(0, 256, (20 + 7 * n, 90 - 9 * n, 3), np.uint8),
            "input_ids": "the foxes the" if n % 3 == 2 else "the fox",
        }
        for n in range(count)
    ]


def count_runs(model: Any) -> list[int]:
    """The batch of each run from now on."""
    batches: list[int] = []
    run = model.run

    def counted(feed: dict[str, np.ndarray]) -> Any:
        batches.append(len(next(iter(feed.values()))))
        return run(feed)

    model.run = counted
    return batches


def require_same(found: list[dict[str, Any]], alone: list[dict[str, Any]]) -> None:
    assert len(found) == len(alone)
    for one, other in zip(found, alone, strict=True):
        assert one.keys() == other.keys()
        for name, answer in one.items():
            if isinstance(answer, np.ndarray):
                np.testing.assert_allclose(answer, other[name], rtol=1e-5, atol=1e-6)
                continue
            assert [(each.index, each.label) for each in answer] == [
                (each.index, each.label) for each in other[name]
            ]
            for mine, theirs in zip(answer, other[name], strict=True):
                assert mine.score == pytest.approx(theirs.score, rel=1e-5)
                if hasattr(mine, "box"):
                    assert mine.box == pytest.approx(theirs.box)


def test_list_is_joined_where_shapes_are_the_same_and_answers_are_each_pictures_own(
    free: Path, loader: ModuleType
) -> None:
    given = give(6)
    model = loader.load(free)
    alone = [model.predict(each) for each in given]
    boxes = [answers["boxes"][0].box for answers in alone]
    assert len({tuple(box) for box in boxes}) == 6  # in the pixels of each picture
    assert len({tuple(c.score for c in answers["colours"]) for answers in alone}) == 6
    assert model.joining.output_axes == {"boxes": 0, "colours": 0, "hidden": 0}
    batches = count_runs(model)
    require_same(model.predict(given), alone)
    assert batches == [2, 1, 2, 1]  # each third text is longer
    batches.clear()
    require_same(model.predict(tuple(given), max_batch=1), alone)
    assert batches == [1] * 6
    assert model.predict([]) == []


def test_list_when_the_batch_is_fixed_runs_one_by_one(tmp_path: Path, loader: ModuleType) -> None:
    model = loader.load(build_bundle(tmp_path / "fixed", "dims: {batch: 1}"))
    given = give(4)
    alone = [model.predict(each) for each in given]
    batches = count_runs(model)
    require_same(model.predict(given), alone)
    assert batches == [1, 1, 1, 1]


def test_list_when_one_is_wrong_says_which(free: Path, loader: ModuleType) -> None:
    model, given = loader.load(free), give(3)
    given[1]["picture"] = np.zeros((3, 8, 8), np.float32)
    with pytest.raises(ValueError, match=r"number 1 of the list: .*expected uint8"):
        model.predict(given)
    given[1]["picture"], given[1]["input_ids"] = given[0]["picture"], 7
    with pytest.raises(TypeError, match=r"number 1 of the list: .* is a text, not a int"):
        model.predict(given)


def save_mixing(path: Path, size: int) -> object:
    """Save a model whose samples are right alone: it takes the batch's mean from each, but once."""
    node = helper.make_node
    weights = np.random.default_rng(7).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [
        node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        node("ReduceMean", ["c"], ["mean"], "mean", axes=[0], keepdims=1),
        node("Add", ["c", "mean"], ["y"], "mix"),
    ]
    value = ("x", FLOAT, ["n", 3, size, size]), ("y", FLOAT, ["n", 4, size, size])
    return tiny_models.save(path, nodes, value[:1], value[1:], [("w", weights)])


@pytest.mark.parametrize("goldens", [2, 1])
def test_list_when_the_graph_mixes_samples_runs_one_by_one(
    tmp_path: Path, loader: ModuleType, goldens: int
) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle", save=save_mixing)
    change_manifest(bundle, lambda manifest: manifest.update(goldens=manifest["goldens"][:goldens]))
    model = loader.load(bundle, "cpu-fp32")
    arrays = [np.random.default_rng(n).standard_normal((1, 3, 8, 8)).astype("f4") for n in range(4)]
    alone = [model.predict(each) for each in arrays]
    assert model.joining.output_axes == {}
    batches = count_runs(model)
    require_same(model.predict(arrays), alone)
    assert batches == [1, 1, 1, 1]
    right = loader.load(write_tiny_bundle(tmp_path / "right"), "cpu-fp32")
    assert right.joining.output_axes == {"y": 0}


def with_buckets(manifest: dict[str, Any], *sizes: int, exact: bool = False) -> None:
    for entry in manifest["variants"]:
        file = {"model": entry["model"], "model_sha256": entry["model_sha256"]}
        entry["buckets"] = [{"dims": {"n": size}, **file} for size in sizes]
        entry["slices"] = [{"output": "y", "axis": 0, "dim": "n"}]
        entry["exact"] = exact


@pytest.mark.parametrize(
    ("sizes", "exact", "expected"),
    [
        ((1,), False, [1] * 7),
        ((1, 4), False, [4, 3]),
        ((1, 2, 4), True, [4, 2, 1]),
    ],
)
def test_list_when_there_are_sizes_takes_the_batches_that_they_hold(
    tmp_path: Path, loader: ModuleType, sizes: tuple[int, ...], expected: list[int], *, exact: bool
) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle")
    change_manifest(bundle, lambda manifest: with_buckets(manifest, *sizes, exact=exact))
    model = loader.load(bundle, "cpu-fp32")
    arrays = [np.random.default_rng(n).standard_normal((1, 3, 8, 8)).astype("f4") for n in range(7)]
    alone = [model.predict(each) for each in arrays]
    assert bool(model.joining.output_axes) == (len(sizes) > 1)
    batches = count_runs(model)
    require_same(model.predict(arrays), alone)
    assert batches == expected


def test_list_of_a_stream_or_of_int8_dynamic_runs_one_by_one(
    tmp_path: Path, loader: ModuleType
) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle")
    change_manifest(bundle, lambda m: m["variants"][1].update(recipe="int8-dynamic"))
    assert loader.load(bundle, "cpu-fp32").joining.output_axes == {}
    model = loader.load(bundle, "cpu-int8-static")
    assert model.joining.output_axes == {"y": 0}
    model.bundle.manifest["state"] = {"y": "x"}
    del model.joining.__dict__["output_axes"]
    assert model.joining.output_axes == {}
    assert "has a state" in model.joining.explain_fixed()
