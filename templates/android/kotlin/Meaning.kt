import org.json.JSONObject

/** What the bundle's inputs are made from and what its outputs mean. Threads may share it. */
internal class Meaning(private val manifest: Manifest, private val assets: Assets) {
    private val specs = manifest.inputs.associateBy { it.name }
    private val tokenizers: Map<String, WordPiece> by lazy {
        val described = manifest.inputDescriptions.filterValues { it.optJSONObject("tokens") != null }
        described.mapValues { (_, it) -> WordPiece(JSONObject(file(it.getJSONObject("tokens").getString("file")))) }
    }
    private val labels: Map<String, List<String>> by lazy {
        manifest.outputDescriptions.mapValues { (_, it) ->
            (it.opt("labels") as? String)?.let(::file)?.let(::readLabels).orEmpty()
        }
    }

    private fun file(name: String): String = assets.text("files/$name")

    /**
     * Returns the tensor that a picture becomes, or the picture where the model does the rest itself; it knows
     * where the picture lies in it.
     *
     * @param name of an input that is described as an image.
     */
    fun picture(name: String, pixels: Pixels): Tensor {
        val description = ImageDescription.of(manifest.inputDescriptions.getValue(name).getJSONObject("image"))
        val dtype = specs.getValue(name).dtype
        val place = description.resize.place(pixels.width, pixels.height)
        if (dtype == Dtype.UINT8) place.requireScaled()
        val tensor = if (dtype == Dtype.UINT8) whole(pixels) else floats(dtype, imageTensor(pixels, description).tensor)
        return tensor.apply { placement = place }
    }

    /** Returns float32 as an input of floats takes it; what becomes float16 does so in the session. */
    private fun floats(dtype: Dtype, tensor: FloatTensor): Tensor {
        if (dtype != Dtype.FLOAT64) return tensor
        return DoubleTensor(tensor.shape, DoubleArray(tensor.data.size) { tensor.data[it].toDouble() })
    }

    private fun whole(pixels: Pixels): Tensor {
        val row = ByteArray(3 * pixels.width)
        val data = ByteArray(row.size * pixels.height)
        for (y in 0 until pixels.height) {
            pixels.readRow(y, row)
            row.copyInto(data, y * row.size)
        }
        return UByteTensor(data, pixels.height.toLong(), pixels.width.toLong(), 3)
    }

    /**
     * Returns the tensors that a text becomes: the token ids, and what the model takes beside them.
     *
     * @param name of an input that is described as tokens.
     */
    fun text(name: String, text: String): Tensors {
        val tokens = manifest.inputDescriptions.getValue(name).getJSONObject("tokens")
        val fixed = specs.getValue(name).shape.last().name == null
        val encoded = tokenizers.getValue(name).encode(text, tokens.getInt("length"), pad = fixed)
        val made =
            mapOf(
                name to encoded.inputIds,
                tokens.getString("attention_mask") to encoded.attentionMask,
                tokens.getString("token_type_ids") to encoded.tokenTypeIds,
            )
        return made.filterKeys { it in specs }.mapValues { (input, ids) -> row(specs.getValue(input).dtype, ids) }
    }

    private fun row(dtype: Dtype, ids: IntArray): Tensor {
        val shape = longArrayOf(1, ids.size.toLong())
        if (dtype == Dtype.INT32) return IntTensor(shape, ids)
        return LongTensor(shape, LongArray(ids.size) { ids[it].toLong() })
    }

    /** Returns the best classes that an output names. */
    fun classification(name: String, outputs: Tensors): List<Classification> =
        classifications(outputs.getValue(name), description(name), labels.getValue(name))

    /** Returns the objects that an output names, in the pixels of the one picture that was given. */
    fun detection(name: String, outputs: Tensors, feed: Tensors): List<Detection> {
        val placement = checkNotNull(feed.values.mapNotNull { it.placement }.singleOrNull()) {
            "a detection's boxes are in the pixels of a picture: have the model make the input's tensor of it"
        }
        return detections(outputs.getValue(name), description(name), labels.getValue(name), placement)
    }

    /** Returns the vector of each sample that an output holds. */
    fun embedding(name: String, outputs: Tensors, feed: Tensors): List<FloatArray> {
        val mask = description(name).opt("mask") as? String
        return embeddings(outputs.getValue(name), description(name), mask?.let(feed::getValue))
    }

    private fun description(name: String): JSONObject = manifest.outputDescriptions.getValue(name)
}
