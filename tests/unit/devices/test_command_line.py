from __future__ import annotations

import shlex

from edgepack.base.processes import run_program
from edgepack.devices.commands import format_command
from hypothesis import given, settings
from hypothesis import strategies as st

WORDS = st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8")), min_size=1)


@given(words=WORDS)
def test_any_argv_comes_back_from_its_command_line(words: list[str]) -> None:
    # exec: the first word is a program, even where a shell has a builtin or an assignment for it
    assert shlex.split(format_command(words)) == ["exec", *words]


@settings(max_examples=25, deadline=None)
@given(words=WORDS)
def test_any_argv_passes_a_real_shell(words: list[str]) -> None:
    line = format_command(["printf", r"%s\0", *words])
    result = run_program(["sh", "-c", line], timeout_s=20)
    assert result.stdout == b"".join(word.encode() + b"\0" for word in words)
