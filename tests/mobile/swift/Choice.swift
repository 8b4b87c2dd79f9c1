// Opens a bundle with a runtime that is none, and says which variant was taken and why the others were not.
//
// Compiled into the bundle's own module. Arguments: the bundle, a file with cases, a folder for caches. Prints an array with an
// object for each case.

import Foundation

@main
struct Choice {
    @MainActor
    static func main() async throws {
        checkEnd()
        checkHalf()
        try await checkThread()
        let arguments = CommandLine.arguments
        let bundle = try ModelBundle(files: .folder(URL(fileURLWithPath: arguments[1])))
        try checkGoldens(bundle, scratch: URL(fileURLWithPath: arguments[3]))
        try checkTurns(bundle, cache: URL(fileURLWithPath: arguments[3]))
        try checkVerdicts(bundle, cache: URL(fileURLWithPath: arguments[3]).appendingPathComponent("verdicts"))
        checkHashes()
        try checkLabels(bundle)
        let cases = try JSONDecoder().decode([Case].self, from: Data(contentsOf: URL(fileURLWithPath: arguments[2])))
        let results = cases.map { found(bundle, $0, cache: URL(fileURLWithPath: arguments[3])) }
        print(String(decoding: try JSONEncoder().encode(results), as: UTF8.self))
    }

    /// What takes long leaves the main thread alone.
    @MainActor
    static func checkThread() async throws {
        // Linux has another thread work for the main queue once the main one waits.
        nonisolated(unsafe) let key = DispatchSpecificKey<Bool>()
        DispatchQueue.main.setSpecific(key: key, value: true)
        let isMain = try await runInBackground { DispatchQueue.getSpecific(key: key) ?? false }
        precondition(!isMain, "the work was done on the main thread")
    }

    /// A session ends elsewhere if the main thread lets go of it. Before the first await this is the main thread.
    static func checkEnd() {
        let places = Log()
        let done = DispatchSemaphore(value: 0)
        precondition(Thread.isMainThread)
        runOffMainThread {
            places.lines.append(Thread.isMainThread ? "main" : "other")
            done.signal()
        }
        done.wait()
        precondition(places.lines == ["other"], "a session ended on the main thread")
    }

    /// Compares every float16, and the floats around it, with what the processor makes of them.
    static func checkHalf() {
        for bits in UInt16.min...UInt16.max {
            let value = Float(Float16(bitPattern: bits))
            let made = Half.float(bits)
            precondition(made == value && made.sign == value.sign || made.isNaN && value.isNaN, "\(bits)")
            guard value.isFinite else { continue }
            let next = Float(Float16(bitPattern: bits).nextUp)
            for each in [value, value.nextUp, value.nextDown, (value + next) / 2, ((value + next) / 2).nextUp] {
                precondition(Half.bits(each) == Float16(each).bitPattern, "\(each)")
            }
        }
        precondition(Half.float(Half.bits(.nan)).isNaN)
    }

    /// Nothing to compare with is an error, not equal to it.
    static func checkGoldens(_ bundle: ModelBundle, scratch: URL) throws {
        do {
            _ = try bundle.goldenOutputs(0, of: "other")
            preconditionFailure("no golden outputs were taken as some")
        } catch {
            precondition("\(error)".hasSuffix("manifest.json names no golden outputs of 'other'"), "\(error)")
        }
        let some = RawTensor(unchecked: [UInt8](0..<10), type: .uint8, shape: [2, 5]).every(3)
        precondition(some == RawTensor(unchecked: [0, 3, 6, 9], type: .uint8, shape: [4]), "\(some)")
        let file = try bundle.files.data("manifest.json")
        var manifest = try JSONSerialization.jsonObject(with: file) as! [String: Any]
        manifest["goldens"] = [Any]()
        let folder = scratch.appendingPathComponent("without goldens")
        try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
        try JSONSerialization.data(withJSONObject: manifest).write(to: folder.appendingPathComponent("manifest.json"))
        do {
            _ = try ModelBundle(files: .folder(folder))
            preconditionFailure("a bundle without golden samples was taken")
        } catch {
            precondition("\(error)".contains("manifest.json names no golden sample"), "\(error)")
        }
    }

    /// Opens that begin at once take turns: they would write into one cache folder.
    static func checkTurns(_ bundle: ModelBundle, cache: URL) throws {
        let runtime = CountingRuntime(bundle: bundle)
        let device = DeviceFacts(system: "iOS", model: "phone", cpuFlags: [], isX86: false, isSimulator: false)
        let opener = Opener(bundle: bundle, runtime: runtime, device: device, cache: cache)
        DispatchQueue.concurrentPerform(iterations: 4) { _ in _ = try! opener.open(only: "cpu-plain") }
        precondition(runtime.log.lines == Array(repeating: "1", count: 4), "\(runtime.log.lines) sessions at once")
    }

