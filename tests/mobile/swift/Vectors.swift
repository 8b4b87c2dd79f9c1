// Writes what Swift makes of every case that tests/mobile/vectors.py wrote, in folders of the same names.
//
// Arguments: the folder with the cases, and the one to write to.

import Foundation

@main
struct Vectors {
    static func main() throws {
        requireSizes()
        try requireScaled()
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
    /// Of pictures that become tensors or that answers are about.
    let description: ImageInput?
    /// Of those that are turned.
    let orientation: Int?

    /// Reads RGB, or RGBA where there are so many bytes.
    func pixels(in folder: URL) throws -> RGBImage {
        let bytes = try [UInt8](Data(contentsOf: folder.appendingPathComponent("pixels.bin")))
        guard bytes.count == width * height * 4 else { return try RGBImage(width: width, height: height, pixels: bytes) }
        return try bytes.withUnsafeBytes {
            try RGBImage(width: width, height: height, bytesPerRow: width * 4, order: .rgba, buffer: $0)
        }
    }
}

private func tensor(_ folder: URL) throws -> Data {
    let picture = try read(Picture.self, in: folder)
    let image = try picture.pixels(in: folder)
    try requireSameWaysIn(image)
    return picture.description!.tensor(of: image).scalars.withUnsafeBytes { Data($0) }
}

private func upright(_ folder: URL) throws -> Data {
    let picture = try read(Picture.self, in: folder)
    return Data(try picture.pixels(in: folder).upright(exifOrientation: picture.orientation!).pixels)
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

/// Sizes whose products no integer holds are refused as others are that do not fit.
private func requireSizes() {
    func refusal(_ make: () throws -> RGBImage) -> String {
        do {
            _ = try make()
            return "it is taken"
        } catch {
            return "\(error)"
        }
    }
    let most = Int.max
    for (width, height) in [(most, 1), (1, most), (most, most), (most / 4 + 1, 1), (1 << 32, 1 << 32)] {
        let larger = "a picture of \(width) x \(height) pixels is larger than any memory"
        let packed = refusal { try RGBImage(width: width, height: height, pixels: []) }
        precondition(packed == larger, packed)
        let rows = refusal {
            try RGBImage(width: width, height: height, bytesPerRow: most, order: .rgba, buffer: .init(start: nil, count: 0))
        }
        precondition(rows == larger, rows)
    }
    for (height, bytesPerRow, fits) in [(1, most, true), (2, most, false), (2, 11, false), (3, 4, true), (most / 4, 4, false)] {
        let rows = [UInt8](repeating: 9, count: 12).withUnsafeBytes { buffer in
            refusal { try RGBImage(width: 1, height: height, bytesPerRow: bytesPerRow, order: .rgba, buffer: buffer) }
        }
        precondition(rows.hasSuffix(fits ? "it is taken" : "do not fit into 12 bytes"), rows)
    }
}

/// Models that scale pictures themselves get none that would take gigabytes.
private func requireScaled() throws {
    let resize = Resize.shortSide(256, crop: 224)
    try resize.placed(width: 4096, height: 1).requireScaled()
    var refusal = "it is taken"
    do {
        try resize.placed(width: 1, height: 4097).requireScaled()
    } catch {
        refusal = "\(error)"
    }
    let wanted = "the picture of 1 x 4097 pixels would become 256 x 1048832 in the model before it is cut"
    precondition(refusal == "\(wanted): cut its ends off first", refusal)
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
        let place = image.description!.resize.placed(width: image.width, height: image.height)
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
