"""The settings that are tried for a variant. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from edgepack.backends.base import THREADS, Knob
from edgepack.backends.registry import BACKENDS
from edgepack.backends.sessions import DENORMALS
from edgepack.bundle.manifest import ManifestVariant
from edgepack.measure.tune.norms import DISABLED, JOINING
from edgepack.project.profile import GraphLevel, Provider, SessionSettings
from edgepack.records.topology import AFFINITIES, Topology
from edgepack.records.tuning import Settings

SPINNING = "session.intra_op.allow_spinning"
"""Whether threads without work spin for a while before they sleep; 1 is the default.
Source: onnxruntime_session_options_config_keys.h."""
BLOCK_BASE = "session.dynamic_block_base"
"""With 4, work is split into blocks that get smaller; without it, into equal ones. Source:
onnxruntime_session_options_config_keys.h."""
TUNED_KEYS = (SPINNING, AFFINITIES, BLOCK_BASE, DENORMALS)
"""Beside these, :data:`~edgepack.measure.tune.norms.DISABLED` where it says what is tried here."""
_BETWEEN_OPERATORS = "session.inter_op."
_OTHER_LEVELS: tuple[GraphLevel, ...] = ("extended", "basic")


def find_present_settings(variant: ManifestVariant) -> Settings:
    """Return the settings that the bundle has."""
    return Settings(variant=variant.id, session=variant.session, providers=variant.providers)


def find_default_settings(variant: ManifestVariant) -> Settings:
    """Return onnxruntime's own settings: tuned options are unset, the variant's own are kept.

    The mode is sequential, in which entries of threads between operators do nothing.
    """
    own = variant.session
    config = {
        key: value
        for key, value in own.config.items()
        if key not in TUNED_KEYS
        and not key.startswith(_BETWEEN_OPERATORS)
        and (key, value) != (DISABLED, JOINING)
    }
    session = SessionSettings(
        log_severity_level=own.log_severity_level,
        enable_cpu_mem_arena=own.enable_cpu_mem_arena,
        config=config,
    )
    return _make_settings(variant, session, dict.fromkeys(_list_tuned_keys(variant)))


def list_settings(
    variant: ManifestVariant,
    topology: Topology,
    *,
    arch: str,
    lean: bool = False,
    older: bool = False,
    norms: bool = False,
) -> list[Settings]:
    """Return all settings to try, each once: the defaults, the present ones, then the others.

    Args:
        variant: The variant.
        topology: The device's processors.
        arch: Its architecture, as its system or edgepack spells it.
        lean: Whether the project limits memory: all others are then without memory patterns.
        older: Whether the bundle is of an edgepack whose loader sets threads, the graph's level and
            config entries alone, and refuses the rest.
        norms: Whether the model has what :func:`~edgepack.measure.tune.norms.has_norms` finds.
    """
    base = find_default_settings(variant)
    found = [base, find_present_settings(variant)]
    if _is_on_cpu(variant):
        sessions = list(
            _list_sessions(base.session, topology, graph=variant.model_format == "onnx")
        )
        if norms and DISABLED not in base.session.config:
            sessions += _list_separate_norms(base.session, topology)
        if arch.replace("_", "-") == "x86-64":
            sessions.append(_change(base.session, config={**base.session.config, DENORMALS: "1"}))
        if lean and not older:
            sessions = [_change(session, enable_mem_pattern=False) for session in sessions]
        found += [base.model_copy(update={"session": session}) for session in sessions]
    else:
        found += [
            base.model_copy(update={"session": session})
            for session in _list_shared_sessions(base.session, variant)
        ]
        sessions = [variant.session, base.session, _make_few_threads(base.session)]
        found += [
            _make_settings(variant, session, options)
            for session in sessions
            for options in _list_options(_find_knobs(variant), topology)
        ]
    fit = [each for each in found if not (older and _has_later_settings(each.session))]
    return list({each.key: each for each in fit}.values())


def _has_later_settings(session: SessionSettings) -> bool:
    first = {"intra_op_num_threads", "graph_optimization_level", "config"}
    return bool(session.model_dump(exclude=first, exclude_defaults=True))


def _list_sessions(
    base: SessionSettings, topology: Topology, *, graph: bool
) -> Iterator[SessionSettings]:
    """Yield thread settings at the full graph level, then the other levels for each count.

    Then each count without memory patterns, which took 0.62 to 1 times the memory at about the same
    speed. Sessions without the arena are not here: where shapes stay they take more memory, and a
    search has the goldens' shapes alone (docs/tuning.md has what was measured). Nor is the parallel
    execution mode, which does nothing on the CPU (:mod:`edgepack.backends.sessions`).
    """
    counts = [0, *topology.thread_counts]
    for threads in counts:
        for entries in _list_thread_entries(threads, topology):
            yield _change(base, intra_op_num_threads=threads, config={**base.config, **entries})
    for level, threads in product(_OTHER_LEVELS if graph else (), counts):
        yield _change(base, intra_op_num_threads=threads, graph_optimization_level=level)
    for threads in counts:
        yield _change(base, intra_op_num_threads=threads, enable_mem_pattern=False)


def _list_separate_norms(base: SessionSettings, topology: Topology) -> Iterator[SessionSettings]:
    """Yield each count of threads, spinning or not, with normalizations left apart from sums."""
    for threads in [0, *topology.thread_counts]:
        for spinning in ({}, {SPINNING: "0"}) if threads != 1 else ({},):
            config = {**base.config, **spinning, DISABLED: JOINING}
            yield _change(base, intra_op_num_threads=threads, config=config)


def _list_shared_sessions(
    base: SessionSettings, variant: ManifestVariant
) -> Iterator[SessionSettings]:
    """Yield what may matter where a provider leaves nodes to the CPU, with its default options.

    A run without memory patterns takes less memory, and in the parallel mode the CPU's nodes need
    not wait for those of another device: one thread for each of the two.
    """
    yield _change(base, enable_mem_pattern=False)
    backend = BACKENDS.get(variant.backend)
    if backend and not backend.on_processor and variant.placement != "all":
        yield _change(base, execution_mode="parallel", inter_op_num_threads=2)


def _change(base: SessionSettings, **changes: object) -> SessionSettings:
    return base.model_copy(update=changes)


def _list_thread_entries(threads: int, topology: Topology) -> Iterator[dict[str, str]]:
    if threads == 1:
        yield {}
        return
    bound: list[dict[str, str]] = [{}]
    if 1 < threads <= len(topology.order):
        numbers = [str(number + 1) for number in topology.order[1:threads]]
        bound.append({AFFINITIES: ";".join(numbers)})
    for spinning, block, affinities in product(
        ({}, {SPINNING: "0"}), ({}, {BLOCK_BASE: "4"}), bound
    ):
        yield {**spinning, **block, **affinities}


def _make_few_threads(base: SessionSettings) -> SessionSettings:
    """Return what leaves the processor to a provider's own threads."""
    return _change(base, intra_op_num_threads=1, config={**base.config, SPINNING: "0"})


