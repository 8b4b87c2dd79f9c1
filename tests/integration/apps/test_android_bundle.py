"""Bundles for Android: the module that apps include, what is left out, and the AAR."""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
from edgepack.apps.aar.archive import write_aar, write_library_aar
from edgepack.apps.aar.toolchain import Toolchain
from edgepack.backends.registry import BACKENDS
from edgepack.backends.simulators import find_backend_simulator
from edgepack.base.files import holding
from edgepack.base.machine import find_processor
from edgepack.base.resources import find_example_dir
from edgepack.base.schema import NotMeasured
from edgepack.builder.build import build, dry_run
from edgepack.builder.judging import Verdict, ship_most
from edgepack.builder.libraries import write_library
from edgepack.bundle.manifest import MANIFEST, Manifest
from edgepack.bundle.reading import verify
from edgepack.cli.main import run
from edgepack.errors import BundleError, ProfileError, ToolError, UsageError
from edgepack.model.running import is_saturating, make_session, run_session
from edgepack.project.profile import load_profile

from tests.support.nets import tiny_models

POM = "{http://maven.apache.org/POM/4.0.0}"
TARGET = "android-xnnpack"
COMPILER = """#!/bin/sh
# Stands for Java with the Kotlin compiler: "compiles" to one class that holds its arguments.
while [ "$1" != -d ]; do shift; done
mkdir -p "$2/edgepack/net" "$2/META-INF"
cd "$3"
find . -name '*.kt' | LC_ALL=C sort > "$2/edgepack/net/Net.class"
echo module > "$2/META-INF/net.kotlin_module"
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, Manifest]:
    """A bundle of a convolution, with a file of the project's, and its manifest."""
    folder = tmp_path_factory.mktemp("android")
    (folder / "labels.txt").write_text("cat\ndog\n")
    project = tiny_models.write_project(folder, "dims: {batch: 1}\nfiles: [labels.txt]")
    [made] = build(project=project, targets=[TARGET], out=folder / "dist").bundles
    return made.bundle.path, made.bundle.manifest


@pytest.fixture
def toolchain(tmp_path) -> Toolchain:
    """A program that stands for the compiler."""
    java = tmp_path / "java"
    java.write_text(COMPILER)
    java.chmod(0o755)
    return Toolchain(str(java), (), ())


def test_bundle_when_built_for_phones_ships_two_variants_and_says_why_not_more(built):
    _, manifest = built
    shipped = [variant.id for variant in manifest.variants]
    assert shipped == ["cpu-int8-static", "xnnpack-fp32"]
    reasons = {left.variant: left.reason for left in manifest.unused}
    assert set(reasons) == {v.id for v in load_profile(TARGET).variants} - set(shipped)
    assert "would take" in reasons["xnnpack-int8-static"]
    assert "2 at most, which are cpu-int8-static and xnnpack-fp32;" in reasons["cpu-fp32"]
    assert "--variant" in reasons["cpu-fp32"]
    assert len(manifest.goldens) == 1
    assert [list(golden.outputs) for golden in manifest.goldens] == [shipped]


def verdict(*ids: str) -> Verdict:
    """A verdict that ships these variants."""
    profile = load_profile(TARGET)
    planned = [SimpleNamespace(variant=profile.find_variant(name), carried=False) for name in ids]
    shipped = tuple((each, NotMeasured(reason="")) for each in planned)
    return Verdict(TARGET, shipped, (), ())


@pytest.mark.parametrize(
    ("built", "most", "shipped"),
    [
        (["xnnpack-fp32", "xnnpack-int8-static", "cpu-fp32"], 2, ["xnnpack-fp32", "cpu-fp32"]),
        (["cpu-int8-static", "xnnpack-fp32", "cpu-fp32"], 2, ["cpu-int8-static", "xnnpack-fp32"]),
        (["xnnpack-fp32", "xnnpack-int8-static"], 1, ["xnnpack-fp32"]),
        (["xnnpack-fp32", "cpu-fp32"], 1, ["cpu-fp32"]),
        (["cpu-fp32"], 2, ["cpu-fp32"]),
    ],
)
def test_verdict_when_too_many_variants_came_out_keeps_the_best_and_one_for_the_cpu(
    built, most, shipped
):
    found = ship_most(verdict(*built), most)
    assert [planned.variant.id for planned, _ in found.shipped] == shipped
    left_out = [(name, "left out") for name in built if name not in shipped]
    assert [(each.variant, each.stage) for each in found.unused] == left_out


