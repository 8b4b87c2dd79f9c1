import org.json.JSONException
import org.json.JSONObject

/**
 * Makes the model's inputs from pictures and texts, and answers from its outputs. Threads may share it.
 *
 * It reads all that the descriptions name when it is made.
 *
 * @throws ModelException if a file is missing or damaged, or the labels are not those of the output's classes.
 */
@OptIn(ForGeneratedCode::class)
internal class Meaning(private val manifest: Manifest, private val files: BundleFiles) {
    private val specs = manifest.inputs.associateBy { it.name }

    /** How pictures become inputs, by the inputs' names. */
    val images: Map<String, ImageDescription> = readDescriptions("image") { ImageDescription.of(it) }

    private val tokenizers = readDescriptions("tokens") { readTokenizer(it.getString("file")) }
    private val labels =
        manifest.outputDescriptions.mapValues { (name, described) ->
            val file = described.opt("labels") as? String
            val found = file?.let { readLabels(readFile(it)) }.orEmpty()
            val scored = if (described.has("scores")) described.getString("scores") else name
            if (file != null) requireClasses(findOutput(scored), described, found.size, file)
            found
        }
    private val priors =
        manifest.outputDescriptions.filterValues { it.has("priors") }.mapValues { (name, described) ->
            readPriors(findOutput(name), described.getString("priors"))
        }

    private fun findOutput(name: String): Spec = manifest.outputs.first { it.name == name }

    private fun readPriors(boxes: Spec, file: String): DoubleArray {
        val found =
            try {
                readPriors(readFile(file))
            } catch (error: IllegalArgumentException) {
                throw ModelException("the bundle is damaged: files/$file: ${error.message}", error)
            }
        val axis = boxes.shape.getOrNull(1)
        if (axis != null && axis.name == null && axis.size != found.size / 4L) {
            throw ModelException(
                "the bundle is damaged: files/$file has ${found.size / 4} priors, the output '${boxes.name}' ${axis.size} boxes",
            )
        }
        return found
    }

    private fun <T> readDescriptions(key: String, read: (JSONObject) -> T): Map<String, T> {
        val described = manifest.inputDescriptions.filterValues { it.optJSONObject(key) != null }
        return described.mapValues { (_, it) -> read(it.getJSONObject(key)) }
    }

    private fun readFile(name: String): String = files.readText("files/$name")

    private fun readTokenizer(file: String): WordPiece =
        try {
            WordPiece(JSONObject(readFile(file)))
        } catch (error: JSONException) {
            throw ModelException("the bundle is damaged: files/$file: ${error.message}", error)
        }

    private fun requireClasses(spec: Spec, description: JSONObject, labels: Int, file: String) {
        val counts = listClassCounts(spec, description)
        if (counts.isNotEmpty() && labels.toLong() !in counts) {
            throw ModelException(
                "the bundle is damaged: files/$file has $labels labels, the output '${spec.name}'" +
                    " ${counts.joinToString(" or ")} classes",
            )
        }
    }

    /**
     * Converts a picture to the input's tensor, or to its plain pixels where the model does the rest itself. The
     * tensor records where the picture lies in it.
     *
     * @param name the name of an input that is described as an image.
     */
    fun convertPicture(name: String, picture: Picture): Tensor {
        val description = images.getValue(name)
        val dtype = specs.getValue(name).dtype
        val place = description.resize.place(picture.width, picture.height)
        if (dtype == Dtype.UINT8) place.requireScaled()
        val tensor =
            if (dtype == Dtype.UINT8) copyPixels(picture) else toFloats(dtype, makeImageTensor(picture, description))
        return tensor.apply { placement = place }
    }

    /** Converts float32 to the input's type; the session converts to float16 itself. */
    private fun toFloats(dtype: Dtype, tensor: FloatTensor): Tensor {
        if (dtype != Dtype.FLOAT64) return tensor
        return DoubleTensor(tensor.shape, DoubleArray(tensor.data.size) { tensor.data[it].toDouble() })
    }

    private fun copyPixels(picture: Picture): Tensor {
        val row = ByteArray(3 * picture.width)
        val data = ByteArray(row.size * picture.height)
        val rows = picture.open(Scratch())
        for (y in 0 until picture.height) {
            rows.read(y, row)
            row.copyInto(data, y * row.size)
        }
        return UByteTensor(data, picture.height.toLong(), picture.width.toLong(), 3)
    }

    /**
     * Converts a text to tensors: the token ids, and the mask and types that the model takes beside them.
     *
     * @param name the name of an input that is described as tokens.
     */
    fun encodeText(name: String, text: String): Tensors {
        val tokens = manifest.inputDescriptions.getValue(name).getJSONObject("tokens")
        val fixed = specs.getValue(name).shape.last().name == null
        val encoded = tokenizers.getValue(name).encode(text, tokens.getInt("length"), pad = fixed)
        val made =
            mapOf(
                name to encoded.inputIds,
                tokens.getString("attention_mask") to encoded.attentionMask,
                tokens.getString("token_type_ids") to encoded.tokenTypeIds,
            )
        return made.filterKeys { it in specs }.mapValues { (input, ids) -> makeRow(specs.getValue(input).dtype, ids) }
    }

