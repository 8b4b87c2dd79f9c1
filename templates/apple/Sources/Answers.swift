// Makes answers from output tensors, as `outputs: {NAME: {kind: ...}}` of edgepack.yaml describes them.
//
// The Python and Kotlin runtimes give the same answers: they compute in double precision, and every order is fixed, also that
// of ties.

import Foundation

/// One class of a classification.
public struct Classification: Sendable, Equatable {
    /// The index of the class, from 0.
    public let index: Int
    /// `nil` where there are no labels, or fewer labels than classes.
    public let label: String?
    /// The model's score, or a probability where the output's description names softmax or sigmoid.
    public let score: Double

    /// Makes a class, for an app's tests.
    public init(index: Int, label: String?, score: Double) {
        self.index = index
        self.label = label
        self.score = score
    }
}

/// One object in a picture.
public struct Detection: Sendable, Equatable {
    /// The index of its class, from 0.
    public let index: Int
    /// `nil` where there are no labels, or fewer labels than classes.
    public let label: String?
    /// The model's score for the class, times its score that there is an object where the layout has one.
    public let score: Double
    /// Where it is in the picture.
    public let box: Box
    /// In the model's order; empty where it gives none.
    public let keypoints: [Keypoint]

    /// Makes an object, for an app's tests.
    public init(index: Int, label: String?, score: Double, box: Box, keypoints: [Keypoint] = []) {
        self.index = index
        self.label = label
        self.score = score
        self.box = box
        self.keypoints = keypoints
    }
}

/// A rectangle in pixels of the upright picture, clipped to it; the origin is the picture's top left corner.
public struct Box: Sendable, Equatable {
    /// Its left edge.
    public let left: Double
    /// Its upper edge.
    public let top: Double
    /// Its right edge, never to the left of the left edge.
    public let right: Double
    /// Its lower edge, never above the upper edge.
    public let bottom: Double

    /// Makes a rectangle, for an app's tests.
    public init(left: Double, top: Double, right: Double, bottom: Double) {
        self.left = left
        self.top = top
        self.right = right
        self.bottom = bottom
    }

    /// The box as a `CGRect`.
    public var cgRect: CGRect { CGRect(x: left, y: top, width: right - left, height: bottom - top) }
}

/// A class for each pixel of the upright picture.
public struct Mask: Sendable, Equatable {
    /// The class of a pixel that the model did not see, because the picture was cut.
    public static let unseen: UInt8 = 255

    /// In pixels of the upright picture.
    public let width: Int
    /// In pixels of the upright picture.
    public let height: Int
    /// `height * width` indices of classes, row after row: 0 to 254, or ``unseen``.
    public let classes: [UInt8]
    /// The names of the classes; empty where the bundle has none.
    public let labels: [String]

    /// Makes a mask, for an app's tests.
    ///
    /// - Throws: ``AnswerError`` if the number of classes is not `height * width`.
    public init(width: Int, height: Int, classes: [UInt8], labels: [String] = []) throws {
        guard width >= 0, height >= 0, classes.count == width * height else {
            throw AnswerError(.shape, "a mask of \(width) x \(height) pixels does not have \(classes.count) classes")
        }
        self.init(unchecked: classes, width: width, height: height, labels: labels)
    }

    fileprivate init(unchecked classes: [UInt8], width: Int, height: Int, labels: [String]) {
        self.width = width
        self.height = height
        self.classes = classes
        self.labels = labels
    }

    /// The class at a pixel.
    public subscript(_ x: Int, _ y: Int) -> UInt8 {
        precondition((0..<width).contains(x) && (0..<height).contains(y), "(\(x), \(y)) is outside \(width) x \(height)")
        return classes[y * width + x]
    }
}

/// A probability, and what follows from it.
public struct Decision: Sendable, Equatable {
    /// The probability.
    public let score: Double
    /// Whether it reaches the threshold.
    public let positive: Bool

    /// Makes a decision, for an app's tests.
    public init(score: Double, positive: Bool) {
        self.score = score
        self.positive = positive
    }
}

/// What a call wants of its answers. Each nil stands for what the manifest says, or, of ``allow``, for all classes.
public struct AnswerOptions: Sendable, Equatable {
    /// The lowest score of a class or an object, 0 to 1.
    public var score: Double?
    /// The largest overlap of two objects of one class, 0 to 1: intersection over union.
    public var iou: Double?
    /// The largest number of objects, at least 1.
    public var most: Int?
    /// The largest number of classes, at least 1.
    public var top: Int?
    /// The labels of the classes that are given.
    public var allow: Set<String>?

