"""What a bundle carries to answer over HTTP: the texts, as their readers take them."""

from __future__ import annotations

import configparser
import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from edgepack.apps.render import ServiceContext, render_service
from edgepack.base.resources import find_ondevice_dir, find_templates_dir
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CHECKOUT = Path(__file__).resolve().parents[3]
SHELL = ["RUN", "CMD", "ENTRYPOINT", "HEALTHCHECK"]


def render(name: str = "net", files: tuple[str, ...] = (), *, plain: bool = True) -> dict[str, str]:
    """Return the texts by path; with files, of a bundle for an accelerator."""
    context = ServiceContext(
        bundle_id=f"{name}-1.0.0-host",
        name=name,
        version="1.0.0",
        is_accelerated=bool(files),
        device_files=files,
        is_plain=plain and not files,
    )
    return {file.path: file.data.decode() for file in render_service(context)}


def read_instructions(containerfile: str) -> list[tuple[str, str]]:
    lines = [line for line in containerfile.splitlines() if line and not line.startswith("#")]
    return [tuple(line.split(" ", 1)) for line in lines]


def read_unit(text: str) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read_string(text)
    return parser["Service"]


def test_a_bundle_carries_every_module_of_the_service():
    there = {f"service/{path.name}" for path in (find_ondevice_dir() / "service").glob("*.py")}
    assert {path for path in render() if path.endswith(".py")} == there - {"service/__init__.py"}


def test_requirements_are_those_of_the_extra_in_the_versions_that_were_tried():
    """Their lower bounds are for a Python that the newest do not have."""
    text = (find_templates_dir() / "service" / "requirements-serve.txt").read_text()
    named = [Requirement(line) for line in text.splitlines() if not line.startswith("#")]
    constraints = (CHECKOUT / "constraints.txt").read_text().splitlines()
    tried = {canonicalize_name(n): v for n, _, v in (line.partition("==") for line in constraints)}
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    wanted = [
        Requirement(line)
        for line in (*project["optional-dependencies"]["serve"], *project["dependencies"])
    ]
    extra = {Requirement(line).name for line in project["optional-dependencies"]["serve"]}
    assert {each.name for each in named} == {*extra, "pillow"}
    for each in named:
        if str(each.specifier).startswith("=="):
            assert str(each.specifier) == f"=={tried[canonicalize_name(each.name)]}"
        else:
            assert each.specifier in [
                other.specifier for other in wanted if other.name == each.name
            ]
            assert str(each.marker) == 'python_version < "3.11"'


def test_containerfile_starts_no_shell_and_ends_as_an_ordinary_user():
    instructions = read_instructions(render()["Containerfile"])
    for name, rest in instructions:
        if name in SHELL:
            command = json.loads(rest[rest.index("[") :])
            assert command[0] in ("python3", "/venv/bin/python", "chmod", "--host")
    stages = [n for n, (name, _) in enumerate(instructions) if name == "FROM"]
    last = dict(instructions[stages[-1] :])
    assert instructions[0] == ("ARG", "BASE=docker.io/library/python:3.13-slim")
    assert last["FROM"] == "${BASE}"
    assert int(last["USER"].split(":")[0]) > 0
    assert "ORT_DISABLE_TELEMETRY=1" in last["ENV"].split()
    assert "RUN" not in last


@pytest.mark.parametrize("name", ["net", "on", "123", "1e3", "A.b_c-D"])
def test_compose_file_when_a_name_reads_as_another_kind_of_value_stays_a_name(name):
    texts = render(name)
    [(key, service)] = yaml.safe_load(texts["compose.yaml"])["services"].items()
    assert key == name.lower()
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    [health] = re.findall(r"^HEALTHCHECK .*CMD (\[.*\])$", texts["Containerfile"], re.MULTILINE)
    assert service["healthcheck"]["test"] == ["CMD", *json.loads(health)]
    assert f"service/edgepack-{name}.service" in texts


def test_unit_when_the_bundle_is_for_an_accelerator_lets_it_at_the_hardware():
    for texts, private, denied in (
        (render(), "yes", True),
        (render(plain=False), "yes", False),
        (render(files=("/dev/nvidia*",)), "no", False),
    ):
        unit = read_unit(texts["service/edgepack-net.service"])
        assert unit["PrivateDevices"] == private
        assert ("MemoryDenyWriteExecute" in unit) == denied
        # It implies DeviceAllow=char-rtc, which denies all others: systemd.exec(5).
        assert ("ProtectClock" in unit) == (private == "yes")
        assert ("/dev/nvidia*" in texts["compose.yaml"]) == (private == "no")


def test_unit_follows_current_by_the_code_that_lies_there():
    unit = read_unit(render()["service/edgepack-net.service"])
    current = "/opt/edgepack/net/current"
    assert unit["ExecStart"].split()[-2:] == [f"{current}/service/edgepack_serve.py", current]
    assert (unit["Type"], unit["ExecReload"]) == ("notify", "/bin/kill -HUP $MAINPID")
