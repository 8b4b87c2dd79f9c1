// Pads inputs to a model with static shapes, and cuts the outputs.
//
// A variant whose provider needs static shapes has one model for each of several sizes (buckets). A call uses the smallest
// bucket into which its inputs fit: the code pads them at the end, and cuts the padding off the outputs.

import Foundation

@_spi(EdgepackGenerated)
public typealias Tensors = [String: RawTensor]
/// A named dimension and its size.
typealias Sizes = [String: Int]

/// The named dimensions of a model's inputs, and the values that pad them.
struct InputShapes: Sendable {
    let inputs: [TensorSpec]
    private let descriptions: [String: InputDescription]

    init(inputs: [TensorSpec], descriptions: [String: InputDescription]) {
        self.inputs = inputs
        self.descriptions = descriptions
    }

    /// Returns whether a caller may leave an input out.
    func isMask(_ spec: TensorSpec) -> Bool { descriptions[spec.name]?.mask != nil }

    /// Returns the size of each named dimension.
    ///
    /// - Throws: ``TensorError`` if two inputs have different sizes for one dimension.
    func sizes(of feed: Tensors) throws -> Sizes {
        var found: [String: (size: Int, owner: String)] = [:]
        for spec in inputs {
            for (dimension, size) in zip(spec.shape, feed[spec.name]?.shape ?? []) {
                guard case .named(let name) = dimension, name != Dimension.unknown else { continue }
                let first = found[name] ?? (size, spec.name)
                found[name] = first
                guard first.size == size else {
                    throw TensorError(
                        .shape,
                        "the inputs do not fit together: '\(name)' is \(first.size) in '\(first.owner)' and"
                            + " \(size) in '\(spec.name)'")
                }
            }
        }
        return found.mapValues(\.size)
    }

    /// Returns the inputs with the masks that were missing: ones, in the other inputs' sizes.
    ///
    /// - Throws: ``TensorError`` if a mask's sizes do not follow from the other inputs.
    func withMasks(_ feed: Tensors) throws -> Tensors {
        let missing = inputs.filter { isMask($0) && feed[$0.name] == nil }
        guard !missing.isEmpty else { return feed }
        let sizes = try sizes(of: feed)
        var whole = feed
        for spec in missing {
            let shape = try spec.shape.map { try size(of: $0, in: sizes, for: spec) }
            whole[spec.name] = filled(type: spec.dtype, shape: shape, value: 1)
        }
        return whole
    }

    /// Returns the inputs padded at the end to a bucket's sizes. The inputs must fit into the bucket.
    func padded(_ feed: Tensors, to bucket: Sizes) -> Tensors {
        var whole: Tensors = [:]
        for spec in inputs {
            guard let tensor = feed[spec.name] else { continue }
            let shape = sized(spec, tensor, by: bucket)
            whole[spec.name] = pad(tensor, to: shape, with: descriptions[spec.name]?.pad ?? 0)
        }
        return whole
    }

    /// Returns the inputs in other sizes: cut, or repeated from their beginning.
    func resized(_ feed: Tensors, to sizes: Sizes) -> Tensors {
        var changed: Tensors = [:]
        for spec in inputs {
            guard let tensor = feed[spec.name] else { continue }
            changed[spec.name] = wrap(tensor, to: sized(spec, tensor, by: sizes))
        }
        return changed
    }

    private func sized(_ spec: TensorSpec, _ tensor: RawTensor, by sizes: Sizes) -> [Int] {
        zip(spec.shape, tensor.shape).map { dimension, size in
            guard case .named(let name) = dimension else { return size }
            return sizes[name] ?? size
        }
    }

    private func size(of dimension: Dimension, in sizes: Sizes, for spec: TensorSpec) throws -> Int {
        switch dimension {
        case .fixed(let size): return size
        case .named(let name):
            guard let size = sizes[name] else {
                throw TensorError(.missing, "the size of '\(name)' is not known: give the input '\(spec.name)'")
            }
            return size
        }
    }
}

/// The sizes that a variant has models for.
struct Buckets: Sendable {
    /// Smallest first.
    let all: [Sizes]
    /// Whether the variant takes only exactly these sizes.
    let exact: Bool

    /// Returns the index of the first bucket that takes the sizes.
    ///
    /// - Throws: ``TensorError``, with the sizes and the buckets, if none does.
    func choose(for sizes: Sizes) throws -> Int {
        guard let index = all.firstIndex(where: { takes($0, sizes) }) else {
            let how = exact ? "just the sizes" : "sizes up to"
            let known = all.map(words).joined(separator: "; ")
            throw TensorError(
                .shape,
                "the inputs have \(words(sizes)), and this variant of the model takes \(how) \(known)")
        }
        return index
    }

