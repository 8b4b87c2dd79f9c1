import ai.onnxruntime.OnnxJavaType
import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtEpDevice
import ai.onnxruntime.OrtException
import ai.onnxruntime.OrtHardwareDevice.OrtHardwareDeviceType
import ai.onnxruntime.OrtLoggingLevel
import ai.onnxruntime.OrtSession
import ai.onnxruntime.OrtSession.SessionOptions
import ai.onnxruntime.OrtSession.SessionOptions.OptLevel
import ai.onnxruntime.providers.NNAPIFlags
import java.io.File
import java.io.IOException
import java.nio.ByteBuffer
import java.security.MessageDigest
import java.util.EnumSet
import java.util.UUID
import java.util.concurrent.ConcurrentHashMap
import org.json.JSONArray
import org.json.JSONException

internal const val CPU = "CPUExecutionProvider"
private const val NNAPI = "NnapiExecutionProvider"
internal const val QNN = "QNNExecutionProvider"
private const val XNNPACK = "XnnpackExecutionProvider"

/** In a setting's value: the variant's folder for compiled models. */
private const val CACHE = "{cache}"
private const val PRECISE = "session.x64quantprecision"
private const val NO_FALLBACK = "session.disable_cpu_ep_fallback"
private const val LONGEST = 400

/** Libraries that bring a provider beside onnxruntime, as com.qualcomm.qti:onnxruntime-android-qnn 2 does. */
private val PLUGINS = mapOf(QNN to "libonnxruntime_providers_qnn.so")

private val LEVELS =
    mapOf(
        "disabled" to OptLevel.NO_OPT,
        "basic" to OptLevel.BASIC_OPT,
        "extended" to OptLevel.EXTENDED_OPT,
        "all" to OptLevel.ALL_OPT,
    )

private val TYPES =
    mapOf(
        Dtype.FLOAT16 to OnnxJavaType.FLOAT16,
        Dtype.FLOAT32 to OnnxJavaType.FLOAT,
        Dtype.FLOAT64 to OnnxJavaType.DOUBLE,
        Dtype.INT8 to OnnxJavaType.INT8,
        Dtype.UINT8 to OnnxJavaType.UINT8,
        Dtype.INT16 to OnnxJavaType.INT16,
        Dtype.INT32 to OnnxJavaType.INT32,
        Dtype.INT64 to OnnxJavaType.INT64,
        Dtype.BOOL to OnnxJavaType.BOOL,
    )

/** Why one variant cannot be used here. */
internal class Refused(reason: String) : Exception(reason)

/** One session of onnxruntime. Threads may share it. */
internal class Session(
    private val environment: OrtEnvironment,
    private val session: OrtSession,
    private val manifest: Manifest,
) : AutoCloseable {
    /**
     * Runs an inference.
     *
     * @param feed all inputs, in the shapes that the model takes.
     * @throws OrtException onnxruntime failed.
     */
    fun run(feed: Tensors): Tensors {
        val made = LinkedHashMap<String, OnnxTensor>()
        try {
            for (spec in manifest.inputs) {
                val tensor = feed.getValue(spec.name)
                val data = spec.dtype.encode(tensor)
                made[spec.name] = OnnxTensor.createTensor(environment, data, tensor.shape, TYPES.getValue(spec.dtype))
            }
            val names = manifest.outputs.map { it.name }.toSet()
            return session.run(made, names).use { result ->
                manifest.outputs.associate { it.name to taken(it, result.get(it.name).get() as OnnxTensor) }
            }
        } finally {
            made.values.forEach { it.close() }
        }
    }

    private fun taken(spec: Spec, output: OnnxTensor): Tensor {
        val shape = output.info.getShape()
        // There is no buffer behind a tensor without elements.
        return if (0L in shape) spec.dtype.filled(shape, 0) else spec.dtype.decode(shape, output.byteBuffer)
    }

    /**
     * Ends the profile that the session was opened with, and returns the provider of each node in it.
     *
     * Source: node events have cat "Node", a name that ends in "_kernel_time", and args.provider
     * (onnxruntime 1.31.1, observed).
     *
     * @throws Refused it was not written, as where the device's storage is full.
     */
    fun endProfile(): List<String> {
        val events = events(File(session.endProfiling()))
        val nodes = List(events.length(), events::getJSONObject).filter { event ->
            event.optString("cat") == "Node" && event.optString("name").endsWith("_kernel_time")
        }
        val ran = nodes.associateBy { it.getJSONObject("args").optString("node_index") to it.getString("name") }
        return ran.values.map { it.getJSONObject("args").getString("provider") }
    }

    private fun events(profile: File): JSONArray =
        try {
            JSONArray(profile.readText())
        } catch (error: IOException) {
            throw Refused("its profile cannot be read: ${line(error)}")
        } catch (error: JSONException) {
            throw Refused("its profile cannot be read: ${line(error)}")
        }

    override fun close() {
        session.close()
        MAPPED.remove(this)
    }
}

