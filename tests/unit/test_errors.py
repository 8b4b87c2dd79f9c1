from __future__ import annotations

import pickle

from edgepack import errors
from edgepack.errors import BudgetError, EdgepackError, SamplesError, format_list, suggest_nearest


def error_classes(base=EdgepackError):
    for kind in base.__subclasses__():
        yield kind
        yield from error_classes(kind)


def test_exit_codes_when_compared_are_unique_per_branch():
    codes = [kind.exit_code for kind in EdgepackError.__subclasses__()]
    assert sorted(codes) == list(range(2, 12))


def test_tree_when_read_in_the_docstring_names_every_class_and_code():
    for kind in error_classes():
        line = next(line for line in errors.__doc__.splitlines() if kind.__name__ in line)
        assert f" {kind.exit_code} " in line


def test_error_when_it_crosses_processes_keeps_everything():
    error = pickle.loads(pickle.dumps(SamplesError("p", hint="h", where="w")))
    assert (type(error), str(error)) == (SamplesError, "w: p\n  hint: h")
    short = BudgetError("p", hint="h")
    short.needed_s = 7
    assert pickle.loads(pickle.dumps(short)).needed_s == 7


def test_nearest_when_several_are_near_names_three_of_them_the_nearest_first():
    boards = [f"board-{n:02}" for n in range(35)]
    assert suggest_nearest("board-07x", boards) == "did you mean 'board-07'?"
    assert suggest_nearest("board-x", boards).count("'") == 6
    assert suggest_nearest("ab", ["abc", "abd"]) == "did you mean 'abd' or 'abc'?"


def test_nearest_when_nothing_is_near_and_there_are_many_lists_a_few_and_says_how_many():
    said = suggest_nearest("zzz", [f"pi{n:02}" for n in range(35)])
    assert said.startswith("one of: pi00, pi01, ")
    assert said.endswith(", pi15, and 19 more")


def test_nearest_when_nothing_is_near_lists_all():
    assert suggest_nearest("raspbery-pi", ["raspberry-pi", "x"]) == "did you mean 'raspberry-pi'?"
    assert suggest_nearest("zzz", ["b", "a"]) == "one of: a, b"


def test_listed_when_there_are_more_than_are_shown_says_how_many():
    assert format_list(["a", "b"], 2) == "a, b"
    assert format_list(["a", "b", "c", "d"], 2) == "a, b, and 2 more"
    assert format_list(["a: x, y", "b", "c"], 2, "; ") == "a: x, y; b; and 1 more"
