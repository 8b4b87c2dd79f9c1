// Signatures of manifests, which `edgepack sign` writes. PROTOCOL.sshsig of OpenSSH describes them.

import Foundation

#if canImport(CryptoKit)
    import CryptoKit
#endif

/// Who may sign bundles: a key, and when it may.
struct Signer: Sendable {
    private static let type = "ssh-ed25519"
    private static let namespace = "edgepack"
    private static let magic = Data("SSHSIG".utf8)
    private static let begin = "-----BEGIN SSH SIGNATURE-----"
    private static let end = "-----END SSH SIGNATURE-----"

    private let key: Data
    private let after: Date?
    private let before: Date?

    /// Reads a line of a `.pub` file, or one of allowed signers as ssh-keygen(1) describes them.
    ///
    /// - Throws: ``OpenError`` if it has no key of type `ssh-ed25519`, says a time that is none, or if the key may not sign
    ///   bundles.
    init(_ line: String) throws {
        let words = line.split(whereSeparator: \.isWhitespace).map(String.init)
        guard let place = words.firstIndex(of: Self.type), place + 1 < words.count,
            let blob = Data(base64Encoded: words[place + 1])
        else { throw OpenError("'\(line)' has no \(Self.type) key, the only type that this code checks") }
        var reader = Reader(rest: blob)
        _ = try reader.bytes()
        key = try reader.bytes()
        guard key.count == 32 else { throw OpenError("the key in '\(line)' has \(key.count) bytes, not 32") }
        let options = words[..<place].joined(separator: " ")
        if let namespaces = Self.value("namespaces", in: options), !Self.includes(namespaces) {
            throw OpenError("the key in '\(line)' may not sign bundles: its namespaces do not include '\(Self.namespace)'")
        }
        guard Self.range("cert-authority", in: options) == nil else {
            throw OpenError("the key in '\(line)' may not sign bundles: it signs certificates")
        }
        after = try Self.value("valid-after", in: options).map(Self.time)
        before = try Self.value("valid-before", in: options).map(Self.time)
    }

    /// Returns an option's value, without its quotes; nil where it is not given.
    private static func value(_ name: String, in options: String) -> String? {
        range("\(name)=(\"[^\"]*\"|[^\",\\s]*)", in: options).map { found in
            options[found].drop { $0 != "=" }.dropFirst().filter { $0 != "\"" }
        }
    }

    private static func range(_ option: String, in options: String) -> Range<String.Index>? {
        options.range(of: "(?i)\\b\(option)", options: .regularExpression)
    }

    /// Returns whether a list of patterns, as ssh_config(5) describes them, includes the namespace of bundles.
    private static func includes(_ list: String) -> Bool {
        let patterns = list.split(separator: ",").map(String.init)
        func matches(_ pattern: String) -> Bool {
            let plain = NSRegularExpression.escapedPattern(for: pattern)
            let any = plain.replacingOccurrences(of: "\\*", with: ".*").replacingOccurrences(of: "\\?", with: ".")
            return namespace.range(of: "^\(any)$", options: .regularExpression) != nil
        }
        return patterns.contains(where: matches) && !patterns.contains { $0.hasPrefix("!") && matches(String($0.dropFirst())) }
    }

    private static func time(_ text: String) throws -> Date {
        let digits = text.hasSuffix("Z") ? text.dropLast() : text[...]
        let format = DateFormatter()
        format.locale = Locale(identifier: "en_US_POSIX")
        format.dateFormat = "yyyyMMddHHmmss"
        if text.hasSuffix("Z") { format.timeZone = TimeZone(identifier: "UTC") }
        guard digits.allSatisfy({ $0.isASCII && $0.isNumber }), [8, 12, 14].contains(digits.count),
            let time = format.date(from: digits + String(repeating: "0", count: 14 - digits.count))
        else { throw OpenError("'\(text)' is no time") }
        return time
    }

