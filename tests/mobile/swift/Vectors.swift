// Writes what Swift makes of every case that tests/mobile/vectors.py wrote, in folders of the same names.
//
// Arguments: the folder with the cases, and the one to write to.

import Foundation

@main
struct Vectors {
    static func main() throws {
        requireFrames()
        try requireScaled()
        try requireClasses()
        let folders = CommandLine.arguments.dropFirst().map { URL(fileURLWithPath: $0, isDirectory: true) }
        let (cases, results) = (folders[0], folders[1])
        let kinds = [
            ("images", "tensor.bin", tensor), ("turned", "upright.bin", upright), ("frames", "rgb.bin", frameRGB),
            ("frames", "tensor.bin", frameTensor), ("frames", "prescaled.bin", framePrescaled),
            ("answers", "found.json", answers), ("wordpiece", "found.json", tokens), ("refused", "found.txt", refusal),
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

private struct Given: Decodable {
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
            let plane = Frame.Plane(bytes: $0, rowStride: width * 4, pixelStride: 4)
            return try RGBImage(Picture(Frame(format: .rgba, width: width, height: height, planes: [plane])))
        }
    }
}

private func tensor(_ folder: URL) throws -> Data {
    let picture = try read(Given.self, in: folder)
    let image = try Picture(picture.pixels(in: folder))
    return try image.withFrame { picture.description!.tensor(of: $0) }.scalars.withUnsafeBytes { Data($0) }
}

/// Returns the picture upright, or what is said of an orientation that is none.
private func upright(_ folder: URL) throws -> Data {
    let picture = try read(Given.self, in: folder)
    return try picture.pixels(in: folder).pixels.withUnsafeBytes {
        let plane = Frame.Plane(bytes: $0, rowStride: picture.width * 3, pixelStride: 3)
        do {
            let frame = try Frame(
                format: .rgb, width: picture.width, height: picture.height, planes: [plane],
                orientation: picture.orientation!)
            return Data(try RGBImage(Picture(frame)).pixels)
        } catch let error as ImageError where error.reason == .orientation {
            return Data(error.description.utf8)
        }
    }
}

private struct GivenFrame: Decodable {
    struct GivenPlane: Decodable {
        let path: String
        let row_stride: Int
        let pixel_stride: Int
        let offset: Int
    }

    let format: String
    let width: Int
    let height: Int
    let planes: [GivenPlane]
    let rotation: Int
    let matrix: String
    let range: String
    let description: ImageInput

