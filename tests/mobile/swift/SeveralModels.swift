// An app with three models, whose code each has or all share. It prints what they answer, as JSON.

import EdgepackDetector
import EdgepackDynamicBatch
import EdgepackText
import Foundation

let pixels = (0..<37 * 23 * 3).map { UInt8($0 * 7 % 251) }
let detector = try await Detector.open()
let classifier = try await DynamicBatch.open()
let text = try await Text.open()
let objects = try await detector.predict(Detector.RGBImage(width: 37, height: 23, pixels: pixels)).answers
let classes = try await classifier.predict(DynamicBatch.RGBImage(width: 37, height: 23, pixels: pixels))
let vectors = try await text.predict("Hello unaffable world!").answers
let said: [String: Any] = [
    "tests": try [
        (detector.selfTest().passed, detector.variant), (classifier.selfTest().passed, classifier.variant),
        (text.selfTest().passed, text.variant),
    ].map { [$0, $1] },
    "objects": try objects.objects.map {
        [$0.label!, $0.score, $0.box.left, $0.box.top, $0.box.right, $0.box.bottom] as [Any]
    },
    "classes": try classes.answers.scores.map { [$0.label!, $0.score] as [Any] },
    "vector": try vectors.hidden.scalars,
]
print(String(decoding: try JSONSerialization.data(withJSONObject: said, options: .sortedKeys), as: UTF8.self))
