// Frames: pictures as cameras and decoders give them, read in their own memory.
//
// Turning and the conversion of colours are part of reading a row, so nothing is copied first. The Python and Kotlin runtimes
// compute the same integers.

import Foundation

/// A picture as it lies in memory: as YUV or as RGB, with padding, turned.
///
/// It points to memory that belongs to the caller, who leaves that memory as it is until the call that takes the frame is over.
public struct Frame: @unchecked Sendable {
    /// What a pixel is made of.
    public enum Format: Sendable {
        /// Three planes of a byte per sample: Y, and U and V with half as many columns and rows, rounded up. U and V may be in
        /// one buffer, as in NV12: planes that begin a byte apart, with a pixel stride of 2.
        case yuv420
        /// One plane with this order of bytes. Colours are not multiplied by alpha; transparent places become white.
        case rgb, rgba, bgra

        var bytesPerPixel: Int {
            switch self {
            case .yuv420: return 1
            case .rgb: return 3
            case .rgba, .bgra: return 4
            }
        }
    }

    /// The standard for the colours of YUV.
    public enum Matrix: Sendable {
        case bt601, bt709
    }

    /// The values of Y from black to white: 0 to 255, or 16 to 235.
    public enum Range: Sendable {
        case full, video
    }

    /// Samples in rows.
    public struct Plane: @unchecked Sendable {
        let bytes: UnsafeRawBufferPointer
        let rowStride: Int
        let pixelStride: Int

        /// Describes the samples in memory.
        ///
        /// - Parameters:
        ///   - bytes: From the first sample on; they may end with the last one.
        ///   - rowStride: The number of bytes from one row to the next.
        ///   - pixelStride: The number of bytes from one pixel, or sample, to the next in its row.
        public init(bytes: UnsafeRawBufferPointer, rowStride: Int, pixelStride: Int) {
            self.bytes = bytes
            self.rowStride = rowStride
            self.pixelStride = pixelStride
        }
    }

    /// What a pixel is made of.
    public let format: Format
    /// In pixels, as it lies in memory, at least 1.
    public let width: Int
    /// In pixels, as it lies in memory, at least 1.
    public let height: Int
    /// How the frame is turned and mirrored, 1 (upright) to 8, as in EXIF and `CGImagePropertyOrientation.rawValue`. A frame
    /// that must be turned clockwise by 90 degrees has 6, by 180 degrees 3, by 270 degrees 8.
    public let orientation: Int
    private let planes: [Plane]
    private let weights: ColourWeights

    /// Describes a picture in memory.
    ///
    /// - Parameters:
    ///   - planes: Three of YUV, else one.
    ///   - orientation: See ``orientation``.
    ///   - matrix: Of YUV; by default that of JPEG files.
    ///   - range: Of YUV; by default that of JPEG files.
    /// - Throws: ``ImageError`` if a side is less than 1, the number of planes is another one, a stride or a plane is too short,
    ///   or the orientation is none.
    public init(
        format: Format, width: Int, height: Int, planes: [Plane], orientation: Int = 1, matrix: Matrix = .bt601,
        range: Range = .full
    ) throws {
        try requireSize(width: width, height: height)
        guard (1...8).contains(orientation) else {
            throw ImageError(.orientation, "the picture's orientation is \(orientation), 1 to 8 are expected, as in EXIF")
        }
        let wanted = format == .yuv420 ? 3 : 1
        guard planes.count == wanted else {
            throw ImageError(
                .planes, "the frame's number of planes is \(planes.count), and that of the format \(format) is \(wanted)")
        }
        for (number, plane) in planes.enumerated() {
            let (columns, rows) = number == 0 ? (width, height) : ((width + 1) / 2, (height + 1) / 2)
            let which = "plane \(number) of a frame (\(format), \(width) x \(height) pixels)"
            try plane.require(columns: columns, rows: rows, size: format.bytesPerPixel, which: which)
        }
        self.init(unchecked: planes, format, width, height, orientation, ColourWeights(matrix, range))
    }

    private init(
        unchecked planes: [Plane], _ format: Format, _ width: Int, _ height: Int, _ orientation: Int, _ weights: ColourWeights
    ) {
        self.format = format
        self.width = width
        self.height = height
        self.orientation = orientation
        self.planes = planes
        self.weights = weights
    }

