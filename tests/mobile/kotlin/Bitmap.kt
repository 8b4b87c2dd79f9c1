package android.graphics

/**
 * Stands in for Android's class of the same name, whose pixels are in native memory: it lies before the
 * framework's classes when the proof runs. As that one, it gives no pixels of a hardware bitmap.
 */
class Bitmap(private val argb: IntArray, val width: Int, val height: Int, val config: Config = Config.HARDWARE) {
    val isRecycled: Boolean = false

    fun getPixels(into: IntArray, offset: Int, stride: Int, x: Int, y: Int, columns: Int, rows: Int) {
        check(config != Config.HARDWARE) { "pixels of a hardware bitmap" }
        for (row in 0 until rows) {
            argb.copyInto(into, offset + row * stride, (y + row) * width + x, (y + row) * width + x + columns)
        }
    }

    @Suppress("UNUSED_PARAMETER")
    fun copy(to: Config, isMutable: Boolean): Bitmap = Bitmap(argb, width, height, to)

    enum class Config { ARGB_8888, HARDWARE }
}
