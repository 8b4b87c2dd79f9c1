import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtEnvironment
import ai.onnxruntime.OrtException
import ai.onnxruntime.OrtSession
import java.nio.ByteBuffer
import java.nio.ByteOrder

/**
 * Memory for inferences on one input: it lies outside the heap, and onnxruntime reads and writes it there.
 *
 * Outputs whose shape follows from the input's are pinned; the others are new with each run.
 *
 * @throws OrtException if onnxruntime fails.
 */
internal class Pinned(
    environment: OrtEnvironment,
    private val session: OrtSession,
    outputs: List<Spec>,
    input: Spec,
    val shape: LongArray,
) : AutoCloseable {
    /** The input's elements, little-endian. */
    val bytes: ByteBuffer = allocate(input.dtype, shape)

    private val feed = mapOf(input.name to OnnxTensor.createTensor(environment, bytes, shape, TYPES.getValue(input.dtype)))
    private val pinned = LinkedHashMap<String, OnnxTensor>()
    private val found = HashMap<String, Output>()
    private val loose: Map<String, Spec>

    init {
        val sizes = findSizes(input, shape)
        for (spec in outputs) {
            val known = LongArray(spec.shape.size) { axis -> spec.shape[axis].let { sizes[it.name] ?: it.size } }
            // The size of what is not known is 0.
            if (0L in known) continue
            val memory = allocate(spec.dtype, known)
            pinned[spec.name] = OnnxTensor.createTensor(environment, memory, known, TYPES.getValue(spec.dtype))
            found[spec.name] = Output(spec.dtype, known, memory)
        }
        loose = outputs.filterNot { it.name in pinned }.associateBy { it.name }
    }

    /** Runs an inference on what [bytes] holds. */
    fun run() {
        stoppable { session.run(feed, loose.keys, pinned, it) }.use { result ->
            for ((name, spec) in loose) {
                val tensor = result.get(name).get() as OnnxTensor
                val shape = tensor.info.shape
                // A tensor without elements has no buffer.
                found[name] = Output(spec.dtype, shape, if (0L in shape) allocate(spec.dtype, shape) else tensor.byteBuffer)
            }
        }
    }

    /** Returns the values of an output of the newest run; the next run changes them. */
    fun getValues(name: String): Values = found.getValue(name).values

    /** Returns a copy of an output of the newest run. */
    fun copy(name: String): Tensor = found.getValue(name).copy()

    override fun close() {
        feed.values.forEach { it.close() }
        pinned.values.forEach { it.close() }
    }
}

private class Output(private val dtype: Dtype, private val shape: LongArray, private val bytes: ByteBuffer) {
    val values = Values(shape, dtype.isFloat, read(dtype, bytes))

    fun copy(): Tensor = dtype.decode(shape, bytes)
}

private fun allocate(dtype: Dtype, shape: LongArray): ByteBuffer {
    val size = shape.fold(1L) { product, axis -> product * axis } * dtype.bytes
    return ByteBuffer.allocateDirect(Math.toIntExact(size)).order(ByteOrder.LITTLE_ENDIAN)
}

/** Returns the elements in a buffer as Double. */
private fun read(dtype: Dtype, bytes: ByteBuffer): Elements =
    when (dtype) {
        Dtype.FLOAT16 -> bytes.asShortBuffer().let { shorts -> Elements { float32(shorts.get(it)).toDouble() } }
        Dtype.FLOAT32 -> bytes.asFloatBuffer().let { floats -> Elements { floats.get(it).toDouble() } }
        Dtype.FLOAT64 -> bytes.asDoubleBuffer().let { doubles -> Elements { doubles.get(it) } }
        Dtype.INT8 -> Elements { bytes.get(it).toDouble() }
        Dtype.UINT8, Dtype.BOOL -> Elements { toUnsigned(bytes.get(it)).toDouble() }
        Dtype.INT16 -> bytes.asShortBuffer().let { shorts -> Elements { shorts.get(it).toDouble() } }
        Dtype.INT32 -> bytes.asIntBuffer().let { ints -> Elements { ints.get(it).toDouble() } }
        Dtype.INT64 -> bytes.asLongBuffer().let { longs -> Elements { longs.get(it).toDouble() } }
    }

