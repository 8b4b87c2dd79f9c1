"""Mender's update module for bundles: installs, tests, switches and takes back a release.

Mender's client calls it with a state and the folder of the update. Source: "Update modules v3
protocol", Documentation/update-modules-v3-file-api.md of Mender's client. The payload is a bundle's
archive. Releases lie as a push puts them, under EDGEPACK_ROOT, with ``current`` and the history:

- ArtifactInstall unpacks the release, compares it with its manifest, runs its golden samples and
  switches ``current`` to it; a release that is wrong here is removed.
- ArtifactVerifyReboot and ArtifactCommit run the golden samples again, where the bundle is used.
- ArtifactRollback makes the release current again that was before; Mender calls it after a failure
  of any of these. It may be called twice, and where nothing was installed.
- Cleanup removes what was cut off, and all but the last releases.

It is the ``__main__`` of a zip file with ``edgepack_releases.py``. Settings are lines of
/etc/default/edgepack: EDGEPACK_ROOT, EDGEPACK_PYTHON, EDGEPACK_KEEP. Needs Python 3.8 or newer and
nothing else; the golden samples need the Python that EDGEPACK_PYTHON names.
"""

import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from functools import cached_property
from typing import IO, Any, Dict, Optional, cast

if __package__:
    from . import edgepack_releases as releases
else:
    import edgepack_releases as releases  # type: ignore[import-not-found,no-redef]

SETTINGS = "/etc/default/edgepack"
DEFAULTS = {
    "EDGEPACK_ROOT": "/var/lib/edgepack",
    "EDGEPACK_PYTHON": "python3",
    "EDGEPACK_KEEP": "3",
}
TEST_S = 1800
STATE = "edgepack.json"
"""In the folder ``tmp`` of the update, which Mender keeps until its end."""


def read_settings(path: str) -> Dict[str, str]:
    """Return the settings: the file's words ``NAME=TEXT`` over the defaults, as a shell splits it.

    Comments and ``export`` are passed over, and nothing is expanded. Quotes that do not end are a
    ValueError; a folder or a number that is none is Refused.
    """
    found = dict(DEFAULTS)
    try:
        with open(path, encoding="utf-8") as file:
            words = shlex.split(file.read(), comments=True)
    except FileNotFoundError:
        words = []
    for word in words:
        name, equals, text = word.partition("=")
        if equals and name in DEFAULTS:
            found[name] = text
    if not os.path.isabs(found["EDGEPACK_ROOT"]):
        raise releases.Refused("%s: EDGEPACK_ROOT is no absolute path" % path)
    if not re.fullmatch("[1-9][0-9]{0,8}", found["EDGEPACK_KEEP"]):
        raise releases.Refused("%s: EDGEPACK_KEEP is no number from 1 on" % path)
    return found


class Update:
    """One update, in the folder that Mender gives."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    @cached_property
    def settings(self) -> Dict[str, str]:
        """Those of the device, read when a state needs them: others succeed without."""
        return read_settings(os.environ.get("EDGEPACK_SETTINGS", SETTINGS))

    def open_project(self, name: str) -> releases.Project:
        """Return a project's folder on this device, made where it is missing."""
        project = releases.Project(self.settings["EDGEPACK_ROOT"], name, "mender")
        for folder in (project.releases, project.tables):
            os.makedirs(folder, exist_ok=True)
        return project

    def install(self) -> None:
        """Unpack, compare and test the release, and make it the current one."""
        partial = os.path.join(self.folder, "tmp", "bundle")
        folder = unpack(self.find_payload(), partial)
        with open(os.path.join(folder, releases.MANIFEST), "rb") as file:
            manifest = file.read()
        digest = hashlib.sha256(manifest).hexdigest()
        project = self.open_project(read_name(manifest))
        release = digest[:16]
        place = os.path.join(project.releases, release)
        if not releases.is_whole(folder, digest):
            raise releases.Refused("what came is not what its manifest says")
        name = os.path.basename(project.base)
        self.note({"project": name, "release": release, "before": project.read_current()})
        if not releases.is_whole(place, digest):
            project.remove(release)
            move(folder, place)
        try:
            self.test(place)
        except releases.Refused:
            if project.read_current() != release:
                project.remove(release)
            raise
        project.point_at(release, "switch")

    def find_payload(self) -> str:
        """Return the only file of the update."""
        folder = os.path.join(self.folder, "files")
        names = os.listdir(folder)
        if len(names) != 1:
            raise releases.Refused("the artifact has %d files, not one bundle" % len(names))
        return os.path.join(folder, names[0])

    def test(self, place: str) -> None:
        """Run the golden samples of a release with the Python that has the runtime."""
        program = "edgepack_harness.py"
        if os.path.exists(os.path.join(place, "edgepack_pipeline.py")):
            program = "edgepack_stages.py"  # of several models
        harness = os.path.join(place, "harness", program)
        python = self.settings["EDGEPACK_PYTHON"]
        argv = [python, "-B", harness, "select", "--bundle", place]
        code = subprocess.run(
            argv, stdout=subprocess.DEVNULL, timeout=TEST_S, check=False
        ).returncode
        if code:
            raise releases.Refused("the self-test of %s ended with the code %d" % (place, code))

    def verify(self) -> None:
        """Test the current release, which has to be that of this update."""
        state = self.read_note()
        if state is None:
            raise releases.Refused("nothing was installed in this update")
        project = self.open_project(state["project"])
        if project.read_current() != state["release"]:
            raise releases.Refused("%s is current, not this update's" % project.read_current())
        self.test(os.path.join(project.releases, state["release"]))

    def roll_back(self) -> None:
        """Make the release current again that was before this update."""
        state = self.read_note()
        if state is None:
            return
        project = self.open_project(state["project"])
        if project.read_current() != state["release"]:
            return
        if state["before"]:
            project.point_at(state["before"], "rollback")
        else:
            with project.locked():
                os.remove(os.path.join(project.base, "current"))

    def clean_up(self) -> None:
        """Remove releases that are not needed any more."""
        state = self.read_note()
        if state is not None:
            project = self.open_project(state["project"])
            newest = project.read_current() or state["release"]
            project.collect_garbage(int(self.settings["EDGEPACK_KEEP"]), newest)

    def note(self, state: Dict[str, Any]) -> None:
        """Keep what later states need, before anything is switched."""
        path = os.path.join(self.folder, "tmp", STATE)
        with open(path + ".partial", "w", encoding="ascii") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + ".partial", path)
        releases.sync(os.path.dirname(path))

    def read_note(self) -> Optional[Dict[str, Any]]:
        """Return what was kept; None where nothing was switched."""
        try:
            with open(os.path.join(self.folder, "tmp", STATE), encoding="ascii") as file:
                found = json.load(file)  # type: Dict[str, Any]
        except FileNotFoundError:
            return None
        return found


