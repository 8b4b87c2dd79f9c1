// Times what makes an input of a frame, and the model's run on it, in turn; prints the seconds of each round as JSON.
//
// Compiled into the bundle's own module. Arguments: the bundle, a folder for caches, the number of rounds, and
// FORMAT:WIDTH:HEIGHT:ORIENTATION for each frame.

import Foundation

@main
struct Preprocessing {
    static func main() throws {
        let arguments = CommandLine.arguments
        let bundle = try ModelBundle(files: .folder(URL(fileURLWithPath: arguments[1])))
        let cache = URL(fileURLWithPath: arguments[2])
        let model = try Opener(bundle: bundle, runtime: OnnxRuntime(), device: .current, cache: cache).open()
        let spec = bundle.manifest.inputs[0]
        var found: [String: [[Double]]] = [:]
        for name in arguments.dropFirst(4) {
            let frame = try frame(name)
            let maker = TensorMaker(try model.image(spec.name), width: frame.uprightWidth, height: frame.uprightHeight)
            let memory = Memory(count: maker.shape.reduce(4, *))
            let tensor = RawTensor(unchecked: memory, type: .float32, shape: maker.shape)
            let values = memory.bytes.bindMemory(to: Float.self).baseAddress!
            func make() { maker.fill(values, from: frame) }
            func run() throws { _ = try model.run([spec.name: tensor]) }
            make()
            try run()
            found[name] = try (0..<Int(arguments[3])!).map { _ in [try seconds(of: make), try seconds(of: run)] }
        }
        print(String(decoding: try JSONEncoder().encode(found), as: UTF8.self))
    }

    static func seconds(of work: () throws -> Void) rethrows -> Double {
        let began = DispatchTime.now().uptimeNanoseconds
        try work()
        return Double(DispatchTime.now().uptimeNanoseconds - began) / 1e9
    }

    static func frame(_ name: String) throws -> Frame {
        let words = name.split(separator: ":")
        let (width, height) = (Int(words[1])!, Int(words[2])!)
        func plane(_ columns: Int, _ rows: Int, _ size: Int) -> Frame.Plane {
            let bytes = UnsafeMutableRawBufferPointer.allocate(byteCount: columns * rows * size, alignment: 1)
            // Smooth, with some noise, as photographs are.
            var noise: UInt32 = 1
            for at in 0..<bytes.count {
                noise = noise &* 1_664_525 &+ 1_013_904_223
                bytes[at] = UInt8(at % (columns * size) * 200 / (columns * size)) + UInt8(noise >> 28)
            }
            // Opaque, as a camera's are.
            if size == 4 { for at in stride(from: 3, to: bytes.count, by: 4) { bytes[at] = 255 } }
            return Frame.Plane(bytes: .init(bytes), rowStride: columns * size, pixelStride: size)
        }
        let isYUV = words[0] == "yuv420"
        let (columns, rows) = ((width + 1) / 2, (height + 1) / 2)
        return try Frame(
            format: isYUV ? .yuv420 : .bgra, width: width, height: height,
            planes: isYUV
                ? [plane(width, height, 1), plane(columns, rows, 2), plane(columns, rows, 2)] : [plane(width, height, 4)],
            orientation: Int(words[3])!)
    }
}