    /// Makes a frame of packed RGB bytes whose number is right.
    init(packed bytes: UnsafeRawBufferPointer, width: Int, height: Int) {
        let plane = Plane(bytes: bytes, rowStride: width * 3, pixelStride: 3)
        self.init(unchecked: [plane], .rgb, width, height, 1, ColourWeights(.bt601, .full))
    }

    /// Whether rows of the upright picture are columns in memory.
    private var swaps: Bool { orientation > 4 }
    /// The size of the upright picture.
    var uprightWidth: Int { swaps ? height : width }
    var uprightHeight: Int { swaps ? width : height }

    /// Reads pixels of one row of the upright picture, as RGB.
    ///
    /// - Parameter rgb: Gets three bytes for each of the columns.
    func read(row y: Int, columns: Swift.Range<Int>, to rgb: UnsafeMutablePointer<UInt8>) {
        let (x, y, step) = place(row: y, column: columns.lowerBound, width: width, height: height)
        if format == .yuv420 {
            readYUV(x, y, step, to: rgb, count: columns.count)
        } else {
            readPacked(x, y, step, to: rgb, count: columns.count)
        }
    }

    /// Reads pixels of one row of a smaller picture, whose pixels are averages of blocks of this one's. Rows and columns that fill
    /// no block are left out.
    ///
    /// Samples of YUV are averaged before they become colours, those of U and V in blocks of half the size.
    ///
    /// - Parameters:
    ///   - factor: The width and height of a block: 2, 4 or 8.
    ///   - sums: Memory for three numbers for each of the columns.
    ///   - rgb: Gets three bytes for each of the columns; has room for as many pixels as the blocks are wide.
    func read(
        row y: Int, columns: Swift.Range<Int>, factor: Int, sums: UnsafeMutablePointer<Int32>,
        to rgb: UnsafeMutablePointer<UInt8>
    ) {
        let count = columns.count
        if format == .yuv420 {
            let (u, v) = (sums + count, sums + 2 * count)
            average(planes[0], width, height, row: y, columns: columns, factor: factor, to: sums)
            average(planes[1], (width + 1) / 2, (height + 1) / 2, row: y, columns: columns, factor: factor / 2, to: u)
            average(planes[2], (width + 1) / 2, (height + 1) / 2, row: y, columns: columns, factor: factor / 2, to: v)
            for index in 0..<count { weights.convert(sums[index], weights.colour(u[index], v[index]), to: rgb + index * 3) }
            return
        }
        sums.update(repeating: Int32(factor * factor / 2), count: 3 * count)
        for row in y * factor..<(y + 1) * factor {
            read(row: row, columns: columns.lowerBound * factor..<columns.upperBound * factor, to: rgb)
            var from = rgb
            for index in 0..<count {
                for _ in 0..<factor {
                    sums[index * 3] &+= Int32(from[0])
                    sums[index * 3 + 1] &+= Int32(from[1])
                    sums[index * 3 + 2] &+= Int32(from[2])
                    from += 3
                }
            }
        }
        for index in 0..<3 * count { rgb[index] = UInt8(sums[index] / Int32(factor * factor)) }
    }

    /// Returns where a row of an upright plane begins in memory, and whether it goes on with the next column or row, or the one
    /// before.
    private func place(row y: Int, column x: Int, width: Int, height: Int) -> (x: Int, y: Int, step: Int) {
        let mirrorsX = [2, 3, 7, 8].contains(orientation)
        let mirrorsY = [3, 4, 6, 7].contains(orientation)
        var (x, y) = swaps ? (y, x) : (x, y)
        if mirrorsX { x = width - 1 - x }
        if mirrorsY { y = height - 1 - y }
        return (x, y, (swaps ? mirrorsY : mirrorsX) ? -1 : 1)
    }

    /// Writes the averages of a row of blocks of a plane of this size, rounded.
    private func average(
        _ plane: Plane, _ width: Int, _ height: Int, row y: Int, columns: Swift.Range<Int>, factor: Int,
        to sums: UnsafeMutablePointer<Int32>
    ) {
        sums.update(repeating: Int32(factor * factor / 2), count: columns.count)
        for row in y * factor..<(y + 1) * factor {
            let (x, y, step) = place(row: row, column: columns.lowerBound * factor, width: width, height: height)
            let stride = plane.stride(swaps) * step
            var from = plane.first(x, y)
            for index in 0..<columns.count {
                for _ in 0..<factor {
                    sums[index] &+= Int32(from[0])
                    from += stride
                }
            }
        }
        for index in 0..<columns.count { sums[index] /= Int32(factor * factor) }
    }

