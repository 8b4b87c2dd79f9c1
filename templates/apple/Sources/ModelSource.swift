// Where a bundle's files come from, and whether they are those that the manifest lists.

import Foundation

#if canImport(CryptoKit)
    import CryptoKit
#endif

/// Where the model's files come from.
public struct ModelSource: Sendable {
    enum Place: Sendable {
        case resources
        case folder(URL)
        case function(@Sendable (String) throws -> Data)
    }

    let place: Place
    private(set) var signer: String?

    /// The app's resources, into which this package puts the files.
    public static let resources = ModelSource(place: .resources)

    /// A folder, for example of on-demand resources or of a download.
    ///
    /// It contains `manifest.json`, `models/`, `golden/` and `files/` of the bundle; other files beside them are not read.
    public static func folder(_ folder: URL) -> ModelSource { ModelSource(place: .folder(folder)) }

    /// The app's own function, for example one that decrypts.
    ///
    /// Nothing that it returns is written to a file, so it cannot give models whose weights are in files of their own.
    ///
    /// - Parameter read: Returns the bytes of a path in the bundle, such as `models/cpu-fp32.onnx`, or throws an error. The model
    ///   calls it for some files more than once.
    public static func function(_ read: @escaping @Sendable (String) throws -> Data) -> ModelSource {
        ModelSource(place: .function(read))
    }

    /// Returns the same source, from which only a bundle is opened that has a signature (`edgepack sign`) by this key.
    ///
    /// - Parameter key: The content of the `.pub` file of an Ed25519 key, or a line of ssh-keygen's allowed signers with one,
    ///   whose `valid-after` and `valid-before` count.
    public func signed(by key: String) -> ModelSource {
        var source = self
        source.signer = key
        return source
    }
}

/// A file as the manifest lists it.
struct ListedFile: Decodable, Sendable {
    let path: String
    let sha256: String
    let size: Int
    let role: String

    /// Whether this code reads it.
    var isRead: Bool { ["model", "golden", "file"].contains(role) }

    enum CodingKeys: String, CodingKey {
        case path, sha256, role
        case size = "size_bytes"
    }
}

/// A model's bytes.
enum ModelData: Sendable {
    case file(URL)
    case bytes(Data, name: String)

    var name: String {
        switch self {
        case .file(let file): return file.lastPathComponent
        case .bytes(_, let name): return name
        }
    }
}

/// The bundle's files, wherever they come from.
enum BundleFiles: Sendable {
    case folder(URL)
    case function(@Sendable (String) throws -> Data)

    /// The folders with what the code reads beside `manifest.json`.
    private static let folders = ["models", "golden", "files"]
    private static let chunk = 1 << 20

    /// Returns a path as messages name it.
    func name(_ path: String) -> String {
        switch self {
        case .folder(let folder): return folder.appendingPathComponent(path).path
        case .function: return "\(path) from the app's function"
        }
    }

    /// Returns a file's bytes.
    ///
    /// - Throws: ``OpenError`` if there is no such file.
    func data(_ path: String) throws -> Data {
        do {
            switch self {
            case .folder(let folder): return try Data(contentsOf: folder.appendingPathComponent(path))
            case .function(let read): return try read(path)
            }
        } catch {
            throw OpenError("the bundle is not whole: \(name(path)): \(message(error))")
        }
    }

    /// Returns the manifest's signature.
    ///
    /// - Throws: ``OpenError`` if there is none.
    func signature() throws -> Data {
        do {
            return try data("manifest.json.sig")
        } catch {
            throw OpenError("the bundle is not signed: \(message(error))")
        }
    }

    /// Returns a model; one in a folder is not read.
    func model(_ path: String) throws -> ModelData {
        switch self {
        case .folder(let folder): return .file(folder.appendingPathComponent(path))
        case .function: return .bytes(try data(path), name: (path as NSString).lastPathComponent)
        }
    }

    /// Checks that the files are those that the manifest lists: none is missing, truncated, changed, or there in addition.
    ///
    /// - Throws: ``OpenError`` with the first that is.
    func verify(_ listed: [ListedFile]) throws {
        for file in listed where file.isRead {
            var hash = SHA256()
            let size = try readChunks(file.path) { hash.update(bufferPointer: $0) }
            guard size == file.size else {
                throw OpenError(
                    "the bundle is damaged: \(name(file.path)) has \(size) bytes, \(file.size) are listed in manifest.json")
            }
            guard hex(hash.finalize()) == file.sha256 else {
                throw OpenError(
                    "the bundle is damaged: \(name(file.path)) is not the file that manifest.json lists: it was changed")
            }
        }
        if let more = try list().keys.filter({ path in !listed.contains { $0.path == path } }).min() {
            throw OpenError("the bundle is damaged: manifest.json does not list \(name(more))")
        }
    }

    /// Returns what changes when files do, without reading them; nothing where only reading tells.
    func stamp() throws -> String {
        try list().sorted { $0.key < $1.key }.map { "\($0.key) \($0.value)" }.joined(separator: "\n")
    }

