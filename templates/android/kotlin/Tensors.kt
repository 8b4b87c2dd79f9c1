import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.util.Locale

/**
 * Numbers with a shape: an input or output of the model.
 *
 * The last axis is the fastest. A tensor uses the array that it was made with, not a copy: do not
 * change the array while a call uses it. Tensors of one class are equal if their shapes and numbers are.
 *
 * @property shape the size of each axis; empty for a single number.
 * @throws IllegalArgumentException if the array's size does not match the shape.
 */
sealed class Tensor(val shape: LongArray, internal val array: Any, size: Int) {
    init {
        val wanted = shape.fold(1L) { product, axis -> product * axis }
        require(shape.all { it >= 0 } && wanted == size.toLong()) {
            "a tensor of shape ${shape.contentToString()} has $wanted elements, not $size"
        }
    }

    /** Where the picture lies in this tensor; null where the tensor was not made from a picture. */
    internal var placement: Placement? = null

    /** Returns the elements of [array], an array of this tensor's kind, in another shape. */
    internal abstract fun of(shape: LongArray, array: Any): Tensor

    override fun equals(other: Any?): Boolean =
        other is Tensor && other.javaClass == javaClass && other.shape.contentEquals(shape) &&
            arrayOf(other.array).contentDeepEquals(arrayOf(array))

    override fun hashCode(): Int = 31 * shape.contentHashCode() + arrayOf(array).contentDeepHashCode()

    override fun toString(): String = "${javaClass.simpleName}${shape.contentToString()}"
}

/**
 * A tensor of float32, or of float16: the code converts float16 inputs (to the nearest float16) and
 * float16 outputs of the model.
 */
class FloatTensor(shape: LongArray, val data: FloatArray) : Tensor(shape, data, data.size) {
    constructor(data: FloatArray, vararg shape: Long) : this(shape, data)

    override fun of(shape: LongArray, array: Any): Tensor = FloatTensor(shape, array as FloatArray)
}

/** A tensor of float64. */
class DoubleTensor(shape: LongArray, val data: DoubleArray) : Tensor(shape, data, data.size) {
    constructor(data: DoubleArray, vararg shape: Long) : this(shape, data)

    override fun of(shape: LongArray, array: Any): Tensor = DoubleTensor(shape, array as DoubleArray)
}

/** A tensor of int8. */
class ByteTensor(shape: LongArray, val data: ByteArray) : Tensor(shape, data, data.size) {
    constructor(data: ByteArray, vararg shape: Long) : this(shape, data)

    override fun of(shape: LongArray, array: Any): Tensor = ByteTensor(shape, array as ByteArray)
}

/** A tensor of uint8. The values 128 to 255 are negative bytes: `data[n].toInt() and 255` gives the value. */
class UByteTensor(shape: LongArray, val data: ByteArray) : Tensor(shape, data, data.size) {
    constructor(data: ByteArray, vararg shape: Long) : this(shape, data)

    override fun of(shape: LongArray, array: Any): Tensor = UByteTensor(shape, array as ByteArray)
}

/** A tensor of int16. */
class ShortTensor(shape: LongArray, val data: ShortArray) : Tensor(shape, data, data.size) {
    constructor(data: ShortArray, vararg shape: Long) : this(shape, data)

    override fun of(shape: LongArray, array: Any): Tensor = ShortTensor(shape, array as ShortArray)
}

/** A tensor of int32. */
class IntTensor(shape: LongArray, val data: IntArray) : Tensor(shape, data, data.size) {
    constructor(data: IntArray, vararg shape: Long) : this(shape, data)

    override fun of(shape: LongArray, array: Any): Tensor = IntTensor(shape, array as IntArray)
}

/** A tensor of int64. */
class LongTensor(shape: LongArray, val data: LongArray) : Tensor(shape, data, data.size) {
    // A list, because with an array it would be the constructor above.
    constructor(data: List<Long>, vararg shape: Long) : this(shape, data.toLongArray())

    override fun of(shape: LongArray, array: Any): Tensor = LongTensor(shape, array as LongArray)
}

/** A tensor of bool. */
class BooleanTensor(shape: LongArray, val data: BooleanArray) : Tensor(shape, data, data.size) {
    constructor(data: BooleanArray, vararg shape: Long) : this(shape, data)

    override fun of(shape: LongArray, array: Any): Tensor = BooleanTensor(shape, array as BooleanArray)
}

/** An element type by numpy's name, and the number of bytes of one element in a file and in memory. */
internal enum class Dtype(val bytes: Int) {
    FLOAT16(2),
    FLOAT32(4),
    FLOAT64(8),
    INT8(1),
    UINT8(1),
    INT16(2),
    INT32(4),
    INT64(8),
    BOOL(1),
    ;

    val word = name.lowercase(Locale.ROOT)
    val isFloat get() = this <= FLOAT64

