import android.graphics.Bitmap
import android.graphics.ImageFormat
import android.graphics.PixelFormat
import android.hardware.DataSpace
import android.media.Image
import android.os.Build
import java.nio.ByteBuffer
import java.util.Locale

/** How the bytes of a pixel follow each other; alpha is not premultiplied. */
enum class PixelOrder(internal val bytes: Int, internal val red: Int) {
    RGB(3, 0),
    RGBA(4, 0),
    BGRA(4, 2),
    ;

    internal val word = name.lowercase(Locale.ROOT)
}

/** The weights of red, green and blue in a brightness Y: of ITU-R BT.601 or of BT.709. */
enum class YuvMatrix { BT601, BT709 }

/** The values of Y, U and V: [FULL] has 0 to 255, [VIDEO] has 16 to 235 and 16 to 240. */
enum class YuvRange { FULL, VIDEO }

/**
 * One plane of a frame.
 *
 * @property bytes from the position to the limit; the last row may end right after its last pixel
 * @property rowStride how many bytes behind each other rows begin
 * @property pixelStride how many bytes behind each other pixels of a row begin
 */
class Plane(val bytes: ByteBuffer, val rowStride: Int, val pixelStride: Int)

/** Reads rows of pixels, whose channels are interleaved. */
internal fun interface RowReader {
    /** Writes the row [y], counted from the top, into an array of the row's size. */
    fun read(y: Int, into: ByteArray)
}

/**
 * A picture for the model: upright, and opaque, as transparent places become white.
 *
 * It copies nothing: the model reads what it was made of. Do not change, close or recycle that before the call that
 * takes the picture returns.
 *
 * @property width in pixels, after turning
 * @property height in pixels, after turning
 */
class Picture internal constructor(val width: Int, val height: Int, internal val rows: RowReader) {
    init {
        require(width > 0 && height > 0) { "a picture of $width x $height pixels has nothing in it" }
    }

