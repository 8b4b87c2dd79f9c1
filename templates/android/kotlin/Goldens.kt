import java.nio.ByteBuffer
import kotlin.math.log10
import kotlin.math.min

/** The result of [computeClosenessDb] for equal tensors. */
internal const val EQUAL_DB = 200.0

/** The share of values that must be equal in a tensor of integers or booleans, for example of class indices. */
private const val MIN_EQUAL_SHARE = 0.99

/**
 * The result of running the golden inputs.
 *
 * @property variant the id of the variant that ran.
 * @property decibels for each golden sample, the closeness of the worst output in dB; 200 means equal.
 * @property needed the dB that each golden sample must reach.
 */
data class SelfTest(
    val variant: String,
    val decibels: List<Double>,
    val needed: Double,
) {
    /** Whether all golden samples reach it. */
    val passed: Boolean get() = decibels.all { it >= needed }

    override fun toString(): String =
        "$variant: ${if (passed) "passed" else "failed"}, ${decibels.min()} dB of $needed dB"
}

/** The bundle's golden tensors: inputs, and the outputs that each variant gave for them on the build host. */
internal class Goldens(private val files: BundleFiles, private val manifest: Manifest) {
    /** The number of samples, at least 1. */
    val count get() = manifest.goldens.size

    /** Returns the inputs of one sample. */
    fun readInputs(index: Int): Tensors = readTensors(manifest.goldens[index].inputs)

    /**
     * Returns the closeness of a sample's outputs to its golden outputs in dB: that of the worst output.
     *
     * Where an output or a quantity must be nearer than others, its extra dB are subtracted, so that one limit serves all.
     */
    fun computeClosenessDb(index: Int, variant: String, found: Tensors): Double =
        manifest.goldens[index].outputs.getValue(variant).minOf { computeClosenessDb(it, found.getValue(it.name)) }

    private fun computeClosenessDb(entry: GoldenTensor, output: Tensor): Double {
        if (!entry.shape.contentEquals(output.shape)) return Double.NEGATIVE_INFINITY
        val golden = readTensor(entry)
        val some = takeStored(output, entry)
        if (!golden.shape.contentEquals(some.shape)) return Double.NEGATIVE_INFINITY
        if (!entry.dtype.isFloat) return computeEqualDb(golden, some, entry.dtype)
        val wanted = toNumbers(golden)
        val found = toNumbers(some)
        return entry.quantities.extraDb.indices.minOf { number ->
            val near = sqnrDb(wanted, found) { entry.quantities.of(it * entry.stride) == number }
            if (near == EQUAL_DB) near else near - entry.quantities.extraDb[number]
        }
    }

    private fun readTensors(entries: List<GoldenTensor>): Tensors = entries.associate { it.name to readTensor(it) }

    private fun readTensor(entry: GoldenTensor): Tensor =
        try {
            val file = files.readBytes(entry.path)
            val bytes = entry.palette?.unpack(file, entry.dtype.bytes) ?: file
            val count = longArrayOf(bytes.size.toLong() / entry.dtype.bytes)
            entry.dtype.decode(if (entry.stride == 1) entry.shape else count, ByteBuffer.wrap(bytes))
        } catch (error: IllegalArgumentException) {
            throw ModelException("the bundle is damaged: ${entry.path}: ${error.message}", error)
        }
}

/** Returns the values of an output that a golden tensor contains: all, or every `stride`-th as a vector. */
private fun takeStored(output: Tensor, entry: GoldenTensor): Tensor {
    if (entry.stride == 1) return output
    val size = entry.dtype.bytes
    val all = entry.dtype.encode(output)
    val count = (all.capacity() / size + entry.stride - 1) / entry.stride
    val some = ByteBuffer.allocate(count * size)
    for (place in 0 until count * size) {
        some.put(place, all[place / size * entry.stride * size + place % size])
    }
    return entry.dtype.decode(longArrayOf(count.toLong()), some)
}

/** Returns 200 if 99 % of the values are equal, else minus infinity. */
private fun computeEqualDb(reference: Tensor, output: Tensor, dtype: Dtype): Double {
    val golden = dtype.encode(reference)
    val found = dtype.encode(output)
    val places = 0 until golden.capacity() step dtype.bytes
    val equal = places.count { place -> (place until place + dtype.bytes).all { golden[it] == found[it] } }
    val share = if (places.isEmpty()) 1.0 else equal.toDouble() / places.count()
    return if (share >= MIN_EQUAL_SHARE) EQUAL_DB else Double.NEGATIVE_INFINITY
}

private fun toNumbers(tensor: Tensor): DoubleArray =
    when (tensor) {
        is FloatTensor -> DoubleArray(tensor.data.size) { tensor.data[it].toDouble() }
        is DoubleTensor -> tensor.data
        else -> throw IllegalArgumentException("$tensor does not hold floats")
    }

/**
 * Returns the signal-to-noise ratio in dB, at most 200, which means equal values.
 *
 * Only the places that [counts] accepts count. A NaN or infinity in only one of the arrays gives minus infinity.
 */
internal fun sqnrDb(reference: DoubleArray, output: DoubleArray, counts: (Int) -> Boolean = { true }): Double {
    var signal = 0.0
    var noise = 0.0
    for (n in reference.indices) {
        if (!counts(n)) continue
        val wanted = reference[n]
        if (wanted.isFinite()) {
            signal += wanted * wanted
            noise += (wanted - output[n]) * (wanted - output[n])
        } else if (!(wanted == output[n] || (wanted.isNaN() && output[n].isNaN()))) {
            return Double.NEGATIVE_INFINITY
        }
    }
    return when {
        noise == 0.0 -> EQUAL_DB
        !noise.isFinite() || signal == 0.0 -> Double.NEGATIVE_INFINITY
        else -> min(EQUAL_DB, 10 * log10(signal / noise))
    }
}
