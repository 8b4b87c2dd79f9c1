// The part of Core Graphics that bundles use, by the names that Apple documents, so that the code around it is type-checked
// and run where there is no Core Graphics. Pictures are opaque RGBA bytes, whatever their colour space.
//
// Source: developer.apple.com/documentation/coregraphics: CGImage, CGColorSpace, CGContext, CGImageAlphaInfo.

import Foundation

public final class CGImage {
    public let width: Int
    public let height: Int
    public let colorSpace: CGColorSpace?
    fileprivate let pixels: [UInt8]

    /// Not of Core Graphics.
    public init(width: Int, height: Int, colorSpace: CGColorSpace?, pixels: [UInt8]) {
        self.width = width
        self.height = height
        self.colorSpace = colorSpace
        self.pixels = pixels
    }
}

public enum CGColorSpaceModel: Int32, Sendable {
    case unknown = -1
    case monochrome, rgb, cmyk, lab, deviceN, indexed, pattern, XYZ
}

public final class CGColorSpace {
    public let model: CGColorSpaceModel
    public let supportsOutput = true
    fileprivate let hasBitmaps: Bool

    /// Not of Core Graphics: a space that bitmaps with 8 bits a channel have or have not.
    public init(model: CGColorSpaceModel, hasBitmaps: Bool) {
        self.model = model
        self.hasBitmaps = hasBitmaps
    }

    public convenience init?(name: CFString) { self.init(model: .rgb, hasBitmaps: true) }
    public static var sRGB: CFString { CFString() }
}

/// Foundation on Linux has none. Texts are equal where their objects are.
public final class CFString: Sendable {
    public init() {}
}

public func CFEqual(_ one: AnyObject?, _ other: AnyObject?) -> Bool { one === other }

public enum CGImageAlphaInfo: UInt32, Sendable {
    case none, premultipliedLast, premultipliedFirst, last, first, noneSkipLast, noneSkipFirst, alphaOnly
}

public enum CGInterpolationQuality: Int32, Sendable {
    case `default`, none, low, high, medium
}

/// Its memory goes with it, and holds something else from then on.
public final class CGContext {
    public let data: UnsafeMutableRawPointer?
    public let bytesPerRow: Int
    public var interpolationQuality = CGInterpolationQuality.default
    private let bytes: UnsafeMutableRawBufferPointer

    public init?(
        data: UnsafeMutableRawPointer?, width: Int, height: Int, bitsPerComponent: Int, bytesPerRow: Int,
        space: CGColorSpace, bitmapInfo: UInt32
    ) {
        guard space.hasBitmaps else { return nil }
        self.bytesPerRow = width * 4 + 12
        bytes = .allocate(byteCount: height * self.bytesPerRow, alignment: 16)
        self.data = bytes.baseAddress
    }

    deinit {
        bytes.initializeMemory(as: UInt8.self, repeating: 0xdd)
        bytes.deallocate()
    }

    public func setFillColor(red: CGFloat, green: CGFloat, blue: CGFloat, alpha: CGFloat) {}

    public func fill(_ rect: CGRect) { bytes.initializeMemory(as: UInt8.self, repeating: 255) }

    public func draw(_ image: CGImage, in rect: CGRect, byTiling: Bool = false) {
        for row in 0..<image.height {
            let pixels = image.pixels[row * image.width * 4..<(row + 1) * image.width * 4]
            bytes[(row * bytesPerRow)...].copyBytes(from: pixels)
        }
    }
}
