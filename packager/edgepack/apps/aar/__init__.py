"""An Android bundle as a compiled library, in a Maven repository that Gradle can use as it is.

Neither Gradle nor the Android SDK is needed: an AAR is a zip whose parts are known
(https://developer.android.com/studio/projects/android-library#aar-contents), and the Kotlin
compiler is a jar.
"""
