// Resizes pictures as the libraries do it that models are trained with.
//
// The numbers are those of the project's samples, to the bit. What is double in a library is double here; what is float32 is
// double, too, and rounded to float32 after each step, which is the same.

import Foundation

/// How an axis is scaled.
struct AxisSpan {
    /// Its size.
    let from: Int
    /// Its new size.
    let to: Int
    /// Which of its new pixels are wanted.
    let shown: Range<Int>
}

/// The library's function that resizes: what `filter` and `antialias` in a description's `resize` say.
struct Resampling: Decodable, Sendable, Equatable {
    enum Filter: String, Decodable, Sendable {
        case pillowBilinear = "pillow-bilinear"
        case pillowBicubic = "pillow-bicubic"
        case pillowNearest = "pillow-nearest"
        case openCVLinear = "cv2-linear"
        case openCVCubic = "cv2-cubic"
        case openCVArea = "cv2-area"
        case openCVNearest = "cv2-nearest"
        case torchvisionBilinear = "torchvision-bilinear"
        case torchvisionBicubic = "torchvision-bicubic"
        case tensorFlowBilinear = "tf-bilinear"
    }

    let filter: Filter
    let antialias: Bool

    private enum Keys: String, CodingKey {
        case filter, antialias
    }

    init(from decoder: any Decoder) throws {
        let values = try decoder.container(keyedBy: Keys.self)
        filter = try values.decodeIfPresent(Filter.self, forKey: .filter) ?? .pillowBilinear
        antialias = try values.decodeIfPresent(Bool.self, forKey: .antialias) ?? false
    }

    /// The kernel of Pillow's filters that average.
    var pillowKernel: Kernel? {
        switch filter {
        case .pillowBilinear: .bilinear
        case .pillowBicubic: .bicubic
        default: nil
        }
    }
}

/// What a pixel's part in a new one is, by its distance from the new one's centre.
enum Kernel {
    case bilinear
    /// Keys' kernel with a = -0.5.
    case bicubic

    var reach: Double { self == .bilinear ? 1 : 2 }

    private func part(_ distance: Double, _ round: (Double) -> Double) -> Double {
        switch self {
        case .bilinear:
            return max(0, round(1 - distance))
        case .bicubic where distance < 1:
            let slope = round(round(1.5 * distance) - 2.5)
            return round(round(round(slope * distance) * distance) + 1)
        case .bicubic where distance < 2:
            let slope = round(round(round(distance - 5) * distance) + 8)
            return round(round(round(slope * distance) - 4) * -0.5)
        case .bicubic:
            return 0
        }
    }

    /// Returns the first pixel that makes a new one, and the parts of that and the following ones, whose sum is 1.
    ///
    /// - Parameters:
    ///   - from: The axis's size.
    ///   - center: Of the new pixel.
    ///   - reach: Of the stretched kernel.
    ///   - narrowing: 1 over how much it is stretched. Pillow multiplies by it instead of dividing: that decides the last bit.
    ///   - round: To the type that the library computes in.
    func shares(
        from: Int, center: Double, reach: Double, narrowing: Double, round: (Double) -> Double
    ) -> (first: Int, parts: [Double]) {
        let first = max(0, Int(round(round(center - reach) + 0.5)))
        let end = min(from, Int(round(round(center + reach) + 0.5)))
        var sum = 0.0
        var parts: [Double] = []
        for old in first..<end {
            let distance = round(round(round(Double(old) - center) + 0.5) * narrowing)
            let share = part(abs(distance), round)
            sum = round(sum + share)
            parts.append(share)
        }
        return (first, parts.map { round($0 / sum) })
    }
}

/// Rounds to float32.
private func f32(_ value: Double) -> Double { Double(Float(value)) }

/// Leaves a number as it is: whole ones are exact.
private func kept(_ value: Double) -> Double { value }

/// How one axis is resized by Pillow's filters that average: with antialiasing, in fixed point with 22 fraction bits.
///
/// The filter is centred on each new pixel and as wide as the reduction, at least two pixels; its weights are normalized to 1
/// and rounded. This is Pillow's `Image.resize` (`Resample.c`): 8 bits of the 32 are for the channel, 2 for overflow.
struct AxisWeights {
    static let precisionBits: Int32 = 22
    static let half: Int32 = 1 << (precisionBits - 1)

