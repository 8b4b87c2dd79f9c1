import java.lang.reflect.Array as Reflected

/** Tensors by their names in the model. */
internal typealias Tensors = Map<String, Tensor>

/** Sizes by symbolic dimension. */
internal typealias Sizes = Map<String, Long>

internal const val UNKNOWN = "?"

/** The sizes of the model's inputs; pads inputs for a model with static shapes. */
internal class Shapes(private val manifest: Manifest) {
    /**
     * Checks the inputs and adds the masks that are missing: ones, in the other inputs' sizes.
     *
     * @throws IllegalArgumentException if the model does not take a shape, or two shapes do not fit together.
     */
    fun checkInputs(given: Tensors): Tensors {
        for (spec in manifest.inputs) {
            val shape = given[spec.name]?.shape ?: continue
            require(fits(spec, shape)) {
                "input '${spec.name}' has shape ${shape.contentToString()}, expected ${spec.shape}"
            }
        }
        val sizes = readSizes(given)
        return manifest.inputs.associate { spec ->
            spec.name to (given[spec.name] ?: spec.dtype.makeFilled(makeShape(spec, sizes), 1))
        }
    }

    private fun fits(spec: Spec, shape: LongArray): Boolean =
        shape.size == spec.shape.size &&
            spec.shape.zip(shape.asList()).all { (axis, size) -> axis.name != null || axis.size == size }

    private fun makeShape(spec: Spec, sizes: Sizes): LongArray =
        LongArray(spec.shape.size) { axis -> spec.shape[axis].let { sizes[it.name] ?: it.size } }

    /**
     * Returns the size of each symbolic dimension, from the inputs' shapes.
     *
     * @throws IllegalArgumentException if two inputs have different sizes for one dimension.
     */
    fun readSizes(feed: Tensors): Sizes {
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

    /** Fills the inputs up at the end to a bucket's sizes. The inputs must fit into the bucket. */
    fun padInputs(feed: Tensors, bucket: Sizes): Tensors =
        manifest.inputs.associate { spec ->
            val tensor = feed.getValue(spec.name)
            val shape = computeShape(spec, tensor, bucket)
            val fill = manifest.fills[spec.name] ?: 0
            spec.name to if (shape.contentEquals(tensor.shape)) tensor else tensor.copyInto(spec.dtype.makeFilled(shape, fill))
        }

    /** Cuts the inputs to other sizes, or repeats them from their beginning. */
    fun resizeInputs(feed: Tensors, sizes: Sizes): Tensors =
        manifest.inputs.associate { spec ->
            val tensor = feed.getValue(spec.name)
            spec.name to tensor.repeatTo(computeShape(spec, tensor, sizes))
        }

    private fun computeShape(spec: Spec, tensor: Tensor, sizes: Sizes): LongArray =
        LongArray(spec.shape.size) { axis -> sizes[spec.shape[axis].name] ?: tensor.shape[axis] }
}

/**
 * Returns the index of the first bucket into which the sizes fit, or which has exactly these sizes.
 *
 * @throws IllegalArgumentException if there is no such bucket.
 */
internal fun chooseBucket(buckets: List<Bucket>, sizes: Sizes, exact: Boolean): Int {
    val index = buckets.indexOfFirst { takes(it, sizes, exact) }
    require(index >= 0) {
        val how = if (exact) "just the sizes" else "sizes up to"
        val known = buckets.joinToString("; ") { formatSizes(it.dims) }
        "the inputs have ${formatSizes(sizes)}, and this variant of the model takes $how $known"
    }
    return index
}

/** Returns whether the sizes fit into a bucket; with [exact], whether the bucket has exactly these sizes. */
internal fun takes(bucket: Bucket, sizes: Sizes, exact: Boolean): Boolean =
    bucket.dims == sizes || (!exact && sizes.all { (dim, size) -> size <= (bucket.dims[dim] ?: size) })

/** Returns sizes as text, such as `batch 1, sequence 16`. */
internal fun formatSizes(sizes: Sizes): String = sizes.entries.joinToString { (dim, size) -> "$dim $size" }

/** Cuts the axes in [slices] of the outputs to their dimensions' sizes. */
internal fun cut(outputs: Tensors, slices: List<Slice>, sizes: Sizes): Tensors {
    val whole = LinkedHashMap(outputs)
    for (slice in slices) {
        val tensor = whole.getValue(slice.output)
        val shape = tensor.shape.copyOf()
        shape[slice.axis] = minOf(shape[slice.axis], sizes.getValue(slice.dim))
        whole[slice.output] = tensor.repeatTo(shape)
    }
    return whole
}

/** Copies this tensor's elements to the same places of [larger], and returns [larger]. */
private fun Tensor.copyInto(larger: Tensor): Tensor {
    val row = shape.lastOrNull()?.toInt() ?: 1
    for ((from, place) in listRows(shape).withIndex()) {
        System.arraycopy(array, from * row, larger.array, computeOffset(place, larger.shape), row)
    }
    return larger
}

/** Cuts this tensor at its end, or repeats it from its beginning, to get another shape. */
private fun Tensor.repeatTo(to: LongArray): Tensor {
    if (to.contentEquals(shape) || 0L in shape) return this
    val size = to.fold(1L) { product, axis -> product * axis }.toInt()
    val made = Reflected.newInstance(array.javaClass.componentType!!, size)
    val here = shape.last().toInt()
    val row = to.last().toInt()
    for ((number, place) in listRows(to).withIndex()) {
        val from = computeOffset(LongArray(place.size) { place[it] % shape[it] }, shape)
        for (start in 0 until row step maxOf(here, 1)) {
            System.arraycopy(array, from, made, number * row + start, minOf(here, row - start))
        }
    }
    return of(to, made)
}

/** Returns the place at which each row along the last axis begins, in order. */
private fun listRows(shape: LongArray): Sequence<LongArray> {
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

private fun computeOffset(place: LongArray, shape: LongArray): Int =
    shape.indices.fold(0L) { sum, axis -> sum * shape[axis] + place[axis] }.toInt()
