import kotlin.math.max
import kotlin.math.min
import kotlin.math.round
import org.json.JSONArray
import org.json.JSONObject

/** How a picture is resized to the model's size. */
internal sealed interface Resize {
    /** Returns where a picture of this size lies in the input. */
    fun place(width: Int, height: Int): Placement

    /** The whole picture with its aspect ratio, in the middle of a square; the rest has the value [pad]. */
    class Letterbox(private val side: Int, val pad: Int) : Resize {
        override fun place(width: Int, height: Int): Placement =
            Placement.centred(width, height, side.toDouble() / max(width, height), side)
    }

    /** The middle of the picture, after its shorter side is scaled to [shortSide]. */
    class ShortSideCrop(private val shortSide: Int, private val crop: Int) : Resize {
        override fun place(width: Int, height: Int): Placement =
            Placement.centred(width, height, shortSide.toDouble() / min(width, height), crop)
    }

    /** The whole picture, whatever its aspect ratio. */
    class Stretch(private val width: Int, private val height: Int) : Resize {
        override fun place(width: Int, height: Int): Placement =
            Placement(width, height, this.width.toLong(), this.height.toLong(), 0, 0, this.width, this.height)
    }
}

/**
 * Where a picture lies in the input, all in pixels.
 *
 * @property pictureWidth the width of the original picture
 * @property pictureHeight the height of the original picture
 * @property scaledWidth the width that the whole picture is scaled to
 * @property scaledHeight the height that it is scaled to
 * @property left column of the input in which the scaled picture begins; negative if it is cropped
 * @property top row of the input in which it begins; negative if it is cropped
 * @property width of the input
 * @property height of the input
 */
internal class Placement(
    val pictureWidth: Int,
    val pictureHeight: Int,
    val scaledWidth: Long,
    val scaledHeight: Long,
    val left: Long,
    val top: Long,
    val width: Int,
    val height: Int,
) {
    /** The columns of the scaled picture that are in the input. */
    val columns: LongRange get() = findShown(left, scaledWidth, width)

    /** The rows of the scaled picture that are in the input. */
    val rows: LongRange get() = findShown(top, scaledHeight, height)

    /** The largest of 8, 4, 2 and 1 by which the picture can be divided and still is as large as the scaled one. */
    val factor: Int
        get() = listOf(8, 4, 2).firstOrNull { pictureWidth / it >= scaledWidth && pictureHeight / it >= scaledHeight } ?: 1

    /** @throws IllegalArgumentException if the whole scaled picture, which the model makes before it cuts, is too large. */
    fun requireScaled() {
        require(scaledWidth <= MOST_PIXELS / scaledHeight) {
            "the picture of $pictureWidth x $pictureHeight pixels would become $scaledWidth x $scaledHeight in the" +
                " model before it is cut: cut its ends off first"
        }
    }

    private fun findShown(offset: Long, scaled: Long, side: Int): LongRange =
        max(0, -offset) until min(scaled, side - offset)

    companion object {
        private const val MOST_PIXELS = 1L shl 28

        /** Returns the placement of a scaled picture in the middle of a square. */
        fun centred(width: Int, height: Int, ratio: Double, side: Int): Placement {
            // Rounds half to even, as Python's round() does.
            val scaledWidth = max(1, round(width * ratio).toLong())
            val scaledHeight = max(1, round(height * ratio).toLong())
            // Where the picture is larger than the input, the crop begins at floor((w - s) / 2).
            val left = computeOffset(side, scaledWidth)
            val top = computeOffset(side, scaledHeight)
            return Placement(width, height, scaledWidth, scaledHeight, left, top, side, side)
        }

        private fun computeOffset(side: Int, scaled: Long): Long =
            if (scaled > side) -((scaled - side) / 2) else (side - scaled) / 2
    }
}

