// What the generated programs of swift_models.py have in common. MODULE stands for the bundle's module.

import Foundation
import MODULE

/// Reads a golden tensor whose elements are Swift's.
func read<Scalar: TensorScalar>(_ path: String, _ shape: [Int]) throws -> Tensor<Scalar> {
    let data = try Data(contentsOf: bundle.appendingPathComponent(path))
    let scalars = data.withUnsafeBytes { Array($0.bindMemory(to: Scalar.self)) }
    return try Tensor(shape: shape, scalars: scalars)
}

/// Reads a golden tensor of float16.
func readHalf(_ path: String, _ shape: [Int]) throws -> Tensor<Float> {
    let data = try Data(contentsOf: bundle.appendingPathComponent(path))
    let scalars = data.withUnsafeBytes { Array($0.bindMemory(to: Float16.self)) }
    return try Tensor(shape: shape, scalars: scalars.map(Float.init))
}

func write<Scalar: TensorScalar>(_ tensor: Tensor<Scalar>, _ name: String) throws {
    let bytes = tensor.scalars.withUnsafeBytes { Data($0) }
    try bytes.write(to: out.appendingPathComponent(name))
}

/// A picture of pixels that Python makes in the same way.
func picture(width: Int, height: Int) throws -> RGBImage {
    let pixels = (0..<width * height * 3).map { UInt8($0 * 7 % 251) }
    return try RGBImage(width: width, height: height, pixels: pixels)
}

extension Tensor<Float> {
    /// Vectors as answers with a class and a label are, which they have not.
    var rows: [[Any]] { (0..<shape[0]).map { row in ["", ""] + (0..<shape[1]).map { self[row, $0] } } }
}

extension Transcription {
    var rows: [[Any]] { [[text, "", score]] }
}

let bundle = URL(fileURLWithPath: CommandLine.arguments[1])
let out = URL(fileURLWithPath: CommandLine.arguments[2])
var said: [String: Any] = [:]

func finish() throws {
    let data = try JSONSerialization.data(withJSONObject: said)
    try data.write(to: out.appendingPathComponent("said.json"))
}
