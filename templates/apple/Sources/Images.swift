// Makes input tensors from pictures, as `inputs: {NAME: {image: ...}}` of edgepack.yaml describes it.
//
// The arithmetic is that of the Python loader; for resizing it is that of Pillow's bilinear filter, in fixed point on 8-bit
// channels. So one picture gives the same bits on the build host and on the phone.

import Foundation

/// A picture as the model's preprocessing takes it: 8-bit RGB, upright, without transparency.
public struct RGBImage: Sendable, Equatable {
    /// In pixels, at least 1.
    public let width: Int
    /// In pixels, at least 1.
    public let height: Int
    /// `height * width * 3` bytes: rows from the top, pixels from the left, red before green before blue.
    public let pixels: [UInt8]

    /// Makes a picture from packed RGB bytes.
    ///
    /// - Throws: ``ImageError`` if a side is not positive or the number of bytes is not `height * width * 3`.
    public init(width: Int, height: Int, pixels: [UInt8]) throws {
        try Self.requireSize(width: width, height: height)
        guard pixels.count == height * width * 3 else {
            throw ImageError(
                "\(width) x \(height) pixels of RGB are \(height * width * 3) bytes, \(pixels.count) were given")
        }
        self.init(unchecked: pixels, width: width, height: height)
    }

    /// Copies the pixels of a buffer, such as that of a locked `CVPixelBuffer`.
    ///
    /// Transparent places become white; colours must not be multiplied by alpha.
    ///
    /// - Parameters:
    ///   - buffer: The first byte is the first of the top left pixel.
    ///   - bytesPerRow: From the start of one row to the next; more than a row's pixels where rows are padded.
    ///   - order: The order of the bytes in one pixel.
    /// - Throws: ``ImageError`` if a side is not positive, or the buffer or a row is too short.
    public init(
        width: Int, height: Int, bytesPerRow: Int, order: PixelOrder, buffer: UnsafeRawBufferPointer
    ) throws {
        try Self.requireSize(width: width, height: height)
        let step = order.bytesPerPixel
        // Without a product of the two, which may overflow: a caller's numbers may be of any size.
        guard bytesPerRow >= width * step, buffer.count >= width * step,
            (buffer.count - width * step) / bytesPerRow >= height - 1
        else {
            throw ImageError(
                "\(width) x \(height) pixels of \(order) in rows of \(bytesPerRow) bytes do not fit into"
                    + " \(buffer.count) bytes")
        }
        var pixels = [UInt8](repeating: 0, count: height * width * 3)
        pixels.withUnsafeMutableBufferPointer { pixels in
            for y in 0..<height {
                let row = UnsafeRawBufferPointer(rebasing: buffer[(y * bytesPerRow)...].prefix(width * step))
                row.withMemoryRebound(to: UInt8.self) { row in
                    copyRGB(row.baseAddress!, order, to: pixels.baseAddress! + y * width * 3, count: width)
                }
            }
        }
        self.init(unchecked: pixels, width: width, height: height)
    }

    private init(unchecked pixels: [UInt8], width: Int, height: Int) {
        self.width = width
        self.height = height
        self.pixels = pixels
    }

    private static func requireSize(width: Int, height: Int) throws {
        guard width > 0, height > 0 else {
            throw ImageError("a picture of \(width) x \(height) pixels has none: both sides have to be positive")
        }
        guard width <= Int.max / 4 / height else {
            throw ImageError("a picture of \(width) x \(height) pixels is larger than any memory")
        }
    }

    /// Returns the picture turned and mirrored so that it is upright.
    ///
    /// - Parameter exifOrientation: 1 to 8, as in EXIF and `CGImagePropertyOrientation.rawValue`; any other number counts as
    ///   1 (upright), as other software treats a damaged tag.
    public func upright(exifOrientation: Int) -> RGBImage {
        let swaps = (5...8).contains(exifOrientation)
        let mirrorsX = [2, 3, 7, 8].contains(exifOrientation)
        let mirrorsY = [3, 4, 6, 7].contains(exifOrientation)
        guard swaps || mirrorsX || mirrorsY else { return self }
        let (newWidth, newHeight) = swaps ? (height, width) : (width, height)
        var turned = [UInt8](repeating: 0, count: pixels.count)
        for y in 0..<newHeight {
            for x in 0..<newWidth {
                var (fromX, fromY) = swaps ? (y, x) : (x, y)
                if mirrorsX { fromX = width - 1 - fromX }
                if mirrorsY { fromY = height - 1 - fromY }
                let from = (fromY * width + fromX) * 3
                let to = (y * newWidth + x) * 3
                for channel in 0..<3 { turned[to + channel] = pixels[from + channel] }
            }
        }
        return RGBImage(unchecked: turned, width: newWidth, height: newHeight)
    }
}

