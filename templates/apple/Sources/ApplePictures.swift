// Pictures of Apple's frameworks: a camera's pixel buffers, CGImage and UIImage. Not tried on a phone.

#if canImport(CoreVideo)
    import CoreVideo
#endif
#if canImport(CoreGraphics)
    import CoreGraphics
#endif
import Foundation
#if canImport(ImageIO)
    import ImageIO
#endif
#if canImport(UIKit)
    import UIKit
#endif

#if canImport(CoreVideo) && canImport(ImageIO)
    extension Picture {
        /// Takes a pixel buffer, such as a camera's. It is locked while it is read, and not copied.
        ///
        /// It has one of the formats BGRA (not multiplied by alpha), 420f and 420v. The colours of the last two are by the
        /// matrix that the buffer names, BT.601 where it names none.
        ///
        /// - Parameters:
        ///   - pixelBuffer: The caller leaves its pixels as they are until the call that takes the picture is over.
        ///   - orientation: How it is turned: `right` for a buffer that must be turned clockwise by 90 degrees.
        public init(_ pixelBuffer: CVPixelBuffer, orientation: CGImagePropertyOrientation = .up) {
            self.init { use in
                let status = CVPixelBufferLockBaseAddress(pixelBuffer, .readOnly)
                guard status == kCVReturnSuccess else {
                    throw ImageError(.memory, "the pixel buffer cannot be locked: Core Video's error is \(status)")
                }
                defer { CVPixelBufferUnlockBaseAddress(pixelBuffer, .readOnly) }
                try use(frame(of: pixelBuffer, orientation: Int(orientation.rawValue)))
            }
        }
    }

    /// Describes a locked pixel buffer.
    private func frame(of pixelBuffer: CVPixelBuffer, orientation: Int) throws -> Frame {
        let (width, height) = (CVPixelBufferGetWidth(pixelBuffer), CVPixelBufferGetHeight(pixelBuffer))
        func made(
            _ format: Frame.Format, _ planes: [Frame.Plane], matrix: Frame.Matrix = .bt601, range: Frame.Range = .full
        ) throws -> Frame {
            try Frame(
                format: format, width: width, height: height, planes: planes, orientation: orientation, matrix: matrix,
                range: range)
        }
        switch CVPixelBufferGetPixelFormatType(pixelBuffer) {
        case kCVPixelFormatType_32BGRA:
            guard let start = CVPixelBufferGetBaseAddress(pixelBuffer) else { throw noMemory }
            let rowStride = CVPixelBufferGetBytesPerRow(pixelBuffer)
            let bytes = UnsafeRawBufferPointer(start: start, count: height * rowStride)
            return try made(.bgra, [Frame.Plane(bytes: bytes, rowStride: rowStride, pixelStride: 4)])
        case kCVPixelFormatType_420YpCbCr8BiPlanarFullRange:
            return try made(.yuv420, yuvPlanes(of: pixelBuffer), matrix: matrix(of: pixelBuffer), range: .full)
        case kCVPixelFormatType_420YpCbCr8BiPlanarVideoRange:
            return try made(.yuv420, yuvPlanes(of: pixelBuffer), matrix: matrix(of: pixelBuffer), range: .video)
        case let other:
            throw ImageError(
                .format, "the pixel buffer's format is \(fourCharacters(other)): ask the camera for BGRA, 420f or 420v")
        }
    }

    /// Returns Y, and U and V out of the plane that has both.
    private func yuvPlanes(of pixelBuffer: CVPixelBuffer) throws -> [Frame.Plane] {
        let count = CVPixelBufferGetPlaneCount(pixelBuffer)
        guard count == 2 else {
            throw ImageError(.planes, "the pixel buffer's number of planes is \(count), 2 are expected")
        }
        let planes = try (0..<2).map { number in
            guard let start = CVPixelBufferGetBaseAddressOfPlane(pixelBuffer, number) else { throw noMemory }
            let rowStride = CVPixelBufferGetBytesPerRowOfPlane(pixelBuffer, number)
            let size = CVPixelBufferGetHeightOfPlane(pixelBuffer, number) * rowStride
            return (bytes: UnsafeRawBufferPointer(start: start, count: size), rowStride: rowStride)
        }
        let (luma, both) = (planes[0], planes[1])
        let v = UnsafeRawBufferPointer(rebasing: both.bytes.dropFirst())
        return [
            Frame.Plane(bytes: luma.bytes, rowStride: luma.rowStride, pixelStride: 1),
            Frame.Plane(bytes: both.bytes, rowStride: both.rowStride, pixelStride: 2),
            Frame.Plane(bytes: v, rowStride: both.rowStride, pixelStride: 2),
        ]
    }

    private func matrix(of pixelBuffer: CVPixelBuffer) throws -> Frame.Matrix {
        guard let named = CVBufferCopyAttachment(pixelBuffer, kCVImageBufferYCbCrMatrixKey, nil) else { return .bt601 }
        if CFEqual(named, kCVImageBufferYCbCrMatrix_ITU_R_601_4) { return .bt601 }
        if CFEqual(named, kCVImageBufferYCbCrMatrix_ITU_R_709_2) { return .bt709 }
        throw ImageError(.format, "the pixel buffer's colours are by the matrix \(named): BT.601 and BT.709 are taken")
    }

    /// Returns a format's code as Core Video's names have it, such as `420f`; as a number where it is no text.
    private func fourCharacters(_ code: OSType) -> String {
        let bytes = [24, 16, 8, 0].map { UInt8(truncatingIfNeeded: code >> $0) }
        return bytes.allSatisfy { (0x20..<0x7f).contains($0) } ? String(decoding: bytes, as: UTF8.self) : "\(code)"
    }

    private var noMemory: ImageError { ImageError(.memory, "the pixel buffer has no memory that this processor can read") }