def _list_options(knobs: Sequence[Knob], topology: Topology) -> Iterator[dict[str, str | None]]:
    counts = [str(count) for count in topology.thread_counts]
    values = [
        (None, *(v for value in knob.values for v in (counts if value == THREADS else (value,))))
        for knob in knobs
    ]
    for chosen in product(*values):
        yield dict(zip((knob.key for knob in knobs), chosen, strict=True))


def _make_settings(
    variant: ManifestVariant, session: SessionSettings, options: dict[str, str | None]
) -> Settings:
    return Settings(
        variant=variant.id,
        session=session,
        providers=set_options(variant.providers, options),
    )


def set_options(providers: Sequence[Provider], options: dict[str, str | None]) -> list[Provider]:
    """Return providers with options of the first one changed; None takes an option away."""
    first, *others = providers
    changed = {**first.options, **options}
    kept = {key: value for key, value in changed.items() if value is not None}
    return [Provider(name=first.name, options=kept), *others]


def _is_on_cpu(variant: ManifestVariant) -> bool:
    return variant.providers[0].name == "CPUExecutionProvider"


def _find_knobs(variant: ManifestVariant) -> tuple[Knob, ...]:
    backend = BACKENDS.get(variant.backend)
    device_type = variant.providers[0].options.get("device_type", "CPU")
    knobs = backend.knobs if backend else ()
    return tuple(knob for knob in knobs if knob.device_type in ("", device_type))


def _list_tuned_keys(variant: ManifestVariant) -> list[str]:
    return [knob.key for knob in _find_knobs(variant)]


def find_tuned_options(variant: ManifestVariant, settings: Settings) -> dict[str, str | None]:
    """Return the options that are tuned, as settings have them; None where one is not set."""
    return {key: settings.providers[0].options.get(key) for key in _list_tuned_keys(variant)}


def count_changes(settings: Settings, base: Settings) -> int:
    """Return in how many settings one differs from another of the same variant."""
    session, other = settings.session, base.session
    plain = [each.model_dump(exclude={"config"}) for each in (session, other)]
    return (
        _count_differing(*plain)
        + _count_differing(session.config, other.config)
        + _count_differing(settings.providers[0].options, base.providers[0].options)
    )


def _count_differing(one: Mapping[str, object], other: Mapping[str, object]) -> int:
    return sum(one.get(key) != other.get(key) for key in {*one, *other})


def format_settings(settings: Settings) -> str:
    """Return what is tuned in settings as a few words: ``2 threads, bound to 2, graph basic``.

    Settings with onnxruntime's default are left out.
    """
    session = settings.session
    threads = session.intra_op_num_threads
    found = [f"{threads} thread{'s' if threads > 1 else ''}"] if threads else []
    if session.config.get(SPINNING) == "0":
        found.append("no spinning")
    for key, name in ((AFFINITIES, "bound to"), (BLOCK_BASE, "blocks")):
        if key in session.config:
            found.append(f"{name} {session.config[key]}")
    if session.config.get(DISABLED) == JOINING:
        found.append("norms apart")
    if session.graph_optimization_level != "all":
        found.append(f"graph {session.graph_optimization_level}")
    found += _list_words(session)
    tuned = {knob.key for backend in BACKENDS.values() for knob in backend.knobs}
    options = settings.providers[0].options.items()
    found += [f"{key}={value}" for key, value in options if key in tuned]
    return ", ".join(found) or "defaults"


def _list_words(session: SessionSettings) -> Iterator[str]:
    if session.execution_mode == "parallel":
        yield f"parallel over {session.inter_op_num_threads or 'all'} threads"
    if not session.enable_mem_pattern:
        yield "no memory pattern"
    if not session.enable_cpu_mem_arena:
        yield "no arena"
    if session.config.get(DENORMALS) == "1":
        yield "denormals as zero"
