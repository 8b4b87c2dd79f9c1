import kotlin.math.exp
import kotlin.math.floor
import kotlin.math.max
import kotlin.math.min
import kotlin.math.sqrt
import org.json.JSONArray
import org.json.JSONObject

/**
 * One class of a classification.
 *
 * @property index of the class, from 0
 * @property label its name; null where the bundle has no labels, or fewer labels than classes
 * @property score its score, after the activation that the project names, if any
 */
data class Classification(
    val index: Int,
    val label: String?,
    val score: Float,
) {
    override fun toString(): String = "${label ?: index} $score"
}

/**
 * One object in a picture.
 *
 * The edges are in pixels of the caller's picture after turning, counted from its upper left corner, and lie
 * within the picture.
 *
 * @property index of the object's class, from 0
 * @property label the name of its class; null where the bundle has no labels, or fewer labels than classes
 * @property score from 0 to 1 for most models
 * @property left edge
 * @property top edge
 * @property right edge
 * @property bottom edge
 * @property keypoints in the model's order; empty where it gives none
 */
data class Detection(
    val index: Int,
    val label: String?,
    val score: Float,
    val left: Float,
    val top: Float,
    val right: Float,
    val bottom: Float,
    val keypoints: List<Keypoint> = emptyList(),
) {
    override fun toString(): String = "${label ?: index} $score ($left, $top, $right, $bottom)"
}

/**
 * The class at each pixel of the caller's picture after turning.
 *
 * @property classes row by row from the top, `width * height` of them; the values 128 to 255 are negative bytes
 * @property labels the names of the classes; empty where the bundle has none
 * @throws IllegalArgumentException if there is not one class for each pixel
 */
class Mask(val width: Int, val height: Int, val classes: ByteArray, val labels: List<String> = emptyList()) {
    init {
        require(classes.size.toLong() == width.toLong() * height) { "${classes.size} classes for $width x $height pixels" }
    }

    /** Returns the class at a pixel: 0 to 254, or [UNSEEN]. */
    operator fun get(x: Int, y: Int): Int = toUnsigned(classes[y * width + x])

    override fun equals(other: Any?): Boolean =
        other is Mask && other.width == width && other.height == height && other.labels == labels &&
            other.classes.contentEquals(classes)

    override fun hashCode(): Int = 31 * width + classes.contentHashCode()

    override fun toString(): String = "mask of $width x $height"

    companion object {
        /** In the place of a class: what the model did not see, because it was cut away. */
        const val UNSEEN = 255
    }
}

/**
 * One decision.
 *
 * @property score its probability
 * @property positive whether the score reaches the project's threshold
 */
data class Decision(
    val score: Float,
    val positive: Boolean,
) {
    override fun toString(): String = "${if (positive) "yes" else "no"} $score"
}

/**
 * What answers contain. Where a value is null, the project's own counts.
 *
 * @property score the least score of a class or an object, from 0 to 1
 * @property iou of two objects of a class that overlap by more than this, the better one stays; from 0 to 1
 * @property most how many objects, at most
 * @property top how many classes, at most
 * @property allow the labels of the classes that count; null for all
 * @throws IllegalArgumentException if a value is out of its range
 */
data class AnswerOptions(
    val score: Double? = null,
    val iou: Double? = null,
    val most: Int? = null,
    val top: Int? = null,
    val allow: Collection<String>? = null,
) {
    init {
        for ((name, share) in listOf("score" to score, "iou" to iou)) {
            require(share == null || share in 0.0..1.0) { "the option '$name' is $share, expected 0 to 1" }
        }
        for ((name, count) in listOf("most" to most, "top" to top)) {
            require(count == null || count >= 1) { "the option '$name' is $count, expected 1 or more" }
        }
    }

    /**
     * Returns whether each class counts, by index; null where all do.
     *
     * @throws IllegalArgumentException if there is no class of such a label.
     */
    internal fun findAllowed(labels: List<String>): BooleanArray? {
        val wanted = allow ?: return null
        require(labels.isNotEmpty()) { "the option 'allow' names labels, and the output has none: leave it out" }
        for (label in wanted) {
            require(label in labels) {
                val more = if (labels.size > MOST_LISTED) " and ${labels.size - MOST_LISTED} more" else ""
                val listed = labels.take(MOST_LISTED).joinToString { "'$it'" }
                "the option 'allow' names '$label', and the labels are $listed$more"
            }
        }
        return BooleanArray(labels.size) { labels[it] in wanted }
    }

    private companion object {
        const val MOST_LISTED = 10
    }
}

