"""An Android bundle as a compiled library, in a Maven repository that Gradle can use as it is.

Neither Gradle nor the Android SDK is needed: an AAR is a zip whose parts are known
(https://developer.android.com/studio/projects/android-library#aar-contents), and the Kotlin
compiler is a jar.
"""

from edgepack.aar.toolchain import Toolchain, find_toolchain, maven_repository
from edgepack.aar.writing import write_aar

__all__ = ["Toolchain", "find_toolchain", "maven_repository", "write_aar"]
