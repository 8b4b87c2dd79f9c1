import kotlin.math.exp
import kotlin.math.max
import kotlin.math.min
import kotlin.math.sqrt
import org.json.JSONObject

/**
 * One class of a classification.
 *
 * @property index of the class, from 0
 * @property label its name; null where the bundle has no labels, or fewer labels than classes
 * @property score its score, after the activation that the project names, if any
 */
class Classification internal constructor(
    val index: Int,
    val label: String?,
    val score: Float,
) {
    override fun toString(): String = "${label ?: index} $score"
}

/**
 * One object in a picture.
 *
 * The edges are in pixels of the caller's picture, counted from its upper left corner, and lie
 * within the picture.
 *
 * @property index of the object's class, from 0
 * @property label the name of its class; null where the bundle has no labels, or fewer labels than classes
 * @property score from 0 to 1 for most models
 * @property left edge
 * @property top edge
 * @property right edge
 * @property bottom edge
 */
class Detection internal constructor(
    val index: Int,
    val label: String?,
    val score: Float,
    val left: Float,
    val top: Float,
    val right: Float,
    val bottom: Float,
) {
    override fun toString(): String = "${label ?: index} $score ($left, $top, $right, $bottom)"
}

/** Returns the labels in a file's text, one per line, without a byte order mark and carriage returns. */
internal fun readLabels(text: String): List<String> {
    val lines = text.replace("\uFEFF", "").replace("\r", "").split("\n")
    return if (lines.last().isEmpty()) lines.dropLast(1) else lines
}

/**
 * Returns the best classes of one sample, best first; among equal scores, the lower index first.
 *
 * @param output scores or logits: one axis has any size, all others have size 1
 * @param description the output's entry in the manifest's `output_descriptions`
 * @param labels by index
 * @throws IllegalArgumentException if the output has another shape
 */
internal fun findClasses(output: Tensor, description: JSONObject, labels: List<String>): List<Classification> {
    val elements = readElements(output)
    val count = output.shape.fold(1L) { size, axis -> size * axis }.toInt()
    require(count > 0 && count.toLong() == (output.shape.maxOrNull() ?: 1L)) {
        "the output is ${output.shape.contentToString()}: a classification is one row of scores, so that" +
            " the classes of several samples are asked for one sample at a time"
    }
    val values = DoubleArray(count) { elements[it] }
    val scores = activate(values, description.getString("activation"))
    // Sorted by the values: an activation keeps their order, but may round two of them to the same score.
    return sortBestFirst(values, values.indices).take(description.getInt("top")).map {
        Classification(it, labels.getOrNull(it), scores[it].toFloat())
    }
}

private fun activate(values: DoubleArray, activation: String): DoubleArray =
    when (activation) {
        "softmax" -> {
            val highest = values.max()
            val powers = DoubleArray(values.size) { exp(values[it] - highest) }
            val sum = powers.sum()
            DoubleArray(values.size) { powers[it] / sum }
        }
        "sigmoid" -> DoubleArray(values.size) { 1 / (1 + exp(-values[it])) }
        else -> values
    }

/** Returns indices, the highest value first; equal values keep their order, NaN comes last. */
private fun sortBestFirst(values: DoubleArray, indices: Iterable<Int>): List<Int> =
    indices.sortedWith { a, b ->
        // Comparisons of primitive numbers take -0.0 and 0.0 as equal.
        when {
            values[a] > values[b] -> -1
            values[a] < values[b] -> 1
            else -> values[a].isNaN().compareTo(values[b].isNaN())
        }
    }

/**
 * Returns the objects in a picture, best first; among equal scores, in the output's order.
 *
 * A row of the output is one object of the class with its best score. Rows below the description's
 * `score` are left out, and so are rows with a NaN or an infinite value. Of two objects of one class that
 * overlap by more than `iou` (intersection over union) the better one is kept, and at most `most` in all.
 *
 * @param output (1, 4 + C, N) or (1, N, 4 + C) for the layout `yolo`, (1, N, 5 + C) for `yolov5`:
 *     centre, width and height in pixels of the input, for `yolov5` the score that there is an object,
 *     then a score per class
 * @param description the output's entry in the manifest's `output_descriptions`
 * @param labels by index; where there are any, their number is C
 * @param placement where the picture lies in the input
 * @throws IllegalArgumentException if the output has another shape
 */