    /// For each new pixel, the old pixels that it is made of.
    let sources: [Range<Int>]
    /// Their weights, new pixel after new pixel.
    let weights: [Int32]
    /// The range of all old pixels that any new pixel is made of.
    var needed: Range<Int> { sources[0].lowerBound..<sources[sources.count - 1].upperBound }
    /// The largest number of old pixels that one new pixel is made of.
    var longest: Int { sources.map(\.count).max() ?? 0 }

    init(_ span: AxisSpan, _ kernel: Kernel) {
        let scale = Double(span.from) / Double(span.to)
        let stretched = max(scale, 1)
        let one = Double(1 << Self.precisionBits)
        var sources: [Range<Int>] = []
        var weights: [Int32] = []
        for pixel in span.shown {
            let center = (Double(pixel) + 0.5) * scale
            let shares = kernel.shares(
                from: span.from, center: center, reach: kernel.reach * stretched, narrowing: 1 / stretched, round: kept)
            sources.append(shares.first..<shares.first + shares.parts.count)
            weights += shares.parts.map { (part: Double) -> Int32 in Int32(part * one + (part < 0 ? -0.5 : 0.5)) }
        }
        self.sources = sources
        self.weights = weights
    }

    /// Resizes one row.
    ///
    /// - Parameters:
    ///   - old: From the first pixel that is needed on.
    ///   - channels: 1 or 3.
    ///   - new: Gets the new pixels.
    func resize(_ old: UnsafePointer<UInt8>, channels: Int, to new: UnsafeMutablePointer<UInt8>) {
        let start = old - needed.lowerBound * channels
        weights.withUnsafeBufferPointer { weights in
            sources.withUnsafeBufferPointer { sources in
                var (weight, written) = (weights.baseAddress!, new)
                for range in sources {
                    let end = weight + range.count
                    var from = start + range.lowerBound * channels
                    if channels == 3 {
                        var (red, green, blue) = (Self.half, Self.half, Self.half)
                        while weight < end {
                            red &+= Int32(truncatingIfNeeded: from[0]) &* weight[0]
                            green &+= Int32(truncatingIfNeeded: from[1]) &* weight[0]
                            blue &+= Int32(truncatingIfNeeded: from[2]) &* weight[0]
                            from += 3
                            weight += 1
                        }
                        written[0] = UInt8(clamping: red >> Self.precisionBits)
                        written[1] = UInt8(clamping: green >> Self.precisionBits)
                        written[2] = UInt8(clamping: blue >> Self.precisionBits)
                    } else {
                        var sum = Self.half
                        while weight < end {
                            sum &+= Int32(truncatingIfNeeded: from[0]) &* weight[0]
                            from += 1
                            weight += 1
                        }
                        written[0] = UInt8(clamping: sum >> Self.precisionBits)
                    }
                    written += channels
                }
            }
        }
    }
}

/// Resizes pictures of one size by the filters that are not Pillow's averages: a new row at a time, from the top down.
///
/// It keeps only as many rows as one new row needs. One thread uses it at a time.
final class LevelScaler {
    /// Of the picture.
    let width: Int
    /// The new row that was made last: levels from 0 to 255, channels interleaved.
    private(set) var row: [Float]

    private let channels: Int
    private let across: Axis
    private let down: Axis
    private let method: Ending
    /// How many numbers of a row OpenCV's bicubic filter joins eight at a time.
    private let atOnce: Int
    private var read = 0
    /// The rows that make one new row, after the pass over the width; row `n` is at `n % held.count`.
    private var held: [[Double]]
    private var sums: [Double]

    init(_ resampling: Resampling, across: AxisSpan, down: AxisSpan, channels: Int) {
        width = across.from
        self.channels = channels
        (self.across, self.down, method) = Ending.make(resampling, across, down)
        atOnce = across.to * channels / 8 * 8 - across.shown.lowerBound * channels
        let length = across.shown.count * channels
        row = [Float](repeating: 0, count: length)
        sums = [Double](repeating: 0, count: length)
        let most = self.down.weights.map(\.count).max() ?? 1
        held = [[Double]](repeating: sums, count: most)
    }

