// A bundle: its manifest, its golden tensors, and the closeness of outputs to them.

import Foundation

/// A bundle's manifest and files.
struct ModelBundle: Sendable {
    let files: BundleFiles
    let manifest: Manifest
    /// The SHA-256 of `manifest.json`.
    let digest: String
    let shapes: InputShapes

    /// Reads the manifest.
    ///
    /// - Parameters:
    ///   - files: The bundle's.
    ///   - code: What the bundle has to fit.
    ///   - signer: Who must have signed it.
    /// - Throws: ``OpenError`` if the files are not a bundle, or not one that this code can read and may open.
    init(files: BundleFiles, code: ModelInterface? = nil, signer: Signer? = nil) throws {
        self.files = files
        let data = try files.data("manifest.json")
        if let signer { try signer.check(data, signature: try files.signature()) }
        digest = hex(sha256(data))
        manifest = try Self.readManifest(data)
        try code?.check(manifest, data)
        shapes = InputShapes(inputs: manifest.inputs, descriptions: manifest.inputDescriptions)
    }

    /// Returns all variants in order, or the one with the given id.
    ///
    /// - Throws: ``OpenError`` if there is no variant with this id.
    func variants(only id: String?) throws -> [Variant] {
        guard let id else { return manifest.variants }
        let chosen = manifest.variants.filter { $0.id == id }
        guard !chosen.isEmpty else {
            let ids = manifest.variants.map(\.id).joined(separator: ", ")
            throw OpenError("the bundle has no variant '\(id)'; it has: \(ids)")
        }
        return chosen
    }

    /// Returns the inputs of a golden sample.
    ///
    /// - Throws: ``OpenError`` if a file is missing or has another size.
    func goldenInputs(_ index: Int) throws -> Tensors {
        try tensors(manifest.goldens[index].inputs)
    }

    /// Returns a variant's golden outputs for a golden sample; of a large output, some values as a vector.
    ///
    /// - Throws: ``OpenError`` if the manifest names no golden outputs, or a file is missing or has another size.
    func goldenOutputs(_ index: Int, of variant: String) throws -> Tensors {
        try tensors(try goldenEntries(index, of: variant))
    }

    private func goldenEntries(_ index: Int, of variant: String) throws -> [GoldenTensor] {
        guard let outputs = manifest.goldens[index].outputs[variant] else {
            throw OpenError("the bundle is damaged: manifest.json names no golden outputs of '\(variant)'")
        }
        return outputs
    }

    /// Returns the closeness of outputs to a variant's golden outputs for a golden sample.
    ///
    /// It is that of the worst output, in decibels; 200 where all are equal. Where an output or a quantity must be nearer than
    /// others, its extra decibels are subtracted, so that one limit serves all.
    ///
    /// - Throws: ``OpenError`` if the manifest names no golden outputs, or a file is missing or has another size.
    func closeness(ofGolden index: Int, of variant: String, _ outputs: Tensors) throws -> Double {
        let golden = try goldenOutputs(index, of: variant)
        return try goldenEntries(index, of: variant).map { entry in
            guard let reference = golden[entry.name], let output = outputs[entry.name], output.shape == entry.shape
            else { return -.infinity }
            return Closeness.of(reference, output.every(entry.stride ?? 1), entry)
        }.min() ?? Closeness.equal
    }

    /// Returns the labels that the outputs' descriptions name, by file.
    ///
    /// - Throws: ``OpenError`` if a file is missing.
    func labels() throws -> [String: [String]] {
        try read(manifest.outputDescriptions.values.compactMap(\.labels)) { data in
            readLabels(String(decoding: data, as: UTF8.self))
        }
    }

    /// Returns the priors that the outputs' descriptions name, by file.
    ///
    /// - Throws: ``OpenError`` if a file is missing, or a line of it is not a box.
    func priors() throws -> [String: [Double]] {
        try read(manifest.outputDescriptions.values.compactMap(\.priors)) { try readPriors(String(decoding: $0, as: UTF8.self)) }
    }

    /// Returns the tokenizers that the inputs' descriptions name, by file.
    ///
    /// - Throws: ``OpenError`` if a file is missing, or describes a tokenizer of another kind.
    func tokenizers() throws -> [String: WordPiece] {
        try read(manifest.inputDescriptions.values.compactMap(\.tokens?.file), as: WordPiece.init)
    }

    private func read<Value>(_ files: [String], as make: (Data) throws -> Value) throws -> [String: Value] {
        var read: [String: Value] = [:]
        for file in Set(files) {
            let path = "files/\(file)"
            do {
                read[file] = try make(try self.files.data(path))
            } catch let error as OpenError {
                throw error
            } catch {
                throw OpenError("the bundle is damaged: \(path): \(message(error))")
            }
        }
        return read
    }

