// Takes pictures of Core Video, Core Graphics and UIKit, of the mirrors beside this file, and looks at what came in. Compiled
// into the bundle's module. Argument: the bundle.

import CoreGraphics
import CoreVideo
import Foundation
import ImageIO
import UIKit

@main
struct Drawing {
    static func main() async throws {
        try takeDrawn()
        try takePixelBuffers()
        try refusePixelBuffers()
        let model = try await Detector.open(from: .folder(URL(fileURLWithPath: CommandLine.arguments[1])))
        try await runOnAll(model)
    }

    static let rgb = made(18, 7, 0)

    /// Bytes that grow by a step.
    static func made(_ count: Int, _ step: Int, _ first: Int) -> [UInt8] {
        (0..<count).map { (at: Int) -> UInt8 in UInt8(truncatingIfNeeded: at * step + first) }
    }

    static func cgImage(_ space: CGColorSpace? = nil) -> CGImage {
        var rgba: [UInt8] = []
        for at in stride(from: 0, to: rgb.count, by: 3) { rgba += rgb[at..<at + 3] + [255] }
        return CGImage(width: 3, height: 2, colorSpace: space, pixels: rgba)
    }

    /// Pictures that are drawn: in every colour space, and turned in every way.
    static func takeDrawn() throws {
        let spaces = [
            nil, CGColorSpace(model: .rgb, hasBitmaps: true), CGColorSpace(model: .cmyk, hasBitmaps: true),
            // Such as one with an extended range, if bitmaps of bytes have it not.
            CGColorSpace(model: .rgb, hasBitmaps: false),
        ]
        for space in spaces {
            let taken = try RGBImage(Picture(cgImage(space)))
            precondition(taken.pixels == rgb, "\(taken.pixels)")
        }
        let named: [(UIImage.Orientation, CGImagePropertyOrientation)] = [
            (.up, .up), (.down, .down), (.left, .left), (.right, .right), (.upMirrored, .upMirrored),
            (.downMirrored, .downMirrored), (.leftMirrored, .leftMirrored), (.rightMirrored, .rightMirrored),
        ]
        precondition(named.count == UIImage.Orientation.allCases.count)
        for (orientation, inEXIF) in named {
            let wanted = try frame(.rgb, rgb, orientation: Int(inEXIF.rawValue)) { try RGBImage(Picture($0)) }
            try require(RGBImage(Picture(cgImage(), orientation: inEXIF)) == wanted)
            let image = UIImage(cgImage: cgImage(), orientation: orientation)
            try require(RGBImage(image.picture) == wanted)
        }
        let said = refusal { try RGBImage(Picture(UIImage(cgImage: nil, orientation: .up))) }
        precondition(said == .memory, "a UIImage without a cgImage is taken")
    }

    /// Calls a function with a frame of 3 x 2 packed pixels.
    static func frame<Value>(
        _ format: Frame.Format, _ bytes: [UInt8], orientation: Int, _ use: (Frame) throws -> Value
    ) throws -> Value {
        try bytes.withUnsafeBytes {
            let plane = Frame.Plane(bytes: $0, rowStride: bytes.count / 2, pixelStride: bytes.count / 6)
            return try use(Frame(format: format, width: 3, height: 2, planes: [plane], orientation: orientation))
        }
    }

    /// A buffer of 3 x 2 pixels, with bytes between its rows.
    static func bgra() -> CVPixelBuffer {
        var pixels = made(32, 5, 0)
        for at in stride(from: 3, to: 32, by: 4) { pixels[at] = 255 }
        return CVBuffer(
            width: 3, height: 2, format: kCVPixelFormatType_32BGRA, planes: [.init(height: 2, bytesPerRow: 16, pixels: pixels)])
    }

    static func yuv(
        _ format: OSType, _ matrix: CFString? = nil, planes: Int = 2, chromaHeight: Int = 1, status: CVReturn = 0
    ) -> CVPixelBuffer {
        let luma = CVBuffer.Plane(height: 2, bytesPerRow: 8, pixels: made(16, 14, 20))
        // Each with memory of its own, which the buffer frees.
        let chroma = (1..<planes).map { _ in
            CVBuffer.Plane(height: chromaHeight, bytesPerRow: 6, pixels: made(6 * chromaHeight, 30, 40))
        }
        return CVBuffer(
            width: 3, height: 2, format: format, planes: [luma] + chroma, matrix: matrix,
            lockStatus: status)
    }

    /// A picture of 3 x 2 pixels, of Y, and of U and V in turn.
    static func image(
        _ y: UnsafeRawBufferPointer, _ uv: UnsafeRawBufferPointer, _ orientation: Int, _ matrix: Frame.Matrix,
        _ range: Frame.Range
    ) throws -> RGBImage {
        let planes = [
            Frame.Plane(bytes: y, rowStride: 8, pixelStride: 1),
            Frame.Plane(bytes: uv, rowStride: 6, pixelStride: 2),
            Frame.Plane(bytes: .init(rebasing: uv.dropFirst()), rowStride: 6, pixelStride: 2),
        ]
        let frame = try Frame(
            format: .yuv420, width: 3, height: 2, planes: planes, orientation: orientation, matrix: matrix, range: range)
        return try RGBImage(Picture(frame))
    }

