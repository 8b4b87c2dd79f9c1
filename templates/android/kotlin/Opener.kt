import ai.onnxruntime.OrtException
import android.content.Context
import java.util.Locale
import org.json.JSONException

/** A variant that is not used although it comes before the one that is, and why. */
class PassedOver internal constructor(
    /** The variant's id. */
    val variant: String,
    val reason: String,
) {
    override fun toString(): String = "$variant: $reason"
}

/** The bundle cannot be used on this device, or an inference failed. The message says why. */
class ModelException internal constructor(message: String, cause: Throwable? = null) :
    RuntimeException(message, cause)

/** A bundle with the variant of it that works here. */
internal class Opened(
    val manifest: Manifest,
    val assets: Assets,
    val loaded: Loaded,
    val passedOver: List<PassedOver>,
) {
    val meaning = Meaning(manifest, assets)
}

/**
 * Opens the first variant of the bundle that works on this device.
 *
 * @param only use this variant or none.
 * @throws IllegalArgumentException the bundle has no variant of that name.
 * @throws ModelException none works, with the reason for each.
 */
internal fun openBundle(context: Context, only: String?): Opened {
    // No class that names one of onnxruntime's is loaded before this.
    // Official builds of onnxruntime 1.29 and newer send telemetry unless this is set before they load.
    // Source: Privacy.md in the onnxruntime 1.31.1 wheel.
    setVariable("ORT_DISABLE_TELEMETRY", "1", overwrite = true)
    val assets = Assets(context)
    val manifest =
        try {
            parseManifest(assets.text("manifest.json"))
        } catch (error: JSONException) {
            throw ModelException("the bundle is damaged: manifest.json: ${error.message}", error)
        }
    if (manifest.variants.any { variant -> variant.providers.any { it.name == QNN } }) {
        // Where the Hexagon processor finds its part of QNN. Source: onnxruntime's own Android test (1.24).
        setVariable("ADSP_LIBRARY_PATH", context.applicationInfo.nativeLibraryDir, overwrite = false)
    }
    return Opener(assets, manifest).open(only)
}

private class Opener(private val assets: Assets, private val manifest: Manifest) {
    private val sessions = Sessions(assets, manifest)
    private val goldens = Goldens(assets, manifest)

    fun open(only: String?): Opened {
        val ids = manifest.variants.map { it.id }
        require(only == null || only in ids) { "the bundle has no variant '$only'; it has: ${ids.joinToString()}" }
        try {
            return firstProven(manifest.variants.filter { only == null || it.id == only })
        } finally {
            sessions.deleteProfiles()
        }
    }

    private fun firstProven(variants: List<Variant>): Opened {
        val passedOver = mutableListOf<PassedOver>()
        for (variant in variants) {
            try {
                return Opened(manifest, assets, proven(variant), passedOver)
            } catch (refusal: Refused) {
                passedOver += PassedOver(variant.id, refusal.message.orEmpty())
            }
        }
        val reasons = passedOver.joinToString("") { "\n  $it" }
        throw ModelException("no variant of ${manifest.name} works on this device:$reasons")
    }

    /** Returns a variant's sessions, once their outputs are seen to be near enough to the golden ones. */
    private fun proven(variant: Variant): Loaded {
        try {
            sessions.require(variant)
            val loaded = loaded(variant, profiled = variant.share != null)
            return closedUnless({ prove(loaded) }, loaded)
        } catch (error: OrtException) {
            throw Refused("inference failed: ${line(error)}")
        }
    }

    private fun loaded(variant: Variant, profiled: Boolean): Loaded {
        val opened = mutableListOf<Session>()
        val loaded = Loaded(variant, opened, manifest)
        return closedUnless({ variant.buckets.forEach { opened += sessions.open(variant, it, profiled) } }, loaded)
    }

    private fun <T : AutoCloseable> closedUnless(works: () -> Unit, resource: T): T {
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
        val first = goldens.inputs(0)
        check(loaded.variant, goldens.closenessDb(0, loaded.variant.id, loaded.run(first)), "")
        proveSizes(loaded, first)
        for (index in 1 until goldens.count) {
            val found = goldens.closenessDb(index, loaded.variant.id, loaded.run(goldens.inputs(index)))
            check(loaded.variant, found, " for golden sample ${index + 1}")
        }
        loaded.variant.share?.let { checkShare(loaded, first, it) }
    }

