// Tensors: typed ones, which apps use, and plain bytes, which the runtime and the golden files use.

import Foundation

/// A Swift type that a tensor's elements can have.
public protocol TensorScalar: Sendable, Equatable {}

extension Float: TensorScalar {}
extension Double: TensorScalar {}
extension Int8: TensorScalar {}
extension Int16: TensorScalar {}
extension Int32: TensorScalar {}
extension Int64: TensorScalar {}
extension UInt8: TensorScalar {}
extension UInt16: TensorScalar {}
extension UInt32: TensorScalar {}
extension UInt64: TensorScalar {}
extension Bool: TensorScalar {}

/// Numbers with a shape: an input or output of the model.
///
/// A model's float16 tensors are `Tensor<Float>` here; the code converts them when they enter and leave the model.
public struct Tensor<Scalar: TensorScalar>: Sendable, Equatable {
    /// The size of each axis, outermost first. A tensor without axes has one number.
    public let shape: [Int]
    /// All elements; the last axis is the fastest (C order).
    public let scalars: [Scalar]
    /// Where the picture lies in this tensor; nil where the tensor was not made from a picture.
    @_spi(EdgepackGenerated) public internal(set) var place: ImagePlacement?

    /// Makes a tensor from elements in C order.
    ///
    /// - Throws: ``TensorError`` if the number of elements does not match the shape.
    public init(shape: [Int], scalars: [Scalar]) throws {
        let count = try TensorError.count(of: shape)
        guard count == scalars.count else {
            throw TensorError(.shape, "a tensor of shape \(shape) has \(count) elements, \(scalars.count) were given")
        }
        self.init(unchecked: scalars, shape: shape)
    }

    /// Makes a tensor with the same value everywhere.
    ///
    /// - Throws: ``TensorError`` if a size is negative, or the shape has more elements than memory can hold.
    public init(shape: [Int], repeating value: Scalar) throws {
        self.init(unchecked: Array(repeating: value, count: try TensorError.count(of: shape)), shape: shape)
    }

    init(unchecked scalars: [Scalar], shape: [Int]) {
        self.shape = shape
        self.scalars = scalars
    }

    /// Returns whether shapes and elements are equal.
    public static func == (one: Tensor, other: Tensor) -> Bool {
        one.shape == other.shape && one.scalars == other.scalars
    }

    /// The element at one index for each axis.
    public subscript(_ indices: Int...) -> Scalar {
        precondition(indices.count == shape.count, "one index for each of \(shape.count) axes")
        var offset = 0
        for (index, size) in zip(indices, shape) {
            precondition((0..<size).contains(index), "index \(index) of an axis with \(size) elements")
            offset = offset * size + index
        }
        return scalars[offset]
    }
}

/// A tensor that the model does not take, and why.
public struct TensorError: LocalizedError, CustomStringConvertible, Sendable, Equatable {
    /// What is wrong, for code.
    public enum Reason: Sendable {
        /// The number of elements does not match the shape, or the model does not take the shape.
        case shape
        /// An input is not there.
        case missing
        /// The bundle's code and its manifest are of different bundles.
        case bundle
    }

    /// What is wrong, for code.
    public let reason: Reason
    /// What was found and what was expected.
    public let description: String

    /// Makes an error, for an app's tests.
    public init(_ reason: Reason, _ description: String) {
        self.reason = reason
        self.description = description
    }

    /// The same as ``description``.
    public var errorDescription: String? { description }

    static func count(of shape: [Int]) throws -> Int {
        var count = 1
        for size in shape {
            let (product, overflow) = count.multipliedReportingOverflow(by: size)
            guard size >= 0, !overflow else { throw TensorError(.shape, "\(shape) is no shape of a tensor") }
            count = product
        }
        return count
    }
}

/// The type of a tensor's elements, by its numpy name, as in the manifest.
@_spi(EdgepackGenerated)
public enum ElementType: String, Decodable, Sendable {
    case float16, float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64, bool

    var size: Int {
        switch self {
        case .int8, .uint8, .bool: return 1
        case .float16, .int16, .uint16: return 2
        case .float32, .int32, .uint32: return 4
        case .float64, .int64, .uint64: return 8
        }
    }

    var isFloat: Bool { self == .float16 || self == .float32 || self == .float64 }
}

/// Bytes that stay where they are as long as someone has them.
final class Memory: @unchecked Sendable {
    /// Aligned for what is fastest to compute with.
    let bytes: UnsafeMutableRawBufferPointer

    init(count: Int) {
        // onnxruntime needs an address even where there is nothing.
        let start = UnsafeMutableRawPointer.allocate(byteCount: max(count, 1), alignment: 64)
        bytes = UnsafeMutableRawBufferPointer(start: start, count: count)
    }

    convenience init(copying bytes: UnsafeRawBufferPointer) {
        self.init(count: bytes.count)
        self.bytes.copyMemory(from: bytes)
    }

    deinit { bytes.deallocate() }
}

