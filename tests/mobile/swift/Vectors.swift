// Writes what Swift makes of every case that tests/mobile/vectors.py wrote, in folders of the same names.
//
// Arguments: the folder with the cases, and the one to write to.

import Foundation

@main
struct Vectors {
    static func main() throws {
        let folders = CommandLine.arguments.dropFirst().map { URL(fileURLWithPath: $0, isDirectory: true) }
        let (cases, results) = (folders[0], folders[1])
        let kinds = [
            ("images", "tensor.bin", tensor), ("turned", "upright.bin", upright), ("answers", "found.json", answers),
            ("wordpiece", "found.json", tokens), ("refused", "found.txt", refusal),
        ]
        for (kind, file, make) in kinds {
            let names = try FileManager.default.contentsOfDirectory(atPath: cases.appendingPathComponent(kind).path)
            for name in names.sorted() {
                let place = "\(kind)/\(name)"
                let made = try make(cases.appendingPathComponent(place, isDirectory: true))
                let folder = results.appendingPathComponent(place, isDirectory: true)
                try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
                try made.write(to: folder.appendingPathComponent(file))
            }
        }
    }
}

private struct Picture: Decodable {
    let width: Int
    let height: Int
    let description: ImageInput
}

private func tensor(_ folder: URL) throws -> Data {
    let picture = try read(Picture.self, in: folder)
    let image = try pixels(in: folder, width: picture.width, height: picture.height)
    try requireSameWaysIn(image)
    return picture.description.tensor(of: image).scalars.withUnsafeBytes { Data($0) }
}

/// Reads RGB, or RGBA where there are so many bytes.
private func pixels(in folder: URL, width: Int, height: Int) throws -> RGBImage {
    let bytes = try [UInt8](Data(contentsOf: folder.appendingPathComponent("pixels.bin")))
    guard bytes.count == width * height * 4 else { return try RGBImage(width: width, height: height, pixels: bytes) }
    return try bytes.withUnsafeBytes {
        try RGBImage(width: width, height: height, bytesPerRow: width * 4, order: .rgba, buffer: $0)
    }
}

private struct TurnedPicture: Decodable {
    let width: Int
    let height: Int
    let orientation: Int
}

private func upright(_ folder: URL) throws -> Data {
    let picture = try read(TurnedPicture.self, in: folder)
    let image = try pixels(in: folder, width: picture.width, height: picture.height)
    return Data(image.upright(exifOrientation: picture.orientation).pixels)
}

/// Reads the picture again out of rows of other formats that are longer than its pixels.
private func requireSameWaysIn(_ image: RGBImage) throws {
    for order in [PixelOrder.rgb, .rgba, .bgra] {
        let bytesPerRow = image.width * order.bytesPerPixel + 5
        var buffer = [UInt8](repeating: 7, count: image.height * bytesPerRow)
        for y in 0..<image.height {
            for x in 0..<image.width {
                let pixel = image.pixels[((y * image.width + x) * 3)...].prefix(3)
                let bytes = (order == .bgra ? pixel.reversed() : Array(pixel)) + (order == .rgb ? [] : [255])
                let start = y * bytesPerRow + x * order.bytesPerPixel
                buffer.replaceSubrange(start..<start + bytes.count, with: bytes)
            }
        }
        let again = try buffer.withUnsafeBytes {
            try RGBImage(width: image.width, height: image.height, bytesPerRow: bytesPerRow, order: order, buffer: $0)
        }
        precondition(again == image, "the ways in differ: \(order)")
    }
}

private struct AnswerCase: Decodable {
    let description: OutputDescription
    let labels: [String]
    let outputs: [GivenTensor]
    let image: Picture?
    let mask: GivenTensor?
}

private struct GivenTensor: Decodable {
    let dtype: ElementType
    let shape: [Int]
    let path: String

    func tensor(in folder: URL) throws -> RawTensor {
        let bytes = try [UInt8](Data(contentsOf: folder.appendingPathComponent(path)))
        return try RawTensor(type: dtype, shape: shape, bytes: bytes)
    }
}

private struct Found: Encodable {
    let index: Int
    let label: String?
    let score: Double
    var box: [Double]?
}

private func answers(_ folder: URL) throws -> Data {
    let given = try read(AnswerCase.self, in: folder)
    let output = try given.outputs[0].tensor(in: folder)
    switch given.description {
    case .raw:
        return try JSONEncoder().encode(output.doubles())
    case .classification(let scores):
        let classes = try scores.classes(of: output, labels: given.labels)
        return try JSONEncoder().encode(classes.map { Found(index: $0.index, label: $0.label, score: $0.score) })
    case .detection(let rows):
        let image = given.image!
        let place = image.description.resize.placed(width: image.width, height: image.height)
        let objects = try rows.detections(of: output, labels: given.labels, place: place)
        return try JSONEncoder().encode(
            objects.map {
                let box = [$0.box.left, $0.box.top, $0.box.right, $0.box.bottom]
                return Found(index: $0.index, label: $0.label, score: $0.score, box: box)
            })
    case .embedding(let pooling):
        let vectors = try pooling.vectors(of: output, mask: try given.mask?.tensor(in: folder))
        let size = vectors.shape[1]
        return try JSONEncoder().encode(
            (0..<vectors.shape[0]).map { Array(vectors.scalars[$0 * size..<($0 + 1) * size]) })
    }
}

/// Returns what is said of a tokenizer, or else of an output, that is not taken.
private func refusal(_ folder: URL) throws -> Data {
    do {
        let tokenizer = folder.appendingPathComponent("tokenizer.json")
        if FileManager.default.fileExists(atPath: tokenizer.path) {
            _ = try WordPiece(Data(contentsOf: tokenizer))
        } else {
            _ = try answers(folder)
        }
    } catch {
        return Data(error.localizedDescription.utf8)
    }
    return Data("it is taken".utf8)
}

private struct TextCase: Decodable {
    struct Text: Decodable {
        let text: String
    }

    let texts: [Text]
    let length: Int
    let pad: Bool
}

private struct FoundTokens: Encodable {
    let input_ids: [Int]
    let attention_mask: [Int]
    let token_type_ids: [Int]
}

private func tokens(_ folder: URL) throws -> Data {
    let given = try read(TextCase.self, in: folder)
    let tokenizer = try WordPiece(Data(contentsOf: folder.appendingPathComponent("tokenizer.json")))
    let found = try given.texts.map { try tokenizer.encode($0.text, length: given.length, pad: given.pad) }
    return try JSONEncoder().encode(
        found.map {
            FoundTokens(
                input_ids: $0.inputIDs, attention_mask: $0.attentionMask, token_type_ids: $0.tokenTypeIDs)
        })
}

private func read<Value: Decodable>(_ type: Value.Type, in folder: URL) throws -> Value {
    try JSONDecoder().decode(type, from: Data(contentsOf: folder.appendingPathComponent("case.json")))
}
