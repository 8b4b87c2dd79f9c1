// Runs a predictor on a camera's frames of several sizes; swift_models.py puts it behind Golden.swift. MODEL stands for the
// model's type, SIZES for the frames' widths and heights.

let model = try await MODEL.open(from: .folder(bundle))
let counted = unsafeBitCast(dlsym(nil, "counted_bytes"), to: (@convention(c) () -> UInt).self)

/// Makes a frame of 4:2:0, turned, with values that differ. Its memory stays.
func frame(width: Int, height: Int) throws -> Frame {
    func plane(_ columns: Int, _ rows: Int, _ step: Int) -> Frame.Plane {
        let bytes = UnsafeMutableRawBufferPointer.allocate(byteCount: columns * rows, alignment: 1)
        for index in 0..<bytes.count { bytes[index] = UInt8(truncatingIfNeeded: index &* step &>> 3) }
        return Frame.Plane(bytes: UnsafeRawBufferPointer(bytes), rowStride: columns, pixelStride: 1)
    }
    let (columns, rows) = ((width + 1) / 2, (height + 1) / 2)
    let planes = [plane(width, height, 7), plane(columns, rows, 5), plane(columns, rows, 3)]
    return try Frame(format: .yuv420, width: width, height: height, planes: planes, orientation: 6)
}

/// Returns the bytes that work asks for each time, once it has been done.
func bytes(of work: () throws -> Void) rethrows -> Int {
    for _ in 0..<2 { try work() }
    let before = counted()
    for _ in 0..<3 { try work() }
    return Int(counted() - before) / 3
}

let predictor = model.predictor()
do {
    _ = try predictor.outputs()
} catch {
    said["early"] = "\(error)"
}
var found: [[Int]] = []
let sizes = SIZES
for (width, height) in sizes {
    let frame = try frame(width: width, height: height)
    let own = try bytes { _ = try predictor.predict(frame) }
    // What a frame would take that is copied: the count has to show it.
    found.append([own, try bytes { _ = try RGBImage(Picture(frame)) }])
    let (outputs, wanted) = (try predictor.outputs(), try model.predictSync(frame))
    precondition(outputs == wanted, "the predictor gives other outputs for \(width) x \(height)")
}
let first = try frame(width: sizes[0].0, height: sizes[0].1)
_ = try predictor.predict(first)
let (again, wanted) = (try predictor.outputs(), try model.predictSync(first))
precondition(again == wanted, "after larger frames it gives other outputs")
said["frames"] = found
