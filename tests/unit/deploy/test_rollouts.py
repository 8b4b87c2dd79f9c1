from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from edgepack.base.progress import Progress, Silent
from edgepack.bundle.reading import Bundle
from edgepack.deploy.fleet.bundles import load_bundles_by_target
from edgepack.deploy.fleet.rollout import (
    Asked,
    Done,
    act_on_one,
    run_rollout,
    start_provisioning,
    start_rollback,
    start_rollout,
)
from edgepack.deploy.fleet.run import News, Unwatched
from edgepack.deploy.fleet.schedule import RolloutSettings, Settled
from edgepack.deploy.fleet.store import (
    Options,
    ProvisionOptions,
    PushOptions,
    RollbackOptions,
    Rollout,
    RolloutStore,
)
from edgepack.devices.inventory import Device, load_devices
from edgepack.errors import (
    BundleError,
    BusyError,
    DeviceError,
    EdgepackError,
    UnreachableError,
    UsageError,
)

from tests.support.reports.tiny_bundle import change_manifest, write_tiny_bundle

OPTIONS = PushOptions(self_test=False, wait_s=3.0)
QUICK = RolloutSettings(tries=2, backoff_s=0.001)


class ScriptedPush:
    """A push that does what a script says, and remembers what was pushed where."""

    def __init__(self, **script: EdgepackError | Callable[[], None]) -> None:
        self.script = script
        self.pushed: list[tuple[str, Path]] = []

    def __call__(self, asked: Rollout, device: Device, *, progress: Progress) -> Done:
        del progress
        self.options = asked.options
        answer = self.script.get(device.name)
        if isinstance(answer, EdgepackError):
            raise answer
        if answer is not None:
            answer()
        self.pushed.append((device.name, Path(asked.bundles[device.target].path)))
        return Done(None, "7 bytes", "0" * 16, 7)

    @property
    def names(self) -> list[str]:
        return sorted(name for name, _ in self.pushed)


@pytest.fixture
def store(tmp_path: Path) -> RolloutStore:
    return RolloutStore(tmp_path / "rollouts")


@pytest.fixture
def inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "devices.yaml"
    write_inventory(path, a="linux-x86-64", b="linux-x86-64", c="jetson")
    monkeypatch.chdir(tmp_path)
    return path


def write_inventory(path: Path, **targets: str) -> None:
    lines = [f"  {n}: {{transport: local, target: {t}}}\n" for n, t in targets.items()]
    path.write_text("schema_version: 1\ndevices:\n" + "".join(lines))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_tiny_bundle(tmp_path / "dist" / "tiny-1.0.0-linux-x86-64")


def for_target(bundle: Path, folder: Path, **changes: str) -> Path:
    write_tiny_bundle(folder)
    change_manifest(folder, lambda manifest: manifest.update(changes))
    return folder


def begin(
    store: RolloutStore, bundle: Path, *names: str, settings: RolloutSettings = QUICK
) -> Rollout:
    bundles, devices = load_bundles_by_target([bundle]), load_devices()
    chosen = [devices[name] for name in names]
    return start_rollout(bundles, chosen, store, settings=settings, options=OPTIONS)


def states(rollout: Rollout) -> dict[str, str]:
    return {name: record.state for name, record in rollout.devices.items()}


OFF = UnreachableError("refuses connections", hint="start it", where="a")
FULL = DeviceError("there is no space left", hint="free some", where="a")


def test_devices_when_they_have_different_targets_get_their_own_bundle(
    store, inventory, bundle, tmp_path
):
    other = for_target(bundle, tmp_path / "dist" / "tiny-jetson", target="jetson")
    begin(store, tmp_path / "dist", "a", "b", "c")
    push = ScriptedPush()
    rollout = run_rollout(1, store, push)
    assert sorted(push.pushed) == [("a", bundle), ("b", bundle), ("c", other)]
    assert set(states(rollout).values()) == {"done"}
    record = rollout.devices["a"]
    assert (record.tries, record.bytes_sent, record.release) == (1, 7, "0" * 16)


def test_device_when_no_bundle_is_for_its_target_is_failed_and_nothing_is_sent_to_it(
    store, inventory, bundle
):
    begin(store, bundle, "a", "c")
    push = ScriptedPush()
    rollout = run_rollout(1, store, push)
    assert push.names == ["a"]
    assert states(rollout) == {"a": "done", "c": "failed"}
    assert "for linux-x86-64, the device c for jetson" in rollout.devices["c"].problem


