import kotlin.math.abs
import kotlin.math.ceil
import kotlin.math.floor
import kotlin.math.max
import kotlin.math.min
import kotlin.math.round
import org.json.JSONObject

/** [count] rows of [size] bytes. They are read from the top down, each at most once; then again from the top. */
internal class Rows(val size: Int, val count: Int, private val reader: RowReader) : RowReader by reader

/** Writes the row `y`, counted from the top, into an array of the row's size. */
internal fun interface LevelReader {
    fun read(y: Int, into: FloatArray)
}

/**
 * A scaled picture: [count] rows of [size] numbers, in bytes or, where a filter is not Pillow's, as float32.
 *
 * They are read from the top down; then again from the top.
 */
internal class Resized(val size: Int, val count: Int, val bytes: RowReader?, val levels: LevelReader?)

/**
 * How an axis is scaled.
 *
 * @property from its size
 * @property to its new size
 * @property shown which of its new pixels are wanted
 */
internal class AxisSpan(val from: Int, val to: Long, val shown: LongRange) {
    /** The number of pixels that are wanted. */
    val size: Int get() = (shown.last - shown.first + 1).toInt()
}

/**
 * The library's function that resizes: what `filter` and `antialias` in a description's `resize` say.
 *
 * The numbers are those of the project's samples, to the bit. What is double in a library is double here; what is
 * float32 is double, too, and rounded to float32 after each step, which is the same.
 */
internal class Resampling private constructor(private val filter: String, private val antialias: Boolean) {
    /** Returns the part of a scaled picture that is wanted, of rows of [bands] interleaved channels: three or one. */
    fun resize(rows: Rows, bands: Int, across: AxisSpan, down: AxisSpan): Resized =
        when (filter) {
            PILLOW_BILINEAR -> resizeAsPillow(rows, bands, across, down, Kernel(1, ::weighBilinear))
            PILLOW_BICUBIC -> resizeAsPillow(rows, bands, across, down, Kernel(2, ::weighBicubic))
            "pillow-nearest" -> pick(rows, bands, pickCentres(across), pickCentres(down))
            "cv2-linear" -> interpolate(rows, bands, across, down, ::placeLinear)
            "cv2-cubic" -> resizeAsCubic(rows, bands, across, down)
            "cv2-area" -> resizeAsArea(rows, bands, across, down)
            "cv2-nearest" -> pick(rows, bands, pickCorners(across), pickCorners(down))
            else -> sumBoth(rows, bands, makeAxis(across), makeAxis(down)).toResized(::toExactFloat)
        }

    private fun makeAxis(span: AxisSpan): Taps {
        val kernel = if (filter == TORCHVISION_BICUBIC) Kernel(2, ::weighBicubic) else Kernel(1, ::weighBilinear)
        // TensorFlow rounds in other steps than PyTorch.
        val isTensorFlow = filter == TF_BILINEAR
        val scale = if (isTensorFlow && antialias) f32(1 / f32(span.to.toDouble() / span.from)) else findScale(span)
        return when {
            antialias -> spread(span, scale, kernel)
            filter == TORCHVISION_BICUBIC -> makeCubicAxis(span)
            isTensorFlow -> makeLinearAxis(span) { f32(f32((it + 0.5) * scale) - 0.5) }
            else -> makeLinearAxis(span) { placeOnce(it, scale) }
        }
    }

    companion object {
        private const val PILLOW_BILINEAR = "pillow-bilinear"
        private const val PILLOW_BICUBIC = "pillow-bicubic"
        private const val TORCHVISION_BICUBIC = "torchvision-bicubic"
        private const val TF_BILINEAR = "tf-bilinear"
        private val OPENCV = setOf("cv2-linear", "cv2-cubic", "cv2-area", "cv2-nearest")
        private val OTHERS = OPENCV + setOf("pillow-nearest", "torchvision-bilinear")
        private val FILTERS = OTHERS + setOf(PILLOW_BILINEAR, PILLOW_BICUBIC, TORCHVISION_BICUBIC, TF_BILINEAR)

        /** Reads what `resize` says; without a filter it is Pillow's bilinear one. */
        fun of(resize: JSONObject): Resampling {
            val filter = resize.optString("filter", PILLOW_BILINEAR)
            require(filter in FILTERS) { "there is no filter $filter" }
            return Resampling(filter, resize.optBoolean("antialias", false))
        }
    }
}