/// The order of the bytes in one pixel.
public enum PixelOrder: Sendable {
    case rgb, rgba, bgra

    var bytesPerPixel: Int { self == .rgb ? 3 : 4 }
}

// Loops over many pixels use pointers, so that they are fast enough in an app's debug build, which is not optimized.

/// Copies pixels to RGB, laid over white.
private func copyRGB(
    _ bytes: UnsafePointer<UInt8>, _ order: PixelOrder, to rgb: UnsafeMutablePointer<UInt8>, count: Int
) {
    let step = order.bytesPerPixel
    let (red, blue) = order == .bgra ? (2, 0) : (0, 2)
    var (from, to) = (0, 0)
    while to < count * 3 {
        rgb[to] = bytes[from + red]
        rgb[to + 1] = bytes[from + 1]
        rgb[to + 2] = bytes[from + blue]
        if step == 4, bytes[from + 3] != 255 { layOverWhite(rgb + to, alpha: Int(bytes[from + 3])) }
        from += step
        to += 3
    }
}

/// Lays a pixel over white, rounded; the result equals that of Pillow's `alpha_composite` for all values.
private func layOverWhite(_ rgb: UnsafeMutablePointer<UInt8>, alpha: Int) {
    let white = 255 * (255 - alpha)
    for channel in 0..<3 { rgb[channel] = UInt8((Int(rgb[channel]) * alpha + white + 127) / 255) }
}

/// A picture that the model cannot take, and why.
public struct ImageError: LocalizedError, CustomStringConvertible, Sendable {
    /// What is wrong with it.
    public let description: String

    init(_ description: String) { self.description = description }

    /// The same as ``description``.
    public var errorDescription: String? { description }
}

/// How a picture becomes an input tensor: an `image` of the manifest's `input_descriptions`.
///
/// The picture is resized; then order, scale, mean, std and layout apply, in this sequence.
struct ImageInput: Decodable, Sendable, Equatable {
    enum Order: String, Decodable, Sendable {
        case rgb = "RGB"
        case bgr = "BGR"
        case gray = "GRAY"
    }

    enum Layout: String, Decodable, Sendable {
        case nchw = "NCHW"
        case nhwc = "NHWC"
    }

    let resize: Resize
    let order: Order
    let scale: Double
    /// One value per channel, in `order`; may be empty.
    let mean: [Double]
    /// One value per channel, in `order`; may be empty.
    let std: [Double]
    let layout: Layout

    /// 1 or 3.
    var channels: Int { order == .gray ? 1 : 3 }

