package androidx.activity.compose

import androidx.activity.ComponentActivity
import androidx.compose.runtime.Composable
import androidx.compose.runtime.CompositionContext

/** Stands in for the function of androidx.activity. */
@Suppress("UNUSED_PARAMETER", "UnusedReceiverParameter")
fun ComponentActivity.setContent(parent: CompositionContext? = null, content: @Composable () -> Unit) = Unit