/**
 * Pillow's way for 8-bit channels: two passes with weights in fixed point, each of which rounds.
 *
 * Source: Pillow, src/libImaging/Resample.c.
 */
private fun resizeAsPillow(rows: Rows, bands: Int, across: AxisSpan, down: AxisSpan, kernel: Kernel): Resized {
    val wide = Filter(across, kernel)
    val high = Filter(down, kernel)
    val lostWidth = across.from - across.to
    val lostHeight = down.from - down.to
    // Both passes round to 8 bits, so their order changes the result. This is the order of Pillow 13.
    val scaled =
        if (lostHeight > 2 * max(lostWidth, 0)) {
            scaleWidth(scaleHeight(rows, high), bands, wide)
        } else {
            scaleHeight(scaleWidth(rows, bands, wide), high)
        }
    return Resized(scaled.size, scaled.count, scaled, levels = null)
}

/** Scales rows of [bands] interleaved channels, three or one, to another width. */
private fun scaleWidth(rows: Rows, bands: Int, filter: Filter): Rows {
    val wide = ByteArray(rows.size)
    val scale = if (bands == 3) ::scaleThree else ::scaleOne
    return Rows(filter.size * bands, rows.count) { y, into ->
        rows.read(y, wide)
        scale(wide, filter, into)
    }
}

private fun scaleThree(wide: ByteArray, filter: Filter, into: ByteArray) {
    for (x in 0 until filter.size) {
        var at = 3 * filter.first[x]
        var red = HALF
        var green = HALF
        var blue = HALF
        for (weight in filter.weights[x]) {
            red += weight * toUnsigned(wide[at])
            green += weight * toUnsigned(wide[at + 1])
            blue += weight * toUnsigned(wide[at + 2])
            at += 3
        }
        into[3 * x] = roundToByte(red)
        into[3 * x + 1] = roundToByte(green)
        into[3 * x + 2] = roundToByte(blue)
    }
}

private fun scaleOne(wide: ByteArray, filter: Filter, into: ByteArray) {
    for (x in 0 until filter.size) {
        var at = filter.first[x]
        var sum = HALF
        for (weight in filter.weights[x]) sum += weight * toUnsigned(wide[at++])
        into[x] = roundToByte(sum)
    }
}

/** Scales rows to another height. It keeps only as many rows as one new row needs. */
private fun scaleHeight(rows: Rows, filter: Filter): Rows {
    val held = Array(filter.weights.maxOf { it.size }) { ByteArray(rows.size) }
    val sums = IntArray(rows.size)
    var read = filter.first[0]
    return Rows(rows.size, filter.size) { y, into ->
        val first = filter.first[y]
        val weights = filter.weights[y]
        if (y == 0) read = first
        while (read < first + weights.size) rows.read(read, held[read++ % held.size])
        sums.fill(HALF)
        for (tap in weights.indices) {
            val row = held[(first + tap) % held.size]
            val weight = weights[tap]
            for (i in sums.indices) sums[i] += weight * toUnsigned(row[i])
        }
        for (i in sums.indices) into[i] = roundToByte(sums[i])
    }
}

/** Fraction bits of a weight: a byte times a weight of at most 1 fits into 32 bits with its sign. */
private const val WEIGHT_BITS = 22

/** Added to a sum of weighted bytes, so that it rounds to the nearest. */
private const val HALF = 1 shl WEIGHT_BITS - 1

private fun roundToByte(sum: Int): Byte {
    // Rounding can make the sum of many weights larger than 1, and some weights of a bicubic filter are negative.
    return max(0, min(255, sum shr WEIGHT_BITS)).toByte()
}

/**
 * Pillow's filter along one axis: which pixels make each scaled pixel, and with what weights in fixed point.
 *
 * When it makes a picture smaller, it is as wide as the scale: that is the antialiasing.
 */
private class Filter(span: AxisSpan, kernel: Kernel) {
    /** The number of scaled pixels to compute. */
    val size = span.size

