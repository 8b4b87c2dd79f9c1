import kotlin.math.exp
import org.json.JSONObject

private const val NUMBER = "[ \\t]*-?[0-9]+(?:\\.[0-9]+)?(?:[eE][-+]?[0-9]+)?[ \\t]*"
private val PRIOR = Regex("$NUMBER,$NUMBER,$NUMBER,$NUMBER")

/** Returns the outputs that an answer is read from beside the described one. */
internal fun listReadToo(description: JSONObject): List<String> =
    listOf("scores", "classes").filter(description::has).map(description::getString)

/**
 * Returns the boxes in a file's text, one per line: centre x and y, width and height, all in one row.
 *
 * @throws IllegalArgumentException if a line is none.
 */
internal fun readPriors(text: String): DoubleArray {
    val lines = readLabels(text)
    val found = DoubleArray(4 * lines.size)
    for ((number, line) in lines.withIndex()) {
        require(PRIOR.matches(line)) { "line ${number + 1} is '$line', expected four numbers: cx,cy,w,h" }
        line.split(",").forEachIndexed { place, value -> found[4 * number + place] = value.trim().toDouble() }
    }
    return found
}

/** What the layout `ssd` says of a box, and how many labels there are. */
internal class SeveralDescription(json: JSONObject, val labels: Int, placement: Placement, val priors: DoubleArray?) {
    val activation: String = json.getString("activation")

    /** How many classes are no object. */
    val background = if (json.getBoolean("background")) 1 else 0
    private val form = json.optString("box")
    private val variances = json.optJSONArray("variances")
    private val ofCentre = variances?.getDouble(0) ?: 0.0
    private val ofSize = variances?.getDouble(1) ?: 0.0
    private val isNormalized = json.getBoolean("normalized")
    private val width = if (isNormalized) placement.width.toDouble() else 1.0
    private val height = if (isNormalized) placement.height.toDouble() else 1.0

    /** Returns left, top, right and bottom in pixels of the input of the values of a box. */
    fun findEdges(row: Int, values: DoubleArray): DoubleArray {
        val (a, b, c, d) = values
        if (priors != null) return decode(4 * row, priors, values)
        return when (form) {
            "corners" -> doubleArrayOf(a * width, b * height, c * width, d * height)
            "corners_yx" -> doubleArrayOf(b * width, a * height, d * width, c * height)
            else -> toEdges(a * width, b * height, c * width, d * height)
        }
    }

    /** Source: biubug6/Pytorch_Retinaface, utils/box_utils.py, decode. */
    private fun decode(at: Int, priors: DoubleArray, offsets: DoubleArray): DoubleArray {
        val (x, y, w, h) = DoubleArray(4) { priors[at + it] }
        return toEdges(
            (x + ofCentre * offsets[0] * w) * width,
            (y + ofCentre * offsets[1] * h) * height,
            w * exp(ofSize * offsets[2]) * width,
            h * exp(ofSize * offsets[3]) * height,
        )
    }
}

/**
 * Boxes (1, N, 4) in one output, and their scores in another: (1, N, C), or (1, N) where a third one has their
 * classes (1, N).
 */
internal class SeveralRows(outputs: List<Values>, private val description: SeveralDescription) : BoxRows {
    private val boxes = outputs[0]
    private val scores = outputs[1]
    private val classes = outputs.getOrNull(2)
    private val background = description.background
    private val width: Int
    private val activated: Scores
    override val count: Int
    override val overlap = true

    init {
        val (shape, ofScores) = boxes.shape to scores.shape
        val isPicture = shape.size == 3 && shape[0] == 1L && shape[2] == 4L
        val isScored = ofScores.size == (if (classes == null) 3 else 2) && ofScores.take(2) == shape.take(2)
        require(isPicture && isScored && (classes == null || classes.shape.toList() == shape.take(2))) {
            val ofClasses = classes?.let { ", its classes ${it.shape.contentToString()}" }.orEmpty()
            val wanted = if (classes == null) "scores [1, N, classes]" else "scores [1, N] and classes [1, N]"
            "the output is ${shape.contentToString()}, its scores ${ofScores.contentToString()}$ofClasses: the layout 'ssd'" +
                " of a detection has one picture, with boxes [1, N, 4], $wanted"
        }
        count = shape[1].toInt()
        width = ofScores.getOrElse(2) { 1 }.toInt()
        activated = Scores(scores, width, description.activation)
        requireCounts()
    }

    private fun requireCounts() {
        val (labels, priors) = description.labels to description.priors
        require(priors == null || priors.size == 4 * count) {
            "the output has $count boxes, the priors are ${(priors?.size ?: 0) / 4}"
        }
        val found = width - background
        require(classes != null || (found > 0 && (labels == 0 || found == labels))) {
            val wanted = if (labels > 0) "${labels + background}" else "${1 + background} or more"
            "the scores have $width classes, expected $wanted${if (background > 0) " with the background" else ""}"
        }
    }

    /** Returns the class with a row's highest value, as activations keep their order; among equal ones, the first. */
    override fun findClass(row: Int): Int {
        if (classes != null) return toClass(classes[row] - background, description.labels)
        var best = 0
        var highest = Double.NEGATIVE_INFINITY
        for (index in 0 until width - background) {
            val value = scores[row * width + background + index]
            if (value > highest) {
                best = index
                highest = value
            }
        }
        return best
    }

    override fun score(row: Int, index: Int): Double {
        val score = activated.at(row * width)[if (classes == null) background + index else 0]
        return if (score.isNaN()) Double.NEGATIVE_INFINITY else score
    }

    override fun findEdges(row: Int): DoubleArray = description.findEdges(row, DoubleArray(4) { boxes[4 * row + it] })
}
