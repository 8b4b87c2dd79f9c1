import ai.onnxruntime.OrtException
import android.content.Context
import android.os.Build
import java.io.File
import java.util.Locale
import java.util.concurrent.ConcurrentHashMap
import org.json.JSONException
import org.json.JSONObject

/**
 * A variant that is better than the one in use but is not used, and why.
 *
 * @property variant the variant's id.
 */
data class PassedOver(
    val variant: String,
    val reason: String,
) {
    override fun toString(): String = "$variant: $reason"
}

/** What a [ModelException] is about, for an app that acts on it. */
enum class Reason {
    /** The bundle's files are missing, damaged, or of another version than the code. */
    BUNDLE,

    /** onnxruntime's libraries do not load, for example because the app has none for this device's ABI. */
    RUNTIME,

    /** No variant works on this device. */
    VARIANTS,

    /** An inference failed. */
    INFERENCE,
}

/**
 * The bundle does not work on this device, or an inference failed. The message gives the details.
 *
 * @property reason what it is about.
 */
class ModelException(
    message: String,
    cause: Throwable? = null,
    val reason: Reason = Reason.BUNDLE,
) : RuntimeException(message, cause)

/** A bundle with its variant that works here. */
internal class Opened(
    val meaning: Meaning,
    val manifest: Manifest,
    val files: BundleFiles,
    val loaded: Loaded,
    val passedOver: List<PassedOver>,
)

/** How a model is opened. */
internal class Request(
    val source: ModelSource,
    /** The only variant to use; null for the first that works. */
    val only: String? = null,
    /** Whether the files and variants are checked although an earlier open kept its verdict about them. */
    val isFresh: Boolean = false,
)

/**
 * What a model's own code takes and gives: that of the bundle that it came with. A bundle that comes later must have the same.
 *
 * @property type the model's class, with its package.
 * @property root the folder of the bundle's files among the app's assets, and in its cache.
 * @param bundle the bundle's name.
 * @param inputs the inputs, as `name: dtype[1, batch]`, like the outputs.
 * @param described the inputs and outputs that the code makes from something, or makes something of: name and kind.
 */
@ForGeneratedCode
class Interface(
    internal val type: String,
    internal val root: String,
    private val bundle: String,
    private val inputs: List<String>,
    private val outputs: List<String>,
    private val described: List<Pair<String, String>>,
) {
    /** The model's class without its package. */
    internal val name = type.substringAfterLast(".")

    /** @throws ModelException if a bundle has another name, other inputs or other outputs. */
    internal fun check(manifest: Manifest) {
        require("name", bundle, manifest.name)
        require("inputs", "$inputs", "${manifest.inputs}")
        require("outputs", "$outputs", "${manifest.outputs}")
        for ((tensor, kind) in described) {
            val input = manifest.inputDescriptions[tensor]
            val found = manifest.outputDescriptions[tensor]?.optString("kind") ?: kind.takeIf { input?.opt(it) is JSONObject }
            require("description of '$tensor'", kind, "$found")
        }
    }

    private fun require(what: String, wanted: String, found: String) {
        if (wanted == found) return
        throw ModelException("the bundle does not fit this code: its $what is $found, the code's is $wanted")
    }
}

/**
 * Opens the first variant of a bundle that works on this device.
 *
 * The first open of a bundle checks its files and variants; later ones open the variant that worked, as long as the
 * bundle, onnxruntime and the system stay the same.
 *
 * @throws IllegalArgumentException if the bundle has no variant with the requested id.
 * @throws ModelException if the bundle is not whole or does not fit the code, or if no variant works; the message has the
 * reason for each.
 */
@OptIn(ForGeneratedCode::class)
internal fun openBundle(context: Context, code: Interface, request: Request): Opened {
    requireOneOwner(code)
    // No class that uses onnxruntime's classes loads before this line.
    // Official builds of onnxruntime 1.29 and newer send telemetry unless this variable is set before they load.
    // Source: Privacy.md in the onnxruntime 1.31.1 wheel.
    setVariable("ORT_DISABLE_TELEMETRY", "1", overwrite = true)
    val files = BundleFiles(request.source.connect(context, code.root), File(context.codeCacheDir, code.root))
    val bytes = files.readBytes("manifest.json")
    request.source.signer?.check(bytes, readSignature(files))
    val manifest =
        try {
            parseManifest(bytes)
        } catch (error: JSONException) {
            throw ModelException("the bundle is damaged: manifest.json: ${error.message}", error)
        }
    code.check(manifest)
    if (manifest.variants.any { variant -> variant.providers.any { it.name == QNN } }) {
        // The folder in which the Hexagon processor finds its part of QNN. Source: onnxruntime's own Android test (1.24).
        setVariable("ADSP_LIBRARY_PATH", context.applicationInfo.nativeLibraryDir, overwrite = false)
    }
    return Opener(files, manifest).open(request)
}

