"""What a bundle for iOS carries beside its models; compiling it is tests/mobile's."""

import plistlib
import re

import edgepack
import pytest
from edgepack.apps.library import make_library
from edgepack.apps.names import App, make_app, require_version
from edgepack.apps.render import BundleContext, RenderedFile, render_family, render_library
from edgepack.base.resources import find_targets_dir, find_templates_dir
from edgepack.base.yaml_source import read_yaml
from edgepack.errors import ProfileError
from edgepack.model.facts import TensorSpec
from edgepack.project.profile import load_profile, read_profile
from edgepack.project.project import Project

APPLE = find_templates_dir() / "apple"
MODEL = "Sources/EdgepackDetector/Model.swift"
HOSTILE = 'x "\\(y)*/ \n'


def app(**project: object) -> App:
    described = Project.model_validate(
        {"schema_version": 1, "name": "detector", "model": "net.onnx", **project}
    )
    inputs = [TensorSpec(HOSTILE, "float32", (1, 3, 8, 8)), TensorSpec("mask", "int64", ("n",))]
    outputs = [TensorSpec("class", "float16", (1, 3)), TensorSpec("2", "bool", ())]
    return make_app(described, load_profile("ios"), inputs, outputs)


def app_of_three(tokens: object) -> App:
    """Return an app whose model takes a text, the mask over it, and something else."""
    described = {"ids": {"tokens": tokens}, "mask": {"mask": "n"}}
    project = {"schema_version": 1, "name": "detector", "model": "net.onnx", "inputs": described}
    shapes = {"other": (1, 3), "ids": (1, "n"), "mask": (1, "n")}
    inputs = [TensorSpec(name, "int64", shape) for name, shape in shapes.items()]
    outputs = [TensorSpec("y", "float32", (1,))]
    return make_app(Project.model_validate(project), load_profile("ios"), inputs, outputs)


def rendered(given: App) -> dict[str, RenderedFile]:
    texts = dict.fromkeys(("bundle_id", "name", "version", "target_title"), "text")
    values = dict.fromkeys(BundleContext.__dataclass_fields__, ())
    context = BundleContext(**{**values, **texts, "kotlin_version": "", "data_size": "1 MB"})
    return {file.path: file for file in render_family("apple", context, given)}


def test_bundle_when_its_runtime_is_shared_has_the_code_of_its_model_alone():
    files = rendered(app(app={"runtime": "shared"}))
    assert [path for path in files if path.startswith("Sources/")] == [MODEL]
    assert "PrivacyInfo.xcprivacy" not in files
    package = files["Package.swift"].data.decode()
    assert '.package(path: "../edgepack-runtime-apple")' in package
    assert "onnxruntime-c" not in package
    assert f'if library != "{edgepack.__version__}"' in package
    model = files[MODEL].data.decode()
    assert "@_spi(EdgepackGenerated) @_exported import EdgepackRuntime\n" in model
    assert model.count(f'try requireRuntime(of: "{edgepack.__version__}")') == 2
    assert b"raise 'EdgepackDetector shares" in files["EdgepackDetector.podspec"].data
    assert b"../edgepack-runtime-apple" not in rendered(app())["Package.swift"].data


def test_library_has_what_bundles_lack_that_share_it():
    library = {f.path: f for f in render_library("apple", make_library(load_profile("ios")))}
    own, shared = rendered(app()), rendered(app(app={"runtime": "shared"}))
    lacking = {path.replace("EdgepackDetector", "EdgepackRuntime") for path in own.keys() - shared}
    more = library.keys() - lacking
    assert lacking < library.keys()
    assert "Sources/EdgepackRuntime/Library.swift" in more
    package = library["Package.swift"].data.decode()
    assert 'products: [.library(name: "EdgepackRuntime"' in package
    assert load_profile("ios").runtime.checksums["onnxruntime-c"] in package
    said = f'version == "{edgepack.__version__}"'
    assert said in library["Sources/EdgepackRuntime/Library.swift"].data.decode()


def test_model_when_it_calls_the_runtime_calls_what_other_modules_see():
    model = (APPLE / "Sources" / "Model.swift.j2").read_text()
    answering = (APPLE / "Sources" / "Answering.swift").read_text()
    calls = re.findall(r'"call": "(\w+)"', model)
    assert len(calls) > 4
    assert all(f"public func {call}(" in answering for call in calls)


def test_family_when_a_file_lies_in_its_folder_names_it():
    lists = read_yaml(APPLE / "family.yaml").values.values()
    listed = {entry["template"] for entries in lists for entry in entries}
    found = {path.relative_to(APPLE).as_posix() for path in APPLE.rglob("*") if path.is_file()}
    assert listed == found - {"family.yaml"} - {p for p in found if p.startswith("Harness/")}


def test_sources_when_names_are_hostile_hold_them_as_literals_and_in_one_line_comments():
    files = rendered(app(inputs={"mask": {"mask": "n"}}))
    model = files[MODEL].data.decode()
    # Without literals and comments nothing of the name is left.
    code = re.sub(r'"(?:\\.|[^"\\\n])*"|//[^\n]*', "", model)
    assert "*/" not in code
    assert code.count('"') == 0
    assert "public var mask: Tensor<Int64>?" in model
    assert "mask: Tensor<Int64>? = nil" in model
    assert "public let classOutput: Tensor<Float>" in model
    assert "public let output2: Tensor<Bool>" in model


@pytest.mark.parametrize(
    ("described", "member"),
    [
        ({"kind": "classification"}, "[Classification]"),
        ({"kind": "detection", "layout": "yolo"}, "[Detection]"),
        ({"kind": "embedding", "pooling": "none"}, "Tensor<Float>"),
    ],
)
def test_answers_when_an_output_is_described_have_a_property_of_its_type(described, member):
    files = rendered(app(outputs={"class": described}))
    model = files[MODEL].data.decode()
    assert f"public var classOutput: {member} " in model


