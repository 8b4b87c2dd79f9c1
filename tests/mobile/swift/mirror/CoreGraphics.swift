// The part of Core Graphics that bundles use, by the names that Apple documents, so that the code around it is type-checked
// where there is no Core Graphics. Nothing of it runs.
//
// Source: developer.apple.com/documentation/coregraphics: CGImage, CGColorSpace, CGContext, CGImageAlphaInfo.

import Foundation

public final class CGImage {
    public var width: Int { never() }
    public var height: Int { never() }
    public var colorSpace: CGColorSpace? { never() }
}

public enum CGColorSpaceModel: Int32, Sendable {
    case unknown = -1
    case monochrome, rgb, cmyk, lab, deviceN, indexed, pattern, XYZ
}

public final class CGColorSpace {
    public init?(name: CFString) { never() }
    public static var sRGB: CFString { never() }
    public var model: CGColorSpaceModel { never() }
    public var supportsOutput: Bool { never() }
}

/// Foundation on Linux has none.
public struct CFString {}

public enum CGImageAlphaInfo: UInt32, Sendable {
    case none, premultipliedLast, premultipliedFirst, last, first, noneSkipLast, noneSkipFirst, alphaOnly
}

public enum CGInterpolationQuality: Int32, Sendable {
    case `default`, none, low, high, medium
}

public final class CGContext {
    public init?(
        data: UnsafeMutableRawPointer?, width: Int, height: Int, bitsPerComponent: Int, bytesPerRow: Int,
        space: CGColorSpace, bitmapInfo: UInt32
    ) { never() }
    public var data: UnsafeMutableRawPointer? { never() }
    public var bytesPerRow: Int { never() }
    public var interpolationQuality: CGInterpolationQuality {
        get { never() }
        set { never() }
    }
    public func setFillColor(red: CGFloat, green: CGFloat, blue: CGFloat, alpha: CGFloat) { never() }
    public func fill(_ rect: CGRect) { never() }
    public func draw(_ image: CGImage, in rect: CGRect, byTiling: Bool = false) { never() }
}

private func never() -> Never { fatalError("this is a mirror for the type checker") }
