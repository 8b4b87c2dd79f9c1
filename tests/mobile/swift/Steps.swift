// Takes the steps of steps.json as an app does, and prints what came of each as JSON. MODULE and MODEL stand for the bundle's
// module and type. Arguments: the bundle, a folder.

import Foundation
import MODULE

/// What a function was asked for. One thread uses it at a time.
final class Asked: @unchecked Sendable {
    var paths: [String] = []
}

struct NoKey: LocalizedError {
    var errorDescription: String? { "no key" }
}

let bundle = URL(fileURLWithPath: CommandLine.arguments[1])
let folder = URL(fileURLWithPath: CommandLine.arguments[2])
let asked = Asked()
var kept: MODEL?

func source(_ step: [String: Any]) throws -> ModelSource {
    if let name = step["folder"] as? String {
        let source = ModelSource.folder(folder.appendingPathComponent(name))
        return (step["signer"] as? String).map(source.signed) ?? source
    }
    if let name = step["function"] as? String {
        let from = folder.appendingPathComponent(name)
        return .function { path in
            asked.paths.append(path)
            let data = try Data(contentsOf: from.appendingPathComponent(path))
            guard !data.isEmpty else { throw NoKey() }
            return Data(data.map { ~$0 })
        }
    }
    // A Swift package's resources are here only where SwiftPM builds it.
    return try store(step)?.current ?? .folder(bundle)
}

func store(_ step: [String: Any]) -> ModelStore? {
    (step["store"] as? String).map {
        ModelStore(folder: folder.appendingPathComponent($0), signer: step["signer"] as? String)
    }
}

func say(_ model: MODEL) -> [String: Any] {
    let passedOver = model.passedOver.map { [$0.variant, $0.reason] }
    return ["variant": model.variant, "passedOver": passedOver, "read": asked.paths]
}

func take(_ step: [String: Any]) async throws -> Any {
    switch step["do"] as! String {
    case "open":
        let model = try await MODEL.open(variant: step["variant"] as? String, from: source(step))
        var said = say(model)
        if step["test"] != nil { said["test"] = try model.selfTest().passed }
        return said
    case "keep":
        let model = try await MODEL.open(from: source(step))
        kept = model
        return say(model)
    case "use kept":
        let picture = try RGBImage(width: 8, height: 8, pixels: [UInt8](repeating: 7, count: 192))
        return try kept!.predictSync(picture).answers.scores.count == 2 ? "it answers" : "it does not"
    case "install":
        try await MODEL.install(folder.appendingPathComponent(step["download"] as! String), in: store(step)!)
        return "installed"
    case let other: preconditionFailure(other)
    }
}

let steps = try JSONSerialization.jsonObject(with: Data(contentsOf: folder.appendingPathComponent("steps.json")))
var said: [Any] = []
for step in steps as! [[String: Any]] {
    asked.paths = []
    do {
        said.append(try await take(step))
    } catch {
        said.append("\(error)")
    }
}
print(String(decoding: try JSONSerialization.data(withJSONObject: said), as: UTF8.self))
