// Chooses the variant for this device: the first whose provider is available and whose golden outputs are right.

import Foundation

/// Creates sessions: onnxruntime, or a replacement in a test.
protocol InferenceRuntime: Sendable {
    /// The runtime's version, such as `1.30.0`.
    var version: String { get }
    /// The execution providers that are built in.
    var providers: [String] { get throws }

    /// Creates a session.
    ///
    /// - Parameters:
    ///   - model: The model's file, or its bytes.
    ///   - providers: In order of preference, with their options.
    ///   - settings: Session options, with config entries.
    func session(model: ModelData, providers: [ProviderEntry], settings: SessionSettings) throws -> any InferenceSession
}

/// A loaded model. Threads may share it.
protocol InferenceSession: Sendable {
    /// Runs the model.
    ///
    /// - Parameter cancellation: Ends the run, with `CancellationError`.
    func run(_ feed: Tensors, outputs: [String], until cancellation: Cancellation?) throws -> Tensors
    /// Makes memory for runs on one input of a shape, with what is known of the outputs: a shape, or nil.
    func pinned(
        _ input: PinnedInput, outputs: [(name: String, type: ElementType, shape: [Int]?)]
    ) throws -> any PinnedRuns
    /// The provider of each node; empty if the runtime does not report it.
    func assignedProviders() throws -> [String]
}

/// The bundle does not work on this device.
public struct OpenError: LocalizedError, CustomStringConvertible, Sendable {
    /// What is wrong, with a reason for each variant that was tried.
    public let description: String

    init(_ description: String) { self.description = description }

    /// The same as ``description``.
    public var errorDescription: String? { description }
}

/// A variant that is better than the one in use but is not used, and why.
public struct PassedOver: Sendable, Equatable {
    /// Its id, as the bundle's README lists it.
    public let variant: String
    /// What this device lacks, or what went wrong.
    public let reason: String
}

/// Why one variant cannot be used here.
struct Refused: Error {
    let reason: String

    init(_ reason: String) { self.reason = reason }
}

/// Lets a process open one model at a time: two opens that compile the same model would write into one cache folder.
private let turn = NSLock()

/// Tries a bundle's variants, best first, and keeps the first that works.
struct Opener: Sendable {
    static let cachePlaceholder = "{cache}"
    private static let precise = "session.x64quantprecision"
    private static let noFallback = "session.disable_cpu_ep_fallback"
    private static let recordAssignment = "session.record_ep_graph_assignment_info"

    let bundle: ModelBundle
    let runtime: any InferenceRuntime
    let device: DeviceFacts
    /// The folder for compiled models, with a folder for each model, runtime and device, and for verdicts.
    let cache: URL

    /// Opens the first variant that works, or the one with the given id. It waits while another open runs.
    ///
    /// The first open of a bundle checks its files and variants; later ones open the variant that worked, as long as the
    /// bundle, the runtime and the system stay the same.
    ///
    /// - Parameters:
    ///   - id: The only variant to use.
    ///   - isFresh: Whether all is checked although an earlier open kept its verdict.
    /// - Throws: ``OpenError`` if the bundle is not whole, or no variant works.
    func open(only id: String? = nil, isFresh: Bool = false) throws -> LoadedModel {
        turn.lock()
        defer { turn.unlock() }
        let variants = try bundle.variants(only: id)
        let facts = [bundle.digest, runtime.version, device.system, device.model, try bundle.files.stamp()]
        let name = hex(sha256(Data("\(bundle.digest) \(id ?? "")".utf8)))
        let verdicts = Verdicts(folder: cache, name: name, key: facts.joined(separator: "\n"))
        if !isFresh, let verdict = verdicts.read(), let model = try reopen(verdict, of: variants) { return model }
        try bundle.files.verify(bundle.manifest.files)
        let model = try choose(from: variants)
        verdicts.write(variant: model.variant.id, passedOver: model.passedOver)
        return model
    }

    /// Opens the variant that worked before; returns nil if it does not load any more.
    private func reopen(_ verdict: Verdict, of variants: [Variant]) throws -> LoadedModel? {
        guard let variant = variants.first(where: { $0.id == verdict.variant }) else { return nil }
        let passedOver = verdict.passedOver.map { PassedOver(variant: $0[0], reason: $0[1]) }
        do {
            return try loaded(variant, passedOver)
        } catch is Refused {
            return nil
        }
    }