    /// Makes options; what is left out stays as the manifest says.
    public init(
        score: Double? = nil, iou: Double? = nil, most: Int? = nil, top: Int? = nil, allow: Set<String>? = nil
    ) {
        self.score = score
        self.iou = iou
        self.most = most
        self.top = top
        self.allow = allow
    }

    /// - Throws: ``AnswerError`` if a number is outside its range.
    func requireRanges() throws {
        for (name, value) in [("score", score), ("iou", iou)] {
            guard let value, !(0...1).contains(value) else { continue }
            throw AnswerError(.options, "the option '\(name)' is \(value), expected 0 to 1")
        }
        for (name, value) in [("most", most), ("top", top)] {
            guard let value, value < 1 else { continue }
            throw AnswerError(.options, "the option '\(name)' is \(value), expected 1 or more")
        }
    }

    /// Returns whether each class with a label is allowed, by index; nil where all are.
    ///
    /// - Throws: ``AnswerError`` if a label of ``allow`` is not among the output's.
    func allowed(of labels: [String]) throws -> [Bool]? {
        guard let allow else { return nil }
        guard !labels.isEmpty else {
            throw AnswerError(.options, "the option 'allow' names labels, and the output has none: leave it out")
        }
        guard let missing = allow.subtracting(labels).min() else { return labels.map(allow.contains) }
        let some = labels.prefix(10).map { "'\($0)'" }.joined(separator: ", ")
        let more = labels.count > 10 ? " and \(labels.count - 10) more" : ""
        throw AnswerError(.options, "the option 'allow' names '\(missing)', and the labels are \(some)\(more)")
    }
}

/// An answer that cannot be made, and why.
public struct AnswerError: LocalizedError, CustomStringConvertible, Sendable, Equatable {
    /// What is wrong, for code.
    public enum Reason: Sendable {
        /// The output's shape, or a value in it, does not match its description.
        case shape
        /// The answer is about a picture, and the input was not made from one.
        case noPicture
        /// An option is outside its range, or names a label that there is not.
        case options
        /// The bundle's code and its manifest are of different bundles.
        case bundle
    }

    /// What is wrong, for code.
    public let reason: Reason
    /// What was found and what was expected.
    public let description: String

    /// Makes an error, for an app's tests.
    public init(_ reason: Reason, _ description: String) {
        self.reason = reason
        self.description = description
    }

    /// The same as ``description``.
    public var errorDescription: String? { description }
}

/// What an output means: one of the manifest's `output_descriptions`.
enum OutputDescription: Decodable, Sendable, Equatable {
    case raw
    case classification(ClassScores)
    case detection(DetectedRows)
    case embedding(Pooling)
    case mask(PixelClasses)
    case probability(Probabilities)
    case text(SymbolSteps)

    private enum Kind: String, Decodable {
        case raw, classification, detection, embedding, mask, probability
        case regression, tokens, text, signal, picture
    }

    private enum Keys: CodingKey {
        case kind
    }

    init(from decoder: any Decoder) throws {
        switch try decoder.container(keyedBy: Keys.self).decode(Kind.self, forKey: .kind) {
        case .raw, .regression, .tokens, .signal, .picture: self = .raw
        case .classification: self = .classification(try ClassScores(from: decoder))
        case .detection: self = .detection(try DetectedRows(from: decoder))
        case .embedding: self = .embedding(try Pooling(from: decoder))
        case .mask: self = .mask(try PixelClasses(from: decoder))
        case .probability: self = .probability(try Probabilities(from: decoder))
        case .text: self = .text(try SymbolSteps(from: decoder))
        }
    }

    /// The file with the labels, one per line, relative to the bundle.
    var labels: String? {
        switch self {
        case .classification(let scores): return scores.labels
        case .detection(let rows): return rows.labels
        case .mask(let pixels): return pixels.labels
        case .text(let steps): return steps.labels
        case .raw, .embedding, .probability: return nil
        }
    }
}

extension OutputDescription {
    /// The output with the scores of the classes, where it is another one.
    var scores: String? {
        guard case .detection(let rows) = self else { return nil }
        return rows.several?.scores
    }

    /// The file with the priors of boxes, relative to the bundle's files.
    var priors: String? {
        guard case .detection(let rows) = self else { return nil }
        return rows.several?.priors
    }
}