    /// A start opens the variant that worked before without proving it, unless something is another.
    static func checkVerdicts(_ bundle: ModelBundle, cache: URL) throws {
        let works = Case(faults: ["all.onnx": .init(created: ["no", "no"]), "share.onnx": .init(assigned: Case.taken)])
        let unproven = Case(faults: ["share.onnx": .init(run: "broken")])
        let unloaded = Case(faults: ["share.onnx": .init(created: ["no", "no"])])
        func opened(_ given: Case, system: String = "iOS 18.0", version: String = "1.30.0") throws -> String {
            let runtime = ReplayedRuntime(bundle: bundle, given: given, log: Log(), version: version)
            let device = DeviceFacts(system: system, model: "phone", cpuFlags: ["asimddp"], isX86: false, isSimulator: false)
            let model = try Opener(bundle: bundle, runtime: runtime, device: device, cache: cache).open()
            return ([model.variant.id] + model.passedOver.map { "\($0.variant): \($0.reason)" }).joined(separator: "; ")
        }
        let first = "coreml-share; coreml-all: the session cannot be created: no"
        let other = "coreml-all"
        for (number, (found, wanted)) in [
            (try opened(works), first),
            (try opened(unproven), first),
            (try opened(unproven, system: "iOS 18.1"), other),
            (try opened(works), first),
            (try opened(unproven, version: "1.31.0"), other),
            (try opened(works), first),
            (try opened(unloaded), other),
        ].enumerated() {
            precondition(found == wanted, "open \(number) gave \(found), not \(wanted)")
        }
    }

    /// Digests of all sizes around a block's, whole and in parts.
    static func checkHashes() {
        for size in 0..<200 {
            let bytes = (0..<size).map { UInt8($0 * 7 % 251) }
            var parts = SHA256()
            for start in stride(from: 0, to: size, by: 13) {
                bytes[start..<min(start + 13, size)].withUnsafeBytes { parts.update(bufferPointer: $0) }
            }
            precondition(hex(parts.finalize()) == hex(sha256(Data(bytes))), "\(size)")
            print(hex(sha256(Data(bytes))))
        }
    }

    /// Labels are as many as the classes that an output's shape has, wherever it has them.
    static func checkLabels(_ bundle: ModelBundle) throws {
        let classes: [String: Any] = ["kind": "classification", "activation": "none", "top": 5]
        func rows(_ layout: String) -> [String: Any] {
            ["kind": "detection", "layout": layout, "score": 0.5, "iou": 0.5, "most": 9, "strides": [8]]
        }
        func mask(_ axis: Int) -> [String: Any] { ["kind": "mask", "axis": axis, "threshold": 0.5] }
        let cases: [([Any], [String: Any], String?)] = [
            ([1, 3], classes, nil), ([1, 4], classes, "4"), ([4], classes, "4"), (["batch", 4], classes, "4"),
            (["batch", "classes"], classes, nil), ([2, 4, 7], classes, "4"), ([1, 1, 4], classes, "4"),
            ([1, 7, 90], rows("yolo"), nil), ([1, 90, 7], rows("yolo"), nil), ([1, 84, 90], rows("yolo"), "80 or 86"),
            ([1, 84, "boxes"], rows("yolo"), nil), ([1, 90, 8], rows("yolov5"), nil), ([1, 90, 85], rows("yolov5"), "80"),
            ([1, "boxes", 85], rows("yolox"), "80"), ([1, 90, 6], rows("end2end"), nil),
            ([1, 3, 8, 8], mask(1), nil), ([1, 4, 8, 8], mask(1), "4"), ([1, 8, 8, 4], mask(-1), "4"),
            ([1, 8, 8, 3], mask(-1), nil), ([1, 1, 8, 8], mask(1), nil), ([1, 8, 8], mask(1), nil),
        ]
        let file = try bundle.files.data("manifest.json")
        for (shape, description, wanted) in cases {
            var manifest = try JSONSerialization.jsonObject(with: file) as! [String: Any]
            manifest["outputs"] = [["name": "y", "dtype": "float32", "shape": shape] as [String: Any]]
            let labelled = description.merging(["labels": "labels.txt"]) { given, _ in given }
            manifest["output_descriptions"] = ["y": labelled]
            let listed: [String: Any] = ["path": "files/labels.txt", "sha256": "", "size_bytes": 0, "role": "file"]
            manifest["files"] = manifest["files"] as! [Any] + [listed]
            let data = try JSONSerialization.data(withJSONObject: manifest)
            let made = try ModelBundle(files: .function { $0 == "manifest.json" ? data : Data("a\nb\nc\n".utf8) })
            var said: String?
            do {
                try made.count(made.labels(), priors: [:])
            } catch {
                said = "\(error)"
            }
            let error = wanted.map { "the bundle is damaged: files/labels.txt has 3 labels, the output 'y' \($0) classes" }
            precondition(said == error, "\(shape) of \(description): \(said ?? "they are taken")")
        }
    }

