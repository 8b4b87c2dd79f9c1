// Finds shapes in a frame as the sample's camera gives it: BUNDLE FRAME WIDTH HEIGHT, and prints them as JSON.

import CoreVideo
import EdgepackShapeDetector
import Foundation

let given = CommandLine.arguments
let (width, height) = (Int(given[3])!, Int(given[4])!)
let bytes = [UInt8](try Data(contentsOf: URL(fileURLWithPath: given[2])))
let finder = try await ShapeFinder.open(from: .folder(URL(fileURLWithPath: given[1])))

func frame(_ format: OSType) -> CVPixelBuffer {
    let luma = CVBuffer.Plane(height: height, bytesPerRow: width, pixels: Array(bytes.prefix(width * height)))
    let both = CVBuffer.Plane(height: height / 2, bytesPerRow: width, pixels: Array(bytes.dropFirst(width * height)))
    return CVPixelBuffer(width: width, height: height, format: format, planes: [luma, both])
}

func tell(_ found: Found) throws {
    let rows = found.shapes.map { [$0.label!, $0.score, $0.box.left, $0.box.top, $0.box.right, $0.box.bottom] as [Any] }
    let said: [String: Any] = ["shapes": rows, "width": found.width, "variant": found.variant, "words": found.words]
    print(String(decoding: try JSONSerialization.data(withJSONObject: said), as: UTF8.self))
}

try tell(finder.find(in: frame(kCVPixelFormatType_420YpCbCr8BiPlanarFullRange)))
finder.score = 0.85
try tell(finder.find(in: frame(kCVPixelFormatType_420YpCbCr8BiPlanarFullRange)))
do {
    _ = try finder.find(in: frame(0x2222_2222))
} catch {
    print(error.localizedDescription)
}