/// Returns the labels in a file's text, one per line, without a byte order mark and carriage returns.
func readLabels(_ text: String) -> [String] {
    // Splits by scalars, because for Swift a carriage return with its line feed is one character.
    let plain = text.unicodeScalars.filter { $0 != "\r" && $0 != "\u{feff}" }
    let lines = plain.split(separator: "\n", omittingEmptySubsequences: false).map { String(String.UnicodeScalarView($0)) }
    return lines.last == "" ? lines.dropLast() : lines
}

private func label(_ index: Int, of labels: [String]) -> String? {
    index < labels.count ? labels[index] : nil
}

private func isAllowed(_ index: Int, _ allowed: [Bool]?) -> Bool {
    guard let allowed else { return true }
    return index < allowed.count && allowed[index]
}

/// Returns the indices of values from the highest to the lowest; equal values by index, NaN last.
private func descending(_ values: [Double]) -> [Int] {
    values.indices.sorted { comes($0, before: $1, in: values) }
}

/// Returns the first of these indices, in the same order.
private func best(_ most: Int, of values: Doubles, among indices: some Sequence<Int>) -> [Int] {
    var found: [Int] = []
    for index in indices {
        if found.count >= most {
            guard let last = found.last, comes(index, before: last, in: values) else { continue }
            found.removeLast()
        }
        found.insert(index, at: found.firstIndex { comes(index, before: $0, in: values) } ?? found.count)
    }
    return found
}

private func comes<Values: RandomAccessCollection<Double>>(_ one: Int, before other: Int, in values: Values) -> Bool
where Values.Index == Int {
    let (a, b) = (values[one], values[other])
    if a == b || (a.isNaN && b.isNaN) { return one < other }
    return a > b || b.isNaN
}

/// How one row of scores or logits becomes classes.
struct ClassScores: Decodable, Sendable, Equatable {
    enum Activation: String, Decodable, Sendable {
        case none, softmax, sigmoid
    }

    let labels: String?
    let activation: Activation
    /// The largest number of classes to return.
    let top: Int

    /// Returns the best classes by score, best first; among equal scores, the lower index first.
    ///
    /// - Throws: ``AnswerError`` if more than one axis has a size other than 1, the output is empty, or an option names a label
    ///   that there is not.
    func classes(of output: RawTensor, labels: [String], options: AnswerOptions = .init()) throws -> [Classification] {
        guard output.count > 0, output.count == output.shape.max() ?? 1 else {
            throw AnswerError(
                .shape,
                "the output is \(output.shape): a classification is one row of scores, so that the classes of several samples"
                    + " are asked for one sample at a time")
        }
        let values = output.doubles()
        let score = activated(values)
        let allowed = try options.allowed(of: labels)
        let some = values.indices.lazy.filter { index in
            isAllowed(index, allowed) && options.score.map { score(values[index]) >= $0 } ?? true
        }
        // By the values: an activation keeps their order, but may round two of them to the same score.
        return best(options.top ?? top, of: values, among: some).map { index in
            Classification(index: index, label: label(index, of: labels), score: score(values[index]))
        }
    }

    /// Returns what makes scores of values.
    private func activated(_ values: Doubles) -> (Double) -> Double {
        switch activation {
        case .none: return { $0 }
        case .sigmoid: return { 1 / (1 + exp(-$0)) }
        case .softmax:
            let highest = values.max() ?? 0
            let sum = values.reduce(0) { $0 + exp($1 - highest) }
            return { exp($0 - highest) / sum }
        }
    }
}

/// How rows of boxes and scores become the objects in a picture.
struct DetectedRows: Decodable, Sendable, Equatable {
    enum Layout: String, Decodable, Sendable {
        /// `(1, 4 + C, N)` or `(1, N, 4 + C)`: centre, width, height, then a score per class.
        case yolo
        /// `(1, N, 5 + C)`: centre, width, height, the score that there is an object, then a score per class.
        case yolov5
        /// As `yolov5`, in cells of a grid for each stride: the centre from the cell's corner, the logarithms of the sizes.
        case yolox
        /// `(1, N, 6)`: left, top, right, bottom, score, class; overlaps are suppressed already.
        case end2end
        /// Boxes `(1, N, 4)`, whose scores are another output.
        case ssd
    }