    /// Returns all files in the folders, each with what changes when the file does. A link counts as what it leads to.
    private func list() throws -> [String: String] {
        guard case .folder(let folder) = self else { return [:] }
        var (found, folders): ([String: String], Set<String>) = ([:], [])
        func add(_ path: String) throws {
            let file = folder.appendingPathComponent(path).resolvingSymlinksInPath().path
            var isFolder: ObjCBool = false
            guard FileManager.default.fileExists(atPath: file, isDirectory: &isFolder) else { return }
            guard isFolder.boolValue else {
                let facts = try FileManager.default.attributesOfItem(atPath: file)
                let time = (facts[.modificationDate] as? Date)?.timeIntervalSince1970 ?? 0
                found[path] = "\(facts[.size] ?? 0) \(time)"
                return
            }
            guard folders.insert(file).inserted else {
                throw OpenError("the bundle is damaged: \(name(path)) is a link to a folder that is there already")
            }
            for inner in try FileManager.default.contentsOfDirectory(atPath: file) { try add("\(path)/\(inner)") }
        }
        for name in Self.folders { try add(name) }
        return found
    }

    /// Reads a file in parts, where it is one, and returns its size.
    private func readChunks(_ path: String, _ take: (UnsafeRawBufferPointer) -> Void) throws -> Int {
        guard case .folder(let folder) = self else {
            let data = try data(path)
            data.withUnsafeBytes(take)
            return data.count
        }
        guard let stream = InputStream(url: folder.appendingPathComponent(path)) else {
            throw OpenError("the bundle is not whole: \(name(path)) cannot be opened")
        }
        stream.open()
        defer { stream.close() }
        var bytes = [UInt8](repeating: 0, count: Self.chunk)
        var size = 0
        while true {
            let count = stream.read(&bytes, maxLength: bytes.count)
            guard count >= 0, stream.streamStatus != .error else {
                let why = stream.streamError.map(message) ?? "it cannot be read"
                throw OpenError("the bundle is not whole: \(name(path)): \(why)")
            }
            guard count > 0 else { return size }
            bytes.withUnsafeBytes { take(UnsafeRawBufferPointer(rebasing: $0[..<count])) }
            size += count
        }
    }
}

/// Returns the SHA-256 of bytes.
func sha256(_ data: Data) -> Data {
    var hash = SHA256()
    data.withUnsafeBytes { hash.update(bufferPointer: $0) }
    return Data(hash.finalize())
}

/// Returns bytes as hexadecimal digits.
func hex(_ bytes: some Sequence<UInt8>) -> String {
    bytes.map { String(format: "%02x", $0) }.joined()
}

#if !canImport(CryptoKit)
    /// Computes SHA-256, where Apple's CryptoKit is not, as FIPS 180-4 describes it.
    struct SHA256 {
        private static let primes = (2...311).filter { n in (2..<n).allSatisfy { n % $0 != 0 } }
        /// The first 32 bits of the fractions of cube roots and of square roots of primes.
        private static let constants = primes.map { fraction(cbrt(Double($0))) }
        private var state = primes.prefix(8).map { fraction(Double($0).squareRoot()) }
        private var rest: [UInt8] = []
        private var count = 0

        private static func fraction(_ root: Double) -> UInt32 {
            UInt32((root - root.rounded(.down)) * 4_294_967_296)
        }

        mutating func update(bufferPointer bytes: UnsafeRawBufferPointer) {
            count += bytes.count
            rest += bytes
            let whole = rest.count / 64 * 64
            rest.withUnsafeBytes { all in
                for start in stride(from: 0, to: whole, by: 64) { Self.mix(&state, all, start) }
            }
            rest.removeFirst(whole)
        }

        func finalize() -> [UInt8] {
            var last = self
            let zeros = [UInt8](repeating: 0, count: (119 - count % 64) % 64)
            let bits = UInt64(count) * 8
            let end = [0x80] + zeros + stride(from: 56, through: 0, by: -8).map { UInt8(truncatingIfNeeded: bits >> UInt64($0)) }
            end.withUnsafeBytes { last.update(bufferPointer: $0) }
            return last.state.flatMap { word in
                stride(from: 24, through: 0, by: -8).map { UInt8(truncatingIfNeeded: word >> UInt32($0)) }
            }
        }

        private static func mix(_ state: inout [UInt32], _ bytes: UnsafeRawBufferPointer, _ start: Int) {
            var words = (0..<16).map { UInt32(bigEndian: bytes.loadUnaligned(fromByteOffset: start + 4 * $0, as: UInt32.self)) }
            for n in 16..<64 {
                let (a, b) = (words[n - 15], words[n - 2])
                let first = turn(a, 7) ^ turn(a, 18) ^ (a >> 3)
                let second = turn(b, 17) ^ turn(b, 19) ^ (b >> 10)
                words.append(words[n - 16] &+ first &+ words[n - 7] &+ second)
            }
            var s = state
            for n in 0..<64 {
                let chosen = (s[4] & s[5]) ^ (~s[4] & s[6])
                let most = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2])
                let one = s[7] &+ (turn(s[4], 6) ^ turn(s[4], 11) ^ turn(s[4], 25)) &+ chosen &+ constants[n] &+ words[n]
                let two = (turn(s[0], 2) ^ turn(s[0], 13) ^ turn(s[0], 22)) &+ most
                s = [one &+ two, s[0], s[1], s[2], s[3] &+ one, s[4], s[5], s[6]]
            }
            for n in 0..<8 { state[n] &+= s[n] }
        }

        private static func turn(_ word: UInt32, _ bits: UInt32) -> UInt32 { (word >> bits) | (word << (32 - bits)) }
    }
#endif
