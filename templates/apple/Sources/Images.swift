// Makes input tensors from pictures, as `inputs: {NAME: {image: ...}}` of edgepack.yaml describes it.
//
// The arithmetic is that of the Python loader; for resizing it is that of the library which the description names. So one
// picture gives the same bits on the build host and on the phone.

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
        try requireSize(width: width, height: height)
        guard pixels.count == height * width * 3 else {
            throw ImageError(
                .memory, "\(width) x \(height) pixels of RGB are \(height * width * 3) bytes, \(pixels.count) were given")
        }
        self.init(unchecked: pixels, width: width, height: height)
    }

    /// Copies a picture, upright.
    ///
    /// - Throws: ``ImageError`` if the picture has no memory that can be read.
    public init(_ picture: Picture) throws {
        self = try picture.withFrame { frame in
            let (width, height) = (frame.uprightWidth, frame.uprightHeight)
            return RGBImage(unchecked: uprightPixels(of: frame), width: width, height: height)
        }
    }

    private init(unchecked pixels: [UInt8], width: Int, height: Int) {
        self.width = width
        self.height = height
        self.pixels = pixels
    }
}

/// Returns the RGB bytes of an upright frame, row after row.
private func uprightPixels(of frame: Frame) -> [UInt8] {
    let (width, height) = (frame.uprightWidth, frame.uprightHeight)
    return [UInt8](unsafeUninitializedCapacity: height * width * 3) { pixels, initialized in
        for y in 0..<height { frame.read(row: y, columns: 0..<width, to: pixels.baseAddress! + y * width * 3) }
        initialized = height * width * 3
    }
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
    /// The library's function that computes the pixels of the resized picture.
    let resampling: Resampling
    let order: Order
    let scale: Double
    /// One value per channel, in `order`; may be empty.
    let mean: [Double]
    /// One value per channel, in `order`; may be empty.
    let std: [Double]
    let layout: Layout

    private enum Keys: String, CodingKey {
        case resize, order, scale, mean, std, layout
    }

    init(from decoder: any Decoder) throws {
        let values = try decoder.container(keyedBy: Keys.self)
        resize = try values.decode(Resize.self, forKey: .resize)
        resampling = try values.decode(Resampling.self, forKey: .resize)
        order = try values.decode(Order.self, forKey: .order)
        scale = try values.decode(Double.self, forKey: .scale)
        mean = try values.decode([Double].self, forKey: .mean)
        std = try values.decode([Double].self, forKey: .std)
        layout = try values.decode(Layout.self, forKey: .layout)
    }

    /// 1 or 3.
    var channels: Int { order == .gray ? 1 : 3 }

    /// Returns the tensor of one picture: `[1, C, H, W]` or `[1, H, W, C]`, as `layout` says.
    func tensor(of frame: Frame) -> Tensor<Float> {
        let maker = TensorMaker(self, width: frame.uprightWidth, height: frame.uprightHeight)
        let count = maker.shape.reduce(1, *)
        let values = [Float](unsafeUninitializedCapacity: count) { values, initialized in
            maker.fill(values.baseAddress!, from: frame)
            initialized = count
        }
        var tensor = Tensor(unchecked: values, shape: maker.shape)
        tensor.place = maker.place
        return tensor
    }

    /// Returns the whole picture as a model takes it that does the rest itself: `[H, W, 3]`.
    ///
    /// - Throws: ``ImageError`` if the picture is too long and thin for that.
    func wholeTensor(of frame: Frame) throws -> Tensor<UInt8> {
        let (width, height) = (frame.uprightWidth, frame.uprightHeight)
        let place = resize.placed(width: width, height: height)
        try place.requireScaled()
        var tensor = Tensor(unchecked: uprightPixels(of: frame), shape: [height, width, 3])
        tensor.place = place
        return tensor
    }

    /// Returns a channel's tensor value for each of the 256 values of a byte.
    fileprivate func normalized(_ channel: Int) -> [Float] { (0..<256).map { normalize(Float($0), channel) } }

    /// Returns the tensor's value for a pixel's.
    fileprivate func normalize(_ level: Float, _ channel: Int) -> Float {
        var value = level * Float(scale)
        if !mean.isEmpty { value -= Float(mean[channel]) }
        if !std.isEmpty { value /= Float(std[channel]) }
        return value
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
@_spi(EdgepackGenerated)
public struct ImagePlacement: Sendable, Equatable {
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

    /// The largest of 8, 4, 2 and 1 by which the picture can be divided and still is as large as the scaled one.
    var factor: Int { [8, 4, 2].first { width / $0 >= scaledWidth && height / $0 >= scaledHeight } ?? 1 }

    /// Throws ``ImageError`` if the whole scaled picture, which the model makes before it cuts, is too large.
    func requireScaled() throws {
        guard scaledWidth <= (1 << 28) / scaledHeight else {
            throw ImageError(
                .size,
                "the picture of \(width) x \(height) pixels would become \(scaledWidth) x \(scaledHeight) in the model"
                    + " before it is cut: cut its ends off first")
        }
    }

    /// The columns of the scaled picture that are in the input.
    var shownColumns: Range<Int> { max(0, -left)..<min(scaledWidth, inputWidth - left) }
    /// The rows of the scaled picture that are in the input.
    var shownRows: Range<Int> { max(0, -top)..<min(scaledHeight, inputHeight - top) }
}

/// Makes the tensors of pictures of one size, whose tables and buffers it has.
///
/// A row of the picture is read when it is needed, and the last few rows are kept; so the buffers are as long as a row, times
/// the rows that make one new row. One thread uses it at a time.
final class TensorMaker {
    let place: ImagePlacement
    /// `[1, C, H, W]` or `[1, H, W, C]`.
    let shape: [Int]
    private let input: ImageInput
    /// The width and height of the blocks that are averaged first; 1 where none are.
    private let factor: Int
    /// Whether the height is scaled before the width. Both passes round to 8 bits, so their order changes the result. This is
    /// the order of Pillow 13.
    private let losesMostlyHeight: Bool
    private let across: AxisWeights
    private let down: AxisWeights
    /// The value of each byte, channel after channel.
    private let values: [Float]
    /// A row of the picture, as RGB, before and after it is averaged.
    private let rgb: Buffer<UInt8>
    /// The rows that make one new row, before that pass; row `n` is at `n % keptRows`.
    private let kept: Buffer<UInt8>
    private let keptRows: Int
    private let keptLength: Int
    private let sums: Buffer<Int32>
    /// A row after the pass over the height, and after both.
    private let low: Buffer<UInt8>
    private let scaled: Buffer<UInt8>
    /// What resizes where the filter is none of Pillow's that average.
    private let levels: LevelScaler?

    /// - Parameters:
    ///   - width: Of the upright picture.
    ///   - height: Of the upright picture.
    ///   - prescale: Whether a picture that is much larger than its place in the input is made smaller first, by averages of
    ///     blocks of 2, 4 or 8 pixels: the values are other ones then.
    init(_ input: ImageInput, width: Int, height: Int, prescale: Bool = false) {
        self.input = input
        place = input.resize.placed(width: width, height: height)
        let (rows, columns) = (place.inputHeight, place.inputWidth)
        shape = input.layout == .nchw ? [1, input.channels, rows, columns] : [1, rows, columns, input.channels]
        factor = prescale ? place.factor : 1
        let (width, height) = (width / factor, height / factor)
        losesMostlyHeight = height - place.scaledHeight > 2 * max(width - place.scaledWidth, 0)
        let wide = AxisSpan(from: width, to: place.scaledWidth, shown: place.shownColumns)
        let high = AxisSpan(from: height, to: place.scaledHeight, shown: place.shownRows)
        let kernel = input.resampling.pillowKernel
        levels = kernel == nil ? LevelScaler(input.resampling, across: wide, down: high, channels: input.channels) : nil
        across = AxisWeights(wide, kernel ?? .bilinear)
        down = AxisWeights(high, kernel ?? .bilinear)
        values = (0..<input.channels).flatMap(input.normalized)
        let length = losesMostlyHeight ? across.needed.count : place.shownColumns.count
        keptLength = length * input.channels
        keptRows = down.longest
        let read = levels == nil ? across.needed.count : width
        rgb = Buffer(count: read * factor * 3)
        kept = Buffer(count: keptRows * keptLength)
        sums = Buffer(count: max(keptLength, factor > 1 ? read * 3 : 0))
        low = Buffer(count: keptLength)
        scaled = Buffer(count: place.shownColumns.count * input.channels)
    }

    /// Returns whether a frame has the size that this was made for.
    func takes(_ frame: Frame) -> Bool { frame.uprightWidth == place.width && frame.uprightHeight == place.height }

    /// Writes a picture's tensor.
    ///
    /// - Parameters:
    ///   - tensor: As many numbers as the input has.
    ///   - frame: Of the size that this was made for.
    func fill(_ tensor: UnsafeMutablePointer<Float>, from frame: Frame) {
        pad(tensor)
        if let levels {
            for y in 0..<place.shownRows.count {
                levels.fill(row: y) { readRow($0, of: frame, columns: 0..<levels.width) }
                writeLevels(levels.row, to: tensor, y: y)
            }
            return
        }
        var read = down.needed.lowerBound
        var weight = 0
        for (y, rows) in down.sources.enumerated() {
            while read < rows.upperBound {
                keep(row: read, of: frame)
                read += 1
            }
            sums.start.update(repeating: AxisWeights.half, count: keptLength)
            for row in rows {
                add(keptRow(row), times: down.weights[weight], to: sums.start, count: keptLength)
                weight += 1
            }
            round(sums.start, to: low.start, count: keptLength)
            write(scaledRow(), to: tensor, y: y)
        }
    }

    private func pad(_ tensor: UnsafeMutablePointer<Float>) {
        let area = place.inputWidth * place.inputHeight
        let (pixelStep, channelStep) = steps
        for channel in 0..<input.channels {
            let value = values[channel * 256 + Int(place.pad)]
            var at = channel * channelStep
            for _ in 0..<area {
                tensor[at] = value
                at += pixelStep
            }
        }
    }

    /// The distance in a tensor from one pixel to the next, and from one channel to the next.
    private var steps: (pixel: Int, channel: Int) {
        input.layout == .nchw ? (1, place.inputWidth * place.inputHeight) : (input.channels, 1)
    }

    private func keptRow(_ row: Int) -> UnsafeMutablePointer<UInt8> { kept.start + row % keptRows * keptLength }

    /// Returns a row of the picture, in as many channels as the tensor has.
    private func readRow(_ row: Int, of frame: Frame, columns: Range<Int>) -> UnsafePointer<UInt8> {
        if factor > 1 {
            frame.read(row: row, columns: columns, factor: factor, sums: sums.start, to: rgb.start)
        } else {
            frame.read(row: row, columns: columns, to: rgb.start)
        }
        if input.order == .gray { makeGray(rgb.start, count: columns.count) }
        return UnsafePointer(rgb.start)
    }

    private func keep(row: Int, of frame: Frame) {
        _ = readRow(row, of: frame, columns: across.needed)
        if losesMostlyHeight {
            keptRow(row).update(from: rgb.start, count: keptLength)
        } else {
            across.resize(rgb.start, channels: input.channels, to: keptRow(row))
        }
    }

    private func scaledRow() -> UnsafePointer<UInt8> {
        guard losesMostlyHeight else { return UnsafePointer(low.start) }
        across.resize(low.start, channels: input.channels, to: scaled.start)
        return UnsafePointer(scaled.start)
    }

    private func write(_ row: UnsafePointer<UInt8>, to tensor: UnsafeMutablePointer<Float>, y: Int) {
        let (pixelStep, channelStep) = steps
        let first = (y + place.shownRows.lowerBound + place.top) * place.inputWidth
        let start = first + place.shownColumns.lowerBound + place.left
        let (count, channels) = (place.shownColumns.count, input.channels)
        values.withUnsafeBufferPointer { values in
            for channel in 0..<channels {
                let table = values.baseAddress! + channel * 256
                var from = input.order == .bgr ? 2 - channel : channel
                var to = start * pixelStep + channel * channelStep
                for _ in 0..<count {
                    tensor[to] = table[Int(row[from])]
                    from += channels
                    to += pixelStep
                }
            }
        }
    }
}

extension TensorMaker {
    private func writeLevels(_ row: [Float], to tensor: UnsafeMutablePointer<Float>, y: Int) {
        let (pixelStep, channelStep) = steps
        let first = (y + place.shownRows.lowerBound + place.top) * place.inputWidth
        let start = first + place.shownColumns.lowerBound + place.left
        for channel in 0..<input.channels {
            let source = input.order == .bgr ? 2 - channel : channel
            for x in 0..<place.shownColumns.count {
                let level = row[x * input.channels + source]
                tensor[(start + x) * pixelStep + channel * channelStep] = input.normalize(level, channel)
            }
        }
    }
}

/// Memory of a fixed size.
private final class Buffer<Element> {
    let start: UnsafeMutablePointer<Element>

    init(count: Int) { start = .allocate(capacity: count) }

    deinit { start.deallocate() }
}

/// Replaces RGB pixels by one luma byte each, by ITU-R 601 weights in 16-bit fixed point, as Pillow's `convert("L")` does.
private func makeGray(_ rgb: UnsafeMutablePointer<UInt8>, count: Int) {
    var from = 0
    for pixel in 0..<count {
        var sum: Int32 = 0x8000
        sum &+= Int32(rgb[from]) &* 19595
        sum &+= Int32(rgb[from &+ 1]) &* 38470
        sum &+= Int32(rgb[from &+ 2]) &* 7471
        rgb[pixel] = UInt8(truncatingIfNeeded: sum >> 16)
        from &+= 3
    }
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
        bytes[index] = UInt8(clamping: sums[index] >> AxisWeights.precisionBits)
        index += 1
    }
}
