"""Boxes as labels: COCO's annotations, and YOLO's text files."""

from __future__ import annotations

import json

import numpy as np
import pytest
from edgepack.errors import SamplesError
from edgepack.ondevice.runtime.edgepack_images import find_placement
from edgepack.samples.boxes import read_image_boxes
from edgepack.samples.sources import select_images
from PIL import Image

WIDE = (200, 100)
RESIZE = {"letterbox": 64}


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    for n, name in enumerate(("a/1.png", "a/2.png", "b/1.png")):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", WIDE, (n * 5, 255 - n, n)).save(path)
    return folder


def read(photos, labels, classes=()):
    files = select_images(photos, None, "all")
    places = [find_placement(*WIDE, RESIZE)] * len(files)
    found = read_image_boxes(files, photos, labels, places, classes)
    return [boxes[~np.isnan(boxes[:, 0])].tolist() for boxes in found]


def annotated(**changed):
    """Of three images, one of which has nothing; ids are in no order."""
    images = [
        {"id": 30, "file_name": "b/1.png", "width": 200, "height": 100},
        {"id": 10, "file_name": "a/1.png", "width": 200, "height": 100},
        {"id": 20, "file_name": "2.png"},
        {"id": 77, "file_name": "another.png"},
    ]
    boxes = [(30, 90, [10, 20, 30, 40], 0), (10, 7, [0, 0, 200, 100], 0)]
    boxes += [(30, 7, [5.5, 5, 10, 10], 0), (10, 7, [1, 1, 9, 9], 1), (77, 90, [0, 0, 1, 1], 0)]
    keys = "image_id", "category_id", "bbox", "iscrowd"
    given = {
        "images": images,
        "annotations": [dict(zip(keys, box, strict=True), id=n) for n, box in enumerate(boxes)],
        "categories": [{"id": 90, "name": "cat"}, {"id": 7, "name": "dog"}],
        "info": {},
    }
    return given | changed


@pytest.fixture
def coco(tmp_path):
    def write(given):
        path = tmp_path / "annotations.json"
        path.write_text(given if isinstance(given, str) else json.dumps(given))
        return path

    return write


def test_coco_when_there_are_no_class_names_takes_categories_in_the_order_of_ids(photos, coco):
    path = coco(annotated())
    # Category 7 is class 0; the sixth column marks a crowd.
    assert read(photos, path) == [
        [[0, 0, 0, 200, 100, 0], [0, 1, 1, 10, 10, 1]],
        [],
        [[1, 10, 20, 40, 60, 0], [0, 5.5, 5, 15.5, 15, 0]],
    ]


def test_coco_when_nothing_is_a_crowd_has_five_columns(photos, coco):
    given = annotated()
    given["annotations"] = [each for each in given["annotations"] if not each["iscrowd"]]
    assert read(photos, coco(given))[0] == [[0, 0, 0, 200, 100]]


def test_coco_when_keypoints_are_asked_for_has_them_behind_crowd_and_area(photos, coco):
    given = annotated()
    for each in given["annotations"]:
        each |= {"keypoints": [1, 2, 2, 0, 0, 0], "area": 7.5}
    files = select_images(photos, None, "all")
    places = [find_placement(*WIDE, RESIZE)] * len(files)
    found = read_image_boxes(files, photos, coco(given), places, (), 2)
    assert found.shape == (3, 2, 7 + 6)
    assert found[0, 1].tolist() == [0, 1, 1, 10, 10, 1, 7.5, 1, 2, 2, 0, 0, 0]
    with pytest.raises(SamplesError, match="6 values of keypoints, and 17 keypoints have 51"):
        read_image_boxes(files, photos, coco(given), places, (), 17)


def test_coco_when_there_are_class_names_takes_categories_by_them(photos, coco):
    found = read(photos, coco(annotated()), ["bird", "cat", "dog"])
    assert [[box[0] for box in boxes] for boxes in found] == [[2, 2], [], [1, 2]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"categories": [{"id": 90, "name": "cat"}]}, "boxes of 'id 7', which is none of the 1"),
        ({"images": []}, "no label for 3 files, 'a/1.png' first"),
        (
            {"annotations": [{"image_id": 30, "category_id": 7}]},
            "annotations.0.bbox Field required",
        ),
        ({"annotations": [{"image_id": 30, "category_id": 7, "bbox": [1, 2, 3]}]}, "bbox.3"),
    ],
)
def test_coco_when_something_is_missing_names_it(photos, coco, change, said):
    with pytest.raises(SamplesError, match=said):
        read(photos, coco(annotated(**change)))


def test_coco_when_the_model_lacks_a_class_names_it(photos, coco):
    with pytest.raises(SamplesError, match="boxes of 'dog', which is none of the 2 classes"):
        read(photos, coco(annotated()), ["cat", "bird"])


def test_coco_when_an_image_was_annotated_in_another_size_says_so(photos, coco):
    given = annotated()
    given["images"][1] |= {"width": 100, "height": 200}
    with pytest.raises(SamplesError, match=r"'a/1\.png' has 100 x 200 .* it has 200 x 100"):
        read(photos, coco(given))


def test_coco_when_a_name_may_be_two_images_says_so(photos, coco):
    given = annotated()
    given["images"][1]["file_name"] = "1.png"
    with pytest.raises(SamplesError, match="ambiguous: 2 files have this name"):
        read(photos, coco(given))


@pytest.mark.parametrize("text", ["", "[1, 2]", "{}"])
def test_coco_when_it_is_another_file_says_what_it_holds(photos, coco, text):
    with pytest.raises(SamplesError, match="as COCO's annotations do") as caught:
        read(photos, coco(text))
    assert "images (id, file_name)" in caught.value.hint


def test_coco_when_it_is_not_there_says_so(photos, tmp_path):
    with pytest.raises(SamplesError, match="cannot read the labels"):
        read(photos, tmp_path / "none.json")


@pytest.fixture
def yolo(tmp_path):
    def write(text, name="a/1.txt"):
        path = tmp_path / "labels" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return tmp_path / "labels"

    return write


def test_yolo_boxes_are_parts_of_the_images_sides(photos, yolo):
    folder = yolo("3 0.5 0.5 0.1 0.2\n\n0 0.05 0.9 0.1 0.2\n")
    yolo("", "b/1.txt")
    first, *others = read(photos, folder)
    assert np.array(first) == pytest.approx(np.array([[3, 90, 40, 110, 60], [0, 0, 80, 20, 100]]))
    assert others == [[], []]


@pytest.mark.parametrize(
    "line",
    [
        *("0 0.5 0.5 0.1", "0 0.1 0.1 0.2 0.1 0.2 0.2", "0 90 40 20 20", "0 nan 0.5 0.1 0.1"),
        *("0.5 0.5 0.5 0.1 0.1", "-1 0.5 0.5 0.1 0.1", "cat 0 0 1 1", "nan 0 0 1 1", "inf 0 0 1 1"),
    ],
)
def test_yolo_when_a_line_is_no_box_names_it(photos, yolo, line):
    folder = yolo(f"0 0.5 0.5 0.1 0.1\n{line}\n")
    with pytest.raises(SamplesError, match="is no box") as caught:
        read(photos, folder)
    assert caught.value.where == f"{folder / 'a/1.txt'}:2"


def test_yolo_when_no_image_has_a_file_says_where_it_is_looked_for(photos, yolo):
    folder = yolo("0 0.5 0.5 0.1 0.1\n", "1.txt")
    with pytest.raises(SamplesError, match="has boxes for none of the 3 images") as caught:
        read(photos, folder)
    assert str(folder / "a/1.txt") in caught.value.hint
