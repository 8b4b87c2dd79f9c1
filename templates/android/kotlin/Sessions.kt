import ai.onnxruntime.OnnxJavaType
import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtEpDevice
import ai.onnxruntime.OrtException
import ai.onnxruntime.OrtHardwareDevice.OrtHardwareDeviceType
import ai.onnxruntime.OrtLoggingLevel
import ai.onnxruntime.OrtSession
import ai.onnxruntime.OrtSession.RunOptions
import ai.onnxruntime.OrtSession.SessionOptions
import ai.onnxruntime.OrtSession.SessionOptions.ExecutionMode
import ai.onnxruntime.OrtSession.SessionOptions.OptLevel
import ai.onnxruntime.providers.NNAPIFlags
import java.io.File
import java.io.IOException
import java.nio.ByteBuffer
import java.util.EnumSet
import java.util.UUID
import java.util.concurrent.CancellationException
import java.util.concurrent.ConcurrentHashMap
import org.json.JSONArray
import org.json.JSONException

internal const val CPU = "CPUExecutionProvider"
private const val NNAPI = "NnapiExecutionProvider"
internal const val QNN = "QNNExecutionProvider"
private const val XNNPACK = "XnnpackExecutionProvider"

/** Stands in a setting's value for the variant's folder for compiled models. */
private const val CACHE = "{cache}"
private const val PRECISE = "session.x64quantprecision"
private const val NO_FALLBACK = "session.disable_cpu_ep_fallback"
private const val LONGEST = 400

/** Plugin libraries with a provider for onnxruntime, such as com.qualcomm.qti:onnxruntime-android-qnn 2 has. */
private val PLUGINS = mapOf(QNN to "libonnxruntime_providers_qnn.so")

private val LEVELS =
    mapOf(
        "disabled" to OptLevel.NO_OPT,
        "basic" to OptLevel.BASIC_OPT,
        "extended" to OptLevel.EXTENDED_OPT,
        "all" to OptLevel.ALL_OPT,
    )

private val MODES = mapOf("sequential" to ExecutionMode.SEQUENTIAL, "parallel" to ExecutionMode.PARALLEL)

internal val TYPES =
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

/** Ends the runs of onnxruntime in calls that [during] makes. Threads may share it. */
internal class Stop {
    private var options: RunOptions? = null
    private var isCalled = false

    /** Makes a call whose runs it ends, on this thread. */
    fun <T> during(call: () -> T): T {
        OF_THREAD.set(this)
        try {
            return call()
        } finally {
            OF_THREAD.remove()
        }
    }

    /** Ends the run that is in progress, and those that begin after this. */
    @Synchronized
    fun call() {
        isCalled = true
        options?.setTerminate(true)
    }

    /**
     * Runs with options that [call] changes meanwhile.
     *
     * @throws CancellationException if it was called.
     */
    fun <T> run(work: (RunOptions?) -> T): T =
        RunOptions().use { own ->
            begin(own)
            try {
                work(own)
            } catch (error: OrtException) {
                requireNotCalled(error)
                throw error
            } finally {
                end()
            }
        }

    @Synchronized
    private fun begin(own: RunOptions) {
        requireNotCalled(null)
        options = own
    }

    @Synchronized
    private fun end() {
        options = null
    }

    private fun requireNotCalled(error: OrtException?) {
        if (isCalled) throw CancellationException("the call was cancelled").apply { initCause(error) }
    }

    companion object {
        private val OF_THREAD = ThreadLocal<Stop>()

        /** The one within whose [during] this thread is. */
        val current: Stop? get() = OF_THREAD.get()
    }
}

/** Runs onnxruntime so that the thread's [Stop] can end it, where it has one. */
internal fun <T> stoppable(run: (RunOptions?) -> T): T = Stop.current?.run(run) ?: run(null)

