pluginManagement {
    repositories {
        google()
        mavenCentral()
        gradlePluginPortal()
    }
}

dependencyResolutionManagement {
    repositories {
        google()
        mavenCentral()
    }
}

rootProject.name = "shapes"
include(":app", ":detector")

// The bundle, as `edgepack build --target android-xnnpack` writes it.
project(":detector").projectDir = file("../dist/shapes-1.0.0-android-xnnpack")
