"""Maven artifacts: coordinates, places in a repository, licenses."""

from __future__ import annotations

import pytest
from edgepack.apps.maven import MavenArtifact, find_licenses, find_maven_artifact
from edgepack.errors import ProfileError


def test_artifact_when_asked_has_the_place_that_repositories_have_it_in():
    artifact = MavenArtifact("org.example.deep", "the-thing", "1.2")
    assert artifact.coordinates == "org.example.deep:the-thing:1.2"
    assert artifact.folder == "org/example/deep/the-thing/1.2"
    assert artifact.make_file_name("-sources.jar") == "the-thing-1.2-sources.jar"


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("onnxruntime-android", "1.29.0"),
        (":onnxruntime-android", "1.29.0"),
        ("com.microsoft:", "1.29.0"),
        ("com.microsoft:onnxruntime-android", ">=1.29"),
        ("com.microsoft:onnxruntime-android", ""),
    ],
)
def test_artifact_when_a_profile_names_none_is_an_error_with_an_example(name, version):
    with pytest.raises(ProfileError) as caught:
        find_maven_artifact(name, version)
    assert repr(name) in caught.value.problem
    assert "onnxruntime-android" in caught.value.hint


def test_licenses_when_known_name_the_release_and_when_not_say_so():
    name = "com.microsoft.onnxruntime:onnxruntime-android"
    runtime, other = find_licenses({"org.example:thing": "2.0", name: "1.29.0"})
    assert runtime.artifact.coordinates == f"{name}:1.29.0"
    assert runtime.license.startswith("MIT")
    assert "/v1.29.0/" in runtime.notices
    assert "not known" in other.license
