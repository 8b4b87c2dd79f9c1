"""Names and types of an app's API, from any model and project."""

from __future__ import annotations

import re

import pytest
from edgepack.apps.names import make_app
from edgepack.apps.render import BundleContext, FamilyFile, render_family
from edgepack.base.resources import find_templates_dir
from edgepack.base.yaml_source import read_yaml
from edgepack.errors import ModelError, ProfileError
from edgepack.model.facts import TensorSpec
from edgepack.project.identifiers import (
    find_taken_types,
    is_reserved_in_packages,
    make_comment,
    make_comment_lines,
    make_identifiers,
    make_package_segment,
    make_type_name,
)
from edgepack.project.profile import load_profile
from edgepack.project.project import Project
from hypothesis import example, given
from hypothesis import strategies as st
from jinja2 import Template

LANGUAGES = st.sampled_from(["kotlin", "swift", "js"])
# Written down here apart from the module's own lists.
KEYWORDS = {
    "kotlin": {"as", "fun", "in", "is", "object", "package", "typeof", "val", "var", "when"},
    "swift": {"associatedtype", "defer", "func", "guard", "in", "inout", "is", "let", "nil", "var"},
    "js": {"arguments", "await", "delete", "enum", "eval", "in", "let", "new", "static", "then"},
}
BOTH = {"break", "class", "continue", "do", "else", "false", "for", "if", "null", "return", "super"}
NAMES = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        sorted({*(word for words in KEYWORDS.values() for word in words), *BOTH, "component1"})
    ),
    st.from_regex(r"[aA][ _]?[bB]?[0-3]?", fullmatch=True),
)


@given(st.lists(NAMES, unique=True), LANGUAGES)
@example(["in", "inInput", "IN", "in 2"], "kotlin")
@example(["", " ", "输入", "input", "0", "٣"], "swift")
def test_identifiers_when_names_are_anything_are_valid_unique_and_not_reserved(names, language):
    found = make_identifiers(names, language, "input")
    assert len(found) == len(names) == len(set(found))
    assert all(re.fullmatch(r"[a-z][A-Za-z0-9]*", name) for name in found)
    assert not set(found) & KEYWORDS[language]
    assert not set(found) & (BOTH - ({"null"} if language == "swift" else set()))
    assert not any(re.fullmatch(r"component\d+", name) for name in found)


@given(st.lists(NAMES, unique=True), LANGUAGES)
def test_identifiers_when_asked_again_are_the_same(names, language):
    assert make_identifiers(names, language, "x") == make_identifiers(names, language, "x")


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("images", "images"),
        ("input_ids", "inputIds"),
        ("pixel values", "pixelValues"),
        ("serving_default/x:0", "servingDefaultX0"),
        ("IMAGE", "image"),
        ("HTTPInput", "httpInput"),
        ("Größe", "groe"),
        ("0", "input0"),
        ("2nd", "input2nd"),
        ("class", "classInput"),
        ("输入", "input"),
        ("close", "closeInput"),
    ],
)
def test_identifiers_when_a_name_is_awkward_stay_readable(name, wanted):
    assert make_identifiers([name], "kotlin", "input") == (wanted,)


def test_identifiers_when_two_names_mend_alike_keeps_the_one_that_needs_no_number():
    assert make_identifiers(["a b", "aB", "a-b2", "aB2"], "swift", "x") == (
        "aB",
        "aB3",
        "aB2",
        "aB22",
    )


@given(st.from_regex(r"[A-Za-z0-9]+([._-][A-Za-z0-9]+)*", fullmatch=True))
@example("string")
@example("3d-net")
@example("class")
def test_type_and_package_when_a_project_has_any_name_are_valid(name):
    named, segment = make_type_name(name), make_package_segment(name)
    assert re.fullmatch(r"[A-Z][A-Za-z0-9]*", named)
    assert named not in find_taken_types()
    assert re.fullmatch(r"[a-z_][a-z0-9_]*", segment)
    assert segment != "_"
    assert not is_reserved_in_packages(segment)


@pytest.mark.parametrize("name", ["session", "string", "Tensor", "manifest", "data", "r"])
def test_type_when_its_name_is_one_that_the_sources_use_is_another(name):
    assert make_type_name(name) == f"{name[0].upper()}{name[1:]}Model"


@pytest.mark.parametrize("name", ["returns", "the", "detector"])
def test_type_when_its_name_is_in_comments_alone_is_free(name):
    assert make_type_name(name) == name.capitalize()