/// A tensor as the runtime and the golden files use it: little-endian bytes in C order.
///
/// Nobody writes to its memory but a run that is pinned to it, and whoever has such a tensor copies it before the next run.
@_spi(EdgepackGenerated)
public struct RawTensor: Sendable, Equatable {
    let type: ElementType
    let shape: [Int]
    /// As many bytes as shape and type need.
    let memory: Memory

    var count: Int { memory.bytes.count / type.size }

    /// A copy of the bytes.
    var bytes: [UInt8] { withUnsafeBytes { Array($0) } }

    /// - Throws: ``TensorError`` if the number of bytes does not match shape and type.
    init(type: ElementType, shape: [Int], bytes: [UInt8]) throws {
        let count = try TensorError.count(of: shape)
        guard bytes.count == count * type.size else {
            throw TensorError(.shape, "\(type) of shape \(shape) is \(count * type.size) bytes, there are \(bytes.count)")
        }
        self.init(unchecked: bytes, type: type, shape: shape)
    }

    init(unchecked bytes: [UInt8], type: ElementType, shape: [Int]) {
        self.init(unchecked: bytes.withUnsafeBytes { Memory(copying: $0) }, type: type, shape: shape)
    }

    init(unchecked memory: Memory, type: ElementType, shape: [Int]) {
        self.type = type
        self.shape = shape
        self.memory = memory
    }

    /// Returns whether types, shapes and bytes are equal.
    public static func == (one: RawTensor, other: RawTensor) -> Bool {
        one.type == other.type && one.shape == other.shape && one.bytes == other.bytes
    }

    /// Calls a function with the bytes in memory.
    func withUnsafeBytes<Value>(_ body: (UnsafeRawBufferPointer) throws -> Value) rethrows -> Value {
        try withExtendedLifetime(memory) { try body(UnsafeRawBufferPointer(memory.bytes)) }
    }

    /// Returns every `stride`-th element, from the first on, as a vector; for 1 the tensor itself.
    func every(_ stride: Int) -> RawTensor {
        guard stride > 1 else { return self }
        let size = type.size
        let some = withUnsafeBytes { bytes in
            Swift.stride(from: 0, to: count, by: stride).flatMap { bytes[$0 * size..<($0 + 1) * size] }
        }
        return RawTensor(unchecked: some, type: type, shape: [some.count / size])
    }

    /// Makes the bytes of a typed tensor. For a float16 input, `Float` is rounded to the nearest value, ties to even.
    public init<Scalar: TensorScalar>(_ tensor: Tensor<Scalar>, as type: ElementType) {
        if type == .float16, let floats = recast(tensor.scalars, to: Float.self) {
            self.init(unchecked: memoryOf(floats.map(Half.bits)), type: type, shape: tensor.shape)
        } else {
            self.init(unchecked: memoryOf(tensor.scalars), type: type, shape: tensor.shape)
        }
    }

    /// Returns the same tensor with Swift's elements.
    ///
    /// - Throws: ``TensorError`` if the elements have another type: then the code was made for another model.
    func typed<Scalar: TensorScalar>(as scalar: Scalar.Type = Scalar.self) throws -> Tensor<Scalar> {
        if type == .bool, let flags = recast(bytes.map { $0 != 0 }, to: scalar) {
            return Tensor(unchecked: flags, shape: shape)
        }
        if type == .float16, let floats = recast(scalars(as: UInt16.self).map(Half.float), to: scalar) {
            return Tensor(unchecked: floats, shape: shape)
        }
        guard RawTensor.elementType(of: scalar) == type else {
            throw TensorError(.bundle, "the model's tensor is \(type), which is no \(scalar)")
        }
        return Tensor(unchecked: scalars(as: scalar), shape: shape)
    }

    /// Returns the elements as float64, whatever their type.
    func doubles() -> Doubles { Doubles(self) }

    /// Returns the bytes of one element. For an integer type the value is rounded towards zero and limited to the type's range.
    static func element(_ value: Double, type: ElementType) -> [UInt8] {
        switch type {
        case .float16: return bytesOf([Half.bits(Float(value))])
        case .float32: return bytesOf([Float(value)])
        case .float64: return bytesOf([value])
        case .int8: return bytesOf([Int8(clamping: Int64(value))])
        case .int16: return bytesOf([Int16(clamping: Int64(value))])
        case .int32: return bytesOf([Int32(clamping: Int64(value))])
        case .int64: return bytesOf([Int64(value)])
        case .uint8: return bytesOf([UInt8(clamping: Int64(value))])
        case .uint16: return bytesOf([UInt16(clamping: Int64(value))])
        case .uint32: return bytesOf([UInt32(clamping: Int64(value))])
        case .uint64: return bytesOf([UInt64(max(0, value))])
        case .bool: return [value == 0 ? 0 : 1]
        }
    }

    private func scalars<Scalar>(as scalar: Scalar.Type) -> [Scalar] {
        Array(unsafeUninitializedCapacity: count) { buffer, initialized in
            withUnsafeBytes { UnsafeMutableRawBufferPointer(buffer).copyMemory(from: $0) }
            initialized = count
        }
    }