/** What sessions read weights from for as long as they are there: onnxruntime itself holds no reference. */
private val MAPPED = ConcurrentHashMap<Session, ByteBuffer>()

/** Makes sessions as the manifest says. */
internal class Sessions(private val assets: Assets, private val manifest: Manifest) {
    private val environment: OrtEnvironment = environment()
    private val profiles = File(assets.cache, "profiles-${UUID.randomUUID()}")

    /**
     * Makes sure that this device has the providers and CPU flags that a variant needs.
     *
     * @throws Refused one is missing.
     */
    fun require(variant: Variant) {
        for (provider in variant.providers) {
            val absence = absence(provider.name) ?: continue
            val about = manifest.sources[provider.name]
            throw Refused(if (about == null) absence else "$absence. $about")
        }
        val missing = (variant.cpuFlags - cpuFlags()).sorted()
        if (missing.isNotEmpty()) throw Refused("this CPU lacks ${missing.joinToString()}")
    }

    private fun absence(provider: String): String? {
        val available = OrtEnvironment.getAvailableProviders().map { it.getName() }
        val plugin = PLUGINS[provider]
        if (provider in available) return null
        if (plugin == null) return "$provider is not in this onnxruntime (it has ${available.joinToString()})"
        // Bundles of one app may open at the same time, and a plugin is registered once in a process.
        synchronized(environment) { if (devices(provider).isEmpty()) register(provider, plugin) }
        if (devices(provider).isNotEmpty()) return null
        return "$provider is in the plugin $plugin, which lists no device here"
    }

    private fun register(provider: String, library: String) {
        try {
            environment.registerExecutionProviderLibrary(provider, library)
        } catch (error: OrtException) {
            // One that lists no device stays registered, by this bundle's last opening or by another bundle.
            if ("already registered" in error.message.orEmpty()) return
            throw Refused("the plugin $library does not load: ${line(error)}")
        }
    }

    private fun devices(provider: String): List<OrtEpDevice> = environment.epDevices.filter { it.epName == provider }

    /**
     * Creates a variant's session for one size.
     *
     * What lies in the cache is no obstacle: where a session cannot be created with it, it is without.
     *
     * @param profiled whether [Session.endProfile] is called.
     * @throws Refused onnxruntime does not create it.
     */
    fun open(variant: Variant, bucket: Bucket, profiled: Boolean): Session {
        val cache = cache(variant, bucket)
        return try {
            opened(variant, bucket, profiled, cache)
        } catch (first: OrtException) {
            val kept = cache?.listFiles().orEmpty()
            if (kept.isEmpty()) throw refusal(first, variant)
            kept.forEach { it.deleteRecursively() }
            try {
                opened(variant, bucket, profiled, cache)
            } catch (second: OrtException) {
                throw refusal(second, variant)
            }
        }
    }

    private fun refusal(error: OrtException, variant: Variant): Refused {
        // So ends a session without the CPU, whatever kept nodes from the provider.
        val why =
            if (error.message.orEmpty().contains("fallback to CPU EP has been explicitly disabled")) {
                "${variant.providers.first().name} does not take every node, or not this device"
            } else {
                line(error)
            }
        return Refused("the session cannot be created: $why")
    }

    /** Returns a folder for what a provider compiles; null where the variant keeps nothing. */
    private fun cache(variant: Variant, bucket: Bucket): File? {
        val settings = variant.config.values + variant.providers.flatMap { it.options.values }
        if (settings.none { CACHE in it }) return null
        // Providers take what other settings or another runtime have made.
        val others = "${environment.version} ${variant.config} ${variant.providers.map { "${it.name} ${it.options}" }}"
        val folder = File(assets.cache, "${bucket.digest}/${digest(others)}")
        if (!folder.isDirectory && !folder.mkdirs()) throw Refused("its cache folder cannot be made: $folder")
        return folder
    }

    private fun opened(variant: Variant, bucket: Bucket, profiled: Boolean, cache: File?): Session =
        try {
            created(variant, bucket, profiled, cache, precise = saturates())
        } catch (error: OrtException) {
            // onnxruntime 1.31.1 fails with precise kernels where nodes share an int8 constant. The golden outputs
            // tell whether the others will do.
            if (!saturates()) throw error
            created(variant, bucket, profiled, cache, precise = false)
        }

    private fun created(variant: Variant, bucket: Bucket, profiled: Boolean, cache: File?, precise: Boolean): Session =
        SessionOptions().use { options ->
            configure(options, variant, precise, cache)
            for (provider in variant.providers) add(options, provider.name, filled(provider.options, cache))
            if (profiled) options.enableProfiling(profile().path)
            val model = assets.mapped(bucket.model)
            val weights = manifest.weights.filter { names(model, File(it).name) }
            if (weights.isEmpty()) mapped(bucket, model, options) else copied(weights + bucket.model, options)
        }

    /** Returns where a profile goes, its own: onnxruntime adds no more to the name than the time. */
    private fun profile(): File {
        profiles.mkdirs()
        return File(profiles, "${UUID.randomUUID()}")
    }