    companion object {
        /**
         * Returns a bitmap as a picture. Nothing turns it: a bitmap from `BitmapFactory` is turned as the camera's sensor
         * was, one from `ImageDecoder` is upright.
         *
         * @throws IllegalArgumentException if the bitmap was recycled, or its memory cannot be read.
         */
        @JvmStatic
        fun of(bitmap: Bitmap): Picture = readBitmap(bitmap)

        /**
         * Returns a camera's image as a picture. The image's crop rectangle does not count.
         *
         * @param image of the format `YUV_420_888` or `RGBA_8888`.
         * @param rotationDegrees by how much it has to be turned clockwise to be upright, as CameraX has it: 0, 90, 180, 270.
         * @param matrix of a YUV image; null for that of its data space (from Android 13 on), or else BT.601.
         * @param range of a YUV image; null for that of its data space (from Android 13 on), or else the full one.
         * @throws IllegalArgumentException if the image is closed, or of another format, or has wrong planes or the
         * colours of BT.2020.
         */
        @JvmStatic
        @JvmOverloads
        fun of(image: Image, rotationDegrees: Int, matrix: YuvMatrix? = null, range: YuvRange? = null): Picture =
            whileOpen {
                val planes = image.planes.map { Plane(it.buffer, it.rowStride, it.pixelStride) }
                val read = readImage(image, planes, rotationDegrees, matrix, range)
                Picture(read.width, read.height) { y, into -> whileOpen { read.rows.read(y, into) } }
            }

        /**
         * Returns a frame of Y, U and V as a picture. A pixel gets the U and V of its half column and row.
         *
         * @param u [width] / 2 by [height] / 2 samples, rounded up; may lie between those of [v], as in NV12 and NV21.
         * @param rotationDegrees by how much the frame has to be turned clockwise to be upright: 0, 90, 180, 270.
         * @throws IllegalArgumentException if a plane is too small or a stride too short, or the rotation is another one.
         */
        @JvmStatic
        @JvmOverloads
        fun of(
            y: Plane,
            u: Plane,
            v: Plane,
            width: Int,
            height: Int,
            rotationDegrees: Int = 0,
            matrix: YuvMatrix = YuvMatrix.BT601,
            range: YuvRange = YuvRange.FULL,
        ): Picture {
            val turn = Turn.of(rotationDegrees, width, height)
            val of = "of the frame (yuv420, $width x $height)"
            y.requireSize("plane 0 $of", width, height, 1)
            u.requireSize("plane 1 $of", (width + 1) / 2, (height + 1) / 2, 1)
            v.requireSize("plane 2 $of", (width + 1) / 2, (height + 1) / 2, 1)
            return Picture(turn.width, turn.height, YuvRows(y, u, v, turn, YuvToRgb.of(matrix, range)))
        }

        /**
         * Returns a frame of pixels as a picture.
         *
         * @param pixels from the position to the limit; the last row may end right after its last pixel.
         * @param rowStride how many bytes behind each other rows begin.
         * @param rotationDegrees by how much the frame has to be turned clockwise to be upright: 0, 90, 180, 270.
         * @throws IllegalArgumentException if there are too few bytes, the stride is too short, or the rotation is another one.
         */
        @JvmStatic
        @JvmOverloads
        fun of(
            pixels: ByteBuffer,
            width: Int,
            height: Int,
            rowStride: Int,
            order: PixelOrder,
            rotationDegrees: Int = 0,
        ): Picture = readPixels(Plane(pixels, rowStride, order.bytes), width, height, order, rotationDegrees)

        /**
         * Returns a picture in a buffer, from its position to its limit.
         *
         * @param pixels rows from the top without gaps, three bytes (R, G, B) or four (R, G, B, A) per pixel.
         * @throws IllegalArgumentException if the buffer has another number of bytes.
         */
        @JvmStatic
        fun of(pixels: ByteBuffer, width: Int, height: Int): Picture {
            val count = width.toLong() * height
            val order = listOf(PixelOrder.RGB, PixelOrder.RGBA).firstOrNull { it.bytes * count == pixels.remaining().toLong() }
            requireNotNull(order) {
                "${pixels.remaining()} bytes for $width x $height pixels:" +
                    " give ${3 * count} (R, G, B) or ${4 * count} (R, G, B, A)"
            }
            return of(pixels, width, height, order.bytes * width, order)
        }

        /**
         * Returns a picture in an array, as `Bitmap.getPixels` fills it.
         *
         * @param argb rows from the top without gaps, one `0xAARRGGBB` per pixel (not premultiplied).
         * @throws IllegalArgumentException if the array does not have one number per pixel.
         */
        @JvmStatic
        fun of(argb: IntArray, width: Int, height: Int): Picture {
            require(argb.size.toLong() == width.toLong() * height) {
                "${argb.size} pixels for a picture of $width x $height"
            }
            return Picture(width, height) { y, into -> unpack(argb, y * width, into) }
        }
    }
}

/** Writes `into.size / 3` pixels `0xAARRGGBB`, starting at an index, as RGB over white. */
internal fun unpack(argb: IntArray, from: Int, into: ByteArray) {
    for (x in 0 until into.size / 3) {
        val pixel = argb[from + x]
        val alpha = pixel ushr 24
        into[3 * x] = layOverWhite(pixel shr 16 and 0xff, alpha)
        into[3 * x + 1] = layOverWhite(pixel shr 8 and 0xff, alpha)
        into[3 * x + 2] = layOverWhite(pixel and 0xff, alpha)
    }
}

/** Lays a channel's value over white; the result equals that of Pillow's `alpha_composite` for all values. */
private fun layOverWhite(value: Int, alpha: Int): Byte =
    if (alpha == 255) value.toByte() else ((value * alpha + 255 * (255 - alpha) + 127) / 255).toByte()

/** Android says that an image is closed, and its memory gone, as a state; here it is a wrong argument, as a recycled bitmap. */
private inline fun <T> whileOpen(read: () -> T): T =
    try {
        read()
    } catch (error: IllegalStateException) {
        throw IllegalArgumentException("the image is closed: its pixels are gone", error)
    }