/** One session of onnxruntime. Threads may share it. */
internal class Session(
    private val environment: OrtEnvironment,
    private val session: OrtSession,
    private val manifest: Manifest,
) : AutoCloseable {
    /**
     * Runs an inference.
     *
     * @param feed all inputs, in shapes that the model takes.
     * @throws OrtException if onnxruntime fails.
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
            return stoppable { session.run(made, names, it) }.use { result ->
                manifest.outputs.associate { it.name to takeOutput(it, result.get(it.name).get() as OnnxTensor) }
            }
        } finally {
            made.values.forEach { it.close() }
        }
    }

    /** Returns memory for inferences on one input of a shape. */
    fun pin(input: Spec, shape: LongArray): Pinned = Pinned(environment, session, manifest.outputs, input, shape)

    private fun takeOutput(spec: Spec, output: OnnxTensor): Tensor {
        val shape = output.info.getShape()
        // A tensor without elements has no buffer.
        return if (0L in shape) spec.dtype.makeFilled(shape, 0) else spec.dtype.decode(shape, output.byteBuffer)
    }

    /**
     * Ends the session's profile and returns the provider of each node in it.
     *
     * Source: node events have cat "Node", a name that ends in "_kernel_time", and args.provider
     * (onnxruntime 1.31.1, observed).
     *
     * @throws Refused if onnxruntime did not write it, for example because the device's storage is full.
     */
    fun endProfile(): List<String> {
        val events = readEvents(File(session.endProfiling()))
        val nodes = List(events.length(), events::getJSONObject).filter { event ->
            event.optString("cat") == "Node" && event.optString("name").endsWith("_kernel_time")
        }
        val ran = nodes.associateBy { it.getJSONObject("args").optString("node_index") to it.getString("name") }
        return ran.values.map { it.getJSONObject("args").getString("provider") }
    }

    private fun readEvents(profile: File): JSONArray =
        try {
            JSONArray(profile.readText())
        } catch (error: IOException) {
            throw Refused("its profile cannot be read: ${formatLine(error)}")
        } catch (error: JSONException) {
            throw Refused("its profile cannot be read: ${formatLine(error)}")
        }

    override fun close() {
        session.close()
        MAPPED.remove(this)
    }
}

/** The memory from which sessions read their weights: onnxruntime itself keeps no reference to it. */
private val MAPPED = ConcurrentHashMap<Session, ByteBuffer>()

/** Makes sessions as the manifest describes them. */
internal class Sessions(private val files: BundleFiles, private val manifest: Manifest) {
    private val environment: OrtEnvironment = startEnvironment()
    private val profiles = File(files.cache, "profiles-${UUID.randomUUID()}")

    /**
     * Checks that this device has the providers and CPU flags that a variant needs.
     *
     * @throws Refused if one is missing.
     */
    fun require(variant: Variant) {
        for (provider in variant.providers) {
            val absence = explainAbsence(provider.name) ?: continue
            val about = manifest.sources[provider.name]
            throw Refused(if (about == null) absence else "$absence. $about")
        }
        val missing = (variant.cpuFlags - readCpuFlags()).sorted()
        if (missing.isNotEmpty()) throw Refused("this CPU lacks ${missing.joinToString()}")
    }

    private fun explainAbsence(provider: String): String? {
        val available = OrtEnvironment.getAvailableProviders().map { it.getName() }
        val plugin = PLUGINS[provider]
        if (provider in available) return null
        if (plugin == null) return "$provider is not in this onnxruntime (it has ${available.joinToString()})"
        // Bundles of one app may open at the same time, but a process registers a plugin only once.
        synchronized(environment) { if (listDevices(provider).isEmpty()) register(provider, plugin) }
        if (listDevices(provider).isNotEmpty()) return null
        return "$provider is in the plugin $plugin, which lists no device here"
    }

    private fun register(provider: String, library: String) {
        try {
            environment.registerExecutionProviderLibrary(provider, library)
        } catch (error: OrtException) {
            // A plugin that lists no device stays registered: this bundle or another one opened before.
            if ("already registered" in error.message.orEmpty()) return
            throw Refused("the plugin $library does not load: ${formatLine(error)}")
        }
    }