    /** For each of them the first pixel that it is made of. */
    val first = IntArray(size)

    /** For each of them the weights of that pixel and the following ones. */
    val weights: Array<IntArray>

    init {
        val scale = span.from.toDouble() / span.to
        val stretched = max(scale, 1.0)
        weights = Array(size) { pixel ->
            val centre = (span.shown.first + pixel + 0.5) * scale
            val shares = kernel.weigh(span.from, centre, kernel.reach * stretched, 1 / stretched) { it }
            first[pixel] = shares.first
            IntArray(shares.parts.size) {
                val exact = shares.parts[it] * (1 shl WEIGHT_BITS)
                (if (exact < 0) exact - 0.5 else exact + 0.5).toInt()
            }
        }
    }
}

/** How far a new pixel's centre may be from a pixel, and what the pixel's part in it is then. */
private class Kernel(val reach: Int, private val part: (Double, (Double) -> Double) -> Double) {
    /**
     * Returns the first pixel that makes a new one, and the parts of that and the following ones, whose sum is 1.
     *
     * @param stretched the reach over which it is stretched
     * @param round to the type that the library computes in
     */
    fun weigh(
        from: Int,
        centre: Double,
        stretched: Double,
        narrowing: Double,
        round: (Double) -> Double,
    ): Shares {
        val first = max(0, round(round(centre - stretched) + 0.5).toInt())
        val end = min(from, round(round(centre + stretched) + 0.5).toInt())
        var sum = 0.0
        val parts = DoubleArray(end - first) {
            val distance = round(round(round(first + it - centre) + 0.5) * narrowing)
            part(abs(distance), round).also { share -> sum = round(sum + share) }
        }
        for (n in parts.indices) parts[n] = round(parts[n] / sum)
        return Shares(first, parts)
    }
}

private class Shares(val first: Int, val parts: DoubleArray)

private fun weighBilinear(distance: Double, round: (Double) -> Double): Double = max(0.0, round(1 - distance))

/** Keys' kernel with a = -0.5. */
private fun weighBicubic(distance: Double, round: (Double) -> Double): Double =
    when {
        distance < 1 -> {
            val slope = round(round(1.5 * distance) - 2.5)
            round(round(round(slope * distance) * distance) + 1)
        }

        distance < 2 -> {
            val slope = round(round(round(distance - 5) * distance) + 8)
            round(round(round(slope * distance) - 4) * -0.5)
        }

        else -> 0.0
    }

private fun f32(value: Double): Double = value.toFloat().toDouble()

/** Which pixels make each new pixel along an axis, and with what weights. */
private class Taps(val from: Int, size: Int, val round: (Double) -> Double) {
    /** For each of them the first pixel that it is made of. What lies outside stands for the edge. */
    val first = IntArray(size)

    /** For each of them the weights of that pixel and the following ones. */
    val weights: Array<DoubleArray> = Array(size) { NONE }

    val size: Int get() = first.size

    fun clamp(place: Int): Int = max(0, min(from - 1, place))

    private companion object {
        val NONE = DoubleArray(0)
    }
}

/** Whole numbers are exact in double as they are. */
private fun keep(value: Double): Double = value

/** [count] rows of [size] numbers. They are read from the top down; then again from the top. */
private class Numbers(val size: Int, val count: Int, val read: (Int, DoubleArray) -> Unit) {
    fun toResized(finish: (Double) -> Float): Resized {
        val exact = DoubleArray(size)
        val levels = LevelReader { y, into ->
            read(y, exact)
            for (i in into.indices) into[i] = finish(exact[i])
        }
        return Resized(size, count, bytes = null, levels)
    }
}

private fun toExactFloat(value: Double): Float = value.toFloat()

private fun roundToLevel(value: Double): Float = max(0.0, min(255.0, round(value))).toFloat()

/** Sums up weighted numbers along the rows, and then of rows. */
private fun sumBoth(rows: Rows, bands: Int, across: Taps, down: Taps): Numbers {
    val wide = sumWidth(rows, bands, across)
    val round = down.round
    return joinRows(wide, down) { held, y, into ->
        into.fill(0.0)
        for ((tap, weight) in down.weights[y].withIndex()) {
            val row = held[tap]
            for (i in into.indices) into[i] = round(into[i] + round(weight * row[i]))
        }
    }
}

