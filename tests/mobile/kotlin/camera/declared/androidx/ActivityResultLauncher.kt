package androidx.activity.result

/** Stands in for the class of androidx.activity. */
abstract class ActivityResultLauncher<I> {
    abstract fun launch(input: I)
}
