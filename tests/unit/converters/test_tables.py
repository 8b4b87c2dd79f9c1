"""Which files of scikit-learn, LightGBM and XGBoost are taken, and which are refused at sight."""

from __future__ import annotations

import zipfile

import pytest
from edgepack.converters.lightgbm import LIGHTGBM
from edgepack.converters.registry import find_converter
from edgepack.converters.sklearn import SKLEARN
from edgepack.converters.xgboost import XGBOOST
from edgepack.errors import ModelError


@pytest.mark.parametrize(
    ("name", "content", "converter"),
    [
        ("a.txt", b"tree\nversion=v4\nnum_class=1\n", LIGHTGBM),
        ("a.model", b"tree\r\nversion=v3\r\n", LIGHTGBM),
        ("a.json", b'{"learner":{"attributes":{}},"version":[3,2,0]}', XGBOOST),
        ("a.json", b'{\n  "learner": {}}', XGBOOST),
        ("a.ubj", b"{L\x00\x00\x00\x00\x00\x00\x00\x07learner{", XGBOOST),
        ("a.skops", b"PK", SKLEARN),
    ],
)
def test_file_of_a_framework_is_recognised(tmp_path, name, content, converter):
    (tmp_path / name).write_bytes(content)
    assert find_converter(tmp_path / name) is converter


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("labels.txt", b"tree\nhouse\n"),
        ("labels.txt", b""),
        ("notes.txt", b"version=v4\ntree\n"),
        ("a.json", b'{"schema_version": 1}'),
        ("a.json", b'["learner"]'),
        ("a.json", b"{" + b" " * 80 + b'"learner"'),
        ("a.onnx", b"tree\nversion=v4\n"),
        ("a.bin", b"\x08\x09learner"),
    ],
)
def test_other_file_is_left_alone(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert find_converter(tmp_path / name) is None


def test_xgboost_file_of_the_old_format_is_refused_with_the_way_to_save_it(tmp_path):
    path = tmp_path / "old.model"
    path.write_bytes(b"binf\x00\x00\x00\x3f")
    converter = find_converter(path)
    assert converter is XGBOOST
    with pytest.raises(ModelError, match="old binary format") as caught:
        converter.look(path)
    assert "save_model('model.json')" in caught.value.hint


def test_lightgbm_file_when_cut_off_is_refused_before_lightgbm_reads_it(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"tree\nversion=v4\n\nTree=0\nleaf_value=1 2\n\nend of trees\n\nparameters:\n")
    LIGHTGBM.look(path)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(ModelError, match="no line 'end of trees'"):
        LIGHTGBM.look(path)


def test_skops_file_when_not_whole_or_another_archive_is_refused(tmp_path):
    path = tmp_path / "a.skops"
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(ModelError, match="no whole ZIP"):
        SKLEARN.look(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other.json", "{}")
    with pytest.raises(ModelError, match=r"schema\.json"):
        SKLEARN.look(path)
