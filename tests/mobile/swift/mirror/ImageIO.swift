// The part of Image I/O that bundles use. Source: developer.apple.com/documentation/imageio/cgimagepropertyorientation.

public enum CGImagePropertyOrientation: UInt32, Sendable, CaseIterable {
    case up = 1
    case upMirrored, down, downMirrored, leftMirrored, right, rightMirrored, left
}
