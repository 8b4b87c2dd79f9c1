import java.lang.reflect.Array as Reflected

/** Tensors by the names that the model has for them. */
internal typealias Tensors = Map<String, Tensor>

/** Sizes by symbolic dimension. */
internal typealias Sizes = Map<String, Long>

private const val UNKNOWN = "?"

/** The sizes of the model's inputs: what fills them up to a model of static shapes. */
internal class Shapes(private val manifest: Manifest) {
    /**
     * Returns the inputs, with the masks that are missing: ones, of the other inputs' sizes.
     *
     * @throws IllegalArgumentException a shape is not what the model takes, or two do not fit.
     */
    fun checked(given: Tensors): Tensors {
        for (spec in manifest.inputs) {
            val shape = given[spec.name]?.shape ?: continue
            require(fits(spec, shape)) {
                "input '${spec.name}' has shape ${shape.contentToString()}, expected ${spec.shape}"
            }
        }
        val sizes = sizes(given)
        return manifest.inputs.associate { spec ->
            spec.name to (given[spec.name] ?: spec.dtype.filled(shape(spec, sizes), 1))
        }
    }

    private fun fits(spec: Spec, shape: LongArray): Boolean =
        shape.size == spec.shape.size &&
            spec.shape.zip(shape.asList()).all { (axis, size) -> axis.name != null || axis.size == size }

    private fun shape(spec: Spec, sizes: Sizes): LongArray =
        LongArray(spec.shape.size) { axis -> spec.shape[axis].let { sizes[it.name] ?: it.size } }

    /**
     * Returns the size of each symbolic dimension, from the inputs' shapes.
     *
     * @throws IllegalArgumentException two inputs do not agree about one.
     */
    fun sizes(feed: Tensors): Sizes {
        val found = LinkedHashMap<String, Long>()
        val owners = HashMap<String, String>()
        for (spec in manifest.inputs) {
            val shape = feed[spec.name]?.shape ?: continue
            for ((axis, size) in spec.shape.zip(shape.asList())) {
                val dim = axis.name ?: continue
                if (dim == UNKNOWN) continue
                val first = found.getOrPut(dim) { size }
                val owner = owners.getOrPut(dim) { spec.name }
                require(size == first) {
                    "the inputs do not fit together: '$dim' is $first in '$owner' and $size in '${spec.name}'"
                }
            }
        }
        return found
    }

    /** Returns the inputs filled up at the end to a bucket's sizes, which hold them. */
    fun padded(feed: Tensors, bucket: Sizes): Tensors =
        manifest.inputs.associate { spec ->
            val tensor = feed.getValue(spec.name)
            val shape = resized(spec, tensor, bucket)
            val fill = manifest.fills[spec.name] ?: 0
            spec.name to if (shape.contentEquals(tensor.shape)) tensor else tensor.into(spec.dtype.filled(shape, fill))
        }

    /** Returns the inputs cut, or repeated from their beginning, to other sizes. */
    fun resized(feed: Tensors, sizes: Sizes): Tensors =
        manifest.inputs.associate { spec ->
            val tensor = feed.getValue(spec.name)
            spec.name to tensor.repeated(resized(spec, tensor, sizes))
        }

    private fun resized(spec: Spec, tensor: Tensor, sizes: Sizes): LongArray =
        LongArray(spec.shape.size) { axis -> sizes[spec.shape[axis].name] ?: tensor.shape[axis] }
}

/**
 * Returns the index of the first bucket that holds the sizes, or that has just these.
 *
 * @throws IllegalArgumentException none does.
 */
internal fun choose(buckets: List<Bucket>, sizes: Sizes, exact: Boolean): Int {
    val index = buckets.indexOfFirst { takes(it, sizes, exact) }
    require(index >= 0) {
        val how = if (exact) "just the sizes" else "sizes up to"
        val known = buckets.joinToString("; ") { words(it.dims) }
        "the inputs have ${words(sizes)}, and this variant of the model takes $how $known"
    }
    return index
}

/** Tells whether a bucket is as large as the sizes, or larger, in each dimension; or just so. */
internal fun takes(bucket: Bucket, sizes: Sizes, exact: Boolean): Boolean =
    bucket.dims == sizes || (!exact && sizes.all { (dim, size) -> size <= (bucket.dims[dim] ?: size) })

/** Returns sizes as text, such as `batch 1, sequence 16`. */
internal fun words(sizes: Sizes): String = sizes.entries.joinToString { (dim, size) -> "$dim $size" }

/** Returns the outputs with each axis that the variant cuts at its dimension's size. */
internal fun cut(outputs: Tensors, slices: List<Slice>, sizes: Sizes): Tensors {
    val whole = LinkedHashMap(outputs)
    for (slice in slices) {
        val tensor = whole.getValue(slice.output)
        val shape = tensor.shape.copyOf()
        shape[slice.axis] = minOf(shape[slice.axis], sizes.getValue(slice.dim))
        whole[slice.output] = tensor.repeated(shape)
    }
    return whole
}

/** Returns [larger], whose elements at this tensor's places are changed to this tensor's. */
private fun Tensor.into(larger: Tensor): Tensor {
    val row = shape.lastOrNull()?.toInt() ?: 1
    for ((from, place) in rows(shape).withIndex()) {
        System.arraycopy(array, from * row, larger.array, offset(place, larger.shape), row)
    }
    return larger
}

/** Returns this tensor cut at the end, or repeated from its beginning, to another shape. */
private fun Tensor.repeated(to: LongArray): Tensor {
    if (to.contentEquals(shape) || 0L in shape) return this
    val size = to.fold(1L) { product, axis -> product * axis }.toInt()
    val made = Reflected.newInstance(array.javaClass.componentType!!, size)
    val here = shape.last().toInt()
    val row = to.last().toInt()
    for ((number, place) in rows(to).withIndex()) {
        val from = offset(LongArray(place.size) { place[it] % shape[it] }, shape)
        for (start in 0 until row step maxOf(here, 1)) {
            System.arraycopy(array, from, made, number * row + start, minOf(here, row - start))
        }
    }
    return of(to, made)
}

/** Yields where each row along the last axis begins, in order. */
private fun rows(shape: LongArray): Sequence<LongArray> {
    val outer = shape.copyOf(maxOf(shape.size - 1, 0))
    val number = if (shape.contains(0)) 0 else outer.fold(1L) { product, axis -> product * axis }
    return (0 until number).asSequence().map { index ->
        val place = LongArray(shape.size)
        var rest = index
        for (axis in outer.indices.reversed()) {
            place[axis] = rest % outer[axis]
            rest /= outer[axis]
        }
        place
    }
}

private fun offset(place: LongArray, shape: LongArray): Int =
    shape.indices.fold(0L) { sum, axis -> sum * shape[axis] + place[axis] }.toInt()
