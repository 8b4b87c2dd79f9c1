// A JSON reader that compares texts byte by byte.
//
// Swift's `String` treats canonically equivalent texts of Unicode as equal, and so do Foundation's JSON readers for the keys of
// an object. But a vocabulary may contain two such texts, with different ids.

import Foundation

/// A JSON value. Texts are UTF-8 bytes.
enum ExactJSON: Sendable, Equatable {
    case null
    case bool(Bool)
    case number(Double)
    case text([UInt8])
    case array([ExactJSON])
    case object([[UInt8]: ExactJSON])

    /// Reads a whole file.
    ///
    /// - Throws: ``ExactJSONError`` if it is not JSON.
    init(_ data: Data) throws {
        var reader = Reader(bytes: [UInt8](data))
        self = try reader.document()
    }

    /// The member of an object; null if there is none, or this is not an object.
    subscript(_ key: String) -> ExactJSON {
        guard case .object(let members) = self else { return .null }
        return members[Array(key.utf8)] ?? .null
    }

    /// The value at an index of an array; null if there is none, or this is not an array.
    subscript(_ index: Int) -> ExactJSON {
        guard case .array(let values) = self, values.indices.contains(index) else { return .null }
        return values[index]
    }

    var isNull: Bool { self == .null }

    var bool: Bool? {
        guard case .bool(let value) = self else { return nil }
        return value
    }

    /// The number, if it is an integer.
    var int: Int? {
        guard case .number(let value) = self else { return nil }
        return Int(exactly: value)
    }

    var bytes: [UInt8]? {
        guard case .text(let bytes) = self else { return nil }
        return bytes
    }

    var string: String? { bytes.map { String(decoding: $0, as: UTF8.self) } }

    var array: [ExactJSON]? {
        guard case .array(let values) = self else { return nil }
        return values
    }

    var object: [[UInt8]: ExactJSON]? {
        guard case .object(let members) = self else { return nil }
        return members
    }
}

/// A file that is not JSON.
struct ExactJSONError: LocalizedError, CustomStringConvertible, Sendable {
    let description: String

    var errorDescription: String? { description }
}

private struct Reader {
    private static let space = Set(" \t\n\r".utf8)
    private static let digits = Set("+-0123456789.eE".utf8)

    let bytes: [UInt8]
    var position = 0

    /// The next byte after white space; at the end 0, which JSON never contains.
    private var next: UInt8 {
        mutating get {
            while position < bytes.count, Self.space.contains(bytes[position]) { position += 1 }
            return position < bytes.count ? bytes[position] : 0
        }
    }

    mutating func document() throws -> ExactJSON {
        let value = try self.value()
        guard next == 0, position == bytes.count else { throw wrong() }
        return value
    }

    private mutating func value() throws -> ExactJSON {
        switch next {
        case UInt8(ascii: "{"): return try object()
        case UInt8(ascii: "["): return try array()
        case UInt8(ascii: "\""): return .text(try text())
        case UInt8(ascii: "t"): return try word("true", .bool(true))
        case UInt8(ascii: "f"): return try word("false", .bool(false))
        case UInt8(ascii: "n"): return try word("null", .null)
        default: return try number()
        }
    }

    private mutating func object() throws -> ExactJSON {
        var members: [[UInt8]: ExactJSON] = [:]
        try list(until: "}") { reader in
            guard reader.next == UInt8(ascii: "\"") else { throw reader.wrong() }
            let key = try reader.text()
            try reader.take(":")
            members[key] = try reader.value()
        }
        return .object(members)
    }

    private mutating func array() throws -> ExactJSON {
        var values: [ExactJSON] = []
        try list(until: "]") { reader in values.append(try reader.value()) }
        return .array(values)
    }

    /// Reads a list from its opening bracket, which is here, to its closing one, with commas between the items.
    private mutating func list(until end: Unicode.Scalar, item: (inout Reader) throws -> Void) throws {
        position += 1
        if next == UInt8(ascii: end) {
            position += 1
            return
        }
        while true {
            try item(&self)
            if next == UInt8(ascii: end) {
                position += 1
                return
            }
            try take(",")
        }
    }

    private mutating func take(_ mark: Unicode.Scalar) throws {
        guard next == UInt8(ascii: mark) else { throw wrong() }
        position += 1
    }

    private mutating func word(_ word: String, _ value: ExactJSON) throws -> ExactJSON {
        guard bytes[position...].starts(with: word.utf8) else { throw wrong() }
        position += word.utf8.count
        return value
    }

    private mutating func number() throws -> ExactJSON {
        let digits = bytes[position...].prefix { Self.digits.contains($0) }
        guard let value = Double(String(decoding: digits, as: UTF8.self)) else { throw wrong() }
        position += digits.count
        return .number(value)
    }

    private mutating func text() throws -> [UInt8] {
        position += 1
        var text: [UInt8] = []
        while position < bytes.count {
            let byte = bytes[position]
            position += 1
            switch byte {
            case UInt8(ascii: "\""): return text
            case UInt8(ascii: "\\"): text += try escaped()
            default: text.append(byte)
            }
        }
        throw wrong()
    }

    private mutating func escaped() throws -> [UInt8] {
        guard position < bytes.count else { throw wrong() }
        let byte = bytes[position]
        position += 1
        switch byte {
        case UInt8(ascii: "b"): return [0x08]
        case UInt8(ascii: "f"): return [0x0c]
        case UInt8(ascii: "n"): return [0x0a]
        case UInt8(ascii: "r"): return [0x0d]
        case UInt8(ascii: "t"): return [0x09]
        case UInt8(ascii: "u"): return try codeUnits()
        case UInt8(ascii: "\""), UInt8(ascii: "\\"), UInt8(ascii: "/"): return [byte]
        default: throw wrong()
        }
    }

    /// Reads the digits of a `\u`, and of the next one where the two are one character.
    private mutating func codeUnits() throws -> [UInt8] {
        var units = [try codeUnit()]
        if UTF16.isLeadSurrogate(units[0]), bytes[position...].starts(with: "\\u".utf8) {
            position += 2
            units.append(try codeUnit())
        }
        return Array(String(decoding: units, as: UTF16.self).utf8)
    }

    private mutating func codeUnit() throws -> UInt16 {
        let digits = bytes[position...].prefix(4)
        guard digits.count == 4, let unit = UInt16(String(decoding: digits, as: UTF8.self), radix: 16) else {
            throw wrong()
        }
        position += 4
        return unit
    }

    private func wrong() -> ExactJSONError {
        ExactJSONError(description: "it is not JSON: byte \(position) is not what is expected there")
    }
}
