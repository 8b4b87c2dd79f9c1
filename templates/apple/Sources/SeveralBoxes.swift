// Detections whose boxes and scores are outputs of their own: the layout `ssd`.

import Foundation

/// Returns the boxes in a file's text, one per line: centre x and y, width and height, all in one row.
///
/// - Throws: ``AnswerError`` if a line is not a box.
func readPriors(_ text: String) throws -> [Double] {
    let number = #"[ \t]*-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?[ \t]*"#
    let pattern = try NSRegularExpression(pattern: #"\A\#(number),\#(number),\#(number),\#(number)\z"#)
    return try readLabels(text).enumerated().flatMap { index, line in
        guard pattern.firstMatch(in: line, range: NSRange(line.startIndex..., in: line)) != nil else {
            throw AnswerError(.shape, "line \(index + 1) is '\(line)', expected four numbers: cx,cy,w,h")
        }
        return line.split(separator: ",").compactMap { Double($0.trimmingCharacters(in: .whitespaces)) }
    }
}

/// How boxes and their scores, in an output each, become rows.
struct SeveralBoxes: Decodable, Sendable, Equatable {
    enum Form: String, Decodable, Sendable {
        /// Left, top, right, bottom.
        case corners
        /// Top, left, bottom, right.
        case rowsFirst = "corners_yx"
        /// Centre, width, height.
        case centre
    }

    /// The output with the scores.
    let scores: String
    /// The output with the classes, if there is one.
    let classes: String?
    /// Nil where boxes are relative to priors.
    let box: Form?
    /// Whether boxes are in parts of the input's sides.
    let normalized: Bool
    /// Whether class 0 is no object.
    let background: Bool
    let activation: ClassScores.Activation
    /// The file with the priors, relative to the bundle's files.
    let priors: String?
    /// The factors of offsets of the centre, and of the logarithms of the sizes.
    let variances: [Double]?

    /// The outputs that are read beside the described one.
    var readToo: [String] { [scores] + (classes.map { [$0] } ?? []) }

    /// Returns the objects of boxes that have a class and are wanted, in the output's order.
    ///
    /// - Parameters:
    ///   - outputs: Boxes `(1, N, 4)` and scores `(1, N, C)`; or boxes, scores `(1, N)` and classes `(1, N)`.
    ///   - priors: What ``readPriors(_:)`` gave of the file.
    /// - Throws: ``AnswerError`` if the shapes are others, or there are more or less labels or priors.
    func candidates(
        _ outputs: [RawTensor], labels: Int, place: ImagePlacement, priors: [Double],
        isWanted: (DetectedRows.Candidate) -> Bool
    ) throws -> [DetectedRows.Candidate] {
        try requireShapes(outputs.map(\.shape))
        let (count, width) = (outputs[0].shape[1], outputs[1].shape.count == 3 ? outputs[1].shape[2] : 1)
        try requireCounts(boxes: count, scores: width, labels: labels, priors: priors.count / 4)
        let values = outputs.map { $0.doubles() }
        let first = background ? 1 : 0
        return (0..<count).compactMap { row in
            let own = values[1][row * width..<(row + 1) * width]
            var index = 0
            if classes == nil {
                var highest = -Double.infinity
                // By the values: an activation keeps their order, but may round two of them to the same score.
                for (place, value) in own.dropFirst(first).enumerated() where value > highest {
                    (index, highest) = (place, value)
                }
            } else {
                guard let named = Int(exactly: values[2][row]), named >= first else { return nil }
                index = named - first
                guard index < (labels > 0 ? labels : 1 << 31) else { return nil }
            }
            let score = activated(own, at: classes == nil ? first + index : 0)
            let box = box(row, of: values[0], place: place, priors: priors)
            let found = DetectedRows.Candidate(index: index, score: score, box: box)
            return isWanted(found) ? found : nil
        }
    }

    private func requireShapes(_ shapes: [[Int]]) throws {
        let (boxes, scores) = (shapes[0], shapes[1])
        let isPicture = boxes.count == 3 && boxes[0] == 1 && boxes[2] == 4
        let isScored = scores.count == (classes == nil ? 3 : 2) && scores.prefix(2).elementsEqual(boxes.prefix(2))
        if isPicture, isScored, classes == nil || shapes[2] == Array(boxes.prefix(2)) { return }
        let ofClasses = classes == nil ? "" : ", its classes \(shapes[2])"
        let wanted = classes == nil ? "scores [1, N, classes]" : "scores [1, N] and classes [1, N]"
        throw AnswerError(
            .shape,
            "the output is \(boxes), its scores \(scores)\(ofClasses): the layout 'ssd' of a detection has one picture,"
                + " with boxes [1, N, 4], \(wanted)")
    }

    private func requireCounts(boxes: Int, scores: Int, labels: Int, priors: Int) throws {
        guard variances == nil || priors == boxes else {
            throw AnswerError(.shape, "the output has \(boxes) boxes, the priors are \(priors)")
        }
        let first = background ? 1 : 0
        if classes != nil || (scores > first && (labels == 0 || scores - first == labels)) { return }
        let wanted = labels > 0 ? "\(labels + first)" : "\(1 + first) or more"
        let withBackground = background ? " with the background" : ""
        throw AnswerError(.shape, "the scores have \(scores) classes, expected \(wanted)\(withBackground)")
    }

    /// Returns one of a row's values after the activation.
    private func activated(_ row: Slice<Doubles>, at index: Int) -> Double {
        let value = row[row.startIndex + index]
        switch activation {
        case .none: return value
        case .sigmoid: return 1 / (1 + exp(-value))
        case .softmax:
            let highest = row.max() ?? 0
            return exp(value - highest) / row.reduce(0) { $0 + exp($1 - highest) }
        }
    }

    /// Returns a box in pixels of the input.
    private func box(_ row: Int, of values: Doubles, place: ImagePlacement, priors: [Double]) -> Box {
        let width = normalized ? Double(place.inputWidth) : 1
        let height = normalized ? Double(place.inputHeight) : 1
        var (a, b, c, d) = (values[4 * row], values[4 * row + 1], values[4 * row + 2], values[4 * row + 3])
        if let variances {
            // Source: biubug6/Pytorch_Retinaface, utils/box_utils.py, decode.
            let (x, y, w, h) = (priors[4 * row], priors[4 * row + 1], priors[4 * row + 2], priors[4 * row + 3])
            (a, b) = (x + variances[0] * a * w, y + variances[0] * b * h)
            (c, d) = (w * exp(variances[1] * c), h * exp(variances[1] * d))
        }
        if box == .rowsFirst { (a, b, c, d) = (b, a, d, c) }
        (a, b, c, d) = (a * width, b * height, c * width, d * height)
        if box == .corners || box == .rowsFirst { return Box(left: a, top: b, right: c, bottom: d) }
        let (halfWidth, halfHeight) = (c / 2, d / 2)
        return Box(left: a - halfWidth, top: b - halfHeight, right: a + halfWidth, bottom: b + halfHeight)
    }
}