@pytest.mark.slow(reason="builds for three providers")
def test_android_when_built_tries_qnn_then_xnnpack_then_the_cpu_with_two_int8_models(tmp_path):
    project = find_example_dir() / "edgepack.yaml"
    [made] = build(project=project, targets=["android"], out=tmp_path / "dist").bundles
    manifest = made.bundle.manifest
    first, *others = manifest.variants
    assert [v.backend for v in manifest.variants] == ["qnn", "xnnpack", "cpu"]
    assert {v.model for v in others} == {"models/xnnpack-int8-static.onnx"}
    assert first.model not in {v.model for v in others}
    assert sum(file.role == "model" for file in manifest.files) == 2
    simulator = find_backend_simulator(BACKENDS["qnn"])
    assert isinstance(first.simulated, NotMeasured) == isinstance(simulator, NotMeasured)
    script = (made.bundle.path / "build.gradle.kts").read_text()
    assert all(name in script for name in ("onnxruntime-android:", "onnxruntime-android-qnn:"))


@pytest.mark.slow(reason="builds twice")
def test_variants_when_named_are_all_shipped(tmp_path):
    named = ["cpu-int8-static", "xnnpack-fp32", "cpu-fp32"]
    project = tiny_models.write_project(tmp_path, "dims: {batch: 1}")
    [made] = build(project=project, targets=[TARGET], variants=named, out=tmp_path / "a").bundles
    assert [v.id for v in made.bundle.manifest.variants] == named
    assert made.bundle.manifest.unused == []
    recipes = ["int8-static", "fp32", "int8-dynamic"]
    lines = [f"{{backend: cpu, recipe: {recipe}}}" for recipe in recipes]
    own = f"targets: [{{id: {TARGET}, variants: [{', '.join(lines)}]}}]\n"
    project.write_text(re.sub(r"(?m)^targets:.*\n", "", project.read_text()) + own)
    [made] = build(project=project, out=tmp_path / "b").bundles
    assert [v.recipe for v in made.bundle.manifest.variants] == recipes


def test_module_when_rendered_pins_its_packages_and_takes_the_bundle_as_assets(built):
    folder, manifest = built
    script = (folder / "build.gradle.kts").read_text()
    for name, version in manifest.runtime.items():
        assert f'implementation("{name}:{version}")' in script
    assert 'namespace = "edgepack.net"' in script
    assert "minSdk = 24\n" in script
    assert 'into("edgepack/net")' in script
    assert script.count("{") == script.count("}")
    roles = {file.path: file.role for file in manifest.files}
    assert roles["build.gradle.kts"] == roles["consumer-rules.pro"] == "source"
    assert "-keep class ai.onnxruntime.** { *; }" in (folder / "consumer-rules.pro").read_text()
    packages = {
        re.search(r"(?m)^package (\S+)", path.read_text())[1]
        for path in (folder / "src/main/kotlin/edgepack/net").glob("*.kt")
    }
    assert packages == {"edgepack.net"}


def test_android_manifests_when_read_have_the_package_only_in_the_aars(built):
    folder, _ = built
    module = ElementTree.parse(folder / "src/main/AndroidManifest.xml").getroot()
    compiled = ElementTree.parse(folder / "aar/AndroidManifest.xml").getroot()
    assert (module.tag, module.attrib) == ("manifest", {})
    assert compiled.get("package") == "edgepack.net"
    [sdk] = compiled.findall("uses-sdk")
    assert set(sdk.attrib.values()) == {"24"}


