// The part of manifest.json that decides how the model runs. The build writes it; the names here are its keys.

import Foundation

struct Manifest: Decodable, Sendable {
    static let schemaVersion = 1

    let name: String
    let version: String
    let target: String
    let inputs: [TensorSpec]
    let outputs: [TensorSpec]
    let inputDescriptions: [String: InputDescription]
    let outputDescriptions: [String: OutputDescription]
    /// Best first.
    let variants: [Variant]
    /// At least one.
    let goldens: [Golden]
    /// The bundle's files, except those that the manifest cannot list.
    let files: [ListedFile]

    enum CodingKeys: String, CodingKey {
        case name, version, target, inputs, outputs, variants, goldens, files
        case inputDescriptions = "input_descriptions"
        case outputDescriptions = "output_descriptions"
    }

    /// The files that the code reads because of what else the manifest says.
    var named: [String] {
        let models = variants.flatMap { [$0.model] + $0.buckets.map(\.model) }
        let tensors = goldens.flatMap { [$0.inputs] + $0.outputs.values }.joined().map(\.path)
        let described = outputDescriptions.values
        let ofInputs = inputDescriptions.values.compactMap(\.tokens?.file)
        let files = described.compactMap(\.labels) + described.compactMap(\.priors) + ofInputs
        return models + tensors + files.map { "files/\($0)" }
    }

    /// Name, version and target: the name of the bundle's folder.
    var id: String { "\(name)-\(version)-\(target)" }
}

/// One input or output of the model.
struct TensorSpec: Decodable, Sendable, Equatable, CustomStringConvertible {
    let name: String
    let dtype: ElementType
    let shape: [Dimension]

    var description: String { "\(name): \(dtype)\(wordsOf(shape))" }

    /// - Throws: ``TensorError``, with what was expected, if the tensor does not fit.
    func check(_ tensor: RawTensor) throws {
        guard tensor.type == dtype else {
            throw TensorError(.bundle, "input '\(name)' is \(tensor.type), expected \(dtype)")
        }
        let fits = tensor.shape.count == shape.count && zip(tensor.shape, shape).allSatisfy { $1.takes($0) }
        guard fits else {
            throw TensorError(.shape, "input '\(name)' has shape \(tensor.shape), expected \(wordsOf(shape))")
        }
    }
}

private func wordsOf(_ shape: [Dimension]) -> String {
    "[\(shape.map(\.description).joined(separator: ", "))]"
}

/// The size of an axis: a number where it is fixed, or a name where any size is possible.
enum Dimension: Decodable, Sendable, Equatable, CustomStringConvertible {
    case fixed(Int)
    case named(String)

    /// Stands for an axis without a name.
    static let unknown = "?"

    init(from decoder: any Decoder) throws {
        let value = try decoder.singleValueContainer()
        if let size = try? value.decode(Int.self) {
            self = .fixed(size)
        } else {
            self = .named(try value.decode(String.self))
        }
    }

    var description: String {
        switch self {
        case .fixed(let size): return String(size)
        case .named(let name): return name
        }
    }

    func takes(_ size: Int) -> Bool {
        switch self {
        case .fixed(let wanted): return size == wanted
        case .named: return true
        }
    }
}

/// What one input is made from, and the value that pads it to a size of the model.
struct InputDescription: Decodable, Sendable {
    let image: ImageInput?
    let tokens: TokensInput?
    let pad: Double?
    /// The dimension that the input is a mask over.
    let mask: String?
}

/// How a text becomes token ids, for the input that takes the ids.
struct TokensInput: Decodable, Sendable {
    /// A tokenizer.json, relative to the bundle's files.
    let file: String
    /// The largest number of tokens.
    let length: Int
    let attentionMask: String
    let tokenTypeIDs: String

    enum CodingKeys: String, CodingKey {
        case file, length
        case attentionMask = "attention_mask"
        case tokenTypeIDs = "token_type_ids"
    }
}

/// One way to run the model.
struct Variant: Decodable, Sendable {
    let id: String
    let model: String
    let modelSHA256: String
    /// Models with static shapes, smallest first; empty where one model takes all sizes.
    let buckets: [Bucket]
    /// Axes of outputs that are cut to a dimension's actual size.
    let slices: [Slice]
    /// Whether the variant takes only the buckets' own sizes.
    let exact: Bool
    let providers: [ProviderEntry]
    let placement: Placement
    let session: SessionSettings
    let requires: Requires
    /// The closeness that the golden outputs must reach, in decibels.
    let minSQNRdB: Double

    struct Bucket: Decodable, Sendable {
        let dims: [String: Int]
        let model: String
        let modelSHA256: String

        enum CodingKeys: String, CodingKey {
            case dims, model
            case modelSHA256 = "model_sha256"
        }
    }

    struct Slice: Decodable, Sendable {
        let output: String
        let axis: Int
        let dim: String
    }

    struct Requires: Decodable, Sendable {
        let cpu: [String]
    }

    enum CodingKeys: String, CodingKey {
        case id, model, buckets, slices, exact, providers, placement, session, requires
        case modelSHA256 = "model_sha256"
        case minSQNRdB = "min_sqnr_db"
    }
}

