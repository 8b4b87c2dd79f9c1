"""Session settings that do nothing are refused, where they stand; those that do something pass."""

from __future__ import annotations

from pathlib import Path

import pytest
from edgepack.backends.sessions import make_host_config
from edgepack.backends.targets import load_target, read_project_targets
from edgepack.errors import ProfileError
from edgepack.project.loading import read_project
from edgepack.project.profile import Profile, SessionSettings

from tests.support.nets import tiny_models

CUDA = "{backend: cuda, recipe: fp32, session: %s}"
CPU = "{backend: cpu, recipe: fp32, session: %s}"


def read_variant(tmp_path: Path, target: str, variant: str) -> Profile:
    """Read a project whose target has one variant, which stands in a line of its own."""
    listed = f"targets:\n  - id: {target}\n    variants:\n      - {variant}"
    project = tiny_models.write_project(tmp_path, listed)
    return next(iter(read_project_targets(read_project(project))))


@pytest.mark.parametrize(
    ("target", "variant", "problem", "hint"),
    [
        (
            "linux-x86-64",
            CPU % "{inter_op_num_threads: 2}",
            "'inter_op_num_threads' does nothing in the sequential execution mode",
            "add execution_mode: parallel",
        ),
        (
            "linux-x86-64",
            CPU % '{config: {session.inter_op.allow_spinning: "0"}}',
            "'session.inter_op.allow_spinning' does nothing in the sequential",
            "add execution_mode: parallel",
        ),
        (
            "linux-x86-64",
            CPU % "{execution_mode: parallel}",
            "parallel does nothing where all nodes are CPUExecutionProvider's",
            "leave it out",
        ),
        (
            "raspberry-pi-xnnpack",
            "{backend: xnnpack, recipe: fp32, session: {execution_mode: parallel}}",
            "its nodes and the CPU's are of one device",
            "leave it out",
        ),
        (
            "nvidia",
            CUDA.replace("session", "placement: all, session") % "{execution_mode: parallel}",
            "parallel does nothing where all nodes are CUDAExecutionProvider's",
            "leave it out",
        ),
        (
            "nvidia",
            CUDA % "{execution_mode: parallel, inter_op_num_threads: 1}",
            "with 1 inter-op thread onnxruntime runs nodes one after the other",
            "give 2 or more",
        ),
        (
            "nvidia",
            CUDA % "{execution_mode: parallel, enable_mem_pattern: false}",
            "the parallel execution mode never uses memory patterns",
            "leave it out",
        ),
        (
            "raspberry-pi",
            CPU % '{config: {session.set_denormal_as_zero: "1"}}',
            "'session.set_denormal_as_zero' does nothing on aarch64",
            "leave it out",
        ),
        (
            "linux-x86-64",
            CPU % '{config: {session.save_external_prepacked_constant_initializers: "1"}}',
            "it is for sessions that save their model, which no loader does",
            "spelt",
        ),
        (
            "linux-x86-64",
            CPU % '{config: {session.use_env_allocators: "1"}}',
            "no loader registers an allocator",
            "spelt",
        ),
        (
            "linux-x86-64",
            CPU % '{config: {session.execution_mode: "1"}}',
            "set execution_mode beside the config",
            "spelt",
        ),
        ("linux-x86-64", CPU % "{execution_mode: paralel}", "execution_mode", "parallel"),
        ("linux-x86-64", CPU % "{log_severity_level: 5}", "log_severity_level", "4"),
    ],
)
def test_setting_when_it_does_nothing_is_refused_in_its_line(
    tmp_path: Path, target: str, variant: str, problem: str, hint: str
):
    with pytest.raises(ProfileError) as caught:
        read_variant(tmp_path, target, variant)
    said = f"{caught.value} {caught.value.hint}"
    assert problem in said
    assert hint in said
    text = (tmp_path / "edgepack.yaml").read_text().splitlines()
    line = next(number for number, each in enumerate(text, 1) if variant in each)
    assert f"edgepack.yaml:{line}:" in said


@pytest.mark.parametrize(
    ("target", "variant", "settings"),
    [
        (
            "nvidia",
            CUDA % "{execution_mode: parallel, inter_op_num_threads: 2}",
            SessionSettings(execution_mode="parallel", inter_op_num_threads=2),
        ),
        (
            "android-qnn",
            "{backend: qnn, recipe: int8-static, session: {execution_mode: parallel}}",
            SessionSettings(execution_mode="parallel"),
        ),
        (
            "raspberry-pi",
            CPU % "{enable_cpu_mem_arena: false, enable_mem_pattern: false, log_severity_level: 0}",
            SessionSettings(
                enable_cpu_mem_arena=False, enable_mem_pattern=False, log_severity_level=0
            ),
        ),
        (
            "linux-x86-64",
            CPU % '{config: {session.set_denormal_as_zero: "1"}}',
            SessionSettings(config={"session.set_denormal_as_zero": "1"}),
        ),
    ],
)
def test_setting_when_it_does_something_is_the_variants(
    tmp_path: Path, target: str, variant: str, settings: SessionSettings
):
    assert read_variant(tmp_path, target, variant).variants[0].session == settings


def test_settings_when_they_are_the_defaults_are_not_written():
    session = load_target("linux-x86-64").variants[0].session
    assert session.model_dump() == {"intra_op_num_threads": 0, "config": {}}
    given = SessionSettings(enable_mem_pattern=False, log_severity_level=0)
    assert SessionSettings.model_validate_json(given.model_dump_json()) == given


def test_session_of_a_build_leaves_denormals_as_they_are():
    """They would hold for all that runs later in the same worker."""
    config = {"session.set_denormal_as_zero": "1", "session.disable_prepacking": "1"}
    variant = load_target("linux-x86-64").variants[0]
    session = variant.session.model_copy(update={"config": config})
    given = variant.model_copy(update={"session": session})
    assert make_host_config(given) == {"session.disable_prepacking": "1"}
