"""The road from an address to measured bundles, walked on all boards with edgepack's commands."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from edgepack.base.resources import find_example_dir
from edgepack.deploy.adding import add_device
from edgepack.devices.inventory import load_device
from edgepack.devices.transports import connect
from edgepack.errors import DeviceError, InconclusiveError
from edgepack.project.profile import load_profile
from packaging.specifiers import SpecifierSet

from tests.lab.board import Board
from tests.lab.commands import Finished, run_each, run_one, say, started
from tests.lab.findings import Findings
from tests.lab.host import LabError
from tests.lab.kinds import CPU
from tests.native.programs import find_library
from tests.support.servers.dropbear_server import DropbearServer, add_libraries, require_dropbear

PRESET = "quick"
METRIC_TOLERANCE = 0.01
"""Between the metric on the board and the one simulated where the bundle was built."""

# Emulated programs start several times slower than real ones, and the host may be busy.
SHORT_S = 300.0
LONG_S = 1200.0
BUSYBOX_TARGET = "linux-x86-64"
END_S = 30.0
"""How long programs on a board may take to end once nobody listens any more."""


@dataclass(frozen=True)
class Lab:
    """What every step needs."""

    boards: Sequence[Board]
    key: Path
    out: Path
    """Where bundles go."""
    findings: Findings

    def bundle(self, board: Board) -> Path:
        """The bundle for a board that :func:`build` made."""
        [found] = [
            path
            for path in self.out.glob("digits-*")
            if path.name.endswith(f"-{board.kind.target}")
        ]
        return found

    def on_each(
        self, *argv: str, timeout_s: float = SHORT_S, show: bool = True
    ) -> dict[str, Finished]:
        """Run one command for all boards; ``NAME`` and ``BUNDLE`` stand for the board's."""
        own = {
            board.name: {"NAME": board.name, "BUNDLE": str(self.bundle(board))}
            if "BUNDLE" in argv
            else {"NAME": board.name}
            for board in self.boards
        }
        return run_each(
            {name: [words.get(word, word) for word in argv] for name, words in own.items()},
            timeout_s=timeout_s,
            show=show,
        )

    def succeed(self, what: str, done: dict[str, Finished]) -> None:
        """Note whether commands succeeded; nothing can follow one that did not.

        Raises:
            LabError: One failed.
        """
        for name, finished in done.items():
            self.findings.expect(
                f"{name}: {what}", finished.exit_code == 0, f"{finished.seconds:.0f} s"
            )
        broken = {name: finished.exit_code for name, finished in done.items() if finished.exit_code}
        if broken:
            raise LabError(f"not {what}: exit codes {broken}")


def walk(lab: Lab, *, every_variant: bool = False) -> None:
    """Walk the whole road; to ``every_variant`` it takes several minutes more.

    Raises:
        LabError: A step failed on which the next ones stand.
        EdgepackError: Likewise.
    """
    steps: list[Callable[[Lab], None]] = [
        add, provision, build, push, prove, bench, *([bench_all] if every_variant else []),
        evaluate, prove_target, break_off, without_python, busybox,
        look_back,
    ]  # fmt: skip
    for step in steps:
        began = time.monotonic()
        say(f"{step.__name__}: {(step.__doc__ or '').splitlines()[0]}")
        step(lab)
        seconds = time.monotonic() - began
        lab.findings.facts.setdefault("seconds", {})[step.__name__] = round(seconds, 1)


def add(lab: Lab) -> None:
    """Add the boards to the inventory, by the host keys that they really have."""
    first, second = lab.boards[:2]
    try:
        _add(lab, first, second.host_key_fingerprint)
        refused = "it was accepted"
    except DeviceError as error:
        refused = error.problem
    lab.findings.expect("another board's host key is refused", "not SHA256:" in refused)
    for board in lab.boards:
        added = _add(lab, board, board.host_key_fingerprint)
        with connect(added.device) as transport:
            said = transport.run(["uname", "-m"], timeout_s=SHORT_S).text.strip()
        wanted = board.kind.machine
        lab.findings.expect(f"{board.name}: uname -m answers {wanted}", said == wanted, said)
        routes = [route for route in board.routes() if not route.startswith("10.77.")]
        lab.findings.expect(
            f"{board.name}: has no route out of its cable", not routes, routes or ""
        )
        _keep(lab, board, target=added.device.target, libc=added.facts.libc)