def read_name(manifest: bytes) -> str:
    """Return the project of a manifest, which names a folder."""
    try:
        name = json.loads(manifest.decode("utf-8"))["name"]
    except (KeyError, TypeError, ValueError) as error:
        raise releases.Refused("the manifest cannot be read: %r" % error)  # noqa: B904
    if not isinstance(name, str) or not re.fullmatch("[A-Za-z0-9]+([._-][A-Za-z0-9]+)*", name):
        raise releases.Refused("the project's name is %r" % name)
    return name


def unpack(archive: str, folder: str) -> str:
    """Unpack a bundle's archive, plain files alone, and return the bundle's folder in it."""
    top = ""
    with tarfile.open(archive, "r:gz") as tar:
        for entry in tar:
            top, _, name = entry.name.partition("/")
            if not entry.isreg():
                raise releases.Refused("the archive has %r, which is no plain file" % entry.name)
            place = releases.find_inside(os.path.join(folder, "one"), name)
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with open(place, "wb") as file:
                shutil.copyfileobj(cast(IO[bytes], tar.extractfile(entry)), file)
                os.fchmod(file.fileno(), 0o644 | entry.mode & 0o111)
    if not top:
        raise releases.Refused("the archive is empty")
    return os.path.join(folder, "one")


def move(folder: str, place: str) -> None:
    """Bring an unpacked release to its place, from whatever file system, in one step."""
    there, name = os.path.split(place)
    partial = os.path.join(there, releases.PARTIAL + name + "-mender")
    shutil.rmtree(partial, ignore_errors=True)
    os.mkdir(partial)
    handle = os.open(partial, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # a push that ends now leaves it alone
        shutil.copytree(folder, partial, dirs_exist_ok=True)
        for parent, _, files in os.walk(partial):
            for file in files:
                releases.sync(os.path.join(parent, file))
            releases.sync(parent)
        os.rename(partial, place)
        releases.sync(there)
    finally:
        os.close(handle)


def main(state: str, folder: str = "") -> int:
    """Do what a state asks for; return 0, or 1 where that failed."""
    answers = {"SupportsRollback": "Yes", "NeedsArtifactReboot": "No"}
    if state in answers:
        print(answers[state])
        return 0
    update = Update(folder)
    calls = {
        "ArtifactInstall": update.install,
        "ArtifactVerifyReboot": update.verify,
        "ArtifactCommit": update.verify,
        "ArtifactRollback": update.roll_back,
        "Cleanup": update.clean_up,
    }
    if state not in calls:
        return 0  # as the protocol asks: there may be more states one day
    try:
        calls[state]()
    except (
        releases.Refused,
        OSError,
        tarfile.TarError,
        EOFError,
        subprocess.SubprocessError,
        ValueError,
    ) as error:
        print("edgepack: %s: %s" % (state, error), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
