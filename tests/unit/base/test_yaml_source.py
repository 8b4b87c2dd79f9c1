from __future__ import annotations

import contextlib
import json
from typing import Annotated, Literal

import pytest
import yaml
from edgepack.base import yaml_source
from edgepack.base.resources import find_targets_dir
from edgepack.base.schema import StrictModel
from edgepack.base.yaml_source import parse_yaml, read_yaml
from edgepack.errors import ProfileError
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import Field


class Inner(StrictModel):
    per_channel: bool
    scale: float = 1.0


class Outer(StrictModel):
    name: str
    inner: Inner
    items: list[Inner] = []


class Box(StrictModel):
    box: int
    pad: Annotated[int, Field(le=255)] = 0


class Sides(StrictModel):
    width: int
    height: int


class Wire(StrictModel):
    via: Literal["usb", "ssh"]
    speed: int = 1


class Radio(StrictModel):
    via: Literal["wifi"]
    channel: int = 1


class Choices(StrictModel):
    schema_version: Literal[1] = 1
    size: Box | Sides | None = None
    metric: Literal["top1", "agreement"] | Inner | None = None
    share: Literal["all"] | Annotated[float, Field(gt=0, le=1)] = "all"
    links: dict[str, Annotated[Wire | Radio, Field(discriminator="via")]] = {}


def problems(text: str) -> str:
    with pytest.raises(ProfileError) as caught:
        parse_yaml(text, name="t").parse(Choices)
    return str(caught.value)


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("size: {box: 6, padd: 1}", "t:1:16: unknown key 'padd'\n  hint: did you mean 'pad'?"),
        (
            "size: {box: 6, pad: 256}",
            "t:1:16: 'pad' cannot be 256\n  hint: it must be less than or equal to 255",
        ),
        ("size: {box: x}", "t:1:8: 'box' cannot be 'x'\n  hint: give a whole number"),
        (
            "size: {box: 6, width: 1}",
            "t:1:16: the key 'width' does not go with the others here\n  hint: remove it",
        ),
        (
            "size: {hight: 6, width: 1}",
            (
                "t:1:1: the key 'height' is missing\n  hint: add it\n"
                "error: t:1:8: unknown key 'hight'\n  hint: did you mean 'height'?"
            ),
        ),
        ("size: {}", "t:1:1: 'size' cannot be {}\n  hint: one of: {box}, {width, height}"),
        ("size: 5", "t:1:1: 'size' cannot be 5\n  hint: one of: {box}, {width, height}"),
        ("metric: top2", "t:1:1: 'metric' cannot be 'top2'\n  hint: did you mean 'top1'?"),
        ("metric: {scale: 1.0}", "t:1:1: the key 'per_channel' is missing\n  hint: add it"),
        (
            "share: 1.5",
            "t:1:1: 'share' cannot be 1.5\n  hint: it must be less than or equal to 1",
        ),
        ("share: true", "t:1:1: 'share' cannot be True\n  hint: one of: a number, all"),
    ],
)
def test_union_when_wrong_reports_only_the_member_that_was_meant(text, message):
    assert problems(text) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{via: shs}", "t:1:13: 'via' cannot be 'shs'\n  hint: did you mean 'ssh'?"),
        ("{}", "t:1:9: the key 'via' is missing\n  hint: add it, with one of: usb, ssh, wifi"),
        (
            "{via: wifi, speed: 3}",
            "t:1:24: the key 'speed' does not go with the others here\n  hint: remove it",
        ),
        ("3", "t:1:9: 'a' cannot be 3\n  hint: give keys with values: via, speed, channel"),
    ],
)
def test_tagged_union_when_wrong_says_which_tags_there_are(text, message):
    assert problems(f"links: {{a: {text}}}") == message


def test_schema_version_when_newer_says_which_is_read():
    assert problems("schema_version: 2") == (
        "t:1:1: 'schema_version' cannot be 2\n"
        "  hint: this edgepack reads 1; a newer file needs a newer edgepack"
    )