    private static func elementType<Scalar: TensorScalar>(of scalar: Scalar.Type) -> ElementType? {
        switch scalar {
        case is Float.Type: return .float32
        case is Double.Type: return .float64
        case is Int8.Type: return .int8
        case is Int16.Type: return .int16
        case is Int32.Type: return .int32
        case is Int64.Type: return .int64
        case is UInt8.Type: return .uint8
        case is UInt16.Type: return .uint16
        case is UInt32.Type: return .uint32
        case is UInt64.Type: return .uint64
        default: return nil
        }
    }
}

/// A tensor's elements as float64, read where they lie.
struct Doubles: RandomAccessCollection, Sendable {
    let startIndex = 0
    let endIndex: Int
    private let type: ElementType
    private let memory: Memory

    init(_ tensor: RawTensor) {
        endIndex = tensor.count
        type = tensor.type
        memory = tensor.memory
    }

    subscript(index: Int) -> Double {
        precondition((0..<endIndex).contains(index))
        return withExtendedLifetime(memory) {
            let bytes = memory.bytes.baseAddress!
            switch type {
            case .float16: return Double(Half.float(bytes.load(fromByteOffset: index * 2, as: UInt16.self)))
            case .float32: return Double(bytes.load(fromByteOffset: index * 4, as: Float.self))
            case .float64: return bytes.load(fromByteOffset: index * 8, as: Double.self)
            case .int8: return Double(bytes.load(fromByteOffset: index, as: Int8.self))
            case .int16: return Double(bytes.load(fromByteOffset: index * 2, as: Int16.self))
            case .int32: return Double(bytes.load(fromByteOffset: index * 4, as: Int32.self))
            case .int64: return Double(bytes.load(fromByteOffset: index * 8, as: Int64.self))
            case .uint8, .bool: return Double(bytes.load(fromByteOffset: index, as: UInt8.self))
            case .uint16: return Double(bytes.load(fromByteOffset: index * 2, as: UInt16.self))
            case .uint32: return Double(bytes.load(fromByteOffset: index * 4, as: UInt32.self))
            case .uint64: return Double(bytes.load(fromByteOffset: index * 8, as: UInt64.self))
            }
        }
    }
}

@_spi(EdgepackGenerated)
extension [String: RawTensor] {
    /// Returns the tensor with a name.
    ///
    /// - Throws: ``TensorError`` if there is none, or its elements have another type.
    public func typed<Scalar: TensorScalar>(_ name: String) throws -> Tensor<Scalar> {
        guard let tensor = self[name] else { throw TensorError(.bundle, "there is no tensor '\(name)'") }
        return try tensor.typed()
    }
}

/// Returns the same array with the type name of a generic function; nil if it has another type.
private func recast<Source, Target>(_ array: [Source], to: Target.Type) -> [Target]? {
    Source.self == Target.self ? unsafeBitCast(array, to: [Target].self) : nil
}

// Apple's processors and those of the test machines are little-endian, and so are the golden files.
private func bytesOf<Scalar>(_ scalars: [Scalar]) -> [UInt8] {
    scalars.withUnsafeBytes { Array($0) }
}

private func memoryOf<Scalar>(_ scalars: [Scalar]) -> Memory {
    scalars.withUnsafeBytes { Memory(copying: $0) }
}

/// Converts IEEE 754 binary16 bits: `Float16` does not exist on every processor that the simulator runs on.
enum Half {
    /// Returns the exact value.
    static func float(_ bits: UInt16) -> Float {
        let sign: Float = bits & 0x8000 == 0 ? 1 : -1
        let exponent = Int(bits >> 10 & 0x1f)
        let fraction = Float(bits & 0x3ff)
        switch exponent {
        case 0: return sign * fraction * 0x1p-24
        case 31: return fraction == 0 ? sign * .infinity : .nan
        default: return sign * Float(sign: .plus, exponent: exponent - 15, significand: 1 + fraction * 0x1p-10)
        }
    }

    /// Returns the bits of the nearest value, ties to even; infinity if the value is too large.
    static func bits(_ value: Float) -> UInt16 {
        let sign: UInt16 = value.sign == .minus ? 0x8000 : 0
        let size = value.magnitude
        if size.isNaN { return sign | 0x7e00 }
        if size >= 65520 { return sign | 0x7c00 }
        if size < 0x1p-14 {
            // A subnormal number counts in steps of 2^-24; 1024 steps are the smallest normal number.
            return sign | UInt16((size * 0x1p24).rounded(.toNearestOrEven))
        }
        let exponent = Int(size.exponent)
        let steps = UInt16(((size.significand - 1) * 1024).rounded(.toNearestOrEven))
        // A fraction that rounds up to 1024 carries into the exponent, which is correct.
        return sign | ((UInt16(exponent + 15) << 10) + steps)
    }
}
