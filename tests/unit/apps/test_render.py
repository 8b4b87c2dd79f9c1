"""Templates: literals, places and files that are carried as they are."""

from __future__ import annotations

import ast
import json
import re
import urllib.parse
from types import SimpleNamespace

import pytest
from edgepack.apps import render
from edgepack.errors import ToolError
from hypothesis import given
from hypothesis import strategies as st


@given(st.text())
def test_kotlin_string_when_read_back_is_the_text(text):
    literal = render.format_kotlin_string(text)
    assert literal.isascii()
    assert "$" not in literal
    # Of Kotlin's escapes just those of JSON are used, surrogate pairs included.
    assert json.loads(literal) == text


@given(st.text())
def test_swift_string_when_read_back_is_the_text(text):
    literal = render.format_swift_string(text)
    assert literal.isascii()
    # Swift's u{1f600} is Python's U0001f600; there are no other escapes.
    python = re.sub(r"\\u\{([0-9a-f]+)\}", lambda found: rf"\U{int(found[1], 16):08x}", literal)
    assert python.count("\\") == literal.count("\\")
    assert ast.literal_eval(python) == text


@pytest.mark.parametrize(
    ("path", "written"),
    [
        ("files/m\u00fc [1] + 2's.txt", "files/m\u00fc [1] + 2's.txt"),
        ("files/100%.txt", "files/100%25.txt"),
        ('files/a?b#c"d\\e\tf ', "files/a%3Fb%23c%22d%5Ce%09f%20"),
    ],
)
def test_url_path_when_written_has_only_what_would_be_read_otherwise_escaped(path, written):
    assert render.format_url_path(path) == written
    assert urllib.parse.unquote(written) == path


@pytest.fixture
def family(tmp_path, monkeypatch):
    """A function that writes a family's files, and returns what is rendered of it."""
    monkeypatch.setattr(render, "find_templates_dir", lambda: tmp_path)
    (tmp_path / "tiny").mkdir()

    def rendered(yaml: str, **files: bytes):
        (tmp_path / "tiny" / "family.yaml").write_text(f"files:\n{yaml}")
        for name, data in files.items():
            (tmp_path / "tiny" / name.replace("_", ".")).write_bytes(data)
        return render.render_family(
            "tiny", None, SimpleNamespace(place="a/b", kotlin_package="a.b", shares_runtime=False)
        )

    return rendered


def test_family_when_an_output_names_the_app_puts_the_file_there(family):
    line = "- {template: x.kt.j2, output: 'src/{{ app.place }}/X.kt', role: source}\n"
    [file] = family(line, x_kt_j2=b"// {{ app.place }}")
    assert (file.path, file.data) == ("src/a/b/X.kt", b"package a.b\n\n// a/b")


def test_family_when_a_file_is_no_template_carries_its_bytes(family):
    data = b"let a = {{ 1 }} // {% \r\n"
    [file] = family("- {template: x.swift, output: x.swift, role: source}\n", x_swift=data)
    assert file.data == data


def test_family_when_a_template_names_what_is_not_there_is_an_error(family):
    with pytest.raises(ToolError, match="nothing"):
        family("- {template: x.j2, output: x, role: source}\n", x_j2=b"{{ app.nothing }}")
