// Opens a model in an app: on a thread, with a cache folder and the runtime.

import Foundation

/// What this code takes and gives: that of the bundle that it came with. A bundle that comes later must have the same.
@_spi(EdgepackGenerated)
public struct ModelInterface: Sendable {
    let name: String
    /// The inputs and outputs, as `name: dtype[1, batch]`.
    let inputs: [String]
    let outputs: [String]
    /// The inputs and outputs that the code makes from something, or makes something of: name and kind.
    let described: [[String]]
    /// Returns the folder of the bundle's files among the app's resources; nil if it is not there.
    let resources: @Sendable () -> URL?

    /// Makes it of what the build wrote into the code.
    public init(
        name: String, inputs: [String], outputs: [String], described: [[String]],
        resources: @escaping @Sendable () -> URL?
    ) {
        self.name = name
        self.inputs = inputs
        self.outputs = outputs
        self.described = described
        self.resources = resources
    }

    private struct Found: Decodable {
        struct Input: Decodable {
            let image: Described?
            let tokens: Described?
        }

        struct Output: Decodable {
            let kind: String
        }

        struct Described: Decodable {}

        let input_descriptions: [String: Input]
        let output_descriptions: [String: Output]
    }

    /// - Throws: ``OpenError`` if a bundle has another name, other inputs or other outputs.
    func check(_ manifest: Manifest, _ data: Data) throws {
        try require("name", name, manifest.name)
        try require("inputs", "\(inputs)", "\(manifest.inputs.map(\.description))")
        try require("outputs", "\(outputs)", "\(manifest.outputs.map(\.description))")
        let found = try JSONDecoder().decode(Found.self, from: data)
        for pair in described {
            let (tensor, kind) = (pair[0], pair[1])
            let input = found.input_descriptions[tensor]
            let kinds = ["image": input?.image != nil, "tokens": input?.tokens != nil]
            let has = found.output_descriptions[tensor]?.kind ?? (kinds[kind] == true ? kind : "none")
            try require("description of '\(tensor)'", kind, has)
        }
    }

    private func require(_ what: String, _ wanted: String, _ found: String) throws {
        guard wanted == found else {
            throw OpenError("the bundle does not fit this code: its \(what) is \(found), the code's is \(wanted)")
        }
    }
}

@_spi(EdgepackGenerated)
extension LoadedModel {
    /// Opens the best variant, or the one with the given id, with the runtime that is linked into the app, on another thread.
    ///
    /// - Parameters:
    ///   - code: What the bundle has to fit.
    ///   - variant: The only variant to use.
    ///   - source: Where the bundle's files come from.
    public static func open(
        _ code: ModelInterface, variant: String?, from source: ModelSource
    ) async throws -> LoadedModel {
        try await runInBackground { try load(code, variant: variant, from: source) }
    }

    /// Makes a downloaded folder the current version of a store, once its bundle was opened and all was checked.
    public static func install(_ download: URL, in store: ModelStore, for code: ModelInterface) async throws {
        try await runInBackground {
            try store.install(download) { _ = try load(code, from: $0, isFresh: true) }
        }
    }

    /// - Parameter isFresh: Whether all is checked although an earlier open kept its verdict.
    private static func load(
        _ code: ModelInterface, variant: String? = nil, from source: ModelSource, isFresh: Bool = false
    ) throws -> LoadedModel {
        let files: BundleFiles
        switch source.place {
        case .resources:
            guard let folder = code.resources() else {
                throw OpenError("the files of \(code.name) are not among the app's resources")
            }
            files = .folder(folder)
        case .folder(let folder): files = .folder(folder)
        case .function(let read): files = .function(read)
        }
        let bundle = try ModelBundle(files: files, code: code, signer: try source.signer.map(Signer.init))
        let caches = try FileManager.default.url(
            for: .cachesDirectory, in: .userDomainMask, appropriateFor: nil, create: true)
        let cache = caches.appendingPathComponent("edgepack/models").appendingPathComponent(bundle.manifest.name)
        let opener = Opener(bundle: bundle, runtime: OnnxRuntime(), device: .current, cache: cache)
        return try opener.open(only: variant, isFresh: isFresh)
    }
}

/// Runs long work outside the threads that Swift's tasks share.
func runInBackground<Value: Sendable>(_ work: @escaping @Sendable () throws -> Value) async throws -> Value {
    try await withCheckedThrowingContinuation { continuation in
        DispatchQueue.global(qos: .userInitiated).async {
            continuation.resume(with: Result(catching: work))
        }
    }
}
