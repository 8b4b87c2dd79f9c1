"""``push`` and ``rollback``."""

from __future__ import annotations

from typing import Annotated

import typer

from edgepack import api
from edgepack.cli.options import DeviceOption, JsonOption, WaitOption
from edgepack.cli.rollouts import (
    AbortAtOption,
    BundlesArgument,
    CanaryOption,
    DeadlineOption,
    DevicesOption,
    NoSelfTestOption,
    ParallelOption,
    TriesOption,
    WarmUpOption,
    WavesOption,
)
from edgepack.cli.signing import AllowedSignersOption, RequireSignatureOption


def push(
    bundle: BundlesArgument,
    device: DevicesOption,
    canary: CanaryOption = 0,
    waves: WavesOption = 1,
    abort_at: AbortAtOption = None,
    parallel: ParallelOption = 16,
    deadline: DeadlineOption = 3600.0,
    tries: TriesOption = 4,
    no_self_test: NoSelfTestOption = False,
    warm_up: WarmUpOption = None,
    wait_s: WaitOption = 0.0,
    require_signature: RequireSignatureOption = False,
    allowed_signers: AllowedSignersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Push to each device the bundle for its target, and make it current there.

    A push to several devices is a rollout: 'edgepack rollout resume' pushes later to the devices
    that were off.
    """
    from edgepack.cli.rollouts import push_to_fleet

    devices = api.select_devices(device)
    bundles = api.load_bundles_by_target(bundle)
    options = api.PushOptions(
        self_test=not no_self_test,
        warm_up_s=min(api.PushOptions().warm_up_s, deadline) if warm_up is None else warm_up,
        wait_s=wait_s,
        require_signature=require_signature or allowed_signers is not None,
        allowed_signers=allowed_signers,
    )
    if api.is_one_device(device):
        _push_to_one(bundles, devices[0], options, as_json=as_json)
        return
    settings = api.RolloutSettings(
        parallel=parallel,
        deadline_s=deadline,
        tries=tries,
        canary=canary,
        waves=waves,
        abort_at=(0.0 if canary or waves > 1 else 100.0) if abort_at is None else abort_at,
    )
    push_to_fleet(bundles, devices, settings=settings, options=options, as_json=as_json)


def _push_to_one(
    bundles: dict[str, api.Bundle], device: api.Device, options: api.PushOptions, *, as_json: bool
) -> None:
    from edgepack.base.progress import make_terminal_progress
    from edgepack.cli.printing import print_json, write_line
    from edgepack.errors import EdgepackError

    progress = make_terminal_progress()
    try:
        pushed = api.push_as_rollout(
            bundles, device, api.RolloutStore(), options=options, progress=progress
        )
    except EdgepackError as error:
        if error.transient:
            progress.note("it is pending: 'edgepack rollout resume' tries again")
        raise
    if as_json:
        print_json(pushed)
        return
    sent = "was there already" if pushed.already_there else f"{pushed.bytes_sent} bytes sent"
    write_line(f"{device.name}: {pushed.path} is current ({sent})")


def rollback(
    project: Annotated[str, typer.Argument(help="The project's name, as in edgepack.yaml.")],
    device: DeviceOption,
    to: Annotated[
        str | None, typer.Option(help="The release, 16 hex digits [default: the one before]")
    ] = None,
    wait_s: WaitOption = 0.0,
    as_json: JsonOption = False,
) -> None:
    """Make the release before the current one current again on a device; nothing is sent."""
    from edgepack.cli.printing import print_json, write_line

    done = api.rollback(project, api.load_device(device), release=to, wait_s=wait_s)
    if as_json:
        print_json(done)
        return
    write_line(f"{device}: {done.path} is current (before: {done.switched_from})")
