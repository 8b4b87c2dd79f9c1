import org.json.JSONArray
import org.json.JSONException
import org.json.JSONObject

/** onnxruntime's number of the log level that only has errors. */
private const val LOG_ERRORS = 3

/** Of a channel in a palette: what a byte tells apart. */
private const val MOST_VALUES = 256

/** The part of `manifest.json` that this code needs. */
internal class Manifest(
    /** The SHA-256 of `manifest.json` itself. */
    val digest: String,
    val name: String,
    val inputs: List<Spec>,
    val outputs: List<Spec>,
    /** The value that fills an input up, by the input's name. */
    val fills: Map<String, Number>,
    /** The project's descriptions of inputs and of outputs, by their names. */
    val inputDescriptions: Map<String, JSONObject>,
    val outputDescriptions: Map<String, JSONObject>,
    /** Best first. */
    val variants: List<Variant>,
    val goldens: List<Golden>,
    /** Where to get a runtime with a provider, by the provider's name. */
    val sources: Map<String, String>,
    /** The files that contain weights of models; they lie beside the models. */
    val weights: List<String>,
    /** The bundle's files, except those that the manifest cannot list. */
    val files: List<ListedFile>,
) {
    /** Returns a file of the bundle. */
    fun getFile(path: String): ListedFile = files.first { it.path == path }

    /** @throws ModelException if the code would read a file that is not listed, because of what else the manifest says. */
    fun requireListed() {
        val models = variants.flatMap { variant -> variant.buckets.map { it.model } }
        val tensors = goldens.flatMap { it.inputs + it.outputs.values.flatten() }.map { it.path }
        val tokenizers = inputDescriptions.values.mapNotNull { it.optJSONObject("tokens")?.getString("file") }
        val ofOutputs = outputDescriptions.values.flatMap { listOf(it.opt("labels"), it.opt("priors")) }
        val named = models + tensors + (tokenizers + ofOutputs.filterIsInstance<String>()).map { "files/$it" }
        val more = (named - files.map { it.path }.toSet()).firstOrNull() ?: return
        throw ModelException("the bundle is damaged: manifest.json does not list $more, which it names")
    }
}

/** One axis of an input or output: its size, or a name where any size is possible; `?` where it has no name. */
internal class Axis(val name: String?, val size: Long) {
    override fun toString(): String = name ?: size.toString()
}

/** One input or output of the model. */
internal class Spec(val name: String, val dtype: Dtype, val shape: List<Axis>) {
    override fun toString(): String = "$name: ${dtype.name.lowercase()}$shape"
}

/** The model for one size of each symbolic dimension. */
internal class Bucket(val dims: Map<String, Long>, val model: String, val digest: String)

/** An axis of an output that is cut to a dimension's actual size. */
internal class Slice(val output: String, val axis: Int, val dim: String)

/** An execution provider and its options. */
internal class Provider(val name: String, val options: Map<String, String>)

/** The options of a session that have a function of their own; the others are session config entries. */
internal class SessionSettings(
    val threads: Int,
    val level: String,
    val mode: String,
    /** Threads that the parallel mode spreads nodes over; 0 lets onnxruntime decide. */
    val interOpThreads: Int,
    val arena: Boolean,
    val memoryPattern: Boolean,
    /** The least severe messages that onnxruntime writes, from 0 for verbose to 4 for fatal. */
    val logLevel: Int,
)

/** One way to run the model. */
internal data class Variant(
    val id: String,
    /** Its models, smallest first; one model without sizes where it takes every size. */
    val buckets: List<Bucket>,
    val slices: List<Slice>,
    /** Whether the variant takes only the buckets' own sizes. */
    val exact: Boolean,
    val providers: List<Provider>,
    /** The share of the nodes that the first provider must run; null for all nodes. */
    val share: Double?,
    val session: SessionSettings,
    val config: Map<String, String>,
    val cpuFlags: List<String>,
    val minDb: Double,
)

/** A golden tensor's file, as the manifest describes it. */
internal class GoldenTensor(
    val name: String,
    val path: String,
    val dtype: Dtype,
    val shape: LongArray,
    /** Of an output: the file contains every `stride`-th value, and only these are compared. */
    val stride: Int,
    /** Of an output: the quantities that must each be near enough; one where the output has one quantity. */
    val quantities: Quantities,
    /** How the file contains the values; null where they are in it as they are. */
    val palette: Palette?,
)

