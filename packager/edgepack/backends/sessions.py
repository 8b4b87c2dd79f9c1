"""Finds session settings of a variant that onnxruntime takes and does nothing with. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from edgepack.backends.base import Backend, Misfit
from edgepack.project.profile import DeviceKind, Variant

DENORMALS = "session.set_denormal_as_zero"
"""With 1, floats below 1.2e-38 count as 0, which x86-64 computes with many times faster.

The first session of a process decides for the thread that makes it, and so for all that runs there
later; each session decides for the threads of its own pool. Source: inference_session.cc in
onnxruntime; 1.31.1, tried 2026-11-27."""
_INTER_OP = "session.inter_op."


def make_host_config(variant: Variant) -> dict[str, str]:
    """Return the session config entries with which a build runs a variant on this machine.

    Denormals stay as they are: a setting of theirs would hold for all that runs later in the same
    thread, so that what a build writes would depend on what the process did before.
    """
    return {key: value for key, value in variant.session.config.items() if key != DENORMALS}


def find_idle_settings(variant: Variant, backend: Backend, device: DeviceKind) -> Iterator[Misfit]:
    """Yield the settings of a variant's session that do nothing on a kind of device."""
    if variant.session.execution_mode == "parallel":
        yield from _check_parallel(variant, backend)
    else:
        yield from _check_sequential(variant)
    yield from _check_denormals(variant, device)


def _check_sequential(variant: Variant) -> Iterator[Misfit]:
    """Yield what only the parallel mode reads.

    Source: inference_session.cc makes a pool of inter-op threads in that mode alone; with 2 in
    the other one a process has no thread more (1.31.1, tried 2026-11-27).
    """
    idle: list[tuple[str | int, ...]] = [
        ("config", key) for key in variant.session.config if key.startswith(_INTER_OP)
    ]
    if variant.session.inter_op_num_threads:
        idle.append(("inter_op_num_threads",))
    for place in idle:
        problem = f"{place[-1]!r} does nothing in the sequential execution mode"
        yield Misfit(("session", *place), problem, "leave it out, or add execution_mode: parallel")


def _check_parallel(variant: Variant, backend: Backend) -> Iterator[Misfit]:
    """Yield why nodes do not run at the same time, and what that mode leaves out.

    Source: onnxruntime 1.14 and newer run the nodes of one device one after the other (issues
    16158 and 21259 of microsoft/onnxruntime); two branches of eight MatMul all ran on one thread,
    with 2 inter-op threads that took another core's time (1.31.1, tried 2026-11-27). With 1 thread
    the mode becomes sequential, and without memory patterns its peak is the same as with them (the
    same).
    """
    session, place = variant.session, ("session", "execution_mode")
    sequential = "leave it out: nodes then run one after the other, with all threads for each"
    if variant.placement == "all":
        problem = f"parallel does nothing where all nodes are {backend.provider}'s"
        yield Misfit(place, problem, sequential)
    elif backend.on_processor:
        problem = (
            f"parallel does nothing with {backend.provider}: its nodes and the CPU's are of one"
            " device, which runs them one after the other"
        )
        yield Misfit(place, problem, sequential)
    if session.inter_op_num_threads == 1:
        problem = "with 1 inter-op thread onnxruntime runs nodes one after the other"
        hint = "give 2 or more, or leave execution_mode out"
        yield Misfit(("session", "inter_op_num_threads"), problem, hint)
    if not session.enable_mem_pattern:
        problem = "the parallel execution mode never uses memory patterns"
        yield Misfit(("session", "enable_mem_pattern"), problem, "leave it out")


def _check_denormals(variant: Variant, device: DeviceKind) -> Iterator[Misfit]:
    """Yield a setting of denormals for a processor where onnxruntime leaves them as they are.

    Source: SetDenormalAsZero in denormal.cc of onnxruntime has code for x86 alone.
    """
    if device.arch != "x86-64" and DENORMALS in variant.session.config:
        problem = f"{DENORMALS!r} does nothing on {device.arch}: onnxruntime sets it on x86 alone"
        yield Misfit(("session", "config", DENORMALS), problem, "leave it out")
