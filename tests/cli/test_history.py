"""``edgepack runs``: what is kept, listed, shown, taken in and forgotten."""

from __future__ import annotations

import json

import pytest
from edgepack.cli.main import run
from edgepack.results.store.store import ResultsStore

from tests.support.reports.example_report import example_evaluation, example_report


@pytest.fixture
def store() -> ResultsStore:
    """The user's store with runs of three days and an evaluation."""
    store = ResultsStore()
    for day, device in ((20, "pi5-a"), (21, "pi5-b"), (22, "pi5-a")):
        created = f"2026-11-{day}T09:30:12Z"
        store.save(example_report(id=f"run-{day}", created=created, device=device))
    store.save(example_evaluation(id="evaluation", created="2026-11-23T00:00:00Z"))
    return store


def listed(capsys, *options: str) -> list[str]:
    assert run(["runs", "list", "--json", *options]) == 0
    return [row["id"] for row in json.loads(capsys.readouterr().out)]


def test_runs_list_when_asked_shows_what_is_wanted_the_newest_last(store, capsys):
    assert listed(capsys) == ["run-20", "run-21", "run-22", "evaluation"]
    assert listed(capsys, "--limit", "1") == ["evaluation"]
    assert listed(capsys, "--device", "pi5-a", "--verdict", "valid") == [
        "run-20",
        "run-22",
        "evaluation",
    ]
    assert listed(capsys, "--since", "2026-11-22") == ["run-22", "evaluation"]
    assert listed(capsys, "--project", "faces") == []
    assert run(["runs", "list", "--limit", "2"]) == 0
    text = capsys.readouterr().out
    assert "run-22" in text
    assert "top1 0.9806" in text
    assert "run-21" not in text
    assert f"from {store.name}, the newest 2: --limit shows more" in text


def test_runs_list_when_the_terminal_is_narrow_has_one_line_for_each(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    ResultsStore().save(example_report(), example_evaluation())
    assert run(["runs", "list"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [
        example_report().id, example_report().bundle, "pi5-a", "cpu-int8-static",
        "10.00", "10.25", "52.0", "VALID",
    ] in lines  # fmt: skip
    assert example_evaluation().id in [line[0] for line in lines if line]
    ResultsStore().save(example_evaluation(reasons=["nodes ran elsewhere"]))
    assert run(["runs", "list"]) == 0
    assert "top1 0.9806 INVALID" in capsys.readouterr().out


def test_runs_list_when_since_is_no_time_says_how_to_write_it(store, capsys):
    assert run(["runs", "list", "--since", "tuesday"]) == 2
    assert "hint: write it as 2026-11-21" in capsys.readouterr().err


def test_runs_show_when_asked_shows_a_report_of_each_kind(store, capsys):
    assert run(["runs", "show", "run-21"]) == 0
    assert "pi5-b" in capsys.readouterr().out
    assert run(["runs", "show", "evaluation"]) == 0
    assert "0.9806" in capsys.readouterr().out
    assert run(["runs", "show", "run-21", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == store.load("run-21").model_dump(mode="json")
    assert run(["runs", "show", "run-23"]) == 2
    assert "did you mean 'run-2" in capsys.readouterr().err


def test_runs_prune_when_asked_says_what_goes_and_keeps_the_newest(store, capsys):
    assert run(["runs", "prune", "--keep", "1", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "run-20" in text
    assert "1 would be deleted from" in text
    assert len(store.rows()) == 4
    assert run(["runs", "prune", "--keep", "1"]) == 0
    assert "1 deleted from" in capsys.readouterr().out
    assert [row.id for row in store.rows()] == ["run-21", "run-22", "evaluation"]


def test_runs_import_when_given_reports_keeps_all_or_none(tmp_path, capsys):
    old, new, bad = (tmp_path / f"{name}.json" for name in ("old", "new", "bad"))
    old.write_text(example_report(id="old").model_dump_json())
    new.write_text(example_evaluation(id="new").model_dump_json())
    bad.write_text('{"schema_version": 9, "runs": []}')
    team = f"sqlite:///{tmp_path}/team.sqlite"
    assert run(["runs", "import", str(old), str(bad), "--results", team]) == 7
    assert "schema version 9, this edgepack reads" in capsys.readouterr().err
    assert listed(capsys, "--results", team) == []
    assert run(["runs", "import", str(old), str(new), "--results", team]) == 0
    assert "stored as old\nstored as new\n" in capsys.readouterr().out
    assert set(listed(capsys, "--results", team)) == {"old", "new"}
    assert listed(capsys) == []
