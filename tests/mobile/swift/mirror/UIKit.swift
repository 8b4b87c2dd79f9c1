// The part of UIKit that bundles use. Source: developer.apple.com/documentation/uikit/uiimage.

import CoreGraphics

public final class UIImage: @unchecked Sendable {
    public enum Orientation: Int, Sendable, CaseIterable {
        case up, down, left, right, upMirrored, downMirrored, leftMirrored, rightMirrored
    }

    public let cgImage: CGImage?
    public let imageOrientation: Orientation

    public init(cgImage: CGImage?, orientation: Orientation) {
        self.cgImage = cgImage
        imageOrientation = orientation
    }
}