def _add(lab: Lab, board: Board, fingerprint: str):
    return add_device(
        board.name,
        board.login,
        confirm=lambda _: False,
        fingerprint=fingerprint,
        target=board.kind.target,
        port=board.port,
        key=str(lab.key),
        ssh_config=os.devnull,
    )


def provision(lab: Lab) -> None:
    """Check, provision with wheels fetched here and sent by edgepack, and check again."""
    for name, done in lab.on_each("device", "check", "NAME").items():
        asked = f"edgepack device provision {name}" in done.stderr
        lab.findings.expect(f"{name}: check asks for the runtime", done.exit_code != 0 and asked)
    done = lab.on_each("device", "provision", "NAME", "--json", timeout_s=LONG_S)
    lab.succeed("provisioned", done)
    for board in lab.boards:
        origin = done[board.name].document()["origin"]
        held = origin.startswith(board.kind.brings) and bool(origin) == bool(board.kind.brings)
        wanted = board.kind.brings or "the package index"
        lab.findings.expect(f"{board.name}: onnxruntime is of {wanted}", held, origin)
        broken = done[board.name].document()["broken"]
        lab.findings.expect(f"{board.name}: its providers compute", not broken, broken or "")
    done = lab.on_each("device", "check", "NAME", "--json")
    lab.succeed("check finds nothing to mend", done)
    for board in lab.boards:
        facts = done[board.name].document()["facts"]
        wanted = board.kind.arch
        lab.findings.expect(f"{board.name}: is {wanted}", facts["arch"] == wanted, facts["arch"])


def build(lab: Lab) -> None:
    """Build the example for the boards' targets on this machine."""
    project = find_example_dir() / "edgepack.yaml"
    argv = ["build", "--project", str(project), "--out", str(lab.out)]
    argv += [f"--target={board.kind.target}" for board in lab.boards]
    done = run_one(argv, timeout_s=LONG_S)
    lab.succeed("built", {"here": done})
    for board in lab.boards:
        _look_at_bundle(lab, board)


def _look_at_bundle(lab: Lab, board: Board) -> None:
    bundle = lab.bundle(board)
    manifest = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))
    processor = manifest["built_on"]["processor"]
    lab.findings.expect(
        f"the goldens of {bundle.name} were computed on x86-64",
        processor.startswith("x86-64"),
        processor,
    )
    lab.findings.facts.setdefault("bundles", {})[board.name] = {
        "id": bundle.name,
        "built_on": processor,
        "goldens": len(manifest["goldens"]),
        "variants": [entry["id"] for entry in manifest["variants"]],
    }


def push(lab: Lab) -> None:
    """Push the bundle to the boards, twice."""
    argv = ["push", "BUNDLE", "--device", "NAME", "--json"]
    first = lab.on_each(*argv, show=False)
    lab.succeed("pushed", first)
    second = lab.on_each(*argv, show=False)
    lab.succeed("pushed again", second)
    for board in lab.boards:
        sent = [done[board.name].document()["bytes_sent"] for done in (first, second)]
        lab.findings.expect(f"{board.name}: the first push sends the bundle", sent[0] > 0, sent[0])
        lab.findings.expect(f"{board.name}: the second push sends nothing", sent[1] == 0, sent[1])
        _keep(lab, board, pushed_bytes=sent)


def prove(lab: Lab) -> None:
    """Let the loader choose on the boards, and hold every variant to its goldens there."""
    for board in lab.boards:
        pins = load_profile(board.kind.target).runtime.packages
        seen = _run_on_board(board)
        expect, name = lab.findings.expect, board.name
        expect(f"{name}: the board's Python says so", seen["arch"] == board.kind.machine)
        expect(f"{name}: has no internet", "unreachable" in seen["outside"], seen["outside"])
        pinned = seen["onnxruntime"] in SpecifierSet(pins["onnxruntime"])
        expect(f"{name}: onnxruntime is the pinned one", pinned, seen["onnxruntime"])
        wanted = board.kind.variant
        expect(f"{name}: the loader chose {wanted}", seen["chosen"] == wanted, seen["chosen"])
        for variant in seen["variants"]:
            _expect_variant(lab, board, variant)
        _keep(lab, board, **{key: value for key, value in seen.items() if key != "outside"})