/** The different values of each channel, which a file has once, before a byte for each place that says which it is. */
internal class Palette(
    /** How many values of a channel follow each other. */
    private val step: Int,
    /** For each channel, the number of its values. */
    private val sizes: List<Int>,
) {
    /**
     * Returns the values as they are without a palette.
     *
     * @param width of a value, in bytes.
     * @throws IllegalArgumentException if the palette is none, or not all there, or a byte stands for no value of it.
     */
    fun unpack(packed: ByteArray, width: Int): ByteArray {
        require(step > 0 && sizes.isNotEmpty() && sizes.all { it in 1..MOST_VALUES }) {
            "a palette cannot have the step $step and the sizes $sizes"
        }
        val begins = sizes.runningFold(0, Int::plus)
        val table = begins.last() * width
        require(table <= packed.size) { "it has ${packed.size} bytes, its palette alone $table" }
        val values = ByteArray((packed.size - table) * width)
        for (place in 0 until packed.size - table) {
            val channel = place / step % sizes.size
            val which = packed[table + place].toInt() and 0xff
            require(which < sizes[channel]) { "a byte is beyond its channel's palette" }
            val from = (begins[channel] + which) * width
            packed.copyInto(values, place * width, from, from + width)
        }
        return values
    }
}

/** The quantities in an output, for example boxes and scores. */
internal class Quantities(
    /** How many values of a channel follow each other. */
    val size: Int,
    /** For each channel, the number of its quantity. */
    val ofChannel: List<Int>,
    /** How much nearer each quantity must be than the variant's limit, in dB. */
    val extraDb: List<Double>,
) {
    /** Returns the number of the quantity that a value belongs to. */
    fun of(place: Int): Int = ofChannel[place / size % ofChannel.size]
}

/** One golden sample: its inputs, and the outputs that each variant gave on the build host. */
internal class Golden(val inputs: List<GoldenTensor>, val outputs: Map<String, List<GoldenTensor>>)

/**
 * Reads `manifest.json`.
 *
 * @throws org.json.JSONException if the bytes are not a manifest.
 * @throws ModelException if the manifest has another schema version than this code, or names a file that it does not list.
 */
internal fun parseManifest(bytes: ByteArray): Manifest {
    val json = JSONObject(String(bytes, Charsets.UTF_8))
    if (json.optInt("schema_version") != 1) {
        val found = json.opt("schema_version")
        throw ModelException("manifest.json has schema version $found, this code reads 1")
    }
    val described = json.getJSONObject("input_descriptions")
    val variants = json.readObjects("variants").map(::readVariant)
    val named = variants.flatMap { variant -> variant.buckets.map { it.model } }.toSet()
    val files = json.readObjects("files").map(::readFile)
    return Manifest(
        digest = computeDigest(bytes),
        name = json.getString("name"),
        inputs = json.readObjects("inputs").map(::readSpec),
        outputs = json.readObjects("outputs").map(::readSpec),
        fills = described.readEntries { name -> described.getJSONObject(name).opt("pad") as? Number },
        inputDescriptions = described.readEntries(described::getJSONObject),
        outputDescriptions = json.getJSONObject("output_descriptions").let { it.readEntries(it::getJSONObject) },
        variants = variants,
        goldens = json.readObjects("goldens").map(::readGolden),
        sources = readSources(json.optJSONObject("provider_sources") ?: JSONObject()),
        weights = files.filter { it.role == "model" }.map { it.path }.filterNot { it in named },
        files = files,
    ).also { it.requireListed() }
}

private fun readFile(json: JSONObject): ListedFile {
    val path = json.getString("path")
    // A download may say anything: no path leads out of the bundle.
    if (path.split("/").any { it in listOf("", ".", "..") }) throw JSONException("'$path' is no path in a bundle")
    return ListedFile(path, json.getString("sha256"), json.getLong("size_bytes"), json.getString("role"))
}

