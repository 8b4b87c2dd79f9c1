package androidx.activity.result.contract

/** Stands in for the class of androidx.activity. */
abstract class ActivityResultContract<I, O>

/** Stands in for the class of androidx.activity. */
class ActivityResultContracts {
    class RequestPermission : ActivityResultContract<String, Boolean>()
}