private fun sumWidth(rows: Rows, bands: Int, axis: Taps): Numbers {
    val wide = ByteArray(rows.size)
    val round = axis.round
    return Numbers(axis.size * bands, rows.count) { y, into ->
        rows.read(y, wide)
        for (x in 0 until axis.size) {
            for (band in 0 until bands) {
                var sum = 0.0
                for ((tap, weight) in axis.weights[x].withIndex()) {
                    val column = axis.clamp(axis.first[x] + tap)
                    sum = round(sum + round(weight * toUnsigned(wide[column * bands + band])))
                }
                into[x * bands + band] = sum
            }
        }
    }
}

/** Makes each new row of those that it is made of. It keeps only as many as one new row needs. */
private fun joinRows(rows: Numbers, axis: Taps, join: (Array<DoubleArray>, Int, DoubleArray) -> Unit): Numbers {
    val most = axis.weights.maxOf { it.size }
    val kept = Array(most) { DoubleArray(rows.size) }
    val held = kept.copyOf()
    var read = 0
    return Numbers(rows.size, axis.size) { y, into ->
        val taps = axis.weights[y].size
        val begin = axis.clamp(axis.first[y])
        read = if (y == 0) begin else max(read, begin)
        while (read <= axis.clamp(axis.first[y] + taps - 1)) rows.read(read, kept[read++ % most])
        for (tap in 0 until taps) held[tap] = kept[axis.clamp(axis.first[y] + tap) % most]
        join(held, y, into)
    }
}

/** Takes one pixel for each new one. */
private fun pick(rows: Rows, bands: Int, columns: IntArray, lines: IntArray): Resized {
    val wide = ByteArray(rows.size)
    val levels = LevelReader { y, into ->
        if (y == 0 || lines[y] != lines[y - 1]) rows.read(lines[y], wide)
        for ((x, column) in columns.withIndex()) {
            for (band in 0 until bands) {
                into[x * bands + band] = toUnsigned(wide[column * bands + band]).toFloat()
            }
        }
    }
    return Resized(columns.size * bands, lines.size, bytes = null, levels)
}

/** Pillow adds up steps, from the first pixel on. Source: Pillow, src/libImaging/Geometry.c. */
private fun pickCentres(span: AxisSpan): IntArray {
    val step = span.from.toDouble() / span.to
    val picked = IntArray(span.size)
    var place = step * 0.5
    for (pixel in 0L..span.shown.last) {
        if (pixel >= span.shown.first) picked[(pixel - span.shown.first).toInt()] = place.toInt()
        place += step
    }
    return picked
}

private fun pickCorners(span: AxisSpan): IntArray {
    val scale = findExactScale(span)
    return IntArray(span.size) { min(floor((span.shown.first + it) * scale).toInt(), span.from - 1) }
}

/** Returns how many pixels become one, as OpenCV divides. Source: OpenCV, modules/imgproc/src/resize.cpp. */
private fun findExactScale(span: AxisSpan): Double = 1 / (span.to.toDouble() / span.from)

/** Which pixel lies before a new pixel's centre, and which part of the way to the next one it is. */
private class Between(val first: Int, val part: Double)

private fun placeLinear(pixel: Long, span: AxisSpan): Between {
    val exact = f32((pixel + 0.5) * findExactScale(span) - 0.5)
    return Between(floor(exact).toInt(), f32(exact - floor(exact)))
}

/** OpenCV's INTER_AREA where a side grows. */
private fun placeAreas(pixel: Long, span: AxisSpan): Between {
    val first = floor(pixel * findExactScale(span))
    val part = f32((pixel + 1) - (first + 1) * (span.to.toDouble() / span.from))
    return Between(first.toInt(), if (part <= 0) 0.0 else f32(part - floor(part)))
}

