// Points of objects, such as joints, at the end of each row of a detection.

import Foundation

/// One point of an object, in pixels of the upright picture, and within it.
public struct Keypoint: Sendable, Equatable {
    /// From the picture's left edge.
    public let x: Double
    /// From the picture's upper edge.
    public let y: Double
    /// `nil` where the model gives none.
    public let score: Double?

    /// Makes a point, for an app's tests.
    public init(x: Double, y: Double, score: Double?) {
        self.x = x
        self.y = y
        self.score = score
    }
}

/// How keypoints lie in a row.
struct KeypointShape: Decodable, Sendable, Equatable {
    /// How many there are; nil where there are none.
    let keypoints: Int?
    /// 3 for x, y and a score, or 2.
    let values: Int?

    private enum CodingKeys: String, CodingKey {
        case keypoints
        case values = "keypoint_values"
    }

    /// How many numbers of a row they are.
    var size: Int { (keypoints ?? 0) * (values ?? 0) }

    /// Returns the points whose numbers are in pixels of the input.
    func points(_ numbers: [Double], in place: ImagePlacement) -> [Keypoint] {
        (0..<(keypoints ?? 0)).map {
            let at = $0 * (values ?? 0)
            return Keypoint(
                x: place.xInPicture(numbers[at]), y: place.yInPicture(numbers[at + 1]),
                score: values == 3 ? numbers[at + 2] : nil)
        }
    }
}