/** Options that leave all to the project. */
internal val DEFAULTS = AnswerOptions()

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
internal fun findClasses(
    output: Values,
    description: JSONObject,
    labels: List<String>,
    options: AnswerOptions = DEFAULTS,
): List<Classification> {
    val count = output.count
    require(count > 0 && count.toLong() == (output.shape.maxOrNull() ?: 1L)) {
        "the output is ${output.shape.contentToString()}: a classification is one row of scores, so that" +
            " the classes of several samples are asked for one sample at a time"
    }
    val scores = Scores(output, count, description.getString("activation")).at(0)
    val allowed = options.findAllowed(labels)
    val least = options.score
    val best = Best(min(options.top ?: description.getInt("top"), count))
    for (index in 0 until count) {
        if (allowed != null && !allowed.getOrElse(index) { false }) continue
        // Not so where the score is no number.
        if (least != null && !(scores[index] >= least)) continue
        // By the values: an activation keeps their order, but may round two of them to the same score.
        best.add(index, output[index])
    }
    return best.indices.map { Classification(it, labels.getOrNull(it), scores[it].toFloat()) }
}

/** The values of a row of an output after its activation. */
internal class Scores(private val output: Values, private val count: Int, private val activation: String) {
    private var first = 0
    private var highest = Double.NEGATIVE_INFINITY
    private var sum = 0.0

    /** Moves to the row that begins with a value. */
    fun at(place: Int): Scores {
        first = place
        if (activation == "softmax") {
            highest = Double.NEGATIVE_INFINITY
            sum = 0.0
            for (n in 0 until count) highest = max(highest, output[first + n])
            for (n in 0 until count) sum += exp(output[first + n] - highest)
        }
        return this
    }

    operator fun get(n: Int): Double = activate(output[first + n])

    private fun activate(value: Double): Double =
        when (activation) {
            "softmax" -> exp(value - highest) / sum
            "sigmoid" -> 1 / (1 + exp(-value))
            else -> value
        }
}

/** The indices of the highest values, at most [most], best first; equal values keep their order, NaN comes last. */
private class Best(most: Int) {
    private val found = IntArray(most)
    private val values = DoubleArray(most)
    private var count = 0

    val indices: List<Int> get() = found.take(count)

    fun add(index: Int, value: Double) {
        if (count == found.size && !isBetter(value, values[count - 1])) return
        var place = if (count < found.size) count++ else count - 1
        while (place > 0 && isBetter(value, values[place - 1])) {
            found[place] = found[place - 1]
            values[place] = values[place - 1]
            place--
        }
        found[place] = index
        values[place] = value
    }

    // Comparisons of primitive numbers take -0.0 and 0.0 as equal.
    private fun isBetter(value: Double, than: Double): Boolean = value > than || (than.isNaN() && !value.isNaN())
}

/**
 * Returns the decision of each value, in order.
 *
 * @param description the output's entry in the manifest's `output_descriptions`
 */
internal fun decide(output: Values, description: JSONObject): List<Decision> {
    val scores = Scores(output, output.count, description.getString("activation")).at(0)
    val threshold = description.getDouble("threshold")
    return List(output.count) { Decision(scores[it].toFloat(), scores[it] >= threshold) }
}

/**
 * Returns the objects in a picture, best first; among equal scores, in the output's order.
 *
 * A row of the output is one object of the class with its best score. Rows below `score` are left out, and so are
 * rows with a NaN or an infinite value, and those whose class is not allowed. Of two objects of one class that
 * overlap by more than `iou` (intersection over union) the better one is kept, and at most `most` in all.
 *
 * @param outputs boxes and scores, as the description's `layout` has them: the described output, then those that it is
 *     read with
 * @param description the output's entry in the manifest's `output_descriptions`
 * @param labels by index; where there are any, their number is that of the classes
 * @param placement where the picture lies in the input
 * @param priors those of the file that the description names, if any
 * @throws IllegalArgumentException if an output has another shape
 */
