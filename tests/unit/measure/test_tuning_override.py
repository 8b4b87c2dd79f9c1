"""The answer in edgepack.yaml: what the user wrote stays, and the file says what was meant."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest
from edgepack.backends.targets import read_project_targets
from edgepack.bundle.manifest import Manifest, ManifestVariant
from edgepack.errors import UsageError
from edgepack.measure.tune.writing import make_override, write_override
from edgepack.project.loading import read_project
from edgepack.project.profile import SessionSettings, load_profile
from edgepack.records.tuning import Settings

TARGET = "linux-x86-64"
ABOUT = "edgepack tune on board: 10 % less"
SESSION = SessionSettings(
    intra_op_num_threads=2,
    graph_optimization_level="basic",
    config={"session.intra_op.allow_spinning": "0", "session.intra_op_thread_affinities": "2"},
)
HEAD = """\
# The model of the door.
schema_version: 1
name: tiny
model: model.onnx   # from training
"""


def manifest(target: str = TARGET, *ids: str) -> Manifest:
    """Return a manifest with as much as is looked at."""
    entries = [
        ManifestVariant.model_construct(
            id=variant.id,
            backend=variant.backend,
            recipe=variant.recipe,
            dialect=variant.dialect,
            providers=variant.providers,
            session=variant.session,
        )
        for variant in load_profile(target).variants
        if not ids or variant.id in ids
    ]
    return Manifest.model_construct(name="tiny", target=target, variants=entries)


def answer(variant: str = "cpu-fp32", session: SessionSettings = SESSION) -> Settings:
    providers = load_profile(TARGET).find_variant(variant).providers
    return Settings(variant=variant, session=session, providers=providers)


def override(tmp_path: Path, text: str, settings: Settings | None = None):
    path = tmp_path / "edgepack.yaml"
    path.write_text(text)
    return make_override(path, manifest(), settings or answer(), ABOUT)


def added_lines(old: str, new: str) -> list[str]:
    found = list(difflib.ndiff(old.splitlines(), new.splitlines()))
    return [line[2:] for line in found if line.startswith("+ ")]


def removed_lines(old: str, new: str) -> list[str]:
    found = list(difflib.ndiff(old.splitlines(), new.splitlines()))
    return [line[2:] for line in found if line.startswith("- ")]


@pytest.mark.parametrize(
    ("targets", "removed"),
    [
        ("", []),
        ("\n# the end", []),
        ("targets: []\n", ["targets: []"]),
        ("targets: [host, raspberry-pi]  # both\n", ["targets: [host, raspberry-pi]  # both"]),
        ("targets: [raspberry-pi]\n# the end\n", ["targets: [raspberry-pi]"]),
        ("targets:\n- raspberry-pi\n# the end\n", []),
        (
            "targets:\n  - host  # the PC\n  # and\n  - raspberry-pi  # the board\nfiles: []\n",
            ["  - host  # the PC"],
        ),
        (
            (
                "targets:\n    - linux-x86-64\n\n    - id: intel # GPU\n      variants:\n"
                "        - {backend: cpu, recipe: fp32}   # alone\n\ndims: {N: 1}\n"
            ),
            ["    - linux-x86-64"],
        ),
    ],
)
def test_file_when_the_target_has_no_variants_gains_lines_and_keeps_the_others(
    tmp_path: Path, targets: str, removed: list[str]
):
    old = HEAD + targets
    found = override(tmp_path, old)
    assert not found.unsafe
    assert (tmp_path / "edgepack.yaml").read_text() == old
    write_override(found)
    new = (tmp_path / "edgepack.yaml").read_text()
    assert removed_lines(old, new) == removed
    for line in removed:
        comment = line.partition("#")[2]
        assert any(comment in other for other in new.splitlines())
    profiles = {p.id: p for p in read_project_targets(read_project(tmp_path / "edgepack.yaml"))}
    shipped = load_profile(TARGET)
    first, second = profiles[TARGET].variants
    assert first == shipped.find_variant("cpu-fp32").model_copy(update={"session": SESSION})
    assert second == shipped.find_variant("cpu-int8-static")
    others = {p.id for p in read_project_targets(read_project(_copy(tmp_path, old)))} - {TARGET}
    assert set(profiles) == others | {TARGET}


def _copy(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "before.yaml"
    path.write_text(text)
    return path


def test_file_when_it_says_so_already_is_not_changed(tmp_path: Path):
    first = override(tmp_path, HEAD)
    write_override(first)
    text = (tmp_path / "edgepack.yaml").read_text()
    again = override(tmp_path, text)
    assert not again.needed
    assert again.text == text
    present = answer("cpu-int8-static", SessionSettings())
    assert not override(tmp_path, HEAD, present).needed


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (
            "      - {backend: cpu, recipe: fp32}  # first\n",
            "      - {backend: cpu, recipe: fp32, session: {",
        ),
        (
            "      - {backend: cpu, recipe: fp32, session: {intra_op_num_threads: 1}} # mine\n",
            "      - {backend: cpu, recipe: fp32, session: {intra_op_num_threads: 2, ",
        ),
        (
            "      - backend: cpu\n        recipe: fp32  # plain\n      # next\n",
            "        session: {intra_op_num_threads: 2, ",
        ),
    ],
)
def test_variant_when_the_file_has_it_first_gets_the_session_in_its_place(
    tmp_path: Path, item: str, expected: str
):
    old = (
        f"{HEAD}targets:\n  - id: host\n    variants:\n{item}"
        "      - {backend: cpu, recipe: int8-static}\n"
    )
    found = override(tmp_path, old)
    assert not found.unsafe
    (line,) = added_lines(old, found.text)
    assert line.startswith(expected)
    assert found.text.count("#") == old.count("#")
    write_override(found)
    (profile,) = read_project_targets(read_project(tmp_path / "edgepack.yaml"))
    assert profile.variants[0].session == SESSION


@pytest.mark.parametrize(
    "targets",
    [
        "targets:\n  - id: host\n    limits: {p50_ms: 20}  # by hand\nfiles: []\n",
        "targets: [{id: host, limits: {p50_ms: 20}}]\n",
    ],
)
def test_target_when_it_has_limits_alone_keeps_them_and_gains_variants(
    tmp_path: Path, targets: str
):
    found = override(tmp_path, HEAD + targets)
    assert not found.unsafe
    write_override(found)
    loaded = read_project(tmp_path / "edgepack.yaml")
    (profile,) = read_project_targets(loaded)
    assert profile.variants[0].session == SESSION
    assert loaded.find_limits(TARGET).given == {"p50_ms": 20}
    assert ("# by hand" in targets) == ("# by hand" in found.text)
    again = override(tmp_path, found.text, answer(session=SessionSettings()))
    assert not again.unsafe
    write_override(again)
    assert read_project(tmp_path / "edgepack.yaml").find_limits(TARGET).given == {"p50_ms": 20}


@pytest.mark.parametrize("targets", ["", "targets: [host]\n", "targets:\n  - host\n"])
def test_target_when_it_is_tuned_again_says_what_the_last_tuning_found(
    tmp_path: Path, targets: str
):
    write_override(override(tmp_path, HEAD + targets))
    once = (tmp_path / "edgepack.yaml").read_text()
    again = make_override(
        tmp_path / "edgepack.yaml",
        manifest(),
        answer(session=SessionSettings(intra_op_num_threads=1)),
        "edgepack tune on board: 20 % less",
    )
    assert not again.unsafe
    assert "10 % less" not in again.text
    assert again.text.count("20 % less") == once.count("10 % less")


@pytest.mark.parametrize(
    ("targets", "why"),
    [
        ("targets: [all]\n", "given twice"),
        (
            (
                "targets:\n  - id: host\n    variants:\n"
                "      - {backend: cpu, recipe: int8-static}\n"
                "      - {backend: cpu, recipe: fp32}\n"
            ),
            "cpu-fp32 has to come before the other variants",
        ),
        (
            (
                "targets:\n  - id: host\n    variants:\n"
                "      - backend: cpu\n        recipe: fp32\n"
                "        session:\n          intra_op_num_threads: 1\n"
                "          config: {session.intra_op.allow_spinning: '0'}\n"
            ),
            "'session' is written over several lines",
        ),
    ],
)
def test_file_when_a_change_is_not_safe_is_left_to_the_user(tmp_path: Path, targets: str, why: str):
    found = override(tmp_path, HEAD + targets)
    assert why in found.unsafe
    with pytest.raises(UsageError, match="is not changed") as caught:
        write_override(found)
    assert "- id: " in caught.value.hint
    assert "intra_op_num_threads: 2" in caught.value.hint
    assert (tmp_path / "edgepack.yaml").read_text() == HEAD + targets


def test_defaults_when_they_are_the_answer_take_the_session_of_the_file_back(tmp_path: Path):
    old = (
        f"{HEAD}targets:\n  - id: host\n    variants:\n"
        "      - {backend: cpu, recipe: fp32, session: {intra_op_num_threads: 1}}\n"
    )
    found = override(tmp_path, old, answer("cpu-fp32", SessionSettings()))
    write_override(found)
    (profile,) = read_project_targets(read_project(tmp_path / "edgepack.yaml"))
    assert profile.variants[0].session == SessionSettings()


def test_options_of_a_provider_when_they_are_the_answer_are_written_whole(tmp_path: Path):
    target = "raspberry-pi-xnnpack"
    given = load_profile(target).variants[0]
    options = {**given.providers[0].options, "intra_op_num_threads": "3"}
    providers = [given.providers[0].model_copy(update={"options": options}), *given.providers[1:]]
    settings = Settings(variant=given.id, session=given.session, providers=providers)
    path = _copy(tmp_path, HEAD)
    found = make_override(path, manifest(target), settings, ABOUT)
    write_override(found)
    (profile,) = read_project_targets(read_project(path))
    assert profile.variants[0] == given.model_copy(update={"providers": providers})
    assert profile.variants[1:] == load_profile(target).variants[1:]


def test_file_of_another_project_when_given_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="belongs to the project 'other'"):
        override(tmp_path, HEAD.replace("name: tiny", "name: other"))


def test_file_when_it_is_a_link_with_carriage_returns_keeps_both(tmp_path: Path):
    old = (HEAD + "targets:\n  - host  # here\n").replace("\n", "\r\n").encode()
    (tmp_path / "real.yaml").write_bytes(old)
    path = tmp_path / "edgepack.yaml"
    path.symlink_to("real.yaml")
    write_override(make_override(path, manifest(), answer(), ABOUT))
    new = (tmp_path / "real.yaml").read_bytes()
    assert path.is_symlink()
    assert new.count(b"\n") == new.count(b"\r\n") > old.count(b"\n")
    assert new.startswith(old.partition(b"  - host")[0])
    (profile,) = read_project_targets(read_project(path))
    assert profile.variants[0].session == SESSION
