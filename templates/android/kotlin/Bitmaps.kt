import android.graphics.Bitmap
import android.os.Build

/**
 * Returns the pixels of a bitmap. Do not change the bitmap while they are read.
 *
 * The pixels are 8-bit sRGB, whatever the bitmap's format is, as `Bitmap.getPixels` returns them. Transparent
 * places become white. Nothing turns the picture: a bitmap from `BitmapFactory` is turned as the camera's
 * sensor was, one from `ImageDecoder` is upright.
 *
 * @throws IllegalArgumentException if the bitmap was recycled, or its memory cannot be read
 */
internal fun Pixels.Companion.of(bitmap: Bitmap): Pixels {
    require(!bitmap.isRecycled) { "the bitmap was recycled: its pixels are gone" }
    val readable = makeReadable(bitmap)
    val row = IntArray(readable.width)
    return Pixels(readable.width, readable.height) { y, into ->
        readable.getPixels(row, 0, row.size, 0, y, row.size, 1)
        Pixels.unpack(row, 0, into)
    }
}

/** Returns the bitmap, or a copy in main memory where it lies in the graphics processor's memory. */
private fun makeReadable(bitmap: Bitmap): Bitmap {
    if (Build.VERSION.SDK_INT < Build.VERSION_CODES.O || bitmap.config != Bitmap.Config.HARDWARE) return bitmap
    return requireNotNull(bitmap.copy(Bitmap.Config.ARGB_8888, false)) { "the hardware bitmap cannot be copied" }
}