@given(st.text())
@example("a*/ b")
@example("/**/*/")
@example("x\ny")
def test_comment_when_a_text_is_anything_neither_ends_a_comment_nor_a_line(text):
    found = make_comment(text)
    assert "*/" not in found
    assert "/*" not in found
    assert "`" not in found
    assert found.isprintable() or not found


def spec(name, dtype="float32", shape=(1, 8)):
    return TensorSpec(name, dtype, shape)


def app(takes=(), gives=(), target="android", **project):
    wanted = Project.model_validate(
        {"schema_version": 1, "name": "my-net", "version": "2.1", "model": "m.onnx", **project}
    )
    return make_app(wanted, load_profile(target), list(takes), list(gives))


def test_app_when_the_project_names_nothing_has_names_that_follow_from_its_own():
    made = app()
    assert (made.type_name, made.kotlin_package) == ("MyNet", "edgepack.my_net")
    assert made.package_path == "edgepack/my_net"
    assert (made.group, made.artifact, made.version) == ("edgepack", "my-net-android", "2.1")
    assert made.swift_module == "EdgepackMyNet"
    assert made.assets == "edgepack/my-net"


def test_app_when_the_project_gives_names_has_these():
    made = app(app={"package": "com.acme.vision.detector", "type": "Detector"})
    assert (made.type_name, made.kotlin_package) == ("Detector", "com.acme.vision.detector")
    assert (made.group, made.package_path) == ("com.acme.vision", "com/acme/vision/detector")


@pytest.mark.parametrize(
    ("names", "word"),
    [
        ({"package": "detector"}, "no package"),
        ({"package": "com.Acme"}, "no package"),
        ({"package": "com.class.x"}, "'class'"),
        ({"package": "kotlin.detector"}, "Kotlin's own"),
        ({"package": "ai.onnxruntime"}, "onnxruntime's own"),
        ({"package": "ai.onnxruntime.detector"}, "onnxruntime's own"),
        ({"package": "java.detector"}, "Java's own"),
        ({"type": "detector"}, "no type's name"),
        ({"type": "String"}, "StringModel"),
    ],
)
def test_project_when_its_app_has_a_name_that_no_compiler_takes_says_so(names, word):
    with pytest.raises(ValueError, match=word):
        app(app=names)


@pytest.mark.parametrize("name", ["device", "Images", "wordpiece"])
def test_android_files_when_the_project_is_called_as_one_of_them_have_a_path_each(name):
    family = read_yaml(find_templates_dir() / "android" / "family.yaml").parse(FamilyFile)
    files = [*family.files, *family.runtime]
    paths = [Template(file.output).render(app=app(name=name)) for file in files]
    # Some file systems take names as equal that differ in case.
    assert len({path.lower() for path in paths}) == len(files)


def test_app_when_inputs_are_described_knows_which_a_caller_gives():
    image = {"image": {"resize": {"letterbox": 64}}}
    made = app(
        [spec("images"), spec("mask", "int64")],
        [spec("scores")],
        inputs={"images": image, "mask": {"mask": "n"}},
        outputs={"scores": {"kind": "classification"}},
    )
    assert [t.name for t in made.needed] == ["images"]
    assert [t.name for t in made.masks] == ["mask"]
    assert made.image_input == made.inputs[0]
    assert made.text_input is None
    assert [t.answer for t in made.answered] == ["classification"]


@pytest.mark.parametrize(
    ("described", "shape", "pictures", "answer"),
    [
        ({"kind": "mask"}, (1, 21, 65, 65), 1, "mask"),
        ({"kind": "mask", "axis": -1}, ("batch", "h", "w", 21), 1, "mask"),
        ({"kind": "mask"}, (1, 65, 65), 1, "mask"),
        ({"kind": "mask"}, (2, 65, 65), 1, "raw"),
        ({"kind": "mask"}, (1, 65), 1, "raw"),
        ({"kind": "mask"}, (1, 65, 65), 0, "raw"),
        ({"kind": "mask"}, (1, 65, 65), 2, "raw"),
        ({"kind": "probability"}, (1, 1000), 0, "probability"),
        ({"kind": "probability"}, (1, 1001), 0, "raw"),
        ({"kind": "probability"}, ("batch", 2), 0, "probability"),
        ({"kind": "probability"}, ("batch", "n"), 0, "raw"),
        ({"kind": "text", "labels": "a.txt"}, (1, "steps", 9), 0, "text"),
    ],
)
def test_app_when_an_output_is_a_mask_or_decisions_has_a_tensor_of_what_is_neither(
    described, shape, pictures, answer
):
    names = ["a", "b"]
    image = {"image": {"resize": {"letterbox": 64}}}
    made = app(
        [spec(name) for name in names],
        [TensorSpec("out", "float32", shape)],
        inputs=dict.fromkeys(names[:pictures], image),
        outputs={"out": described},
    )
    assert made.outputs[0].answer == answer