    /// Returns the tensor of one picture: `[1, C, H, W]` or `[1, H, W, C]`, as `layout` says.
    func tensor(of image: RGBImage) -> Tensor<Float> {
        let placed = resize.placed(width: image.width, height: image.height)
        let rows = placed.shownRows
        let columns = placed.shownColumns
        let source = order == .gray ? grays(image.pixels) : image.pixels
        let across = AxisWeights(from: image.width, to: placed.scaledWidth, shown: columns)
        let down = AxisWeights(from: image.height, to: placed.scaledHeight, shown: rows)
        let scaled: [UInt8]
        if placed.losesMostlyHeight {
            let low = down.resized(source, outer: 0..<1, inner: image.width * channels)
            scaled = across.resized(low, outer: 0..<rows.count, inner: channels)
        } else {
            // A long and thin picture needs only a few of its rows.
            let narrow = across.resized(source, outer: down.needed, inner: channels)
            scaled = down.resized(
                narrow, outer: 0..<1, inner: columns.count * channels, skipped: down.needed.lowerBound)
        }

        let area = placed.inputWidth * placed.inputHeight
        let (pixelStep, channelStep) = layout == .nchw ? (1, area) : (channels, 1)
        var values = [Float](repeating: 0, count: area * channels)
        for channel in 0..<channels {
            let table = normalized(channel)
            let from = order == .bgr ? 2 - channel : channel
            for pixel in 0..<area { values[pixel * pixelStep + channel * channelStep] = table[Int(placed.pad)] }
            for y in 0..<rows.count {
                let row = (y + rows.lowerBound + placed.top) * placed.inputWidth
                let start = row + columns.lowerBound + placed.left
                for x in 0..<columns.count {
                    let byte = scaled[(y * columns.count + x) * channels + from]
                    values[(start + x) * pixelStep + channel * channelStep] = table[Int(byte)]
                }
            }
        }
        let (height, width) = (placed.inputHeight, placed.inputWidth)
        let shape = layout == .nchw ? [1, channels, height, width] : [1, height, width, channels]
        return Tensor(unchecked: values, shape: shape)
    }

    /// Returns a channel's tensor value for each of the 256 values of a byte.
    private func normalized(_ channel: Int) -> [Float] {
        (0..<256).map { byte in
            var value = Float(byte) * Float(scale)
            if !mean.isEmpty { value -= Float(mean[channel]) }
            if !std.isEmpty { value /= Float(std[channel]) }
            return value
        }
    }
}

/// How a picture is resized to the model's input.
enum Resize: Decodable, Sendable, Equatable {
    /// The whole picture is scaled into a square; `pad` fills the rest.
    case letterbox(side: Int, pad: UInt8)
    /// The shorter side is scaled to a length, and a square is cut out of the centre.
    case shortSide(Int, crop: Int)
    /// The picture is scaled to a size, whatever its aspect ratio.
    case stretch(width: Int, height: Int)

    private enum Keys: String, CodingKey {
        case letterbox, pad, shortSide = "short_side", crop, width, height
    }

    init(from decoder: any Decoder) throws {
        let values = try decoder.container(keyedBy: Keys.self)
        if values.contains(.letterbox) {
            self = .letterbox(
                side: try values.decode(Int.self, forKey: .letterbox), pad: try values.decode(UInt8.self, forKey: .pad))
        } else if values.contains(.shortSide) {
            self = .shortSide(
                try values.decode(Int.self, forKey: .shortSide), crop: try values.decode(Int.self, forKey: .crop))
        } else {
            self = .stretch(
                width: try values.decode(Int.self, forKey: .width), height: try values.decode(Int.self, forKey: .height))
        }
    }

    /// Returns where a picture of this size lies in the model's input.
    func placed(width: Int, height: Int) -> ImagePlacement {
        switch self {
        case .letterbox(let side, let pad):
            let ratio = Double(side) / Double(max(width, height))
            let (scaledWidth, scaledHeight) = (scaled(width, by: ratio), scaled(height, by: ratio))
            return ImagePlacement(
                width: width, height: height, scaledWidth: scaledWidth, scaledHeight: scaledHeight,
                left: (side - scaledWidth) / 2, top: (side - scaledHeight) / 2,
                inputWidth: side, inputHeight: side, pad: pad)
        case .shortSide(let length, let crop):
            let ratio = Double(length) / Double(min(width, height))
            let (scaledWidth, scaledHeight) = (scaled(width, by: ratio), scaled(height, by: ratio))
            return ImagePlacement(
                width: width, height: height, scaledWidth: scaledWidth, scaledHeight: scaledHeight,
                left: -((scaledWidth - crop) / 2), top: -((scaledHeight - crop) / 2),
                inputWidth: crop, inputHeight: crop, pad: 0)
        case .stretch(let newWidth, let newHeight):
            return ImagePlacement(
                width: width, height: height, scaledWidth: newWidth, scaledHeight: newHeight, left: 0, top: 0,
                inputWidth: newWidth, inputHeight: newHeight, pad: 0)
        }
    }