internal fun findObjects(
    output: Tensor,
    description: JSONObject,
    labels: List<String>,
    placement: Placement,
): List<Detection> {
    val rows = DetectionRows(output, description.getString("layout"), labels.size)
    val least = description.getDouble("score")
    val classes = IntArray(rows.count) { rows.bestClass(it) }
    val scores = DoubleArray(rows.count) { rows.score(it, classes[it]) }
    val good = (0 until rows.count).filter { scores[it] >= least && scores[it].isFinite() && rows.isFinite(it) }
    val best = sortBestFirst(scores, good).map { Candidate(classes[it], scores[it], rows.edges(it)) }
    return dropOverlaps(best, description.getDouble("iou"), description.getInt("most")).map {
        val (left, top, right, bottom) = moveToPicture(it.edges, placement)
        Detection(it.index, labels.getOrNull(it.index), it.score.toFloat(), left, top, right, bottom)
    }
}

/** The rows of a detection's output, one box per row. */
private class DetectionRows(output: Tensor, layout: String, labels: Int) {
    private val elements = readElements(output)
    private val hasObjectScore = layout == "yolov5"
    private val before = if (hasObjectScore) 5 else 4
    private val width: Int
    private val isTransposed: Boolean

    /** The number of rows. */
    val count: Int

    init {
        val shape = output.shape
        val (rows, columns) = if (shape.size == 3 && shape[0] == 1L) shape[1].toInt() to shape[2].toInt() else 0 to 0
        // Where both axes have that size, the first one counts, as in ultralytics' exports.
        // An empty axis contains no boxes: there is no object.
        val smaller = if (min(rows, columns) > 0) min(rows, columns) else max(rows, columns)
        val size = if (labels > 0) before + labels else smaller
        isTransposed = !hasObjectScore && rows == size
        width = if (isTransposed) rows else columns
        count = if (isTransposed) columns else rows
        require(width > before && (labels == 0 || width == before + labels)) {
            val wanted = if (labels > 0) "${before + labels}" else "$before and a score per class"
            "the output is ${shape.contentToString()}: the layout '$layout' of a detection has one" +
                " picture, with $wanted values for each box"
        }
    }

    private fun value(row: Int, column: Int): Double =
        elements[if (isTransposed) column * count + row else row * width + column]

    /** Returns a row's score for a class; NaN counts as minus infinity. */
    fun score(row: Int, index: Int): Double {
        val score = value(row, before + index)
        val product = if (hasObjectScore) score * value(row, 4) else score
        return if (product.isNaN()) Double.NEGATIVE_INFINITY else product
    }

    /** Returns the class with a row's best score; among equal scores, the first. */
    fun bestClass(row: Int): Int {
        var best = 0
        var highest = score(row, 0)
        for (index in 1 until width - before) {
            val score = score(row, index)
            if (score > highest) {
                best = index
                highest = score
            }
        }
        return best
    }

    /** Returns left, top, right and bottom of a row's box in pixels of the input. */
    fun edges(row: Int): DoubleArray {
        val halfWidth = value(row, 2) / 2
        val halfHeight = value(row, 3) / 2
        val x = value(row, 0)
        val y = value(row, 1)
        return doubleArrayOf(x - halfWidth, y - halfHeight, x + halfWidth, y + halfHeight)
    }

    /** Returns whether all edges of a row's box are finite. */
    fun isFinite(row: Int): Boolean = edges(row).all { it.isFinite() }
}

/** An object that may be kept; its edges are in pixels of the input. */
private class Candidate(val index: Int, val score: Double, val edges: DoubleArray) {
    private val area: Double = side(edges[0], edges[2]) * side(edges[1], edges[3])

    fun overlaps(other: Candidate, iou: Double): Boolean {
        val across = side(max(edges[0], other.edges[0]), min(edges[2], other.edges[2]))
        val down = side(max(edges[1], other.edges[1]), min(edges[3], other.edges[3]))
        val intersection = across * down
        // Multiplies instead of dividing: the union of two boxes without area is 0.
        return intersection > iou * (area + other.area - intersection)
    }

    private fun side(from: Double, to: Double): Double = max(to - from, 0.0)
}

/** Returns at most [most] candidates, without those that overlap an earlier one of the same class. */
private fun dropOverlaps(candidates: List<Candidate>, iou: Double, most: Int): List<Candidate> {
    val kept = mutableListOf<Candidate>()
    for (candidate in candidates) {
        if (kept.size == most) break
        if (kept.none { it.index == candidate.index && it.overlaps(candidate, iou) }) kept += candidate
    }
    return kept
}