def test_app_when_a_text_gives_all_inputs_has_a_text_input():
    tokens = {"tokens": {"file": "tokenizer.json", "length": 8}}
    names = ["input_ids", "attention_mask", "token_type_ids"]
    made = app([spec(name, "int64") for name in names], inputs={"input_ids": tokens})
    assert made.text_input == made.inputs[0]
    assert made.image_input is None
    assert (
        app([spec("input_ids", "int64"), spec("other")], inputs={"input_ids": tokens}).text_input
        is None
    )


def test_app_when_two_inputs_are_images_leaves_them_to_the_caller():
    image = {"image": {"resize": {"letterbox": 64}}}
    made = app([spec("a"), spec("b")], inputs={"a": image, "b": image})
    assert made.image_input is None
    assert [t.name for t in made.pictures] == ["a", "b"]


def test_app_when_inputs_are_made_of_texts_knows_which_text_each_is_made_of():
    tokens = {"tokens": {"file": "tokenizer.json", "length": 8}}
    other = {"tokens": {**tokens["tokens"], "attention_mask": "seen", "token_type_ids": "kinds"}}
    names = ["query", "attention_mask", "page", "seen", "image"]
    made = app([spec(name, "int64") for name in names], inputs={"query": tokens, "page": other})
    texts = {t.name: t.text for t in made.texts}
    assert texts == {"query": "query", "attention_mask": "query", "page": "page", "seen": "page"}
    assert made.text_input is None


def test_app_when_inputs_are_pictures_and_texts_has_an_example_for_each_that_is_given():
    inputs = {
        "ids": {"tokens": {"file": "tokenizer.json", "length": 8}},
        "attention_mask": {"mask": "n"},
        "seen": {"mask": "n"},
        "picture": {"image": {"resize": {"letterbox": 64}}},
    }
    made = app([spec(name) for name in [*inputs, "sizes"]], inputs=inputs)
    wanted = ["model.idsOf(text)", "model.attentionMaskOf(text)", "model.pictureOf(bitmap)"]
    assert [t.kotlin_example for t in made.given] == [*wanted, "sizes"]


@pytest.mark.parametrize(
    ("target", "dtype"), [("android", "uint32"), ("ios", "string"), ("web", "complex64")]
)
def test_app_when_the_platform_has_no_such_tensors_says_what_to_do(target, dtype):
    with pytest.raises(ModelError) as error:
        app([spec("codes", dtype)], target=target)
    assert "'codes'" in error.value.problem
    assert "cast" in error.value.hint


@pytest.mark.parametrize("name", ["😀", "a\0b"])
def test_app_when_java_cannot_name_an_input_says_so_for_android_alone(name):
    with pytest.raises(ModelError, match="Java API cannot name"):
        app([spec(name)])
    assert app([spec(name)], target="ios").inputs[0].name == name


@pytest.mark.parametrize(
    "name", [".labels", "a/.b/c", "_a/b.txt", "a/b~", "a.scc", "CVS/x", "a/Thumbs.db", "words.gz"]
)
def test_app_when_android_would_leave_a_file_out_says_so_for_android_alone(name):
    with pytest.raises(ProfileError, match=r"leaves .* out"):
        app(files=["labels.txt", name])
    assert app(target="ios", files=[name]).artifact == "my-net-ios"


@pytest.mark.parametrize("name", ["_labels.txt", "./a.b/c_d.txt", "a/../b", "cvs.txt", "a.gz.txt"])
def test_app_when_android_takes_a_file_has_no_objection(name):
    assert app(files=[name]).assets == "edgepack/my-net"


def test_app_when_the_target_pins_no_onnxruntime_says_so():
    wanted = Project(schema_version=1, name="net", model="m.onnx")
    profile = load_profile("android")
    runtime = profile.runtime.model_copy(update={"packages": {"com.acme:runtime": "1.0"}})
    with pytest.raises(ProfileError, match="pins no package of onnxruntime"):
        make_app(wanted, profile.model_copy(update={"runtime": runtime}), [], [])


def test_tensor_when_its_name_would_end_a_comment_is_described_harmlessly():
    made = app([spec("a*/\nb", shape=("batch", "?"))])
    assert made.inputs[0].about == "a* / b: float32[batch, ?]"


