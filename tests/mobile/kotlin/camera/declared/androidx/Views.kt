package androidx.compose.ui.viewinterop

import android.content.Context
import android.view.View
import androidx.compose.runtime.Composable
import androidx.compose.ui.Modifier

/** Stands in for the function of androidx.compose.ui, which only its package for Android has. */
@Suppress("UNUSED_PARAMETER")
@Composable
fun <T : View> AndroidView(factory: (Context) -> T, modifier: Modifier = Modifier, update: (T) -> Unit = {}) = Unit