    // Loops over many pixels use pointers, so that they are fast enough in an app's debug build, which is not optimized.

    private func readPacked(_ x: Int, _ y: Int, _ step: Int, to rgb: UnsafeMutablePointer<UInt8>, count: Int) {
        let plane = planes[0]
        var from = plane.first(x, y)
        let (stride, hasAlpha) = (plane.stride(swaps) * step, format != .rgb)
        let (red, blue) = format == .bgra ? (2, 0) : (0, 2)
        var to = 0
        while to < count * 3 {
            rgb[to] = from[red]
            rgb[to + 1] = from[1]
            rgb[to + 2] = from[blue]
            if hasAlpha, from[3] != 255 { layOverWhite(rgb + to, alpha: Int(from[3])) }
            from += stride
            to += 3
        }
    }

    private func readYUV(_ x: Int, _ y: Int, _ step: Int, to rgb: UnsafeMutablePointer<UInt8>, count: Int) {
        let (u, v) = (planes[1], planes[2])
        var luma = planes[0].first(x, y)
        let lumaStride = planes[0].stride(swaps) * step
        // Where the row of samples begins that this row of pixels uses, and which pixel of it is next.
        let (uRow, vRow) = swaps ? (u.first(x / 2, 0), v.first(x / 2, 0)) : (u.first(0, y / 2), v.first(0, y / 2))
        let (uStride, vStride) = (u.stride(swaps), v.stride(swaps))
        var pixel = swaps ? y : x
        let weights = weights
        let end = rgb + count * 3
        var to = rgb
        while to < end {
            let near = pixel >> 1
            let colour = weights.colour(Int32(uRow[near &* uStride]), Int32(vRow[near &* vStride]))
            // Two pixels next to each other share a sample.
            repeat {
                weights.convert(Int32(luma[0]), colour, to: to)
                luma += lumaStride
                pixel &+= step
                to += 3
            } while pixel >> 1 == near && to < end
        }
    }
}

extension Frame.Plane {
    /// Throws ``ImageError`` unless the plane has so many samples of `size` bytes.
    fileprivate func require(columns: Int, rows: Int, size: Int, which: String) throws {
        guard pixelStride >= size else {
            throw ImageError(.stride, "\(which) has a pixel stride of \(pixelStride), \(size) are needed")
        }
        let row = extent(columns, pixelStride, size)
        guard rowStride >= row else {
            throw ImageError(.stride, "\(which) has a row stride of \(rowStride), a row has \(row) bytes")
        }
        let needed = extent(rows, rowStride, row)
        guard bytes.count >= needed else {
            throw ImageError(.memory, "\(which) has \(bytes.count) bytes, \(needed) are needed")
        }
    }

    /// Returns the bytes from the first to the end of the last of some items; the largest number where it is larger.
    private func extent(_ count: Int, _ stride: Int, _ last: Int) -> Int {
        let (between, isTooMuch) = (count - 1).multipliedReportingOverflow(by: stride)
        let (whole, isMore) = between.addingReportingOverflow(last)
        return isTooMuch || isMore ? Int.max : whole
    }

    fileprivate func first(_ x: Int, _ y: Int) -> UnsafePointer<UInt8> {
        (bytes.baseAddress! + y * rowStride + x * pixelStride).assumingMemoryBound(to: UInt8.self)
    }

    fileprivate func stride(_ isDown: Bool) -> Int { isDown ? rowStride : pixelStride }
}

/// How YUV becomes RGB: the weights of a matrix and a range, in 1/65536.
///
/// Source: ITU-R BT.601-7 and BT.709-6: red and blue are 0.299 and 0.114, or 0.2126 and 0.0722, of the luma; in video range Y
/// has 219 steps, U and V have 224.
private struct ColourWeights {
    let luma: Int32
    let black: Int32
    let vInRed: Int32
    let uInGreen: Int32
    let vInGreen: Int32
    let uInBlue: Int32

    init(_ matrix: Frame.Matrix, _ range: Frame.Range) {
        (luma, black) = range == .full ? (65536, 0) : (76309, 16)
        switch (matrix, range) {
        case (.bt601, .full): (vInRed, uInGreen, vInGreen, uInBlue) = (91881, 22553, 46802, 116130)
        case (.bt601, .video): (vInRed, uInGreen, vInGreen, uInBlue) = (104597, 25675, 53279, 132201)
        case (.bt709, .full): (vInRed, uInGreen, vInGreen, uInBlue) = (103206, 12276, 30679, 121609)
        case (.bt709, .video): (vInRed, uInGreen, vInGreen, uInBlue) = (117489, 13975, 34925, 138438)
        }
    }

