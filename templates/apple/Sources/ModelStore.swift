// Versions of the model that come later.

import Foundation

/// Lets a process install one version at a time.
private let turn = NSLock()

/// A folder of the app's own for versions of the model that come later. One version is the current one.
///
/// ```swift
/// let store = ModelStore(folder: support.appendingPathComponent("model"))
/// try await Model.install(download, in: store)
/// let model = try await Model.open(from: store.current ?? .resources)
/// ```
public struct ModelStore: Sendable {
    private let folder: URL
    private let signer: String?

    /// - Parameters:
    ///   - folder: The app changes nothing in it; it need not exist yet.
    ///   - signer: Whose signature every version must have, as ``ModelSource/signed(by:)`` takes it; nil for none.
    public init(folder: URL, signer: String? = nil) {
        self.folder = folder
        self.signer = signer
    }

    private var versions: URL { folder.appendingPathComponent("versions") }
    private var pointer: URL { folder.appendingPathComponent("current") }

    /// The current version; nil before the first one is installed.
    ///
    /// - Throws: ``OpenError`` if the file that names it cannot be read.
    public var current: ModelSource? {
        get throws {
            guard FileManager.default.fileExists(atPath: pointer.path) else { return nil }
            do {
                return source(versions.appendingPathComponent(try String(contentsOf: pointer, encoding: .utf8)))
            } catch {
                throw OpenError("the store is damaged: \(pointer.path): \(message(error))")
            }
        }
    }

    /// Makes a folder the current version, and deletes the other ones.
    ///
    /// Until the new one is current, the one before is, whatever ends the app meanwhile.
    ///
    /// - Parameter prove: Throws if the folder must not become current.
    func install(_ download: URL, prove: (ModelSource) throws -> Void) throws {
        turn.lock()
        defer { turn.unlock() }
        try prove(source(download))
        let files = FileManager.default
        let next = UUID().uuidString
        do {
            try files.createDirectory(at: versions, withIntermediateDirectories: true)
            try synchronize(download)
            try files.moveItem(at: download, to: versions.appendingPathComponent(next))
            // Writes another file and renames it, which replaces the one before at once.
            try Data(next.utf8).write(to: pointer, options: .atomic)
        } catch {
            throw OpenError("\(download.path) cannot be installed: \(message(error))")
        }
        // The next install deletes what cannot be deleted now.
        for other in (try? files.contentsOfDirectory(atPath: versions.path)) ?? [] where other != next {
            try? files.removeItem(at: versions.appendingPathComponent(other))
        }
    }

    private func source(_ version: URL) -> ModelSource {
        let folder = ModelSource.folder(version)
        return signer.map(folder.signed) ?? folder
    }

    /// Has the system write the files that it still holds in memory.
    private func synchronize(_ folder: URL) throws {
        for path in FileManager.default.enumerator(atPath: folder.path)?.compactMap({ $0 as? String }) ?? [] {
            let file = folder.appendingPathComponent(path)
            var isFolder: ObjCBool = false
            guard FileManager.default.fileExists(atPath: file.path, isDirectory: &isFolder), !isFolder.boolValue else {
                continue
            }
            let handle = try FileHandle(forUpdating: file)
            try handle.synchronize()
            try handle.close()
        }
    }
}
