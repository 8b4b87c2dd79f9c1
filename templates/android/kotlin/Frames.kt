import android.graphics.Bitmap
import android.graphics.ImageFormat
import android.graphics.PixelFormat
import android.hardware.DataSpace
import android.media.Image
import android.os.Build
import java.nio.Buffer
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

/** Reads rows of R, G and B, which are interleaved: for one pass over a picture, on one thread. */
internal fun interface RowReader {
    /** Writes the row [y], counted from the top, into an array of the row's size. */
    fun read(y: Int, into: ByteArray)
}

/** Arrays for readers: the next picture's readers get those of this one again. */
internal class Scratch {
    private val bytes = mutableListOf<ByteArray>()
    private val ints = mutableListOf<IntArray>()
    private var bytesTaken = 0
    private var intsTaken = 0

    /** Gives every array free again. */
    fun restart() {
        bytesTaken = 0
        intsTaken = 0
    }

    /** Returns an array of [size] bytes, with anything in it. */
    fun takeBytes(size: Int): ByteArray {
        if (bytesTaken == bytes.size) bytes += ByteArray(size)
        if (bytes[bytesTaken].size != size) bytes[bytesTaken] = ByteArray(size)
        return bytes[bytesTaken++]
    }

    /** Returns an array of [size] numbers, with anything in it. */
    fun takeInts(size: Int): IntArray {
        if (intsTaken == ints.size) ints += IntArray(size)
        if (ints[intsTaken].size != size) ints[intsTaken] = IntArray(size)
        return ints[intsTaken++]
    }
}

/** Averages blocks of [factor] by [factor] samples, rounded; [count] blocks of [bands] interleaved samples lie in a row. */
private class Averages(private val factor: Int, count: Int, private val bands: Int, scratch: Scratch) {
    private val sums = scratch.takeInts(count * bands)

    fun clear() = sums.fill(factor * factor / 2)

    /** Adds one row's samples of a band. */
    fun add(bytes: ByteArray, first: Int, step: Int, band: Int) {
        var at = first
        for (n in band until sums.size step bands) {
            var sum = 0
            for (column in 0 until factor) {
                sum += toUnsigned(bytes[at])
                at += step
            }
            sums[n] += sum
        }
    }

    fun write(into: ByteArray) {
        for (n in sums.indices) into[n] = (sums[n] / (factor * factor)).toByte()
    }
}