/**
 * How a picture becomes an input tensor: one `image` of the manifest's `input_descriptions`.
 *
 * @property resize how the picture gets its size
 * @property resampling the library's function that computes its pixels
 * @property planes the channels of RGB in the tensor's order; empty for one grey channel
 * @property scale the factor for values from 0 to 255
 * @property mean subtracted after that, one value per channel of the tensor; empty for none
 * @property std the divisor, applied last, one value per channel; empty for none
 * @property channelsFirst whether the tensor is (1, C, H, W) and not (1, H, W, C)
 */
internal class ImageDescription(
    val resize: Resize,
    val resampling: Resampling,
    val planes: List<Int>,
    val scale: Float,
    val mean: List<Float>,
    val std: List<Float>,
    val channelsFirst: Boolean,
) {
    /** The number of channels: 1 or 3. */
    val channels: Int get() = max(1, planes.size)

    /** Returns, for each channel, the tensor's values for the 256 values that a pixel can have. */
    fun listValues(): List<FloatArray> =
        List(channels) { channel -> FloatArray(256) { normalize(it.toFloat(), channel) } }

    /** Returns the tensor's value for a pixel's. */
    fun normalize(value: Float, channel: Int): Float {
        var result = value * scale
        if (mean.isNotEmpty()) result -= mean[channel]
        if (std.isNotEmpty()) result /= std[channel]
        return result
    }

    companion object {
        private val ORDERS = mapOf("RGB" to listOf(0, 1, 2), "BGR" to listOf(2, 1, 0), "GRAY" to emptyList())

        /**
         * Reads a description.
         *
         * @throws org.json.JSONException if the JSON is not a description
         */
        fun of(json: JSONObject): ImageDescription {
            val resize = json.getJSONObject("resize")
            val order = json.getString("order")
            return ImageDescription(
                resize = when {
                    resize.has("letterbox") -> Resize.Letterbox(resize.getInt("letterbox"), resize.getInt("pad"))
                    resize.has("crop") -> Resize.ShortSideCrop(resize.getInt("short_side"), resize.getInt("crop"))
                    else -> Resize.Stretch(resize.getInt("width"), resize.getInt("height"))
                },
                resampling = Resampling.of(resize),
                planes = requireNotNull(ORDERS[order]) { "unknown order of channels: $order" },
                scale = json.getDouble("scale").toFloat(),
                mean = readFloats(json.getJSONArray("mean")),
                std = readFloats(json.getJSONArray("std")),
                channelsFirst = json.getString("layout") == "NCHW",
            )
        }

        private fun readFloats(json: JSONArray): List<Float> = List(json.length()) { json.getDouble(it).toFloat() }
    }
}

/**
 * Makes the input tensors of pictures of one size: resizes them, then applies the description's order, scale, mean, std
 * and layout.
 *
 * The values equal those of the project's samples to the bit: resizing is that of the library which the description
 * names. It keeps its tables and rows, so that another picture takes no memory.
 *
 * @param prescale whether a picture that is much larger than its place in the input is made smaller first, by averages of
 * blocks of 2, 4 or 8 pixels: the values are other ones then.
 */