    /** Deletes the profiles, those too of sessions that were closed before [Session.endProfile], or not created. */
    fun deleteProfiles() {
        profiles.deleteRecursively()
    }

    private fun mapped(bucket: Bucket, model: ByteBuffer, options: SessionOptions): Session {
        if (!bucket.model.endsWith(".ort")) return session(environment.createSession(model, options))
        // Weights are read where they are mapped; a session copies those of .onnx files.
        options.addConfigEntry("session.use_ort_model_bytes_directly", "1")
        options.addConfigEntry("session.use_ort_model_bytes_for_initializers", "1")
        return session(environment.createSession(model, options)).also { MAPPED[it] = model }
    }

    /** Opens a model, the last of the files, whose weights are in the others: onnxruntime reads them from files. */
    private fun copied(paths: List<String>, options: SessionOptions): Session {
        val all = manifest.variants.flatMap { it.buckets }.joinToString { it.digest }
        val folder = assets.copied(paths, File(assets.cache, "weights-${digest(all)}"))
        return session(environment.createSession(File(folder, paths.last()).path, options))
    }

    private fun session(session: OrtSession): Session = Session(environment, session, manifest)

    private fun configure(options: SessionOptions, variant: Variant, precise: Boolean, cache: File?) {
        options.setSessionLogLevel(OrtLoggingLevel.ORT_LOGGING_LEVEL_ERROR)
        options.setIntraOpNumThreads(variant.threads)
        options.setOptimizationLevel(LEVELS.getValue(variant.level))
        if (precise) options.addConfigEntry(PRECISE, "1")
        if (variant.share == null && variant.providers.first().name != CPU) options.addConfigEntry(NO_FALLBACK, "1")
        for ((key, value) in filled(variant.config, cache)) options.addConfigEntry(key, value)
    }

    private fun filled(settings: Map<String, String>, cache: File?): Map<String, String> =
        settings.mapValues { it.value.replace(CACHE, cache?.path.orEmpty()) }

    private fun add(options: SessionOptions, provider: String, settings: Map<String, String>) {
        when (provider) {
            CPU -> return // always there, behind all others
            NNAPI -> options.addNnapi(flags(settings))
            XNNPACK -> options.addXnnpack(settings)
            QNN -> addQnn(options, settings)
            else -> throw Refused("$provider is not one that apps can add")
        }
    }

    private fun flags(settings: Map<String, String>): EnumSet<NNAPIFlags> {
        val set = settings.filterValues { it == "1" }.keys
        return EnumSet.noneOf(NNAPIFlags::class.java).apply { addAll(set.map(NNAPIFlags::valueOf)) }
    }

    /**
     * Adds QNN: the plugin's device of the kind that the options ask for, or onnxruntime's own.
     *
     * Not tried on a phone. Source: onnxruntime's documentation of the QNN provider (2026-11).
     */
    private fun addQnn(options: SessionOptions, settings: Map<String, String>) {
        val devices = devices(QNN)
        if (devices.isEmpty()) return options.addQnn(settings)
        val wanted =
            when (settings["backend_type"]) {
                "cpu" -> OrtHardwareDeviceType.CPU
                "gpu" -> OrtHardwareDeviceType.GPU
                else -> OrtHardwareDeviceType.NPU
            }
        val listed = devices.joinToString { "${it.device.type}" }
        val device = devices.firstOrNull { it.device.type == wanted }
            ?: throw Refused("$QNN's plugin lists no $wanted here, only $listed")
        options.addExecutionProvider(listOf(device), settings)
    }
}

/**
 * Returns onnxruntime's environment, whose first use loads its libraries.
 *
 * @throws ModelException they do not load, as where the app has none for this device's ABI.
 */
private fun environment(): OrtEnvironment =
    try {
        OrtEnvironment.getEnvironment()
    } catch (error: LinkageError) {
        val cause = generateSequence<Throwable>(error) { it.cause }.last()
        throw ModelException("onnxruntime does not load: ${line(cause)}", error)
    }

/** Tells whether a model has a file's name in it, as an ONNX file has those of the files with its weights. */
private fun names(model: ByteBuffer, file: String): Boolean {
    val name = file.toByteArray()
    for (start in 0..model.limit() - name.size) {
        if (name.indices.all { model[start + it] == name[it] }) return true
    }
    return false
}

/** Returns a name for a text, which no other text has. */
private fun digest(text: String): String {
    val bytes = MessageDigest.getInstance("SHA-256").digest(text.toByteArray())
    return bytes.take(8).joinToString("") { "%02x".format(it) }
}

/** Returns an error's beginning and end, where the cause is, as one line. */
internal fun line(error: Throwable): String {
    val text = "${error.message}".trim().split(Regex("\\s+")).joinToString(" ")
    return if (text.length <= LONGEST) text else "${text.take(80)} ... ${text.takeLast(LONGEST - 80)}"
}
