"""Builds on a Dask cluster: the same bytes as alone, whatever becomes of workers."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from distributed import Client
from edgepack.base.files import hash_file
from edgepack.base.progress import Silent, SilentTask
from edgepack.builder import cluster as cluster_of_builds
from edgepack.builder import cluster_worker
from edgepack.builder.build import build
from edgepack.builder.cache import StepCache
from edgepack.builder.cluster import open_cluster
from edgepack.builder.execution import execute
from edgepack.builder.many import build_projects
from edgepack.builder.plan import PlanBuilder
from edgepack.builder.room import Room
from edgepack.errors import ModelError, ToolError
from edgepack.model.simulating import Simulator

from tests.support.doubles.cluster_steps import Deadly, Held, Refusing
from tests.support.nets import tiny_models
from tests.support.servers.dask_cluster import ROOT, dask_cluster

pytestmark = pytest.mark.slow(reason="a cluster takes seconds to start")
WORKERS = {
    "small": ("--nthreads", "1", "--memory-limit", "600MB"),
    "large": ("--nthreads", "2", "--resources", "MEMORY=4e9"),
}


@pytest.fixture(scope="module")
def started():
    with dask_cluster(WORKERS) as cluster:
        yield cluster


@pytest.fixture
def running(started):
    """The cluster with both workers: a test before may have ended one."""
    with Client(started.address, timeout=60, set_as_default=False) as client:
        client.wait_for_workers(len(WORKERS), timeout=120)
    return started


class Watched(Silent):
    def __init__(self):
        self.lines = []
        self.begun = []

    @contextmanager
    def start_task(self, work):
        task = SilentTask()
        task.begin = lambda part, doing="", kind="": self.begun.append(doing)
        task.report = lambda part, done, total: self.lines.append(f"{done} of {total}")
        yield task

    def note(self, text):
        self.lines.append(text)


def hash_all(folder):
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hash_file(path) for path in files}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    return tiny_models.write_project(tmp_path_factory.mktemp("project"))


@pytest.fixture(scope="module")
def alone(project, tmp_path_factory):
    """What a build without a cluster writes."""
    folder = tmp_path_factory.mktemp("alone")
    build(project=project, targets=["raspberry-pi", "web"], out=folder, jobs=2)
    return hash_all(folder)


@pytest.mark.parametrize("by", ["folder", "bytes"])
def test_build_when_workers_do_its_steps_writes_the_same_bytes(
    by, running, project, alone, tmp_path, monkeypatch
):
    if by == "bytes":
        monkeypatch.setattr(cluster_worker, "can_see", lambda place: False)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary-of-a-secret")
    orders, submit = [], Client.submit

    def spy(self, function, order, *given, **named):
        orders.append(order)
        return submit(self, function, order, *given, **named)

    monkeypatch.setattr(Client, "submit", spy)
    progress = Watched()
    targets = ["raspberry-pi", "web"]
    result = build(
        project=project, targets=targets, out=tmp_path, on=running.address, progress=progress
    )
    assert hash_all(tmp_path) == alone
    away = [text for text in progress.begun if re.search(" on (small|large)$", text)]
    assert {text.rpartition(" ")[2] for text in away} == {"small", "large"}
    assert len(away) == len(orders) > result.steps / 2
    assert {bool(order.mark) for order in orders} == {by == "folder"}
    assert b"canary" not in pickle.dumps(orders)


def plan_steps(*steps):
    """Return a plan in which each step takes the one before."""
    builder, before = PlanBuilder(), None
    for step in steps:
        before = builder.add_step(step, before=before)
    return builder.make_plan([]), before


@pytest.fixture
def cache(tmp_path):
    return StepCache(tmp_path / "cache")


@pytest.fixture
def held(tmp_path):
    folder = tmp_path / "held"
    folder.mkdir()
    return folder


def wait_for(condition):
    end = time.monotonic() + 120
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def run_beside(*arguments, **named):
    """Execute a plan in a thread; return the thread and where its result or error will be."""
    found = []

    def run():
        try:
            found.append(execute(*arguments, **named))
        except ToolError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


@pytest.mark.parametrize("by", ["folder", "bytes"])
def test_step_when_its_worker_is_killed_in_its_midst_is_done_by_another(
    by, running, cache, held, monkeypatch
):
    if by == "bytes":
        monkeypatch.setattr(cluster_worker, "can_see", lambda place: False)
    (held / "go").touch()
    progress = Watched()
    plan, last = plan_steps(Held(str(held), 1), Held(str(held), 2), Held(str(held), 3))
    with open_cluster(running.address, cache) as cluster:
        execute(
            plan.only([plan.steps[0].id]), cache=cache, jobs=1, progress=Silent(), cluster=cluster
        )
        (held / "go").unlink()
        for path in held.glob("*.pid"):
            path.unlink()
        thread, found = run_beside(plan, cache=cache, jobs=1, progress=progress, cluster=cluster)
        first = wait_for(lambda: list(held.glob("*.pid")))[0]
        os.kill(int(first.stem), signal.SIGKILL)
        wait_for(lambda: len(list(held.glob("*.pid"))) == 2)
        (held / "go").touch()
        thread.join(120)
        assert cluster.held == {}  # workers keep nothing of a build that has ended
    made = found[0].artifacts[last].path
    assert (made / "out.txt").read_text() == "123"
    assert (made / "env.txt").read_text() == "1"
    assert "held" in progress.lines
    assert "1 of 2" in progress.lines


@pytest.mark.parametrize("where", ["here", "away"])
def test_step_when_all_builds_are_given_up_ends_wherever_it_is(where, running, cache, held):
    plan, _ = plan_steps(Held(str(held), 1), Held(str(held), 2))
    with open_cluster(running.address, cache) as cluster:
        cluster.room = Room(1)
        if where == "here":
            cluster.takes = lambda *_: False
        thread, found = run_beside(plan, cache=cache, jobs=1, progress=Silent(), cluster=cluster)
        wait_for(lambda: list(held.glob("*.pid")))
        assert cluster.room.inside == (where == "here")
        cluster.stop()
        thread.join(60)
        is_over = not thread.is_alive()
        (held / "go").touch()
        thread.join(120)
        assert is_over
        assert "was stopped" in found[0].problem
        assert cluster.room.inside == 0
        with pytest.raises(ToolError), cluster.timing:
            pass


def test_cluster_when_a_worker_hangs_says_so(running, cache, monkeypatch):
    with Client(running.address, set_as_default=False) as client:
        hung = next(iter(client.run(os.getpid).values()))
    monkeypatch.setattr(cluster_of_builds, "PREPARE_S", 3)
    os.kill(hung, signal.SIGSTOP)
    try:
        with pytest.raises(ToolError) as raised, open_cluster(running.address, cache):
            pass
    finally:
        os.kill(hung, signal.SIGCONT)
    assert "could not be prepared" in raised.value.problem
    assert "hangs" in raised.value.hint


def test_step_when_its_inputs_cannot_be_sent_says_that_the_scheduler_was_lost(
    running, cache, held, monkeypatch
):
    def scatter(self, data, **_):
        raise TimeoutError("no worker")

    monkeypatch.setattr(cluster_worker, "can_see", lambda place: False)
    monkeypatch.setattr(Client, "scatter", scatter)
    (held / "go").touch()
    plan, _ = plan_steps(Held(str(held), 1), Held(str(held), 2))
    first = plan.only([plan.steps[0].id])
    execute(first, cache=cache, jobs=1, progress=Silent())
    with (
        open_cluster(running.address, cache) as cluster,
        pytest.raises(ToolError) as raised,
    ):
        execute(plan, cache=cache, jobs=1, progress=Silent(), cluster=cluster)
    assert "was lost: no worker" in raised.value.problem


def test_step_when_it_refuses_on_a_worker_keeps_its_hint(running, cache, held):
    plan, _ = plan_steps(Refusing(str(held)))
    with (
        open_cluster(running.address, cache) as cluster,
        pytest.raises(ModelError) as raised,
    ):
        execute(plan, cache=cache, jobs=1, progress=Silent(), cluster=cluster)
    assert (raised.value.problem, raised.value.hint) == ("there is a Loop", "leave Loops out")
    assert raised.value.where.endswith(": model.onnx")


def test_step_when_it_ends_every_worker_is_an_error_that_names_it(running, cache, held):
    plan, _ = plan_steps(Deadly(str(held)))
    with (
        open_cluster(running.address, cache) as cluster,
        pytest.raises(ToolError) as raised,
    ):
        execute(plan, cache=cache, jobs=1, progress=Silent(), cluster=cluster)
    assert "prepared ended 2 workers" in raised.value.problem
    assert "memory" in raised.value.hint


def test_cluster_when_a_worker_has_another_version_names_both(running, cache, monkeypatch):
    real = cluster_worker.find_version
    monkeypatch.setattr(
        cluster_worker, "find_version", lambda name: "1.9.9" if name == "onnx" else real(name)
    )
    with pytest.raises(ToolError) as raised, open_cluster(running.address, cache):
        pass
    assert raised.value.problem.count(f"has onnx {real('onnx')}, and this machine 1.9.9") == 3
    assert "install the same versions" in raised.value.hint


@pytest.mark.parametrize(
    ("needs", "takes"),
    [
        ((Held("x"), 3_000_000_000, 0), True),
        ((Held("x"), 5_000_000_000, 0), False),
        ((Held("x"), 1, 300_000_000), False),
        ((Held("x", Simulator("onnxruntime-qnn", "0.1", "m")), 1, 0), False),
    ],
)
def test_cluster_when_no_worker_has_what_a_step_needs_leaves_it_here(
    needs, takes, running, cache, monkeypatch
):
    monkeypatch.setattr(cluster_worker, "can_see", lambda place: False)
    with open_cluster(running.address, cache) as cluster:
        assert cluster.takes(*needs) is takes


def test_cluster_when_a_worker_has_the_simulator_takes_its_steps(running, cache):
    found = cluster_worker.find_version("onnxruntime-qnn")
    with open_cluster(running.address, cache) as cluster:
        step = Held("x", Simulator("onnxruntime-qnn", found, "m"))
        assert cluster.takes(step, 1, 0) is (found != cluster_worker.MISSING)


def test_builds_when_two_are_on_one_cluster_write_the_same(running, project, alone, tmp_path):
    argv = [sys.executable, "-m", "edgepack", "build", str(project), "--on", running.address]
    argv += ["--target", "raspberry-pi", "--target", "web"]
    children = [
        subprocess.Popen(
            [*argv, "--out", str(tmp_path / name)],
            env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / f"cache-{name}")},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        for name in "ab"
    ]
    told = [child.communicate(timeout=300)[1] for child in children]
    assert [child.returncode for child in children] == [0, 0], told
    assert [hash_all(tmp_path / name) == alone for name in "ab"] == [True, True]


@pytest.fixture
def projects(project, tmp_path):
    """A folder ``projects`` with two that have one model, and one that is wrong."""
    for number in range(3):
        folder = tmp_path / "projects" / f"net{number}"
        folder.mkdir(parents=True)
        for file in project.parent.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        text = project.read_text().replace("name: net\n", f"name: net{number}\n")
        (folder / "edgepack.yaml").write_text(text if number < 2 else "schema_version: 1\n")
    return sorted((tmp_path / "projects").glob("*/edgepack.yaml"))


def test_projects_when_they_share_steps_do_them_once(running, projects, tmp_path):
    built = build_projects(projects, targets=["web"], out=tmp_path / "dist", on=running.address)
    assert [bool(each.error) for each in built] == [False, False, True]
    results = [each.result for each in built[:2]]
    assert sum(result.from_cache for result in results) == results[0].steps
    assert len({result.bundles[0].bundle.path for result in results}) == 2


@pytest.mark.in_turns
@pytest.mark.parametrize("number", [0, 1])
def test_page_when_its_commands_are_typed_builds_what_is_right(number, running, projects, tmp_path):
    """The first is without a cluster; one project is wrong, and its exit code is the command's."""
    text = (ROOT / "docs/building-together.md").read_text()
    lines = re.findall(r"^edgepack (build projects.*)$", text, re.MULTILINE)
    words = lines[number].replace("tcp://10.0.0.5:8786", running.address).split()
    assert (running.address in words) == bool(number)
    words[1:2] = [str(path.relative_to(tmp_path)) for path in projects]
    done = subprocess.run(
        [sys.executable, "-m", "edgepack", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert (done.stdout.count("done"), done.stdout.count("failed")) == (2, 1)
    targets = words.count("--target")
    assert len(list((tmp_path / "dist").glob("*.tar.gz"))) == 2 * targets


def test_build_when_its_scheduler_is_lost_says_that_finished_steps_stay(cache, held):
    with dask_cluster({"only": ("--nthreads", "1")}) as cluster_of_ours:
        plan, _ = plan_steps(Held(str(held)))
        with open_cluster(cluster_of_ours.address, cache) as cluster:
            thread, found = run_beside(
                plan, cache=cache, jobs=1, progress=Silent(), cluster=cluster
            )
            wait_for(lambda: list(held.glob("*.pid")))
            cluster_of_ours.scheduler.kill()
            thread.join(120)
            (held / "go").touch()
    assert isinstance(found[0], ToolError)
    assert "was lost" in found[0].problem
    assert "finished steps are in the cache" in found[0].hint


def test_cluster_when_it_has_no_workers_says_how_to_start_one(cache):
    with (
        dask_cluster({}) as ours,
        pytest.raises(ToolError) as raised,
        open_cluster(ours.address, cache),
    ):
        pass
    assert "has no workers" in raised.value.problem
    assert f"dask worker {ours.address}" in raised.value.hint