def test_readme_when_rendered_shows_what_to_paste(built):
    folder, manifest = built
    text = (folder / "README.md").read_text()
    assert 'include(":net")' in text
    assert f'file("{manifest.id}")' in text
    assert 'implementation(project(":net"))' in text
    # The list counts for all of the app's assets, so that nothing else is in it.
    suffixes = {Path(variant.model).suffix[1:] for variant in manifest.variants}
    listed = re.search(r"noCompress \+= listOf\((.*)\)", text)[1]
    assert set(re.findall(r'"(\w+)"', listed)) == suffixes
    for left in manifest.unused:
        assert left.variant in text
    assert "{{" not in text


def test_documents_when_rendered_say_what_is_shipped_and_sent(built):
    folder, manifest = built
    notices = (folder / "THIRD_PARTY_NOTICES.md").read_text()
    for name, version in manifest.runtime.items():
        assert f"| {name} | {version} |" in notices
    assert "ORT_DISABLE_TELEMETRY=1" in (folder / "DATA_SAFETY.md").read_text()


def test_aar_when_written_is_a_maven_repository_with_all_an_app_needs(built, tmp_path, toolchain):
    folder, manifest = built
    aar = write_aar(folder, tmp_path / "maven", toolchain)
    place = tmp_path / "maven/edgepack" / f"net-{TARGET}" / manifest.version
    assert aar == place / f"net-{TARGET}-{manifest.version}.aar"
    stem = aar.stem
    names = {f"{stem}{ending}" for ending in (".aar", ".pom", "-sources.jar")}
    sums = {f"{name}.{kind}" for name in names for kind in ("sha1", "sha256")}
    assert {path.name for path in place.iterdir()} == names | sums
    for name in names:
        data = (place / name).read_bytes()
        assert (place / f"{name}.sha1").read_text() == hashlib.sha1(data).hexdigest()
        assert (place / f"{name}.sha256").read_text() == hashlib.sha256(data).hexdigest()
    with zipfile.ZipFile(aar) as archive:
        inside = {name: archive.read(name) for name in archive.namelist()}
    for name in ("AndroidManifest.xml", "R.txt", "proguard.txt", "classes.jar"):
        assert name in inside
    read = {f.path for f in manifest.files if f.role in ("model", "golden", "file")} | {MANIFEST}
    assets = {n.removeprefix("assets/edgepack/net/"): n for n in inside if n.startswith("assets/")}
    assert set(assets) == read
    assert all(inside[name] == (folder / path).read_bytes() for path, name in assets.items())
    with zipfile.ZipFile(io.BytesIO(inside["classes.jar"])) as classes:
        assert "META-INF/net.kotlin_module" in classes.namelist()
        compiled = classes.read("edgepack/net/Net.class").decode().split()
    with zipfile.ZipFile(place / f"{stem}-sources.jar") as sources:
        assert [f"./{name}" for name in sources.namelist()] == compiled


@pytest.mark.parametrize(
    ("other", "package", "refused"),
    [("net-2", "edgepack.net", True), ("net-2", "edgepack.net2", False), ("net", None, False)],
)
def test_aar_when_another_projects_has_its_package_is_refused(
    built, tmp_path, toolchain, other, package, refused
):
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    project = tiny_models.write_project(tmp_path, "dims: {batch: 1}\nfiles: [labels.txt]")
    text = project.read_text().replace("name: net\n", f"name: {other}\n")
    app = f"app: {{package: {package}}}\n" if package else ""
    project.write_text(text.replace("1.2.3", "2.0.0") + app)
    variants = ["cpu-fp32"]
    [made] = build(
        project=project, targets=[TARGET], variants=variants, out=tmp_path / "dist"
    ).bundles
    write_aar(built[0], tmp_path / "maven", toolchain)
    if not refused:
        assert write_aar(made.bundle.path, tmp_path / "maven", toolchain).is_file()
        return
    with pytest.raises(BundleError, match=r"net-android-xnnpack-1\.2\.3\.aar .* edgepack\.net too"):
        write_aar(made.bundle.path, tmp_path / "maven", toolchain)
    # Nothing of the second was written.
    [first] = (tmp_path / "maven").rglob("*.aar")
    first.write_bytes(b"half of it")
    with pytest.raises(BundleError, match="is no library for Android: File is not a zip"):
        write_aar(made.bundle.path, tmp_path / "maven", toolchain)


