"""What a library for Android uses of Android and Java, held against the oldest API level it names.

It is compiled against a newer Android and a desktop's Java, which have more. Signatures of API
level 24 are on Maven Central, and Animal Sniffer compares classes with them.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from xml.sax.saxutils import escape

from edgepack.errors import ToolError
from edgepack.project.profile import load_profile

from tests.mobile.aar import TARGET, library
from tests.mobile.jvm import run_tool
from tests.mobile.proofs import Proof, require

LEVEL, SIGNATURES = 24, "7.0_r2"
"""The API level and the version of its signatures."""
GUARDED = {
    "android.graphics.Bitmap.Config android.graphics.Bitmap.Config.HARDWARE",
    "int android.hardware.DataSpace.getRange(int)",
    "int android.hardware.DataSpace.getStandard(int)",
    "int android.media.Image.getDataSpace()",
}
"""What is used on newer devices only, and looked at nowhere else."""
TIMEOUT_S = 600.0


def prove(work: Path) -> str:
    """Compare the classes of a library with what the oldest Android has."""
    least = int(str(load_profile(TARGET).device.min_version))
    require(least >= LEVEL, f"{TARGET} names API level {least}; add its signatures")
    classes = work / "classes"
    with zipfile.ZipFile(library().unpacked(work / "aar")[0] / "classes.jar") as jar:
        jar.extractall(classes)
    newer = newer_than_signatures(classes, work / "pom.xml")
    require(newer >= GUARDED, f"the check does not see what is known to be newer: {newer}")
    require(newer == GUARDED, f"not in API level {LEVEL}: {sorted(newer - GUARDED)}")
    count = len(list(classes.rglob("*.class")))
    names = ", ".join(sorted(each.rpartition(" ")[2] for each in newer))
    return f"{count} classes; newer than API level {LEVEL} is only {names}, on newer devices"


def newer_than_signatures(classes: Path, pom: Path) -> set[str]:
    """Return what classes use, in Java's words, and the signatures do not have.

    Raises:
        ToolError: Maven fails for another reason.
    """
    pom.write_text(_POM.format(classes=escape(str(classes)), level=LEVEL, version=SIGNATURES))
    argv = ["mvn", "--batch-mode", "--quiet", "--file", str(pom), "animal-sniffer:check"]
    done = run_tool(argv, timeout_s=TIMEOUT_S, cwd=pom.parent)
    newer = set(re.findall(r"Undefined reference: (.*)", done.text))
    if done.exit_code and not newer:
        raise ToolError(f"Maven cannot check the classes:\n{done.text}", hint="mend what it names")
    return newer


_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>edgepack</groupId>
  <artifactId>sniff</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <build>
    <outputDirectory>{classes}</outputDirectory>
    <plugins>
      <plugin>
        <groupId>org.codehaus.mojo</groupId>
        <artifactId>animal-sniffer-maven-plugin</artifactId>
        <version>1.24</version>
        <configuration>
          <signature>
            <groupId>net.sf.androidscents.signature</groupId>
            <artifactId>android-api-level-{level}</artifactId>
            <version>{version}</version>
          </signature>
          <ignores>
            <ignore>kotlin.*</ignore>
            <ignore>kotlinx.coroutines.*</ignore>
            <ignore>ai.onnxruntime.*</ignore>
          </ignores>
        </configuration>
      </plugin>
    </plugins>
  </build>
</project>
"""

PROOFS = (Proof(f"nothing newer than Android API level {LEVEL} is used unasked", prove),)