private fun readImage(image: Image, planes: List<Plane>, degrees: Int, matrix: YuvMatrix?, range: YuvRange?): Picture {
    val format = image.format
    require(format == ImageFormat.YUV_420_888 || format == PixelFormat.RGBA_8888) {
        "the image has the format $format: give one of YUV_420_888 (${ImageFormat.YUV_420_888})" +
            " or RGBA_8888 (${PixelFormat.RGBA_8888})"
    }
    val count = if (format == ImageFormat.YUV_420_888) 3 else 1
    require(planes.size == count) {
        "the frame has ${planes.size} planes, ${if (count == 3) "yuv420" else "rgba"} has $count"
    }
    if (count == 1) return readPixels(planes[0], image.width, image.height, PixelOrder.RGBA, degrees)
    val (y, u, v) = planes
    // Asked only where it decides something: Android has it since API level 33.
    val space = if (Build.VERSION.SDK_INT >= 33 && (matrix == null || range == null)) image.dataSpace else 0
    val found = matrix ?: if (space == 0) YuvMatrix.BT601 else findMatrix(space)
    return Picture.of(y, u, v, image.width, image.height, degrees, found, range ?: findRange(space))
}

/** Source: the constants of android.hardware.DataSpace, which Android 13 brought. */
private fun findMatrix(space: Int): YuvMatrix {
    val standard = DataSpace.getStandard(space)
    require(standard != DataSpace.STANDARD_BT2020 && standard != DataSpace.STANDARD_BT2020_CONSTANT_LUMINANCE) {
        "the image has the colours of BT.2020, which are not converted: give another image, or say 'matrix'"
    }
    return if (standard == DataSpace.STANDARD_BT709) YuvMatrix.BT709 else YuvMatrix.BT601
}

private fun findRange(space: Int): YuvRange =
    if (space != 0 && DataSpace.getRange(space) == DataSpace.RANGE_LIMITED) YuvRange.VIDEO else YuvRange.FULL

internal fun readPixels(plane: Plane, width: Int, height: Int, order: PixelOrder, degrees: Int): Picture {
    val turn = Turn.of(degrees, width, height)
    plane.requireSize("plane 0 of the frame (${order.word}, $width x $height)", width, height, order.bytes)
    return Picture(turn.width, turn.height, PixelRows(plane, order, turn))
}

/** @throws IllegalArgumentException unless the plane has [columns] by [rows] pixels of [size] bytes. */
private fun Plane.requireSize(which: String, columns: Int, rows: Int, size: Int) {
    require(pixelStride >= size) { "$which has a pixel stride of $pixelStride, $size are needed" }
    val row = (columns - 1L) * pixelStride + size
    require(rowStride >= row) { "$which has a row stride of $rowStride, a row has $row bytes" }
    val needed = (rows - 1L) * rowStride + row
    require(bytes.remaining() >= needed) { "$which has ${bytes.remaining()} bytes, $needed are needed" }
}

/** Which pixels of a frame are a row of the upright picture. */
private class Turn(private val degrees: Int, private val frameWidth: Int, private val frameHeight: Int) {
    private val isSideways = degrees == 90 || degrees == 270

    /** The upright picture's size. */
    val width = if (isSideways) frameHeight else frameWidth
    val height = if (isSideways) frameWidth else frameHeight

    /** By how many columns and rows of the frame the next pixel of a row is farther. */
    val nextColumn = if (isSideways) 0 else 1 - degrees / 90
    val nextRow = if (isSideways) degrees / 90 - 2 else 0

    /** The frame's column and row with the first pixel of the upright picture's row [y]. */
    fun findColumn(y: Int): Int =
        when (degrees) {
            0 -> 0
            90 -> y
            180 -> frameWidth - 1
            else -> frameWidth - 1 - y
        }

    fun findRow(y: Int): Int =
        when (degrees) {
            0 -> y
            90 -> frameHeight - 1
            180 -> frameHeight - 1 - y
            else -> 0
        }

