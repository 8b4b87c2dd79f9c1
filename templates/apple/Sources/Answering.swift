// Makes a model's inputs from pictures and texts, and answers from its outputs, as the manifest describes them.

import Foundation

@_spi(EdgepackGenerated)
extension LoadedModel {
    /// Returns an input made from a picture, with the place that the picture has in it.
    ///
    /// - Throws: ``TensorError`` if the manifest does not describe the input as an image: then it belongs to other code.
    ///   ``ImageError`` if the picture has no memory that can be read, or is too long and thin for a model that scales it itself.
    public func tensor<Scalar>(of picture: Picture, for input: String) throws -> Tensor<Scalar> {
        let description = try image(input)
        guard let tensor = try picture.withFrame({ try made(of: $0, description, as: Scalar.self) as? Tensor<Scalar> }) else {
            throw TensorError(.bundle, "the model's tensor '\(input)' is no \(Scalar.self)")
        }
        return tensor
    }

    /// Returns how a picture becomes an input.
    ///
    /// - Throws: ``TensorError`` if the manifest does not describe the input as an image: then it belongs to other code.
    func image(_ input: String) throws -> ImageInput {
        guard let description = bundle.manifest.inputDescriptions[input]?.image else {
            throw TensorError(.bundle, "the manifest does not say how a picture becomes '\(input)'")
        }
        return description
    }

    private func made(of frame: Frame, _ description: ImageInput, as scalar: Any.Type) throws -> Any {
        // The model does the rest itself.
        if scalar is UInt8.Type { return try description.wholeTensor(of: frame) }
        let tensor = description.tensor(of: frame)
        guard scalar is Double.Type else { return tensor }
        var doubles = Tensor(unchecked: tensor.scalars.map(Double.init), shape: tensor.shape)
        doubles.place = tensor.place
        return doubles
    }

    /// Returns the inputs made from a text: the token ids, and the mask and types that go with them.
    ///
    /// - Throws: `TokenizerError` if the text does not fit the model; ``TensorError`` if the manifest does not describe how a
    ///   text becomes the input.
    public func tensors(of text: String, for input: String) throws -> Tensors {
        guard let tokens = bundle.manifest.inputDescriptions[input]?.tokens, let tokenizer = tokenizers[tokens.file] else {
            throw TensorError(.bundle, "the manifest does not say how a text becomes '\(input)'")
        }
        let specs = bundle.manifest.inputs
        var isFixed = false
        if case .fixed = specs.first(where: { $0.name == input })?.shape.last { isFixed = true }
        let ids = try tokenizer.encode(text, length: tokens.length, pad: isFixed)
        let made = [input: ids.inputIDs, tokens.attentionMask: ids.attentionMask, tokens.tokenTypeIDs: ids.tokenTypeIDs]
        var feed: Tensors = [:]
        for spec in specs {
            guard let values = made[spec.name] else { continue }
            let bytes = values.flatMap { RawTensor.element(Double($0), type: spec.dtype) }
            feed[spec.name] = RawTensor(unchecked: bytes, type: spec.dtype, shape: [1, values.count])
        }
        return feed
    }
}

@_spi(EdgepackGenerated)
extension LoadedModel {
    /// Runs the model, for its answers.
    ///
    /// - Parameters:
    ///   - place: Where the picture lies in the input; nil where the caller gave tensors.
    ///   - cancellation: Ends the run.
    /// - Throws: ``AnswerError`` if an option is outside its range, or names a label that an output has not; else what
    ///   ``run(_:until:)`` and ``whole(_:)`` throw.
    public func answer(
        _ inputs: Tensors, place: ImagePlacement?, options: AnswerOptions, until cancellation: Cancellation? = nil
    ) throws -> Answering {
        try check(options)
        let whole = try whole(inputs)
        let outputs = try run(whole, until: cancellation)
        return Answering(model: self, inputs: whole, outputs: outputs, place: place, options: options)
    }

    /// - Throws: ``AnswerError`` if an option is outside its range, or names a label that an output has not.
    func check(_ options: AnswerOptions) throws {
        try options.requireRanges()
        for case .some(let file) in bundle.manifest.outputDescriptions.values.map(\.allowedLabels) {
            _ = try options.allowed(of: file.flatMap { labels[$0] } ?? [])
        }
    }
}

extension ModelBundle {
    /// Counts the labels of outputs whose number of classes follows from their shape, and the priors of those with boxes.
    ///
    /// - Throws: ``OpenError`` if it is another one.
    func count(_ labels: [String: [String]], priors: [String: [Double]]) throws {
        for spec in manifest.outputs {
            guard let description = manifest.outputDescriptions[spec.name] else { continue }
            if let file = description.priors { try count(priors[file] ?? [], of: spec, file) }
            guard let file = description.labels else { continue }
            let scored = manifest.outputs.first { $0.name == description.scores } ?? spec
            let (count, classes) = (labels[file]?.count ?? 0, description.classCounts(of: scored.shape))
            guard !classes.isEmpty, !classes.contains(count) else { continue }
            let wanted = classes.map(String.init).joined(separator: " or ")
            throw OpenError(
                "the bundle is damaged: files/\(file) has \(count) labels, the output '\(scored.name)' \(wanted) classes")
        }
    }

    private func count(_ priors: [Double], of spec: TensorSpec, _ file: String) throws {
        guard spec.shape.count == 3, case .fixed(let boxes) = spec.shape[1], priors.count / 4 != boxes else { return }
        throw OpenError(
            "the bundle is damaged: files/\(file) has \(priors.count / 4) priors, the output '\(spec.name)' \(boxes) boxes")
    }
}