def test_device_when_it_is_off_is_pending_until_a_resume_finds_it(store, inventory, bundle):
    begin(store, bundle, "a", "b")
    rollout = run_rollout(1, store, ScriptedPush(a=OFF))
    assert states(rollout) == {"a": "pending", "b": "done"}
    assert rollout.devices["a"].problem == "refuses connections"
    assert rollout.devices["a"].tries == QUICK.tries
    push = ScriptedPush()
    rollout = run_rollout(1, store, push)
    assert push.names == ["a"]
    assert push.options == OPTIONS
    assert states(rollout) == {"a": "done", "b": "done"}
    assert rollout.devices["a"].tries == QUICK.tries + 1
    assert rollout.devices["a"].problem == ""


def test_resume_when_all_is_done_does_nothing(store, inventory, bundle):
    begin(store, bundle, "a", "b")
    first = run_rollout(1, store, ScriptedPush())
    push = ScriptedPush()
    assert run_rollout(1, store, push) == first
    assert push.pushed == []


def test_failed_device_when_resumed_is_left_alone(store, inventory, bundle):
    begin(store, bundle, "a", "b")
    run_rollout(1, store, ScriptedPush(a=FULL))
    push = ScriptedPush()
    rollout = run_rollout(1, store, push)
    assert push.pushed == []
    assert states(rollout) == {"a": "failed", "b": "done"}
    assert rollout.devices["a"].hint == "free some"


def test_newer_rollout_when_it_covers_a_pending_device_supersedes_it_there_alone(
    store, inventory, bundle
):
    begin(store, bundle, "a", "b")
    run_rollout(1, store, ScriptedPush(a=OFF, b=OFF))
    begin(store, bundle, "a")
    assert states(store.load(1)) == {"a": "superseded", "b": "pending"}
    push = ScriptedPush()
    assert states(run_rollout(1, store, push)) == {"a": "superseded", "b": "done"}
    assert push.names == ["b"]
    assert [states(rollout) for rollout in store.list_all().rollouts] == [
        {"a": "superseded", "b": "done"},
        {"a": "pending"},
    ]


def test_newer_rollout_when_it_is_of_another_project_or_target_supersedes_nothing(
    store, inventory, bundle, tmp_path
):
    begin(store, bundle, "a")
    begin(store, for_target(bundle, tmp_path / "other", name="other"), "a")
    begin(store, for_target(bundle, tmp_path / "jetson", target="jetson"), "a")
    assert states(store.load(1)) == {"a": "pending"}


def test_newer_rollout_when_it_begins_meanwhile_keeps_the_older_from_pushing(
    store, inventory, bundle
):
    one_at_a_time = QUICK.model_copy(update={"parallel": 1})
    begin(store, bundle, "a", "b", settings=one_at_a_time)
    push = ScriptedPush(a=lambda: begin(store, bundle, "b") and None)
    rollout = run_rollout(1, store, push)
    assert push.names == ["a"]
    assert states(rollout) == {"a": "done", "b": "superseded"}


def test_bundle_when_it_changed_on_disk_is_refused_and_nothing_is_sent(store, inventory, bundle):
    begin(store, bundle, "a")
    change_manifest(bundle, lambda manifest: manifest.update(version="1.0.1"))
    push = ScriptedPush()
    with pytest.raises(BundleError, match="changed since rollout 1 began"):
        run_rollout(1, store, push)
    assert push.pushed == []
    assert states(store.load(1)) == {"a": "pending"}


def test_bundle_when_it_changes_meanwhile_is_not_pushed_to_the_rest(store, inventory, bundle):
    begin(store, bundle, "a", "b", settings=QUICK.model_copy(update={"parallel": 1}))

    def change() -> None:
        change_manifest(bundle, lambda manifest: manifest.update(version="1.0.1"))

    rollout = run_rollout(1, store, ScriptedPush(a=change))
    assert states(rollout) == {"a": "done", "b": "failed"}


def test_rollout_when_another_process_works_on_it_says_so(store, inventory, bundle):
    begin(store, bundle, "a")
    with store.lock(1), pytest.raises(BusyError, match=r"worked on by process \d+"):
        run_rollout(1, store, ScriptedPush())


def test_rollout_when_stopped_while_it_runs_lets_that_end_and_starts_no_more(
    store, inventory, bundle
):
    begin(store, bundle, "a", "b", settings=QUICK.model_copy(update={"parallel": 1}))
    rollout = run_rollout(1, store, ScriptedPush(a=lambda: store.stop(1, "by hand")))
    assert states(rollout) == {"a": "done", "b": "pending"}
    assert rollout.stopped == "by hand"
    push = ScriptedPush()
    assert run_rollout(1, store, push) == rollout
    assert push.pushed == []


