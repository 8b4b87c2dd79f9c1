package android.os

/** Stands in for Android's class of the same name, whose values come from the device's properties. */
class Build {
    companion object {
        @JvmField val FINGERPRINT: String = System.getProperty("fingerprint", "phone/14")
    }

    object VERSION {
        @Suppress("ktlint:standard:property-naming")
        @JvmField
        var SDK_INT: Int = 34
    }
}