/// An execution provider and its options, by onnxruntime's names.
struct ProviderEntry: Codable, Sendable, Equatable {
    static let cpu = "CPUExecutionProvider"

    let name: String
    var options: [String: String]
}

/// onnxruntime's session options.
struct SessionSettings: Decodable, Sendable {
    /// 0 means one thread per core.
    let intraOpNumThreads: Int
    /// `disabled`, `basic`, `extended` or `all`; nil means `all`.
    let graphOptimizationLevel: String?
    /// `sequential` or `parallel`; nil means `sequential`.
    let executionMode: String?
    /// Threads that the parallel mode spreads nodes over; nil and 0 let onnxruntime decide.
    let interOpNumThreads: Int?
    /// nil means true, also for the next one.
    let enableCPUMemArena: Bool?
    let enableMemPattern: Bool?
    /// The least severe messages that onnxruntime writes, from 0 for verbose to 4 for fatal; nil means errors.
    let logSeverityLevel: Int?
    var config: [String: String]

    enum CodingKeys: String, CodingKey {
        case config
        case intraOpNumThreads = "intra_op_num_threads"
        case graphOptimizationLevel = "graph_optimization_level"
        case executionMode = "execution_mode"
        case interOpNumThreads = "inter_op_num_threads"
        case enableCPUMemArena = "enable_cpu_mem_arena"
        case enableMemPattern = "enable_mem_pattern"
        case logSeverityLevel = "log_severity_level"
    }
}

/// Which nodes a variant's first provider must run.
enum Placement: Decodable, Sendable, Equatable {
    case all
    /// At least this share of them, 0 to 1.
    case share(Double)

    init(from decoder: any Decoder) throws {
        let value = try decoder.singleValueContainer()
        if let share = try? value.decode(Double.self) {
            self = .share(share)
            return
        }
        let word = try value.decode(String.self)
        guard word == "all" else {
            throw DecodingError.dataCorruptedError(in: value, debugDescription: "placement is '\(word)'")
        }
        self = .all
    }
}

/// One golden sample: its inputs, and the outputs that each variant gave on the build host's CPU.
struct Golden: Decodable, Sendable {
    let inputs: [GoldenTensor]
    let outputs: [String: [GoldenTensor]]
}

/// A file with one tensor's bytes.
struct GoldenTensor: Decodable, Sendable {
    let name: String
    let path: String
    let dtype: ElementType
    let shape: [Int]
    /// Of an output: the file contains every `stride`-th value, and only these are compared; nil means all.
    let stride: Int?
    /// Of an output: how much nearer it must be than the variant's limit, in decibels; nil means 0.
    let extraDB: Double?
    /// Of an output with several quantities: each must be near enough by itself.
    let quantities: Quantities?
    /// How the file contains the values; nil where they are in it as they are.
    let palette: Palette?

    enum CodingKeys: String, CodingKey {
        case name, path, dtype, shape, stride, quantities, palette
        case extraDB = "extra_db"
    }
}

/// The different values of each channel, which a file has once, before a byte for each place that says which it is.
struct Palette: Decodable, Sendable {
    /// How many values of a channel follow each other.
    let step: Int
    /// For each channel, the number of its values.
    let sizes: [Int]

    /// Returns the values as they are without a palette.
    ///
    /// - Parameter width: Of a value, in bytes.
    /// - Throws: ``TensorError`` if the palette is none, or not all there, or a byte stands for no value of it.
    func unpack(_ packed: [UInt8], width: Int) throws -> [UInt8] {
        guard step > 0, !sizes.isEmpty, sizes.allSatisfy((1...256).contains) else {
            throw TensorError(.bundle, "a palette cannot have the step \(step) and the sizes \(sizes)")
        }
        let table = sizes.reduce(0, +) * width
        guard table <= packed.count else {
            throw TensorError(.bundle, "it has \(packed.count) bytes, its palette alone \(table)")
        }
        let begins = sizes.indices.map { sizes[..<$0].reduce(0, +) }
        var values: [UInt8] = []
        values.reserveCapacity((packed.count - table) * width)
        for (place, which) in packed[table...].enumerated() {
            let channel = place / step % sizes.count
            guard Int(which) < sizes[channel] else {
                throw TensorError(.bundle, "a byte is beyond its channel's palette")
            }
            let from = (begins[channel] + Int(which)) * width
            values += packed[from..<from + width]
        }
        return values
    }
}

/// The quantities in an output, for example boxes and scores.
struct Quantities: Decodable, Sendable {
    /// How many values of a channel follow each other.
    let size: Int
    /// Pairs: a number of channels in a row, and the number of their quantity.
    let runs: [[Int]]
    /// How much nearer each quantity must be than the variant's limit, in decibels.
    let extraDB: [Double]

    /// For each channel, the number of its quantity.
    var ofChannel: [Int] { runs.flatMap { Array(repeating: $0[1], count: $0[0]) } }

    enum CodingKeys: String, CodingKey {
        case size, runs
        case extraDB = "extra_db"
    }
}
