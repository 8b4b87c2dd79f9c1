"""Labels of images and sounds that are texts, numbers, sets of classes, masks and pictures."""

from __future__ import annotations

import numpy as np
import pytest
from edgepack.errors import SamplesError
from edgepack.project.samples import EvaluationSource, PythonMetric, SampleSource
from edgepack.samples.label_kinds import find_label_kind, list_label_files
from edgepack.samples.label_pictures import read_image_masks, read_image_references
from edgepack.samples.labels import (
    read_image_labels,
    read_image_numbers,
    read_image_sets,
    read_image_texts,
)
from edgepack.samples.sample_set import SampleSet, write_sample_set
from edgepack.samples.sounds import list_sound_files
from edgepack.samples.sources import select_images
from PIL import Image

from tests.support.media import write_sound

NAMES = ("a/1.png", "a/2.png", "b/1.png")


@pytest.fixture
def photos(tmp_path):
    for n, name in enumerate(NAMES):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (6, 4), (n, n, n)).save(path)
    return tmp_path / "photos"


@pytest.fixture
def files(photos):
    return select_images(photos, None, "all")


@pytest.fixture
def table(tmp_path):
    def write(text):
        (tmp_path / "labels.csv").write_text(text, encoding="utf-8")
        return tmp_path / "labels.csv"

    return write


@pytest.mark.parametrize(
    ("labels", "metric", "kinds", "kind"),
    [
        ("l.csv", None, {"classification"}, "classes"),
        ("l.csv", None, {"text"}, "texts"),
        ("l.csv", "wer", {"text", "classification"}, "texts"),
        ("l.csv", "f1", {"probability"}, "class sets"),
        ("l.csv", "f1", {"classification"}, "classes"),
        ("l.csv", "spearman", {"regression"}, "numbers"),
        ("l.csv", "eer", {"embedding"}, "classes"),
        ("l.json", None, {"detection"}, "boxes"),
        ("l.json", "oks", {"detection"}, "keypoints"),
        ("photos", "map", {"detection"}, "boxes"),
        ("photos", "miou", {"mask"}, "masks"),
        ("photos", "psnr", {"picture"}, "pictures"),
        ("folders", "eer", {"embedding"}, "classes"),
    ],
)
def test_labels_are_what_their_metric_takes(photos, labels, metric, kinds, kind):
    source = EvaluationSource(images="photos", labels=labels, metric=metric)
    assert find_label_kind(source, photos.parent, kinds) == kind


def test_labels_of_a_metric_of_ones_own_and_of_calibration_are_what_their_path_is(photos):
    own = PythonMetric(python="a:b", higher_is_better=True)
    source = EvaluationSource(images="photos", labels="photos", metric=own)
    assert find_label_kind(source, photos.parent, {"mask"}) == "boxes"
    other = SampleSource(images="photos", labels="l.csv")
    assert find_label_kind(other, photos.parent, set()) == "classes"


def test_label_files_are_those_of_their_kind(tmp_path):
    for name in ("1.txt", "a/1.PNG", "2.jpg", "other.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    names = {
        kind: [path.name for path in list_label_files(tmp_path, kind)]
        for kind in ("boxes", "masks", "pictures")
    }
    assert names == {
        "boxes": ["1.txt"],
        "masks": ["2.jpg", "1.PNG"],
        "pictures": ["2.jpg", "1.PNG"],
    }


def test_texts_are_as_they_are_in_the_table(photos, files, table):
    path = table('file,text\na/1.png, ä \n2.png,"one, two"\nb/1.png,\n')
    found = read_image_texts(files, photos, path)
    assert found.tolist() == [" ä ", "one, two", ""]
    (photos.parent / "s").mkdir()
    samples = [(name, {}) for name in NAMES]
    write_sample_set(photos.parent / "s", [], samples, found)
    assert SampleSet.read(photos.parent / "s").labels.tolist() == found.tolist()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a/1.png,one, two\n", "has 3 columns in the row of 'a/1.png'"),
        ("a/1.png,one\nb/1.png,two\n", "has no label for 1 files, 'a/2.png' first"),
        ("a/1.png,one\na/1.png,two\n", "labels 'a/1.png' with one and with two"),
    ],
)
def test_texts_when_the_table_is_wrong_say_where(photos, files, table, text, said):
    with pytest.raises(SamplesError, match=said):
        read_image_texts(files, photos, table(text))


