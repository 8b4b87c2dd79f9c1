package edgepack.proof

import android.media.Image
import edgepack.proof.Plane as Given
import java.nio.ByteBuffer

/** An image of Android's own class, as a camera gives it: closed, it has nothing. */
class CameraImage(
    private val format: Int,
    private val width: Int,
    private val height: Int,
    private val planes: List<Given>,
    private val space: Int = 0,
) : Image() {
    private var isClosed = false

    /** How often its data space was asked for. */
    var asked = 0
        private set

    private fun <T> whileOpen(value: T): T = if (isClosed) throw IllegalStateException("Image is already closed") else value

    override fun getFormat(): Int = whileOpen(format)

    override fun getWidth(): Int = whileOpen(width)

    override fun getHeight(): Int = whileOpen(height)

    override fun getTimestamp(): Long = whileOpen(0)

    override fun getTransform(): Int = whileOpen(0)

    override fun getScalingMode(): Int = whileOpen(0)

    override fun getDataSpace(): Int {
        asked++
        return whileOpen(space)
    }

    override fun getPlanes(): Array<Image.Plane> =
        whileOpen(planes).map { plane ->
            object : Image.Plane() {
                override fun getRowStride(): Int = plane.rowStride

                override fun getPixelStride(): Int = plane.pixelStride

                override fun getBuffer(): ByteBuffer = plane.bytes
            }
        }.toTypedArray()

    override fun close() {
        isClosed = true
    }
}
