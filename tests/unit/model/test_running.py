"""Sessions, and how many threads they have."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from edgepack.errors import UsageError
from edgepack.model.running import is_saturating, make_session

from tests.support.nets import tiny_models


@pytest.mark.parametrize(("usual", "asked", "threads"), [("3", 0, 3), ("3", 2, 2), ("0", 0, 0)])
def test_session_when_the_environment_says_so_has_that_many_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, usual: str, asked: int, threads: int
) -> None:
    model = tiny_models.relu(tmp_path / "net.onnx")
    monkeypatch.setenv("EDGEPACK_THREADS", usual)
    options = make_session(model, threads=asked).get_session_options()
    assert options.intra_op_num_threads == threads


def test_threads_of_a_session_wait_busily_only_where_latency_is_measured(tmp_path: Path) -> None:
    model = tiny_models.relu(tmp_path / "net.onnx")
    key = "session.intra_op.allow_spinning"
    assert make_session(model).get_session_options().get_session_config_entry(key) == "0"
    for session in (make_session(model, as_on_device=True), make_session(model, config={key: "1"})):
        with contextlib.suppress(RuntimeError):  # there is no entry, and they do by default
            assert session.get_session_options().get_session_config_entry(key) == "1"


@pytest.mark.parametrize("said", ["two", "-1", ""])
def test_session_when_the_environment_has_no_number_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setenv("EDGEPACK_THREADS", said)
    with pytest.raises(UsageError, match="EDGEPACK_THREADS is"):
        make_session(tmp_path / "net.onnx")


@pytest.mark.parametrize(
    ("recipe", "platform", "processor", "expected"),
    [
        ("int8-static", "arm", "x86-64", True),
        ("int8-dynamic", "arm", "x86-64", True),
        ("int8-static", "arm", "x86-64-vnni", False),
        ("int8-static", "arm", "aarch64", False),
        ("int8-static", "amd64", "x86-64", False),
        ("int8-static", None, "x86-64", False),
        ("fp32", "arm", "x86-64", False),
    ],
)
def test_saturates_when_asked_is_true_of_int8_for_arm_without_vnni(
    recipe: str,
    platform: str | None,
    processor: str,
    expected: bool,  # noqa: FBT001
) -> None:
    assert is_saturating(recipe, platform, processor) is expected
