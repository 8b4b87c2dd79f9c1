// Opens a model in an app: on a thread, with a cache folder and the runtime.

import Foundation

extension LoadedModel {
    /// Opens the best variant, or the one with the given id, with the runtime that is linked into the app.
    static func open(variant: String?, folder: URL) throws -> LoadedModel {
        let bundle = try ModelBundle(folder: folder)
        let caches = try FileManager.default.url(
            for: .cachesDirectory, in: .userDomainMask, appropriateFor: nil, create: true)
        let cache = caches.appendingPathComponent("edgepack/models").appendingPathComponent(bundle.manifest.name)
        let opener = Opener(bundle: bundle, runtime: OnnxRuntime(), device: .current, cache: cache)
        return try opener.open(only: variant)
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
