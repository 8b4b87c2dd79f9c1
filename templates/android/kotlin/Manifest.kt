import org.json.JSONArray
import org.json.JSONObject

/** What the bundle holds: the part of `manifest.json` that is needed here. */
internal class Manifest(
    val name: String,
    val inputs: List<Spec>,
    val outputs: List<Spec>,
    /** What an input is filled up with, by its name. */
    val fills: Map<String, Number>,
    /** What the project says of inputs and of outputs, by their names. */
    val inputDescriptions: Map<String, JSONObject>,
    val outputDescriptions: Map<String, JSONObject>,
    /** Best first. */
    val variants: List<Variant>,
    val goldens: List<Golden>,
    /** Where runtimes with a provider come from, by its name. */
    val sources: Map<String, String>,
    /** The files that hold weights of models which lie beside them. */
    val weights: List<String>,
)

/** One axis of an input or output: its size, or where that is free a name, `?` for none. */
internal class Axis(val name: String?, val size: Long) {
    override fun toString(): String = name ?: size.toString()
}

/** One input or output of the model. */
internal class Spec(val name: String, val dtype: Dtype, val shape: List<Axis>)

/** The model for one size of each symbolic dimension. */
internal class Bucket(val dims: Map<String, Long>, val model: String, val digest: String)

/** An axis of an output that is cut back to a dimension's actual size. */
internal class Slice(val output: String, val axis: Int, val dim: String)

/** An execution provider and its options. */
internal class Provider(val name: String, val options: Map<String, String>)

/** One way to run the model. */
internal data class Variant(
    val id: String,
    /** Its models, smallest first; one without sizes where it takes all. */
    val buckets: List<Bucket>,
    val slices: List<Slice>,
    /** Whether no sizes but the buckets' are taken. */
    val exact: Boolean,
    val providers: List<Provider>,
    /** The share of the nodes that the first provider has to run; null for all of them. */
    val share: Double?,
    val threads: Int,
    val level: String,
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
    /** Of an output: every so many-th of its values is in the file and compared. */
    val stride: Int,
    /** Of an output: what has to be near by itself; one where the output holds one quantity. */
    val quantities: Quantities,
)

/** The quantities in an output, as boxes and their scores are. */
internal class Quantities(
    /** How many values of a channel lie behind each other. */
    val size: Int,
    /** The number of each channel's quantity. */
    val ofChannel: List<Int>,
    /** How much nearer than the variant's outputs each has to be, in dB. */
    val extraDb: List<Double>,
) {
    /** Returns the number of a value's quantity. */
    fun of(place: Int): Int = ofChannel[place / size % ofChannel.size]
}

/** One golden sample: its inputs, and what each variant gave on the host that built it. */
internal class Golden(val inputs: List<GoldenTensor>, val outputs: Map<String, List<GoldenTensor>>)

/**
 * Reads `manifest.json`.
 *
 * @throws org.json.JSONException it is no manifest.
 * @throws ModelException it is of another time than this code.
 */
internal fun parseManifest(text: String): Manifest {
    val json = JSONObject(text)
    if (json.optInt("schema_version") != 1) {
        val found = json.opt("schema_version")
        throw ModelException("manifest.json has schema version $found, this code reads 1")
    }
    val described = json.getJSONObject("input_descriptions")
    val variants = json.objects("variants").map(::variant)
    val named = variants.flatMap { variant -> variant.buckets.map { it.model } }.toSet()
    val models = json.objects("files").filter { it.getString("role") == "model" }
    return Manifest(
        name = json.getString("name"),
        inputs = json.objects("inputs").map(::spec),
        outputs = json.objects("outputs").map(::spec),
        fills = described.entries { name -> described.getJSONObject(name).opt("pad") as? Number },
        inputDescriptions = described.entries(described::getJSONObject),
        outputDescriptions = json.getJSONObject("output_descriptions").let { it.entries(it::getJSONObject) },
        variants = variants,
        goldens = json.objects("goldens").map(::golden),
        sources = sources(json.optJSONObject("provider_sources") ?: JSONObject()),
        weights = models.map { it.getString("path") }.filterNot { it in named },
    )
}

private fun variant(json: JSONObject): Variant {
    val session = json.getJSONObject("session")
    val flags = json.getJSONObject("requires").getJSONArray("cpu")
    val placement = json.get("placement")
    return Variant(
        id = json.getString("id"),
        buckets = json.objects("buckets").ifEmpty { listOf(json) }.map(::bucket),
        slices = json.objects("slices").map(::slice),
        exact = json.optBoolean("exact"),
        providers = json.objects("providers").map(::provider),
        share = (placement as? Number)?.toDouble(),
        threads = session.getInt("intra_op_num_threads"),
        level = session.optString("graph_optimization_level", "all"),
        config = texts(session.getJSONObject("config")),
        cpuFlags = List(flags.length(), flags::getString),
        minDb = json.getDouble("min_sqnr_db"),
    )
}

private fun slice(json: JSONObject): Slice =
    Slice(json.getString("output"), json.getInt("axis"), json.getString("dim"))

private fun provider(json: JSONObject): Provider =
    Provider(json.getString("name"), texts(json.getJSONObject("options")))

private fun bucket(json: JSONObject): Bucket {
    val dims = json.optJSONObject("dims") ?: JSONObject()
    return Bucket(dims.entries(dims::getLong), json.getString("model"), json.getString("model_sha256"))
}

private fun spec(json: JSONObject): Spec {
    val shape = json.getJSONArray("shape")
    val axes = List(shape.length()) { n -> axis(shape.get(n)) }
    return Spec(json.getString("name"), Dtype.of(json.getString("dtype")), axes)
}

private fun axis(found: Any): Axis = if (found is Number) Axis(null, found.toLong()) else Axis("$found", 0)

private fun golden(json: JSONObject): Golden {
    val outputs = json.getJSONObject("outputs")
    return Golden(json.objects("inputs").map(::tensor), outputs.entries { outputs.objects(it).map(::tensor) })
}

private fun tensor(json: JSONObject): GoldenTensor {
    val shape = json.getJSONArray("shape")
    return GoldenTensor(
        json.getString("name"),
        json.getString("path"),
        Dtype.of(json.getString("dtype")),
        LongArray(shape.length(), shape::getLong),
        json.optInt("stride", 1),
        json.optJSONObject("quantities")?.let(::quantities)
            ?: Quantities(1, listOf(0), listOf(json.optDouble("extra_db", 0.0))),
    )
}

private fun quantities(json: JSONObject): Quantities {
    val runs = json.getJSONArray("runs")
    val extra = json.getJSONArray("extra_db")
    return Quantities(
        json.getInt("size"),
        List(runs.length(), runs::getJSONArray).flatMap { run -> List(run.getInt(0)) { run.getInt(1) } },
        List(extra.length(), extra::getDouble),
    )
}

private fun sources(json: JSONObject): Map<String, String> =
    json.entries { json.getJSONObject(it).getString("about") }

private fun texts(json: JSONObject): Map<String, String> = json.entries(json::getString)

private fun JSONObject.objects(key: String): List<JSONObject> =
    (optJSONArray(key) ?: JSONArray()).let { list -> List(list.length(), list::getJSONObject) }

/** Returns what [read] gives for each key, in their order, without those it gives nothing for. */
private fun <V : Any> JSONObject.entries(read: (String) -> V?): Map<String, V> {
    val found = LinkedHashMap<String, V>()
    for (key in keys()) {
        read(key)?.let { found[key] = it }
    }
    return found
}
