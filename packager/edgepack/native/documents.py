"""Reads what the measuring program prints: its documents, its refusals and its profiles.

``ondevice/native/edgepack_measure.c`` writes them. Nothing here reaches a device.
"""

from __future__ import annotations

from typing import TypeVar

from edgepack.base.schema import StrictModel
from edgepack.devices.answers import parse_answer, parse_json
from edgepack.devices.harness import MAX_RUN_BYTES, TOO_MANY_EXIT, Events
from edgepack.devices.transport import CommandResult
from edgepack.errors import RemoteCommandError, VariantRefusedError, format_one_line
from edgepack.native.sensors import Sampled
from edgepack.records.run import Count, Name, Ns, Placement

REFUSED_EXIT = 3
ANSWERED = (0, REFUSED_EXIT)
"""With these exit codes the program has written its document."""

_Document = TypeVar("_Document", bound=StrictModel)


class _Refusal(StrictModel):
    refused: Name
    message: Name


class GoldensAnswer(StrictModel):
    """How a variant's goldens came out."""

    session_create_ns: Ns
    first_inference_ns: Ns
    golden_min_sqnr_db: float


class TimedAnswer(GoldensAnswer):
    """A timed run."""

    warm_up_iterations: Count
    steady: bool
    timed_from_ns: Ns
    timed_to_ns: Ns
    inferences: Count
    not_finite: list[Name]
    latencies_ns: list[Ns]
    sampled: Sampled | None = None


class Created(StrictModel):
    """How long sessions took to create."""

    session_create_ns: Ns


class Profiled(StrictModel):
    """Where a profile is."""

    profile: Name
    runs: Count


def read_document(model: type[_Document], result: CommandResult, device: str) -> _Document:
    """Return what the program printed on a device.

    Raises:
        VariantRefusedError: The model does not work there.
        RemoteCommandError: The program failed, or printed something else.
    """
    if result.exit_code == REFUSED_EXIT:
        raise make_refused(_explain_refusal(_parse_document(_Refusal, result, device)), device)
    hint = (
        "take a shorter preset"
        if result.exit_code == TOO_MANY_EXIT
        else "its last lines are above; exit code 137 often means out of memory, 142 that it took"
        " too long"
    )
    result.check("the measuring program", device=device, hint=hint)
    return _parse_document(model, result, device)


def parse_events(data: bytes, device: str) -> Events:
    """Return the events of a profile from a device.

    Raises:
        RemoteCommandError: The data is no profile.
    """
    try:
        events: Events = parse_json(data, max_bytes=MAX_RUN_BYTES)
    except ValueError as error:
        raise _make_garbled_error("profile", error, data, device) from error
    return events


def find_placement(variant: str, runs: int, events: Events) -> Placement:
    """Return which provider ran each node, from a profile's events."""
    from edgepack.ondevice.harness.edgepack_sizes import find_between_us, read_sizes
    from edgepack.ondevice.runtime.edgepack_loader import find_profile_nodes

    sizes, nodes = read_sizes(events), find_profile_nodes(events)
    fields = {
        "variant": variant,
        "runs": runs,
        "nodes": [{**node, "sizes": sizes.get((node["name"], node["op"]))} for node in nodes],
        "between_us": find_between_us(events),
    }
    return Placement.model_validate(fields)


def make_refused(why: str, device: str) -> VariantRefusedError:
    """Return the error that a variant does not work on a device."""
    return VariantRefusedError(why, hint="measure another variant: --variant ID", where=device)


def _parse_document(model: type[_Document], result: CommandResult, device: str) -> _Document:
    try:
        return parse_answer(model, result.stdout, max_bytes=MAX_RUN_BYTES)
    except ValueError as error:
        name = model.__name__.strip("_")
        raise _make_garbled_error(name, error, result.stdout, device) from error


def _make_garbled_error(
    what: str, error: ValueError, said: bytes, device: str
) -> RemoteCommandError:
    return RemoteCommandError(
        f"the measuring program printed no {what}: it {error}; it began with"
        f" {said[:80].decode('utf-8', 'replace')!r}",
        hint="see whether 'run_prefix' of the device in devices.yaml prints something",
        where=device,
    )


def _explain_refusal(refusal: _Refusal) -> str:
    message = format_one_line(refusal.message, 400)
    match refusal.refused:
        case "session" if "fallback to CPU EP has been explicitly disabled" in message:
            why = "its provider does not take every node, or not this device"
            return f"the session cannot be created: {why}"
        case "session" | "provider":
            return f"the session cannot be created: {message}"
        case "inference":
            return f"inference failed: {message}"
        case _:
            return f"the runtime does not load: {message}"