def _run_on_board(board: Board) -> dict[str, Any]:
    """Return what ``on_board.py`` says of the release that is current."""
    device = load_device(board.name)
    source = Path(__file__).with_name("on_board.py").read_text(encoding="utf-8")
    script = '"$HOME/.local/share/edgepack/venv/bin/python" -B -c "$1" "$HOME/$2"'
    current = ".local/share/edgepack/digits/current"
    with connect(device) as transport:
        done = transport.run(["sh", "-c", script, "sh", source, current], timeout_s=LONG_S)
    done.check("the bundle on the board", device=board.name, hint="see its last lines above")
    return json.loads(done.stdout)


def _expect_variant(lab: Lab, board: Board, variant: dict[str, Any]) -> None:
    worst, needed = min(variant["golden_sqnr_db"]), variant["needed_sqnr_db"]
    nodes = variant["nodes_by_provider"]
    label = f"{board.name}: {variant['id']}"
    found = f"worst of {len(variant['golden_sqnr_db'])}: {worst:.1f} dB, {needed:.1f} dB are needed"
    lab.findings.expect(f"{label}: meets its goldens", worst >= needed, found)
    if variant["id"].startswith("cpu-"):
        lab.findings.expect(f"{label}: all nodes run on the CPU", set(nodes) == {CPU}, nodes)
    else:
        wanted = board.kind.provider
        lab.findings.expect(f"{label}: {wanted} runs nodes", wanted in nodes, nodes)
    if variant["id"] == board.kind.variant:
        ops = variant["nodes_by_op"]
        held = "Conv" not in ops and "QLinearConv" in ops
        lab.findings.expect(f"{label}: every convolution runs in int8", held, ops)


def bench(lab: Lab) -> None:
    """Measure the bundle on the boards; where they are emulated, the verdict must not be valid."""
    argv = ["bench", "BUNDLE", "--device", "NAME", "--preset", PRESET, "--json"]
    done = lab.on_each(*argv, timeout_s=LONG_S)
    for board in lab.boards:
        finished, name, expect = done[board.name], board.name, lab.findings.expect
        code, emulated = finished.exit_code, board.kind.is_emulated
        report = finished.document()
        verdict = report["verdict"]
        if emulated:
            expect(f"{name}: bench refuses its numbers", code == InconclusiveError.exit_code, code)
            expect(f"{name}: the verdict is not valid", verdict["kind"] != "valid", verdict)
        else:
            # A busy machine has every right to be called INVALID.
            held = code == (0 if verdict["kind"] == "valid" else InconclusiveError.exit_code)
            expect(f"{name}: bench ends as its verdict says", held, (code, verdict))
        said = report["facts"]["emulated"]
        expect(f"{name}: the report says whether it is emulated", said is emulated, said)
        used = report["variant_used"]
        wanted = board.kind.variant
        expect(f"{name}: {wanted} was measured", used == wanted, used)
        nodes = {node["provider"] for node in report["placement"]["nodes"]}
        wanted = board.kind.provider
        expect(f"{name}: the report has nodes on {wanted}", wanted in nodes, nodes)
        page = lab.out / f"{name}.html"
        run_one(["report", report["id"], "--html", str(page)], timeout_s=SHORT_S)
        said = f"{board.kind.arch}, emulated" in page.read_text(encoding="utf-8")
        expect(f"{name}: the report's page says whether it is emulated", said is emulated)
        samples = [len(run["latencies_ns"]) for run in report["runs"]]
        _keep(lab, board, emulated=report["facts"]["emulated"], preset=PRESET)
        _keep(lab, board, verdict=verdict, samples=samples)
        say(f"      {finished.seconds:.0f} s, {samples} samples")