    private func choose(from variants: [Variant]) throws -> LoadedModel {
        var passedOver: [PassedOver] = []
        for variant in variants {
            do {
                let model = try loaded(variant, passedOver)
                try prove(model)
                return model
            } catch let refusal as Refused {
                passedOver.append(PassedOver(variant: variant.id, reason: refusal.reason))
            }
        }
        let reasons = passedOver.map { "\n  \($0.variant): \($0.reason)" }.joined()
        throw OpenError("no variant of \(bundle.manifest.id) works on this device:\(reasons)")
    }

    private func loaded(_ variant: Variant, _ passedOver: [PassedOver]) throws -> LoadedModel {
        let (labels, priors) = (try bundle.labels(), try bundle.priors())
        try bundle.count(labels, priors: priors)
        return LoadedModel(
            bundle: bundle, variant: variant, sessions: try sessions(of: variant), passedOver: passedOver, labels: labels,
            priors: priors, tokenizers: try bundle.tokenizers())
    }

    private func prove(_ model: LoadedModel) throws {
        do {
            try model.proveGoldens()
        } catch let error as RuntimeError {
            throw Refused("inference failed: \(error.short)")
        } catch let error as TensorError {
            throw Refused("inference failed: \(error.description)")
        }
        try checkShare(model)
    }

    private func sessions(of variant: Variant) throws -> [any InferenceSession] {
        try checkRequirements(variant)
        if variant.buckets.isEmpty {
            return [try session(variant, model: variant.model, digest: variant.modelSHA256)]
        }
        return try variant.buckets.map { try session(variant, model: $0.model, digest: $0.modelSHA256) }
    }

    private func checkRequirements(_ variant: Variant) throws {
        let available: [String]
        do {
            available = try runtime.providers
        } catch let error as RuntimeError {
            throw Refused("onnxruntime does not start: \(error.short)")
        }
        for provider in variant.providers where device.isSimulator && provider.name != ProviderEntry.cpu {
            throw Refused("\(provider.name) is for devices, and this is the simulator")
        }
        for provider in variant.providers where !available.contains(provider.name) {
            throw Refused(
                "\(provider.name) is not in this onnxruntime (it has \(available.joined(separator: ", ")))")
        }
        let missing = Set(variant.requires.cpu).subtracting(device.cpuFlags).sorted()
        guard missing.isEmpty else { throw Refused("this CPU lacks \(missing.joined(separator: ", "))") }
    }

    /// Creates a session. If that fails with the files in the cache, it deletes them and tries again: a killed app may have
    /// left broken files.
    private func session(_ variant: Variant, model: String, digest: String) throws -> any InferenceSession {
        let folder = try cacheFolder(variant, digest: digest)
        do {
            return try createSession(variant, model: model, cache: folder)
        } catch let refusal as Refused {
            guard let folder, isFilled(folder) else { throw refusal }
            try? FileManager.default.removeItem(at: folder)
            try make(folder)
            return try createSession(variant, model: model, cache: folder)
        }
    }

    private func createSession(_ variant: Variant, model: String, cache: URL?) throws -> any InferenceSession {
        let providers = providers(of: variant).map { entry in
            ProviderEntry(name: entry.name, options: filled(entry.options, with: cache))
        }
        let file = try bundle.files.model(model)
        var settings = variant.session
        settings.config = config(of: variant).mapValues { filled($0, with: cache) }
        do {
            return try runtime.session(model: file, providers: providers, settings: settings)
        } catch let error as RuntimeError {
            guard variant.session.config[Self.precise] == nil,
                settings.config.removeValue(forKey: Self.precise) != nil
            else { throw refusal(error, first: providers[0].name) }
            // onnxruntime 1.31.1 fails with precise kernels where nodes share an int8 constant. The golden outputs show
            // whether the default kernels are good enough.
            do {
                return try runtime.session(model: file, providers: providers, settings: settings)
            } catch is RuntimeError {
                throw refusal(error, first: providers[0].name)
            }
        }
    }

    private func refusal(_ error: RuntimeError, first: String) -> Refused {
        // onnxruntime gives this message for session.disable_cpu_ep_fallback, whatever the reason is.
        if error.description.contains("fallback to CPU EP has been explicitly disabled") {
            return Refused("the session cannot be created: \(first) does not take every node, or not this device")
        }
        return Refused("the session cannot be created: \(error.short)")
    }

