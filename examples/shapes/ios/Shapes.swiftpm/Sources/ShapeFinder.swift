import CoreVideo
import EdgepackShapeDetector
import Foundation

/// What a frame shows.
struct Found: Sendable {
    /// Best first, in pixels of the upright picture.
    var shapes: [ShapeDetector.Detection]
    /// Of the upright picture.
    var width: Int
    /// The variant of the model that found them.
    var variant: String

    /// What is found in words, for people who do not see the boxes: "2 circles, 1 square".
    var words: String {
        let counts = Dictionary(grouping: shapes) { $0.label ?? "?" }.mapValues(\.count)
        let parts = counts.sorted { $0.key < $1.key }.map { "\($0.value) \($0.key)\($0.value > 1 ? "s" : "")" }
        return parts.isEmpty ? "no shapes" : parts.joined(separator: ", ")
    }
}

/// Finds shapes in a camera's frames. Any thread may change the score.
final class ShapeFinder: @unchecked Sendable {
    private let model: ShapeDetector
    private let lock = NSLock()
    private var least = 0.4

    /// Opens the model, on another thread than the caller's.
    static func open(from source: ShapeDetector.ModelSource = .resources) async throws -> ShapeFinder {
        ShapeFinder(try await ShapeDetector.open(from: source))
    }

    private init(_ model: ShapeDetector) { self.model = model }

    /// The least score of a shape.
    var score: Double {
        get { lock.withLock { least } }
        set { lock.withLock { least = newValue } }
    }

    /// Finds the shapes in a frame of an iPhone that is held upright, on the caller's thread: the camera lies on its side.
    func find(in frame: CVPixelBuffer) throws -> Found {
        let outputs = try model.predictSync(frame, orientation: .right, options: .init(score: score))
        return Found(shapes: try outputs.answers.boxes, width: CVPixelBufferGetHeight(frame), variant: model.variant)
    }
}