    /// Checks the signature of a manifest.
    ///
    /// - Throws: ``OpenError`` if it is no signature of this manifest, if another key made it, or if this key may not sign now.
    func check(_ manifest: Data, signature armored: Data, now: Date = Date()) throws {
        let (signed, signature) = try read(armored, of: manifest)
        guard try isValid(signature, of: signed) else { throw damaged("it does not fit manifest.json: one of them was changed") }
        if let before, now >= before { throw OpenError("the key that signed the bundle has expired: on \(before)") }
        if let after, now < after { throw OpenError("the key that signed the bundle is valid from \(after) on") }
    }

    /// Returns what was signed, and the signature's 64 bytes.
    private func read(_ armored: Data, of manifest: Data) throws -> (Data, Data) {
        let text = String(decoding: armored, as: UTF8.self)
        guard let begin = text.range(of: Self.begin) else { throw damaged("it is no SSH signature") }
        let body = text[begin.upperBound...].components(separatedBy: Self.end)[0].filter { !$0.isWhitespace }
        guard let blob = Data(base64Encoded: String(body)) else { throw damaged("it is not Base64") }
        var reader = Reader(rest: blob)
        guard try reader.take(6) == Self.magic, try reader.number() == 1 else {
            throw damaged("it is no SSH signature of version 1")
        }
        let owner = try reader.bytes()
        let (namespace, reserved, algorithm) = (try reader.text(), try reader.bytes(), try reader.text())
        var inner = Reader(rest: try reader.bytes())
        guard namespace == Self.namespace else { throw damaged("it is for '\(namespace)', not for '\(Self.namespace)'") }
        guard owner == strings([Data(Self.type.utf8), key]) else {
            var other = Reader(rest: owner)
            let fingerprint = sha256(owner).base64EncodedString().replacingOccurrences(of: "=", with: "")
            throw OpenError(
                "the bundle is signed with another key than the app's: SHA256:\(fingerprint) (\(try other.text()))")
        }
        guard try inner.text() == Self.type else { throw damaged("it is no \(Self.type) signature") }
        let digest = try digest(of: manifest, by: algorithm)
        let signed = Self.magic + strings([Data(namespace.utf8), reserved, Data(algorithm.utf8), digest])
        return (signed, try inner.bytes())
    }

    /// Returns each part behind its number of bytes.
    private func strings(_ parts: [Data]) -> Data {
        parts.reduce(into: Data()) { all, part in
            all += withUnsafeBytes(of: UInt32(part.count).bigEndian) { Data($0) }
            all += part
        }
    }

    #if canImport(CryptoKit)
        private func digest(of manifest: Data, by algorithm: String) throws -> Data {
            switch algorithm {
            case "sha512": return Data(SHA512.hash(data: manifest))
            case "sha256": return Data(SHA256.hash(data: manifest))
            default: throw damaged("it is over a \(algorithm) hash")
            }
        }

        private func isValid(_ signature: Data, of signed: Data) throws -> Bool {
            try Curve25519.Signing.PublicKey(rawRepresentation: key).isValidSignature(signature, for: signed)
        }
    #else
        private func digest(of manifest: Data, by algorithm: String) throws -> Data {
            throw OpenError("signatures are checked by CryptoKit, which this system lacks")
        }

        private func isValid(_ signature: Data, of signed: Data) throws -> Bool { false }
    #endif
}

private func damaged(_ why: String) -> OpenError { OpenError("the bundle is damaged: manifest.json.sig: \(why)") }

/// Reads what SSH writes: numbers of four bytes, and bytes behind their number.
private struct Reader {
    var rest: Data

    mutating func take(_ count: Int) throws -> Data {
        guard count <= rest.count else { throw damaged("it is cut off") }
        defer { rest = Data(rest.dropFirst(count)) }
        return Data(rest.prefix(count))
    }

    mutating func number() throws -> Int { try take(4).reduce(0) { $0 << 8 | Int($1) } }

    mutating func bytes() throws -> Data { try take(number()) }

    mutating func text() throws -> String { String(decoding: try bytes(), as: UTF8.self) }
}