    /// Makes a new row.
    ///
    /// - Parameters:
    ///   - y: Of those that are wanted; after 0, one more than the last time.
    ///   - source: Returns a row of the picture.
    func fill(row y: Int, from source: (Int) -> UnsafePointer<UInt8>) {
        let first = down.first[y]
        let weights = down.weights[y]
        let begin = down.clamped(first)
        read = y == 0 ? begin : max(read, begin)
        while read <= down.clamped(first + weights.count - 1) {
            sumWidth(source(read), to: read % held.count)
            read += 1
        }
        let rows = weights.indices.map { down.clamped(first + $0) % held.count }
        switch method {
        case .fixedPoint: interpolate(held[rows[0]], held[rows[1]], Int(weights[0]), Int(weights[1]))
        case .cubic: joinFour(rows, weights)
        default: sumHeight(rows, weights)
        }
    }

    private func sumWidth(_ bytes: UnsafePointer<UInt8>, to place: Int) {
        held[place].withUnsafeMutableBufferPointer { into in
            for x in across.first.indices {
                for channel in 0..<channels {
                    var sum = 0.0
                    for (tap, weight) in across.weights[x].enumerated() {
                        let column = across.clamped(across.first[x] + tap)
                        let part = across.round(weight * Double(bytes[column * channels + channel]))
                        sum = across.round(sum + part)
                    }
                    into[x * channels + channel] = sum
                }
            }
        }
    }

    /// OpenCV's way between two rows.
    private func interpolate(_ upper: [Double], _ lower: [Double], _ above: Int, _ below: Int) {
        for index in row.indices {
            let high = ((Int(upper[index]) >> 4) * above) >> 16
            let low = ((Int(lower[index]) >> 4) * below) >> 16
            row[index] = Float(min(255, (high + low + 2) >> 2))
        }
    }

    /// OpenCV's way between four rows: in float32, from the last row on, and the numbers that are left at the end as whole ones.
    private func joinFour(_ rows: [Int], _ weights: [Double]) {
        let one = 2048.0 * 2048.0
        for index in row.indices {
            let isFloat = index < atOnce
            let round = isFloat ? f32 : kept
            var sum = 0.0
            for (place, weight) in zip(rows, weights).reversed() {
                sum = round(round(weight * held[place][index]) + sum)
            }
            row[index] = method.finished(isFloat ? sum / one : (sum / one + 0.5).rounded(.down))
        }
    }

    private func sumHeight(_ rows: [Int], _ weights: [Double]) {
        for index in sums.indices { sums[index] = 0 }
        for (place, weight) in zip(rows, weights) {
            for index in sums.indices {
                sums[index] = down.round(sums[index] + down.round(weight * held[place][index]))
            }
        }
        for index in row.indices { row[index] = method.finished(sums[index]) }
    }
}

/// What becomes of weighted sums.
private enum Ending: Equatable {
    /// They are levels.
    case levels
    /// They are rounded to levels, halves to even.
    case rounded
    /// They are sums of four.
    case fours
    /// They are sums of more, of which each is such a share.
    case blocks(share: Double)
    /// OpenCV's fixed point, between two of each axis.
    case fixedPoint
    /// OpenCV's fixed point, between four of each axis; rounded to levels.
    case cubic

    func finished(_ sum: Double) -> Float {
        switch self {
        case .levels, .fixedPoint: Float(sum)
        case .rounded, .cubic: Self.level(sum)
        case .fours: Float((Int(sum) + 2) >> 2)
        // As in OpenCV, a sum has 32 bits.
        case .blocks(let share): Self.level(f32(f32(Double(Int32(truncatingIfNeeded: Int(sum)))) * share))
        }
    }

    /// Of two equal numbers `max` takes the second one: of 0 and -0, which is another float, 0.
    private static func level(_ value: Double) -> Float { Float(min(255, max(value.rounded(.toNearestOrEven), 0))) }