    private fun listDevices(provider: String): List<OrtEpDevice> = environment.epDevices.filter { it.epName == provider }

    /** onnxruntime's version, such as `1.29.0`. */
    val version: String get() = environment.version

    /**
     * Creates a variant's session for one size.
     *
     * If onnxruntime cannot create the session with the files in the cache, this deletes them and tries again.
     *
     * @param profiled whether the caller will call [Session.endProfile].
     * @throws Refused if onnxruntime does not create the session.
     */
    fun open(variant: Variant, bucket: Bucket, profiled: Boolean): Session {
        val cache = makeCacheFolder(variant, bucket)
        return try {
            openSession(variant, bucket, profiled, cache)
        } catch (first: OrtException) {
            val kept = cache?.listFiles().orEmpty()
            if (kept.isEmpty()) throw explainRefusal(first, variant)
            kept.forEach { it.deleteRecursively() }
            try {
                openSession(variant, bucket, profiled, cache)
            } catch (second: OrtException) {
                throw explainRefusal(second, variant)
            }
        }
    }

    private fun explainRefusal(error: OrtException, variant: Variant): Refused {
        // onnxruntime gives this message for a session without the CPU, whatever the reason is.
        val why =
            if (error.message.orEmpty().contains("fallback to CPU EP has been explicitly disabled")) {
                "${variant.providers.first().name} does not take every node, or not this device"
            } else {
                formatLine(error)
            }
        return Refused("the session cannot be created: $why")
    }

    /** Makes the folder for a provider's compiled models; returns null where the variant keeps none. */
    private fun makeCacheFolder(variant: Variant, bucket: Bucket): File? {
        val settings = variant.config.values + variant.providers.flatMap { it.options.values }
        if (settings.none { CACHE in it }) return null
        // A provider would load files that another runtime or other settings have made, so the name has both.
        val others = "${environment.version} ${variant.config} ${variant.providers.map { "${it.name} ${it.options}" }}"
        val folder = File(files.cache, "${bucket.digest}/${computeDigest(others).take(16)}")
        if (!folder.isDirectory && !folder.mkdirs()) throw Refused("its cache folder cannot be made: $folder")
        return folder
    }

    private fun openSession(variant: Variant, bucket: Bucket, profiled: Boolean, cache: File?): Session =
        try {
            createSession(variant, bucket, profiled, cache, precise = saturates())
        } catch (error: OrtException) {
            // onnxruntime 1.31.1 fails with precise kernels where nodes share an int8 constant. The golden outputs
            // show whether the default kernels are good enough.
            if (!saturates()) throw error
            createSession(variant, bucket, profiled, cache, precise = false)
        }

    private fun createSession(variant: Variant, bucket: Bucket, profiled: Boolean, cache: File?, precise: Boolean): Session =
        SessionOptions().use { options ->
            configure(options, variant, precise, cache)
            for (provider in variant.providers) add(options, provider.name, fillCachePath(provider.options, cache))
            if (profiled) options.enableProfiling(makeProfilePath().path)
            val model = files.mapFile(manifest.getFile(bucket.model))
            val weights = manifest.weights.filter { containsName(model, File(it).name) }
            if (weights.isEmpty()) openMapped(bucket, model, options) else openCopied(weights + bucket.model, options)
        }

    /** Returns a unique path for a profile: onnxruntime itself adds only the time to the name. */
    private fun makeProfilePath(): File {
        profiles.mkdirs()
        return File(profiles, "${UUID.randomUUID()}")
    }

    /** Deletes all profiles, also those of sessions that closed before [Session.endProfile] or were never created. */
    fun deleteProfiles() {
        profiles.deleteRecursively()
    }

    private fun openMapped(bucket: Bucket, model: ByteBuffer, options: SessionOptions): Session {
        if (!bucket.model.endsWith(".ort")) return wrapSession(environment.createSession(model, options))
        // The session reads the weights of an .ort file from the mapped file; it copies those of an .onnx file.
        options.addConfigEntry("session.use_ort_model_bytes_directly", "1")
        options.addConfigEntry("session.use_ort_model_bytes_for_initializers", "1")
        return wrapSession(environment.createSession(model, options)).also { MAPPED[it] = model }
    }

