package androidx.compose.ui.viewinterop

import android.content.Context
import android.view.View
import androidx.compose.foundation.Image
import androidx.compose.runtime.Composable
import androidx.compose.ui.Modifier
import androidx.compose.ui.graphics.ImageBitmap

/** What [AndroidView] shows: a camera's preview, if there is one. */
var preview: ImageBitmap? = null

/** Stands in for the function of androidx.compose.ui, which only its package for Android has. */
@Suppress("UNUSED_PARAMETER")
@Composable
fun <T : View> AndroidView(factory: (Context) -> T, modifier: Modifier = Modifier, update: (T) -> Unit = {}) {
    preview?.let { Image(it, contentDescription = null, modifier) }
}