    private func scaled(_ side: Int, by ratio: Double) -> Int {
        max(1, Int((Double(side) * ratio).rounded(.toNearestOrEven)))
    }
}

/// Where a picture lies in the model's input. All sizes are in pixels.
struct ImagePlacement: Sendable, Equatable {
    /// The size of the picture itself.
    let width: Int
    let height: Int
    /// The size of the whole picture after scaling.
    let scaledWidth: Int
    let scaledHeight: Int
    /// The position of the scaled picture's corner in the input; negative where the picture is cut.
    let left: Int
    let top: Int
    let inputWidth: Int
    let inputHeight: Int
    /// The value of the input beside the picture.
    let pad: UInt8

    /// Whether the height is scaled before the width. Both passes round to 8 bits, so their order changes the result. This is
    /// the order of Pillow 13.
    var losesMostlyHeight: Bool { height - scaledHeight > 2 * max(width - scaledWidth, 0) }

    /// Throws ``ImageError`` if the whole scaled picture, which the model makes before it cuts, is too large.
    func requireScaled() throws {
        guard scaledWidth <= (1 << 28) / scaledHeight else {
            throw ImageError(
                "the picture of \(width) x \(height) pixels would become \(scaledWidth) x \(scaledHeight) in the model before it"
                    + " is cut: cut its ends off first")
        }
    }

    /// The columns of the scaled picture that are in the input.
    var shownColumns: Range<Int> { max(0, -left)..<min(scaledWidth, inputWidth - left) }
    /// The rows of the scaled picture that are in the input.
    var shownRows: Range<Int> { max(0, -top)..<min(scaledHeight, inputHeight - top) }
}

/// Returns one luma byte per RGB pixel, by ITU-R 601 weights in 16-bit fixed point, as Pillow's `convert("L")` does.
private func grays(_ rgb: [UInt8]) -> [UInt8] {
    let half = 1 << 15
    var grays = [UInt8](repeating: 0, count: rgb.count / 3)
    for pixel in grays.indices {
        var sum = half
        for (channel, weight) in [19595, 38470, 7471].enumerated() { sum += Int(rgb[pixel * 3 + channel]) * weight }
        grays[pixel] = UInt8(sum >> 16)
    }
    return grays
}

/// Resizes one axis: bilinear with antialiasing, in fixed point with 22 fraction bits.
///
/// The filter is centred on each new pixel and as wide as the reduction, at least two pixels; its weights are normalized to 1
/// and rounded. This is Pillow's `Image.resize` (`Resample.c`): 8 bits of the 32 are for the channel, 2 for overflow.
private struct AxisWeights {
    static let precisionBits: Int32 = 22

    /// For each new pixel, the old pixels that it is made of.
    let sources: [Range<Int>]
    /// Their weights, new pixel after new pixel.
    let weights: [Int32]
    let from: Int
    /// The range of all old pixels that any new pixel is made of.
    var needed: Range<Int> { sources[0].lowerBound..<sources[sources.count - 1].upperBound }

    /// - Parameter shown: The new pixels to compute, within `0..<to`.
    init(from: Int, to: Int, shown: Range<Int>) {
        let scale = Double(from) / Double(to)
        let support = max(scale, 1)
        let narrowing = 1 / support
        let one = Double(1 << Self.precisionBits)
        var sources: [Range<Int>] = []
        var weights: [Int32] = []
        for pixel in shown {
            let center = (Double(pixel) + 0.5) * scale
            let first = max(0, Int(center - support + 0.5))
            let end = min(from, Int(center + support + 0.5))
            let parts = (first..<end).map { (old: Int) -> Double in
                // Multiplies by a factor instead of dividing, as Pillow does: that decides the last bit.
                let distance: Double = (Double(old) - center + 0.5) * narrowing
                return max(0, 1 - abs(distance))
            }
            let total = parts.reduce(0, +)
            sources.append(first..<end)
            weights += parts.map { (part: Double) -> Int32 in Int32(0.5 + part / total * one) }
        }
        self.sources = sources
        self.weights = weights
        self.from = from
    }