    func takes(_ bucket: Sizes, _ sizes: Sizes) -> Bool {
        if exact { return bucket == sizes }
        return sizes.allSatisfy { name, size in size <= bucket[name] ?? size }
    }
}

/// Returns sizes as text, such as `batch 1, sequence 16`.
func words(_ sizes: Sizes) -> String {
    sizes.sorted { $0.key < $1.key }.map { "\($0.key) \($0.value)" }.joined(separator: ", ")
}

/// Returns the outputs with each axis in `slices` cut to its dimension's size.
func cut(_ outputs: Tensors, by slices: [Variant.Slice], sizes: Sizes) -> Tensors {
    var whole = outputs
    for slice in slices {
        guard let tensor = whole[slice.output], let size = sizes[slice.dim] else { continue }
        var shape = tensor.shape
        shape[slice.axis] = min(shape[slice.axis], size)
        whole[slice.output] = crop(tensor, to: shape)
    }
    return whole
}

private func filled(type: ElementType, shape: [Int], value: Double) -> RawTensor {
    let element = RawTensor.element(value, type: type)
    let count = shape.reduce(1, *)
    var bytes: [UInt8] = []
    bytes.reserveCapacity(count * element.count)
    for _ in 0..<count { bytes += element }
    return RawTensor(unchecked: bytes, type: type, shape: shape)
}

/// Returns a tensor with its content at the beginning of each axis of a larger one.
private func pad(_ tensor: RawTensor, to shape: [Int], with value: Double) -> RawTensor {
    guard tensor.shape != shape else { return tensor }
    var bytes = filled(type: tensor.type, shape: shape, value: value).bytes
    let inner = tensor.bytes
    for run in Runs(of: tensor.shape, within: shape, size: tensor.type.size) {
        bytes.replaceSubrange(run.outer, with: inner[run.inner])
    }
    return RawTensor(unchecked: bytes, type: tensor.type, shape: shape)
}

/// Returns the beginning of each axis of a tensor.
private func crop(_ tensor: RawTensor, to shape: [Int]) -> RawTensor {
    guard tensor.shape != shape else { return tensor }
    let outer = tensor.bytes
    var bytes: [UInt8] = []
    bytes.reserveCapacity(shape.reduce(tensor.type.size, *))
    for run in Runs(of: shape, within: tensor.shape, size: tensor.type.size) { bytes += outer[run.outer] }
    return RawTensor(unchecked: bytes, type: tensor.type, shape: shape)
}

/// Returns a tensor that is cut, or repeated from its beginning, along each axis; an empty axis stays as it is.
private func wrap(_ tensor: RawTensor, to shape: [Int]) -> RawTensor {
    var result = tensor
    for axis in shape.indices where result.shape[axis] > 0 && shape[axis] != result.shape[axis] {
        let had = result.shape[axis]
        let step = result.shape[(axis + 1)...].reduce(result.type.size, *)
        let rows = result.shape[..<axis].reduce(1, *)
        let old = result.bytes
        var bytes: [UInt8] = []
        bytes.reserveCapacity(rows * shape[axis] * step)
        for row in 0..<rows {
            for index in 0..<shape[axis] {
                let start = (row * had + index % had) * step
                bytes += old[start..<start + step]
            }
        }
        var sizes = result.shape
        sizes[axis] = shape[axis]
        result = RawTensor(unchecked: bytes, type: result.type, shape: sizes)
    }
    return result
}

/// The ranges of bytes that two tensors share, where one lies at the beginning of each axis of the other.
private struct Runs: Sequence {
    private let inner: [Int]
    private let outer: [Int]
    private let length: Int
    private let stride: Int

    init(of inner: [Int], within outer: [Int], size: Int) {
        self.inner = inner.isEmpty ? [1] : inner
        self.outer = outer.isEmpty ? [1] : outer
        length = (inner.last ?? 1) * size
        stride = (outer.last ?? 1) * size
    }

    func makeIterator() -> AnyIterator<(inner: Range<Int>, outer: Range<Int>)> {
        let rows = inner.dropLast().reduce(1, *)
        var row = 0
        return AnyIterator {
            guard row < rows else { return nil }
            var rest = row
            var outerRow = 0
            var weight = 1
            for axis in inner.indices.dropLast().reversed() {
                outerRow += rest % inner[axis] * weight
                rest /= inner[axis]
                weight *= outer[axis]
            }
            defer { row += 1 }
            return (row * length..<(row + 1) * length, outerRow * stride..<outerRow * stride + length)
        }
    }
}