internal const val NO_OUTPUTS = "there are no outputs yet: call predict first"

/** Returns the size of each symbolic dimension of an input. */
internal fun findSizes(input: Spec, shape: LongArray): Sizes {
    val sizes = LinkedHashMap<String, Long>()
    for ((axis, size) in input.shape.zip(shape.asList())) {
        if (axis.name != null && axis.name != UNKNOWN) sizes[axis.name] = size
    }
    return sizes
}

/**
 * Runs inferences on pictures, one after the other, in memory that it keeps as long as their size is the same.
 *
 * @param input the model's one input, which is described as an image.
 * @param prescale whether pictures that are much larger than the input are averaged first, as [ImageMaker] does it.
 */
internal class PictureRunner(
    private val opened: Opened,
    private val input: Spec,
    private val prescale: Boolean,
) : AutoCloseable {
    private val description = opened.meaning.images.getValue(input.name)
    private var maker: ImageMaker? = null
    private var floats = FloatArray(0)
    private var row = ByteArray(0)
    private val scratch = Scratch()
    private var pinned: Pinned? = null
    private var hasRun = false

    /** Where the newest picture lies in the input. */
    var placement: Placement? = null
        private set

    /**
     * Runs an inference on a picture.
     *
     * @throws ModelException if onnxruntime fails.
     */
    fun run(picture: Picture) {
        // A run that fails may have written some of the outputs.
        hasRun = false
        try {
            if (input.dtype == Dtype.UINT8) copyPixels(picture) else makeTensor(picture)
            get().run()
            hasRun = true
        } catch (error: OrtException) {
            throw ModelException("inference failed: ${formatLine(error)}", error, Reason.INFERENCE)
        }
    }

    /** Returns the values of an output of the newest run; the next run changes them. */
    fun getValues(name: String): Values = get().getValues(name)

    /**
     * Returns a copy of an output of the newest run.
     *
     * @throws IllegalStateException if there was none, or it failed.
     */
    fun copy(name: String): Tensor {
        check(hasRun) { NO_OUTPUTS }
        return get().copy(name)
    }

    private fun get(): Pinned = checkNotNull(pinned) { NO_OUTPUTS }

    private fun makeTensor(picture: Picture) {
        val kept = maker?.takeIf { it.takes(picture) }
        val maker = kept ?: ImageMaker(description, picture.width, picture.height, prescale)
        this.maker = maker
        placement = maker.placement
        val bytes = pin(maker.shape).bytes
        val count = bytes.capacity() / input.dtype.bytes
        if (floats.size != count) floats = FloatArray(count)
        maker.make(picture, floats)
        write(bytes)
    }

    private fun write(bytes: ByteBuffer) {
        when (input.dtype) {
            Dtype.FLOAT16 -> for (n in floats.indices) bytes.putShort(2 * n, float16(floats[n]))
            Dtype.FLOAT64 -> for (n in floats.indices) bytes.putDouble(8 * n, floats[n].toDouble())
            else -> bytes.asFloatBuffer().put(floats)
        }
    }

    private fun copyPixels(picture: Picture) {
        val place = description.resize.place(picture.width, picture.height)
        place.requireScaled()
        placement = place
        val bytes = pin(longArrayOf(picture.height.toLong(), picture.width.toLong(), 3)).bytes
        if (row.size != 3 * picture.width) row = ByteArray(3 * picture.width)
        seek(bytes, 0)
        val rows = picture.open(scratch)
        for (y in 0 until picture.height) {
            rows.read(y, row)
            bytes.put(row)
        }
    }

    private fun pin(shape: LongArray): Pinned {
        pinned?.let { if (it.shape.contentEquals(shape)) return it }
        close()
        return opened.loaded.pin(input, shape).also { pinned = it }
    }

    override fun close() {
        pinned?.close()
        pinned = null
    }
}