    /**
     * Runs a golden input, padded, in each session, and compares.
     *
     * A size that holds none is run with one that is cut to it, whose outputs nothing is known about.
     */
    private fun proveSizes(loaded: Loaded, first: Tensors) {
        val variant = loaded.variant
        if (variant.buckets.size == 1) return
        val feeds = List(goldens.count, goldens::inputs)
        for ((number, bucket) in variant.buckets.withIndex()) {
            val held = feeds.indexOfFirst { loaded.takes(bucket, it) }
            if (held < 0) {
                loaded.runIn(number, Shapes(manifest).resized(first, bucket.dims))
                continue
            }
            val found = goldens.closenessDb(held, variant.id, loaded.runIn(number, feeds[held]))
            check(variant, found, " for ${words(bucket.dims)}")
        }
    }

    private fun check(variant: Variant, found: Double, which: String) {
        if (found < variant.minDb) {
            val needed = decibels(variant.minDb)
            throw Refused("its output$which is ${decibels(found)} dB near the golden one, $needed dB are needed")
        }
    }

    /**
     * Makes sure that the variant's first provider runs enough of the nodes that the CPU would run without it.
     *
     * onnxruntime's Java API does not tell what it assigned, and its profile counts what a provider compiled as one
     * node: so the nodes that are left to others are counted, against those of a session on the CPU.
     */
    private fun checkShare(loaded: Loaded, first: Tensors, wanted: Double) {
        val provider = loaded.variant.providers.first().name
        val others = loaded.providersOf(first).filter { it != provider }
        val cpu = loaded.variant.copy(providers = listOf(Provider(CPU, emptyMap())), config = emptyMap())
        val all = loaded(cpu, profiled = true).use {
            it.run(first)
            it.providersOf(first)
        }
        val share = 1 - others.size.toDouble() / all.size
        if (share < wanted) {
            throw Refused("$provider runs ${percent(share)} of the nodes, at least ${percent(wanted)} are needed")
        }
    }

    private fun percent(share: Double): String = "%.0f%%".format(Locale.ROOT, 100 * maxOf(share, 0.0))
}

/** Returns dB as text, such as `31.4`. */
private fun decibels(db: Double): String = if (db.isInfinite()) "-inf" else "%.1f".format(Locale.ROOT, db)

/** A variant with its sessions. Threads may share it. */
internal class Loaded(
    val variant: Variant,
    private val sessions: List<Session>,
    manifest: Manifest,
) : AutoCloseable {
    private val shapes = Shapes(manifest)

    /**
     * Returns the inputs, with the masks that are missing.
     *
     * @throws IllegalArgumentException they do not fit the model, or each other.
     */
    fun checked(given: Tensors): Tensors = shapes.checked(given)

    /**
     * Runs an inference in the session of the smallest size that holds the inputs.
     *
     * @param given the inputs; those that are masks may be left out.
     * @throws IllegalArgumentException the inputs do not fit, or are larger than any model.
     * @throws OrtException onnxruntime failed.
     */
    fun run(given: Tensors): Tensors {
        val feed = checked(given)
        return runIn(number(feed), feed)
    }

    /**
     * Runs an inference as [run] does.
     *
     * @throws ModelException onnxruntime failed.
     */
    fun predict(given: Tensors): Tensors =
        try {
            run(given)
        } catch (error: OrtException) {
            throw ModelException("inference failed: ${line(error)}", error)
        }

    private fun number(feed: Tensors): Int = choose(variant.buckets, shapes.sizes(feed), variant.exact)

    /** Runs an inference in the session of one size, which holds the inputs. */
    fun runIn(number: Int, feed: Tensors): Tensors {
        val outputs = sessions[number].run(shapes.padded(feed, variant.buckets[number].dims))
        return cut(outputs, variant.slices, shapes.sizes(feed))
    }

    /** Tells whether a session's size holds the inputs. */
    fun takes(bucket: Bucket, feed: Tensors): Boolean = takes(bucket, shapes.sizes(feed), variant.exact)

    /** Ends the profiles and returns the provider of each node that ran for these inputs, which have been run. */
    fun providersOf(feed: Tensors): List<String> = sessions.map { it.endProfile() }[number(feed)]

    override fun close() = sessions.forEach { it.close() }
}