    /// The providers to ask for: without the CPU where it must not run any node.
    private func providers(of variant: Variant) -> [ProviderEntry] {
        wantsNoCPU(variant) ? variant.providers.filter { $0.name != ProviderEntry.cpu } : variant.providers
    }

    private func config(of variant: Variant) -> [String: String] {
        var config: [String: String] = [:]
        if device.isX86 {
            // Without VNNI the default int8 kernels saturate; the precise ones are exact, at half the speed. Phones are not
            // x86: only simulators and test machines are, and nobody measures their speed.
            config[Self.precise] = "1"
        }
        if wantsNoCPU(variant) { config[Self.noFallback] = "1" }
        if share(of: variant) != nil { config[Self.recordAssignment] = "1" }
        return config.merging(variant.session.config) { _, given in given }
    }

    private func wantsNoCPU(_ variant: Variant) -> Bool {
        variant.placement == .all && variant.providers[0].name != ProviderEntry.cpu
    }

    private func share(of variant: Variant) -> Double? {
        guard case .share(let share) = variant.placement, variant.providers[0].name != ProviderEntry.cpu else {
            return nil
        }
        return share
    }

    private func checkShare(_ model: LoadedModel) throws {
        guard let needed = share(of: model.variant) else { return }
        let first = model.variant.providers[0].name
        for session in model.sessions {
            let assigned: [String]
            do {
                assigned = try session.assignedProviders()
            } catch let error as RuntimeError {
                throw Refused("onnxruntime does not tell where nodes run: \(error.short)")
            }
            guard !assigned.isEmpty else { throw Refused("onnxruntime does not tell where nodes run") }
            let share = Double(assigned.filter { $0 == first }.count) / Double(assigned.count)
            guard share >= needed else {
                throw Refused("\(first) runs \(percent(share)) of the nodes, at least \(percent(needed)) are needed")
            }
        }
    }

    private func percent(_ share: Double) -> String {
        "\(Int((share * 100).rounded()))%"
    }

    // MARK: Caches

    /// Makes the folder for a variant's compiled models; returns nil where it keeps none.
    private func cacheFolder(_ variant: Variant, digest: String) throws -> URL? {
        let values = variant.providers.flatMap(\.options.values) + variant.session.config.values
        guard values.contains(where: { $0.contains(Self.cachePlaceholder) }) else { return nil }
        let folder = cache.appendingPathComponent(digest).appendingPathComponent(cacheKey(variant))
        try make(folder)
        return folder
    }

    /// Returns a name made of all that a compiled model depends on: the runtime, the system, the device and the settings.
    private func cacheKey(_ variant: Variant) -> String {
        let settings = variant.providers.map { "\($0.name) \(sorted($0.options))" } + [sorted(variant.session.config)]
        let facts = ["onnxruntime-\(runtime.version)", device.system, device.model, fingerprint(settings.joined())]
        return facts.map(fileName).joined(separator: "_")
    }

    private func sorted(_ settings: [String: String]) -> String {
        settings.sorted { $0.key < $1.key }.map { "\($0.key)=\($0.value)" }.joined(separator: ";")
    }

    private func fileName(_ text: String) -> String {
        String(text.map { $0.isASCII && ($0.isLetter || $0.isNumber || "._-".contains($0)) ? $0 : "-" })
    }

    /// Returns the text's 64-bit FNV-1a hash: the same in every process, unlike `hashValue`.
    private func fingerprint(_ text: String) -> String {
        let hash = text.utf8.reduce(0xcbf2_9ce4_8422_2325 as UInt64) { ($0 ^ UInt64($1)) &* 0x100_0000_01b3 }
        return String(hash, radix: 16)
    }

    private func make(_ folder: URL) throws {
        do {
            try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
        } catch {
            throw Refused("its cache folder cannot be made: \(message(error))")
        }
    }

    private func isFilled(_ folder: URL) -> Bool {
        ((try? FileManager.default.contentsOfDirectory(atPath: folder.path)) ?? []).isEmpty == false
    }

    private func filled(_ options: [String: String], with cache: URL?) -> [String: String] {
        options.mapValues { filled($0, with: cache) }
    }

    private func filled(_ value: String, with cache: URL?) -> String {
        cache.map { value.replacingOccurrences(of: Self.cachePlaceholder, with: $0.path) } ?? value
    }
}
