@file:Suppress("UNUSED_PARAMETER")

package androidx.activity

import android.app.Activity
import android.os.Bundle
import androidx.activity.result.ActivityResultLauncher
import androidx.activity.result.contract.ActivityResultContract
import androidx.lifecycle.Lifecycle
import androidx.lifecycle.LifecycleOwner

/** Stands in for the class of androidx.activity. */
abstract class ComponentActivity : Activity(), LifecycleOwner {
    override val lifecycle: Lifecycle get() = error("a stand-in")

    public override fun onCreate(savedInstanceState: Bundle?) = Unit

    fun <I, O> registerForActivityResult(
        contract: ActivityResultContract<I, O>,
        callback: (O) -> Unit,
    ): ActivityResultLauncher<I> = error("a stand-in")
}
