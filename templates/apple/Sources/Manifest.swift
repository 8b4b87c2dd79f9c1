// The part of manifest.json that decides how the model runs. The build writes it; names here are its keys.

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

    enum CodingKeys: String, CodingKey {
        case name, version, target, inputs, outputs, variants, goldens
        case inputDescriptions = "input_descriptions"
        case outputDescriptions = "output_descriptions"
    }

    /// Name, version and target, as the bundle's folder was called.
    var id: String { "\(name)-\(version)-\(target)" }
}

/// One input or output of the model.
struct TensorSpec: Decodable, Sendable, Equatable {
    let name: String
    let dtype: ElementType
    let shape: [Dimension]

    /// - Throws: ``TensorError``, saying what was expected, unless the tensor fits.
    func check(_ tensor: RawTensor) throws {
        guard tensor.type == dtype else {
            throw TensorError("input '\(name)' is \(tensor.type), expected \(dtype)")
        }
        let fits = tensor.shape.count == shape.count && zip(tensor.shape, shape).allSatisfy { $1.takes($0) }
        guard fits else {
            throw TensorError("input '\(name)' has shape \(tensor.shape), expected \(wordsOf(shape))")
        }
    }
}

private func wordsOf(_ shape: [Dimension]) -> String {
    "[\(shape.map(\.description).joined(separator: ", "))]"
}

/// The size of an axis: a number where it is fixed, else a name; any size is taken there.
enum Dimension: Decodable, Sendable, Equatable, CustomStringConvertible {
    case fixed(Int)
    case named(String)

    /// What stands where an axis has no name.
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

/// What one input is made from, and what fills it up to a size that the model has.
struct InputDescription: Decodable, Sendable {
    let image: ImageInput?
    let tokens: TokensInput?
    let pad: Double?
    /// The dimension that the input is a mask over.
    let mask: String?
}

/// How a text becomes token ids; the input that this describes takes the ids.
struct TokensInput: Decodable, Sendable {
    /// A tokenizer.json, relative to the bundle's files.
    let file: String
    /// The most tokens.
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
    /// Axes of outputs that are cut back to a dimension's actual size.
    let slices: [Slice]
    /// Whether the buckets' sizes alone are taken.
    let exact: Bool
    let providers: [ProviderEntry]
    let placement: Placement
    let session: SessionSettings
    let requires: Requires
    /// What the golden outputs must reach.
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

/// An execution provider and its options, both in onnxruntime's own words.
struct ProviderEntry: Codable, Sendable, Equatable {
    static let cpu = "CPUExecutionProvider"

    let name: String
    var options: [String: String]
}

/// onnxruntime's session options.
struct SessionSettings: Decodable, Sendable {
    /// 0: one thread a core.
    let intraOpNumThreads: Int
    /// `disabled`, `basic`, `extended`, or `all` where it is not said.
    let graphOptimizationLevel: String?
    var config: [String: String]

    enum CodingKeys: String, CodingKey {
        case config
        case intraOpNumThreads = "intra_op_num_threads"
        case graphOptimizationLevel = "graph_optimization_level"
    }
}

/// Which nodes have to be on a variant's first provider.
enum Placement: Decodable, Sendable, Equatable {
    case all
    /// At least this part of them, 0 to 1.
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

/// One sample: its inputs, and the outputs that each variant gave on the build host's CPU.
struct Golden: Decodable, Sendable {
    let inputs: [GoldenTensor]
    let outputs: [String: [GoldenTensor]]
}

/// A file that holds one tensor's bytes.
struct GoldenTensor: Decodable, Sendable {
    let name: String
    let path: String
    let dtype: ElementType
    let shape: [Int]
    /// Of an output: every so many-th of its values is in the file and compared; nil: all.
    let stride: Int?
    /// Of an output: how much nearer than the variant's others it has to be, in decibels; nil: 0.
    let extraDB: Double?
    /// Of an output that holds several: each has to be near by itself.
    let quantities: Quantities?

    enum CodingKeys: String, CodingKey {
        case name, path, dtype, shape, stride, quantities
        case extraDB = "extra_db"
    }
}

/// The quantities in an output, as boxes and their scores are.
struct Quantities: Decodable, Sendable {
    /// How many values of a channel lie behind each other.
    let size: Int
    /// How many channels in a row are of which quantity.
    let runs: [[Int]]
    /// How much nearer than the variant's outputs each has to be, in decibels.
    let extraDB: [Double]

    /// The number of each channel's quantity.
    var ofChannel: [Int] { runs.flatMap { Array(repeating: $0[1], count: $0[0]) } }

    enum CodingKeys: String, CodingKey {
        case size, runs
        case extraDB = "extra_db"
    }
}
