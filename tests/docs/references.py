"""What documents refer to: links, commands of edgepack, targets of make, files of the repository.

Each checker returns what is wrong in a text, so that tests can hand it documents and planted
mistakes alike. Nothing is run: command lines are parsed by the command line's own parser.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer
from edgepack import api
from edgepack.cli.app import app
from edgepack.project.profile import find_target_files
from typer.core import TyperGroup
from typer.exceptions import TyperException

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "packager" / "edgepack"
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHELL = ("sh", "", "crontab")
"""Languages of blocks whose lines are typed."""
EXTENSIONS = "py|sh|md|c|j2|js|svg|png"
"""Of bare names that are the repository's; YAML and JSON are mostly a user's."""
OTHERS = {"SECURITY.md"}
"""Bare names of files that a page has somebody write."""
OTHER_OPTIONS = {"--help", "--version", "--extra-index-url"}
"""Options that are no parameters of a command, and of other programs."""
LACKING = ("MissingParameter", "BadOptionUsage")
"""The parser's errors where something is missing at the end; classes that typer keeps private."""


def broken_links(path: Path, text: str) -> list[str]:
    """Return relative links that lead to no file, or to no heading of one."""
    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", text)):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        missing = bool(name) and not target.exists()
        if missing or (anchor and anchor not in headings(target, None if name else text)):
            wrong.append(link)
    return wrong


def headings(path: Path, text: str | None) -> set[str]:
    """Return the anchors of a document's headings, as GitHub and GitLab make them."""
    text = path.read_text(encoding="utf-8") if text is None else text
    found = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found}


def lines_to_type(text: str) -> Iterator[tuple[str, bool]]:
    """Yield what a document gives to be typed, and whether it stands in a block of its own."""
    for language, block in FENCE.findall(text):
        if language in SHELL:
            yield from ((line, True) for line in block.splitlines())
    yield from ((line, False) for line in re.findall(r"`([^`\n]+)`", FENCE.sub("", text)))


def words_of(line: str) -> list[list[str]]:
    """Return the commands of a line of shell, as words, without what pipes and redirections add."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set("|&;<>"):
            commands.append([])
        else:
            commands[-1].append(word)
    return commands


def broken_commands(text: str) -> list[str]:
    """Return command lines of edgepack that its own parser refuses.

    In running text a command may lack what it needs; in a block of its own it may not.
    """
    wrong = []
    for line, whole in lines_to_type(text):
        if "edgepack " not in line:
            continue
        for words in words_of(line):
            if words and Path(words[0]).name == "edgepack" and words[1:]:
                problem = problem_of(words[1:], whole=whole)
                wrong += [f"{line}: {problem}"] if problem else []
    return wrong


def problem_of(arguments: list[str], *, whole: bool) -> str | None:
    """Return why the command line refuses arguments; None if it takes them."""
    if arguments[-1] == "...":
        arguments, whole = arguments[:-1], False
    command, context = command_line(), None
    try:
        while isinstance(command, TyperGroup):
            if not arguments or arguments[0].isupper():  # COMMAND stands for any
                return None
            if arguments[0].startswith("-"):
                known = {"--version", *(n for option in command.params for n in option.opts)}
                return None if arguments[0] in known else f"no option {arguments[0]}"
            context = typer.Context(command, info_name="edgepack", parent=context)
            _, command, arguments = command.resolve_command(context, arguments)
        command.make_context("edgepack", arguments, parent=context)
    except TyperException as error:
        return None if type(error).__name__ in LACKING and not whole else str(error)
    return None


def broken_options(text: str) -> list[str]:
    """Return options in running text that no command of edgepack has, or not the one before them.

    ``push --canary 2`` is read as of edgepack; a bare ``--canary`` has to be some command's.
    """
    wrong = []
    for line in re.findall(r"`([^`\n]+)`", FENCE.sub("", text)):
        first, *others = line.split()
        bare = re.match(r"--[a-z][a-z-]*$", first)
        if bare and first not in options() | OTHER_OPTIONS:
            wrong.append(line)
        elif first in commands() and any(word.startswith("--") for word in others):
            takers = (problem_of([*path, *others], whole=False) for path in commands()[first])
            wrong += [line] if all(takers) else []
    return wrong


@cache
def commands() -> dict[str, list[list[str]]]:
    """Return the words that lead to each command and group, by the last of them."""
    found: dict[str, list[list[str]]] = {}
    waiting: list[tuple[list[str], Any]] = [([], command_line())]
    while waiting:
        path, command = waiting.pop()
        for name, inner in getattr(command, "commands", {}).items():
            found.setdefault(name, []).append([*path, name])
            waiting.append(([*path, name], inner))
    return found


@cache
def options() -> set[str]:
    """Return the options of all commands."""
    found = set(command_line().params)
    for paths in commands().values():
        for path in paths:
            command = command_line()
            for word in path:
                command = command.commands[word]
            found |= set(command.params)
    return {name for option in found for name in option.opts}


@cache
def command_line() -> Any:
    """Return edgepack's command line as its parser."""
    return typer.main.get_command(app)


