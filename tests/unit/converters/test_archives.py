from __future__ import annotations

import zipfile

import pytest
from edgepack.converters.archives import require_whole_zip
from edgepack.errors import ModelError


def write(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def refuse(path, needed=("config.json",)):
    with pytest.raises(ModelError) as caught:
        require_whole_zip(path, needed, "a Keras model")
    assert caught.value.where == path.name
    return caught.value.problem


def test_archive_when_whole_is_taken(tmp_path):
    path = write(tmp_path / "a.keras", {"config.json": b"{}", "weights": bytes(2000)})
    require_whole_zip(path, ("config.json",), "a Keras model")


def test_archive_when_cut_off_is_refused_at_every_place(tmp_path):
    whole = write(tmp_path / "a.keras", {"config.json": b"{}", "w": bytes(range(256)) * 20})
    data = whole.read_bytes()
    for size in range(0, len(data) - 1, 97):
        cut = tmp_path / "cut.keras"
        cut.write_bytes(data[:size])
        assert "no whole ZIP archive" in refuse(cut)


def test_archive_when_a_member_is_damaged_names_it(tmp_path):
    path = tmp_path / "a.keras"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", b"{}")
        archive.writestr("weights", b"0123456789" * 50)
    data = bytearray(path.read_bytes())
    data[data.index(b"0123456789") + 100] ^= 1
    path.write_bytes(bytes(data))
    assert "'weights' is damaged" in refuse(path)


@pytest.mark.parametrize("name", ["../../.bashrc", "/etc/passwd", "a/../../b"])
def test_archive_when_a_member_leads_out_is_refused(tmp_path, name):
    path = write(tmp_path / "a.keras", {"config.json": b"{}", name: b"x"})
    assert "leads out" in refuse(path)


def test_archive_when_a_member_would_fill_the_disk_is_refused(tmp_path):
    path = write(tmp_path / "a.keras", {"config.json": b"{}", "weights": bytes(200 << 20)})
    assert "would become 210 MB" in refuse(path)


def test_archive_when_a_member_is_missing_says_which(tmp_path):
    assert "it has no config.json" in refuse(write(tmp_path / "a.keras", {"other": b"x"}))
