import org.json.JSONObject

/**
 * A text that the model reads.
 *
 * @property score the mean of the scores of the steps that symbols were read in; 0 where there are none
 */
data class Transcription(
    val text: String,
    val score: Float,
) {
    override fun toString(): String = "'$text' $score"
}

/**
 * Returns the text that the best class of each step gives.
 *
 * The class of a step is the one with the highest value, of equal ones the first, never a NaN. Steps of the blank's class
 * are no symbol, and neither are those of the class of the step before.
 *
 * @param output (1, T, C) or (T, 1, C), or with the description's `axis` 1 (1, C, T): values of C classes, which are the
 *     alphabet's and the blank, in T steps
 * @param description the output's entry in the manifest's `output_descriptions`
 * @param alphabet the symbol of each class, without the blank
 * @throws IllegalArgumentException if the output has another shape, or the alphabet another size
 */
internal fun transcribe(output: Values, description: JSONObject, alphabet: List<String>): Transcription {
    val steps = Steps(output, description)
    require(alphabet.size == steps.classes - 1) {
        "the output has ${steps.classes} classes: there are ${alphabet.size} symbols and the blank"
    }
    val text = StringBuilder()
    var (kept, total) = 0 to 0.0
    var before = steps.blank
    for (step in 0 until steps.count) {
        val found = steps.findClass(step)
        if (found != steps.blank && found != before) {
            text.append(alphabet[if (found > steps.blank) found - 1 else found])
            total += steps.score(step, found)
            kept++
        }
        before = found
    }
    return Transcription(text.toString(), if (kept > 0) (total / kept).toFloat() else 0f)
}

/** The values of classes in each step. */
private class Steps(output: Values, description: JSONObject) {
    val count: Int
    val classes: Int
    val blank: Int
    private val row: Values
    private val scores: Scores

    init {
        val isLast = description.getInt("axis") == -1
        val shape = output.shape.map { it.toInt() }
        val fits = shape.size == 3 && (shape[0] == 1 || (isLast && shape[1] == 1))
        classes = if (fits) shape[if (isLast) 2 else 1] else 0
        require(classes > 1) {
            val wanted = if (isLast) "[1, T, C] or [T, 1, C]" else "[1, C, T]"
            "the output is ${output.shape.contentToString()}: a text has the values of two or more classes in each step, $wanted"
        }
        val given = description.getInt("blank")
        require(given in -1 until classes) { "the output has $classes classes: the blank cannot be $given" }
        blank = if (given < 0) classes - 1 else given
        count = output.count / classes
        row = if (isLast) output else Values(output.shape, areFloats = true) { output[it % classes * count + it / classes] }
        scores = Scores(row, classes, description.getString("activation"))
    }

    /** Returns the best class of a step; the blank where no value is more than minus infinity. */
    fun findClass(step: Int): Int {
        var (best, highest) = blank to Double.NEGATIVE_INFINITY
        for (index in 0 until classes) {
            val value = row[step * classes + index]
            if (value > highest) {
                best = index
                highest = value
            }
        }
        return best
    }

    fun score(step: Int, index: Int): Double = scores.at(step * classes)[index]
}
