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

    /// The box as a `CGRect`.
    public var cgRect: CGRect { CGRect(x: left, y: top, width: right - left, height: bottom - top) }
}

/// An output does not match its description.
public struct AnswerError: LocalizedError, CustomStringConvertible, Sendable {
    /// What was found and what was expected.
    public let description: String

    init(_ description: String) { self.description = description }

    /// The same as ``description``.
    public var errorDescription: String? { description }
}

/// What an output means: one of the manifest's `output_descriptions`.
enum OutputDescription: Decodable, Sendable, Equatable {
    case raw
    case classification(ClassScores)
    case detection(DetectedRows)
    case embedding(Pooling)

    private enum Kind: String, Decodable {
        case raw, classification, detection, embedding
        case regression, probability, mask, tokens, signal
    }

    private enum Keys: CodingKey {
        case kind
    }

    init(from decoder: any Decoder) throws {
        switch try decoder.container(keyedBy: Keys.self).decode(Kind.self, forKey: .kind) {
        case .raw, .regression, .probability, .mask, .tokens, .signal: self = .raw
        case .classification: self = .classification(try ClassScores(from: decoder))
        case .detection: self = .detection(try DetectedRows(from: decoder))
        case .embedding: self = .embedding(try Pooling(from: decoder))
        }
    }

    /// The file with the labels, one per line, relative to the bundle.
    var labels: String? {
        switch self {
        case .classification(let scores): return scores.labels
        case .detection(let rows): return rows.labels
        case .raw, .embedding: return nil
        }
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

/// Returns the indices of values from the highest to the lowest; equal values by index, NaN last.
private func descending(_ values: [Double]) -> [Int] {
    values.indices.sorted { one, other in
        let (a, b) = (values[one], values[other])
        if a == b || (a.isNaN && b.isNaN) { return one < other }
        return a > b || b.isNaN
    }
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
    /// - Throws: ``AnswerError`` if more than one axis has a size other than 1, or the output is empty.
    func classes(of output: RawTensor, labels: [String]) throws -> [Classification] {
        guard output.count > 0, output.count == output.shape.max() ?? 1 else {
            throw AnswerError(
                "the output is \(output.shape): a classification is one row of scores, so that the classes of several samples"
                    + " are asked for one sample at a time")
        }
        let values = output.doubles()
        let scores = activated(values)
        // Sorted by the values: an activation keeps their order, but may round two of them to the same score.
        return descending(values).prefix(top).map { index in
            Classification(index: index, label: label(index, of: labels), score: scores[index])
        }
    }

    private func activated(_ values: [Double]) -> [Double] {
        switch activation {
        case .none: return values
        case .sigmoid: return values.map { 1 / (1 + exp(-$0)) }
        case .softmax:
            let highest = values.max() ?? 0
            let powers = values.map { exp($0 - highest) }
            let sum = powers.reduce(0, +)
            return powers.map { $0 / sum }
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
    }

    let labels: String?
    let layout: Layout
    /// The lowest score of an object.
    let score: Double
    /// The largest overlap of two objects of one class: intersection over union.
    let iou: Double
    /// The largest number of objects to return.
    let most: Int

    /// Returns the objects, best first; among equal scores, in the output's order.
    ///
    /// A row is one object of the class with its best score. Rows below `score` are left out, and so are rows with a NaN or an
    /// infinite value. Of two objects of one class that overlap by more than `iou`, the better one is kept.
    ///
    /// - Parameters:
    ///   - labels: By index; where there are any, their number is C. Without labels, the smaller axis has the values of a box.
    ///   - place: Where the picture lies in the input.
    /// - Throws: ``AnswerError`` if the shape does not match the layout.
    func detections(of output: RawTensor, labels: [String], place: ImagePlacement) throws -> [Detection] {
        let found = try candidates(output, labels: labels.count)
        var kept: [Candidate] = []
        for index in descending(found.map(\.score)) where kept.count < most {
            let each = found[index]
            let isCovered = kept.contains { $0.index == each.index && $0.box.overlaps(each.box, by: iou) }
            if !isCovered { kept.append(each) }
        }
        return kept.map {
            Detection(index: $0.index, label: label($0.index, of: labels), score: $0.score, box: place.inPicture($0.box))
        }
    }

    private struct Candidate {
        let index: Int
        let score: Double
        /// In pixels of the input.
        let box: Box
    }

    /// Returns the rows that score enough, in the output's order.
    private func candidates(_ output: RawTensor, labels: Int) throws -> [Candidate] {
        let (rows, columns, isTransposed) = try axes(output.shape, labels: labels)
        let values = output.doubles()
        func value(_ row: Int, _ column: Int) -> Double {
            values[isTransposed ? column * rows + row : row * columns + column]
        }
        return (0..<rows).compactMap { row in
            let object = layout == .yolov5 ? value(row, 4) : 1
            var (index, best) = (0, -Double.infinity)
            for column in before..<columns {
                let score = value(row, column) * object
                if score > best { (index, best) = (column - before, score) }
            }
            let (x, y, halfWidth, halfHeight) = (value(row, 0), value(row, 1), value(row, 2) / 2, value(row, 3) / 2)
            let box = Box(left: x - halfWidth, top: y - halfHeight, right: x + halfWidth, bottom: y + halfHeight)
            guard best >= score, best.isFinite, box.isFinite else { return nil }
            return Candidate(index: index, score: best, box: box)
        }
    }

    /// The number of values before the scores of the classes.
    private var before: Int { layout == .yolov5 ? 5 : 4 }

    private func axes(_ shape: [Int], labels: Int) throws -> (rows: Int, columns: Int, isTransposed: Bool) {
        if shape.count == 3, shape[0] == 1 {
            // An empty axis contains no boxes: there is no object.
            let smaller = min(shape[1], shape[2]) > 0 ? min(shape[1], shape[2]) : max(shape[1], shape[2])
            let size = labels > 0 ? 4 + labels : smaller
            // Where both axes have that size, the first one counts, as in ultralytics' exports.
            let isTransposed = layout == .yolo && shape[1] == size
            let (rows, columns) = isTransposed ? (shape[2], shape[1]) : (shape[1], shape[2])
            if columns > before, labels == 0 || columns == before + labels { return (rows, columns, isTransposed) }
        }
        let wanted = labels > 0 ? "\(before + labels)" : "\(before) and a score per class"
        throw AnswerError(
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
        func x(_ value: Double) -> Double { back(value, offset: left, scaled: scaledWidth, size: width) }
        func y(_ value: Double) -> Double { back(value, offset: top, scaled: scaledHeight, size: height) }
        return Box(left: x(box.left), top: y(box.top), right: x(box.right), bottom: y(box.bottom))
    }

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

    private func pooled(_ values: [Double], shape: [Int], mask: RawTensor?) throws -> [[Double]] {
        guard shape.count == 3, mask == nil || mask?.shape == Array(shape[..<2]) else {
            let ofMask = mask.map { " and its mask \($0.shape)" } ?? ""
            throw AnswerError(
                "the output is \(shape)\(ofMask): pooling takes [batch, positions, values] and a mask [batch, positions]")
        }
        let (positions, size) = (shape[1], shape[2])
        guard pooling != .cls || positions > 0 else {
            throw AnswerError("the output is \(shape): the pooling 'cls' takes the first position, and there is none")
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
    private func pool(_ rows: [ArraySlice<Double>], size: Int) -> [Double] {
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