def test_document_when_not_a_mapping_says_which_keys_it_has():
    assert "t:1:1: the document cannot be [1]\n  hint: give keys with values: s" in problems("[1]")


@pytest.mark.parametrize("key", ["1", "true", "null", "1.5"])
def test_key_when_not_text_is_a_problem_of_the_file(key):
    assert "is not text\n  hint: put it in quotes" in problems(f"links: {{{key}: {{via: usb}}}}")


def test_aliases_when_they_multiply_are_refused_with_place():
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    with pytest.raises(ProfileError, match="t:6:5: what begins here stands for more than 100000"):
        parse_yaml("\n".join(lines), name="t")


def test_alias_when_it_holds_itself_is_refused_and_a_plain_one_read():
    with pytest.raises(ProfileError, match="t:1:4: what begins here holds itself"):
        parse_yaml("a: &x [*x]", name="t")
    assert parse_yaml("a: &x [1]\nb: *x", name="t").values == {"a": [1], "b": [1]}


def test_parse_when_a_key_is_twice_there_says_where():
    with pytest.raises(ProfileError, match=r"t.yaml:3:1: duplicate key 'a'"):
        parse_yaml("a: 1\nb: 2\na: 3\n", name="t.yaml")


@pytest.mark.parametrize(
    "text", ["a: [1", "a: b: c", "\t- x", "a: &x [*x, 1", "!!python/name:os.x"]
)
def test_parse_when_not_yaml_says_where(text):
    with pytest.raises(ProfileError, match="not valid YAML"):
        parse_yaml(text, name="t.yaml")


def test_read_when_given_a_folder_says_to_name_the_file_in_it(tmp_path):
    with pytest.raises(ProfileError, match="Is a directory\n  hint: name the YAML file in it"):
        read_yaml(tmp_path)


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


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 50_000, "- " * 100_000 + "a"])
def test_parse_when_nested_beyond_any_stack_is_an_error_and_no_crash(text):
    with pytest.raises(ProfileError, match=r"not valid YAML: .*recursion"):
        parse_yaml(text, name="t")


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML is without libyaml here")
@pytest.mark.parametrize("path", sorted(find_targets_dir().glob("*.yaml")), ids=lambda p: p.stem)
def test_fast_loader_when_it_reads_a_profile_gives_values_and_places_of_the_other(path):
    fast, slow = {}, {}
    text = path.read_text(encoding="utf-8")
    assert yaml_source._load_fast(text, "t", fast) == yaml_source._load(
        yaml_source._Loader(text), "t", slow
    )
    assert fast == slow


PIECES = [
    *("a", "b: ", ": ", ",", "- ", "[", "]", "{", "}", "&x ", "*x", "'", '"', " #", "#", "?", "!"),
    *("  ", "0", "1e3", "~", "|", ">-", "|+", " |\n  ", "%", "<<", "...", "é", "\\n", "---\n"),
    *("\n", "\n  ", "\r\n", "\t", "\u2028", "\x85", "\ufeff"),
]


@pytest.mark.parametrize("text", ["---\n #", "---", "--- # nothing", "~\n #"])
def test_parse_when_a_document_is_empty_has_its_place_as_the_other_loader_has_it(text):
    marks = {}
    yaml_source._load(yaml_source._Loader(text), "t", marks)
    assert parse_yaml(text, name="t").marks == marks


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
@example("---\n #")
def test_fast_loader_when_it_reads_any_text_gives_what_the_other_does(text):
    def read(load):
        marks = {}
        try:
            return load(marks), marks
        except ProfileError as error:
            return str(error)

    found = read(lambda marks: yaml_source._load_fast(text, "t", marks))
    if found != (None, {}):
        loader = yaml_source._Loader(text)
        assert found == read(lambda marks: yaml_source._load(loader, "t", marks))
