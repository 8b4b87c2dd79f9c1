"""The runtime library for Android and the bundles that share it; tests/mobile compiles them."""

import re
from typing import get_args
from xml.etree import ElementTree

import edgepack
import pytest
from edgepack.apps.library import make_library
from edgepack.apps.names import AnswerKind, App, make_app, require_other_than_library
from edgepack.apps.render import BundleContext, render_family, render_library
from edgepack.base.resources import find_templates_dir
from edgepack.base.yaml_source import read_yaml
from edgepack.errors import ProfileError
from edgepack.model.facts import TensorSpec
from edgepack.project.profile import load_profile
from edgepack.project.project import Project

ANDROID = find_templates_dir() / "android"
TARGETS = ["android", "android-nnapi", "android-qnn", "android-xnnpack"]
POM = "{http://maven.apache.org/POM/4.0.0}"
CODE = "src/main/kotlin/"


def project(name: str = "detector", **names: str) -> Project:
    return Project.model_validate(
        {"schema_version": 1, "name": name, "model": "net.onnx", "app": names}
    )


def app(name: str = "detector", **names: str) -> App:
    described = project(name, **names)
    inputs, outputs = [TensorSpec("x", "float32", (1, 8))], [TensorSpec("y", "float32", (1,))]
    return make_app(described, load_profile("android"), inputs, outputs)


def bundle(runtime: str) -> dict[str, str]:
    """Return the texts of a bundle's files by path."""
    texts = dict.fromkeys(("bundle_id", "name", "version", "target_title"), "text")
    values = dict.fromkeys(BundleContext.__dataclass_fields__, ())
    more = {"kotlin_version": "", "coroutines": "", "data_size": "1 MB"}
    context = BundleContext(**{**values, **texts, **more})
    files = render_family("android", context, app(runtime=runtime))
    return {file.path: file.data.decode() for file in files}


def library(target: str = "android") -> dict[str, str]:
    """Return the texts of the library's files by path."""
    files = render_library("android", make_library(load_profile(target)))
    return {file.path: file.data.decode() for file in files}


def list_code(files: dict[str, str], folder: str) -> set[str]:
    """Return the names of the Kotlin files, all of which lie in one folder."""
    paths = [path for path in files if path.endswith(".kt")]
    assert {path.rpartition("/")[0] for path in paths} == {CODE + folder}
    return {path.rpartition("/")[2] for path in paths}


def test_family_when_a_file_lies_in_its_folder_names_it():
    lists = read_yaml(ANDROID / "family.yaml").values.values()
    listed = {entry["template"] for entries in lists for entry in entries}
    found = {path.relative_to(ANDROID).as_posix() for path in ANDROID.rglob("*") if path.is_file()}
    assert listed == found - {"family.yaml"}


def test_bundle_when_it_shares_has_its_own_code_alone_and_the_library_the_rest():
    shared, plain = bundle("shared"), bundle("vendored")
    own = list_code(shared, "edgepack/detector")
    assert own == {"Model.kt", "Coroutines.kt"}
    rest = list_code(library(), "edgepack/runtime")
    assert own & rest == set()
    assert own | rest == list_code(plain, "edgepack/detector")


def test_bundle_when_it_shares_imports_the_library_and_depends_on_it():
    shared, plain = bundle("shared"), bundle("vendored")
    for name in ("Model.kt", "Coroutines.kt"):
        path = f"{CODE}edgepack/detector/{name}"
        assert "\nimport edgepack.runtime.*\n" in shared[path]
        without = shared[path].replace("import edgepack.runtime.*\n", "")
        assert without == plain[path]
    assert not [path for path, text in plain.items() if "edgepack.runtime.*" in text]
    for path in ("build.gradle.kts", "README.md"):
        assert ":edgepack-runtime" in shared[path]
        assert ":edgepack-runtime" not in plain[path]


def test_pom_of_a_bundle_names_the_library_as_its_own_does():
    theirs, own = (
        ElementTree.fromstring(files["aar/pom.xml"]) for files in (bundle("shared"), library())
    )
    keys = [f"{POM}{key}" for key in ("groupId", "artifactId", "version")]
    named = [own.findtext(key) for key in keys]
    assert named == ["edgepack", "edgepack-runtime", edgepack.__version__]
    needed = [[each.findtext(k) for k in keys] for each in theirs.iter(f"{POM}dependency")]
    assert named in needed
    assert "edgepack-runtime" not in bundle("vendored")["aar/pom.xml"]


def test_code_of_a_bundle_and_the_library_have_one_version():
    model = bundle("shared")[f"{CODE}edgepack/detector/Model.kt"]
    [asked] = re.findall(r'requireVersion\("Detector", "(.+)"\)', model)
    opened = library()[f"{CODE}edgepack/runtime/OpenModel.kt"]
    [has] = re.findall(r'const val VERSION = "(.+)"', opened)
    assert asked == has == edgepack.__version__


@pytest.mark.parametrize("target", TARGETS)
def test_library_when_made_for_any_target_is_the_same(target):
    assert library(target) == library("android")


def test_library_has_nothing_of_a_model():
    script = library()["build.gradle.kts"]
    assert 'namespace = "edgepack.runtime"' in script
    assert "assets" not in script
    assert 'compileOnly("com.microsoft.onnxruntime:onnxruntime-android:' in script
    assert script.count("{") == script.count("}")
    assert "-keepclassmembers enum edgepack.runtime.** {" in library()["consumer-rules.pro"]


@pytest.mark.parametrize("runtime", ["shared", "vendored"])
@pytest.mark.parametrize(
    ("target", "name", "names"),
    [
        ("android", "runtime", {}),
        ("android", "detector", {"package": "edgepack.runtime"}),
        ("web", "runtime", {}),
        ("web", "detector", {"npm": "edgepack-runtime"}),
    ],
)
def test_app_when_it_is_called_as_the_library_says_so(target, name, names, runtime):
    profile = load_profile(target)
    with pytest.raises(ProfileError, match="is the runtime library, which models of an app share"):
        require_other_than_library(project(name, runtime=runtime, **names), profile)
    require_other_than_library(project(name, **names), load_profile("linux-x86-64"))
    require_other_than_library(project(runtime=runtime), profile)


def test_open_model_when_a_bundle_may_have_an_answer_makes_it():
    code = library()[f"{CODE}edgepack/runtime/OpenModel.kt"]
    made = set(re.findall(r"fun (\w+)\(output: String\): Found<", code))
    template = (ANDROID / "kotlin" / "Model.kt.j2").read_text("utf-8")
    [asked] = re.findall(r"set finders = \{(.*?)\} %\}", template, re.DOTALL)
    kinds = dict(re.findall(r'"(\w+)": "(\w+)"', asked))
    assert set(kinds) == set(get_args(AnswerKind)) - {"raw"}
    assert set(kinds.values()) == made
