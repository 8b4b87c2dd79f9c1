package android.system

/** Stands in for Android's class of the same name, which is native: it remembers what was set. */
object Os {
    val set = LinkedHashMap<String, Pair<String, Boolean>>()

    @JvmStatic
    fun setenv(name: String, value: String, overwrite: Boolean) {
        FirstSetenv.seen
        set[name] = value to overwrite
    }
}

/** Its loading is when a variable was first set. */
object FirstSetenv {
    val seen = true
}