def bench_all(lab: Lab) -> None:
    """Measure every variant of the emulated boards with one command: one table for all of them."""
    boards = [board for board in lab.boards if board.kind.is_emulated]
    junit, table = lab.out / "all.xml", lab.out / "all.md"
    argv = ["bench", *(str(lab.bundle(board)) for board in boards)]
    argv += [word for board in boards for word in ("--device", board.name)]
    argv += ["--variant", "all", "--preset", "smoke"]
    argv += ["--junit", str(junit), "--markdown", str(table)]
    done, expect = run_one(argv, timeout_s=LONG_S), lab.findings.expect
    expect(
        "all variants: bench refuses their numbers", done.exit_code == InconclusiveError.exit_code
    )
    suites = {suite.get("name"): suite for suite in ElementTree.parse(junit).iter("testsuite")}
    for board in boards:
        manifest = json.loads((lab.bundle(board) / "manifest.json").read_text(encoding="utf-8"))
        built = {variant["id"] for variant in manifest["variants"]}
        cases = suites[board.name].findall("testcase")
        told = {case.get("name"): [child.tag for child in case] for case in cases}
        expect(f"{board.name}: a case for each variant", built <= told.keys(), sorted(told))
        expect(
            f"{board.name}: none is an error", all(t == ["skipped"] for t in told.values()), told
        )
    rows = table.read_text(encoding="utf-8").splitlines()
    held = all(any(board.name in row for row in rows) for board in boards)
    expect("all variants: one table has every board", held, len(rows))


def evaluate(lab: Lab) -> None:
    """Run the held-out samples through the boards."""
    argv = ["evaluate", "BUNDLE", "--device", "NAME", "--json"]
    argv += ["--project", str(find_example_dir() / "edgepack.yaml")]
    done = lab.on_each(*argv, timeout_s=LONG_S, show=False)
    lab.succeed("evaluated", done)
    for board in lab.boards:
        _look_at_evaluation(lab, board, done[board.name].document())


def _look_at_evaluation(lab: Lab, board: Board, result: dict[str, Any]) -> None:
    measured, simulated = result["measured"], result["simulated"]
    found = f"{measured['value']:.4f} there, {simulated['value']:.4f} here"
    near = abs(measured["value"] - simulated["value"]) <= METRIC_TOLERANCE
    lab.findings.expect(f"{board.name}: {measured['metric']} is as simulated", near, found)
    kept = {key: measured[key] for key in ("metric", "samples", "fp32", "value", "agreement")}
    _keep(lab, board, evaluated={**kept, "simulated": simulated["value"]})


def prove_target(lab: Lab) -> None:
    """Make evidence for the target's grade on each board that is one of the target's own kind."""
    for board in lab.boards:
        if board.kind.is_emulated:
            continue
        file, target, name = lab.out / f"{board.name}.json", board.kind.target, board.name
        argv = ["targets", "prove", target, "--device", name, "--preset", PRESET]
        done = run_one([*argv, "--out", str(file)], timeout_s=LONG_S)
        _, found, reasons = done.stderr.partition("no measurement is VALID")
        busy = found and not any(word in reasons for word in ("golden", "nodes", "finite"))
        if done.exit_code == DeviceError.exit_code and busy:
            say(f"      {name}: too busy here for a measurement that is VALID")
            continue
        lab.succeed(f"{target} is proven", {name: done})
        evidence = json.loads(file.read_text(encoding="utf-8"))
        seen = {each["id"]: each["nodes"] for each in evidence["variants"]}
        held = evidence["how"] == "device" and board.kind.provider in seen[board.kind.variant]
        lab.findings.expect(f"{name}: its evidence shows {board.kind.provider}", held, seen)
        _keep(lab, board, evidence=evidence)


def break_off(lab: Lab) -> None:
    """Kill a bench on the host while the board measures; the board must end it by itself."""
    board = lab.boards[0]
    argv = ["bench", str(lab.bundle(board)), "--device", board.name, "--preset", PRESET]
    with started(board.name, argv) as command:
        measuring = _wait_for(lambda: _measures(board) or not command.runs) and _measures(board)
        lab.findings.expect(f"{board.name}: was measuring when the host's command died", measuring)
        if command.runs:
            command.kill()
    idle = board.is_idle(END_S)
    lab.findings.expect(f"{board.name}: ended the orphaned run", idle, board.programs() or "")


def _measures(board: Board) -> bool:
    return any("edgepack_harness.py measure" in line for line in board.programs())