private fun readVariant(json: JSONObject): Variant {
    val session = json.getJSONObject("session")
    val flags = json.getJSONObject("requires").getJSONArray("cpu")
    val placement = json.get("placement")
    return Variant(
        id = json.getString("id"),
        buckets = json.readObjects("buckets").ifEmpty { listOf(json) }.map(::readBucket),
        slices = json.readObjects("slices").map(::readSlice),
        exact = json.optBoolean("exact"),
        providers = json.readObjects("providers").map(::readProvider),
        share = (placement as? Number)?.toDouble(),
        session = readSession(session),
        config = readTexts(session.getJSONObject("config")),
        cpuFlags = List(flags.length(), flags::getString),
        minDb = json.getDouble("min_sqnr_db"),
    )
}

private fun readSession(json: JSONObject): SessionSettings =
    SessionSettings(
        threads = json.getInt("intra_op_num_threads"),
        level = json.optString("graph_optimization_level", "all"),
        mode = json.optString("execution_mode", "sequential"),
        interOpThreads = json.optInt("inter_op_num_threads", 0),
        arena = json.optBoolean("enable_cpu_mem_arena", true),
        memoryPattern = json.optBoolean("enable_mem_pattern", true),
        logLevel = json.optInt("log_severity_level", LOG_ERRORS),
    )

private fun readSlice(json: JSONObject): Slice =
    Slice(json.getString("output"), json.getInt("axis"), json.getString("dim"))

private fun readProvider(json: JSONObject): Provider =
    Provider(json.getString("name"), readTexts(json.getJSONObject("options")))

private fun readBucket(json: JSONObject): Bucket {
    val dims = json.optJSONObject("dims") ?: JSONObject()
    return Bucket(dims.readEntries(dims::getLong), json.getString("model"), json.getString("model_sha256"))
}

private fun readSpec(json: JSONObject): Spec {
    val shape = json.getJSONArray("shape")
    val axes = List(shape.length()) { n -> readAxis(shape.get(n)) }
    return Spec(json.getString("name"), Dtype.of(json.getString("dtype")), axes)
}

private fun readAxis(found: Any): Axis = if (found is Number) Axis(null, found.toLong()) else Axis("$found", 0)

private fun readGolden(json: JSONObject): Golden {
    val outputs = json.getJSONObject("outputs")
    return Golden(json.readObjects("inputs").map(::readTensor), outputs.readEntries { outputs.readObjects(it).map(::readTensor) })
}

private fun readTensor(json: JSONObject): GoldenTensor {
    val shape = json.getJSONArray("shape")
    return GoldenTensor(
        json.getString("name"),
        json.getString("path"),
        Dtype.of(json.getString("dtype")),
        LongArray(shape.length(), shape::getLong),
        json.optInt("stride", 1),
        json.optJSONObject("quantities")?.let(::readQuantities)
            ?: Quantities(1, listOf(0), listOf(json.optDouble("extra_db", 0.0))),
        json.optJSONObject("palette")?.let(::readPalette),
    )
}

private fun readPalette(json: JSONObject): Palette {
    val sizes = json.getJSONArray("sizes")
    return Palette(json.getInt("step"), List(sizes.length(), sizes::getInt))
}

private fun readQuantities(json: JSONObject): Quantities {
    val runs = json.getJSONArray("runs")
    val extra = json.getJSONArray("extra_db")
    return Quantities(
        json.getInt("size"),
        List(runs.length(), runs::getJSONArray).flatMap { run -> List(run.getInt(0)) { run.getInt(1) } },
        List(extra.length(), extra::getDouble),
    )
}

private fun readSources(json: JSONObject): Map<String, String> =
    json.readEntries { json.getJSONObject(it).getString("about") }

private fun readTexts(json: JSONObject): Map<String, String> = json.readEntries(json::getString)

private fun JSONObject.readObjects(key: String): List<JSONObject> =
    (optJSONArray(key) ?: JSONArray()).let { list -> List(list.length(), list::getJSONObject) }

/** Returns what [read] gives for each key, in the keys' order; keys for which it gives null are left out. */
private fun <V : Any> JSONObject.readEntries(read: (String) -> V?): Map<String, V> {
    val found = LinkedHashMap<String, V>()
    for (key in keys()) {
        read(key)?.let { found[key] = it }
    }
    return found
}