def test_predict_when_the_one_needed_input_is_a_picture_takes_a_picture():
    image = {"image": {"resize": {"letterbox": 8}}}
    both = rendered(app(inputs={"mask": {"mask": "n"}, HOSTILE: image}))
    not_all = rendered(app(inputs={HOSTILE: image}))
    assert b"func predict(_ picture: Picture" in both[MODEL].data
    assert b"func predict(_ picture: Picture" not in not_all[MODEL].data
    assert b"of image: CGImage, orientation" in not_all[MODEL].data
    assert b"predict(.init(xY: model.xY(of: image), mask: mask))" in not_all["README.md"].data


@pytest.mark.parametrize("name", ["Device", "IMAGES", "opening", "detector"])
def test_sources_when_the_project_is_called_as_one_of_them_do_not_overwrite_it(name):
    lists = read_yaml(APPLE / "family.yaml").values
    family = [entry["output"] for entry in (*lists["files"], *lists["runtime"])]
    # Apple's file systems take names as equal that differ in case.
    assert len({path.lower() for path in rendered(app(name=name))}) == len(family)


def test_podspec_gives_the_c_module_to_the_library_and_to_the_app_that_imports_it():
    podspec = rendered(app())["EdgepackDetector.podspec"].data.decode()
    settings = re.findall(r"(\w+)_target_xcconfig = \{\s*'SWIFT_INCLUDE_PATHS' => (.*)", podspec)
    assert [target for target, _ in settings] == ["pod", "user"]
    assert all("/Sources/CEdgepackDetector/include" in path for _, path in settings)


@pytest.mark.parametrize(
    ("described", "given"),
    [
        ({"image": {"resize": {"letterbox": 8}}}, "predict(image)"),
        ({"tokens": {"file": "tokenizer.json", "length": 8}}, "predict(text)"),
        ({"pad": 0}, "predict(.init(xY: xY))"),
    ],
)
def test_readme_gives_the_model_what_its_input_is_made_from(described, given):
    readme = rendered(app(inputs={"mask": {"mask": "n"}, HOSTILE: described}))["README.md"].data
    assert f"let outputs = try await model.{given}" in readme.decode()


def test_texts_when_a_text_gives_several_inputs_each_has_a_function_of_it():
    tokens = {"file": "tokenizer.json", "length": 8, "attention_mask": "mask"}
    files = rendered(app(inputs={HOSTILE: {"tokens": tokens}}))
    assert b"func xY(of text: String) throws -> Tensor<Float>" in files[MODEL].data
    assert b"func mask(of text: String) throws -> Tensor<Int64>" in files[MODEL].data


def test_readme_when_a_mask_is_made_of_a_text_gives_it_too():
    tokens = {"file": "tokenizer.json", "length": 8, "attention_mask": "mask"}
    readme = rendered(app_of_three(tokens))["README.md"].data.decode()
    given = "other: other, ids: model.ids(of: text), mask: model.mask(of: text)"
    assert f"model.predict(.init({given}))" in readme


@pytest.mark.parametrize(
    ("version", "taken"),
    [
        ("1.0.0", "1.0.0"),
        ("2.1", "2.1.0"),
        ("7", "7.0.0"),
        ("2026.03.1", "2026.3.1"),
        ("1.0-rc.1", "1.0.0-rc.1"),
        ("1.0.0-0a+b4", "1.0.0-0a+b4"),
    ],
)
def test_version_when_it_can_be_semantic_is_so_for_package_managers(version, taken):
    assert app(version=version).semantic_version == taken


def test_version_when_it_is_short_is_semantic_in_pod_and_package():
    files = rendered(app(version="2.1"))
    assert b"spec.version = '2.1.0'" in files["EdgepackDetector.podspec"].data
    assert b'exact: "2.1.0"' in files["README.md"].data


@pytest.mark.parametrize("version", ["1.0_rc", "1.2.3.4", "v1.0", "beta", "1.0.0-rc.01", "1.0rc"])
def test_version_when_no_package_manager_takes_it_says_what_to_write(version):
    with pytest.raises(ProfileError, match="SwiftPM and CocoaPods") as refused:
        require_version(load_profile("ios"), version)
    assert "1.0.0-rc.1" in str(refused.value.hint)
    assert require_version(load_profile("android"), version) == ""


def test_package_names_the_archive_that_the_profile_pins():
    runtime = load_profile("ios").runtime
    package = rendered(app())["Package.swift"].data.decode()
    assert f"onnxruntime-c-{runtime.packages['onnxruntime-c']}.zip" in package
    assert f'checksum: "{runtime.checksums["onnxruntime-c"]}"' in package
    assert 'platforms: [.iOS("15.1")]' in package


def test_privacy_manifest_says_that_nothing_is_collected():
    said = plistlib.loads((APPLE / "PrivacyInfo.xcprivacy").read_bytes())
    assert said["NSPrivacyTracking"] is False
    assert said["NSPrivacyCollectedDataTypes"] == []


def test_profile_when_an_archive_has_no_checksum_is_refused(tmp_path):
    text = (find_targets_dir() / "ios.yaml").read_text()
    path = tmp_path / "ios.yaml"
    path.write_text(re.sub(r"  checksums:\n    onnxruntime-c: \w+\n", "", text))
    with pytest.raises(ProfileError, match="onnxruntime-c") as refused:
        read_profile(path)
    assert "compute-checksum" in str(refused.value.hint)
