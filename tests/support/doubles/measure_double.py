"""What edgepack_measure.c does, in Python: for tests on machines without a C header of onnxruntime.

It takes the same arguments and plans, and prints the same documents. It warms up for a fixed
number of inferences only. The program itself is compiled and tried in tests/mobile/c_loop.py.
"""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import onnxruntime as ort
from edgepack.ondevice.runtime.edgepack_loader import golden_closeness_db

WARM_UP = 3
RUNS = 10


class RefusedError(Exception):
    """The model does not work here."""


@dataclass
class Plan:
    """A plan, read."""

    fetched: list[str] = field(default_factory=list)
    sessions: list[dict[str, Any]] = field(default_factory=list)
    goldens: list[dict[str, Any]] = field(default_factory=list)
    state: list[tuple[str, str]] = field(default_factory=list)
    """Outputs, each with the input that it feeds."""


def main(argv: list[str]) -> int:
    mode, rest = argv[0], argv[1:]
    options = dict(zip(rest[::2], rest[1::2], strict=True))
    try:
        document = MODES[mode](options)
    except RefusedError as refusal:
        kind, message = refusal.args
        sys.stdout.write(json.dumps({"refused": kind, "message": message}))
        return 3
    sys.stdout.write(json.dumps(document))
    return 0


def about(_: dict[str, str]) -> dict[str, Any]:
    return {
        "onnxruntime": ort.__version__,
        "providers": ort.get_available_providers(),
        "cpu_count": 8,
    }


def check(options: dict[str, str]) -> dict[str, Any]:
    plan = read_plan(options["--plan"])
    began = time.monotonic_ns()
    sessions = [open_session(entry) for entry in plan.sessions]
    created = time.monotonic_ns()
    nearness = [golden_db(plan, sessions, golden) for golden in plan.goldens]
    return {
        "session_create_ns": created - began,
        "first_inference_ns": 1000,
        "golden_min_sqnr_db": max(min(nearness), -200.0),
    }


def measure(options: dict[str, str]) -> dict[str, Any]:
    plan = read_plan(options["--plan"])
    sessions = [open_session(entry) for entry in plan.sessions]
    latencies_ns: list[int] = []
    found: dict[str, np.ndarray] = {}
    began = time.monotonic_ns()
    for number in range(WARM_UP + int(options["--iterations"])):
        golden = plan.goldens[number % len(plan.goldens)]
        own = {name: found[output] for output, name in plan.state if found}
        before = time.monotonic_ns()
        outputs = run(plan, sessions, {**golden, "input": {**golden["input"], **own}})
        found = dict(zip(plan.fetched, outputs, strict=True))
        latencies_ns.append(time.monotonic_ns() - before)
    return {
        **check(options),
        "warm_up_iterations": WARM_UP,
        "steady": True,
        "timed_from_ns": began,
        "timed_to_ns": time.monotonic_ns(),
        "inferences": len(latencies_ns) - WARM_UP,
        "latencies_ns": latencies_ns[WARM_UP:],
        "not_finite": [name for name in found if plan.state and not np.isfinite(found[name]).all()],
    }


def create(options: dict[str, str]) -> dict[str, Any]:
    return {"session_create_ns": check(options)["session_create_ns"]}


def memory(options: dict[str, str]) -> dict[str, Any]:
    check(options)
    return {"baseline_bytes": 1 << 20, "loaded_bytes": 2 << 20, "peak_bytes": 3 << 20, "runs": 20}


def profile(options: dict[str, str]) -> dict[str, Any]:
    plan = read_plan(options["--plan"])
    session = open_session(plan.sessions[0], profile=options["--profile-prefix"])
    for _ in range(RUNS):
        run(plan, [session], plan.goldens[0])
    return {"profile": session.end_profiling(), "runs": RUNS}


def read_plan(path: str) -> Plan:  # noqa: PLR0912  (a branch for each kind of line)
    plan = Plan()
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        what, *words = [unquote(word) if word != "%" else "" for word in line.split(" ")]
        if what == "fetch":
            plan.fetched += words
        elif what == "session":
            plan.sessions.append({"model": words[0], "config": {}, "providers": []})
        elif what == "state":
            plan.state.append((plan.fetched[int(words[0])], words[1]))
        elif what in ("threads", "level"):
            plan.sessions[-1][what] = words[0]
        elif what == "config":
            plan.sessions[-1]["config"][words[0]] = words[1]
        elif what == "provider":
            plan.sessions[-1]["providers"].append((words[0], {}))
        elif what == "option":
            plan.sessions[-1]["providers"][-1][1][words[0]] = words[1]
        elif what == "golden":
            plan.goldens.append({"session": int(words[0]), "input": {}, "output": {}, "cut": []})
            plan.goldens[-1]["entries"] = {}
        elif what == "near":
            near = {"extra_db": float(words[0]), "stride": int(words[1])}
            plan.goldens[-1]["entries"][list(plan.goldens[-1]["output"])[-1]].update(near)
        elif what == "quantities":
            several = {"size": int(words[0]), "extra_db": [float(w) for w in words[1:]], "runs": []}
            entry = plan.goldens[-1]["entries"][list(plan.goldens[-1]["output"])[-1]]
            entry["quantities"] = several
        elif what == "channels":
            entry = plan.goldens[-1]["entries"][list(plan.goldens[-1]["output"])[-1]]
            entry["quantities"]["runs"].append((int(words[0]), int(words[1])))
        elif what == "cut":
            plan.goldens[-1]["cut"].append((words[0], int(words[1]), int(words[2])))
        else:
            name, dtype, file, *dims = words
            raw = np.frombuffer(Path(file).read_bytes(), np.dtype(dtype))
            shape = [int(size) for size in dims]
            plan.goldens[-1]["entries"][name] = {"shape": shape}
            whole = raw.size == math.prod(shape)
            plan.goldens[-1][what][name] = raw.reshape(shape) if whole else raw
    return plan


def open_session(entry: dict[str, Any], profile: str = "") -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = int(entry.get("threads", 0))
    for key, value in entry["config"].items():
        options.add_session_config_entry(key, value)
    if profile:
        options.enable_profiling = True
        options.profile_file_prefix = profile
    try:
        providers = [*entry["providers"], "CPUExecutionProvider"]
        return ort.InferenceSession(entry["model"], options, providers=providers)
    except Exception as error:
        raise RefusedError("session", str(error)) from error


def run(plan: Plan, sessions: list[Any], golden: dict[str, Any]) -> list[np.ndarray]:
    try:
        found: list[np.ndarray] = sessions[golden["session"]].run(plan.fetched, golden["input"])
    except Exception as error:
        raise RefusedError("inference", str(error)) from error
    return found


def golden_db(plan: Plan, sessions: list[Any], golden: dict[str, Any]) -> float:
    outputs = dict(zip(plan.fetched, run(plan, sessions, golden), strict=True))
    for name, axis, size in golden["cut"]:
        outputs[name] = outputs[name][(slice(None),) * axis + (slice(size),)]
    entries = golden["entries"]
    near = [
        golden_closeness_db(entries[name], want, outputs[name])
        for name, want in golden["output"].items()
    ]
    return min(near, default=200.0)


MODES = {
    "about": about,
    "check": check,
    "measure": measure,
    "create": create,
    "memory": memory,
    "profile": profile,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