    /** Opens the model in the last of the files. Its weights are in the others, which onnxruntime reads from a folder. */
    private fun openCopied(paths: List<String>, options: SessionOptions): Session {
        val all = manifest.variants.flatMap { it.buckets }.joinToString { it.digest }
        val folder = files.folder ?: files.copyFiles(paths, File(files.cache, "weights-${computeDigest(all).take(16)}"))
        return wrapSession(environment.createSession(File(folder, paths.last()).path, options))
    }

    private fun wrapSession(session: OrtSession): Session = Session(environment, session, manifest)

    private fun configure(options: SessionOptions, variant: Variant, precise: Boolean, cache: File?) {
        val settings = variant.session
        options.setSessionLogLevel(OrtLoggingLevel.mapFromInt(settings.logLevel))
        options.setIntraOpNumThreads(settings.threads)
        options.setOptimizationLevel(LEVELS.getValue(settings.level))
        options.setExecutionMode(MODES.getValue(settings.mode))
        options.setInterOpNumThreads(settings.interOpThreads)
        options.setCPUArenaAllocator(settings.arena)
        options.setMemoryPatternOptimization(settings.memoryPattern)
        if (precise) options.addConfigEntry(PRECISE, "1")
        if (variant.share == null && variant.providers.first().name != CPU) options.addConfigEntry(NO_FALLBACK, "1")
        for ((key, value) in fillCachePath(variant.config, cache)) options.addConfigEntry(key, value)
    }

    private fun fillCachePath(settings: Map<String, String>, cache: File?): Map<String, String> =
        settings.mapValues { it.value.replace(CACHE, cache?.path.orEmpty()) }

    private fun add(options: SessionOptions, provider: String, settings: Map<String, String>) {
        when (provider) {
            CPU -> return // onnxruntime always has it, as the last one
            NNAPI -> options.addNnapi(readFlags(settings))
            XNNPACK -> options.addXnnpack(settings)
            QNN -> addQnn(options, settings)
            else -> throw Refused("$provider is not one that apps can add")
        }
    }

    private fun readFlags(settings: Map<String, String>): EnumSet<NNAPIFlags> {
        val set = settings.filterValues { it == "1" }.keys
        return EnumSet.noneOf(NNAPIFlags::class.java).apply { addAll(set.map(NNAPIFlags::valueOf)) }
    }

    /**
     * Adds QNN: the plugin's device of the kind in the options, or else onnxruntime's built-in provider.
     *
     * Not tried on a phone. Source: onnxruntime's documentation of the QNN provider (2026-11).
     */
    private fun addQnn(options: SessionOptions, settings: Map<String, String>) {
        val devices = listDevices(QNN)
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
 * Returns onnxruntime's environment. Its first use loads onnxruntime's libraries.
 *
 * @throws ModelException if they do not load, for example because the app has none for this device's ABI.
 */
private fun startEnvironment(): OrtEnvironment =
    try {
        OrtEnvironment.getEnvironment()
    } catch (error: LinkageError) {
        val cause = generateSequence<Throwable>(error) { it.cause }.last()
        throw ModelException("onnxruntime does not load: ${formatLine(cause)}", error, Reason.RUNTIME)
    }

/** Returns whether a model contains a file's name: an ONNX file contains the names of its weight files. */
private fun containsName(model: ByteBuffer, file: String): Boolean {
    val name = file.toByteArray()
    for (start in 0..model.limit() - name.size) {
        if (name.indices.all { model[start + it] == name[it] }) return true
    }
    return false
}

/** Returns the beginning and the end of an error's message as one line; the cause is at the end. */
internal fun formatLine(error: Throwable): String {
    val text = "${error.message}".trim().split(Regex("\\s+")).joinToString(" ")
    return if (text.length <= LONGEST) text else "${text.take(80)} ... ${text.takeLast(LONGEST - 80)}"
}