internal fun findObjects(
    outputs: List<Values>,
    description: JSONObject,
    labels: List<String>,
    placement: Placement,
    options: AnswerOptions = DEFAULTS,
    priors: DoubleArray? = null,
): List<Detection> {
    val rows =
        if (outputs.size == 1) {
            readRows(outputs[0], description, labels, placement)
        } else {
            SeveralRows(outputs, SeveralDescription(description, labels.size, placement, priors))
        }
    val least = options.score ?: description.getDouble("score")
    val allowed = options.findAllowed(labels)
    val found = mutableListOf<Candidate>()
    for (row in 0 until rows.count) {
        val index = rows.findClass(row)
        if (index < 0 || (allowed != null && !allowed.getOrElse(index) { false })) continue
        val score = rows.score(row, index)
        if (score < least || !score.isFinite()) continue
        val edges = rows.findEdges(row)
        val points = rows.findPoints(row)
        if (edges.all { it.isFinite() } && points.all { it.isFinite() }) found += Candidate(index, score, edges, points)
    }
    // Sorting keeps the order of equal scores, of which -0.0 and 0.0 are two.
    found.sortWith { a, b -> (b.score > a.score).compareTo(a.score > b.score) }
    val most = options.most ?: description.getInt("most")
    val kept = if (rows.overlap) dropOverlaps(found, options.iou ?: description.getDouble("iou"), most) else found.take(most)
    val keypoints = KeypointShape.of(description)
    return kept.map {
        val (left, top, right, bottom) = moveToPicture(it.edges, placement)
        val moved = keypoints.move(it.points, placement)
        Detection(it.index, labels.getOrNull(it.index), it.score.toFloat(), left, top, right, bottom, moved)
    }
}

/** Boxes with their scores, one box per row. */
internal interface BoxRows {
    val count: Int

    /** Whether boxes of one object may overlap. */
    val overlap: Boolean

    /** Returns the class of a row, or -1 where the row is no object. */
    fun findClass(row: Int): Int

    /** Returns a row's score for a class; NaN counts as minus infinity. */
    fun score(row: Int, index: Int): Double

    /** Returns left, top, right and bottom of a row's box in pixels of the input. */
    fun findEdges(row: Int): DoubleArray

    /** Returns the numbers of a row's keypoints, in pixels of the input. */
    fun findPoints(row: Int): DoubleArray = doubleArrayOf()
}

private fun readRows(output: Values, description: JSONObject, labels: List<String>, placement: Placement): BoxRows {
    val points = KeypointShape.of(description).size
    return when (val layout = description.getString("layout")) {
        "end2end" -> FinalRows(output, labels.size, points)
        "yolox" -> GridRows(CentredRows(output, layout, labels.size), description.getJSONArray("strides"), placement)
        else -> CentredRows(output, layout, labels.size, points)
    }
}

/**
 * Centre, width, height, then a score per class: (1, 4 + C, N) or (1, N, 4 + C) for the layout `yolo`, (1, N, 5 + C) for
 * `yolov5` and `yolox`, which have the score that there is an object before those of the classes. [points] numbers of
 * keypoints may come last.
 */
private class CentredRows(
    private val output: Values,
    layout: String,
    labels: Int,
    private val points: Int = 0,
) : BoxRows {
    private val hasObjectScore = layout != "yolo"
    private val before = if (hasObjectScore) 5 else 4
    private val width: Int
    private val isTransposed: Boolean
    override val count: Int
    override val overlap = true

    init {
        val shape = output.shape
        val (rows, columns) = if (shape.size == 3 && shape[0] == 1L) shape[1].toInt() to shape[2].toInt() else 0 to 0
        // Where both axes have that size, the first one counts, as in ultralytics' exports.
        // An empty axis contains no boxes: there is no object.
        val smaller = if (min(rows, columns) > 0) min(rows, columns) else max(rows, columns)
        val others = before + points
        val size = if (labels > 0) others + labels else smaller
        isTransposed = !hasObjectScore && rows == size
        width = if (isTransposed) rows else columns
        count = if (isTransposed) columns else rows
        require(width > others && (labels == 0 || width == others + labels)) {
            val wanted = if (labels > 0) "${others + labels}" else "$others and a score per class"
            "the output is ${shape.contentToString()}: the layout '$layout' of a detection has one" +
                " picture, with $wanted values for each box"
        }
    }

    fun value(row: Int, column: Int): Double =
        output[if (isTransposed) column * count + row else row * width + column]

    override fun score(row: Int, index: Int): Double {
        val score = value(row, before + index)
        val product = if (hasObjectScore) score * value(row, 4) else score
        return if (product.isNaN()) Double.NEGATIVE_INFINITY else product
    }

    /** Returns the class with a row's best score; among equal scores, the first. */
    override fun findClass(row: Int): Int {
        var best = 0
        var highest = score(row, 0)
        for (index in 1 until width - before - points) {
            val score = score(row, index)
            if (score > highest) {
                best = index
                highest = score
            }
        }
        return best
    }

    override fun findEdges(row: Int): DoubleArray = toEdges(value(row, 0), value(row, 1), value(row, 2), value(row, 3))

    override fun findPoints(row: Int): DoubleArray = DoubleArray(points) { value(row, width - points + it) }
}