def test_numbers_are_those_of_the_table(photos, files, table):
    path = table("file,score\na/1.png,-1.5\na/2.png,2\nb/1.png,1e3\n")
    assert read_image_numbers(files, photos, path).tolist() == [-1.5, 2, 1000]
    with pytest.raises(SamplesError, match="no label for 1 files, 'a/2"):
        read_image_numbers(files, photos, table("a/1.png,-1.5\na/2.png,much\nb/1.png,2\n"))


def test_sets_have_a_row_for_each_class_that_is_there(photos, files, table):
    path = table("file,label\na/1.png,2\na/1.png,0\na/2.png,\nb/1.png,1\n")
    assert read_image_sets(files, photos, path, None).tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]
    assert read_image_sets(files, photos, path, 4).shape == (3, 4)
    with pytest.raises(SamplesError, match="has the label 2, and the model has 2 classes"):
        read_image_sets(files, photos, path, 2)


def test_masks_are_filled_up_to_the_largest(photos, files, tmp_path):
    sizes = [(6, 4), (3, 5), (2, 2)]
    modes = ["L", "P", "1"]
    for name, size, mode in zip(NAMES, sizes, modes, strict=True):
        path = tmp_path / "masks" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        mask = Image.new(mode, size, 1)
        if mode == "P":
            mask.putpalette([9, 9, 9, 200, 0, 0])
        mask.save(path)
    found = read_image_masks(files, photos, tmp_path / "masks", sizes)
    assert (found.shape, found.dtype) == ((3, 5, 6), np.int16)
    for mask, (width, height) in zip(found, sizes, strict=True):
        assert (mask[:height, :width] == 1).all()
        assert (mask[height:] == -1).all()
        assert (mask[:, width:] == -1).all()


def test_references_may_have_another_suffix(photos, files, tmp_path):
    for name in NAMES:
        path = (tmp_path / "large" / name).with_suffix(".bmp")
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (12, 8), (1, 2, 3)).save(path)
    found = read_image_references(files, photos, tmp_path / "large")
    assert found.shape == (3, 8, 12, 3)
    assert found[0, 0, 0].tolist() == [1, 2, 3]
    (tmp_path / "large/b/1.bmp").unlink()
    with pytest.raises(SamplesError, match=r"there is no reference picture .*b/1\.png"):
        read_image_references(files, photos, tmp_path / "large")


def test_large_labels_stay_on_disk(tmp_path):
    (tmp_path / "s").mkdir()
    labels = np.arange(9 << 20, dtype=np.int16).reshape(3, 3 << 10, 1 << 10)
    write_sample_set(tmp_path / "s", [], [(str(n), {}) for n in range(3)], labels)
    found = SampleSet.read(tmp_path / "s").labels
    assert isinstance(found, np.memmap)
    assert np.array_equal(found, labels)


def test_sounds_have_the_class_of_their_folder_or_row(tmp_path, table):
    for name in ("cat/1.wav", "dog/1.wav", "dog/2.wav"):
        write_sound(tmp_path / "sounds" / name, np.zeros(10))
    folder = tmp_path / "sounds"
    files = list_sound_files(folder)
    assert read_image_labels(files, folder, "folders", tmp_path).tolist() == [0, 1, 1]
    table("cat/1.wav,3\ndog/1.wav,1\n2.wav,0\n")
    assert read_image_labels(files, folder, "labels.csv", tmp_path).tolist() == [3, 1, 0]
