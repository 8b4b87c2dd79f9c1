import java.nio.ByteBuffer
import kotlin.math.log10
import kotlin.math.min

/** What [closenessDb] says of equal tensors. */
internal const val EQUAL_DB = 200.0

/** The share of a tensor of whole numbers or truth values, such as a class index, that has to be equal. */
private const val MIN_EQUAL_SHARE = 0.99

/** The bundle's golden tensors: inputs, and what each variant gave for them on the host that built it. */
internal class Goldens(private val assets: Assets, private val manifest: Manifest) {
    /** The number of samples, at least 1. */
    val count get() = manifest.goldens.size

    /** Returns the inputs of one sample. */
    fun inputs(index: Int): Tensors = tensors(manifest.goldens[index].inputs)

    /**
     * Returns how near outputs are to the golden ones of a sample in dB, in the worst output.
     *
     * Where an output, or a quantity in it, has to be nearer than others, that is taken off, so that one limit holds for all.
     */
    fun closenessDb(index: Int, variant: String, found: Tensors): Double =
        manifest.goldens[index].outputs.getValue(variant).minOf { closenessDb(it, found.getValue(it.name)) }

    private fun closenessDb(entry: GoldenTensor, output: Tensor): Double {
        if (!entry.shape.contentEquals(output.shape)) return Double.NEGATIVE_INFINITY
        val golden = tensor(entry)
        val some = kept(output, entry)
        if (!golden.shape.contentEquals(some.shape)) return Double.NEGATIVE_INFINITY
        if (!entry.dtype.isFloat) return equalDb(golden, some, entry.dtype)
        val wanted = numbers(golden)
        val found = numbers(some)
        return entry.quantities.extraDb.indices.minOf { number ->
            val near = sqnrDb(wanted, found) { entry.quantities.of(it * entry.stride) == number }
            if (near == EQUAL_DB) near else near - entry.quantities.extraDb[number]
        }
    }

    private fun tensors(entries: List<GoldenTensor>): Tensors = entries.associate { it.name to tensor(it) }

    private fun tensor(entry: GoldenTensor): Tensor =
        try {
            val bytes = assets.bytes(entry.path)
            val count = longArrayOf(bytes.size.toLong() / entry.dtype.bytes)
            entry.dtype.decode(if (entry.stride == 1) entry.shape else count, ByteBuffer.wrap(bytes))
        } catch (error: IllegalArgumentException) {
            throw ModelException("the bundle is damaged: ${entry.path}: ${error.message}", error)
        }
}

/** Returns the values of an output that a golden tensor has: all, or every so many-th as a vector. */
private fun kept(output: Tensor, entry: GoldenTensor): Tensor {
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
private fun equalDb(reference: Tensor, output: Tensor, dtype: Dtype): Double {
    val golden = dtype.encode(reference)
    val found = dtype.encode(output)
    val places = 0 until golden.capacity() step dtype.bytes
    val equal = places.count { place -> (place until place + dtype.bytes).all { golden[it] == found[it] } }
    val share = if (places.isEmpty()) 1.0 else equal.toDouble() / places.count()
    return if (share >= MIN_EQUAL_SHARE) EQUAL_DB else Double.NEGATIVE_INFINITY
}

private fun numbers(tensor: Tensor): DoubleArray =
    when (tensor) {
        is FloatTensor -> DoubleArray(tensor.data.size) { tensor.data[it].toDouble() }
        is DoubleTensor -> tensor.data
        else -> throw IllegalArgumentException("$tensor does not hold floats")
    }

/**
 * Returns the ratio of signal to noise in dB, at most 200, which stands for equal values.
 *
 * That is of the places that [counts] takes. A NaN or infinity that the other array has not gives minus infinity.
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