/** Converts edges from pixels of the input to pixels of the picture, and clips them to the picture. */
private fun moveToPicture(edges: DoubleArray, place: Placement): List<Float> =
    edges.mapIndexed { index, edge ->
        if (index % 2 == 0) {
            moveToPicture(edge, place.left, place.scaledWidth, place.pictureWidth)
        } else {
            moveToPicture(edge, place.top, place.scaledHeight, place.pictureHeight)
        }
    }

private fun moveToPicture(edge: Double, offset: Long, scaled: Long, size: Int): Float =
    ((edge - offset) * size / scaled).coerceIn(0.0, size.toDouble()).toFloat()

/**
 * Returns one vector per sample.
 *
 * @param output (B, S, D): the description's `pooling` makes one vector of the S positions; with pooling
 *     `none` any shape: all values of a sample are its vector
 * @param description the output's entry in the manifest's `output_descriptions`; `normalize` leaves a
 *     vector of zeros as it is
 * @param mask (B, S): positions with 0 do not count; null where all positions count. Where no position
 *     counts, the vector is zeros
 * @throws IllegalArgumentException if the output or the mask has another shape
 */
internal fun makeVectors(output: Tensor, description: JSONObject, mask: Tensor?): List<FloatArray> {
    val pooling = description.getString("pooling")
    val elements = readElements(output)
    if (pooling == "none") {
        val size = output.shape.drop(1).fold(1L) { size, axis -> size * axis }.toInt()
        val samples = output.shape.firstOrNull() ?: 1L
        return List(samples.toInt()) { sample ->
            makeVector(DoubleArray(size) { elements[sample * size + it] }, description)
        }
    }
    requirePoolable(output.shape, mask?.shape)
    require(pooling != "cls" || output.shape[1] > 0) {
        "the output is ${output.shape.contentToString()}: the pooling 'cls' takes the first position," +
            " and there is none"
    }
    val (samples, positions, width) = output.shape.map { it.toInt() }
    val isCounted = mask?.let(::readElements)
    return List(samples) { sample ->
        val first = sample * positions
        val counted = (first until first + positions).filter { isCounted == null || isCounted[it] != 0.0 }
        val pooled = DoubleArray(width) { column ->
            pool(pooling, first, counted) { position -> elements[position * width + column] }
        }
        makeVector(pooled, description)
    }
}

private fun requirePoolable(shape: LongArray, maskShape: LongArray?) {
    require(shape.size == 3 && (maskShape == null || maskShape.contentEquals(shape.copyOf(2)))) {
        val ofMask = maskShape?.let { " and its mask ${it.contentToString()}" }.orEmpty()
        "the output is ${shape.contentToString()}$ofMask: pooling takes [batch, positions, values]" +
            " and a mask [batch, positions]"
    }
}

private fun pool(pooling: String, first: Int, counted: List<Int>, value: (position: Int) -> Double): Double =
    when {
        pooling == "cls" -> value(first)
        counted.isEmpty() -> 0.0
        pooling == "mean" -> counted.sumOf(value) / counted.size
        else -> counted.maxOf(value)
    }

private fun makeVector(values: DoubleArray, description: JSONObject): FloatArray {
    val length = if (description.getBoolean("normalize")) sqrt(values.sumOf { it * it }) else 1.0
    return FloatArray(values.size) { (if (length > 0) values[it] / length else values[it]).toFloat() }
}

/** A tensor's elements as Double, the last axis innermost. */
private fun interface Elements {
    operator fun get(index: Int): Double
}

private fun readElements(tensor: Tensor): Elements =
    when (tensor) {
        is FloatTensor -> Elements { tensor.data[it].toDouble() }
        is DoubleTensor -> Elements { tensor.data[it] }
        is ByteTensor -> Elements { tensor.data[it].toDouble() }
        is UByteTensor -> Elements { (tensor.data[it].toInt() and 0xff).toDouble() }
        is ShortTensor -> Elements { tensor.data[it].toDouble() }
        is IntTensor -> Elements { tensor.data[it].toDouble() }
        is LongTensor -> Elements { tensor.data[it].toDouble() }
        is BooleanTensor -> Elements { if (tensor.data[it]) 1.0 else 0.0 }
    }