    let labels: String?
    let layout: Layout
    /// The lowest score of an object.
    let score: Double
    /// The largest overlap of two objects of one class: intersection over union.
    let iou: Double
    /// The largest number of objects to return.
    let most: Int
    /// Of `yolox`: the sizes of cells in pixels of the input, in the order of their rows.
    let strides: [Int]?
    /// Of `ssd`.
    let several: SeveralBoxes?
    /// Of `yolo` and `end2end`.
    let points: KeypointShape

    private enum Keys: CodingKey {
        case labels, layout, score, iou, most, strides
    }

    init(from decoder: any Decoder) throws {
        let keys = try decoder.container(keyedBy: Keys.self)
        labels = try keys.decodeIfPresent(String.self, forKey: .labels)
        layout = try keys.decode(Layout.self, forKey: .layout)
        score = try keys.decode(Double.self, forKey: .score)
        iou = try keys.decode(Double.self, forKey: .iou)
        most = try keys.decode(Int.self, forKey: .most)
        strides = try keys.decodeIfPresent([Int].self, forKey: .strides)
        several = layout == .ssd ? try SeveralBoxes(from: decoder) : nil
        points = try KeypointShape(from: decoder)
    }

    /// Returns the objects, best first; among equal scores, in the output's order.
    ///
    /// A row is one object of the class with its best score. Rows below `score` are left out, and so are rows with a NaN or an
    /// infinite value. Of two objects of one class that overlap by more than `iou`, the better one is kept.
    ///
    /// - Parameters:
    ///   - outputs: The described output, then those that it is read with.
    ///   - labels: By index; where there are any, their number is C. Without labels, the smaller axis has the values of a box.
    ///   - place: Where the picture lies in the input.
    ///   - options: What is wanted instead of the description's.
    ///   - priors: Of `ssd` with priors: what ``readPriors(_:)`` gave.
    /// - Throws: ``AnswerError`` if a shape does not match the layout, or an option names a label that there is not.
    func detections(
        of outputs: [RawTensor], labels: [String], place: ImagePlacement, options: AnswerOptions = .init(),
        priors: [Double] = []
    ) throws -> [Detection] {
        let allowed = try options.allowed(of: labels)
        let (score, iou, most) = (options.score ?? score, options.iou ?? iou, options.most ?? most)
        func isWanted(_ each: Candidate) -> Bool {
            each.score >= score && each.score.isFinite && each.box.isFinite && each.points.allSatisfy(\.isFinite)
                && isAllowed(each.index, allowed)
        }
        let found =
            try several?.candidates(outputs, labels: labels.count, place: place, priors: priors, isWanted: isWanted)
            ?? candidates(outputs[0], labels: labels.count, place: place, isWanted: isWanted)
        var kept: [Candidate] = []
        for index in descending(found.map(\.score)) where kept.count < most {
            let each = found[index]
            let isCovered = layout != .end2end && kept.contains { $0.index == each.index && $0.box.overlaps(each.box, by: iou) }
            if !isCovered { kept.append(each) }
        }
        return kept.map {
            Detection(
                index: $0.index, label: label($0.index, of: labels), score: $0.score, box: place.inPicture($0.box),
                keypoints: points.points($0.points, in: place))
        }
    }

    /// An object that may be kept.
    struct Candidate {
        let index: Int
        let score: Double
        /// In pixels of the input.
        let box: Box
        /// The numbers of its keypoints, in pixels of the input.
        var points: [Double] = []
    }

    /// Returns the objects of rows that are wanted, in the output's order.
    private func candidates(
        _ output: RawTensor, labels: Int, place: ImagePlacement, isWanted: (Candidate) -> Bool
    ) throws -> [Candidate] {
        if layout == .end2end { return try finished(output, labels: labels, isWanted: isWanted) }
        let (rows, columns, isTransposed) = try axes(output.shape, labels: labels)
        if layout == .yolox { try requireCells(rows, place: place) }
        let values = output.doubles()
        func value(_ row: Int, _ column: Int) -> Double {
            values[isTransposed ? column * rows + row : row * columns + column]
        }
        return (0..<rows).compactMap { row in
            let object = before == 5 ? value(row, 4) : 1
            var (index, best) = (0, -Double.infinity)
            for column in before..<(columns - points.size) {
                let score = value(row, column) * object
                if score > best { (index, best) = (column - before, score) }
            }
            var (x, y, width, height) = (value(row, 0), value(row, 1), value(row, 2), value(row, 3))
            if layout == .yolox {
                let cell = cell(row, place: place)
                (x, y) = ((x + cell.x) * cell.stride, (y + cell.y) * cell.stride)
                (width, height) = (exp(width) * cell.stride, exp(height) * cell.stride)
            }
            let (halfWidth, halfHeight) = (width / 2, height / 2)
            let box = Box(left: x - halfWidth, top: y - halfHeight, right: x + halfWidth, bottom: y + halfHeight)
            var found = Candidate(index: index, score: best, box: box)
            if points.size > 0 { found.points = ((columns - points.size)..<columns).map { value(row, $0) } }
            return isWanted(found) ? found : nil
        }
    }

