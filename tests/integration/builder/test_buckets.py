"""Models with static shapes, one per size: what the builder makes and the loader does with them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnxruntime
import pytest
from edgepack.builder.build import BuildResult, build, dry_run
from edgepack.builder.inspect import inspect
from edgepack.builder.model_files import add_onnx
from edgepack.bundle.reading import verify
from edgepack.bundle.writing import BundleWriter
from edgepack.errors import EdgepackError, ModelError, ProfileError, StepError
from edgepack.model.facts import read_signature
from edgepack.project.profile import VariantChange, change_profile, load_profile
from edgepack.trying.verify import verify as verify_here
from onnx import TensorProto, helper

from tests.support.nets.tiny_models import save
from tests.support.reports.tiny_bundle import import_loader

WIDTH = 8
STATIC = "targets: [{id: host, variants: [{backend: cpu, recipe: fp32, shapes: static}]}]"
MASK = "inputs: {mask: {mask: sequence}}"
DIMS = "dims: {batch: [1, 3], sequence: [16, 4]}"


@pytest.fixture(scope="module")
def loader() -> ModuleType:
    return import_loader()


def attention(path: Path) -> Path:
    """``x`` and ``mask`` to ``hidden`` [batch, sequence, 8] and ``pooled``, blind to padding."""
    random = np.random.default_rng(3)
    shapes = {"wq": (8, 8), "wk": (8, 8), "wv": (8, 8), "w1": (8, 256), "w2": (256, 8)}
    weights = [(n, random.standard_normal(s).astype(np.float32) / 3) for n, s in shapes.items()]
    constants = [
        ("one", np.float32(1)),
        ("far", np.float32(-1e9)),
        ("axis1", np.array([1], np.int64)),
        ("axis2", np.array([2], np.int64)),
    ]
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "wq"], ["q"], "q"),
        node("MatMul", ["x", "wk"], ["k"], "k"),
        node("MatMul", ["x", "wv"], ["v"], "v"),
        node("Transpose", ["k"], ["kt"], "kt", perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["raw"], "raw"),
        node("Cast", ["mask"], ["kept"], "kept", to=TensorProto.FLOAT),
        node("Sub", ["one", "kept"], ["hidden_places"], "hide"),
        node("Mul", ["hidden_places", "far"], ["bias"], "bias"),
        node("Unsqueeze", ["bias", "axis1"], ["bias3"], "bias3"),
        node("Add", ["raw", "bias3"], ["masked"], "masked"),
        node("Softmax", ["masked"], ["probability"], "softmax", axis=-1),
        node("MatMul", ["probability", "v"], ["attended"], "attended"),
        node("MatMul", ["attended", "w1"], ["wide"], "wide"),
        node("Relu", ["wide"], ["relu"], "relu"),
        node("MatMul", ["relu", "w2"], ["hidden"], "narrow"),
        node("Unsqueeze", ["kept", "axis2"], ["kept3"], "kept3"),
        node("Mul", ["hidden", "kept3"], ["shown"], "shown"),
        node("ReduceSum", ["shown", "axis1"], ["sum"], "sum", keepdims=0),
        node("ReduceSum", ["kept", "axis1"], ["count"], "count", keepdims=1),
        node("Div", ["sum", "count"], ["pooled"], "pooled"),
    ]
    places = ["batch", "sequence"]
    return save(
        path,
        nodes,
        [("x", TensorProto.FLOAT, [*places, WIDTH]), ("mask", TensorProto.INT64, places)],
        [
            ("hidden", TensorProto.FLOAT, [*places, WIDTH]),
            ("pooled", TensorProto.FLOAT, ["batch", WIDTH]),
        ],
        [*weights, *constants],
    )


def mean_net(path: Path) -> Path:
    """The mean over a sequence, which padding changes."""
    nodes = [helper.make_node("ReduceMean", ["x"], ["y"], "mean", axes=[1], keepdims=0)]
    value = (TensorProto.FLOAT, ["batch", "sequence", 4])
    return save(path, nodes, [("x", *value)], [("y", TensorProto.FLOAT, ["batch", 4])])


def write(folder: Path, *lines: str, model: str = "net.onnx") -> Path:
    path = folder / "edgepack.yaml"
    path.write_text("\n".join(["schema_version: 1", "name: net", f"model: {model}", *lines]) + "\n")
    return path


def write_samples(folder: Path, *feeds: dict[str, np.ndarray]) -> str:
    """Write samples, which may have different sizes, and return the lines that name them."""
    for n, feed in enumerate(feeds):
        (folder / f"set_{n}").mkdir()
        for k, (name, array) in enumerate(feed.items()):
            tensor = onnx.numpy_helper.from_array(array, name)
            (folder / f"set_{n}" / f"input_{k}.pb").write_bytes(tensor.SerializeToString())
    return "samples: {evaluation: {test_data: 'set_*'}}"


def feed(batch: int, sequence: int, *, hidden: int = 0, seed: int = 0) -> dict[str, np.ndarray]:
    x = np.random.default_rng(seed).standard_normal((batch, sequence, WIDTH)).astype(np.float32)
    mask = np.ones((batch, sequence), np.int64)
    mask[:, sequence - hidden :] = 0
    return {"x": x, "mask": mask}


FEEDS = (feed(1, 5), feed(2, 16, hidden=3), feed(3, 2), feed(1, 4))


def built(folder: Path, *lines: str) -> BuildResult:
    result = build(project=write(folder, *lines), out=folder / "dist")
    result.require_all()
    return result


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("buckets")
    attention(folder / "net.onnx")
    [one] = built(folder, DIMS, MASK, STATIC, write_samples(folder, *FEEDS)).bundles
    return one.bundle.path


def test_variant_when_static_has_a_model_for_each_combination_smallest_first(bundle):
    [variant] = verify(bundle).manifest.variants
    sizes = [tuple(bucket.dims.values()) for bucket in variant.buckets]
    assert sizes == [(1, 4), (3, 4), (1, 16), (3, 16)]
    assert variant.model == variant.buckets[-1].model == "models/cpu-fp32.3x16.onnx"
    assert [(s.output, s.axis, s.dim) for s in variant.slices] == [
        ("hidden", 0, "batch"),
        ("pooled", 0, "batch"),
        ("hidden", 1, "sequence"),
    ]
    assert not variant.exact
    for bucket in variant.buckets:
        model = onnx.load(bundle / bucket.model)
        shapes = [spec.shape for specs in read_signature(model) for spec in specs]
        batch, sequence = bucket.dims.values()
        assert shapes == [
            (batch, sequence, 8),
            (batch, sequence),
            (batch, sequence, 8),
            (batch, 8),
        ]
        values = [value.type.tensor_type.shape.dim for value in model.graph.value_info]
        assert all(dim.HasField("dim_value") for dims in values for dim in dims)


def test_weights_when_buckets_share_them_are_on_disk_once(bundle):
    sizes = {p.name: p.stat().st_size for p in (bundle / "models").iterdir()}
    both_layers = 2 * 8 * 256 * 4
    assert sizes.pop("cpu-fp32.weights") == both_layers
    assert max(sizes.values()) < both_layers / 2


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_model_when_called_with_any_size_gives_the_dynamic_models_outputs(bundle, loader, batch):
    model = loader.load(bundle)
    dynamic = onnxruntime.InferenceSession(bundle.parents[1] / "net.onnx")
    for sequence in range(1, 17):
        inputs = feed(batch, sequence, hidden=sequence // 3, seed=sequence)
        outputs = model(inputs)
        for name, expected in zip(("hidden", "pooled"), dynamic.run(None, inputs), strict=True):
            assert outputs[name].shape == expected.shape
            assert loader.sqnr_db(expected, outputs[name]) > 100


def test_mask_when_left_out_is_made_by_the_loader(bundle, loader):
    model = loader.load(bundle)
    for sequence in (1, 3, 4, 11):
        inputs = feed(2, sequence, seed=sequence)
        alone = model(inputs["x"])
        np.testing.assert_array_equal(alone["hidden"], model(inputs)["hidden"])
        assert alone["hidden"].shape == (2, sequence, 8)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (feed(1, 17), "have batch 1, sequence 17, and this variant of the model takes sizes up to"),
        (feed(4, 2), "batch 1, sequence 4; batch 3, sequence 4; batch 1, sequence 16"),
        (
            {"x": feed(1, 5)["x"], "mask": feed(1, 4)["mask"]},
            "'sequence' is 5 in 'x' and 4 in 'mask'",
        ),
        ({"mask": feed(1, 4)["mask"]}, r"are \['mask'\], expected \['mask', 'x'\]"),
        ({"x": feed(1, 4)["x"][0]}, r"shape \[4, 8\], expected \['batch', 'sequence', 8\]"),
    ],
)
def test_model_when_sizes_do_not_fit_raises_value_error(bundle, loader, inputs, said):
    with pytest.raises(ValueError, match=said):
        loader.load(bundle)(inputs)


def test_bundle_when_verified_here_proves_its_goldens_in_each_bucket(bundle, loader):
    [check] = verify_here(bundle).goldens
    assert check.passed
    model = loader.load(bundle)
    assert len(model.sessions) == 4
    assert model.golden_sqnr_db > 100


def test_variant_when_one_bucket_is_wrong_is_refused(bundle, loader, tmp_path):
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(bundle, copy)
    path = copy / "models/cpu-fp32.3x16.onnx"
    model = onnx.load(path, load_external_data=False)
    [far] = [t for t in model.graph.initializer if t.name == "far"]
    far.CopyFrom(onnx.numpy_helper.from_array(np.float32(0), "far"))
    path.write_bytes(model.SerializeToString())
    with pytest.raises(
        loader.LoadError, match=r"for batch 3, sequence 16 is .* dB near the golden"
    ):
        loader.load(copy)


@pytest.mark.slow(reason="builds with several sizes")
@pytest.mark.parametrize("mode", ["measure", "memory", "profile", "select"])
def test_harness_when_a_variant_has_buckets_measures_it(bundle, mode):
    argv = [sys.executable, bundle / "harness/edgepack_harness.py", mode, "--bundle", bundle]
    argv += ["--variant", "cpu-fp32", "--duration-s", "0.05", "--iterations", "3"]
    argv += ["--warm-up-s", "0.01", "--warm-up-iterations", "1", "--warm-up-cap-s", "0.01"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    document = json.loads(done.stdout)
    if mode == "measure":
        assert document["golden_min_sqnr_db"] > 100
        assert len(document["latencies_ns"]) >= 3
    if mode == "profile":
        assert document["nodes"]


@pytest.mark.slow(reason="builds with several sizes")
def test_variants_when_several_have_buckets_do_not_clash_over_weights(tmp_path, loader):
    attention(tmp_path / "net.onnx")
    dialect = "{activations: uint8, weights: uint8, symmetric: false, per_channel: false}"
    given = (
        f"recipe: int8-dynamic, dialect: {dialect}, id: cpu-int8-dynamic-static, shapes: static",
        "recipe: fp32, id: cpu-fp32-static, shapes: static",
        "recipe: fp32, id: cpu-fp32-any",
    )
    variants = ", ".join(f"{{backend: cpu, {keys}}}" for keys in given)
    targets = f"targets: [{{id: linux-x86-64, variants: [{variants}]}}]"
    lines = ("dims: {batch: 1, sequence: [8, 16]}", MASK, targets)
    feeds = [feed(1, n, seed=n) for n in (16, 9, 3)]
    [one] = built(tmp_path, *lines, write_samples(tmp_path, *feeds)).bundles
    path = one.bundle.path
    verify(path)
    weights = sorted(p.name for p in (path / "models").glob("*.weights"))
    assert weights == ["cpu-fp32-static.weights", "cpu-int8-dynamic-static.weights"]
    dynamic = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    for variant in one.bundle.manifest.variants:
        model = loader.load(path, variant.id)
        assert len(model.sessions) == (1 if variant.id.endswith("any") else 2)
        found = model({"x": feed(1, 7)["x"]})["hidden"]
        expected = dynamic.run(["hidden"], feed(1, 7))[0]
        assert loader.sqnr_db(expected, found) > (20 if "int8" in variant.id else 100)


def test_external_data_when_two_variants_have_it_is_kept_apart(tmp_path):
    writer = BundleWriter(tmp_path / "bundle")
    found = {}
    for variant, scale in (("cpu-fp32", 1), ("cpu-fp16", 2), ("tensorrt-fp32", 1)):
        folder = tmp_path / variant
        net = onnx.load(attention(folder / "net.onnx"))
        for tensor in net.graph.initializer:
            array = onnx.numpy_helper.to_array(tensor)
            if array.dtype == np.float32:
                tensor.CopyFrom(onnx.numpy_helper.from_array(array * scale, tensor.name))
        onnx.save_model(
            net, folder / "model.onnx", save_as_external_data=True, location="model.onnx.data"
        )
        path = add_onnx(writer, folder / "model.onnx", variant, f"{variant}.onnx")
        session = onnxruntime.InferenceSession(tmp_path / "bundle" / path)
        expected = onnxruntime.InferenceSession(folder / "model.onnx").run(None, feed(1, 4))
        np.testing.assert_array_equal(session.run(None, feed(1, 4))[0], expected[0])
        found[variant] = path
    assert sorted(writer.files) == [
        "models/cpu-fp16.data",
        "models/cpu-fp16.onnx",
        "models/cpu-fp32.data",
        "models/cpu-fp32.onnx",
    ]
    assert found["tensorrt-fp32"] == "models/cpu-fp32.onnx"


@pytest.mark.slow(reason="builds with several sizes")
def test_model_when_padding_changes_it_is_refused_with_output_and_remedy(tmp_path):
    mean_net(tmp_path / "net.onnx")
    lines = ("dims: {batch: 1, sequence: [4, 8]}", STATIC)
    samples = write_samples(tmp_path, {"x": np.ones((1, 6, 4), np.float32)})
    for extra in ((), (samples,)):
        with pytest.raises(StepError, match=r"the output 'y' is .* dB .* not indifferent") as found:
            built(tmp_path, *lines, *extra)
        assert "mask: DIM" in found.value.hint


def test_model_when_padding_changes_it_and_samples_have_the_sizes_takes_just_these(
    tmp_path, loader
):
    mean_net(tmp_path / "net.onnx")
    feeds = [{"x": np.full((1, n, 4), n, np.float32)} for n in (8, 4)]
    lines = ("dims: {batch: 1, sequence: [4, 8]}", STATIC, write_samples(tmp_path, *feeds))
    [one] = built(tmp_path, *lines).bundles
    assert one.bundle.manifest.variants[0].exact
    model = loader.load(one.bundle.path)
    for inputs in feeds:
        np.testing.assert_allclose(model(inputs)["y"], inputs["x"].mean(1))
    with pytest.raises(ValueError, match="takes just the sizes sequence 4; sequence 8"):
        model(np.ones((1, 5, 4), np.float32))


@pytest.mark.slow(reason="takes seconds")
def test_padding_value_when_given_is_what_fills_inputs(tmp_path, loader):
    nodes = [helper.make_node("ReduceMax", ["x"], ["y"], "max", axes=[1], keepdims=0)]
    value = (TensorProto.FLOAT, [1, "sequence"])
    save(tmp_path / "net.onnx", nodes, [("x", *value)], [("y", TensorProto.FLOAT, [1])])
    lines = ("dims: {sequence: [4, 8]}", STATIC)
    samples = write_samples(tmp_path, {"x": np.array([[-3.0, -2, -5]], np.float32)})
    with pytest.raises(StepError, match="not indifferent"):
        built(tmp_path, *lines, samples)
    [one] = built(tmp_path, *lines, samples, "inputs: {x: {pad: -1.0e30}}").bundles
    model = loader.load(one.bundle.path)
    assert model(np.array([[-7.0, -6, -9, -8, -7]], np.float32))["y"].item() == -6


def test_output_when_derived_by_arithmetic_is_refused_because_it_cannot_be_cut(tmp_path):
    nodes = [helper.make_node("Concat", ["x", "x"], ["y"], "twice", axis=1)]
    ends = [(n, TensorProto.FLOAT, [1, s]) for n, s in (("x", "sequence"), ("y", "twice"))]
    save(tmp_path / "net.onnx", nodes, ends[:1], ends[1:])
    with pytest.raises(StepError, match="'y' has 16 along axis 1 for sequence 8, and 8 for"):
        built(tmp_path, "dims: {sequence: [4, 8]}", STATIC)


def test_samples_when_larger_than_each_size_are_refused(tmp_path):
    attention(tmp_path / "net.onnx")
    lines = ("dims: {batch: 1, sequence: [4, 8]}", STATIC, write_samples(tmp_path, feed(1, 9)))
    with pytest.raises(StepError, match="sample 0 has sequence 9, and the largest size is seque"):
        built(tmp_path, *lines)


def test_nnapi_when_sizes_are_listed_gets_models_with_weights_of_their_own(tmp_path):
    weights = np.random.default_rng(3).standard_normal((16, 3, 3, 3)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["image", "w"], ["c"], "conv")]
    nodes += [helper.make_node("Relu", ["c"], ["y"], "relu")]
    ends = (
        [("image", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [("y", TensorProto.FLOAT, ["batch", 16, 6, 6])],
    )
    save(tmp_path / "net.onnx", nodes, *ends, [("w", weights)])
    assert weights.nbytes > 1024, "so much that models of other providers share it"
    project = write(tmp_path, "dims: {batch: [1, 4]}")
    [one] = build(project=project, targets=["android-nnapi"], out=tmp_path / "dist").bundles
    [variant] = [v for v in one.bundle.manifest.variants if v.id == "nnapi-fp32"]
    assert [bucket.dims for bucket in variant.buckets] == [{"batch": 1}, {"batch": 4}]
    assert variant.predicted.share >= 0.5
    for bucket in variant.buckets:
        model = onnx.load(one.bundle.path / bucket.model, load_external_data=False)
        assert not any(tensor.external_data for tensor in model.graph.initializer)
    found = inspect(targets=["android-nnapi"], project=project).variants
    [nnapi] = [v for v in found if v.variant == "nnapi-fp32"]
    assert (nnapi.unused, nnapi.taken) == (
        None,
        round(variant.predicted.share * variant.predicted.nodes),
    )


CANNOT_BE_STATIC = {
    "dims: {sequence: [4, 8]}": "the input 'x' has the dimension 'batch'",
    "dims: {batch: 1, sequence: {min: 1, opt: 4, max: 8}}": "has the dimension 'sequence'",
    f"dims: {{batch: 1, sequence: {list(range(1, 18))}}}": "make 17 models .* 16 is the most",
}


@pytest.mark.parametrize("line", CANNOT_BE_STATIC)
def test_variant_when_it_cannot_be_static_is_left_out_with_the_reason(tmp_path, line):
    attention(tmp_path / "net.onnx")
    with pytest.raises(ModelError, match=CANNOT_BE_STATIC[line]):
        built(tmp_path, line, STATIC)
    project = tmp_path / "edgepack.yaml"
    [found] = inspect(project=project).variants
    assert found.unused.stage == "refused"
    assert "static" in found.unused.reason


def test_variant_when_all_sizes_are_fixed_needs_no_buckets(tmp_path):
    attention(tmp_path / "net.onnx")
    [one] = built(tmp_path, "dims: {batch: 1, sequence: 8}", MASK, STATIC).bundles
    assert one.bundle.manifest.variants[0].buckets == []


def test_shapes_when_a_project_changes_a_variant_are_the_profiles_unless_given():
    intel = load_profile("intel")
    npu = VariantChange(backend="openvino", recipe="fp16", id="openvino-fp16")
    assert intel.find_variant("openvino-npu-fp16").shapes == "static"
    assert change_profile(intel, [npu]).variants[0].shapes == "any"
    static = npu.model_copy(update={"shapes": "static"})
    assert change_profile(intel, [static]).variants[0].shapes == "static"


def test_example_in_the_readme_when_masks_and_sizes_are_described_runs(bundle):
    text = (bundle / "README.md").read_text()
    example = text.split("```python\n")[1].split("```")[0]
    assert "'x': np.zeros([1, 4, 8], 'float32')" in example
    assert "mask" not in example
    argv = [sys.executable, "-B", "-c", example]
    done = subprocess.run(argv, cwd=bundle, capture_output=True, text=True, timeout=60, check=True)
    assert "'hidden': (1, 4, 8)" in done.stdout


WRONG: dict[str, tuple[type[EdgepackError], str]] = {
    "inputs: {x: {}}": (ProfileError, "it says nothing"),
    "inputs: {mask: {mask: sequence, pad: 1}}": (ProfileError, "'mask' and 'pad' are given"),
    "inputs: {mask: {mask: sequnce}}": (ProfileError, "no symbolic dimension 'sequnce'"),
    "inputs: {x: {mask: sequence}, mask: {mask: sequence}}": (ProfileError, "cannot make the mask"),
    "inputs: {mask: {pad: 0.5}}": (ProfileError, "is int64, which does not hold 0.5"),
    "inputs: {x: {pad: .inf}}": (ProfileError, "finite"),
    "inputs: {x: {pad: zero}}": (ProfileError, "'zero'"),
    "dims: {sequnce: [4, 8]}": (ProfileError, "no input has a symbolic dimension 'sequnce'"),
    "dims: {sequence: []}": (ProfileError, "sequence"),
    "dims: {sequence: [4, 0]}": (ProfileError, "sequence"),
}


@pytest.mark.parametrize("line", WRONG)
def test_project_when_padding_is_described_wrongly_says_what(tmp_path, line):
    kind, problem = WRONG[line]
    attention(tmp_path / "net.onnx")
    with pytest.raises(kind, match=problem):
        dry_run(project=write(tmp_path, line), targets=["host"])
