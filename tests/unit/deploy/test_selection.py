from __future__ import annotations

from pathlib import Path

import pytest
from edgepack.deploy.fleet.selection import complete_selection, is_one_device, select_devices
from edgepack.errors import UsageError

INVENTORY = """\
schema_version: 1
devices:
  pi5-a: {transport: ssh, host: a, target: raspberry-pi, tags: [pi5, lab]}
  pi5-b: {transport: ssh, host: b, target: raspberry-pi, tags: [pi5]}
  orin: {transport: ssh, host: c, target: jetson, tags: [lab]}
"""


@pytest.fixture
def inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "devices.yaml"
    path.write_text(INVENTORY)
    monkeypatch.chdir(tmp_path)
    return path


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        (["pi5-a"], ["pi5-a"]),
        (["tag:pi5"], ["pi5-a", "pi5-b"]),
        (["target:jetson"], ["orin"]),
        (["backend:tensorrt"], ["orin"]),
        (["backend:cpu"], ["orin", "pi5-a", "pi5-b"]),
        (["tag:lab", "pi5-b", "tag:pi5"], ["orin", "pi5-a", "pi5-b"]),
        (["all"], ["orin", "pi5-a", "pi5-b"]),
        (["local", "orin"], ["local", "orin"]),
    ],
)
def test_selection_when_words_choose_devices_is_their_union(inventory, words, chosen):
    assert [device.name for device in select_devices(words, inventory)] == chosen


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pi5-c"], ["no device 'pi5-c'", "did you mean 'pi5-"]),
        (["tag:pi6"], ["no device with the tag 'pi6'", "did you mean 'pi5'?"]),
        (["target:jetsno"], ["no device with the target 'jetsno'", "'jetson'"]),
        (["backend:tensort"], ["no device with the backend 'tensort'", "'tensorrt'"]),
        (["tga:pi5"], ["no property 'tga'", "did you mean 'tag'?"]),
        (["orni", "orin", "tag:x"], ["'orni', and no device with the tag 'x'", "'orin'", "lab"]),
        ([], ["no device is chosen"]),
        ([""], ["no device ''"]),
    ],
)
def test_selection_when_a_word_chooses_nothing_names_the_nearest(inventory, words, said):
    with pytest.raises(UsageError) as caught:
        select_devices(words, inventory)
    for text in said:
        assert text in str(caught.value)


def test_all_when_the_inventory_is_empty_is_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="no device at all"):
        select_devices(["all"])


def test_completion_when_something_is_typed_offers_names_tags_and_targets(inventory):
    assert complete_selection("pi5") == ["pi5-a", "pi5-b"]
    assert complete_selection("t") == [
        "tag:lab", "tag:pi5", "target:jetson", "target:linux-x86-64", "target:raspberry-pi",
    ]  # fmt: skip
    assert complete_selection("al") == ["all"]


def test_words_when_they_can_choose_several_are_not_one_device():
    assert is_one_device(["pi5-a"])
    assert not any(map(is_one_device, (["all"], ["tag:x"], ["a", "b"], [])))