    /// Returns the rows of a model that suppresses overlaps itself. Rows without a class, which fill the output, are left out.
    private func finished(
        _ output: RawTensor, labels: Int, isWanted: (Candidate) -> Bool
    ) throws -> [Candidate] {
        let width = 6 + points.size
        guard output.shape.count == 3, output.shape[0] == 1, output.shape[2] == width else {
            throw unfit(output.shape, "\(width)")
        }
        let values = output.doubles()
        return stride(from: 0, to: values.count, by: width).compactMap { at in
            guard let index = Int(exactly: values[at + 5]), index >= 0, index < (labels > 0 ? labels : 1 << 31)
            else { return nil }
            let box = Box(left: values[at], top: values[at + 1], right: values[at + 2], bottom: values[at + 3])
            let found = Candidate(index: index, score: values[at + 4], box: box, points: Array(values[(at + 6)..<(at + width)]))
            return isWanted(found) ? found : nil
        }
    }

    private typealias Cell = (x: Double, y: Double, stride: Double)

    /// Returns the cell of a row: by stride, then from the top, then from the left.
    private func cell(_ row: Int, place: ImagePlacement) -> Cell {
        var rest = row
        for stride in strides ?? [] {
            let (width, height) = (place.inputWidth / stride, place.inputHeight / stride)
            if rest < width * height { return (Double(rest % width), Double(rest / width), Double(stride)) }
            rest -= width * height
        }
        preconditionFailure("row \(row) is in no cell")
    }

    private func requireCells(_ rows: Int, place: ImagePlacement) throws {
        let strides = strides ?? []
        let cells = strides.reduce(0) { $0 + (place.inputWidth / $1) * (place.inputHeight / $1) }
        guard cells == rows else {
            throw AnswerError(
                .shape,
                "the output has \(rows) boxes: with the strides \(strides) an input of"
                    + " \(place.inputWidth) x \(place.inputHeight) pixels has \(cells)")
        }
    }

    /// The number of values before the scores of the classes.
    private var before: Int { layout == .yolo ? 4 : 5 }

    private func axes(_ shape: [Int], labels: Int) throws -> (rows: Int, columns: Int, isTransposed: Bool) {
        let others = before + points.size
        if shape.count == 3, shape[0] == 1 {
            // An empty axis contains no boxes: there is no object.
            let smaller = min(shape[1], shape[2]) > 0 ? min(shape[1], shape[2]) : max(shape[1], shape[2])
            let size = labels > 0 ? others + labels : smaller
            // Where both axes have that size, the first one counts, as in ultralytics' exports.
            let isTransposed = layout == .yolo && shape[1] == size
            let (rows, columns) = isTransposed ? (shape[2], shape[1]) : (shape[1], shape[2])
            if columns > others, labels == 0 || columns == others + labels { return (rows, columns, isTransposed) }
        }
        throw unfit(shape, labels > 0 ? "\(others + labels)" : "\(others) and a score per class")
    }

    private func unfit(_ shape: [Int], _ wanted: String) -> AnswerError {
        AnswerError(
            .shape,
            "the output is \(shape): the layout '\(layout)' of a detection has one picture, with \(wanted) values for each box")
    }
}

extension Box {
    fileprivate var isFinite: Bool { left.isFinite && top.isFinite && right.isFinite && bottom.isFinite }

    private var area: Double { max(right - left, 0) * max(bottom - top, 0) }

    /// Returns whether two boxes overlap by more than a share of their union.
    fileprivate func overlaps(_ other: Box, by share: Double) -> Bool {
        let width = max(min(right, other.right) - max(left, other.left), 0)
        let height = max(min(bottom, other.bottom) - max(top, other.top), 0)
        let intersection = width * height
        // Multiplies instead of dividing: the union of two boxes without area is 0.
        return intersection > share * (area + other.area - intersection)
    }
}