/** Returns the rows of the picture of averages of blocks; rows and columns that fill no block are left out. */
internal fun RowReader.average(width: Int, factor: Int, scratch: Scratch): RowReader {
    if (factor == 1) return this
    val row = scratch.takeBytes(3 * width)
    val averages = Averages(factor, width / factor, 3, scratch)
    return RowReader { y, into ->
        averages.clear()
        for (n in 0 until factor) {
            read(factor * y + n, row)
            for (band in 0 until 3) averages.add(row, band, 3, band)
        }
        averages.write(into)
    }
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
class Picture internal constructor(
    val width: Int,
    val height: Int,
    private val open: (scratch: Scratch, factor: Int) -> RowReader,
) {
    init {
        require(width > 0 && height > 0) { "a picture of $width x $height pixels has nothing in it" }
    }

    /**
     * Returns what reads the picture once, in arrays of a scratch that nothing else uses meanwhile.
     *
     * With a [factor] of 2, 4 or 8 it reads a picture of `width / factor` by `height / factor` pixels, each the average of a
     * block. A YUV frame's samples are averaged before they become colours: U and V in blocks of half the factor.
     */
    internal fun open(scratch: Scratch, factor: Int = 1): RowReader {
        scratch.restart()
        return open.invoke(scratch, factor)
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
                Picture(read.width, read.height) { scratch, factor ->
                    val rows = whileOpen { read.open(scratch, factor) }
                    RowReader { y, into -> whileOpen { rows.read(y, into) } }
                }
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
            val colours = YuvToRgb.of(matrix, range)
            return Picture(turn.width, turn.height) { scratch, factor ->
                YuvRows(listOf(y, u, v), turn, colours, scratch, factor)
            }
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
            val rows = RowReader { y, into -> unpack(argb, y * width, into) }
            return Picture(width, height) { scratch, factor -> rows.average(width, factor, scratch) }
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
    return Picture(turn.width, turn.height) { scratch, factor ->
        PixelRows(plane, order, turn, scratch).average(turn.width, factor, scratch)
    }
}

/** @throws IllegalArgumentException unless the plane has [columns] by [rows] pixels of [size] bytes. */
private fun Plane.requireSize(which: String, columns: Int, rows: Int, size: Int) {
    require(pixelStride >= size) { "$which has a pixel stride of $pixelStride, $size are needed" }
    val row = (columns - 1L) * pixelStride + size
    require(rowStride >= row) { "$which has a row stride of $rowStride, a row has $row bytes" }
    val needed = (rows - 1L) * rowStride + row
    require(bytes.remaining() >= needed) { "$which has ${bytes.remaining()} bytes, $needed are needed" }
}

/** How a plane of a frame is turned to be upright. */
private class Turn(val degrees: Int, val frameWidth: Int, val frameHeight: Int) {
    val isSideways = degrees == 90 || degrees == 270

    /** The upright plane's size. */
    val width = if (isSideways) frameHeight else frameWidth
    val height = if (isSideways) frameWidth else frameHeight

    /** Whether a row of the upright plane goes from a frame's last column or row to its first, and so does a column. */
    val isRowReversed = degrees == 90 || degrees == 180
    val isColumnReversed = degrees == 180 || degrees == 270

    companion object {
        fun of(degrees: Int, width: Int, height: Int): Turn {
            require(width > 0 && height > 0) { "the frame is $width x $height pixels, at least 1 x 1 is needed" }
            require(degrees in listOf(0, 90, 180, 270)) { "the frame's rotation is $degrees, expected 0, 90, 180 or 270" }
            return Turn(degrees, width, height)
        }
    }
}

/** How many rows of the upright picture are copied at once where a frame lies on its side. */
private const val BLOCK = 64

/**
 * The samples of a plane, one row of the upright picture after the other; or the averages of its blocks.
 *
 * Rows are copied, as a buffer gives many bytes at once faster than one by one. Where the frame lies on its side, a row's
 * samples lie far apart: then [BLOCK] rows are copied at once.
 *
 * @param size the bytes of a sample; 1 if there is a [factor]
 */
private class Samples(
    private val plane: Plane,
    private val size: Int,
    private val turn: Turn,
    scratch: Scratch,
    private val factor: Int = 1,
) {
    private val buffer = plane.bytes.duplicate()
    private val start = buffer.position()
    private val ahead = plane.pixelStride
    private val strip = scratch.takeBytes(BLOCK * ahead)
    private var block = IntRange.EMPTY
    private val rows = scratch.takeBytes(if (turn.isSideways) BLOCK * turn.width * size else (turn.width - 1) * ahead + size)
    private val next =
        when {
            turn.isSideways -> size
            turn.isRowReversed -> -ahead
            else -> ahead
        }
    private val averages = if (factor == 1) null else Averages(factor, turn.width / factor, 1, scratch)

    /** Where [read] has put the row. */
    val bytes: ByteArray = if (factor == 1) rows else scratch.takeBytes(turn.width / factor)

    /** How far behind each other its samples are. */
    val step = if (factor == 1) next else 1

    /** Where its first one is. */
    var first = 0
        private set

    /** Returns a sample of the row. */
    operator fun get(x: Int): Int = toUnsigned(bytes[first + x * step])

    fun read(y: Int) {
        if (averages == null) {
            first = readRow(y)
            return
        }
        averages.clear()
        for (n in 0 until factor) averages.add(rows, readRow(factor * y + n), next, 0)
        averages.write(bytes)
    }

    /** Reads a row of the plane, and returns where its first sample is. */
    private fun readRow(y: Int): Int {
        if (turn.isSideways) {
            if (y !in block) readBlock(y)
            return (y - block.first) * turn.width * size
        }
        copy(if (turn.isColumnReversed) turn.height - 1 - y else y, 0, turn.width, rows)
        return if (turn.isRowReversed) (turn.width - 1) * ahead else 0
    }

    private fun readBlock(y: Int) {
        block = y until minOf(y + BLOCK, turn.height)
        val count = block.last + 1 - y
        val left = if (turn.isColumnReversed) turn.height - y - count else y
        for (x in 0 until turn.width) {
            copy(if (turn.isRowReversed) turn.width - 1 - x else x, left, count, strip)
            spread(x, count)
        }
    }

    /** Puts samples of a row of the frame into one column of the block. */
    private fun spread(x: Int, count: Int) {
        val row = turn.width * size
        for (byte in 0 until size) {
            var from = (if (turn.isColumnReversed) count - 1 else 0) * ahead + byte
            val step = if (turn.isColumnReversed) -ahead else ahead
            var to = x * size + byte
            for (n in 0 until count) {
                rows[to] = strip[from]
                from += step
                to += row
            }
        }
    }

    /** Copies samples of one row of the frame, with what lies between them. */
    private fun copy(row: Int, column: Int, count: Int, into: ByteArray) {
        seek(buffer, start + row * plane.rowStride + column * ahead)
        buffer.get(into, 0, (count - 1) * ahead + size)
    }
}

/** Sets the position: the buffers' own functions of this name return other types before Android 9. */
internal fun seek(buffer: Buffer, position: Int) {
    buffer.position(position)
}

private class PixelRows(plane: Plane, private val order: PixelOrder, private val turn: Turn, scratch: Scratch) : RowReader {
    private val pixels = Samples(plane, order.bytes, turn, scratch)

    override fun read(y: Int, into: ByteArray) {
        pixels.read(y)
        val (bytes, red) = Pair(pixels.bytes, order.red)
        val hasAlpha = order.bytes == 4
        var at = pixels.first
        for (x in 0 until turn.width) {
            val alpha = if (hasAlpha) toUnsigned(bytes[at + 3]) else 255
            into[3 * x] = layOverWhite(toUnsigned(bytes[at + red]), alpha)
            into[3 * x + 1] = layOverWhite(toUnsigned(bytes[at + 1]), alpha)
            into[3 * x + 2] = layOverWhite(toUnsigned(bytes[at + 2 - red]), alpha)
            at += pixels.step
        }
    }
}

/** Reads the rows of a frame, or of the averages of its blocks. */
private class YuvRows(
    planes: List<Plane>,
    turn: Turn,
    private val colours: YuvToRgb,
    scratch: Scratch,
    factor: Int,
) : RowReader {
    private val halfTurn = Turn(turn.degrees, (turn.frameWidth + 1) / 2, (turn.frameHeight + 1) / 2)
    private val y = Samples(planes[0], 1, turn, scratch, factor)
    private val u = Samples(planes[1], 1, halfTurn, scratch, maxOf(factor / 2, 1))
    private val v = Samples(planes[2], 1, halfTurn, scratch, maxOf(factor / 2, 1))
    private val width = turn.width / factor

    // Of averages, there are as many of U and V as of Y. Else a sample of U and V is that of two pixels, but of one where
    // they are counted from the last pixel of an odd number.
    private val half = if (factor == 1) 1 else 0
    private val odd = if (turn.isRowReversed) half * turn.width % 2 else 0
    private val oddRow = if (turn.isColumnReversed) half * turn.height % 2 else 0
    private var read = -1

    override fun read(y: Int, into: ByteArray) {
        this.y.read(y)
        val row = y + oddRow shr half
        if (row != read) {
            u.read(row)
            v.read(row)
        }
        read = row
        for (x in 0 until width) colours.convert(this.y[x], u[x + odd shr half], v[x + odd shr half], into, 3 * x)
    }
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

    /** Returns 0 for what is less and 255 for what is more; nearly all values are neither. */
    private fun clamp(value: Int): Byte {
        val clamped = if (value and 0xff == value) value else (value shr 31).inv()
        return clamped.toByte()
    }

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
