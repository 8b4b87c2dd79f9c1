import android.graphics.Bitmap
import android.os.Build

/**
 * Returns the pixels of a bitmap: 8-bit sRGB, whatever the bitmap's format is, as `Bitmap.getPixels` returns them.
 *
 * @throws IllegalArgumentException if the bitmap was recycled, or its memory cannot be read
 */
internal fun readBitmap(bitmap: Bitmap): Picture {
    require(!bitmap.isRecycled) { "the bitmap was recycled: its pixels are gone" }
    val readable = makeReadable(bitmap)
    val width = readable.width
    return Picture(width, readable.height) { scratch, factor ->
        val row = scratch.takeInts(width)
        val rows =
            RowReader { y, into ->
                readable.getPixels(row, 0, width, 0, y, width, 1)
                unpack(row, 0, into)
            }
        rows.average(width, factor, scratch)
    }
}

/** Returns the bitmap, or a copy in main memory where it lies in the graphics processor's memory. */
private fun makeReadable(bitmap: Bitmap): Bitmap {
    if (Build.VERSION.SDK_INT < Build.VERSION_CODES.O || bitmap.config != Bitmap.Config.HARDWARE) return bitmap
    return requireNotNull(bitmap.copy(Bitmap.Config.ARGB_8888, false)) { "the hardware bitmap cannot be copied" }
}