def unknown_bundles(text: str) -> list[str]:
    """Return bundles' folders that end in no target."""
    found = re.findall(r"\b(?:dist|tuned)/([\w.]+-\d+\.\d+\.\d+-([\w-]+))", text)
    return [bundle for bundle, target in found if target not in find_target_files()]


def broken_targets(text: str) -> list[str]:
    """Return calls of make whose target the Makefile does not have."""
    calls = [line.split() for line, _ in lines_to_type(text) if line.startswith("make ")]
    words = [word for call in calls for word in call[1:2] if "=" not in word]
    return [f"make {word}" for word in words if word not in make_targets()]


@cache
def make_targets() -> set[str]:
    """Return the Makefile's targets."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][a-z-]*):", text, re.MULTILINE))


def broken_functions(text: str) -> list[str]:
    """Return names of ``edgepack.api`` that it has not."""
    names = re.findall(r"edgepack\.api\.(\w+)", text)
    return [name for name in names if name not in dir(api)]


def broken_paths(path: Path, text: str) -> list[str]:
    """Return paths in backticks that begin in the repository, or in edgepack, and are not there.

    ``<name>`` and ``*`` stand for anything, ``{a,b}`` for each. A bare file name has to be that of
    some file of the repository.
    """
    wrong = []
    for code in re.findall(r"`([^`\n]+)`", FENCE.sub("", text)):
        if re.fullmatch(r"[\w.{},*<>-]+(/[\w.{},*<>-]+)*/?", code) is None:
            continue
        paths = alternatives(re.sub(r"<\w+>", "*", code))
        wrong += [] if all(is_there(one, path.parent) for one in paths) else [code]
    return wrong


def broken_labels(drawing: str) -> list[str]:
    """Return paths that label a drawing and are not there; ``ID`` stands for any name."""
    labels = re.findall(r">([^<]+)</text>", drawing)
    paths = [word for label in labels for word in label.split() if "/" in word]
    return [path for path in paths if not is_there(path.replace("ID", "*"), ROOT)]


def is_there(path: str, page: Path) -> bool:
    """Return whether a path leads to a file, or is none of the repository's by its beginning."""
    if "/" not in path:
        ours = re.search(rf"\.({EXTENSIONS})$", path) and "*" not in path and path not in OTHERS
        return not ours or path in file_names()
    if not any((base / path.partition("/")[0]).is_dir() for base in (ROOT, PACKAGE)):
        return True
    return any(any(base.glob(path.rstrip("/"))) for base in (ROOT, PACKAGE, page))


def alternatives(path: str) -> list[str]:
    """Return the paths that one with ``{a,b}`` in it stands for."""
    found = re.search(r"\{([^{}]*)\}", path)
    if found is None:
        return [path]
    before, after = path[: found.start()], path[found.end() :]
    return [one for part in found[1].split(",") for one in alternatives(before + part + after)]


@cache
def file_names() -> set[str]:
    """Return the names of the repository's files."""
    folders = ("docs", "packager", "targets", "templates", "examples", "tests")
    inner = {path.name for folder in folders for path in (ROOT / folder).rglob("*.*")}
    return {name.removesuffix(".j2") for name in inner} | inner | {p.name for p in ROOT.iterdir()}
