// Takes Core Graphics' pictures, of the mirror beside this file, and looks at what came in. Compiled into the bundle's module.

import CoreGraphics

@main
struct Drawing {
    static func main() throws {
        let (width, height) = (3, 2)
        let rgb = (0..<width * height * 3).map { UInt8($0 * 7) }
        let rgba = stride(from: 0, to: rgb.count, by: 3).flatMap { rgb[$0..<$0 + 3] + [255] }
        let spaces = [
            nil, CGColorSpace(model: .rgb, hasBitmaps: true), CGColorSpace(model: .cmyk, hasBitmaps: true),
            // Such as one with an extended range, if bitmaps of bytes have it not.
            CGColorSpace(model: .rgb, hasBitmaps: false),
        ]
        for space in spaces {
            let image = CGImage(width: width, height: height, colorSpace: space, pixels: rgba)
            let taken = try RGBImage(image)
            precondition(taken.pixels == rgb, "\(taken.pixels)")
            let turned = try RGBImage(image, exifOrientation: 6)
            precondition(turned == taken.upright(exifOrientation: 6), "\(turned.pixels)")
        }
    }
}
