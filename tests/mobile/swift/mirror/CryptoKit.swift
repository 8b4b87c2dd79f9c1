// The part of CryptoKit that bundles use, by the names that Apple documents, computed by OpenSSL's libcrypto, so that the code
// around it is compiled and run where there is no CryptoKit.
//
// Source: developer.apple.com/documentation/cryptokit: SHA256, SHA512, Curve25519.Signing.PublicKey.

import Foundation

public protocol HashFunction {
    static var algorithm: OpaquePointer { get }
    init()
    var all: Data { get set }
}

public struct Digest: Sequence, Sendable {
    fileprivate let bytes: [UInt8]
    public func makeIterator() -> IndexingIterator<[UInt8]> { bytes.makeIterator() }
}

extension HashFunction {
    public mutating func update(bufferPointer: UnsafeRawBufferPointer) { all.append(contentsOf: bufferPointer) }

    public func finalize() -> Digest {
        var bytes = [UInt8](repeating: 0, count: 64)
        var count: UInt32 = 0
        let given = [UInt8](all)
        precondition(EVP_Digest(given, given.count, &bytes, &count, Self.algorithm, nil) == 1)
        return Digest(bytes: Array(bytes[..<Int(count)]))
    }

    public static func hash<D: DataProtocol>(data: D) -> Digest {
        var hash = Self()
        hash.all = Data(data)
        return hash.finalize()
    }
}

public struct SHA256: HashFunction {
    public static var algorithm: OpaquePointer { EVP_sha256() }
    public var all = Data()
    public init() {}
}

public struct SHA512: HashFunction {
    public static var algorithm: OpaquePointer { EVP_sha512() }
    public var all = Data()
    public init() {}
}

public enum Curve25519 {
    public enum Signing {
        public struct PublicKey: Sendable {
            private let key: [UInt8]

            public init<D: ContiguousBytes>(rawRepresentation data: D) throws {
                key = data.withUnsafeBytes { Array($0) }
                guard key.count == 32 else { throw CocoaError(.coderInvalidValue) }
            }

            public func isValidSignature<S: DataProtocol, D: DataProtocol>(_ signature: S, for data: D) -> Bool {
                // EVP_PKEY_ED25519 of openssl/evp.h.
                guard let key = EVP_PKEY_new_raw_public_key(1087, nil, key, 32), let context = EVP_MD_CTX_new()
                else { return false }
                defer {
                    EVP_MD_CTX_free(context)
                    EVP_PKEY_free(key)
                }
                guard EVP_DigestVerifyInit(context, nil, nil, nil, key) == 1 else { return false }
                return EVP_DigestVerify(context, Array(signature), signature.count, Array(data), data.count) == 1
            }
        }
    }
}

@_silgen_name("EVP_sha256") private func EVP_sha256() -> OpaquePointer
@_silgen_name("EVP_sha512") private func EVP_sha512() -> OpaquePointer
@_silgen_name("EVP_Digest") private func EVP_Digest(
    _ data: UnsafePointer<UInt8>, _ count: Int, _ digest: UnsafeMutablePointer<UInt8>, _ size: UnsafeMutablePointer<UInt32>,
    _ type: OpaquePointer, _ engine: OpaquePointer?
) -> Int32
@_silgen_name("EVP_PKEY_new_raw_public_key") private func EVP_PKEY_new_raw_public_key(
    _ type: Int32, _ engine: OpaquePointer?, _ key: UnsafePointer<UInt8>, _ count: Int
) -> OpaquePointer?
@_silgen_name("EVP_PKEY_free") private func EVP_PKEY_free(_ key: OpaquePointer)
@_silgen_name("EVP_MD_CTX_new") private func EVP_MD_CTX_new() -> OpaquePointer?
@_silgen_name("EVP_MD_CTX_free") private func EVP_MD_CTX_free(_ context: OpaquePointer)
@_silgen_name("EVP_DigestVerifyInit") private func EVP_DigestVerifyInit(
    _ context: OpaquePointer, _ key: OpaquePointer?, _ type: OpaquePointer?, _ engine: OpaquePointer?, _ owner: OpaquePointer
) -> Int32
@_silgen_name("EVP_DigestVerify") private func EVP_DigestVerify(
    _ context: OpaquePointer, _ signature: UnsafePointer<UInt8>, _ size: Int, _ data: UnsafePointer<UInt8>, _ count: Int
) -> Int32