extension OutputDescription {
    /// Returns how many classes an output of a shape can have; nothing where any number is possible.
    fileprivate func classCounts(of shape: [Dimension]) -> [Int] {
        let counted: [Dimension]
        var before = 0
        switch self {
        case .classification:
            counted = Array((shape.count > 1 ? shape.dropFirst() : shape[...]).filter { $0 != .fixed(1) }.prefix(1))
        case .mask(let pixels):
            counted = shape.count == 4 ? [shape[pixels.axis == 1 ? 1 : 3]] : []
        case .text(let steps):
            (counted, before) = (shape.count == 3 ? [shape[steps.axis == 1 ? 1 : 2]] : [], 1)
        case .detection(let rows):
            (counted, before) = rows.countedAxes(of: shape)
        case .raw, .embedding, .probability: counted = []
        }
        let sizes = counted.compactMap { (dimension: Dimension) -> Int? in
            if case .fixed(let size) = dimension { return size - before }
            return nil
        }
        // One class of a mask is a threshold's: its labels name what lies below and above it.
        return sizes.count < counted.count || (before == 0 && sizes.contains(1)) ? [] : sizes
    }
}

extension DetectedRows {
    /// Returns the axes of which one has the scores of the classes, and how many other values are before these.
    fileprivate func countedAxes(of shape: [Dimension]) -> (axes: [Dimension], before: Int) {
        switch layout {
        case .yolo: return (Array(shape.dropFirst()), 4 + points.size)
        case .yolov5, .yolox: return (Array(shape.dropFirst(2)), 5)
        case .ssd: return (several?.classes == nil ? Array(shape.dropFirst(2)) : [], several?.background == true ? 1 : 0)
        case .end2end: return ([], 0)
        }
    }
}

extension OutputDescription {
    /// The file with the labels that an option may name, or none; nil where the answer has no classes to leave out.
    fileprivate var allowedLabels: String?? {
        switch self {
        case .classification, .detection: return .some(labels)
        case .raw, .embedding, .mask, .probability, .text: return nil
        }
    }
}

/// The inputs and outputs of one run, from which its answers are made.
@_spi(EdgepackGenerated)
public struct Answering: Sendable {
    let model: LoadedModel
    let inputs: Tensors
    /// The run's.
    public let outputs: Tensors
    /// Where the picture lies in the input; nil where the caller gave tensors.
    let place: ImagePlacement?
    let options: AnswerOptions

    /// Returns the answer of an output that is described as a classification.
    public func classes(_ name: String) throws -> [Classification] {
        guard case .classification(let scores) = description(name) else { throw notDescribed(name) }
        return try scores.classes(of: output(name), labels: labels(scores.labels), options: options)
    }

    /// Returns the answer of an output that is described as a detection.
    public func detections(_ name: String) throws -> [Detection] {
        guard case .detection(let rows) = description(name) else { throw notDescribed(name) }
        guard let place else { throw noPicture("a detection's boxes are in the pixels of a picture") }
        let outputs = [name] + (rows.several?.readToo ?? [])
        return try rows.detections(
            of: outputs.map(output), labels: labels(rows.labels), place: place, options: options,
            priors: rows.several?.priors.flatMap { model.priors[$0] } ?? [])
    }

    /// Returns the answer of an output that is described as an embedding.
    public func vectors(_ name: String) throws -> Tensor<Float> {
        guard case .embedding(let pooling) = description(name) else { throw notDescribed(name) }
        return try pooling.vectors(of: output(name), mask: pooling.mask.flatMap { inputs[$0] })
    }

    /// Returns the answer of an output that is described as a mask.
    public func mask(_ name: String) throws -> Mask {
        guard case .mask(let pixels) = description(name) else { throw notDescribed(name) }
        guard let place else { throw noPicture("a mask has the pixels of a picture") }
        return try pixels.mask(of: output(name), labels: labels(pixels.labels), place: place)
    }

    /// Returns the answer of an output that is described as probabilities.
    public func decisions(_ name: String) throws -> [Decision] {
        guard case .probability(let probabilities) = description(name) else { throw notDescribed(name) }
        return probabilities.decisions(of: try output(name))
    }

    /// Returns the answer of an output that is described as a text.
    public func text(_ name: String) throws -> Transcription {
        guard case .text(let steps) = description(name) else { throw notDescribed(name) }
        return try steps.text(of: output(name), alphabet: labels(steps.labels))
    }

    private func description(_ name: String) -> OutputDescription? {
        model.bundle.manifest.outputDescriptions[name]
    }

    private func output(_ name: String) throws -> RawTensor {
        guard let tensor = outputs[name] else { throw notDescribed(name) }
        return tensor
    }

    private func labels(_ file: String?) -> [String] {
        file.flatMap { model.labels[$0] } ?? []
    }

    private func noPicture(_ why: String) -> AnswerError {
        AnswerError(.noPicture, "\(why): make the input from one")
    }

    private func notDescribed(_ name: String) -> AnswerError {
        AnswerError(.bundle, "the manifest does not say what '\(name)' means as the code does: they are of different bundles")
    }
}

/// Makes an answer now, and keeps why it cannot be made for whoever reads it: the tensors are there all the same.
@_spi(EdgepackGenerated)
public func kept<Value>(_ make: () throws -> Value) throws -> Result<Value, AnswerError> {
    do {
        return .success(try make())
    } catch let error as AnswerError {
        return .failure(error)
    }
}