    static func make(_ resampling: Resampling, _ across: AxisSpan, _ down: AxisSpan) -> (Axis, Axis, Ending) {
        switch resampling.filter {
        case .pillowNearest: (.centres(across), .centres(down), .levels)
        case .openCVNearest: (.corners(across), .corners(down), .levels)
        case .openCVLinear: (.fixed(across, linear, isRow: true), .fixed(down, linear, isRow: false), .fixedPoint)
        case .openCVCubic: (.cubic(across), .cubic(down), .cubic)
        case .openCVArea: makeArea(across, down)
        case .torchvisionBilinear, .torchvisionBicubic, .tensorFlowBilinear, .pillowBilinear, .pillowBicubic:
            (.floats(across, resampling), .floats(down, resampling), .levels)
        }
    }

    /// OpenCV's INTER_AREA: the mean of the pixels that become one, where no side grows.
    private static func makeArea(_ across: AxisSpan, _ down: AxisSpan) -> (Axis, Axis, Ending) {
        let (wide, high) = (exactScale(across), exactScale(down))
        if min(wide, high) < 1 {
            return (.fixed(across, area, isRow: true), .fixed(down, area, isRow: false), .fixedPoint)
        }
        let (columns, rows) = (wide.rounded(.toNearestOrEven), high.rounded(.toNearestOrEven))
        guard max(abs(wide - columns), abs(high - rows)) < Double.ulpOfOne else {
            return (.areas(across), .areas(down), .rounded)
        }
        let method: Ending = columns == 2 && rows == 2 ? .fours : .blocks(share: f32(1 / f32(columns * rows)))
        return (.blocks(across, Int(columns)), .blocks(down, Int(rows)), method)
    }
}

/// Which pixels make each new pixel along an axis, and with what weights.
private struct Axis {
    let from: Int
    /// For each new pixel the first pixel that it is made of. What lies outside stands for the edge.
    let first: [Int]
    /// For each new pixel the weights of that pixel and the following ones.
    let weights: [[Double]]
    /// To the type that the library computes in.
    let round: @Sendable (Double) -> Double

    func clamped(_ place: Int) -> Int { max(0, min(from - 1, place)) }

    private init(_ span: AxisSpan, round: @escaping @Sendable (Double) -> Double, _ make: (Int) -> (Int, [Double])) {
        from = span.from
        self.round = round
        let made = span.shown.map(make)
        first = made.map(\.0)
        weights = made.map(\.1)
    }

    /// Pillow adds up steps, from the first pixel on. Source: Pillow, src/libImaging/Geometry.c.
    static func centres(_ span: AxisSpan) -> Axis {
        let step = Double(span.from) / Double(span.to)
        var place = step * 0.5
        for _ in 0..<span.shown.lowerBound { place += step }
        return Axis(span, round: kept) { _ in
            defer { place += step }
            return (Int(place), [1])
        }
    }

    static func corners(_ span: AxisSpan) -> Axis {
        let scale = exactScale(span)
        return Axis(span, round: kept) { (min(Int((Double($0) * scale).rounded(.down)), span.from - 1), [1]) }
    }

    /// - Parameter isRow: Whether what lies outside is moved to the edge.
    static func fixed(_ span: AxisSpan, _ place: (Int, AxisSpan) -> (first: Int, part: Double), isRow: Bool) -> Axis {
        Axis(span, round: kept) { pixel in
            var (first, part) = place(pixel, span)
            if isRow, first < 0 || first >= span.from - 1 { (first, part) = (max(0, min(span.from - 1, first)), 0) }
            // OpenCV's fixed point has 11 bits.
            return (first, [f32(1 - part), part].map { ($0 * 2048).rounded(.toNearestOrEven) })
        }
    }

    /// OpenCV's weights of four pixels, in its fixed point.
    static func cubic(_ span: AxisSpan) -> Axis {
        Axis(span, round: kept) { pixel in
            let (first, part) = linear(pixel, span)
            let (before, own, next) = (far(f32(part + 1)), near(part), near(f32(1 - part)))
            let last = f32(f32(f32(1 - before) - own) - next)
            return (first - 1, [before, own, next, last].map { ($0 * 2048).rounded(.toNearestOrEven) })
        }
    }

    static func blocks(_ span: AxisSpan, _ block: Int) -> Axis {
        Axis(span, round: kept) { ($0 * block, [Double](repeating: 1, count: block)) }
    }

