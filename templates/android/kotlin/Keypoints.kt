import org.json.JSONObject

/**
 * One point of an object, such as a joint, in pixels of the caller's picture after turning, and within it.
 *
 * @property score null where the model gives none
 */
data class Keypoint(
    val x: Float,
    val y: Float,
    val score: Float?,
) {
    override fun toString(): String = "($x, $y) ${score ?: ""}".trim()
}

/** The keypoints at the end of each row of a detection: [count] points of [values] numbers. */
internal class KeypointShape(val count: Int, val values: Int) {
    /** How many numbers of a row they are. */
    val size: Int get() = count * values

    /** Returns the points whose numbers are in pixels of the input. */
    fun move(numbers: DoubleArray, place: Placement): List<Keypoint> =
        List(count) {
            val at = it * values
            Keypoint(
                moveToPicture(numbers[at], place.left, place.scaledWidth, place.pictureWidth),
                moveToPicture(numbers[at + 1], place.top, place.scaledHeight, place.pictureHeight),
                if (values > 2) numbers[at + 2].toFloat() else null,
            )
        }

    companion object {
        /** Returns the keypoints that a detection's description has; none where it has no word of them. */
        fun of(description: JSONObject): KeypointShape =
            KeypointShape(description.optInt("keypoints", 0), description.optInt("keypoint_values", 0))
    }
}