extension ImagePlacement {
    /// Converts a box from pixels of the input to pixels of the picture, and clips it to the picture.
    fileprivate func inPicture(_ box: Box) -> Box {
        Box(
            left: xInPicture(box.left), top: yInPicture(box.top), right: xInPicture(box.right), bottom: yInPicture(box.bottom))
    }

    /// Converts a column of the input to one of the picture, and clips it to the picture.
    func xInPicture(_ value: Double) -> Double { back(value, offset: left, scaled: scaledWidth, size: width) }

    /// Converts a row of the input to one of the picture, and clips it to the picture.
    func yInPicture(_ value: Double) -> Double { back(value, offset: top, scaled: scaledHeight, size: height) }

    private func back(_ value: Double, offset: Int, scaled: Int, size: Int) -> Double {
        let (offset, scaled, size) = (Double(offset), Double(scaled), Double(size))
        let inPicture: Double = (value - offset) * size / scaled
        return min(max(inPicture, 0), size)
    }
}

/// How an output becomes one vector per sample.
struct Pooling: Decodable, Sendable, Equatable {
    enum Method: String, Decodable, Sendable {
        /// All values of a sample are its vector.
        case none
        /// The first position.
        case cls
        case mean, max
    }

    let pooling: Method
    /// The input whose zeros mark the positions that do not count.
    let mask: String?
    /// Whether vectors are scaled to length 1. A vector of zeros stays as it is.
    let normalize: Bool

    /// Returns one vector per sample, `[B, D]`.
    ///
    /// - Parameters:
    ///   - output: `[B, S, D]`: pooling makes one vector of the S positions; without pooling, any shape.
    ///   - mask: `[B, S]`: positions with 0 do not count. Where no position counts, the vector is zeros.
    /// - Throws: ``AnswerError`` if the output or the mask has another shape.
    func vectors(of output: RawTensor, mask: RawTensor?) throws -> Tensor<Float> {
        let values = output.doubles()
        var vectors: [[Double]]
        if pooling == .none {
            let samples = output.shape.first ?? 1
            let size = samples == 0 ? 0 : values.count / samples
            vectors = (0..<samples).map { Array(values[$0 * size..<($0 + 1) * size]) }
        } else {
            vectors = try pooled(values, shape: output.shape, mask: mask)
        }
        if normalize { vectors = vectors.map(normalized) }
        let size = vectors.first?.count ?? 0
        return Tensor(unchecked: vectors.flatMap { $0.map(Float.init) }, shape: [vectors.count, size])
    }

    private func pooled(_ values: Doubles, shape: [Int], mask: RawTensor?) throws -> [[Double]] {
        guard shape.count == 3, mask == nil || mask?.shape == Array(shape[..<2]) else {
            let ofMask = mask.map { " and its mask \($0.shape)" } ?? ""
            throw AnswerError(
                .shape, "the output is \(shape)\(ofMask): pooling takes [batch, positions, values] and a mask [batch, positions]")
        }
        let (positions, size) = (shape[1], shape[2])
        guard pooling != .cls || positions > 0 else {
            throw AnswerError(.shape, "the output is \(shape): the pooling 'cls' takes the first position, and there is none")
        }
        let counted = mask?.doubles().map { $0 != 0 }
        return (0..<shape[0]).map { sample in
            let rows = (sample * positions..<(sample + 1) * positions)
                .filter { pooling == .cls || counted?[$0] ?? true }
                .map { values[$0 * size..<($0 + 1) * size] }
            return pool(rows, size: size)
        }
    }

    /// Makes one vector of the vectors of the positions that count.
    private func pool(_ rows: [Slice<Doubles>], size: Int) -> [Double] {
        guard let first = rows.first else { return Array(repeating: 0, count: size) }
        var vector = Array(first)
        if pooling == .cls { return vector }
        for row in rows.dropFirst() {
            for (index, value) in row.enumerated() {
                if pooling == .mean {
                    vector[index] += value
                } else if value > vector[index] || value.isNaN {
                    vector[index] = value
                }
            }
        }
        return pooling == .mean ? vector.map { $0 / Double(rows.count) } : vector
    }

    private func normalized(_ vector: [Double]) -> [Double] {
        let length = vector.reduce(0) { $0 + $1 * $1 }.squareRoot()
        return length > 0 ? vector.map { $0 / length } : vector
    }
}