    static func found(_ bundle: ModelBundle, _ given: Case, cache: URL) -> Found {
        let runtime = ReplayedRuntime(bundle: bundle, given: given, log: Log())
        let device = DeviceFacts(
            system: "iOS 18.0", model: "phone", cpuFlags: Set(given.cpu), isX86: given.isX86,
            isSimulator: given.isSimulator)
        let opener = Opener(bundle: bundle, runtime: runtime, device: device, cache: cache)
        do {
            let model = try opener.open(only: given.only, isFresh: true)
            let passed = model.passedOver.map { [$0.variant, $0.reason] }
            return Found(variant: model.variant.id, passedOver: passed, error: nil, sessions: runtime.log.lines)
        } catch {
            return Found(variant: nil, passedOver: [], error: "\(error)", sessions: runtime.log.lines)
        }
    }
}

struct Case: Decodable {
    let providers: [String]
    let cpu: [String]
    let isX86: Bool
    let isSimulator: Bool
    let only: String?
    /// What goes wrong, by the name of a model's file.
    let faults: [String: Fault]

    static let taken = ["CoreMLExecutionProvider"]

    /// A phone that has everything.
    init(faults: [String: Fault]) {
        providers = ["CoreMLExecutionProvider", "CPUExecutionProvider"]
        cpu = ["asimddp"]
        (isX86, isSimulator, only) = (false, false, nil)
        self.faults = faults
    }

    struct Fault: Decodable {
        /// Errors that creating a session gives, one after the other.
        var created: [String]?
        /// An error that a run gives.
        var run: String?
        /// What is added to each output.
        var noise: Float?
        /// The provider of each node.
        var assigned: [String]?
    }
}

struct Found: Encodable {
    let variant: String?
    let passedOver: [[String]]
    let error: String?
    let sessions: [String]
}

/// What was asked of the runtime. One thread uses it at a time.
final class Log: @unchecked Sendable {
    var lines: [String] = []
    var tries: [String: Int] = [:]
}

struct ReplayedRuntime: InferenceRuntime {
    let bundle: ModelBundle
    let given: Case
    let log: Log

    var version = "1.30.0"
    var providers: [String] { given.providers }

    func session(model: ModelData, providers: [ProviderEntry], settings: SessionSettings) throws -> any InferenceSession {
        let name = model.name
        let config = settings.config.sorted { $0.key < $1.key }.map { "\($0.key)=\($0.value)" }
        let cached = try isCached(providers) ? ["cached"] : []
        log.lines.append(([name] + cached + providers.map(\.name) + config).joined(separator: " "))
        let number = log.tries[name, default: 0]
        log.tries[name] = number + 1
        let fault = given.faults[name]
        if let errors = fault?.created, number < errors.count, !errors[number].isEmpty { throw RuntimeError(errors[number]) }
        let variant = bundle.manifest.variants.first { $0.model.hasSuffix(name) }!
        let outputs = try bundle.goldenOutputs(0, of: variant.id)
        return ReplayedSession(outputs: outputs, fault: fault ?? .init())
    }

    /// Says whether something lay in the cache, and leaves something there.
    private func isCached(_ providers: [ProviderEntry]) throws -> Bool {
        guard let path = providers.compactMap({ $0.options["ModelCacheDirectory"] }).first else { return false }
        let file = URL(fileURLWithPath: path).appendingPathComponent("compiled")
        let isThere = FileManager.default.fileExists(atPath: file.path)
        try Data("x".utf8).write(to: file)
        return isThere
    }
}

/// Notes how many sessions are made at the same time.
struct CountingRuntime: InferenceRuntime {
    let bundle: ModelBundle
    let log = Log()
    private let lock = NSLock()

    let version = "1.30.0"
    let providers = [ProviderEntry.cpu]

    func session(model: ModelData, providers: [ProviderEntry], settings: SessionSettings) throws -> any InferenceSession {
        count(1)
        Thread.sleep(forTimeInterval: 0.02)
        count(-1)
        return ReplayedSession(outputs: try bundle.goldenOutputs(0, of: "cpu-plain"), fault: .init())
    }

    private func count(_ more: Int) {
        lock.lock()
        defer { lock.unlock() }
        log.tries["now", default: 0] += more
        if more > 0 { log.lines.append("\(log.tries["now"]!)") }
    }
}

struct ReplayedSession: InferenceSession {
    let outputs: Tensors
    let fault: Case.Fault

    func run(_ feed: Tensors, outputs names: [String], until cancellation: Cancellation?) throws -> Tensors {
        if let error = fault.run { throw RuntimeError(error) }
        return try outputs.mapValues { output in
            let plain: Tensor<Float> = try output.typed()
            let noisy = try Tensor(shape: plain.shape, scalars: plain.scalars.map { $0 + (fault.noise ?? 0) })
            return RawTensor(noisy, as: .float32)
        }
    }

    func pinned(
        _ input: PinnedInput, outputs: [(name: String, type: ElementType, shape: [Int]?)]
    ) throws -> any PinnedRuns { preconditionFailure("nothing here is pinned") }

    func assignedProviders() throws -> [String] { fault.assigned ?? [] }
}
