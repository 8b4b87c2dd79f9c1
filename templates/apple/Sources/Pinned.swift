// Runs a model on one picture after the other, in memory that is kept.

import Foundation

/// Runs of a session in memory that stays the same. One thread uses it at a time.
protocol PinnedRuns: AnyObject {
    /// The input's elements, which the caller writes: little-endian, in C order.
    var input: UnsafeMutableRawBufferPointer { get }

    /// Runs the model on what the input's memory contains. The next run changes the outputs whose shape follows from the input's.
    func run() throws -> Tensors
}

extension TensorSpec {
    /// Returns the shape of an output for inputs of these sizes; nil where it does not follow from them.
    func shape(for sizes: Sizes) -> [Int]? {
        let known = shape.compactMap { (dimension: Dimension) -> Int? in
            switch dimension {
            case .fixed(let size): return size
            case .named(let name): return sizes[name]
            }
        }
        // A tensor without elements has no memory that could be kept.
        return known.count == shape.count && !known.contains(0) ? known : nil
    }
}

extension LoadedModel {
    /// Makes memory for runs on an input of a shape.
    ///
    /// - Parameter input: The model's only one.
    /// - Throws: ``TensorError`` if the variant has no model of just this shape; ``RuntimeError`` if onnxruntime fails.
    fileprivate func pinned(_ input: TensorSpec, shape: [Int]) throws -> any PinnedRuns {
        let empty = RawTensor(unchecked: Memory(count: 0), type: input.dtype, shape: shape)
        try input.check(empty)
        let sizes = try bundle.shapes.sizes(of: [input.name: empty])
        var session = sessions[0]
        if !variant.buckets.isEmpty {
            let bucket = try buckets.choose(for: sizes)
            guard buckets.all[bucket] == sizes else {
                throw TensorError(
                    .shape, "the input has \(words(sizes)), and the model that takes it \(words(buckets.all[bucket]))")
            }
            session = sessions[bucket]
        }
        return try session.pinned(
            PinnedInput(spec: input, shape: shape),
            outputs: bundle.manifest.outputs.map { ($0.name, $0.dtype, $0.shape(for: sizes)) })
    }
}

/// The one input of runs, which keeps its shape.
struct PinnedInput {
    let spec: TensorSpec
    let shape: [Int]
}

/// Runs a model on one picture after the other, in memory that it keeps as long as their size is the same. One thread uses it at
/// a time.
@_spi(EdgepackGenerated)
public final class PictureRunner {
    private let model: LoadedModel
    private let input: TensorSpec
    private let prescale: Bool
    /// What makes tensors of pictures of the newest size.
    private var maker: TensorMaker?
    /// Numbers on their way to an input of another type than float32.
    private var floats: Memory?
    private var runs: (shape: [Int], pinned: any PinnedRuns)?

    /// Makes memory when the first picture comes.
    ///
    /// - Parameters:
    ///   - model: With one input, which is described as an image.
    ///   - prescale: Whether pictures that are much larger than the input are averaged first, as ``TensorMaker`` does it.
    public init(_ model: LoadedModel, prescale: Bool) {
        self.model = model
        self.prescale = prescale
        input = model.bundle.manifest.inputs[0]
    }

    /// Runs the model on a picture. The next run changes the outputs.
    ///
    /// - Throws: ``ImageError`` if the model does not take the picture; ``TensorError`` if its variant does not take one picture;
    ///   ``AnswerError`` if an option is outside its range, or names a label that an output has not; ``RuntimeError`` if
    ///   onnxruntime fails.
    public func run(_ picture: Picture, options: AnswerOptions) throws -> Answering {
        try model.check(options)
        let place = try picture.withFrame { frame in
            input.dtype == .uint8 ? try copyPixels(of: frame) : try makeTensor(of: frame)
        }
        let outputs = try runs!.pinned.run()
        return Answering(model: model, inputs: [:], outputs: outputs, place: place, options: options)
    }

    private func makeTensor(of frame: Frame) throws -> ImagePlacement {
        let maker = try maker(for: frame)
        let memory = try memory(of: maker.shape)
        let count = maker.shape.reduce(1, *)
        if input.dtype == .float32 {
            maker.fill(memory.bindMemory(to: Float.self).baseAddress!, from: frame)
            return maker.place
        }
        let floats = floats.flatMap { $0.bytes.count == 4 * count ? $0 : nil } ?? Memory(count: 4 * count)
        self.floats = floats
        let values = floats.bytes.bindMemory(to: Float.self).baseAddress!
        maker.fill(values, from: frame)
        for index in 0..<count {
            if input.dtype == .float16 {
                memory.storeBytes(of: Half.bits(values[index]), toByteOffset: 2 * index, as: UInt16.self)
            } else {
                memory.storeBytes(of: Double(values[index]), toByteOffset: 8 * index, as: Double.self)
            }
        }
        return maker.place
    }

    private func maker(for frame: Frame) throws -> TensorMaker {
        if let maker, maker.takes(frame) { return maker }
        let made = TensorMaker(
            try description, width: frame.uprightWidth, height: frame.uprightHeight, prescale: prescale)
        maker = made
        return made
    }

    /// The model does the rest itself.
    private func copyPixels(of frame: Frame) throws -> ImagePlacement {
        let (width, height) = (frame.uprightWidth, frame.uprightHeight)
        let place = try description.resize.placed(width: width, height: height)
        try place.requireScaled()
        let pixels = try memory(of: [height, width, 3]).bindMemory(to: UInt8.self).baseAddress!
        for y in 0..<height { frame.read(row: y, columns: 0..<width, to: pixels + y * width * 3) }
        return place
    }

    private var description: ImageInput {
        get throws { try model.image(input.name) }
    }

    private func memory(of shape: [Int]) throws -> UnsafeMutableRawBufferPointer {
        if let runs, runs.shape == shape { return runs.pinned.input }
        // What was kept goes before there is more.
        runs = nil
        let pinned = try model.pinned(input, shape: shape)
        runs = (shape, pinned)
        return pinned.input
    }
}