    /// Each format, matrix and turn gives the pixels of the same bytes as a frame, and the buffer is locked just meanwhile.
    static func takePixelBuffers() throws {
        let formats = [
            (kCVPixelFormatType_420YpCbCr8BiPlanarFullRange, Frame.Range.full),
            (kCVPixelFormatType_420YpCbCr8BiPlanarVideoRange, .video),
        ]
        let matrices: [(CFString?, Frame.Matrix)] = [
            (nil, .bt601), (kCVImageBufferYCbCrMatrix_ITU_R_601_4, .bt601), (kCVImageBufferYCbCrMatrix_ITU_R_709_2, .bt709),
        ]
        let (luma, chroma) = (made(16, 14, 20), made(6, 30, 40))
        for orientation in CGImagePropertyOrientation.allCases {
            let number = Int(orientation.rawValue)
            for (format, range) in formats {
                for (matrix, named) in matrices {
                    let wanted: RGBImage = try luma.withUnsafeBytes { y in
                        try chroma.withUnsafeBytes { uv in try image(y, uv, number, named, range) }
                    }
                    let buffer = yuv(format, matrix)
                    try require(RGBImage(Picture(buffer, orientation: orientation)) == wanted, "\(named) \(range)")
                    precondition(buffer.locks == 0 && buffer.lockings == 1)
                }
            }
            var packed = made(12, 5, 0) + made(12, 5, 80)
            for at in stride(from: 3, to: 24, by: 4) { packed[at] = 255 }
            let wanted = try frame(.bgra, packed, orientation: number) { try RGBImage(Picture($0)) }
            let buffer = bgra()
            try require(RGBImage(Picture(buffer, orientation: orientation)) == wanted)
            precondition(buffer.locks == 0 && buffer.lockings == 1)
        }
    }

    /// What is not taken is refused for its reason, and is not locked afterwards.
    static func refusePixelBuffers() throws {
        let full = kCVPixelFormatType_420YpCbCr8BiPlanarFullRange
        let cases: [(CVPixelBuffer, ImageError.Reason, String)] = [
            (yuv(full, CFString()), .format, "BT.601 and BT.709 are taken"),
            (yuv(0x3432_3266), .format, "the pixel buffer's format is 422f: ask the camera for BGRA, 420f or 420v"),
            (yuv(32), .format, "the pixel buffer's format is 32: ask the camera for BGRA, 420f or 420v"),
            (yuv(full, planes: 3), .planes, "the pixel buffer's number of planes is 3, 2 are expected"),
            (yuv(full, chromaHeight: 0), .memory, "has 0 bytes, 3 are needed"),
            (yuv(full, status: -6660), .memory, "the pixel buffer cannot be locked: Core Video's error is -6660"),
        ]
        for (buffer, reason, words) in cases {
            do {
                _ = try RGBImage(Picture(buffer))
                preconditionFailure("it is taken: \(words)")
            } catch let error as ImageError {
                precondition(error.reason == reason && error.description.hasSuffix(words), "\(error)")
            }
            precondition(buffer.locks == 0, "it stays locked: \(words)")
        }
    }

    /// Every way in gives the same answers, on a queue as on this thread.
    static func runOnAll(_ model: Detector) async throws {
        let buffer = bgra()
        let image = try RGBImage(Picture(buffer, orientation: .right))
        let options = AnswerOptions(score: 0, most: 3)
        let wanted = try model.predictSync(image, options: options)
        try require(model.predictSync(buffer, orientation: .right, options: options) == wanted)
        let picture = Picture(buffer, orientation: .right)
        let found = try await model.predict(picture, options: options)
        precondition(found == wanted)
        let predictor = model.predictor()
        try require(predictor.predict(picture, options: options) == wanted.answers)
        try require(predictor.outputs() == wanted)
        let made = try Detector.Inputs(images: model.images(of: buffer, orientation: .right))
        try require(model.predictSync(made, options: options) == wanted)
        let drawn = cgImage()
        let ofDrawn = try model.predictSync(drawn, orientation: .left)
        try require(model.predictSync(UIImage(cgImage: drawn, orientation: .left)) == ofDrawn)
        try require(model.predictSync(.init(images: model.images(of: drawn, orientation: .left))) == ofDrawn)
    }

    static func require(_ held: @autoclosure () throws -> Bool, _ what: String = "", line: Int = #line) rethrows {
        guard try held() else { fatalError("line \(line): \(what)") }
    }

    static func refusal(_ make: () throws -> RGBImage) -> ImageError.Reason? {
        do {
            _ = try make()
            return nil
        } catch {
            return (error as? ImageError)?.reason
        }
    }
}