/** OpenCV's way between two pixels of each axis, in fixed point. */
private fun interpolate(rows: Rows, bands: Int, across: AxisSpan, down: AxisSpan, place: (Long, AxisSpan) -> Between): Resized {
    val wide = sumWidth(rows, bands, makeFixedAxis(across, place, isRow = true))
    val axis = makeFixedAxis(down, place, isRow = false)
    val joined = joinRows(wide, axis) { (upper, lower), y, into ->
        val (above, below) = axis.weights[y].map(Double::toInt)
        for (i in into.indices) {
            val high = (upper[i].toInt() shr 4) * above shr 16
            val low = (lower[i].toInt() shr 4) * below shr 16
            into[i] = (high + low + 2 shr 2).toDouble()
        }
    }
    return joined.toResized(::roundToLevel)
}

/** @param isRow whether what lies outside is moved to the edge */
private fun makeFixedAxis(span: AxisSpan, place: (Long, AxisSpan) -> Between, isRow: Boolean): Taps {
    val axis = Taps(span.from, span.size, ::keep)
    for (pixel in 0 until axis.size) {
        val found = place(span.shown.first + pixel, span)
        val isAtEdge = isRow && (found.first < 0 || found.first >= span.from - 1)
        val part = if (isAtEdge) 0.0 else found.part
        axis.first[pixel] = if (isAtEdge) axis.clamp(found.first) else found.first
        axis.weights[pixel] = doubleArrayOf(round(f32(1 - part) * LINEAR_ONE), round(part * LINEAR_ONE))
    }
    return axis
}

/**
 * OpenCV's way between four pixels of each axis.
 *
 * It joins eight numbers of a row at a time in float32, from the last row on, and those left at its end as whole ones.
 */
private fun resizeAsCubic(rows: Rows, bands: Int, across: AxisSpan, down: AxisSpan): Resized {
    val axis = makeFixedCubicAxis(down)
    val atOnce = across.to * bands / CUBIC_LANES * CUBIC_LANES - across.shown.first * bands
    val one = LINEAR_ONE.toDouble() * LINEAR_ONE
    val joined = joinRows(sumWidth(rows, bands, makeFixedCubicAxis(across)), axis) { held, y, into ->
        val weights = axis.weights[y]
        for (i in into.indices) {
            val round = if (i < atOnce) ::f32 else ::keep
            var sum = 0.0
            for (tap in weights.indices.reversed()) sum = round(round(held[tap][i] * weights[tap]) + sum)
            into[i] = if (i < atOnce) sum / one else floor(sum / one + 0.5)
        }
    }
    return joined.toResized(::roundToLevel)
}

/** How many numbers of a row OpenCV joins at a time. */
private const val CUBIC_LANES = 8

private fun makeFixedCubicAxis(span: AxisSpan): Taps {
    val axis = Taps(span.from, span.size, ::keep)
    for (pixel in 0 until axis.size) {
        val found = placeLinear(span.shown.first + pixel, span)
        val far = weighFar(f32(found.part + 1))
        val near = weighNear(found.part)
        val next = weighNear(f32(1 - found.part))
        val last = f32(f32(f32(1 - far) - near) - next)
        axis.first[pixel] = found.first - 1
        axis.weights[pixel] = doubleArrayOf(far, near, next, last).map { round(it * LINEAR_ONE) }.toDoubleArray()
    }
    return axis
}

/** 1 as a weight in OpenCV's fixed point. */
private const val LINEAR_ONE = 2048

/** OpenCV's INTER_AREA: the mean of the pixels that become one, where no side grows. */
private fun resizeAsArea(rows: Rows, bands: Int, across: AxisSpan, down: AxisSpan): Resized {
    val (wide, high) = listOf(across, down).map(::findExactScale)
    if (min(wide, high) < 1) return interpolate(rows, bands, across, down, ::placeAreas)
    if (max(abs(wide - round(wide)), abs(high - round(high))) >= Math.ulp(1.0)) {
        return sumBoth(rows, bands, makeAreaAxis(across), makeAreaAxis(down)).toResized(::roundToLevel)
    }
    val (columns, lines) = listOf(wide, high).map { round(it).toInt() }
    val sums = sumBoth(rows, bands, makeBlockAxis(across, columns), makeBlockAxis(down, lines))
    if (columns == 2 && lines == 2) return sums.toResized { (it.toInt() + 2 shr 2).toFloat() }
    val share = f32(1.0 / f32(columns.toDouble() * lines))
    // As in OpenCV, a sum has 32 bits.
    return sums.toResized { roundToLevel(f32(f32(it.toLong().toInt().toDouble()) * share)) }
}