def _wait_for(is_true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SHORT_S
    while not is_true() and time.monotonic() < deadline:
        time.sleep(0.1)
    return is_true()


def without_python(lab: Lab) -> None:
    """Take Python off the first board, and measure it with the native program."""
    board, expect = lab.boards[0], lab.findings.expect
    for path in (board.root / "usr/bin").glob("python3*"):
        path.unlink()
    name, bundle = board.name, str(lab.bundle(board))
    done = run_one(["device", "check", name, "--json"], timeout_s=SHORT_S)
    lab.succeed("check finds nothing to mend without Python", {name: done})
    done = run_one(["device", "provision", name, "--json"], timeout_s=LONG_S)
    lab.succeed("provisioned without Python", {name: done})
    argv = ["bench", bundle, "--device", name, "--preset", PRESET, "--json"]
    done = run_one(argv, timeout_s=LONG_S)
    report, wanted = done.document(), board.kind.variant
    expect(f"{name}: without Python, bench measures {wanted}", report["variant_used"] == wanted)
    said = report["facts"]
    expect(f"{name}: no Python measured it", said["python"].startswith("none"), said["python"])
    expect(f"{name}: it is still known to be emulated", said["emulated"], said["arch"])
    nodes = {node["provider"] for node in report["placement"]["nodes"]}
    expect(f"{name}: without Python, all nodes run on the CPU", nodes == {CPU}, nodes)
    argv = ["evaluate", bundle, "--device", name, "--json"]
    argv += ["--project", str(find_example_dir() / "edgepack.yaml")]
    done = run_one(argv, timeout_s=LONG_S)
    lab.succeed("evaluated without Python", {name: done})
    _look_at_evaluation(lab, board, done.document())


def busybox(lab: Lab) -> None:
    """Push to a board of busybox and dropbear on this machine's processor, and measure there."""
    name, project = "busybox", str(find_example_dir() / "edgepack.yaml")
    require_dropbear()
    with DropbearServer(lab.out.parent / name, bare=True) as server:
        add_libraries(server.board, find_library())  # libstdc++, as images of boards have it
        made = lab.out / name
        words = ["add", name, f"root@{server.host}", "--port", str(server.port)]
        words += ["--key", str(server.client_key_path), "--target", BUSYBOX_TARGET]
        words += ["--fingerprint", server.host_key_fingerprint]
        building = ["build", "--project", project, "--target", BUSYBOX_TARGET, "--out", str(made)]
        lab.succeed("built", {name: run_one(building, timeout_s=LONG_S)})
        [bundle] = (str(path) for path in made.iterdir() if path.is_dir())
        for what, argv in (
            ("added", ["device", *words]),
            ("check finds nothing to mend", ["device", "check", name]),
            ("provisioned", ["device", "provision", name]),
            ("pushed, and tried before the switch", ["push", bundle, "--device", name]),
        ):
            lab.succeed(what, {name: run_one(argv, timeout_s=LONG_S)})
        current = list(server.board.glob("root/.local/share/edgepack/*/current"))
        lab.findings.expect(f"{name}: a release is current", len(current) == 1)
        asked = ["bench", bundle, "--device", name, "--preset", PRESET, "--json"]
        report = run_one(asked, timeout_s=LONG_S).document()
        sampled = [len(run["sampling"]["samples"]) for run in report["runs"]]
        lab.findings.expect(f"{name}: sensors are read during each run", min(sampled) > 1, sampled)
        said = report["facts"]["python"]
        lab.findings.expect(f"{name}: no Python measured it", said.startswith("none"), said)
        asked = ["evaluate", bundle, "--device", name, "--project", project, "--json"]
        lab.succeed("evaluated", {name: run_one(asked, timeout_s=LONG_S)})


def look_back(lab: Lab) -> None:
    """Look at what is left on the boards."""
    for board in lab.boards:
        idle = board.is_idle(END_S)
        lab.findings.expect(f"{board.name}: nothing runs any more", idle, board.programs() or "")
        home = board.root / "home"
        partial = [path.name for path in home.rglob("*.partial-*")]
        lab.findings.expect(f"{board.name}: nothing half-done is left", not partial, partial or "")


def _keep(lab: Lab, board: Board, **facts: Any) -> None:
    lab.findings.boards[board.name].update(facts)