    func withFrame(in folder: URL, _ use: (Frame) throws -> Data) throws -> Data {
        // As Data keeps memory where it is only as long as a closure lasts, the planes' memory is allocated here.
        let buffers = try planes.map { plane in
            let data = try Data(contentsOf: folder.appendingPathComponent(plane.path)).dropFirst(plane.offset)
            let buffer = UnsafeMutableRawBufferPointer.allocate(byteCount: data.count, alignment: 1)
            buffer.copyBytes(from: data)
            return buffer
        }
        defer { for buffer in buffers { buffer.deallocate() } }
        let formats: [String: Frame.Format] = ["yuv420": .yuv420, "rgb": .rgb, "rgba": .rgba, "bgra": .bgra]
        let frame = try Frame(
            format: formats[format]!, width: width, height: height,
            planes: zip(planes, buffers).map { plane, buffer in
                Frame.Plane(bytes: .init(buffer), rowStride: plane.row_stride, pixelStride: plane.pixel_stride)
            },
            orientation: [0: 1, 90: 6, 180: 3, 270: 8][rotation]!, matrix: matrix == "bt709" ? .bt709 : .bt601,
            range: range == "video" ? .video : .full)
        return try use(frame)
    }
}

private func frameRGB(_ folder: URL) throws -> Data {
    try read(GivenFrame.self, in: folder).withFrame(in: folder) { Data(try RGBImage(Picture($0)).pixels) }
}

private func frameTensor(_ folder: URL) throws -> Data {
    let given = try read(GivenFrame.self, in: folder)
    return try given.withFrame(in: folder) { given.description.tensor(of: $0).scalars.withUnsafeBytes { Data($0) } }
}

private func framePrescaled(_ folder: URL) throws -> Data {
    let given = try read(GivenFrame.self, in: folder)
    return try given.withFrame(in: folder) { frame in
        let maker = TensorMaker(given.description, width: frame.uprightWidth, height: frame.uprightHeight, prescale: true)
        let values = [Float](unsafeUninitializedCapacity: maker.shape.reduce(1, *)) { values, initialized in
            // A second picture finds what the first has left.
            for _ in 0..<2 { maker.fill(values.baseAddress!, from: frame) }
            initialized = values.count
        }
        return values.withUnsafeBytes { Data($0) }
    }
}

/// Frames that do not hold what they say are refused, each for its reason; so are sizes whose products no integer holds.
private func requireFrames() {
    let memory = [UInt8](repeating: 9, count: 64)
    func plane(_ count: Int, _ rowStride: Int, _ pixelStride: Int = 1) -> Frame.Plane {
        // The memory is only measured, never read.
        Frame.Plane(
            bytes: memory.withUnsafeBytes { .init(rebasing: $0.prefix(count)) }, rowStride: rowStride,
            pixelStride: pixelStride)
    }
    func reason(
        _ format: Frame.Format, _ width: Int, _ height: Int, _ planes: [Frame.Plane], _ orientation: Int = 1
    ) -> ImageError.Reason? {
        do {
            _ = try Frame(format: format, width: width, height: height, planes: planes, orientation: orientation)
            return nil
        } catch let error as ImageError {
            return error.reason
        } catch {
            preconditionFailure("\(error)")
        }
    }
    let most = Int.max
    let yuv = [plane(15, 5), plane(6, 3), plane(6, 3)]
    let cases: [(ImageError.Reason?, ImageError.Reason?)] = [
        (reason(.yuv420, 5, 3, yuv), nil),
        (reason(.yuv420, 5, 3, yuv, 9), .orientation),
        (reason(.yuv420, 5, 3, yuv, 0), .orientation),
        (reason(.yuv420, 5, 3, [yuv[0], yuv[1]]), .planes),
        (reason(.rgb, 1, 1, yuv), .planes),
        (reason(.yuv420, 5, 3, [plane(14, 5), yuv[1], yuv[2]]), .memory),
        (reason(.yuv420, 5, 3, [yuv[0], yuv[1], plane(5, 3)]), .memory),
        (reason(.yuv420, 5, 3, [yuv[0], plane(9, 2), yuv[2]]), .stride),
        (reason(.yuv420, 5, 3, [yuv[0], plane(9, 9, 0), yuv[2]]), .stride),
        (reason(.rgba, 2, 2, [plane(18, 10, 4)]), nil),
        (reason(.rgba, 2, 2, [plane(17, 10, 4)]), .memory),
        (reason(.rgba, 2, 2, [plane(18, 7, 4)]), .stride),
        (reason(.bgra, 2, 2, [plane(18, 10, 3)]), .stride),
        (reason(.rgb, 0, 2, [plane(18, 10, 3)]), .size),
        (reason(.rgb, 2, -1, [plane(18, 10, 3)]), .size),
        (reason(.rgb, most, 1, [plane(18, 10, 3)]), .size),
        (reason(.rgb, 1 << 32, 1 << 32, [plane(18, 10, 3)]), .size),
        (reason(.rgb, 2, 2, [plane(18, most, 3)]), .memory),
        (reason(.rgb, 1, 1, [plane(3, most, most)]), nil),
        (reason(.rgb, 2, 1, [plane(18, most, most)]), .memory),
        (reason(.rgb, 3, 1, [plane(18, 10, most)]), .stride),
    ]
    for (number, (found, wanted)) in cases.enumerated() {
        precondition(found == wanted, "frame \(number): \(String(describing: found))")
    }
    do {
        _ = try RGBImage(width: 2, height: 2, pixels: [])
        preconditionFailure("a picture without its pixels is taken")
    } catch {
        precondition("\(error)" == "2 x 2 pixels of RGB are 12 bytes, 0 were given", "\(error)")
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

/// A mask has the classes 0 to 254.
private func requireClasses() throws {
    let pixels = try JSONDecoder().decode(PixelClasses.self, from: Data(#"{"axis": 1, "threshold": 0.5}"#.utf8))
    let place = Resize.stretch(width: 1, height: 1).placed(width: 1, height: 1)
    for found: Int16 in [-1, 0, 254, 255] {
        let output = try RawTensor(type: .int16, shape: [1, 1, 1], bytes: withUnsafeBytes(of: found) { Array($0) })
        let mask = try? pixels.mask(of: output, labels: [], place: place)
        precondition(mask?.classes == ((0...254).contains(found) ? [UInt8(found)] : nil), "class \(found)")
    }
}

private struct AnswerCase: Decodable {
    let description: OutputDescription
    let labels: [String]
    let outputs: [GivenTensor]
    let image: Given?
    let mask: GivenTensor?
    let options: GivenOptions?
    let priors: String?

    /// Where the picture lies in the input; there is one.
    var place: ImagePlacement { image!.description!.resize.placed(width: image!.width, height: image!.height) }
}

private struct GivenOptions: Decodable {
    let score: Double?
    let iou: Double?
    let most: Int?
    let top: Int?
    let allow: Set<String>?

    var options: AnswerOptions { AnswerOptions(score: score, iou: iou, most: most, top: top, allow: allow) }
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
    var keypoints: [FoundPoint]?
}

private struct FoundPoint: Encodable {
    let x: Double
    let y: Double
    let score: Double?
}

private struct FoundDecision: Encodable {
    let score: Double
    let positive: Bool
}

private struct FoundText: Encodable {
    let text: String
    let score: Double
}

/// A mask as runs of equal classes, each with its length.
private struct FoundMask: Encodable {
    let width: Int
    let height: Int
    let runs: [[Int]]

    init(_ mask: Mask) {
        (width, height) = (mask.width, mask.height)
        var runs: [[Int]] = []
        for found in mask.classes.map({ Int($0) }) {
            if runs.last?[0] == found { runs[runs.count - 1][1] += 1 } else { runs.append([found, 1]) }
        }
        self.runs = runs
    }
}

private func answers(_ folder: URL) throws -> Data {
    let given = try read(AnswerCase.self, in: folder)
    let outputs = try given.outputs.map { try $0.tensor(in: folder) }
    let output = outputs[0]
    let options = given.options?.options ?? AnswerOptions()
    try options.requireRanges()
    switch given.description {
    case .raw:
        return try JSONEncoder().encode(Array(output.doubles()))
    case .mask(let pixels):
        return try JSONEncoder().encode(FoundMask(pixels.mask(of: output, labels: given.labels, place: given.place)))
    case .probability(let probabilities):
        let decisions = probabilities.decisions(of: output)
        return try JSONEncoder().encode(decisions.map { FoundDecision(score: $0.score, positive: $0.positive) })
    case .text(let steps):
        let found = try steps.text(of: output, alphabet: given.labels)
        return try JSONEncoder().encode(FoundText(text: found.text, score: found.score))
    case .classification(let scores):
        let classes = try scores.classes(of: output, labels: given.labels, options: options)
        return try JSONEncoder().encode(classes.map { Found(index: $0.index, label: $0.label, score: $0.score) })
    case .detection(let rows):
        let objects = try rows.detections(
            of: outputs, labels: given.labels, place: given.place, options: options,
            priors: try given.priors.map(readPriors) ?? [])
        return try JSONEncoder().encode(
            objects.map {
                let box = [$0.box.left, $0.box.top, $0.box.right, $0.box.bottom]
                let points = $0.keypoints.map { FoundPoint(x: $0.x, y: $0.y, score: $0.score) }
                return Found(
                    index: $0.index, label: $0.label, score: $0.score, box: box, keypoints: points.isEmpty ? nil : points)
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