/** Returns left, top, right and bottom of a box. */
internal fun toEdges(x: Double, y: Double, width: Double, height: Double): DoubleArray =
    doubleArrayOf(x - width / 2, y - height / 2, x + width / 2, y + height / 2)

/** Rows whose box is relative to a cell of a grid, one grid per stride, as YOLOX exports them. */
private class GridRows(private val rows: CentredRows, strides: JSONArray, placement: Placement) : BoxRows by rows {
    private val strides = IntArray(strides.length()) { strides.getInt(it) }
    private val width = placement.width
    private val height = placement.height

    init {
        val wanted = this.strides.sumOf { (width / it) * (height / it) }
        require(rows.count == wanted) {
            "the output has ${rows.count} boxes: with the strides ${this.strides.contentToString()} an input of" +
                " $width x $height pixels has $wanted"
        }
    }

    override fun findEdges(row: Int): DoubleArray {
        var cell = row
        val stride = strides.first { stride ->
            val cells = (width / stride) * (height / stride)
            (cell < cells).also { isHere -> if (!isHere) cell -= cells }
        }
        val across = width / stride
        return toEdges(
            (rows.value(row, 0) + cell % across) * stride,
            (rows.value(row, 1) + cell / across) * stride,
            exp(rows.value(row, 2)) * stride,
            exp(rows.value(row, 3)) * stride,
        )
    }
}

/**
 * (1, N, 6): left, top, right and bottom in pixels of the input, score and class of objects that do not overlap; then
 * [points] numbers of keypoints.
 */
private class FinalRows(
    private val output: Values,
    private val labels: Int,
    private val points: Int,
) : BoxRows {
    private val width = 6 + points
    override val count: Int
    override val overlap = false

    init {
        val shape = output.shape
        require(shape.size == 3 && shape[0] == 1L && shape[2] == width.toLong()) {
            "the output is ${shape.contentToString()}: the layout 'end2end' of a detection has one picture, with $width" +
                " values for each box"
        }
        count = shape[1].toInt()
    }

    override fun findClass(row: Int): Int = toClass(output[width * row + 5], labels)

    override fun score(row: Int, index: Int): Double {
        val score = output[width * row + 4]
        return if (score.isNaN()) Double.NEGATIVE_INFINITY else score
    }

    override fun findEdges(row: Int): DoubleArray = DoubleArray(4) { output[width * row + it] }

    override fun findPoints(row: Int): DoubleArray = DoubleArray(points) { output[width * row + 6 + it] }
}

/** Returns the class that a number stands for, or -1 where it is none. */
internal fun toClass(found: Double, labels: Int): Int {
    val isClass = found >= 0 && found == floor(found) && found < if (labels > 0) labels else Int.MAX_VALUE
    return if (isClass) found.toInt() else -1
}