@pytest.fixture(scope="module")
def sharing(tmp_path_factory) -> tuple[Path, Path]:
    """A bundle that shares its runtime, and the library beside it."""
    folder = tmp_path_factory.mktemp("sharing")
    project = tiny_models.write_project(folder, "dims: {batch: 1}\napp: {runtime: shared}")
    result = build(project=project, targets=[TARGET], variants=["cpu-fp32"], out=folder / "dist")
    [library] = result.libraries
    assert library == folder / "dist" / "edgepack-runtime-android"
    return result.bundles[0].bundle.path, library


def test_aar_when_its_bundle_shares_the_runtime_is_compiled_against_the_librarys(
    sharing, tmp_path, toolchain
):
    bundle, library = sharing
    repository = tmp_path / "maven"
    with pytest.raises(BundleError, match=r"has no edgepack:edgepack-runtime:.*, which the bundle"):
        write_aar(bundle, repository, toolchain)
    assert not repository.exists()
    aar = write_library_aar(library, repository, toolchain)
    assert aar.parent.parent == repository / "edgepack" / "edgepack-runtime"
    with zipfile.ZipFile(aar) as archive:
        assert not [name for name in archive.namelist() if name.startswith("assets/")]
    # The program that stands for the compiler says what it was given.
    java = tmp_path / "telling"
    java.write_text(COMPILER.replace("while [", 'echo "$@" > "$0.said"\nwhile [', 1))
    java.chmod(0o755)
    write_aar(bundle, repository, Toolchain(str(java), (), ()))
    assert re.search(
        r"-classpath \S+/edgepack-runtime\.jar ", java.with_suffix(".said").read_text()
    )


def test_library_aar_when_another_build_writes_it_waits(sharing, tmp_path, toolchain):
    _, library = sharing
    aar = write_library_aar(library, tmp_path / "maven", toolchain)
    before = aar.stat().st_ino
    again = Thread(target=write_library_aar, args=(library, tmp_path / "maven", toolchain))
    with holding(aar.parent):
        again.start()
        again.join(0.5)
        assert aar.stat().st_ino == before
    again.join()
    assert aar.stat().st_ino != before


def test_build_when_something_else_lies_in_the_librarys_place_says_so_before_it_works(tmp_path):
    project = tiny_models.write_project(tmp_path, "dims: {batch: 1}\napp: {runtime: shared}")
    (tmp_path / "dist" / "edgepack-runtime-android").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"none of edgepack's: it has no edgepack-runtime\.json"):
        build(project=project, targets=[TARGET], variants=["cpu-fp32"], out=tmp_path / "dist")
    assert [path.name for path in (tmp_path / "dist").iterdir()] == ["edgepack-runtime-android"]


def test_library_when_somebody_changed_it_is_written_again(sharing):
    _, library = sharing
    before = {path: path.read_bytes() for path in library.rglob("*") if path.is_file()}
    script = library / "build.gradle.kts"
    script.write_text("changed")
    assert write_library(load_profile(TARGET), library.parent) == library
    assert {path: path.read_bytes() for path in library.rglob("*") if path.is_file()} == before


@pytest.mark.slow(reason="builds for a target")
def test_build_when_bundles_share_writes_the_library_into_the_repository_first(
    tmp_path, toolchain, monkeypatch
):
    module = import_module("edgepack.builder.build")
    monkeypatch.setattr(module, "find_toolchain", lambda *_: toolchain)
    project = tiny_models.write_project(tmp_path, "dims: {batch: 1}\napp: {runtime: shared}")
    result = build(
        project=project, targets=[TARGET], variants=["cpu-fp32"], out=tmp_path / "d", aar=True
    )
    result.require_all()
    names = [aar.parent.parent.name for aar in result.aars]
    assert names == ["edgepack-runtime", f"net-{TARGET}"]


