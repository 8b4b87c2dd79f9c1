from __future__ import annotations

import contextlib
import json

import pytest
from edgepack.errors import ProfileError
from edgepack.profile import StrictModel
from edgepack.yaml_source import parse_yaml, read_yaml
from hypothesis import given
from hypothesis import strategies as st


class Inner(StrictModel):
    per_channel: bool
    scale: float = 1.0


class Outer(StrictModel):
    name: str
    inner: Inner
    items: list[Inner] = []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("017", "017"),
        ("22:22", "22:22"),
        ("2024-01-01", "2024-01-01"),
        ("1e-3", 0.001),
        ("0", 0),
        ("-4", -4),
        (".5", 0.5),
        ("true", True),
        ("null", None),
        ("", None),
        ("~", None),
        ("1.10.0", "1.10.0"),
        ("-.inf", float("-inf")),
    ],
)
def test_scalar_when_read_follows_yaml_1_2(text, value):
    assert parse_yaml(f"key: {text}\n", name="x").values["key"] == value


def test_parse_when_several_keys_are_wrong_names_each_with_place_and_nearest():
    text = "name: a\ninner: {per_chanel: true}\nitems:\n  - {per_channel: 3}\nnmae: b\n"
    with pytest.raises(ProfileError) as caught:
        parse_yaml(text, name="t.yaml").parse(Outer)
    message = str(caught.value)
    assert "t.yaml:2:9: unknown key 'per_chanel'\n  hint: did you mean 'per_channel'?" in message
    assert "t.yaml:2:1: the key 'per_channel' is missing" in message
    assert "t.yaml:4:6: 'per_channel' cannot be 3" in message
    assert "t.yaml:5:1: unknown key 'nmae'\n  hint: did you mean 'name'?" in message


def test_parse_when_a_key_is_twice_there_says_where():
    with pytest.raises(ProfileError, match=r"t.yaml:3:1: duplicate key 'a'"):
        parse_yaml("a: 1\nb: 2\na: 3\n", name="t.yaml")


@pytest.mark.parametrize(
    "text", ["a: [1", "a: b: c", "\t- x", "a: &x [*x, 1", "!!python/name:os.x"]
)
def test_parse_when_not_yaml_says_where(text):
    with pytest.raises(ProfileError, match="not valid YAML"):
        parse_yaml(text, name="t.yaml")


def test_read_when_file_is_missing_or_binary_is_an_error(tmp_path):
    with pytest.raises(ProfileError, match="there is no file"):
        read_yaml(tmp_path / "none.yaml")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ProfileError, match="cannot read"):
        read_yaml(tmp_path / "b.yaml")


words = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]))
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | words
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
)
json_values = scalars | st.lists(scalars) | st.dictionaries(words, st.lists(scalars) | scalars)


@given(json_values)
def test_json_document_when_read_as_yaml_is_the_same(value):
    text = json.dumps({"key": value}, ensure_ascii=False)
    assert parse_yaml(text, name="x").values == json.loads(text)


@given(st.text(max_size=60))
def test_parse_when_given_any_text_returns_or_raises_its_own_error(text):
    with contextlib.suppress(ProfileError):
        parse_yaml(text, name="x")
