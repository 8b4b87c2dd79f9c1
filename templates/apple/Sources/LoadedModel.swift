// A variant with its sessions, proven on this device.

import Foundation

/// An error of onnxruntime's.
struct RuntimeError: LocalizedError, CustomStringConvertible, Sendable {
    private static let longest = 400

    let description: String

    init(_ description: String) { self.description = description }

    var errorDescription: String? { description }

    /// Beginning and end, where the cause is, as one line.
    var short: String {
        let line = description.split(whereSeparator: \.isWhitespace).joined(separator: " ")
        return line.count <= Self.longest ? line : "\(line.prefix(80)) ... \(line.suffix(Self.longest - 80))"
    }
}

/// How near a model's outputs are to those that the build host got from the same inputs.
public struct SelfTest: Sendable, Equatable {
    /// The variant in use.
    public let variant: String
    /// For each stored input, signal to noise in decibels in the worst output; 200 where all are equal.
    public let decibels: [Double]
    /// What they have to reach.
    public let needed: Double

    /// Whether all do.
    public var passed: Bool { decibels.allSatisfy { $0 >= needed } }
}

/// One variant of a bundle and its sessions: one, or one for each bucket. Threads may share it.
struct LoadedModel: Sendable {
    let bundle: ModelBundle
    let variant: Variant
    let sessions: [any InferenceSession]
    let passedOver: [PassedOver]
    /// Of the outputs' descriptions, by file.
    let labels: [String: [String]]
    /// Of the inputs' descriptions, by file.
    let tokenizers: [String: WordPiece]

    private var names: [String] { bundle.manifest.outputs.map(\.name) }
    private var buckets: Buckets { Buckets(all: variant.buckets.map(\.dims), exact: variant.exact) }

    /// Runs the model on inputs as ``whole(_:)`` returns them.
    ///
    /// - Throws: ``TensorError`` where they are larger than any model of the variant; `RuntimeError` where onnxruntime fails.
    func run(_ feed: Tensors) throws -> Tensors {
        guard !variant.buckets.isEmpty else { return try sessions[0].run(feed, outputs: names) }
        let bucket = try buckets.choose(for: bundle.shapes.sizes(of: feed))
        return try run(feed, in: bucket)
    }

    /// Returns the inputs with the masks that are missing, once those that are there are known to fit.
    ///
    /// - Throws: ``TensorError`` where one is missing, or of another type or shape.
    func whole(_ inputs: Tensors) throws -> Tensors {
        for spec in bundle.manifest.inputs {
            if let tensor = inputs[spec.name] {
                try spec.check(tensor)
            } else if !bundle.shapes.isMask(spec) {
                throw TensorError("input '\(spec.name)' is missing")
            }
        }
        return try bundle.shapes.withMasks(inputs)
    }

    /// Runs all golden inputs.
    func selfTest() throws -> SelfTest {
        let found = try bundle.manifest.goldens.indices.map { try nearness(ofGolden: $0) }
        return SelfTest(variant: variant.id, decibels: found, needed: variant.minSQNRdB)
    }

    private func run(_ feed: Tensors, in bucket: Int) throws -> Tensors {
        let padded = bundle.shapes.padded(feed, to: buckets.all[bucket])
        let outputs = try sessions[bucket].run(padded, outputs: names)
        return cut(outputs, by: variant.slices, sizes: try bundle.shapes.sizes(of: feed))
    }

    /// Runs a golden input and returns how near the worst output is, in decibels; 200 where all are equal.
    func nearness(ofGolden index: Int) throws -> Double {
        try bundle.nearness(ofGolden: index, of: variant.id, try run(try bundle.goldenInputs(index)))
    }

    /// Runs all golden inputs, and one in each bucket that the first is not for, and compares.
    ///
    /// A bucket that holds no golden input is run with one that is cut to its size, whose outputs nothing is known about.
    ///
    /// - Throws: `Refused` where an output is not near enough.
    func proveGoldens() throws {
        try check(try nearness(ofGolden: 0), which: "")
        let feeds = try bundle.manifest.goldens.indices.map(bundle.goldenInputs)
        for (number, bucket) in buckets.all.enumerated() {
            let held = try feeds.firstIndex { buckets.takes(bucket, try bundle.shapes.sizes(of: $0)) }
            guard let held else {
                _ = try run(bundle.shapes.resized(feeds[0], to: bucket), in: number)
                continue
            }
            let outputs = try run(feeds[held], in: number)
            let found = try bundle.nearness(ofGolden: held, of: variant.id, outputs)
            try check(found, which: " for \(words(bucket))")
        }
        for index in feeds.indices.dropFirst() {
            try check(try nearness(ofGolden: index), which: " for golden sample \(index + 1)")
        }
    }

    private func check(_ found: Double, which: String) throws {
        guard found >= variant.minSQNRdB else {
            throw Refused(
                "its output\(which) is \(decibels(found)) near the golden one, \(decibels(variant.minSQNRdB)) are needed")
        }
    }
}

/// Returns a ratio as text, such as `31.4 dB`.
func decibels(_ value: Double) -> String {
    String(format: "%.1f dB", value)
}