def test_rollout_when_too_many_failed_stays_stopped(store, inventory, bundle):
    settings = RolloutSettings(canary=1, abort_at=0)
    begin(store, bundle, "a", "b", settings=settings)
    rollout = run_rollout(1, store, ScriptedPush(a=FULL))
    assert states(rollout) == {"a": "failed", "b": "pending"}
    assert "1 of the 1 devices of wave 1 failed" in rollout.stopped
    push = ScriptedPush()
    run_rollout(1, store, push)
    assert push.pushed == []


def test_canary_when_it_is_off_is_another_device_next_time(store, inventory, bundle):
    begin(store, bundle, "a", "b", settings=QUICK.model_copy(update={"canary": 1}))
    off = ScriptedPush(a=OFF)
    assert states(run_rollout(1, store, off)) == {"a": "pending", "b": "pending"}
    assert states(run_rollout(1, store, off)) == {"a": "pending", "b": "done"}


def test_device_when_it_is_no_longer_listed_is_failed(store, inventory, bundle):
    begin(store, bundle, "a", "b")
    write_inventory(inventory, b="linux-x86-64")
    rollout = run_rollout(1, store, ScriptedPush())
    assert states(rollout) == {"a": "failed", "b": "done"}
    assert "not in devices.yaml any more" in rollout.devices["a"].problem


@pytest.mark.parametrize("kind", [KeyError, EOFError, SystemExit, KeyboardInterrupt])
def test_bug_when_one_push_has_it_is_that_devices_failure(store, inventory, bundle, kind):
    begin(store, bundle, "a", "b")

    def bug() -> None:
        raise kind("oops")

    rollout = run_rollout(1, store, ScriptedPush(a=bug))
    assert states(rollout) == {"a": "failed", "b": "done"}
    assert "oops" in rollout.devices["a"].problem


@pytest.mark.parametrize(("error", "state"), [(None, "done"), (OFF, "pending"), (FULL, "failed")])
def test_push_to_one_device_is_kept_as_a_rollout(store, inventory, bundle, error, state):
    push = ScriptedPush(a=error) if error else ScriptedPush()
    asked, device = Asked(OPTIONS, bundles=bundles_of(bundle)), load_devices()["a"]
    if error:
        with pytest.raises(type(error), match=error.problem):
            act_on_one(asked, device, store, push, progress=Silent())
    else:
        assert act_on_one(asked, device, store, push, progress=Silent()).bytes_sent == 7
    assert states(store.load(1)) == {"a": state}


def test_push_to_one_device_when_interrupted_is_not_done_later(store, inventory, bundle):
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        act_on_one(
            Asked(OPTIONS, bundles=bundles_of(bundle)),
            load_devices()["a"],
            store,
            ScriptedPush(a=interrupt),
            progress=Silent(),
        )
    assert states(store.load(1)) == {"a": "failed"}


def test_rollouts_when_many_begin_at_once_have_different_numbers(store, inventory, bundle):
    bundles, targets = load_bundles_by_target([bundle]), {"a": "linux-x86-64"}
    numbers: list[int] = []
    threads = [
        threading.Thread(
            target=lambda: numbers.append(
                store.create("tiny", targets, RolloutSettings(), OPTIONS, bundles).id
            )
        )
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(1, 21))


class Scripted:
    """Does what a script says on a device, and notes what it was asked for."""

    def __init__(self, **script: EdgepackError) -> None:
        self.script = script
        self.asked: list[tuple[str, str, Options]] = []

    def __call__(self, asked: Rollout, device: Device, *, progress: Progress) -> Done:
        del progress
        self.asked.append((device.name, asked.project, asked.options))
        if device.name in self.script:
            raise self.script[device.name]
        return Done(None, "done there", "1" * 16)


def test_rollback_when_it_is_a_rollout_is_pending_where_a_device_is_off(store, inventory):
    options = RollbackOptions(release="1" * 16, wait_s=3)
    start_rollback(
        "tiny", list(load_devices().values())[:2], store, settings=QUICK, options=options
    )
    rollout = run_rollout(1, store, Scripted(a=OFF))
    assert states(rollout) == {"a": "pending", "b": "done"}
    assert rollout.devices["b"].release == "1" * 16
    again = Scripted()
    assert states(run_rollout(1, store, again)) == {"a": "done", "b": "done"}
    assert again.asked == [("a", "tiny", options)]


def test_rollback_whose_process_is_killed_is_not_tried_again(store, inventory):
    """A second one would undo the first."""
    device = load_devices()["a"]
    while_it_runs = []

    def act(asked: Rollout, device: Device, *, progress: Progress) -> Done:
        del progress
        while_it_runs.append(store.load(asked.id).devices[device.name])
        return Done(None, "done there", "1" * 16)

    start_rollback("tiny", [device], store, settings=QUICK)
    assert states(run_rollout(1, store, act)) == {"a": "done"}
    act_on_one(Asked(RollbackOptions(), "tiny"), device, store, act, progress=Silent())
    assert states(store.load(2)) == {"a": "done"}
    assert [one.state for one in while_it_runs] == ["failed", "failed"]
    assert {one.problem for one in while_it_runs} == {
        "it was begun, and its end was not recorded yet"
    }
    start_rollback("tiny", [device], store, settings=QUICK)
    assert states(run_rollout(3, store, Scripted(a=OFF))) == {"a": "pending"}


