"""``push`` and ``rollback``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

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

if TYPE_CHECKING:
    from edgepack.bundle.reading import Bundle
    from edgepack.deploy.fleet.store import PushOptions
    from edgepack.devices.inventory import Device


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
    """Push each device the bundle for its target, and make that current there.

    To several devices it is a rollout: devices that are off get theirs with 'edgepack rollout
    resume'.
    """
    from edgepack.cli.rollouts import push_to_fleet
    from edgepack.deploy.fleet.bundles import bundles_by_target
    from edgepack.deploy.fleet.schedule import Settings
    from edgepack.deploy.fleet.selection import is_one_device, select_devices
    from edgepack.deploy.fleet.store import WARM_UP_S, PushOptions

    devices = select_devices(device)
    bundles = bundles_by_target(bundle)
    options = PushOptions(
        self_test=not no_self_test,
        warm_up_s=min(WARM_UP_S, deadline) if warm_up is None else warm_up,
        wait_s=wait_s,
        require_signature=require_signature or allowed_signers is not None,
        allowed_signers=allowed_signers,
    )
    if is_one_device(device):
        _push_to_one(bundles, devices[0], options, as_json=as_json)
        return
    settings = Settings(
        parallel=parallel,
        deadline_s=deadline,
        tries=tries,
        canary=canary,
        waves=waves,
        abort_at=(0.0 if canary or waves > 1 else 100.0) if abort_at is None else abort_at,
    )
    push_to_fleet(bundles, devices, settings=settings, options=options, as_json=as_json)


def _push_to_one(
    bundles: dict[str, Bundle], device: Device, options: PushOptions, *, as_json: bool
) -> None:
    from edgepack.base.progress import terminal_progress
    from edgepack.cli.printing import print_json, write_line
    from edgepack.deploy.fleet.rollout import push_to_one
    from edgepack.deploy.fleet.store import RolloutStore
    from edgepack.deploy.rollouts import push_as_asked
    from edgepack.errors import EdgepackError

    progress = terminal_progress()
    try:
        pushed = push_to_one(
            bundles, device, RolloutStore(), push_as_asked, options=options, progress=progress
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
    from edgepack.deploy.release import roll_back
    from edgepack.devices.inventory import load_device

    done = roll_back(project, load_device(device), release=to, wait_s=wait_s)
    if as_json:
        print_json(done)
        return
    write_line(f"{device}: {done.path} is current (before: {done.switched_from})")