private fun makeBlockAxis(span: AxisSpan, block: Int): Taps {
    val axis = Taps(span.from, span.size, ::keep)
    for (pixel in 0 until axis.size) {
        axis.first[pixel] = ((span.shown.first + pixel) * block).toInt()
        axis.weights[pixel] = DoubleArray(block) { 1.0 }
    }
    return axis
}

/** Which part of each pixel lies in each new one. Source: computeResizeAreaTab of OpenCV. */
private fun makeAreaAxis(span: AxisSpan): Taps {
    val axis = Taps(span.from, span.size, ::f32)
    val scale = findExactScale(span)
    for (pixel in 0 until axis.size) {
        val begin = (span.shown.first + pixel) * scale
        val end = begin + scale
        val cell = min(scale, span.from - begin)
        val last = min(floor(end).toInt(), span.from - 1)
        val inner = min(ceil(begin).toInt(), last)
        val weights = DoubleArray(last - inner + 2) { f32(1 / cell) }
        weights[0] = if (inner - begin > LEAST_PART) f32((inner - begin) / cell) else 0.0
        weights[weights.size - 1] =
            if (end - last > LEAST_PART) f32(min(min(end - last, 1.0), cell) / cell) else 0.0
        axis.first[pixel] = inner - 1
        axis.weights[pixel] = weights
    }
    return axis
}

/** The smallest part of a pixel that counts in OpenCV's areas. */
private const val LEAST_PART = 1e-3

/** Returns how many pixels become one, as float32. */
private fun findScale(span: AxisSpan): Double = f32(span.from.toDouble() / span.to)

/** Returns a new pixel's centre, counted from the first one's, as PyTorch rounds it: once. */
private fun placeOnce(pixel: Long, scale: Double): Double = f32((pixel + 0.5) * scale - 0.5)

/** The antialiasing: weights that reach over all pixels that become one. */
private fun spread(span: AxisSpan, scale: Double, kernel: Kernel): Taps {
    val axis = Taps(span.from, span.size, ::f32)
    val stretched = max(scale, 1.0)
    for (pixel in 0 until axis.size) {
        val centre = f32((span.shown.first + pixel + 0.5) * scale)
        val shares = kernel.weigh(span.from, centre, f32(kernel.reach * stretched), f32(1 / stretched), ::f32)
        axis.first[pixel] = shares.first
        axis.weights[pixel] = shares.parts
    }
    return axis
}

private fun makeLinearAxis(span: AxisSpan, place: (Long) -> Double): Taps {
    val axis = Taps(span.from, span.size, ::f32)
    for (pixel in 0 until axis.size) {
        val exact = max(0.0, place(span.shown.first + pixel))
        val part = f32(exact - floor(exact))
        axis.first[pixel] = floor(exact).toInt()
        axis.weights[pixel] = doubleArrayOf(f32(1 - part), part)
    }
    return axis
}

/** Keys' kernel with a = -0.75, over four pixels. */
private fun makeCubicAxis(span: AxisSpan): Taps {
    val axis = Taps(span.from, span.size, ::f32)
    val scale = findScale(span)
    for (pixel in 0 until axis.size) {
        val exact = placeOnce(span.shown.first + pixel, scale)
        val part = f32(exact - floor(exact))
        val rest = f32(1 - part)
        axis.first[pixel] = floor(exact).toInt() - 1
        axis.weights[pixel] =
            doubleArrayOf(weighFar(f32(part + 1)), weighNear(part), weighNear(rest), weighFar(f32(rest + 1)))
    }
    return axis
}

private fun weighNear(distance: Double): Double {
    val slope = f32(f32(1.25 * distance) - 2.25)
    return f32(f32(f32(slope * distance) * distance) + 1)
}

private fun weighFar(distance: Double): Double {
    val slope = f32(f32(f32(-0.75 * distance) + 3.75) * distance)
    return f32(f32(f32(slope - 6) * distance) + 3)
}