#endif

#if canImport(CoreGraphics) && canImport(ImageIO)
    extension Picture {
        /// Takes a Core Graphics picture, which is drawn over white when the model takes it.
        ///
        /// Colours keep the values of the picture's own colour space, as those of the build host's samples did. If that space
        /// is not RGB, or bitmaps with 8 bits per channel cannot have it, they are converted to sRGB.
        ///
        /// - Parameters:
        ///   - image: More than 8 bits per channel are reduced to 8.
        ///   - orientation: How it is turned. A `CGImage` does not contain it; an EXIF header does.
        public init(_ image: CGImage, orientation: CGImagePropertyOrientation = .up) {
            self.init { use in
                let context = try drawn(image)
                let size = image.height * context.bytesPerRow
                // The memory belongs to the context.
                try withExtendedLifetime(context) {
                    let bytes = UnsafeRawBufferPointer(start: context.data, count: size)
                    let plane = Frame.Plane(bytes: bytes, rowStride: context.bytesPerRow, pixelStride: 4)
                    // Over white no pixel stays transparent, so no colour is multiplied by alpha.
                    try use(
                        Frame(
                            format: .rgba, width: image.width, height: image.height, planes: [plane],
                            orientation: Int(orientation.rawValue)))
                }
            }
        }
    }

    /// Draws a picture over white.
    ///
    /// - Throws: ``ImageError`` if Core Graphics makes no bitmap of this size or colour space.
    private func drawn(_ image: CGImage) throws -> CGContext {
        let (width, height) = (image.width, image.height)
        let own = image.colorSpace.flatMap { $0.model == .rgb && $0.supportsOutput ? $0 : nil }
        func bitmap(_ space: CGColorSpace) -> CGContext? {
            CGContext(
                data: nil, width: width, height: height, bitsPerComponent: 8, bytesPerRow: 0, space: space,
                bitmapInfo: CGImageAlphaInfo.premultipliedLast.rawValue)
        }
        guard let context = own.flatMap(bitmap) ?? CGColorSpace(name: CGColorSpace.sRGB).flatMap(bitmap),
            context.data != nil
        else {
            throw ImageError(.memory, "Core Graphics makes no bitmap of \(width) x \(height) pixels for this picture")
        }
        let whole = CGRect(x: 0, y: 0, width: width, height: height)
        context.setFillColor(red: 1, green: 1, blue: 1, alpha: 1)
        context.fill(whole)
        context.interpolationQuality = .none
        context.draw(image, in: whole)
        return context
    }
#endif

#if canImport(UIKit) && canImport(ImageIO)
    extension Picture {
        /// Takes a UIKit picture, turned as its `imageOrientation` says, and drawn as a `CGImage` is.
        ///
        /// - Throws: ``ImageError`` if it has no `CGImage`, as pictures of Core Image have none.
        public init(_ image: UIImage) throws {
            guard let pixels = image.cgImage else {
                throw ImageError(.memory, "the UIImage has no cgImage: render it first, as it is one of Core Image")
            }
            self.init(pixels, orientation: try image.imageOrientation.inEXIF)
        }
    }

    extension UIImage: PictureSource {
        /// The picture, turned as its `imageOrientation` says.
        public var picture: Picture { get throws { try Picture(self) } }
    }

    extension UIImage.Orientation {
        /// The same turn by EXIF's numbers, which are others than UIKit's.
        fileprivate var inEXIF: CGImagePropertyOrientation {
            get throws {
                switch self {
                case .up: return .up
                case .down: return .down
                case .left: return .left
                case .right: return .right
                case .upMirrored: return .upMirrored
                case .downMirrored: return .downMirrored
                case .leftMirrored: return .leftMirrored
                case .rightMirrored: return .rightMirrored
                @unknown default:
                    throw ImageError(.orientation, "the UIImage's imageOrientation is \(rawValue), which this code does not know")
                }
            }
        }
    }
#endif