/** An object that may be kept; its edges are in pixels of the input. */
private class Candidate(val index: Int, val score: Double, val edges: DoubleArray, val points: DoubleArray) {
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

/** Converts one coordinate from pixels of the input to pixels of the picture, and clips it to the picture. */
internal fun moveToPicture(edge: Double, offset: Long, scaled: Long, size: Int): Float =
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
internal fun makeVectors(output: Values, description: JSONObject, mask: Values?): List<FloatArray> {
    val pooling = description.getString("pooling")
    if (pooling == "none") {
        val size = output.shape.drop(1).fold(1L) { size, axis -> size * axis }.toInt()
        val samples = output.shape.firstOrNull() ?: 1L
        return List(samples.toInt()) { sample ->
            makeVector(DoubleArray(size) { output[sample * size + it] }, description)
        }
    }
    requirePoolable(output.shape, mask?.shape)
    require(pooling != "cls" || output.shape[1] > 0) {
        "the output is ${output.shape.contentToString()}: the pooling 'cls' takes the first position," +
            " and there is none"
    }
    val (samples, positions, width) = output.shape.map { it.toInt() }
    return List(samples) { sample ->
        val first = sample * positions
        val counted = (first until first + positions).filter { mask == null || mask[it] != 0.0 }
        val pooled = DoubleArray(width) { column ->
            pool(pooling, first, counted) { position -> output[position * width + column] }
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

/**
 * Returns the class at each pixel of a picture, after turning.
 *
 * Places hold a class as an integer, or scores of classes, of which the highest counts (the first of equal ones, NaN
 * never), or one value, which is class 1 from the description's `threshold` on.
 *
 * @param output (1, h, w), or (1, C, h, w), or with the description's `axis` -1 (1, h, w, C)
 * @param description the output's entry in the manifest's `output_descriptions`
 * @param labels by index
 * @param placement where the picture lies in the input
 * @throws IllegalArgumentException if the output has another shape, or a class is larger than 254
 */
internal fun findMask(output: Values, description: JSONObject, labels: List<String>, placement: Placement): Mask {
    val map = ClassMap(output, description)
    val (across, down) = map.width to map.height
    val columns = IntArray(placement.pictureWidth) {
        findCell(it, placement.left, placement.scaledWidth, placement.pictureWidth, placement.width, across)
    }
    val classes = ByteArray(placement.pictureWidth * placement.pictureHeight) { Mask.UNSEEN.toByte() }
    val row = ByteArray(across)
    var read = -1
    for (y in 0 until placement.pictureHeight) {
        val cell = findCell(y, placement.top, placement.scaledHeight, placement.pictureHeight, placement.height, down)
        if (cell < 0) continue
        if (cell != read) map.read(cell, row)
        read = cell
        for (x in columns.indices) {
            if (columns[x] >= 0) classes[y * columns.size + x] = row[columns[x]]
        }
    }
    return Mask(placement.pictureWidth, placement.pictureHeight, classes, labels)
}

/** Returns which of [cells] along an axis of the input the middle of a picture's pixel lies in; -1 for none. */
private fun findCell(pixel: Int, offset: Long, scaled: Long, size: Int, input: Int, cells: Int): Int {
    val place = (pixel + 0.5) * scaled / size + offset
    return if (place < 0 || place >= input) -1 else min((place * cells / input).toInt(), cells - 1)
}

/** The class at each place of an output. */
private class ClassMap(private val output: Values, description: JSONObject) : RowReader {
    private val threshold = description.getDouble("threshold")
    private val classes: Int
    private val toNext: Int
    private val toColumn: Int
    val width: Int
    val height: Int

    init {
        val shape = output.shape.map { it.toInt() }
        require(shape.size in 3..4 && shape[0] == 1 && 0 !in shape) {
            "the output is ${output.shape.contentToString()}: a mask is that of one picture, [1, h, w], [1, C, h, w]" +
                " or [1, h, w, C]"
        }
        val isLast = shape.size == 4 && description.getInt("axis") == -1
        classes = if (shape.size == 3) 1 else shape[if (isLast) 3 else 1]
        require(output.areFloats || classes == 1) { "the output has $classes integers for each place: a mask has one" }
        val (high, wide) = shape.drop(1).let { if (shape.size == 3 || isLast) it else it.drop(1) }
        height = high
        width = wide
        toNext = if (isLast) 1 else width * height
        toColumn = if (isLast) classes else 1
    }

    override fun read(y: Int, into: ByteArray) {
        for (x in 0 until width) {
            val found = findClass((y * width + x) * toColumn)
            require(found in 0..254) { "the output has the class $found: a mask has 0 to 254" }
            into[x] = found.toByte()
        }
    }

    private fun findClass(at: Int): Int {
        if (classes == 1) return if (output.areFloats) (if (output[at] >= threshold) 1 else 0) else output[at].toInt()
        var best = 0
        var highest = Double.NEGATIVE_INFINITY
        for (index in 0 until classes) {
            val value = output[at + index * toNext]
            if (value > highest) {
                best = index
                highest = value
            }
        }
        return best
    }
}

/**
 * The values of a tensor, the last axis innermost.
 *
 * @property areFloats whether they are not integers or booleans
 */
internal class Values(val shape: LongArray, val areFloats: Boolean, private val read: Elements) {
    /** How many values there are. */
    val count: Int get() = shape.fold(1L) { size, axis -> size * axis }.toInt()

    operator fun get(index: Int): Double = read.get(index)

    companion object {
        fun of(tensor: Tensor): Values =
            Values(tensor.shape, tensor is FloatTensor || tensor is DoubleTensor, readElements(tensor))
    }
}

/** A tensor's elements as Double. */
internal fun interface Elements {
    fun get(index: Int): Double
}

private fun readElements(tensor: Tensor): Elements =
    when (tensor) {
        is FloatTensor -> Elements { tensor.data[it].toDouble() }
        is DoubleTensor -> Elements { tensor.data[it] }
        is ByteTensor -> Elements { tensor.data[it].toDouble() }
        is UByteTensor -> Elements { toUnsigned(tensor.data[it]).toDouble() }
        is ShortTensor -> Elements { tensor.data[it].toDouble() }
        is IntTensor -> Elements { tensor.data[it].toDouble() }
        is LongTensor -> Elements { tensor.data[it].toDouble() }
        is BooleanTensor -> Elements { if (tensor.data[it]) 1.0 else 0.0 }
    }