    private func tensors(_ entries: [GoldenTensor]) throws -> Tensors {
        var read: Tensors = [:]
        for entry in entries {
            do {
                let file = [UInt8](try files.data(entry.path))
                let bytes = try entry.palette?.unpack(file, width: entry.dtype.size) ?? file
                let shape = entry.stride ?? 1 == 1 ? entry.shape : [bytes.count / entry.dtype.size]
                read[entry.name] = try RawTensor(type: entry.dtype, shape: shape, bytes: bytes)
            } catch let error as OpenError {
                throw error
            } catch {
                throw OpenError("the bundle is damaged: \(entry.path): \(message(error))")
            }
        }
        return read
    }

    private static func readManifest(_ data: Data) throws -> Manifest {
        struct Version: Decodable { let schema_version: Int }
        do {
            let version = try JSONDecoder().decode(Version.self, from: data).schema_version
            guard version == Manifest.schemaVersion else {
                throw OpenError(
                    "manifest.json has schema version \(version), this code reads \(Manifest.schemaVersion):"
                        + " use the code that came with the bundle")
            }
            let manifest = try JSONDecoder().decode(Manifest.self, from: data)
            guard !manifest.goldens.isEmpty else {
                throw OpenError(
                    "the bundle is damaged: manifest.json names no golden sample, which tells whether a variant works")
            }
            for path in manifest.files.map(\.path) where leadsOut(path) {
                throw OpenError("the bundle is damaged: manifest.json: '\(path)' is no path in a bundle")
            }
            let listed = Set(manifest.files.map(\.path))
            for path in manifest.named where !listed.contains(path) {
                throw OpenError("the bundle is damaged: manifest.json does not list \(path), which it names")
            }
            return manifest
        } catch let error as OpenError {
            throw error
        } catch {
            throw OpenError("this is no complete bundle: manifest.json: \(message(error))")
        }
    }
}

/// Returns whether a path may lead out of the bundle: a download may say anything.
private func leadsOut(_ path: String) -> Bool {
    path.split(separator: "/", omittingEmptySubsequences: false).contains { ["", ".", ".."].contains($0) }
}

/// Returns an error's message as one line.
func message(_ error: any Error) -> String {
    let text = error is DecodingError ? "\(error)" : error.localizedDescription
    return text.split(whereSeparator: \.isNewline).joined(separator: " ")
}

/// The closeness of tensors to golden ones.
enum Closeness {
    /// The closeness of equal tensors, in decibels.
    static let equal = 200.0
    /// The share of elements that must be equal in an integer or bool output, for example of class indices.
    static let minEqualShare = 0.99

    /// Returns the closeness of float tensors; tensors of other types pass (200) if 99 % of their elements are equal.
    ///
    /// It is ``sqnr(_:_:)`` of the worst quantity, minus the extra decibels that the entry demands for it.
    static func of(_ reference: RawTensor, _ output: RawTensor, _ entry: GoldenTensor) -> Double {
        guard reference.type == output.type, reference.shape == output.shape else { return -.infinity }
        guard reference.type.isFloat else {
            return equalShare(reference, output) >= minEqualShare ? equal : -.infinity
        }
        let several = entry.quantities ?? Quantities(size: 1, runs: [[1, 0]], extraDB: [entry.extraDB ?? 0])
        let (golden, found, ofChannel) = (reference.doubles(), output.doubles(), several.ofChannel)
        return several.extraDB.indices.map { number in
            let places = golden.indices.filter { place in
                ofChannel[place * (entry.stride ?? 1) / several.size % ofChannel.count] == number
            }
            let near = sqnr(places.map { golden[$0] }, places.map { found[$0] })
            return near == equal ? near : near - several.extraDB[number]
        }.min() ?? equal
    }

    /// Returns the signal-to-noise ratio in decibels, at most 200: `10 log10(sum(ref^2) / sum((ref - out)^2))`.
    ///
    /// A NaN or infinity in only one of the tensors gives minus infinity.
    static func sqnr(_ reference: [Double], _ output: [Double]) -> Double {
        var signal = 0.0
        var noise = 0.0
        for (ref, out) in zip(reference, output) {
            if ref.isFinite {
                signal += ref * ref
                noise += (ref - out) * (ref - out)
            } else if !(ref == out || ref.isNaN && out.isNaN) {
                return -.infinity
            }
        }
        if noise == 0 { return equal }
        guard noise.isFinite, signal > 0 else { return -.infinity }
        return min(equal, 10 * log10(signal / noise))
    }

    private static func equalShare(_ reference: RawTensor, _ output: RawTensor) -> Double {
        guard reference.count > 0 else { return 1 }
        let (size, one, other) = (reference.type.size, reference.bytes, output.bytes)
        let equal = (0..<reference.count).filter { index in
            let range = index * size..<(index + 1) * size
            return one[range] == other[range]
        }
        return Double(equal.count) / Double(reference.count)
    }
}