    /// Returns `(outer, sources.count, inner)` bytes from `(outer, from, inner)`: it resizes the middle axis.
    ///
    /// - Parameters:
    ///   - outer: The part of the outer axis to compute.
    ///   - skipped: How many of the first pixels are missing in `old`.
    func resized(_ old: [UInt8], outer: Range<Int>, inner: Int, skipped: Int = 0) -> [UInt8] {
        var new = [UInt8](repeating: 0, count: outer.count * sources.count * inner)
        let sums = UnsafeMutablePointer<Int32>.allocate(capacity: inner)
        defer { sums.deallocate() }
        old.withUnsafeBufferPointer { old in
            new.withUnsafeMutableBufferPointer { new in
                var written = new.baseAddress!
                for block in outer {
                    var weight = 0
                    for range in sources {
                        sums.initialize(repeating: 1 << (Self.precisionBits - 1), count: inner)
                        for source in range {
                            let bytes = old.baseAddress! + (block * from + source - skipped) * inner
                            add(bytes, times: weights[weight], to: sums, count: inner)
                            weight += 1
                        }
                        round(sums, to: written, count: inner)
                        written += inner
                    }
                }
            }
        }
        return new
    }

    private func add(
        _ bytes: UnsafePointer<UInt8>, times factor: Int32, to sums: UnsafeMutablePointer<Int32>, count: Int
    ) {
        var index = 0
        while index < count {
            sums[index] &+= Int32(truncatingIfNeeded: bytes[index]) &* factor
            index += 1
        }
    }

    private func round(_ sums: UnsafePointer<Int32>, to bytes: UnsafeMutablePointer<UInt8>, count: Int) {
        var index = 0
        while index < count {
            bytes[index] = UInt8(clamping: sums[index] >> Self.precisionBits)
            index += 1
        }
    }
}

#if canImport(CoreGraphics)
    import CoreGraphics

    extension RGBImage {
        /// Draws a Core Graphics picture over white.
        ///
        /// Colours keep the values of the picture's own colour space, as those of the build host's samples did. If that space
        /// is not RGB, or bitmaps with 8 bits per channel cannot have it, they are converted to sRGB. Not tried on a phone.
        ///
        /// - Parameters:
        ///   - image: More than 8 bits per channel are reduced to 8.
        ///   - exifOrientation: How the picture is turned, 1 (upright) to 8: `CGImagePropertyOrientation.rawValue`. A
        ///     `CGImage` does not contain it; an EXIF header does, and so does a `UIImage`, whose `imageOrientation` has other
        ///     numbers: `up` is 1, `down` 3, `left` 8, `right` 6, and mirrored they are 2, 4, 5 and 7.
        /// - Throws: ``ImageError`` if Core Graphics makes no bitmap of this size or colour space.
        public init(_ image: CGImage, exifOrientation: Int = 1) throws {
            let (width, height) = (image.width, image.height)
            let own = image.colorSpace.flatMap { $0.model == .rgb && $0.supportsOutput ? $0 : nil }
            func bitmap(_ space: CGColorSpace) -> CGContext? {
                CGContext(
                    data: nil, width: width, height: height, bitsPerComponent: 8, bytesPerRow: 0, space: space,
                    bitmapInfo: CGImageAlphaInfo.premultipliedLast.rawValue)
            }
            guard let context = own.flatMap(bitmap) ?? CGColorSpace(name: CGColorSpace.sRGB).flatMap(bitmap),
                let data = context.data
            else {
                throw ImageError("Core Graphics makes no bitmap of \(width) x \(height) pixels for this picture")
            }
            let whole = CGRect(x: 0, y: 0, width: width, height: height)
            // Over white no pixel stays transparent, so no colour is multiplied by alpha.
            context.setFillColor(red: 1, green: 1, blue: 1, alpha: 1)
            context.fill(whole)
            context.interpolationQuality = .none
            context.draw(image, in: whole)
            // The memory belongs to the context.
            let drawn = try withExtendedLifetime(context) {
                try RGBImage(
                    width: width, height: height, bytesPerRow: context.bytesPerRow, order: .rgba,
                    buffer: UnsafeRawBufferPointer(start: data, count: height * context.bytesPerRow))
            }
            self = drawn.upright(exifOrientation: exifOrientation)
        }
    }
#endif
