"""The C++ library of bundles for Linux: what is listed, and what two of its files both say."""

from __future__ import annotations

import re
import unicodedata

import pytest
from edgepack.base.resources import find_ondevice_dir, find_templates_dir
from edgepack.base.yaml_source import read_yaml

from tests.docs import write_unicode

CPP = find_ondevice_dir() / "cpp"
DETAIL = CPP / "include" / "edgepack" / "detail"
_MEMBER = re.compile(r"^ *(\w+) = (\d+)", re.MULTILINE)
HEADER = (CPP / "include" / "edgepack" / "edgepack.h").read_text()


def test_each_file_is_listed_for_bundles_in_its_place():
    listed = read_yaml(find_templates_dir() / "linux" / "family.yaml").values["files"]
    places = {e["copy_of"]: e["output"] for e in listed if e.get("copy_of", "").startswith("cpp/")}
    found = {str(p.relative_to(CPP.parent)) for p in CPP.rglob("*") if p.is_file()}
    assert places == {path: path for path in found}


def read_enum(text: str, name: str) -> dict[str, int]:
    """Return the members of an enum of C or C++."""
    body = re.search(rf"enum (?:class )?{name} \{{(.*?)\}}", text, re.DOTALL)
    assert body
    return {word.lower(): int(n) for word, n in _MEMBER.findall(body[1])}


def test_codes_have_the_same_numbers_in_c_as_in_cpp():
    in_c = read_enum(HEADER, "edgepack_code")
    in_cpp = read_enum((DETAIL / "error.hpp").read_text(), "Code")
    assert {f"edgepack_{name}": n for name, n in in_cpp.items()} == in_c


def test_types_have_the_same_numbers_in_c_as_in_cpp():
    in_c = read_enum(HEADER, "edgepack_type")
    in_cpp = read_enum((DETAIL / "tensor.hpp").read_text(), "Type")
    in_cpp["bool"] = in_cpp.pop("boolean")  # bool is a word of C++
    assert {f"edgepack_{name}": n for name, n in in_cpp.items()} == in_c


def test_unicode_tables_are_those_of_this_python():
    written = write_unicode.HEADER.read_text(encoding="utf-8")
    version = unicodedata.unidata_version
    if f"Unicode {version}." not in written:
        pytest.skip(f"this Python has Unicode {version}: python -m tests.docs.write_unicode")
    assert written == write_unicode.write_header()
