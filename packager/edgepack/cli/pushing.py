"""``push`` and ``rollback``."""

from __future__ import annotations

from typing import Annotated

import typer

from edgepack import api
from edgepack.cli.options import JsonOption, WaitOption
from edgepack.cli.publishing import PlainHttpOption
from edgepack.cli.rollouts import (
    AbortAtOption,
    CanaryOption,
    DeadlineOption,
    DevicesOption,
    NoSelfTestOption,
    ParallelOption,
    TriesOption,
    WarmUpOption,
    WavesOption,
    act_on_one,
    make_settings,
    run_rollout,
)
from edgepack.cli.signing import AllowedSignersOption, RequireSignatureOption

SourcesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="BUNDLE",
        help="Bundles' folders, a folder of bundles, or addresses as oci://HOST/REPOSITORY:TAG or"
        " s3://BUCKET/PREFIX:TAG: each device gets the one for its target.",
        show_default=False,
    ),
]


def push(
    bundle: SourcesArgument,
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
    plain_http: PlainHttpOption = False,
    as_json: JsonOption = False,
) -> None:
    """Push to each device the bundle for its target, and make it current there.

    A push to several devices is a rollout: 'edgepack rollout resume' pushes later to the devices
    that were off.
    """
    from edgepack.base.progress import make_terminal_progress

    devices = api.select_devices(device)
    got = api.FetchOptions(allowed_signers=allowed_signers, plain_http=plain_http)
    folders = api.find_folders(bundle, options=got, progress=make_terminal_progress())
    bundles = api.load_bundles_by_target(folders)
    options = api.PushOptions(
        self_test=not no_self_test,
        warm_up_s=min(api.PushOptions().warm_up_s, deadline) if warm_up is None else warm_up,
        wait_s=wait_s,
        require_signature=require_signature or allowed_signers is not None,
        allowed_signers=allowed_signers,
    )
    store = api.open_rollout_store()
    if api.is_one_device(device):
        _push_to_one(bundles, devices[0], store, options, as_json=as_json)
        return
    settings = make_settings(
        parallel=parallel,
        deadline=deadline,
        tries=tries,
        canary=canary,
        waves=waves,
        abort_at=abort_at,
    )
    rollout = api.start_rollout(bundles, devices, store, settings=settings, options=options)
    run_rollout(rollout, store, as_json=as_json)


def _push_to_one(
    bundles: dict[str, api.AnyBundle],
    device: api.Device,
    store: api.RolloutStore,
    options: api.PushOptions,
    *,
    as_json: bool,
) -> None:
    from edgepack.cli.printing import print_json, write_line

    pushed = act_on_one(
        lambda progress: api.push_as_rollout(
            bundles, device, store, options=options, progress=progress
        )
    )
    if as_json:
        print_json(pushed)
        return
    sent = "was there already" if pushed.already_there else f"{pushed.bytes_sent} bytes sent"
    write_line(f"{device.name}: {pushed.path} is current ({sent})")


def rollback(
    project: Annotated[str, typer.Argument(help="The project's name, as in edgepack.yaml.")],
    device: DevicesOption,
    to: Annotated[
        str | None, typer.Option(help="The release, 16 hex digits [default: the one before]")
    ] = None,
    canary: CanaryOption = 0,
    waves: WavesOption = 1,
    abort_at: AbortAtOption = None,
    parallel: ParallelOption = 16,
    deadline: DeadlineOption = 3600.0,
    tries: TriesOption = 4,
    wait_s: WaitOption = 0.0,
    as_json: JsonOption = False,
) -> None:
    """Make the release before the current one current again on each device; nothing is sent.

    On several devices it is a rollout, as a push is.
    """
    from edgepack.cli.printing import print_json, write_line

    devices = api.select_devices(device)
    api.require_release(project, to)
    options = api.RollbackOptions(release=to, wait_s=wait_s)
    store = api.open_rollout_store()
    if not api.is_one_device(device):
        settings = make_settings(
            parallel=parallel,
            deadline=deadline,
            tries=tries,
            canary=canary,
            waves=waves,
            abort_at=abort_at,
        )
        rollout = api.start_rollback(project, devices, store, settings=settings, options=options)
        run_rollout(rollout, store, as_json=as_json)
        return
    done = act_on_one(
        lambda progress: api.rollback_as_rollout(
            project, devices[0], store, options=options, progress=progress
        )
    )
    if as_json:
        print_json(done)
        return
    write_line(f"{devices[0].name}: {done.path} is current (before: {done.switched_from})")
