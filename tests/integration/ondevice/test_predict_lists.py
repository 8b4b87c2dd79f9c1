"""Lists of pictures and texts: as one by one, joined where the model takes it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime as ort
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
    infer = model.infer

    def counted(feed: dict[str, np.ndarray]) -> Any:
        batches.append(len(next(iter(feed.values()))))
        return infer(feed)

    model.infer = counted
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
    require_same(model.predict(given), alone)  # proves batches
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
    require_same(model.predict(arrays), alone)
    batches = count_runs(model)
    require_same(model.predict(arrays), alone)
    assert batches == [1, 1, 1, 1]  # what was wrong once is not tried again


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
    require_same(model.predict(arrays), alone)
    batches = count_runs(model)
    require_same(model.predict(arrays), alone)
    assert batches == expected


def test_list_of_a_stream_or_of_int8_dynamic_runs_one_by_one(
    tmp_path: Path, loader: ModuleType
) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle")
    change_manifest(bundle, lambda m: m["variants"][1].update(recipe="int8-dynamic"))
    array = np.zeros((1, 3, 8, 8), np.float32)
    assert not loader.load(bundle, "cpu-fp32").joining.is_proven({"x": array}, 2)
    model = loader.load(bundle, "cpu-int8-static")
    assert model.joining.is_proven({"x": array}, 2)
    model.bundle.manifest["state"] = {"y": "x"}
    assert not model.joining.is_proven({"x": array}, 2)
    assert "has a state" in model.joining.explain_fixed()


def draw(count: int) -> list[np.ndarray]:
    return [
        np.random.default_rng(n).standard_normal((1, 3, 8, 8)).astype(np.float32)
        for n in range(count)
    ]


def save_selecting(path: Path, size: int) -> object:
    """Save a model that gives a row for each sample whose mean is not below -1."""
    node = helper.make_node
    weights = np.random.default_rng(7).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [
        node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        node("ReduceMean", ["x"], ["mean"], "mean", axes=[1, 2, 3], keepdims=0),
        node("Greater", ["mean", "least"], ["found"], "found"),
        node("Compress", ["c", "found"], ["y"], "select", axis=0),
    ]
    value = ("x", FLOAT, ["n", 3, size, size]), ("y", FLOAT, ["k", 4, size, size])
    constants = [("w", weights), ("least", np.float32(-1))]
    return tiny_models.save(path, nodes, value[:1], value[1:], constants)


@pytest.mark.parametrize("name", ["k", "?"])
def test_list_when_an_output_has_as_many_rows_as_the_data_asks_for_runs_one_by_one(
    tmp_path: Path, loader: ModuleType, name: str
) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle", save=save_selecting)
    change_manifest(bundle, lambda manifest: manifest["outputs"][0]["shape"].__setitem__(0, name))
    model = loader.load(bundle, "cpu-fp32")
    given = draw(4)
    given[1] -= 5  # no row
    alone = [model.predict(each) for each in given]
    assert [len(each["y"]) for each in alone] == [1, 0, 1, 1]
    require_same(model.predict(given), alone)
    assert "nothing tells which part of it" in model.joining.explain_fixed()


def save_reversing(path: Path, size: int) -> object:
    """Save a model that gives the samples of a batch each other's answers."""
    node = helper.make_node
    weights = np.random.default_rng(7).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [
        node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        node("Slice", ["c", "last", "before", "axis", "back"], ["y"], "reverse"),
    ]
    back = [("last", [-1]), ("before", [-(1 << 30)]), ("axis", [0]), ("back", [-1])]
    constants = [("w", weights), *((name, np.array(at, np.int64)) for name, at in back)]
    value = ("x", FLOAT, ["n", 3, size, size]), ("y", FLOAT, ["n", 4, size, size])
    return tiny_models.save(path, nodes, value[:1], value[1:], constants)


def write_one_golden(folder: Path, save: Any, picture: np.ndarray, needed_db: float) -> Path:
    """Write a tiny bundle whose only golden sample is a picture."""
    bundle = write_tiny_bundle(folder, size=picture.shape[-1], save=save)
    session = ort.InferenceSession(bundle / "models/cpu-fp32.onnx")
    (bundle / "golden/0-x.bin").write_bytes(picture.tobytes())
    (bundle / "golden/0-y.bin").write_bytes(session.run(["y"], {"x": picture})[0].tobytes())

    def keep_one(manifest: dict[str, Any]) -> None:
        del manifest["goldens"][1:]
        for entry in manifest["variants"]:
            entry["min_sqnr_db"] = needed_db

    change_manifest(bundle, keep_one)
    return bundle


def test_list_when_the_only_golden_sample_is_smooth_finds_a_graph_that_reverses_the_batch(
    tmp_path: Path, loader: ModuleType
) -> None:
    """Moved by one place, a smooth picture would be near itself."""
    wave = 3 + np.sin(2 * np.pi * np.arange(64) / 64)
    smooth = np.broadcast_to(wave, (1, 3, 64, 64)).astype(np.float32)
    for name, save, joins in (("wrong", save_reversing, False), ("right", None, True)):
        model = loader.load(write_one_golden(tmp_path / name, save, smooth, 20), "cpu-fp32")
        assert model.joining.are_told_apart
        assert model.joining.is_proven({"x": smooth}, 2) is joins
        given = [smooth, 2 - smooth]
        require_same(model.predict(given), [model.predict(each) for each in given])


def test_list_when_golden_samples_cannot_be_told_apart_runs_one_by_one(
    tmp_path: Path, loader: ModuleType
) -> None:
    plain = np.ones((1, 3, 8, 8), np.float32)
    bundle = write_one_golden(tmp_path / "bundle", save_reversing, plain, 5)
    model = loader.load(bundle, "cpu-fp32")
    assert not model.joining.are_told_apart
    given = draw(3)
    require_same(model.predict(given), [model.predict(each) for each in given])
    with pytest.raises(Exception, match="too near to each other to tell them apart"):
        model.joining.prove(2, 0)


@pytest.mark.parametrize("wrong", [2, 4])
def test_list_when_the_model_of_one_size_mixes_samples_uses_no_batch_that_was_not_proven(
    tmp_path: Path, loader: ModuleType, wrong: int
) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle")
    mixing = bundle / "models/mixing.onnx"
    save_mixing(mixing, 8)

    def change(manifest: dict[str, Any]) -> None:
        with_buckets(manifest, 1, 2, 4, exact=True)
        for entry in manifest["variants"]:
            for bucket in entry["buckets"]:
                if bucket["dims"]["n"] == wrong:
                    digest = hashlib.sha256(mixing.read_bytes()).hexdigest()
                    bucket.update(model="models/mixing.onnx", model_sha256=digest)

    change_manifest(bundle, change)
    model = loader.load(bundle, "cpu-fp32")
    given = draw(6)
    require_same(model.predict(given), [model.predict(each) for each in given])
    assert not model.joining.is_proven({"x": given[0]}, wrong)


def test_list_counts_each_input_outside_and_none_of_the_proof(
    tmp_path: Path, loader: ModuleType
) -> None:
    bundle = write_tiny_bundle(tmp_path / "bundle")

    def change(manifest: dict[str, Any]) -> None:
        for entry in manifest["variants"]:
            entry["input_ranges"] = {"x": [-1.0, 1.0]}

    change_manifest(bundle, change)
    model = loader.load(bundle, "cpu-fp32")
    model.counts_outside = True
    given = [0.01 * draw(1)[0], *draw(3)]
    model.predict(given)
    assert model.joining.is_proven({"x": given[0]}, 4)
    assert model.outside == {"x": 3}
