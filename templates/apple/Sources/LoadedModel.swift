// A variant with its sessions, which were checked on this device.

import Foundation

/// An error that onnxruntime reports.
public struct RuntimeError: LocalizedError, CustomStringConvertible, Sendable, Equatable {
    private static let longest = 400

    /// onnxruntime's message.
    public let description: String

    /// Makes an error, for an app's tests.
    public init(_ description: String) { self.description = description }

    /// The same as ``description``.
    public var errorDescription: String? { description }

    /// The beginning and the end of the message as one line; the cause is at the end.
    var short: String {
        let line = description.split(whereSeparator: \.isWhitespace).joined(separator: " ")
        return line.count <= Self.longest ? line : "\(line.prefix(80)) ... \(line.suffix(Self.longest - 80))"
    }
}

/// The closeness of a model's outputs to those that the build host computed from the same inputs.
public struct SelfTest: Sendable, Equatable {
    /// The variant in use.
    public let variant: String
    /// For each stored input, the signal-to-noise ratio of the worst output in decibels; 200 where all are equal.
    public let decibels: [Double]
    /// The decibels that each input must reach.
    public let needed: Double

    /// Whether all inputs reach it.
    public var passed: Bool { decibels.allSatisfy { $0 >= needed } }

    /// Makes a result, for an app's tests.
    public init(variant: String, decibels: [Double], needed: Double) {
        self.variant = variant
        self.decibels = decibels
        self.needed = needed
    }
}

/// One variant of a bundle and its sessions: one, or one for each bucket. Threads may share it.
@_spi(EdgepackGenerated)
public struct LoadedModel: Sendable {
    let bundle: ModelBundle
    let variant: Variant
    let sessions: [any InferenceSession]
    /// The better variants that are not used.
    public let passedOver: [PassedOver]
    /// The labels that the outputs' descriptions name, by file.
    let labels: [String: [String]]
    /// The priors that the outputs' descriptions name, by file.
    let priors: [String: [Double]]
    /// The tokenizers that the inputs' descriptions name, by file.
    let tokenizers: [String: WordPiece]
    /// Where the model runs for callers who wait without a thread.
    private let runs = RunQueue()

    /// The id of the variant.
    public var id: String { variant.id }

    private var names: [String] { bundle.manifest.outputs.map(\.name) }
    var buckets: Buckets { Buckets(all: variant.buckets.map(\.dims), exact: variant.exact) }

    /// Runs the model on inputs as ``whole(_:)`` returns them.
    ///
    /// - Parameter cancellation: Ends the run.
    /// - Throws: ``TensorError`` if they are larger than every model of the variant; ``RuntimeError`` if onnxruntime fails;
    ///   `CancellationError` if the run was cancelled.
    func run(_ feed: Tensors, until cancellation: Cancellation? = nil) throws -> Tensors {
        guard !variant.buckets.isEmpty else { return try sessions[0].run(feed, outputs: names, until: cancellation) }
        let bucket = try buckets.choose(for: bundle.shapes.sizes(of: feed))
        return try run(feed, in: bucket, until: cancellation)
    }

    /// Checks the inputs and returns them with the masks that were missing.
    ///
    /// - Throws: ``TensorError`` if an input is missing, or has another type or shape.
    func whole(_ inputs: Tensors) throws -> Tensors {
        for spec in bundle.manifest.inputs {
            if let tensor = inputs[spec.name] {
                try spec.check(tensor)
            } else if !bundle.shapes.isMask(spec) {
                throw TensorError(.missing, "input '\(spec.name)' is missing")
            }
        }
        return try bundle.shapes.withMasks(inputs)
    }

    /// Runs all golden inputs.
    public func selfTest() throws -> SelfTest {
        let found = try bundle.manifest.goldens.indices.map { try closeness(ofGolden: $0) }
        return SelfTest(variant: variant.id, decibels: found, needed: variant.minSQNRdB)
    }

    /// Does work on the model's own thread, one after the other, until it is done or the caller's task is cancelled.
    public func inTurn<Value: Sendable>(
        _ work: @escaping @Sendable (Cancellation) throws -> Value
    ) async throws -> Value {
        try await runs.run(work)
    }

    private func run(_ feed: Tensors, in bucket: Int, until cancellation: Cancellation? = nil) throws -> Tensors {
        let padded = bundle.shapes.padded(feed, to: buckets.all[bucket])
        let outputs = try sessions[bucket].run(padded, outputs: names, until: cancellation)
        return cut(outputs, by: variant.slices, sizes: try bundle.shapes.sizes(of: feed))
    }

    /// Runs a golden input and returns the closeness of the worst output, in decibels; 200 where all are equal.
    func closeness(ofGolden index: Int) throws -> Double {
        try bundle.closeness(ofGolden: index, of: variant.id, try run(try bundle.goldenInputs(index)))
    }

    /// Runs all golden inputs, and one in each bucket, and compares the outputs.
    ///
    /// Where no golden input fits into a bucket, it runs one that is cut to the bucket's sizes; nothing is known about its
    /// outputs.
    ///
    /// - Throws: `Refused` if an output is not near enough.
    func proveGoldens() throws {
        try check(try closeness(ofGolden: 0), which: "")
        let feeds = try bundle.manifest.goldens.indices.map(bundle.goldenInputs)
        for (number, bucket) in buckets.all.enumerated() {
            let held = try feeds.firstIndex { buckets.takes(bucket, try bundle.shapes.sizes(of: $0)) }
            guard let held else {
                _ = try run(bundle.shapes.resized(feeds[0], to: bucket), in: number)
                continue
            }
            let outputs = try run(feeds[held], in: number)
            let found = try bundle.closeness(ofGolden: held, of: variant.id, outputs)
            try check(found, which: " for \(words(bucket))")
        }
        for index in feeds.indices.dropFirst() {
            try check(try closeness(ofGolden: index), which: " for golden sample \(index + 1)")
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
