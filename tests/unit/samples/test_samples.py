from __future__ import annotations

import numpy as np
import onnx
import pytest
from edgepack.errors import SamplesError
from edgepack.model.facts import TensorSpec
from edgepack.samples.sample_set import SampleSet, write_sample_set
from edgepack.samples.sources import (
    read_npz_samples,
    read_onnx_test_data,
    run_python_samples,
    select_images,
)
from onnx import numpy_helper
from PIL import Image

IMAGE = TensorSpec("image", "float32", ("batch", 3, 2, 2))
STATE = TensorSpec("state", "int64", (5,))


def sample(**changes):
    return {"image": np.ones((1, 3, 2, 2), np.float32), **changes}


def write_one(folder, inputs, signature=(IMAGE,)):
    folder.mkdir(exist_ok=True)
    write_sample_set(folder, signature, [("sample 0", inputs)])
    return SampleSet.read(folder)


def test_set_when_written_reads_back_each_sample_with_its_own_shape(tmp_path):
    spec = TensorSpec("x", "float32", ("batch", "length"))
    arrays = [np.arange(n, dtype=np.float32).reshape(1, n) for n in (3, 1, 4)]
    labels = np.array([0, 1, 0])
    write_sample_set(tmp_path, [spec], ((f"{n}", {"x": a}) for n, a in enumerate(arrays)), labels)
    samples = SampleSet.read(tmp_path)
    assert len(samples) == 3
    assert all(np.array_equal(s["x"], a) for s, a in zip(samples, arrays, strict=True))
    assert np.array_equal(samples.labels, labels)


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        ({"imgae": np.ones((1, 3, 2, 2), np.float32)}, r"has the inputs \['imgae'\]"),
        (sample(extra=np.ones(1)), r"has the inputs \['extra', 'image'\]"),
        (sample(image=np.ones((1, 3, 2, 2), np.int32)), "has int32 for 'image'"),
        (sample(image=np.ones((3, 2, 2), np.float32)), r"has the shape \[3, 2, 2\]"),
        (sample(image=np.ones((1, 1, 2, 2), np.float32)), r"the model takes \[batch, 3, 2, 2\]"),
        (sample(image=np.full((1, 3, 2, 2), np.nan, np.float32)), "has NaN or infinity"),
        (sample(image=np.full((1, 3, 2, 2), np.inf, np.float32)), "has NaN or infinity"),
    ],
)
def test_set_when_a_sample_does_not_fit_says_why(tmp_path, inputs, problem):
    with pytest.raises(SamplesError, match=problem):
        write_one(tmp_path / "set", inputs)


def test_set_when_python_numbers_come_as_float64_narrows_them(tmp_path):
    assert (
        write_one(tmp_path / "a", sample(image=np.ones((1, 3, 2, 2)))).read_inputs(0)["image"].dtype
        == np.float32
    )


def test_set_when_empty_or_labels_differ_in_number_is_an_error(tmp_path):
    with pytest.raises(SamplesError, match="there are no samples"):
        write_sample_set(tmp_path, [IMAGE], [])
    with pytest.raises(SamplesError, match="2 labels for 1 samples"):
        write_sample_set(tmp_path, [IMAGE], [("s", sample())], np.array([1, 2]))


def test_npz_when_first_dimension_is_fixed_takes_the_axis_away(tmp_path):
    np.savez(
        tmp_path / "s.npz", image=np.zeros((4, 3, 2, 2), np.float32), state=np.zeros((4, 5), int)
    )
    samples, labels = read_npz_samples(tmp_path / "s.npz", (IMAGE, STATE), None, 3)
    shapes = [(s["image"].shape, s["state"].shape) for _, s in samples]
    assert shapes == [((1, 3, 2, 2), (5,))] * 3
    assert labels is None


