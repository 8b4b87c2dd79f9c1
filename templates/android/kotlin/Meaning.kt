import org.json.JSONObject

/** Makes the model's inputs from pictures and texts, and answers from its outputs. Threads may share it. */
internal class Meaning(private val manifest: Manifest, private val assets: Assets) {
    private val specs = manifest.inputs.associateBy { it.name }
    private val tokenizers: Map<String, WordPiece> by lazy {
        val described = manifest.inputDescriptions.filterValues { it.optJSONObject("tokens") != null }
        described.mapValues { (_, it) -> WordPiece(JSONObject(readFile(it.getJSONObject("tokens").getString("file")))) }
    }
    private val labels: Map<String, List<String>> by lazy {
        manifest.outputDescriptions.mapValues { (_, it) ->
            (it.opt("labels") as? String)?.let(::readFile)?.let(::readLabels).orEmpty()
        }
    }

    private fun readFile(name: String): String = assets.readText("files/$name")

    /**
     * Converts a picture to the input's tensor, or to its plain pixels where the model does the rest itself. The
     * tensor records where the picture lies in it.
     *
     * @param name the name of an input that is described as an image.
     */
    fun convertPicture(name: String, pixels: Pixels): Tensor {
        val description = ImageDescription.of(manifest.inputDescriptions.getValue(name).getJSONObject("image"))
        val dtype = specs.getValue(name).dtype
        val place = description.resize.place(pixels.width, pixels.height)
        if (dtype == Dtype.UINT8) place.requireScaled()
        val tensor =
            if (dtype == Dtype.UINT8) copyPixels(pixels) else toFloats(dtype, makeImageTensor(pixels, description).tensor)
        return tensor.apply { placement = place }
    }

    /** Converts float32 to the input's type; the session converts to float16 itself. */
    private fun toFloats(dtype: Dtype, tensor: FloatTensor): Tensor {
        if (dtype != Dtype.FLOAT64) return tensor
        return DoubleTensor(tensor.shape, DoubleArray(tensor.data.size) { tensor.data[it].toDouble() })
    }

    private fun copyPixels(pixels: Pixels): Tensor {
        val row = ByteArray(3 * pixels.width)
        val data = ByteArray(row.size * pixels.height)
        for (y in 0 until pixels.height) {
            pixels.readRow(y, row)
            row.copyInto(data, y * row.size)
        }
        return UByteTensor(data, pixels.height.toLong(), pixels.width.toLong(), 3)
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

    /** Returns the best classes of an output. */
    fun findClasses(name: String, outputs: Tensors): List<Classification> =
        findClasses(outputs.getValue(name), getDescription(name), labels.getValue(name))

    /** Returns the objects of an output, in pixels of the one picture that the caller gave. */
    fun findObjects(name: String, outputs: Tensors, feed: Tensors): List<Detection> {
        val placement = checkNotNull(feed.values.mapNotNull { it.placement }.singleOrNull()) {
            "a detection's boxes are in the pixels of a picture: have the model make the input's tensor of it"
        }
        return findObjects(outputs.getValue(name), getDescription(name), labels.getValue(name), placement)
    }

    /** Returns the vector of each sample in an output. */
    fun makeVectors(name: String, outputs: Tensors, feed: Tensors): List<FloatArray> {
        val mask = getDescription(name).opt("mask") as? String
        return makeVectors(outputs.getValue(name), getDescription(name), mask?.let(feed::getValue))
    }

    private fun getDescription(name: String): JSONObject = manifest.outputDescriptions.getValue(name)
}