def test_pom_when_read_has_the_packages_as_aars_and_the_kotlin_library(built):
    folder, manifest = built
    pom = ElementTree.parse(folder / "aar/pom.xml").getroot()
    assert pom.findtext(f"{POM}packaging") == "aar"
    found = {
        f"{entry.findtext(f'{POM}groupId')}:{entry.findtext(f'{POM}artifactId')}": (
            entry.findtext(f"{POM}version"),
            entry.findtext(f"{POM}type"),
            entry.findtext(f"{POM}scope"),
        )
        for entry in pom.iter(f"{POM}dependency")
    }
    kotlin = found.pop("org.jetbrains.kotlin:kotlin-stdlib")
    assert kotlin[1:] == (None, None)
    # No class of theirs is in the API.
    wanted = {name: (version, "aar", "runtime") for name, version in manifest.runtime.items()}
    assert found == wanted


@pytest.mark.slow(reason="takes seconds")
def test_aar_when_written_again_has_the_same_bytes_and_leaves_the_bundle_alone(
    built, tmp_path, toolchain
):
    folder, _ = built
    first, second = (write_aar(folder, tmp_path / name, toolchain) for name in "ab")
    assert first.read_bytes() == second.read_bytes()
    verify(folder)


def test_aar_when_the_disk_is_full_on_the_way_leaves_the_one_before(
    built, tmp_path, toolchain, monkeypatch
):
    aar = write_aar(built[0], tmp_path / "maven", toolchain)
    before = {path.name: path.read_bytes() for path in aar.parent.iterdir()}
    aar.write_bytes(b"an older one")
    real_write = Path.write_bytes

    def full(self, data):
        if self.suffix == ".pom":
            raise OSError(28, "No space left on device")
        return real_write(self, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ToolError, match=r"maven.*No space left on device"):
        write_aar(built[0], tmp_path / "maven", toolchain)
    after = {path.name: path.read_bytes() for path in aar.parent.iterdir()}
    assert after == before | {aar.name: b"an older one"}
    assert [path.name for path in aar.parent.parent.iterdir()] == [aar.parent.name]


def test_aar_when_the_compiler_refuses_says_what_it_said(built, tmp_path):
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'Net.kt:3: error: no' >&2\nexit 1\n")
    java.chmod(0o755)
    with pytest.raises(ToolError, match=r"Net\.kt:3: error: no"):
        write_aar(built[0], tmp_path / "maven", Toolchain(str(java), (), ()))
    assert not (tmp_path / "maven").exists()


@pytest.mark.slow(reason="builds for a target")
def test_build_when_the_compiler_refuses_has_the_bundle_and_says_why(tmp_path, monkeypatch):
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'Net.kt:3: error: no' >&2\nexit 1\n")
    java.chmod(0o755)
    module = import_module("edgepack.builder.build")
    monkeypatch.setattr(module, "find_toolchain", lambda *_: Toolchain(str(java), (), ()))
    project = tiny_models.write_project(tmp_path, "dims: {batch: 1}")
    result = build(project=project, targets=[TARGET], out=tmp_path / "dist", aar=True)
    verify(result.bundles[0].bundle.path)
    assert result.aars == ()
    with pytest.raises(ToolError, match=r"Net\.kt:3: error: no"):
        result.require_all()


@pytest.mark.slow(reason="builds for Linux")
def test_aar_when_the_bundle_is_not_for_android_is_an_error(tmp_path, toolchain):
    project = tiny_models.write_project(tmp_path, samples=False)
    [made] = build(project=project, targets=["linux-x86-64"], out=tmp_path / "dist").bundles
    with pytest.raises(BundleError, match=r"aar/pom\.xml"):
        write_aar(made.bundle.path, tmp_path / "maven", toolchain)