    /// Returns what a sample of U and V adds to red, green and blue.
    @inline(__always)
    func colour(_ u: Int32, _ v: Int32) -> (red: Int32, green: Int32, blue: Int32) {
        let (u, v) = (u &- 128, v &- 128)
        return (vInRed &* v, 0 &- uInGreen &* u &- vInGreen &* v, uInBlue &* u)
    }

    /// Writes a pixel's red, green and blue. No sum is more than 40 million, which 32 bits hold.
    @inline(__always)
    func convert(_ y: Int32, _ colour: (red: Int32, green: Int32, blue: Int32), to rgb: UnsafeMutablePointer<UInt8>) {
        let light: Int32 = (y &- black) &* luma &+ 32768
        rgb[0] = UInt8(clamping: (light &+ colour.red) >> 16)
        rgb[1] = UInt8(clamping: (light &+ colour.green) >> 16)
        rgb[2] = UInt8(clamping: (light &+ colour.blue) >> 16)
    }
}

/// Lays a pixel over white, rounded; the result equals that of Pillow's `alpha_composite` for all values.
private func layOverWhite(_ rgb: UnsafeMutablePointer<UInt8>, alpha: Int) {
    let white = 255 * (255 - alpha)
    for channel in 0..<3 { rgb[channel] = UInt8((Int(rgb[channel]) * alpha + white + 127) / 255) }
}

/// Throws ``ImageError`` unless a picture of this size has pixels, and memory could hold them.
func requireSize(width: Int, height: Int) throws {
    guard width > 0, height > 0 else {
        throw ImageError(.size, "a picture of \(width) x \(height) pixels has none: both sides have to be positive")
    }
    guard width <= Int.max / 4 / height else {
        throw ImageError(.size, "a picture of \(width) x \(height) pixels is larger than any memory")
    }
}

/// A picture from any source, with how it is turned. It is read when the model takes it, and not copied before.
public struct Picture: @unchecked Sendable {
    private let read: (_ use: (Frame) throws -> Void) throws -> Void

    /// Takes a frame, whose memory stays as it is until the call that takes the picture is over.
    public init(_ frame: Frame) { self.init { use in try use(frame) } }

    /// Takes packed bytes.
    public init(_ image: RGBImage) {
        self.init { use in
            try image.pixels.withUnsafeBytes { try use(Frame(packed: $0, width: image.width, height: image.height)) }
        }
    }

    /// - Parameter read: Calls a function once, with a frame whose memory stays as it is meanwhile.
    init(read: @escaping (_ use: (Frame) throws -> Void) throws -> Void) { self.read = read }

    /// Calls a function with the picture in memory.
    ///
    /// - Throws: ``ImageError`` if the picture has no memory that can be read.
    func withFrame<Value>(_ use: (Frame) throws -> Value) throws -> Value {
        var value: Value?
        try read { frame in value = try use(frame) }
        return value!
    }
}

/// What a picture can be made of without being told how it is turned.
public protocol PictureSource {
    /// The picture.
    var picture: Picture { get throws }
}

extension Picture: PictureSource {
    /// The picture itself.
    public var picture: Picture { self }
}

extension Frame: PictureSource {
    /// The frame as a picture.
    public var picture: Picture { Picture(self) }
}

extension RGBImage: PictureSource {
    /// The bytes as a picture.
    public var picture: Picture { Picture(self) }
}

/// A picture that the model cannot take, and why.
public struct ImageError: LocalizedError, CustomStringConvertible, Sendable, Equatable {
    /// What is wrong, for code.
    public enum Reason: Sendable {
        /// A side is less than 1 pixel, or the picture is too large.
        case size
        /// The number of planes, or the size of one, is not that of the format.
        case planes
        /// The bytes from one row or pixel to the next are fewer than it has.
        case stride
        /// The memory is too short, or cannot be read.
        case memory
        /// Pixels of this format, or colours of this kind, are not taken.
        case format
        /// How the picture is turned is none of EXIF's numbers.
        case orientation
    }

    /// What is wrong, for code.
    public let reason: Reason
    /// What is wrong with it.
    public let description: String

    /// Makes an error, for an app's tests.
    public init(_ reason: Reason, _ description: String) {
        self.reason = reason
        self.description = description
    }

    /// The same as ``description``.
    public var errorDescription: String? { description }
}
