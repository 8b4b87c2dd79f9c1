// Makes a model's inputs from pictures and texts, and answers from its outputs, as the manifest describes them.

import Foundation

extension LoadedModel {
    /// Returns an input made from a picture, with the place that the picture has in it.
    ///
    /// - Throws: ``TensorError`` if the manifest does not describe the input as an image: then it belongs to other code.
    ///   ``ImageError`` if the picture is too long and thin for a model that scales it itself.
    func tensor<Scalar>(of image: RGBImage, for input: String) throws -> Tensor<Scalar> {
        guard let description = bundle.manifest.inputDescriptions[input]?.image,
            var tensor = made(of: image, description, as: Scalar.self) as? Tensor<Scalar>
        else {
            throw TensorError("the manifest does not say how a picture becomes '\(input)'")
        }
        let place = description.resize.placed(width: image.width, height: image.height)
        if Scalar.self is UInt8.Type { try place.requireScaled() }
        tensor.place = place
        return tensor
    }

    private func made(of image: RGBImage, _ description: ImageInput, as scalar: Any.Type) -> Any {
        // The model does the rest itself.
        if scalar is UInt8.Type { return Tensor(unchecked: image.pixels, shape: [image.height, image.width, 3]) }
        let tensor = description.tensor(of: image)
        guard scalar is Double.Type else { return tensor }
        return Tensor(unchecked: tensor.scalars.map(Double.init), shape: tensor.shape)
    }

    /// Returns the inputs made from a text: the token ids, and the mask and types that go with them.
    ///
    /// - Throws: `TokenizerError` if the text does not fit the model; ``TensorError`` if the manifest does not describe how a
    ///   text becomes the input.
    func tensors(of text: String, for input: String) throws -> Tensors {
        guard let tokens = bundle.manifest.inputDescriptions[input]?.tokens, let tokenizer = tokenizers[tokens.file] else {
            throw TensorError("the manifest does not say how a text becomes '\(input)'")
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

/// The inputs and outputs of one run, from which its answers are made.
struct Answering: Sendable {
    let model: LoadedModel
    let inputs: Tensors
    let outputs: Tensors
    /// Where the picture lies in the input; nil where the caller gave tensors.
    let place: ImagePlacement?

    func classes(_ name: String) throws -> [Classification] {
        guard case .classification(let scores) = description(name) else { throw notDescribed(name) }
        return try scores.classes(of: output(name), labels: labels(scores.labels))
    }

    func detections(_ name: String) throws -> [Detection] {
        guard case .detection(let rows) = description(name) else { throw notDescribed(name) }
        guard let place else {
            throw AnswerError("a detection's boxes are in the pixels of a picture: make the input from one")
        }
        return try rows.detections(of: output(name), labels: labels(rows.labels), place: place)
    }

    func vectors(_ name: String) throws -> Tensor<Float> {
        guard case .embedding(let pooling) = description(name) else { throw notDescribed(name) }
        return try pooling.vectors(of: output(name), mask: pooling.mask.flatMap { inputs[$0] })
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

    private func notDescribed(_ name: String) -> AnswerError {
        AnswerError("the manifest does not say what '\(name)' means as the code does: they are of different bundles")
    }
}