/** The models that were opened, by their folders of files. */
private val OWNERS = ConcurrentHashMap<String, String>()

/** Checks that no other model of the app has the folder: one would be opened with the files of the other. */
@OptIn(ForGeneratedCode::class)
private fun requireOneOwner(code: Interface) {
    val owner = OWNERS.putIfAbsent(code.root, code.type) ?: code.type
    if (owner == code.type) return
    throw ModelException("$owner and ${code.type} have one folder of assets, ${code.root}: give one of the projects another name")
}

private fun readSignature(files: BundleFiles): ByteArray =
    try {
        files.readBytes("manifest.json.sig")
    } catch (missing: ModelException) {
        throw ModelException("the bundle is not signed: ${missing.message}", missing)
    }

private class Opener(private val files: BundleFiles, private val manifest: Manifest) {
    private val sessions = Sessions(files, manifest)
    private val goldens = Goldens(files, manifest)

    /** Read once the files are known to be whole. An open model needs them after a newer version has replaced its files. */
    private val meaning by lazy { Meaning(manifest, files) }

    fun open(request: Request): Opened {
        val only = request.only
        val ids = manifest.variants.map { it.id }
        require(only == null || only in ids) { "the bundle has no variant '$only'; it has: ${ids.joinToString()}" }
        val facts = listOf(manifest.digest, sessions.version, Build.FINGERPRINT, files.stamp())
        val verdicts = Verdicts(files.cache, computeDigest(manifest.digest + only), facts.joinToString("\n"))
        val kept = if (request.isFresh) null else verdicts.read()?.let(::reopen)
        return kept ?: choose(only).also { verdicts.write(Verdict(it.loaded.variant.id, it.passedOver)) }
    }

    /** Opens the variant that worked before; returns null if it does not load any more. */
    private fun reopen(verdict: Verdict): Opened? {
        val variant = manifest.variants.firstOrNull { it.id == verdict.variant } ?: return null
        return try {
            sessions.require(variant)
            Opened(meaning, manifest, files, load(variant, profiled = false), verdict.passedOver)
        } catch (changed: Refused) {
            null
        }
    }

    private fun choose(only: String?): Opened {
        files.verify(manifest.files)
        try {
            return openFirst(manifest.variants.filter { only == null || it.id == only })
        } finally {
            sessions.deleteProfiles()
        }
    }

    private fun openFirst(variants: List<Variant>): Opened {
        val passedOver = mutableListOf<PassedOver>()
        for (variant in variants) {
            try {
                return Opened(meaning, manifest, files, openProven(variant), passedOver)
            } catch (refusal: Refused) {
                passedOver += PassedOver(variant.id, refusal.message.orEmpty())
            }
        }
        val reasons = passedOver.joinToString("") { "\n  $it" }
        throw ModelException("no variant of ${manifest.name} works on this device:$reasons", reason = Reason.VARIANTS)
    }

    /** Opens a variant's sessions and checks that their outputs are near enough to the golden ones. */
    private fun openProven(variant: Variant): Loaded {
        try {
            sessions.require(variant)
            val loaded = load(variant, profiled = variant.share != null)
            return closeUnless({ prove(loaded) }, loaded)
        } catch (error: OrtException) {
            throw Refused("inference failed: ${formatLine(error)}")
        }
    }

    private fun load(variant: Variant, profiled: Boolean): Loaded {
        val opened = mutableListOf<Session>()
        val loaded = Loaded(variant, opened, manifest)
        return closeUnless({ variant.buckets.forEach { opened += sessions.open(variant, it, profiled) } }, loaded)
    }

    private fun <T : AutoCloseable> closeUnless(works: () -> Unit, resource: T): T {
        var worked = false
        try {
            works()
            worked = true
            return resource
        } finally {
            if (!worked) resource.close()
        }
    }

    private fun prove(loaded: Loaded) {
        val first = goldens.readInputs(0)
        check(loaded.variant, goldens.computeClosenessDb(0, loaded.variant.id, loaded.run(first)), "")
        proveSizes(loaded, first)
        for (index in 1 until goldens.count) {
            val found = goldens.computeClosenessDb(index, loaded.variant.id, loaded.run(goldens.readInputs(index)))
            check(loaded.variant, found, " for golden sample ${index + 1}")
        }
        loaded.variant.share?.let { checkShare(loaded, first, it) }
    }

