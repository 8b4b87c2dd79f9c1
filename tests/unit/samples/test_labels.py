from __future__ import annotations

import numpy as np
import pytest
from edgepack.errors import SamplesError
from edgepack.model.facts import TensorSpec
from edgepack.samples.labels import read_image_labels
from edgepack.samples.sample_set import SampleSet, write_sample_set
from edgepack.samples.sources import read_npz_samples, run_python_samples, select_images
from PIL import Image

SPEC = TensorSpec("x", "float32", ("batch", 1))


def photos(folder, *names):
    for n, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (n * 5, 255 - n, n)).save(path)
    return folder


def write_labels(folder, labels):
    samples = [(str(n), {"x": np.zeros((1, 1), np.float32)}) for n in range(len(labels))]
    write_sample_set(folder, [SPEC], samples, labels)
    return SampleSet.read(folder).labels


def csv_labels(tmp_path, rows, *names, encoding="utf-8"):
    folder = photos(tmp_path / "photos", *names)
    (tmp_path / "labels.csv").write_text(rows, encoding=encoding)
    files = select_images(folder, None, "all")
    labels = read_image_labels(files, folder, "labels.csv", tmp_path).tolist()
    return dict(zip([p.relative_to(folder).as_posix() for p in files], labels, strict=True))


def test_folder_labels_when_limited_count_all_classes(tmp_path):
    folder = photos(tmp_path, "a/a0.png", "b/b0.png", "c/c0.png", "d/d0.png")
    files = select_images(folder, 2, "all")
    assert [path.name for path in files] == ["a0.png", "c0.png"]
    assert read_image_labels(files, folder, "folders", tmp_path).tolist() == [0, 2]


def test_folder_labels_when_the_folder_is_split_count_all_classes(tmp_path):
    folder = photos(tmp_path, *(f"{name}/0.png" for name in "abcdefghij"))
    for part in ("calibration", "evaluation"):
        files = select_images(folder, None, part)
        expected = ["abcdefghij".index(path.parent.name) for path in files]
        assert read_image_labels(files, folder, "folders", tmp_path).tolist() == expected


def test_folder_labels_when_an_image_is_in_no_class_refuses_it(tmp_path):
    folder = photos(tmp_path, "a/a0.png", "loose.png")
    with pytest.raises(SamplesError, match=r"'loose\.png' first: they have no class"):
        read_image_labels([folder / "a/a0.png"], folder, "folders", tmp_path)


def test_csv_when_two_images_have_a_name_tells_them_apart_by_path(tmp_path):
    found = csv_labels(tmp_path, "1.png,0\ns/1.png,2\n", "1.png", "s/1.png")
    assert found == {"1.png": 0, "s/1.png": 2}


def test_csv_when_only_names_are_given_finds_unique_ones(tmp_path):
    found = csv_labels(tmp_path, "file,label\n./a.png,1\nb.png,2\n", "a.png", "s/b.png")
    assert found == {"a.png": 1, "s/b.png": 2}


def test_csv_when_it_begins_with_a_byte_order_mark_reads_the_first_row(tmp_path):
    assert csv_labels(tmp_path, "a.png,1\n", "a.png", encoding="utf-8-sig") == {"a.png": 1}


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ("1.png,0\n", r"the label of 's/1\.png' is ambiguous: 2 files"),
        ("x/1.png,0\ny/1.png,1\n", r"the label of '1\.png' is ambiguous"),
        ("1.png,0\n./1.png,1\n", r"labels '1\.png' with 0 and with 1"),
        ("2.png,0\n", r"no label for 2 files, '1\.png' first"),
        ("1.png,99999999999999999999999\n", "more than 64 bits hold"),
        ("1.png,9223372036854775808\n", "more than 64 bits hold"),
        (f"1.png,{'9' * 5000}\n", "more than 64 bits hold"),
    ],
)
def test_csv_when_wrong_says_why(tmp_path, rows, problem):
    with pytest.raises(SamplesError, match=problem):
        csv_labels(tmp_path, rows, "1.png", "s/1.png")


@pytest.mark.parametrize("labels", [[True, False], [1, 2], [0.5, 2.0], [[1, 2], [3, 4]]])
def test_labels_when_numbers_are_kept_as_they_are(tmp_path, labels):
    found = write_labels(tmp_path, np.array(labels))
    assert found.dtype == np.array(labels).dtype
    assert found.tolist() == labels


@pytest.mark.parametrize("labels", [[["cat"], ["dog"]], [10**30, 1], [1j, 2j], [b"a", b"b"]])
def test_labels_when_no_numbers_are_refused(tmp_path, labels):
    with pytest.raises(SamplesError, match="the labels are"):
        write_labels(tmp_path, np.array(labels))


@pytest.mark.parametrize("labels", [np.arange(5), np.arange(3), np.array(1)])
def test_npz_when_labels_are_not_as_many_as_samples_is_an_error(tmp_path, labels):
    np.savez(tmp_path / "s.npz", x=np.zeros((4, 1), np.float32), labels=labels)
    with pytest.raises(SamplesError, match="for 4 samples"):
        read_npz_samples(tmp_path / "s.npz", [SPEC], None, 2)


@pytest.mark.parametrize(
    ("second", "problem"),
    [("['cat']", "one array"), ("10**30", "the labels are object"), ("[1, 2]", "one array")],
)
def test_python_when_labels_are_no_numbers_is_an_error(tmp_path, second, problem):
    (tmp_path / "mydata.py").write_text(
        "import numpy as np\n"
        "def samples():\n"
        "    for label in (1, " + second + "):\n"
        "        yield {'x': np.zeros((1, 1), np.float32)}, label\n"
    )
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(SamplesError, match=problem):
        write_sample_set(
            tmp_path, [SPEC], *run_python_samples("mydata:samples", tmp_path, None, None, scratch)
        )


@pytest.mark.parametrize("start", range(0, 60, 3))
def test_shared_folder_when_it_has_two_images_gives_each_part_one(tmp_path, start):
    for n in (start, start + 1):
        Image.new("RGB", (4, 4), (n, n, n)).save(tmp_path / f"{n}.png")
    parts = [select_images(tmp_path, None, part) for part in ("calibration", "evaluation")]
    assert [len(files) for files in parts] == [1, 1]
    assert parts[0] != parts[1]
    kept = parts[1][0].rename(tmp_path / "renamed.png")
    assert select_images(tmp_path, None, "evaluation") == [kept]


def test_shared_folder_when_its_images_are_copies_is_refused(tmp_path):
    for name in ("a.png", "b.png"):
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    with pytest.raises(SamplesError, match="leaves no file for calibration"):
        select_images(tmp_path, None, "calibration")
