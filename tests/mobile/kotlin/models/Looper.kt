package android.os

/** Stands in for Android's class of the same name: one thread may be the main one. */
class Looper private constructor() {
    companion object {
        private val own = ThreadLocal<Looper>()
        private var main: Looper? = null

        @JvmStatic
        fun myLooper(): Looper? = own.get()

        @JvmStatic
        fun getMainLooper(): Looper? = main

        fun becomeMain() {
            main = Looper().also(own::set)
        }
    }
}
