"""The team's cache in object storage: what it gives is proven, what it does not give is made."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

import pytest
from edgepack.base.files import hash_file
from edgepack.base.progress import Silent
from edgepack.builder import shared
from edgepack.builder.build import build
from edgepack.builder.cache import StepCache
from edgepack.builder.shared import open_shared_cache

from tests.support.nets import tiny_models
from tests.support.servers.dask_cluster import ROOT
from tests.support.servers.object_store import object_store

pytestmark = pytest.mark.slow(reason="moto takes seconds to load")
KEY, OTHER = "1" * 64, "2" * 64
PLACE = "s3://team/builds"


class Notes(Silent):
    """Keeps what a build tells of the store."""

    def __init__(self):
        self.lines: list[str] = []

    def note(self, text):
        self.lines += [text] if "s3://" in text else []


@pytest.fixture
def store(monkeypatch):
    with object_store() as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


class Machine:
    """A cache of its own, and what its user is told."""

    def __init__(self, folder):
        self.told: list[str] = []
        self.cache = StepCache(folder, open_shared_cache())
        self.shared = self.cache.shared
        self.shared.tell = self.told.append

    def make(self, key=KEY, text="made"):
        def fill(folder):
            (folder / "model.onnx").write_bytes(text.encode() * 20_000)
            (folder / "notes.json").write_text("{}")

        made = self.cache.keep(key, fill)
        self.cache.share(key, made)
        self.shared.finish()
        return made


@pytest.fixture
def machines(store, tmp_path):
    return lambda name: Machine(tmp_path / name)


def test_entry_when_another_machine_made_it_is_the_same_here(store, machines):
    made, ours = machines("a").make(), machines("b")
    found = ours.cache.fetch(KEY)
    assert (found.digest, found.files) == (made.digest, made.files)
    assert (found.path / "model.onnx").read_bytes() == (made.path / "model.onnx").read_bytes()
    assert ours.cache.find(KEY) == found
    assert ours.cache.fetch(OTHER) is None
    assert ours.told == []


def test_entry_when_others_were_first_stays_as_they_sent_it(store, machines):
    machines("a").make()
    before = store.list_objects()
    second = machines("b")
    second.make(text="else")
    assert store.list_objects() == before
    assert store.count("PUT", 412) == 1
    assert second.told == []


@pytest.mark.parametrize("fault", ["flipped", "other", "short", "truncated", "deep", "huge"])
def test_entry_when_the_store_lies_is_passed_over(fault, store, machines):
    machines("a").make()
    machines("a").make(OTHER, "other")
    store.fault = lambda method, path: fault
    ours = machines("b")
    assert ours.cache.fetch(KEY) is None
    assert ours.cache.find(KEY) is None
    assert ours.cache.fetch(OTHER) is None
    assert len(ours.told) == 1
    assert ours.told[0].startswith("warning: ")
    assert ("more than any entry" in ours.told[0]) == (fault == "huge")
    assert not list(ours.cache.folder.glob(".*"))


@pytest.mark.parametrize("fault", ["5xx", "denied", "slow", "dripping"])
def test_store_when_it_is_out_of_order_is_left_alone(fault, store, machines, monkeypatch):
    monkeypatch.setattr(shared, "ANSWER_S", 1)
    machines("a").make()
    store.asked.clear()
    store.fault = lambda method, path: fault
    ours = machines("b")
    assert ours.cache.fetch(KEY) is None
    asked = len(store.asked)
    assert ours.cache.fetch(OTHER) is None
    ours.make(OTHER)
    assert len(store.asked) == asked <= 2
    assert len(ours.told) == 1
    assert "left alone" in ours.told[0]
    assert "operator" not in ours.told[0]


def test_store_when_it_may_only_be_read_is_read(store, machines):
    machines("a").make()
    store.fault = lambda method, path: "denied" if method == "PUT" else ""
    ours = machines("b")
    ours.make(OTHER)
    ours.make("3" * 64)
    assert ours.cache.fetch(KEY)
    assert len(store.list_objects()) == 1
    assert store.count("PUT", 403) == 1
    assert [line[:20] for line in ours.told] == ["nothing is sent to s"]


def test_store_when_nothing_listens_is_left_alone(machines, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    ours = machines("b")
    assert ours.cache.fetch(KEY) is None
    assert "left alone" in ours.told[0]


def test_store_when_there_are_no_credentials_is_left_alone(store, machines, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    ours = machines("b")
    assert ours.cache.fetch(KEY) is None
    ours.make()
    assert store.asked == []
    assert len(ours.told) == 1


def test_store_when_credentials_lie_in_a_profile_finds_them(store, machines, monkeypatch, own_home):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    (own_home / ".aws").mkdir()
    secret = "aws_access_key_id = operator\naws_secret_access_key = secret\n"
    (own_home / ".aws/credentials").write_text(f"[ci]\n{secret}")
    monkeypatch.setenv("AWS_PROFILE", "ci")
    ours = machines("a")
    ours.make()
    assert ours.told == []
    assert len(store.list_objects()) == 1


def test_entry_when_another_team_signed_it_is_passed_over(store, machines, monkeypatch):
    monkeypatch.setenv("EDGEPACK_CACHE_SECRET", "theirs")
    machines("a").make()
    assert machines("c").cache.fetch(KEY)
    monkeypatch.setenv("EDGEPACK_CACHE_SECRET", "ours")
    ours = machines("b")
    assert ours.cache.fetch(KEY) is None
    assert "not signed" in ours.told[0]
    assert "ours" not in repr(ours.cache)


def test_store_when_it_takes_entries_slowly_is_not_waited_for(store, machines):
    store.fault = lambda method, path: "slow" if method == "PUT" else ""
    ours = machines("a")
    ours.shared.wait_s = 0.3
    ours.make()
    began = time.monotonic()
    ours.make(OTHER)
    assert time.monotonic() - began < 30  # without the limit: 60
    assert ours.told == ["warning: 1 entries were not sent to s3://team/builds in time"]


def build_fresh(project, folder, monkeypatch):
    """Build as on a machine that has built nothing yet; return digests, what was told, counts."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    notes, out = Notes(), folder / "dist"
    result = build(project=project, targets=["raspberry-pi"], out=out, jobs=2, progress=notes)
    files = (path for path in sorted(out.rglob("*")) if path.is_file())
    return {str(p.relative_to(out)): hash_file(p) for p in files}, notes.lines, result


