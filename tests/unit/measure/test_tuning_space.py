"""Which settings are tried: the defaults and the present ones always, all of names that exist."""

from __future__ import annotations

import json

import pytest
from edgepack.backends.sessions import DENORMALS
from edgepack.base.schema import NotMeasured
from edgepack.bundle.manifest import ManifestVariant
from edgepack.measure.tune import space
from edgepack.measure.tune.norms import DISABLED, JOINING
from edgepack.measure.tune.space import (
    AFFINITIES,
    SPINNING,
    count_changes,
    find_default_settings,
    find_present_settings,
    format_settings,
)
from edgepack.ondevice.runtime.edgepack_names import (
    find_provider_option_problem,
    find_session_key_problem,
)
from edgepack.project.profile import OrtFormat, Provider, Requires, SessionSettings, load_profile
from edgepack.records.topology import Processor, Topology
from edgepack.records.tuning import Settings

CPU = "CPUExecutionProvider"


def topology(*max_khz: int, siblings: bool = False) -> Topology:
    processors = [
        Processor(number=n, core=str(n // 2 if siblings else n), max_khz=khz, capacity=0)
        for n, khz in enumerate(max_khz)
    ]
    return Topology(count=len(processors), processors=processors)


def variant(
    *providers: Provider, session: SessionSettings | None = None, **changes: object
) -> ManifestVariant:
    values: dict[str, object] = {
        "id": "cpu-fp32",
        "backend": "cpu",
        "recipe": "fp32",
        "model": "models/m.onnx",
        "model_sha256": "0" * 64,
        "providers": list(providers) or [Provider(name=CPU)],
        "placement": "all",
        "session": session or SessionSettings(),
        "requires": Requires(),
        "min_sqnr_db": 40.0,
        "accuracy": NotMeasured(reason="there are no samples"),
    }
    return ManifestVariant.model_validate({**values, **changes})


def list_settings(
    given: ManifestVariant, processors: Topology, *, arch: str = "x86_64", **others: bool
) -> list[Settings]:
    return space.list_settings(given, processors, arch=arch, **others)


TWO, BIG_LITTLE = topology(1, 1), topology(*[18] * 4, *[24] * 2)


def test_settings_on_two_cores_are_each_once_with_the_defaults_and_the_present_ones_first():
    own = SessionSettings(intra_op_num_threads=1, config={SPINNING: "0"})
    found = list_settings(variant(session=own), TWO)
    assert found[0].session == SessionSettings()
    assert found[1].session == own
    assert len({settings.key for settings in found}) == len(found)
    assert {s.session.intra_op_num_threads for s in found} == {0, 1, 2}
    levels = {s.session.graph_optimization_level for s in found}
    assert levels == {"all", "extended", "basic"}


def test_affinities_when_there_are_clusters_take_the_fast_processors_first():
    found = list_settings(variant(), BIG_LITTLE)
    by_threads = {
        s.session.intra_op_num_threads: s.session.config[AFFINITIES]
        for s in found
        if AFFINITIES in s.session.config
    }
    # Processors 4 and 5 are fast; counted from 1 they are 5 and 6, and the first is the caller's.
    assert by_threads[2] == "6"
    assert by_threads[3] == "6;1"
    assert by_threads[6] == "6;1;2;3;4"
    assert BIG_LITTLE.clusters == [[4, 5], [0, 1, 2, 3]]


def test_thread_counts_when_there_are_many_processors_are_few():
    assert topology(1, 1, 1, 1).thread_counts == [1, 2, 3, 4]
    assert topology(*[1] * 16).thread_counts == [1, 2, 3, 4, 6, 8, 12, 16]
    assert topology(*[3] * 2, *[2] * 3, *[1] * 3).thread_counts == [1, 2, 3, 4, 5, 6, 8]


def test_order_when_cores_have_siblings_takes_each_core_once_first():
    assert topology(1, 1, 1, 1, siblings=True).order == [0, 2, 1, 3]


def test_affinities_when_the_system_binds_no_threads_are_not_tried():
    found = list_settings(variant(), Topology(count=4, processors=[]))
    assert not any(AFFINITIES in s.session.config for s in found)


def test_defaults_keep_what_makes_the_variant_and_drop_what_is_tuned():
    config = {SPINNING: "0", "session.disable_prepacking": "1"}
    given = variant(
        Provider(
            name="TensorrtExecutionProvider",
            options={"trt_fp16_enable": "True", "trt_builder_optimization_level": "5"},
        ),
        Provider(name=CPU),
        id="tensorrt-fp16",
        backend="tensorrt",
        recipe="fp16",
        session=SessionSettings(intra_op_num_threads=3, config=config),
    )
    base = find_default_settings(given)
    assert base.session == SessionSettings(config={"session.disable_prepacking": "1"})
    assert base.providers[0].options == {"trt_fp16_enable": "True"}
    assert base.providers[1:] == given.providers[1:]
    assert find_present_settings(given).session == given.session


def test_graph_level_when_the_file_is_optimized_already_is_not_tried():
    fixed = variant(model_format=OrtFormat(ort="fixed", platform="arm"))
    levels = {s.session.graph_optimization_level for s in list_settings(fixed, TWO)}
    assert levels == {"all"}


def test_threads_of_openvino_are_tuned_only_on_the_cpu():
    tuned = {}
    for device_type in ("CPU", "GPU", "NPU"):
        options = {"device_type": device_type}
        openvino = Provider(name="OpenVINOExecutionProvider", options=options)
        given = variant(openvino, Provider(name=CPU), id="openvino-fp32", backend="openvino")
        found = list_settings(given, TWO)
        tuned[device_type] = any("num_of_threads" in s.providers[0].options for s in found)
    assert tuned == {"CPU": True, "GPU": False, "NPU": False}


@pytest.mark.parametrize("target", ["intel", "jetson", "raspberry-pi-xnnpack", "android-qnn"])
def test_settings_of_shipped_targets_are_all_known_to_onnxruntime(target: str):
    for each in load_profile(target).variants:
        given = variant(
            *each.providers,
            id=each.id,
            backend=each.backend,
            recipe=each.recipe,
            dialect=each.dialect,
            session=each.session,
        )
        found = list_settings(given, BIG_LITTLE)
        assert {find_present_settings(given).key, find_default_settings(given).key} <= {
            s.key for s in found
        }
        for settings in found:
            assert [p.name for p in settings.providers] == [p.name for p in each.providers]
            for key, value in settings.session.config.items():
                assert not find_session_key_problem(key, value)
            for provider in settings.providers:
                for key, value in provider.options.items():
                    assert not find_provider_option_problem(provider.name, key, value)


def test_changes_when_counted_are_those_from_the_defaults():
    by_words = {
        format_settings(s): count_changes(s, find_default_settings(variant()))
        for s in list_settings(variant(), TWO)
    }
    assert by_words["defaults"] == 0
    assert by_words["1 thread"] == by_words["graph basic"] == by_words["no spinning"] == 1
    assert by_words["2 threads, no spinning, bound to 2, blocks 4"] == 4


def test_words_say_what_is_tuned_and_nothing_else():
    config = {SPINNING: "0", AFFINITIES: "2", "session.disable_prepacking": "1"}
    session = SessionSettings(
        intra_op_num_threads=2, graph_optimization_level="basic", config=config
    )
    assert format_settings(find_present_settings(variant(session=session))) == (
        "2 threads, no spinning, bound to 2, graph basic"
    )
    assert format_settings(find_present_settings(variant())) == "defaults"


def test_memory_patterns_on_the_cpu_are_left_out_for_each_number_of_threads():
    found = [format_settings(s) for s in list_settings(variant(), TWO)]
    assert [words for words in found if "memory pattern" in words] == [
        "no memory pattern",
        "1 thread, no memory pattern",
        "2 threads, no memory pattern",
    ]
    assert not any("arena" in words or "parallel" in words for words in found)


def test_memory_when_the_project_limits_it_is_saved_by_all_but_defaults_and_present_ones():
    own = SessionSettings(intra_op_num_threads=1)
    found = list_settings(variant(session=own), TWO, lean=True)
    assert [s.session for s in found[:2]] == [SessionSettings(), own]
    assert not any(s.session.enable_mem_pattern for s in found[2:])
    assert {s.session.intra_op_num_threads for s in found[2:]} == {0, 1, 2}


@pytest.mark.parametrize(("arch", "tried"), [("x86_64", 1), ("x86-64", 1), ("aarch64", 0)])
def test_denormals_are_tried_where_onnxruntime_can_set_them(arch: str, tried: int):
    found = list_settings(variant(), TWO, arch=arch)
    assert sum(s.session.config.get(DENORMALS) == "1" for s in found) == tried


def test_norms_are_tried_apart_from_sums_where_the_model_has_some():
    found = list_settings(variant(), TWO, norms=True)
    words = [format_settings(s) for s in found if DISABLED in s.session.config]
    assert words == [
        "norms apart",
        "no spinning, norms apart",
        "1 thread, norms apart",
        "2 threads, norms apart",
        "2 threads, no spinning, norms apart",
    ]
    tried = next(s for s in found if DISABLED in s.session.config)
    for key, value in tried.session.config.items():
        assert find_session_key_problem(key, value) == ""
    assert not any(DISABLED in s.session.config for s in list_settings(variant(), TWO))


def test_optimizers_that_the_variant_itself_leaves_out_stay_left_out():
    own = SessionSettings(config={DISABLED: "MatMulAddFusion"})
    found = list_settings(variant(session=own), TWO, norms=True)
    assert {s.session.config[DISABLED] for s in found} == {"MatMulAddFusion"}
    tuned = variant(session=SessionSettings(config={DISABLED: JOINING}))
    assert find_default_settings(tuned).session.config == {}


@pytest.mark.parametrize(
    ("placement", "backend", "name", "tried"),
    [
        (0.9, "cuda", "CUDAExecutionProvider", ["parallel over 2 threads"]),
        ("all", "cuda", "CUDAExecutionProvider", []),
        (0.9, "xnnpack", "XnnpackExecutionProvider", []),
    ],
)
def test_parallel_mode_is_tried_where_another_device_leaves_nodes_to_the_cpu(
    placement: float | str, backend: str, name: str, tried: list[str]
):
    given = variant(
        Provider(name=name), Provider(name=CPU), id=f"{backend}-fp32", backend=backend,
        placement=placement,
    )  # fmt: skip
    found = [format_settings(s) for s in list_settings(given, TWO)]
    assert [words for words in found if "parallel" in words] == tried
    assert "no memory pattern" in found


def test_defaults_drop_settings_that_are_tuned_and_keep_the_arena_and_the_log_level():
    own = SessionSettings(
        execution_mode="parallel",
        inter_op_num_threads=2,
        enable_mem_pattern=False,
        enable_cpu_mem_arena=False,
        log_severity_level=1,
        config={DENORMALS: "1", "session.inter_op.allow_spinning": "0"},
    )
    base = find_default_settings(variant(session=own))
    assert base.session == SessionSettings(log_severity_level=1, enable_cpu_mem_arena=False)
    assert all(s.session.log_severity_level == 1 for s in list_settings(variant(session=own), TWO))
    present = find_present_settings(variant(session=own))
    assert count_changes(present, base) == 5  # not the arena
    assert present.key != base.key
    assert format_settings(present) == (
        "parallel over 2 threads, no memory pattern, no arena, denormals as zero"
    )


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("name", [CPU, "CUDAExecutionProvider"])
def test_settings_that_an_older_bundles_loader_refuses_are_not_tried(name: str, *, lean: bool):
    given = variant(Provider(name=name), backend="cpu" if name == CPU else "cuda", placement=0.9)
    known = {"intra_op_num_threads", "graph_optimization_level", "config"}
    found = list_settings(given, TWO, lean=lean, older=True)
    assert len(found) > 2
    for settings in found:
        assert {*json.loads(settings.override)["session"]} <= known
    every = list_settings(given, TWO, lean=lean)
    assert any("memory pattern" in format_settings(settings) for settings in every)


def test_key_when_settings_are_those_that_older_reports_know_is_what_it_was():
    session = SessionSettings(intra_op_num_threads=2, config={SPINNING: "0"})
    key = find_present_settings(variant(session=session)).key
    assert key == repr(("cpu-fp32", 2, "all", [(SPINNING, "0")], [(CPU, [])]))
