import android.graphics.Bitmap
import android.os.Build

/**
 * Returns the pixels of a bitmap, which has to stay as it is while they are read.
 *
 * They are 8-bit sRGB, whatever the bitmap holds, as `Bitmap.getPixels` says of its colours. What is
 * transparent shows white. Nothing turns the picture: a bitmap of `BitmapFactory` lies as the camera's
 * sensor saw it, one of `ImageDecoder` is upright.
 *
 * @throws IllegalArgumentException if the bitmap was recycled, or its memory cannot be read
 */
internal fun Pixels.Companion.of(bitmap: Bitmap): Pixels {
    require(!bitmap.isRecycled) { "the bitmap was recycled: its pixels are gone" }
    val readable = readable(bitmap)
    val row = IntArray(readable.width)
    return Pixels(readable.width, readable.height) { y, into ->
        readable.getPixels(row, 0, row.size, 0, y, row.size, 1)
        Pixels.unpack(row, 0, into)
    }
}

/** Returns the bitmap, or a copy of it in memory if it is one of the graphics processor's. */
private fun readable(bitmap: Bitmap): Bitmap {
    if (Build.VERSION.SDK_INT < Build.VERSION_CODES.O || bitmap.config != Bitmap.Config.HARDWARE) return bitmap
    return requireNotNull(bitmap.copy(Bitmap.Config.ARGB_8888, false)) { "the hardware bitmap cannot be copied" }
}