def test_build_when_an_aar_cannot_be_made_says_so_before_it_builds(tmp_path):
    project = tiny_models.write_project(tmp_path, samples=False)
    with pytest.raises(ToolError, match="kotlin-compiler-embeddable"):
        build(project=project, targets=[TARGET], out=tmp_path / "d", aar=True, jars=tmp_path)
    with pytest.raises(UsageError, match="no target is"):
        build(project=project, targets=["raspberry-pi"], out=tmp_path / "d", aar=True)
    assert not (tmp_path / "d").exists()
    with pytest.raises(ToolError, match="kotlin-compiler-embeddable"):
        dry_run(project=project, targets=[TARGET], aar=True, jars=tmp_path)


def test_build_when_jars_are_named_and_nothing_is_compiled_is_an_error(tmp_path):
    project = tiny_models.write_project(tmp_path, samples=False)
    for plan in (dry_run, partial(build, out=tmp_path / "d")):
        with pytest.raises(UsageError, match="nothing is compiled") as caught:
            plan(project=project, targets=[TARGET], jars=tmp_path)
        assert "--aar" in caught.value.hint
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("name", ["words.gz", ".labels"])
def test_project_when_a_file_cannot_be_in_an_app_is_refused_before_it_is_built(tmp_path, name):
    (tmp_path / name).write_text("a")
    project = tiny_models.write_project(tmp_path, f"files: [{name}]", samples=False)
    with pytest.raises(ProfileError, match=r"leaves .* out"):
        dry_run(project=project, targets=[TARGET])


def test_build_when_the_maven_repository_cannot_be_written_says_so_before_it_builds(
    tmp_path, toolchain, monkeypatch
):
    building = import_module("edgepack.builder.build")
    monkeypatch.setattr(building, "find_toolchain", lambda *_: toolchain)
    project = tiny_models.write_project(tmp_path, samples=False)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "maven").write_text("a file")
    with pytest.raises(UsageError, match=r"cannot write to .*maven"):
        build(project=project, targets=[TARGET], out=tmp_path / "d", aar=True)
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["maven"]


def test_build_command_when_jars_are_missing_exits_as_a_tool_error(tmp_path, capsys):
    project = tiny_models.write_project(tmp_path, samples=False)
    asked = ["build", "--project", str(project), "--target", TARGET, "--aar"]
    assert run([*asked, "--jars", str(tmp_path)]) == ToolError.exit_code
    assert f"mvn dependency:copy -DoutputDirectory={tmp_path} " in capsys.readouterr().err


def test_what_ships_in_ort_format_is_evaluated_and_golden_itself(built, tmp_path):
    folder, manifest = built
    variant = next(v for v in manifest.variants if v.model.endswith(".ort"))
    session = make_session(folder / variant.model, config=variant.session.config)
    # The file is for Arm: where its integers saturate here, the .onnx stands for it.
    saturates = is_saturating(variant.recipe, "arm", find_processor())
    for golden in manifest.goldens:
        inputs, outputs = (
            {
                t.name: np.frombuffer((folder / t.path).read_bytes(), t.dtype).reshape(t.shape)
                for t in tensors
            }
            for tensors in (golden.inputs, golden.outputs[variant.id])
        )
        found = run_session(session, inputs)
        same = all(np.array_equal(found[name], outputs[name]) for name in outputs)
        assert same or saturates
    project = tiny_models.write_project(tmp_path, "dims: {batch: 1}")
    plan = dry_run(project=project, targets=[TARGET])
    planned = next(v for v in plan.bundles[0].variants if v.variant.id == variant.id)
    steps = {s.id: s for s in plan.steps}
    assert (steps[planned.evaluation].inputs["model"] == planned.shipped) is not saturates
    assert steps[planned.goldens].inputs.get("shipped") == (None if saturates else planned.shipped)
