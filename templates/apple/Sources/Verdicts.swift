// What an open found, kept in the app's caches for the next one.

import Foundation

/// The variant that works here, and why better ones do not.
struct Verdict: Codable {
    /// All that the verdict depends on.
    let key: String
    let variant: String
    /// Pairs: a variant and the reason.
    let passedOver: [[String]]
}

/// Keeps the verdict of an open, by all that it depends on.
struct Verdicts: Sendable {
    let file: URL
    let key: String

    /// - Parameters:
    ///   - folder: The app's folder for it.
    ///   - name: A digest of what is opened.
    ///   - key: All that the verdict depends on. With another key there is no verdict.
    init(folder: URL, name: String, key: String) {
        file = folder.appendingPathComponent("verdict-\(name.prefix(16)).json")
        self.key = key
    }

    /// Returns the verdict; nil if none was kept, or if it cannot be read.
    func read() -> Verdict? {
        guard let data = try? Data(contentsOf: file) else { return nil }
        let verdict = try? JSONDecoder().decode(Verdict.self, from: data)
        return verdict?.key == key && verdict!.passedOver.allSatisfy { $0.count == 2 } ? verdict : nil
    }

    /// Keeps a verdict. Where the caches take no file, the next open finds out again.
    func write(variant: String, passedOver: [PassedOver]) {
        let verdict = Verdict(key: key, variant: variant, passedOver: passedOver.map { [$0.variant, $0.reason] })
        try? FileManager.default.createDirectory(at: file.deletingLastPathComponent(), withIntermediateDirectories: true)
        try? JSONEncoder().encode(verdict).write(to: file, options: .atomic)
    }
}