    /**
     * Runs a padded golden input in each session and compares the outputs.
     *
     * Where no golden input fits into a size, it runs one that is cut to the size; nothing is known about its outputs.
     */
    private fun proveSizes(loaded: Loaded, first: Tensors) {
        val variant = loaded.variant
        if (variant.buckets.size == 1) return
        val feeds = List(goldens.count, goldens::readInputs)
        for ((number, bucket) in variant.buckets.withIndex()) {
            val held = feeds.indexOfFirst { loaded.takes(bucket, it) }
            if (held < 0) {
                loaded.runIn(number, Shapes(manifest).resizeInputs(first, bucket.dims))
                continue
            }
            val found = goldens.computeClosenessDb(held, variant.id, loaded.runIn(number, feeds[held]))
            check(variant, found, " for ${formatSizes(bucket.dims)}")
        }
    }

    private fun check(variant: Variant, found: Double, which: String) {
        if (found < variant.minDb) {
            val needed = formatDb(variant.minDb)
            throw Refused("its output$which is ${formatDb(found)} dB near the golden one, $needed dB are needed")
        }
    }

    /**
     * Checks that the variant's first provider runs enough of the nodes that the CPU would run without it.
     *
     * onnxruntime's Java API does not report which nodes it assigned to a provider, and its profile counts all nodes
     * that a provider compiled as one. So this counts the nodes of the other providers, and compares with the nodes of
     * a session on the CPU alone.
     */
    private fun checkShare(loaded: Loaded, first: Tensors, wanted: Double) {
        val provider = loaded.variant.providers.first().name
        val others = loaded.listProviders(first).filter { it != provider }
        val cpu = loaded.variant.copy(providers = listOf(Provider(CPU, emptyMap())), config = emptyMap())
        val all = load(cpu, profiled = true).use {
            it.run(first)
            it.listProviders(first)
        }
        val share = 1 - others.size.toDouble() / all.size
        if (share < wanted) {
            throw Refused("$provider runs ${formatPercent(share)} of the nodes, at least ${formatPercent(wanted)} are needed")
        }
    }

    private fun formatPercent(share: Double): String = "%.0f%%".format(Locale.ROOT, 100 * maxOf(share, 0.0))
}

/** Returns dB as text, such as `31.4`. */
private fun formatDb(db: Double): String = if (db.isInfinite()) "-inf" else "%.1f".format(Locale.ROOT, db)

/** A variant with its sessions. Threads may share it. */
internal class Loaded(
    val variant: Variant,
    private val sessions: List<Session>,
    manifest: Manifest,
) : AutoCloseable {
    private val shapes = Shapes(manifest)

    /**
     * Checks the inputs and adds the masks that are missing.
     *
     * @throws IllegalArgumentException if the inputs do not fit the model or each other.
     */
    fun checkInputs(given: Tensors): Tensors = shapes.checkInputs(given)

    /**
     * Runs an inference in the session of the smallest size into which the inputs fit.
     *
     * @param given the inputs; masks may be left out.
     * @throws IllegalArgumentException if the inputs do not fit, or are larger than every model.
     * @throws OrtException if onnxruntime fails.
     */
    fun run(given: Tensors): Tensors {
        val feed = checkInputs(given)
        return runIn(chooseBucket(feed), feed)
    }

    /**
     * Runs an inference as [run] does.
     *
     * @throws ModelException if onnxruntime fails.
     */
    fun predict(given: Tensors): Tensors =
        try {
            run(given)
        } catch (error: OrtException) {
            throw ModelException("inference failed: ${formatLine(error)}", error, Reason.INFERENCE)
        }

    private fun chooseBucket(feed: Tensors): Int = chooseBucket(variant.buckets, shapes.readSizes(feed), variant.exact)

    /** Runs an inference in the session of one size, into which the inputs fit. */
    fun runIn(number: Int, feed: Tensors): Tensors {
        val outputs = sessions[number].run(shapes.padInputs(feed, variant.buckets[number].dims))
        return cut(outputs, variant.slices, shapes.readSizes(feed))
    }

    /**
     * Returns memory for inferences on the model's one input, of a shape that it takes.
     *
     * @throws IllegalStateException if the variant would fill such an input up to a larger one.
     */
    fun pin(input: Spec, shape: LongArray): Pinned {
        val sizes = findSizes(input, shape)
        val number = chooseBucket(variant.buckets, sizes, variant.exact)
        val larger = variant.buckets[number].dims.filter { (dim, size) -> sizes[dim] != size }
        check(larger.isEmpty()) { "the variant ${variant.id} has no model of this size, but of ${formatSizes(larger)}" }
        return sessions[number].pin(input, shape)
    }

    /** Returns whether the inputs fit into a bucket's sizes. */
    fun takes(bucket: Bucket, feed: Tensors): Boolean = takes(bucket, shapes.readSizes(feed), variant.exact)

    /** Ends the profiles and returns the provider of each node that ran. Call it after [run] with these inputs. */
    fun listProviders(feed: Tensors): List<String> = sessions.map { it.endProfile() }[chooseBucket(feed)]

    override fun close() = sessions.forEach { it.close() }
}