def test_rollback_when_a_push_is_pending_takes_its_place(store, inventory, bundle):
    begin(store, bundle, "a", "b")
    run_rollout(1, store, ScriptedPush(a=OFF, b=OFF))
    start_rollback("other", [load_devices()["a"]], store)
    assert states(store.load(1)) == {"a": "pending", "b": "pending"}
    start_rollback("tiny", [load_devices()["a"]], store)
    assert states(store.load(1)) == {"a": "superseded", "b": "pending"}


def test_provisioning_when_it_is_a_rollout_supersedes_no_push(store, inventory, bundle, tmp_path):
    begin(store, bundle, "a")
    run_rollout(1, store, ScriptedPush(a=OFF))
    options = ProvisionOptions(wheels=[Path("w.whl")], wheelhouse=Path("house"), offline=True)
    devices = [load_devices()[name] for name in ("a", "c")]
    start_provisioning(devices, store, settings=QUICK, options=options)
    act = Scripted(c=FULL)
    assert states(run_rollout(2, store, act)) == {"a": "done", "c": "failed"}
    wheelhouse = tmp_path / "house"
    kept = ProvisionOptions(wheels=[tmp_path / "w.whl"], wheelhouse=wheelhouse, offline=True)
    assert [asked for asked in act.asked if asked[0] == "a"] == [("a", "", kept)]
    assert states(store.load(1)) == {"a": "pending"}
    start_provisioning(devices, store)
    assert states(store.load(2)) == {"a": "done", "c": "failed"}


def test_listing_when_a_file_is_broken_still_has_the_others(store, inventory, bundle):
    begin(store, bundle, "a")
    begin(store, bundle, "b")
    (store.folder / "1.json").write_text('{"schema_version": 1}')
    listing = store.list_all()
    assert [rollout.id for rollout in listing.rollouts] == [2]
    assert "cannot be read" in str(listing.broken[0])
    with pytest.raises(UsageError, match="there is no rollout 9"):
        store.load(9)


def bundles_of(*paths: Path) -> dict[str, Bundle]:
    return load_bundles_by_target(paths)


def test_bundles_when_they_cannot_be_told_apart_are_refused(bundle, tmp_path):
    for_target(bundle, tmp_path / "dist" / "again", version="1.0.1")
    with pytest.raises(UsageError, match="two bundles are for linux-x86-64"):
        bundles_of(tmp_path / "dist")
    for_target(bundle, tmp_path / "other", name="other", target="jetson")
    with pytest.raises(UsageError, match="several projects: other, tiny"):
        bundles_of(bundle, tmp_path / "other")
    with pytest.raises(BundleError, match="is not a complete bundle"):
        bundles_of(tmp_path / "none")
    assert list(bundles_of(bundle, bundle)) == ["linux-x86-64"]


def test_lock_when_its_holder_has_gone_is_free(store, inventory, bundle):
    begin(store, bundle, "a")
    with (store.folder / "1.lock").open("w") as left_behind:
        fcntl.flock(left_behind, fcntl.LOCK_EX)
    with store.lock(1):
        pass


def test_lock_when_a_child_that_was_forked_meanwhile_has_its_file_is_free(store, inventory, bundle):
    begin(store, bundle, "a")
    with ExitStack() as child:
        with store.lock(1):
            held = os.dup(find_open(store.folder / "1.lock"))
            child.callback(os.close, held)
        with store.lock(1):
            pass


def find_open(path: Path) -> int:
    """Return this process's file descriptor of an open file."""
    [found] = [fd for fd in Path("/proc/self/fd").iterdir() if fd.exists() and fd.samefile(path)]
    return int(found.name)


def test_rollout_when_killed_after_too_many_failed_stays_stopped(store, inventory, bundle):
    begin(store, bundle, "a", "b", settings=RolloutSettings(canary=1, abort_at=0))

    class Killed(Unwatched):
        def tell(self, news: News) -> None:
            if isinstance(news, Settled) and news.device == "b":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_rollout(1, store, ScriptedPush(a=FULL), watcher=Killed())
    push = ScriptedPush()
    rollout = run_rollout(1, store, push)
    assert push.pushed == []
    assert states(rollout) == {"a": "failed", "b": "pending"}