    /**
     * Returns the tensor of [shape] whose elements are the rest of [bytes], little-endian.
     *
     * @throws IllegalArgumentException if there are more or fewer elements.
     */
    fun decode(shape: LongArray, bytes: ByteBuffer): Tensor {
        val rest = bytes.slice().order(ByteOrder.LITTLE_ENDIAN)
        val size = rest.remaining() / this.bytes
        return when (this) {
            FLOAT16 -> FloatTensor(shape, FloatArray(size) { float32(rest.getShort()) })
            FLOAT32 -> FloatTensor(shape, FloatArray(size).also { rest.asFloatBuffer().get(it) })
            FLOAT64 -> DoubleTensor(shape, DoubleArray(size).also { rest.asDoubleBuffer().get(it) })
            INT8 -> ByteTensor(shape, ByteArray(size).also { rest.get(it) })
            UINT8 -> UByteTensor(shape, ByteArray(size).also { rest.get(it) })
            INT16 -> ShortTensor(shape, ShortArray(size).also { rest.asShortBuffer().get(it) })
            INT32 -> IntTensor(shape, IntArray(size).also { rest.asIntBuffer().get(it) })
            INT64 -> LongTensor(shape, LongArray(size).also { rest.asLongBuffer().get(it) })
            BOOL -> BooleanTensor(shape, BooleanArray(size) { rest.get() != 0.toByte() })
        }
    }

    /** Returns a tensor's elements as this type, little-endian, outside the heap, from position 0. */
    fun encode(tensor: Tensor): ByteBuffer {
        // No call moves a position here: rewind() and flip() return other types before Android 9.
        val size = tensor.shape.fold(1L) { product, axis -> product * axis }.toInt()
        val made = ByteBuffer.allocateDirect(size * bytes).order(ByteOrder.LITTLE_ENDIAN)
        when (tensor) {
            is FloatTensor ->
                if (this == FLOAT16) {
                    val halves = made.asShortBuffer()
                    tensor.data.forEach { halves.put(float16(it)) }
                } else {
                    made.asFloatBuffer().put(tensor.data)
                }
            is DoubleTensor -> made.asDoubleBuffer().put(tensor.data)
            is ByteTensor -> made.duplicate().put(tensor.data)
            is UByteTensor -> made.duplicate().put(tensor.data)
            is ShortTensor -> made.asShortBuffer().put(tensor.data)
            is IntTensor -> made.asIntBuffer().put(tensor.data)
            is LongTensor -> made.asLongBuffer().put(tensor.data)
            is BooleanTensor -> {
                val flags = made.duplicate()
                tensor.data.forEach { flags.put(if (it) 1.toByte() else 0.toByte()) }
            }
        }
        return made
    }

    /** Returns a tensor of this type with one value everywhere. */
    fun makeFilled(shape: LongArray, value: Number): Tensor {
        val size = shape.fold(1L) { product, axis -> product * axis }.toInt()
        return when (this) {
            FLOAT16, FLOAT32 -> FloatTensor(shape, FloatArray(size) { value.toFloat() })
            FLOAT64 -> DoubleTensor(shape, DoubleArray(size) { value.toDouble() })
            INT8 -> ByteTensor(shape, ByteArray(size) { value.toByte() })
            UINT8 -> UByteTensor(shape, ByteArray(size) { value.toByte() })
            INT16 -> ShortTensor(shape, ShortArray(size) { value.toShort() })
            INT32 -> IntTensor(shape, IntArray(size) { value.toInt() })
            INT64 -> LongTensor(shape, LongArray(size) { value.toLong() })
            BOOL -> BooleanTensor(shape, BooleanArray(size) { value.toDouble() != 0.0 })
        }
    }

    companion object {
        /** Returns the type that numpy calls [word]. */
        fun of(word: String): Dtype = valueOf(word.uppercase(Locale.ROOT))
    }
}

private const val SMALLEST_HALF = 1f / (1 shl 24)

/** Converts a float16, given as its bits, to the equal float32. */
internal fun float32(half: Short): Float {
    val bits = half.toInt()
    val sign = (bits and 0x8000) shl 16
    val exponent = (bits shr 10) and 0x1f
    val mantissa = bits and 0x3ff
    return when (exponent) {
        0 -> Float.fromBits(sign or (mantissa * SMALLEST_HALF).toRawBits())
        0x1f -> Float.fromBits(sign or 0x7f800000 or (mantissa shl 13))
        else -> Float.fromBits(sign or ((exponent + 112) shl 23) or (mantissa shl 13))
    }
}

/** Returns the bits of the nearest float16; ties go to the even one. */
internal fun float16(value: Float): Short {
    val bits = value.toRawBits()
    val sign = (bits ushr 16) and 0x8000
    val size = bits and 0x7fffffff
    val half =
        when {
            size > 0x7f800000 -> 0x7e00 // not a number
            size >= 0x477ff000 -> 0x7c00 // 65520 and more: infinity
            size < 0x38800000 -> Math.rint(Float.fromBits(size) / SMALLEST_HALF.toDouble()).toInt()
            else -> (size - 0x38000000 + 0xfff + ((size ushr 13) and 1)) ushr 13
        }
    return (sign or half).toShort()
}
