"""Rollouts: something is done on every device of a selection, now or when it answers again."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from edgepack.base.clock import format_now
from edgepack.base.progress import Progress
from edgepack.bundle.reading import AnyBundle, load_any
from edgepack.deploy.fleet.bundles import (
    find_bundle,
    load_bundles_by_target,
    require_signatures,
)
from edgepack.deploy.fleet.run import News, Unwatched, Watcher, run_on_devices
from edgepack.deploy.fleet.schedule import Retry, RolloutSettings, Schedule, Settled, Start
from edgepack.deploy.fleet.store import (
    DeviceRecord,
    DeviceState,
    Options,
    ProvisionOptions,
    PushOptions,
    RollbackOptions,
    Rollout,
    RolloutStore,
)
from edgepack.devices.inventory import Device, load_devices
from edgepack.errors import BundleError, DeviceError, EdgepackError, ToolError, UsageError

_SETTINGS = RolloutSettings()
_OPTIONS = PushOptions()

SAVE_EVERY_S = 1.0
"""If this process is killed, a lost record costs only another push of what the device has
already."""


@dataclass(frozen=True)
class Done:
    """What was done on a device, for its record."""

    value: object
    """What the action has returned."""
    result: str
    """The same in words."""
    release: str = ""
    bytes_sent: int = 0
    variant: str = ""
    warm_up_s: float = 0.0


@dataclass(frozen=True)
class Asked:
    """What is to be done on devices."""

    options: Options
    project: str = ""
    """Whose release is rolled back."""
    bundles: Mapping[str, AnyBundle] = field(default_factory=dict)
    """What is pushed, by target."""


class Act(Protocol):
    """A function that does on a device what a rollout is for."""

    def __call__(self, asked: Rollout, device: Device, *, progress: Progress) -> Done:
        """Do it."""


def start_rollout(
    bundles: Mapping[str, AnyBundle],
    devices: Sequence[Device],
    store: RolloutStore,
    *,
    settings: RolloutSettings = _SETTINGS,
    options: PushOptions = _OPTIONS,
) -> Rollout:
    """Store a push; nothing is sent before :func:`edgepack.deploy.rollouts.resume_rollout`.

    Args:
        bundles: By target; :func:`load_bundles_by_target` reads them.
        devices: The devices that get one, as :func:`select_devices` finds them.
        store: Where the rollout is stored.
        settings: The order, retries and limits of the rollout.
        options: How it is pushed to each device.

    Raises:
        UsageError: A setting is out of its range, or there is no file of allowed signers.
        BundleError: A bundle lacks a required signature.
        ToolError: It cannot be stored, or ssh-keygen is missing.
    """
    settings.require_sound()
    if options.self_test and options.warm_up_s > settings.deadline_s:
        raise UsageError(
            f"--warm-up is {options.warm_up_s:g}, but no device may take longer than"
            f" --deadline, which is {settings.deadline_s:g}",
            hint=f"--deadline {2 * options.warm_up_s:g} leaves time for the push too",
            where="--warm-up",
        )
    return _create(Asked(options, bundles=bundles), devices, store, settings)


def start_rollback(
    project: str,
    devices: Sequence[Device],
    store: RolloutStore,
    *,
    settings: RolloutSettings = _SETTINGS,
    options: RollbackOptions | None = None,
) -> Rollout:
    """Store a rollback; nothing happens before :func:`edgepack.deploy.rollouts.resume_rollout`.

    Args:
        project: The ``name`` of the bundle.
        devices: Where an earlier release becomes current.
        store: Where the rollout is stored.
        settings: The order, retries and limits of the rollout.
        options: Which release.

    Raises:
        UsageError: A setting is out of its range.
        ToolError: It cannot be stored.
    """
    settings.require_sound()
    return _create(Asked(options or RollbackOptions(), project), devices, store, settings)


def start_provisioning(
    devices: Sequence[Device],
    store: RolloutStore,
    *,
    settings: RolloutSettings = _SETTINGS,
    options: ProvisionOptions | None = None,
) -> Rollout:
    """Store provisioning; it begins with :func:`edgepack.deploy.rollouts.resume_rollout`.

    Args:
        devices: What gets the runtime that its target pins.
        store: Where the rollout is stored.
        settings: The order, retries and limits of the rollout.
        options: Where the wheels come from.

    Raises:
        UsageError: A setting is out of its range.
        ToolError: It cannot be stored.
    """
    settings.require_sound()
    return _create(Asked(options or ProvisionOptions()), devices, store, settings)


def _create(
    asked: Asked, devices: Sequence[Device], store: RolloutStore, settings: RolloutSettings
) -> Rollout:
    _require_signatures(asked.bundles, asked.options)
    bundled = next(iter(asked.bundles.values()), None)
    project = asked.project if bundled is None else bundled.manifest.name
    targets = {device.name: device.target for device in devices}
    return store.create(project, targets, settings, asked.options, asked.bundles)


def run_rollout(
    number: int,
    store: RolloutStore,
    act: Act,
    *,
    watcher: Watcher | None = None,
    inventory: Path | None = None,
    moved: Sequence[Path] = (),
) -> Rollout:
    """Do it on the pending devices, and return the state of the rollout.

    If none is pending, or the rollout was stopped, it does nothing: it may be called repeatedly. A
    device that is not reached stays pending; the state of each is stored as it changes. ``moved``
    are its bundles where these lie elsewhere by now, as on another machine than it began on.

    Raises:
        UsageError: There is no such rollout, or no file of allowed signers.
        BundleError: A bundle has changed since the rollout began, is not here, or has lost a
            required signature; nothing was sent.
        BusyError: Another process works on the rollout.
        ProfileError: The inventory is wrong.
        ToolError: The rollout cannot be stored, or ssh-keygen is missing.
    """
    with store.lock(number):
        rollout = _find_moved(store.load(number), moved)
        if rollout.pending and not rollout.stopped:
            bundles = {target: _require_unchanged(rollout, target) for target in rollout.bundles}
            _require_signatures(bundles, rollout.options)
            run = _Run(rollout, bundles, store, act, watcher or Unwatched())
            run.work_through(load_devices(inventory))
        return store.load(number)


def act_on_one(
    asked: Asked, device: Device, store: RolloutStore, act: Act, *, progress: Progress
) -> Done:
    """Do it on one device at once, and keep that as a rollout of its own.

    It is pending if the device was not reached or is in use, and failed if it went wrong otherwise.

    Raises:
        EdgepackError: What went wrong.
    """
    if asked.bundles:
        find_bundle(device, asked.bundles)
    rollout = _create(asked, [device], store, _SETTINGS)
    with store.lock(rollout.id):
        record = _make_record(device.target, "failed", 1, _make_interrupted_error(device.name))
        if _is_undone_by_another(asked.options):
            begun = _make_record(device.target, "failed", 1, _make_begun_error(device.name))
            store.save(rollout.model_copy(update={"devices": {device.name: begun}}))
        try:
            done = act(rollout, device, progress=progress)
            record = _make_record(device.target, "done", 1, None, done)
        except EdgepackError as error:
            state: DeviceState = "pending" if error.transient else "failed"
            record = _make_record(device.target, state, 1, error)
            raise
        finally:
            _keep_outcome(rollout, device.name, record, store)
    return done


def _is_undone_by_another(options: Options) -> bool:
    """Return whether a second try would undo the first: it may not stay pending once it began."""
    return isinstance(options, RollbackOptions) and options.release is None


def _keep_outcome(rollout: Rollout, name: str, record: DeviceRecord, store: RolloutStore) -> None:
    """Store what came of it on the only device; if that fails, the error says what came of it."""
    try:
        store.save(rollout.model_copy(update={"devices": {name: record}}))
    except ToolError as error:
        came = f"{name} is done" if record.state == "done" else f"{name}: {record.problem}"
        raise ToolError(
            f"{came}; but rollout {rollout.id} could not store that: {error.first_line}",
            hint=error.hint,
            where=error.where,
        ) from error


class _Run:
    """One pass over the pending devices of a rollout."""

    def __init__(
        self,
        rollout: Rollout,
        bundles: Mapping[str, AnyBundle],
        store: RolloutStore,
        act: Act,
        watcher: Watcher,
    ) -> None:
        self._rollout = rollout
        self._records = dict(rollout.devices)
        self._tries = {name: record.tries for name, record in rollout.devices.items()}
        self._bundles = bundles
        self._store = store
        self._act = act
        self._watcher = watcher
        self._done: dict[str, Done] = {}
        self._saved_at = time.monotonic()

    def work_through(self, devices: Mapping[str, Device]) -> None:
        """Work through all pending devices; results are stored even if an error ends this."""
        # Devices with the fewest tries come first, so that another device is the canary if one is
        # off.
        names = sorted(self._rollout.pending, key=lambda name: self._tries[name])
        ready = [devices[name] for name in names if self._is_ready(name, devices)]
        schedule = Schedule([device.name for device in ready], self._find_settings(), random.random)
        number = self._rollout.id
        try:
            run_on_devices(
                ready,
                self._act_on,
                schedule,
                on_news=lambda news: self._take_in(news, schedule.stopped),
                stop_reason=lambda: self._store.read_stop_reason(number),
            )
        finally:
            self._save()

    def _find_settings(self) -> RolloutSettings:
        """Return how to go on: a device that is done by now was the canary."""
        settings = self._rollout.settings
        return (
            settings.model_copy(update={"canary": 0}) if self._rollout.counts["done"] else settings
        )

    def _is_ready(self, name: str, devices: Mapping[str, Device]) -> bool:
        """Return whether it can be done on a device; mark the device as failed if not."""
        try:
            if name not in devices:
                raise _make_unlisted_error(name)
            if self._bundles:
                find_bundle(devices[name], self._bundles)
        except DeviceError as error:
            self._take_in(Settled(name, "failed", 0, error))
            return False
        return True

    def _act_on(self, device: Device) -> None:
        """Do it, unless a newer rollout has something for the device by now."""
        if self._store.is_superseded(self._rollout, device.name):
            return
        if self._bundles:
            _require_unchanged(self._rollout, device.target)
        progress = self._watcher.progress(device.name)
        done = self._act(self._rollout, device, progress=progress)
        self._done[device.name] = done
        self._watcher.show(device.name, done.result)

    def _take_in(self, news: News, stopped: str = "") -> None:
        if isinstance(news, Start) and _is_undone_by_another(self._rollout.options):
            name = news.device
            target, tries = self._records[name].target, self._tries[name] + news.number
            self._records[name] = _make_record(target, "failed", tries, _make_begun_error(name))
            self._save()
        if isinstance(news, Retry | Settled):
            name = news.device
            state: DeviceState = "pending" if isinstance(news, Retry) else news.state
            if state == "done" and name not in self._done:
                state = "superseded"
            before = self._records[name]
            self._records[name] = _make_record(
                before.target,
                state,
                self._tries[name] + news.tries,
                news.error,
                self._done.get(name),
            )
        self._watcher.tell(news)
        if stopped:  # at once: a killed process must not be continued from an old state
            self._store.stop(self._rollout.id, stopped)
        if time.monotonic() - self._saved_at > SAVE_EVERY_S:
            self._save()

    def _save(self) -> None:
        self._store.save(self._rollout.model_copy(update={"devices": self._records}))
        self._saved_at = time.monotonic()


def _make_record(
    target: str,
    state: DeviceState,
    tries: int,
    error: EdgepackError | None,
    done: Done | None = None,
) -> DeviceRecord:
    return DeviceRecord(
        state=state,
        target=target,
        time=format_now(),
        tries=tries,
        problem=error.problem if error else "",
        hint=error.hint if error else "",
        result=done.result if done else "",
        release=done.release if done else "",
        bytes_sent=done.bytes_sent if done else 0,
        variant=done.variant if done else "",
        warm_up_s=done.warm_up_s if done else 0.0,
    )


def _find_moved(rollout: Rollout, moved: Sequence[Path]) -> Rollout:
    """Return a rollout with its bundles where they lie by now.

    Raises:
        BundleError: One of them is no bundle that can be read.
    """
    if not moved:
        return rollout
    there = load_bundles_by_target(moved)
    places = {
        target: entry.model_copy(update={"path": str(there[target].path.resolve())})
        if target in there
        else entry
        for target, entry in rollout.bundles.items()
    }
    return rollout.model_copy(update={"bundles": places})


def _require_unchanged(rollout: Rollout, target: str) -> AnyBundle:
    """Return the bundle for a target.

    Raises:
        BundleError: It is missing, or has changed since the rollout began.
    """
    entry = rollout.bundles[target]
    if not Path(entry.path).is_dir():
        raise BundleError(
            f"there is no {entry.path} here; rollout {rollout.id} was begun by"
            f" {rollout.by or 'somebody'}",
            hint=f"copy the bundle here: edgepack rollout resume {rollout.id} --bundle DIR",
        )
    bundle = load_any(Path(entry.path))
    if bundle.digest != entry.digest:
        raise BundleError(
            f"{entry.path} has changed since rollout {rollout.id} began",
            hint="push it: that is a new rollout, which supersedes this one",
        )
    return bundle


def _require_signatures(bundles: Mapping[str, AnyBundle], options: Options) -> None:
    if isinstance(options, PushOptions) and options.require_signature:
        require_signatures(bundles, options.allowed_signers)


def _make_unlisted_error(device: str) -> DeviceError:
    return DeviceError(
        "it is not in devices.yaml any more",
        hint=f"edgepack device add {device} USER@HOST, then do it again",
        where=device,
    )


def _make_begun_error(device: str) -> DeviceError:
    return DeviceError(
        "it was begun, and its end was not recorded yet",
        hint=f"see which release is current: edgepack device verify {device}",
        where=device,
    )


def _make_interrupted_error(device: str) -> DeviceError:
    return DeviceError("it was interrupted", hint="do it again", where=device)