def test_build_when_another_machine_built_before_takes_its_steps_until_the_store_is_gone(
    store, tmp_path, monkeypatch
):
    project = tiny_models.write_project(tmp_path)
    first, told, made = build_fresh(project, tmp_path / "a", monkeypatch)
    assert told == []
    assert made.from_cache == 0
    assert len(store.list_objects()) == made.steps == store.count("PUT", 200)

    second, told, taken = build_fresh(project, tmp_path / "b", monkeypatch)
    assert second == first
    assert taken.from_cache == taken.steps
    assert told == [f"{taken.steps} steps from {PLACE}"]

    store.asked.clear()
    store.fault = lambda method, path: "5xx" if len(store.asked) > 4 else ""
    third, told, part = build_fresh(project, tmp_path / "c", monkeypatch)
    assert third == first
    assert 0 < part.from_cache < part.steps
    assert "left alone" in told[0]


def test_page_when_it_names_variables_names_those_that_are_read(store):
    text = (ROOT / "docs/building-together.md").read_text()
    place = re.findall(r"^export (\w+)=(.*)$", text, re.MULTILINE)
    assert place == [(shared.VARIABLE, "s3://bucket/prefix")]
    assert {shared.VARIABLE, "AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID"} <= {*store.environment}
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_PROFILE", shared.SECRET_VARIABLE):
        assert f"`{name}`" in text


def test_builds_when_two_run_at_once_send_each_entry_once(store, tmp_path):
    project = tiny_models.write_project(tmp_path)
    argv = [sys.executable, "-m", "edgepack", "build", "--project", str(project)]
    children = [
        subprocess.Popen(
            [*argv, "--target", "raspberry-pi", "--out", str(tmp_path / name / "dist")],
            env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / name)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in "ab"
    ]
    told = [child.communicate(timeout=300)[1] for child in children]
    assert [child.returncode for child in children] == [0, 0], told
    assert "left alone" not in "".join(told)
    assert store.count("PUT", 200) == len(store.list_objects()) > 0
    dists = [
        {p.name: hash_file(p) for p in (tmp_path / name / "dist").glob("*.gz")} for name in "ab"
    ]
    assert dists[0] == dists[1] != {}
    assert "canary" not in "".join(told)
