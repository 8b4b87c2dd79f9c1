from __future__ import annotations

import pytest
from edgepack.backends import BACKENDS
from edgepack.errors import ProfileError, UsageError
from edgepack.profile import load_profile, read_profile, target_files
from edgepack.resources import targets_dir

SHIPPED = sorted(path.stem for path in targets_dir().glob("*.yaml"))


@pytest.mark.parametrize("target", SHIPPED)
def test_shipped_profile_when_loaded_is_consistent_with_its_backends(target):
    profile = load_profile(target)
    for variant in profile.variants:
        backend = BACKENDS[variant.backend]
        assert variant.recipe in backend.RECIPES
        assert {provider.name for provider in variant.providers} <= backend.PROVIDERS
        assert variant.id == f"{variant.backend}-{variant.recipe}"


@pytest.mark.parametrize("target", SHIPPED)
def test_shipped_profile_when_it_states_a_fact_has_its_source(target):
    profile = load_profile(target)
    sourced = {source.of for source in profile.sources}
    assert {"device.python", "runtime.max_ir", "runtime.max_opset"} <= sourced
    for variant in profile.variants:
        assert variant.dialect is None or f"variants.{variant.id}.dialect" in sourced


def test_raspberry_pi_when_loaded_has_int8_before_fp32():
    ids = [variant.id for variant in load_profile("raspberry-pi").variants]
    assert ids == ["cpu-int8-static", "cpu-fp32"]


def test_unknown_target_when_loaded_offers_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'raspberry-pi'"):
        load_profile("rasberry-pi")


def test_own_targets_folder_when_present_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "targets").mkdir()
    text = (targets_dir() / "raspberry-pi.yaml").read_text().replace("title: ", "title: My ")
    (tmp_path / "targets" / "raspberry-pi.yaml").write_text(text)
    assert load_profile("raspberry-pi").title.startswith("My ")
    assert target_files()["raspberry-pi"].parent.name == "targets"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("recipe: fp32", "recipe: fp23", r"'recipe' cannot be 'fp23'\n.*did you mean 'fp32'"),
        ("per_channel: true", "per_chanel: true", "unknown key 'per_chanel'"),
        ("backend: cpu", "backend: gpu", r"'backend' cannot be 'gpu'"),
        ("id: cpu-fp32", "id: cpu-int8-static", "two variants are called"),
        ("id: raspberry-pi", "id: pi", "is not the file's name"),
    ],
)
def test_profile_when_wrong_says_what_and_where(tmp_path, old, new, problem):
    text = (targets_dir() / "raspberry-pi.yaml").read_text().replace(old, new, 1)
    path = tmp_path / "raspberry-pi.yaml"
    path.write_text(text)
    with pytest.raises(ProfileError, match=problem) as caught:
        read_profile(path)
    assert f"{path}:" in str(caught.value)
