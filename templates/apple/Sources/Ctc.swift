// Texts that models read which were trained with CTC: the kind `text`.

import Foundation

/// A text that the model reads.
public struct Transcription: Sendable, Equatable {
    /// Its symbols, one after the other.
    public let text: String
    /// The mean of the scores of the steps that symbols were read in; 0 where there are none.
    public let score: Double

    /// Makes a text, for an app's tests.
    public init(text: String, score: Double) {
        self.text = text
        self.score = score
    }
}

/// How scores of symbols in steps become a text.
struct SymbolSteps: Decodable, Sendable, Equatable {
    /// The file with the symbols, one per line, without the blank.
    let labels: String
    /// The class that stands for no symbol; -1 for the last.
    let blank: Int
    /// Where scores of classes lie: -1 or 1.
    let axis: Int
    let activation: ClassScores.Activation

    /// Returns the text that the best class of each step gives.
    ///
    /// The class of a step is the one with the highest value, of equal ones the first, never a NaN. Steps of the blank's class
    /// are no symbol, and neither are those of the class of the step before.
    ///
    /// - Parameters:
    ///   - output: `(1, T, C)` or `(T, 1, C)`, or with `axis` 1 `(1, C, T)`: values of C classes in T steps.
    ///   - alphabet: The symbol of each class, without the blank.
    /// - Throws: ``AnswerError`` if the output has another shape, or the alphabet another size.
    func text(of output: RawTensor, alphabet: [String]) throws -> Transcription {
        let (steps, classes) = try sizes(output.shape)
        guard (-1..<classes).contains(blank) else {
            throw AnswerError(.shape, "the output has \(classes) classes: the blank cannot be \(blank)")
        }
        guard alphabet.count == classes - 1 else {
            throw AnswerError(
                .shape, "the output has \(classes) classes: there are \(alphabet.count) symbols and the blank")
        }
        let values = output.doubles()
        let blank = blank < 0 ? classes - 1 : blank
        var (text, kept, total, before) = ("", 0, 0.0, blank)
        for step in 0..<steps {
            let row = (0..<classes).map { values[axis == -1 ? step * classes + $0 : $0 * steps + step] }
            // Where no value is more than minus infinity, there is no symbol.
            var (found, highest) = (blank, -Double.infinity)
            for (index, value) in row.enumerated() where value > highest { (found, highest) = (index, value) }
            if found != blank, found != before {
                text += alphabet[found > blank ? found - 1 : found]
                total += score(found, of: row)
                kept += 1
            }
            before = found
        }
        return Transcription(text: text, score: kept > 0 ? total / Double(kept) : 0)
    }

    private func sizes(_ shape: [Int]) throws -> (steps: Int, classes: Int) {
        let isLast = axis == -1
        if shape.count == 3, shape[0] == 1 || (isLast && shape[1] == 1) {
            let (steps, classes) = isLast ? (shape[0] == 1 ? shape[1] : shape[0], shape[2]) : (shape[2], shape[1])
            if classes > 1 { return (steps, classes) }
        }
        let wanted = isLast ? "[1, T, C] or [T, 1, C]" : "[1, C, T]"
        throw AnswerError(
            .shape, "the output is \(shape): a text has the values of two or more classes in each step, \(wanted)")
    }

    private func score(_ index: Int, of row: [Double]) -> Double {
        guard activation == .softmax else { return row[index] }
        let highest = row.max() ?? 0
        return exp(row[index] - highest) / row.reduce(0) { $0 + exp($1 - highest) }
    }
}