def test_tensor_when_the_project_names_it_has_that_name_in_code_and_its_own_at_run_time():
    inputs = {"input.1": {"name": "photo", "description": "A photo of one plate."}}
    outputs = {"output0": {"kind": "raw", "name": "in", "description": "Plain\nnumbers."}}
    made = app([spec("input.1")], [spec("output0"), spec("x")], inputs=inputs, outputs=outputs)
    photo, (numbers, other) = made.inputs[0], made.outputs
    assert (photo.name, photo.kotlin, photo.swift) == ("input.1", "photo", "photo")
    assert photo.about == "input.1: float32[1, 8]"
    assert photo.doc == ("A photo of one plate.",)
    assert (numbers.kotlin, numbers.doc) == ("inOutput", ("Plain numbers.",))
    assert (other.kotlin, other.doc) == ("x", ())


@pytest.mark.parametrize("key", ["inputs", "outputs"])
def test_names_when_two_are_alike_are_refused(key):
    kind = {"kind": "raw"} if key == "outputs" else {}
    described = {name: {**kind, "name": "boxes"} for name in ("a", "b")}
    with pytest.raises(ValueError, match=f"two of '{key}' have the name 'boxes'"):
        app(**{key: described})


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", ()),
        (" \n\t", ()),
        ("*/ fun x() {} /*", ("\\* / fun x() {} / *",)),
        ("a\n@throws b", ("a @throws b",)),
        ("@throws `b`", ("\\@throws 'b'",)),
        ("- Parameter x", ("\\- Parameter x",)),
        (f"{'a' * 99} @see x", ("a" * 99, "\\@see x")),
        ("b" * 150, ("b" * 100, "b" * 50)),
        ("Gr\u00f6\u00dfe\u202ein\u2028m", ("Gr\u00f6\u00dfe in m",)),
    ],
)
def test_comment_when_a_text_is_long_or_hostile_has_lines_that_are_text_alone(text, lines):
    assert make_comment_lines(text) == lines


def render_model(made, family):
    """Return the code of the model's class."""
    texts = dict.fromkeys(("bundle_id", "name", "version", "target_title"), "text")
    values = dict.fromkeys(BundleContext.__dataclass_fields__, ())
    context = BundleContext(**{**values, **texts, "kotlin_version": "", "data_size": "1 MB"})
    [file] = [
        f
        for f in render_family(family, context, made)
        if f.data.count(b"class Outputs") or f.data.count(b"struct Outputs")
    ]
    return file.data.decode()


@pytest.mark.parametrize(
    ("target", "family", "begin"),
    [("android", "android", "         * "), ("ios", "apple", "        /// ")],
)
def test_description_when_given_is_in_the_comment_of_its_property(target, family, begin):
    said = {"kind": "raw", "description": "Ends */ here.\n@return nothing"}
    outputs, inputs = {"y": said}, {"x": {"description": "A photo."}}
    made = app([spec("x")], [spec("y")], target=target, outputs=outputs, inputs=inputs)
    code = render_model(made, family)
    assert f"{begin}A photo.\n" in code
    assert f"{begin}Ends * / here. @return nothing\n" in code


@pytest.mark.parametrize(
    ("name", "npm", "wanted"),
    [
        ("my-net", None, "edgepack-my-net"),
        ("MyNet_2", None, "edgepack-mynet_2"),
        ("http", "@acme/http", "@acme/http"),
        ("Net", "acme.net", "acme.net"),
    ],
)
def test_app_when_it_is_for_browsers_has_an_npm_package(name, npm, wanted):
    made = app([spec("input.1")], target="web", name=name, app={"npm": npm})
    assert (made.npm_package, made.semantic_version) == (wanted, "2.1.0")
    assert (made.runtime_version, made.min_version) == ("1.30.0", "")
    assert (made.inputs[0].js, made.inputs[0].js_type) == ("input1", "Float32Array")
    assert app(target="ios", name=name).npm_package == ""


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("Detector", "lower-case"),
        ("_detector", "lower-case"),
        (".detector", "lower-case"),
        ("@acme", "lower-case"),
        ("@acme/", "lower-case"),
        ("@acme/a/b", "lower-case"),
        ("a b", "lower-case"),
        ("@acme/../x", "lower-case"),
        ("a" * 215, "215 characters"),
        ("stream", "of that name"),
        ("node_modules", "of that name"),
    ],
)
def test_project_when_its_npm_package_has_a_name_that_npm_refuses_says_so(name, word):
    with pytest.raises(ValueError, match=word):
        app(app={"npm": name})


@pytest.mark.parametrize("version", ["v1", "1.0.0.0", "1.0rc1"])
def test_app_when_npm_does_not_take_the_version_says_so(version):
    with pytest.raises(ProfileError, match="npm takes"):
        app(target="web", version=version)
