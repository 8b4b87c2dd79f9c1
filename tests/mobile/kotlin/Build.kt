package android.os

/** Stands in for Android's class of the same name, whose values come from the device's properties. */
class Build {
    object VERSION {
        @Suppress("ktlint:standard:property-naming")
        @JvmField
        var SDK_INT: Int = 34
    }
}