internal class ImageMaker(
    private val description: ImageDescription,
    private val pictureWidth: Int,
    private val pictureHeight: Int,
    prescale: Boolean = false,
) {
    /** Where a picture lies in its tensor. */
    val placement: Placement = description.resize.place(pictureWidth, pictureHeight)

    private val bands = description.channels
    private val values = description.listValues()
    private val step = if (description.channelsFirst) 1 else bands
    private val pad = (description.resize as? Resize.Letterbox)?.pad ?: 0

    /** (1, C, H, W) or (1, H, W, C). */
    val shape: LongArray =
        if (description.channelsFirst) {
            longArrayOf(1, bands.toLong(), placement.height.toLong(), placement.width.toLong())
        } else {
            longArrayOf(1, placement.height.toLong(), placement.width.toLong(), bands.toLong())
        }

    // Where the picture is cut, its visible part fills the input.
    private val left = max(0, placement.left).toInt()
    private val top = max(0, placement.top).toInt()
    private val columns = min(placement.scaledWidth, placement.width.toLong()).toInt()
    private val rows = min(placement.scaledHeight, placement.height.toLong()).toInt()

    private val factor = if (prescale) placement.factor else 1
    private val width = pictureWidth / factor
    private val height = pictureHeight / factor
    private val scratch = Scratch()
    private var picture: RowReader? = null
    private val resized = resizeShown(Rows(3 * width, height) { y, into -> checkNotNull(picture).read(y, into) })
    private val row = ByteArray(if (resized.levels == null) resized.size else 0)
    private val levels = FloatArray(if (resized.levels == null) 0 else resized.size)

    /** Returns whether it makes the tensor of such a picture. */
    fun takes(picture: Picture): Boolean = picture.width == pictureWidth && picture.height == pictureHeight

    /** Writes the tensor of a picture of this size into an array of the tensor's size. */
    fun make(picture: Picture, into: FloatArray) {
        this.picture = picture.open(scratch, factor)
        if (rows < placement.height || columns < placement.width) writePad(into)
        for (y in 0 until resized.count) {
            val exact = resized.levels
            if (exact == null) checkNotNull(resized.bytes).read(y, row) else exact.read(y, levels)
            for (channel in values.indices) writeRow(channel, y, into)
        }
        // A bitmap is large.
        this.picture = null
    }

    private fun writePad(into: FloatArray) {
        for (channel in values.indices) {
            val start = if (description.channelsFirst) channel * placement.width * placement.height else channel
            for (n in 0 until placement.width * placement.height) into[start + n * step] = values[channel][pad]
        }
    }

    private fun writeRow(channel: Int, y: Int, into: FloatArray) {
        val values = values[channel]
        val area = placement.width * placement.height
        val start = if (description.channelsFirst) channel * area else channel
        var at = start + ((top + y) * placement.width + left) * step
        var from = description.planes.getOrElse(channel) { 0 }
        if (resized.levels == null) {
            for (x in 0 until columns) {
                into[at] = values[toUnsigned(row[from])]
                from += bands
                at += step
            }
        } else {
            for (x in 0 until columns) {
                into[at] = description.normalize(levels[from], channel)
                from += bands
                at += step
            }
        }
    }

    /**
     * Returns the part of a scaled picture that the input shows, in [bands] interleaved channels: 3 for RGB, 1 for grey.
     *
     * It computes nothing else: the rest of a long and thin picture may be gigabytes.
     */
    private fun resizeShown(rows: Rows): Resized =
        description.resampling.resize(
            if (bands == 1) toGrey(rows) else rows,
            bands,
            AxisSpan(width, placement.scaledWidth, placement.columns),
            AxisSpan(height, placement.scaledHeight, placement.rows),
        )
}

/** Returns the input tensor of a picture. */
internal fun makeImageTensor(picture: Picture, description: ImageDescription): FloatTensor {
    val maker = ImageMaker(description, picture.width, picture.height)
    val data = FloatArray(maker.shape.fold(1L) { size, axis -> size * axis }.toInt())
    maker.make(picture, data)
    return FloatTensor(maker.shape, data).apply { placement = maker.placement }
}

/** Converts RGB rows to brightness, with Pillow's fixed-point weights for its mode L. */
private fun toGrey(rows: Rows): Rows {
    val rgb = ByteArray(rows.size)
    return Rows(rows.size / 3, rows.count) { y, into ->
        rows.read(y, rgb)
        for (x in into.indices) {
            val red = 19595 * toUnsigned(rgb[3 * x])
            val green = 38470 * toUnsigned(rgb[3 * x + 1])
            val blue = 7471 * toUnsigned(rgb[3 * x + 2])
            into[x] = (red + green + blue + 0x8000 shr 16).toByte()
        }
    }
}

internal fun toUnsigned(byte: Byte): Int = byte.toInt() and 0xff