    companion object {
        fun of(degrees: Int, width: Int, height: Int): Turn {
            require(width > 0 && height > 0) { "the frame is $width x $height pixels, at least 1 x 1 is needed" }
            require(degrees in listOf(0, 90, 180, 270)) { "the frame's rotation is $degrees, expected 0, 90, 180 or 270" }
            return Turn(degrees, width, height)
        }
    }
}

private class PixelRows(private val plane: Plane, private val order: PixelOrder, private val turn: Turn) : RowReader {
    private val bytes = plane.bytes
    private val start = bytes.position()
    private val step = turn.nextRow * plane.rowStride + turn.nextColumn * plane.pixelStride

    override fun read(y: Int, into: ByteArray) {
        var at = start + turn.findRow(y) * plane.rowStride + turn.findColumn(y) * plane.pixelStride
        for (x in 0 until turn.width) {
            val alpha = if (order.bytes == 4) toUnsigned(bytes.get(at + 3)) else 255
            into[3 * x] = layOverWhite(toUnsigned(bytes.get(at + order.red)), alpha)
            into[3 * x + 1] = layOverWhite(toUnsigned(bytes.get(at + 1)), alpha)
            into[3 * x + 2] = layOverWhite(toUnsigned(bytes.get(at + 2 - order.red)), alpha)
            at += step
        }
    }
}

private class YuvRows(y: Plane, u: Plane, v: Plane, private val turn: Turn, private val colours: YuvToRgb) : RowReader {
    private val y = Samples(y)
    private val u = Samples(u)
    private val v = Samples(v)

    override fun read(y: Int, into: ByteArray) {
        var column = turn.findColumn(y)
        var row = turn.findRow(y)
        for (x in 0 until turn.width) {
            colours.convert(this.y[column, row], u[column / 2, row / 2], v[column / 2, row / 2], into, 3 * x)
            column += turn.nextColumn
            row += turn.nextRow
        }
    }
}

/** A plane's samples, each one byte. */
private class Samples(private val plane: Plane) {
    private val bytes = plane.bytes
    private val start = bytes.position()

    operator fun get(column: Int, row: Int): Int =
        toUnsigned(bytes.get(start + row * plane.rowStride + column * plane.pixelStride))
}

/**
 * Converts Y, U and V to R, G and B with integers, which all languages have alike.
 *
 * Source: ITU-R BT.601-7 and BT.709-6: the factors follow from Kr and Kb (0.299 and 0.114; 0.2126 and 0.0722) and the
 * range, times 65536, rounded.
 */
private class YuvToRgb(
    private val black: Int,
    private val ofY: Int,
    private val redOfV: Int,
    private val greenOfU: Int,
    private val greenOfV: Int,
    private val blueOfU: Int,
) {
    fun convert(y: Int, u: Int, v: Int, into: ByteArray, at: Int) {
        val grey = ofY * (y - black) + 32768
        into[at] = clamp(grey + redOfV * (v - 128) shr 16)
        into[at + 1] = clamp(grey - greenOfU * (u - 128) - greenOfV * (v - 128) shr 16)
        into[at + 2] = clamp(grey + blueOfU * (u - 128) shr 16)
    }

    private fun clamp(value: Int): Byte = value.coerceIn(0, 255).toByte()

    companion object {
        fun of(matrix: YuvMatrix, range: YuvRange): YuvToRgb {
            val is601 = matrix == YuvMatrix.BT601
            return when (range) {
                YuvRange.FULL ->
                    if (is601) {
                        YuvToRgb(0, 65536, 91881, 22553, 46802, 116130)
                    } else {
                        YuvToRgb(0, 65536, 103206, 12276, 30679, 121609)
                    }
                YuvRange.VIDEO ->
                    if (is601) {
                        YuvToRgb(16, 76309, 104597, 25675, 53279, 132201)
                    } else {
                        YuvToRgb(16, 76309, 117489, 13975, 34925, 138438)
                    }
            }
        }
    }
}
