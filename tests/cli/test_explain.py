"""``edgepack explain``: why a stored run takes as long as it does."""

from __future__ import annotations

import json

import pytest
from edgepack.cli.main import run
from edgepack.results.store.store import ResultsStore

from tests.support.reports.example_costs import conv_node, costly_report, relu_node
from tests.support.reports.example_report import example_evaluation


@pytest.fixture
def store() -> ResultsStore:
    """The user's store with an older run, and one whose nodes are known."""
    store = ResultsStore()
    older = costly_report(conv_node(9000), id="older", created="2026-11-20T00:00:00Z")
    store.save(older)
    store.save(costly_report(conv_node(7500), relu_node(1500), between_us=900))
    return store


def test_explain_shows_the_newest_run_its_parts_nodes_and_first_remedies(store, capsys):
    assert run(["explain"]) == 0
    text = capsys.readouterr().out
    assert "digits-1.0.0-raspberry-pi, cpu-int8-static on pi5-a: p50 10.00 ms, 9.900 ms" in text
    assert "bound by arithmetic" in text
    assert "1. float32 in 1 of 1 product" in text
    assert "at most 57% of a run. the bundle has cpu-int8-static" in text
    assert "not known: which cores are fast" in text
    assert text.index("1. ") < text.index("2. ") < text.index("3. ")


def test_explain_as_json_has_all_nodes_with_what_bounds_them(store, capsys):
    assert run(["explain", "older", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["run"] == "older"
    [node] = document["nodes"]
    assert (node["bound"], node["multiply_adds"]) == ("arithmetic", 115_605_504)
    assert document["parts"][0]["kind"] == "arithmetic"


def test_explain_of_what_is_no_run_says_so(store, capsys):
    store.save(example_evaluation(id="evaluation"))
    assert run(["explain", "evaluation"]) == 2
    assert "is no run of edgepack bench" in capsys.readouterr().err
    assert run(["explain", "oldr"]) == 2
    assert "older" in capsys.readouterr().err


def test_explain_without_any_run_says_how_to_make_one(capsys):
    assert run(["explain"]) == 2
    assert "edgepack bench" in capsys.readouterr().err