    /// Which part of each pixel lies in each new one. Source: computeResizeAreaTab of OpenCV.
    static func areas(_ span: AxisSpan) -> Axis {
        let (scale, least) = (exactScale(span), 1e-3)
        return Axis(span, round: f32) { pixel in
            let begin = Double(pixel) * scale
            let end = begin + scale
            let cell = min(scale, Double(span.from) - begin)
            let last = min(Int(end.rounded(.down)), span.from - 1)
            let inner = min(Int(begin.rounded(.up)), last)
            var weights = [Double](repeating: f32(1 / cell), count: last - inner + 2)
            let (before, after) = (Double(inner) - begin, end - Double(last))
            weights[0] = before > least ? f32(before / cell) : 0
            weights[weights.count - 1] = after > least ? f32(min(after, 1, cell) / cell) : 0
            return (inner - 1, weights)
        }
    }

    /// PyTorch's and TensorFlow's weights, in float32.
    static func floats(_ span: AxisSpan, _ resampling: Resampling) -> Axis {
        let isBicubic = resampling.filter == .torchvisionBicubic
        let scale = f32(Double(span.from) / Double(span.to))
        guard !resampling.antialias else { return spread(span, resampling, isBicubic ? .bicubic : .bilinear, scale) }
        return Axis(span, round: f32) { pixel in
            var place = f32((Double(pixel) + 0.5) * scale - 0.5)
            // TensorFlow rounds twice.
            if resampling.filter == .tensorFlowBilinear { place = f32(f32((Double(pixel) + 0.5) * scale) - 0.5) }
            if !isBicubic { place = max(0, place) }
            let first = place.rounded(.down)
            let part = f32(place - first)
            let rest = f32(1 - part)
            guard isBicubic else { return (Int(first), [rest, part]) }
            return (Int(first) - 1, [far(f32(part + 1)), near(part), near(rest), far(f32(rest + 1))])
        }
    }

    /// The antialiasing: weights that reach over all pixels that become one.
    private static func spread(_ span: AxisSpan, _ resampling: Resampling, _ kernel: Kernel, _ exact: Double) -> Axis {
        let isTensorFlow = resampling.filter == .tensorFlowBilinear
        let scale = isTensorFlow ? f32(1 / f32(Double(span.to) / Double(span.from))) : exact
        let stretched = max(scale, 1)
        return Axis(span, round: f32) { pixel in
            let shares = kernel.shares(
                from: span.from, center: f32((Double(pixel) + 0.5) * scale), reach: f32(kernel.reach * stretched),
                narrowing: f32(1 / stretched), round: f32)
            return (shares.first, shares.parts)
        }
    }
}

/// Keys' kernel with a = -0.75, up to one pixel away.
private func near(_ distance: Double) -> Double {
    let slope = f32(f32(1.25 * distance) - 2.25)
    return f32(f32(f32(slope * distance) * distance) + 1)
}

/// Keys' kernel with a = -0.75, from one pixel on.
private func far(_ distance: Double) -> Double {
    let slope = f32(f32(f32(-0.75 * distance) + 3.75) * distance)
    return f32(f32(f32(slope - 6) * distance) + 3)
}

/// Returns how many pixels become one, as OpenCV divides. Source: OpenCV, modules/imgproc/src/resize.cpp.
private func exactScale(_ span: AxisSpan) -> Double { 1 / (Double(span.to) / Double(span.from)) }

/// Returns which pixel lies before a new pixel's centre, and which part of the way to the next one it is.
private func linear(_ pixel: Int, _ span: AxisSpan) -> (first: Int, part: Double) {
    let exact = f32((Double(pixel) + 0.5) * exactScale(span) - 0.5)
    return (Int(exact.rounded(.down)), f32(exact - exact.rounded(.down)))
}

/// The same for OpenCV's INTER_AREA where a side grows.
private func area(_ pixel: Int, _ span: AxisSpan) -> (first: Int, part: Double) {
    let first = (Double(pixel) * exactScale(span)).rounded(.down)
    let part = f32(Double(pixel + 1) - (first + 1) * (Double(span.to) / Double(span.from)))
    return (Int(first), part <= 0 ? 0 : f32(part - part.rounded(.down)))
}
