"""Whether two measurements were made under the same conditions, so that their numbers compare.

Conditions are what stays for as long as nobody changes the device, its software or how it is asked:
its kind, its versions, its clock governor, the load scenario. What differs from one run to the next
(temperature, load, boot) is none of them, and what is measured (bundle, variant) is not either.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re

from edgepack.base.schema import NotMeasured
from edgepack.records.pipeline import PipelineReport
from edgepack.records.run import Conditions, DeviceFacts, EvaluationReport, RunReport
from edgepack.results.summary import format_scenario

UNKNOWN = "unknown"
HARNESS = "edgepack_harness.py"
MEASURE = "edgepack_measure"
STEADY = "quick, standard or gate"
PRESET_KINDS = {"smoke": "smoke", "sustained": "sustained"}
"""The presets whose latencies do not compare with those of a short, steady run."""

Report = RunReport | EvaluationReport | PipelineReport


def make_fingerprint(report: Report) -> str:
    """Return 12 hexadecimal digits that are equal where the conditions are.

    The store keeps this value when a report is saved. So if a version describes conditions
    differently, histories start again; the version's second number, which is a condition of
    benchmarks, has to change with it, so that users read why.

    A fact that a device does not report is ``unknown``, whatever the reason: two devices that both
    do not report it have the same value.
    """
    text = json.dumps(describe_conditions(report), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def list_differences(first: Report, second: Report) -> list[str]:
    """Say in words which conditions differ: ``clock governor: performance, then powersave``.

    Returns:
        One sentence for each that differs; none where the fingerprints are equal.
    """
    before, after = describe_conditions(first), describe_conditions(second)
    names = [*before, *(name for name in after if name not in before)]
    told = [(name, before.get(name, UNKNOWN), after.get(name, UNKNOWN)) for name in names]
    return [f"{name}: {old}, then {new}" for name, old, new in told if old != new]


def describe_conditions(report: Report) -> dict[str, str]:
    """Return the conditions by name, as words."""
    return {**_describe_device(report.facts), **_describe_measurement(report)}


def _describe_device(facts: DeviceFacts) -> dict[str, str]:
    return {
        "device model": _format_word(facts.model),
        "processor": _format_word(facts.cpu),
        "architecture": facts.arch,
        "cores": str(facts.cpu_count),
        "emulated": "yes" if facts.emulated else "no",
        "system": _find_release(facts.os),
        "driver": _format_word(facts.driver),
        "Python": _find_release(facts.python),
        "numpy": _find_release(facts.numpy),
        "onnxruntime": facts.onnxruntime,
        "providers": ", ".join(sorted(facts.providers)),
    }


def _describe_measurement(report: Report) -> dict[str, str]:
    if isinstance(report, EvaluationReport):
        return {"preset": "evaluation", **_describe_settings(report.facts.conditions)}
    steady = {
        "preset": PRESET_KINDS.get(report.preset, STEADY),
        **_describe_settings(report.runs[0].before),
    }
    if isinstance(report, PipelineReport):
        return {**steady, "edgepack": _find_release(report.edgepack) or UNKNOWN}
    return {
        **steady,
        "scenario": format_scenario(report.scenario),
        "run prefix": " ".join(find_run_prefix(report.argv)) or "none",
        "session settings": _find_option(report.argv, "--session") or "the bundle's",
        "edgepack": _find_release(report.edgepack) or UNKNOWN,
    }


def _describe_settings(conditions: Conditions) -> dict[str, str]:
    return {
        "clock governor": _format_word(conditions.governor),
        "power mode": _format_word(conditions.power_mode),
    }


def find_run_prefix(argv: list[str]) -> list[str]:
    """Return what stands before the harness in the command of a process run: ``taskset -c 2-3``.

    That is Python, or on a phone ``env`` before the measuring program.
    """
    if any(word.endswith(f"/{MEASURE}") for word in argv) and "env" in argv:
        return argv[: argv.index("env")]
    script = next((n for n, word in enumerate(argv) if word.endswith(HARNESS)), 0)
    before = argv[:script]
    options = len(before) - 1
    while options >= 0 and before[options].startswith("-"):
        options -= 1
    return before[: max(options, 0)]


def _find_option(argv: list[str], name: str) -> str:
    return next((value for one, value in itertools.pairwise(argv) if one == name), "")


def _format_word(fact: object) -> str:
    return UNKNOWN if isinstance(fact, NotMeasured) else str(fact)


def _find_release(version: str) -> str:
    """Return a version to its second number, with the words before it: ``Linux 6.12``."""
    found = re.match(r"\D*\d+(\.\d+)?", version)
    return found[0] if found else version