    private fun makeRow(dtype: Dtype, ids: IntArray): Tensor {
        val shape = longArrayOf(1, ids.size.toLong())
        if (dtype == Dtype.INT32) return IntTensor(shape, ids)
        return LongTensor(shape, LongArray(ids.size) { ids[it].toLong() })
    }

    /**
     * Checks that each output whose classes may be left out has the labels that are allowed.
     *
     * @throws IllegalArgumentException if one lacks a label.
     */
    fun checkOptions(options: AnswerOptions) {
        val chosen = manifest.outputDescriptions.filterValues { it.getString("kind") in listOf("classification", "detection") }
        for (name in chosen.keys) options.findAllowed(labels.getValue(name))
    }

    /** Returns the best classes of an output. */
    fun findClasses(name: String, ran: Ran): Found<List<Classification>> =
        finding(name, ran) { output, description -> findClasses(output, description, labels.getValue(name), ran.options) }

    /** Returns the decision of each value of an output. */
    fun decide(name: String, ran: Ran): Found<List<Decision>> = finding(name, ran, ::decide)

    /** Returns the objects of an output, in pixels of the one picture that the caller gave. */
    fun findObjects(name: String, ran: Ran): Found<List<Detection>> =
        finding(name, ran) { output, description ->
            val place = requirePicture(ran.place, "a detection's boxes are")
            val outputs = listOf(output) + listReadToo(description).map(ran.read)
            findObjects(outputs, description, labels.getValue(name), place, ran.options, priors[name])
        }

    /** Returns the text of an output. */
    fun transcribe(name: String, ran: Ran): Found<Transcription> =
        finding(name, ran) { output, description -> transcribe(output, description, labels.getValue(name)) }

    /** Returns the class at each pixel of the one picture that the caller gave. */
    fun findMask(name: String, ran: Ran): Found<Mask> =
        finding(name, ran) { output, description ->
            findMask(output, description, labels.getValue(name), requirePicture(ran.place, "a mask's classes are"))
        }

    private fun requirePicture(place: Placement?, what: String): Placement =
        requireNotNull(place) { "$what in the pixels of a picture: have the model make the input's tensor of it" }

    /** Returns the vector of each sample in an output. */
    fun makeVectors(name: String, ran: Ran): Found<List<FloatArray>> =
        finding(name, ran) { output, description ->
            val mask = description.opt("mask") as? String
            makeVectors(output, description, mask?.let { Values.of(ran.feed.getValue(it)) })
        }

    private fun <T : Any> finding(name: String, ran: Ran, find: (Values, JSONObject) -> T): Found<T> =
        try {
            Found(find(ran.read(name), manifest.outputDescriptions.getValue(name)))
        } catch (error: IllegalArgumentException) {
            Found(null, error.message.orEmpty())
        }
}

/**
 * What answers are made of.
 *
 * @property feed the inputs, masks included.
 * @property place where the one picture lies in its input; null where there is not one picture.
 * @property read returns an output's values.
 */
internal class Ran(val options: AnswerOptions, val feed: Tensors, val place: Placement?, val read: (name: String) -> Values)

/** An answer, or the reason why the outputs, which a caller gets in any case, have none. */
@ForGeneratedCode
class Found<T : Any> internal constructor(private val answer: T?, private val problem: String) {
    constructor(answer: T) : this(answer, "")

    /** @throws IllegalStateException if there is no answer. */
    fun get(): T = checkNotNull(answer) { problem }

    override fun equals(other: Any?): Boolean = other is Found<*> && other.problem == problem && other.toValues() == toValues()

    override fun hashCode(): Int = toValues().hashCode()

    override fun toString(): String = if (answer == null) problem else "${toValues()}"

    // Arrays, which vectors are, are not equal where their numbers are.
    private fun toValues(): Any? = (answer as? List<*>)?.map { if (it is FloatArray) it.asList() else it } ?: answer
}

/** Returns how many classes an output can have by its shape; empty where any number is possible. */
private fun listClassCounts(spec: Spec, description: JSONObject): List<Long> {
    val axes = spec.shape
    val counted =
        when (description.getString("kind")) {
            "classification" -> (if (axes.size > 1) axes.drop(1) else axes).filter { it.size != 1L }.take(1)
            "mask" -> if (axes.size == 4) listOf(axes[if (description.getInt("axis") == 1) 1 else 3]) else emptyList()
            "text" -> if (axes.size == 3) listOf(axes[if (description.getInt("axis") == 1) 1 else 2]) else emptyList()
            "detection" ->
                when (description.getString("layout")) {
                    "yolo" -> axes.drop(1)
                    "yolov5", "yolox" -> axes.drop(2)
                    "ssd" -> if (description.has("classes")) emptyList() else axes.drop(2)
                    else -> emptyList()
                }
            else -> emptyList()
        }
    val before =
        when (description.optString("layout")) {
            "yolo" -> 4 + KeypointShape.of(description).size
            "yolov5", "yolox" -> 5
            "ssd" -> if (description.getBoolean("background")) 1 else 0
            else -> if (description.getString("kind") == "text") 1 else 0
        }
    // One class of a mask is a threshold's: its labels name what lies below and above it.
    val sizes = counted.map { it.size - before }
    return if (counted.any { it.name != null } || (before == 0 && 1L in sizes)) emptyList() else sizes
}