def test_npz_when_the_first_dimension_is_symbolic_and_no_sample_axis_gives_whole_samples(tmp_path):
    """The height of a picture is symbolic, and is not what counts samples."""
    pixels = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    np.savez(tmp_path / "s.npz", image=pixels)
    spec = TensorSpec("image", "uint8", ("height", "width", 3))
    samples, _ = read_npz_samples(tmp_path / "s.npz", (spec,), None, None)
    found = [feed["image"] for _, feed in samples]
    assert [array.shape for array in found] == [(4, 5, 3), (4, 5, 3)]
    assert np.array_equal(np.stack(found), pixels)


def test_npz_when_wrong_says_what_is_wrong(tmp_path):
    with pytest.raises(SamplesError, match="there is no file"):
        read_npz_samples(tmp_path / "none.npz", (IMAGE,), None, None)
    (tmp_path / "text.npz").write_text("no")
    with pytest.raises(SamplesError, match=r"as \.npz"):
        read_npz_samples(tmp_path / "text.npz", (IMAGE,), None, None)
    np.savez(tmp_path / "a.npz", image=np.zeros(3), other=np.zeros(2))
    with pytest.raises(SamplesError, match="different numbers of samples"):
        read_npz_samples(tmp_path / "a.npz", (IMAGE,), None, None)
    with pytest.raises(SamplesError, match="has no labels 'y'"):
        read_npz_samples(tmp_path / "a.npz", (IMAGE,), "y", None)


def test_npz_when_it_holds_objects_is_refused_and_not_unpickled(tmp_path):
    np.savez(tmp_path / "o.npz", image=np.array([{"a": 1}], dtype=object))
    with pytest.raises(SamplesError, match=r"as \.npz"):
        read_npz_samples(tmp_path / "o.npz", (IMAGE,), None, None)


def test_onnx_test_data_when_read_gives_inputs_by_position(tmp_path):
    folder = tmp_path / "test_data_set_0"
    folder.mkdir()
    array = np.ones((1, 3, 2, 2), np.float32)
    (folder / "input_0.pb").write_bytes(numpy_helper.from_array(array).SerializeToString())
    [(title, inputs)] = read_onnx_test_data([folder], [IMAGE])
    assert title == "test_data_set_0"
    assert np.array_equal(inputs["image"], array)
    (folder / "input_0.pb").write_bytes(onnx.TensorProto(data_type=8).SerializeToString()[:1])
    with pytest.raises(SamplesError, match=r"input_0\.pb"):
        list(read_onnx_test_data([folder], [IMAGE]))


def test_python_when_it_yields_samples_and_labels_gives_both(tmp_path):
    (tmp_path / "mydata.py").write_text(
        "import numpy as np\n"
        "def samples():\n"
        "    for n in range(5):\n"
        "        yield {'im/age': np.full((1, 2), n, np.float32)}, n % 2\n"
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    samples, labels = run_python_samples("mydata:samples", tmp_path, None, 4, scratch)
    assert [inputs["im/age"][0, 0] for _, inputs in samples] == [0, 1, 2, 3]
    assert labels.tolist() == [0, 1, 0, 1]


def test_python_when_the_hook_fails_shows_its_last_lines(tmp_path):
    (tmp_path / "mydata.py").write_text("def samples():\n    raise KeyError('no such thing')\n")
    with pytest.raises(SamplesError, match="no such thing"):
        run_python_samples("mydata:samples", tmp_path, None, None, tmp_path)


def test_shared_folder_when_split_is_disjoint_whole_and_stays_after_renaming(tmp_path):
    for n in range(40):
        Image.new("RGB", (4, 4), (n * 6, 255 - n, n)).save(tmp_path / f"{n}.png")
    split = {part: select_images(tmp_path, None, part) for part in ("calibration", "evaluation")}
    assert {*split["calibration"], *split["evaluation"]} == set(tmp_path.iterdir())
    assert not {*split["calibration"]} & {*split["evaluation"]}
    assert 0 < len(split["evaluation"]) < 20
    first = split["evaluation"][0]
    renamed = first.rename(tmp_path / "zzz.png")
    assert renamed in select_images(tmp_path, None, "evaluation")