/// How an output becomes the class of each pixel of a picture.
struct PixelClasses: Decodable, Sendable, Equatable {
    let labels: String?
    /// Where scores of classes lie: 1 or -1.
    let axis: Int
    /// The value from which on a pixel is in the region, where there is one value per place.
    let threshold: Double

    /// Returns the class of each pixel: that of the place in the output which the pixel's centre is at.
    ///
    /// - Parameters:
    ///   - output: `(1, C, h, w)` or `(1, h, w, C)`, as `axis` says, or `(1, h, w)`. Integers with one value per place are
    ///     classes; of several values, the first highest is the class, and NaN is never that.
    ///   - labels: By class.
    ///   - place: Where the picture lies in the input.
    /// - Throws: ``AnswerError`` if the output has another shape, or a class is not 0 to 254.
    func mask(of output: RawTensor, labels: [String], place: ImagePlacement) throws -> Mask {
        let (height, width, channels, isLast) = try axes(output.shape)
        let columns = Self.places(
            picture: place.width, scaled: place.scaledWidth, offset: place.left, input: place.inputWidth, output: width)
        let rows = Self.places(
            picture: place.height, scaled: place.scaledHeight, offset: place.top, input: place.inputHeight, output: height)
        let values = output.doubles()
        var ofRow = [UInt8](repeating: 0, count: width)
        var classes = [UInt8](repeating: Mask.unseen, count: place.width * place.height)
        var y = rows.firstIndex { $0 >= 0 } ?? rows.count
        for row in 0..<height {
            for column in 0..<width {
                let (at, places) = (row * width + column, height * width)
                ofRow[column] = try found(channels, isFloat: output.type.isFloat) { channel in
                    values[isLast ? at * channels + channel : channel * places + at]
                }
            }
            while y < rows.count, rows[y] == row {
                for (x, column) in columns.enumerated() where column >= 0 { classes[y * place.width + x] = ofRow[column] }
                y += 1
            }
        }
        return Mask(unchecked: classes, width: place.width, height: place.height, labels: labels)
    }

    /// Returns the class of a place.
    private func found(_ channels: Int, isFloat: Bool, value: (_ channel: Int) -> Double) throws -> UInt8 {
        var index = 0
        if channels > 1 {
            var best = -Double.infinity
            for channel in 0..<channels where value(channel) > best { (index, best) = (channel, value(channel)) }
        } else if isFloat {
            index = value(0) >= threshold ? 1 : 0
        } else {
            index = Int(exactly: value(0)) ?? .max
        }
        guard (0..<Int(Mask.unseen)).contains(index) else {
            throw AnswerError(.shape, "the output has the class \(index): a mask has classes from 0 to \(Mask.unseen - 1)")
        }
        return UInt8(index)
    }

    private func axes(_ shape: [Int]) throws -> (height: Int, width: Int, channels: Int, isLast: Bool) {
        if shape.first == 1, !shape.contains(0) {
            if shape.count == 3 { return (shape[1], shape[2], 1, false) }
            if shape.count == 4, axis == 1 { return (shape[2], shape[3], shape[1], false) }
            if shape.count == 4 { return (shape[1], shape[2], shape[3], true) }
        }
        throw AnswerError(
            .shape, "the output is \(shape): a mask is [1, height, width], with an axis for scores of classes or not")
    }

    /// Returns the place in an axis of the output for each pixel of the picture's; -1 where the picture was cut.
    private static func places(picture: Int, scaled: Int, offset: Int, input: Int, output: Int) -> [Int] {
        (0..<picture).map { pixel in
            let at: Double = (Double(pixel) + 0.5) * Double(scaled) / Double(picture) + Double(offset)
            guard at >= 0, at < Double(input) else { return -1 }
            return min(Int((at * Double(output) / Double(input)).rounded(.down)), output - 1)
        }
    }
}

/// How values become decisions.
struct Probabilities: Decodable, Sendable, Equatable {
    enum Activation: String, Decodable, Sendable {
        case none, sigmoid
    }

    /// The probability from which on a decision is positive.
    let threshold: Double
    let activation: Activation

    /// Returns a decision for each value, in the output's order.
    func decisions(of output: RawTensor) -> [Decision] {
        output.doubles().map { value in
            let score = activation == .sigmoid ? 1 / (1 + exp(-value)) : value
            return Decision(score: score, positive: score >= threshold)
        }
    }
}
