// The facts about this device that decide which variant runs and which cache of compiled models is used.

import Foundation

struct DeviceFacts: Sendable {
    /// The system with its version, because the system compiles models.
    let system: String
    /// The hardware, such as `iPhone16,1`.
    let model: String
    /// This CPU's flags, by Linux's names.
    let cpuFlags: Set<String>
    let isX86: Bool
    /// Whether this is the simulator, where the providers for a phone's processors compute differently.
    let isSimulator: Bool

    /// The facts about the device that this code runs on.
    static var current: DeviceFacts {
        DeviceFacts(
            system: ProcessInfo.processInfo.operatingSystemVersionString, model: hardware, cpuFlags: flags,
            isX86: x86, isSimulator: simulator)
    }

    #if arch(x86_64)
        private static let x86 = true
    #else
        private static let x86 = false
    #endif

    #if targetEnvironment(simulator)
        private static let simulator = true
    #else
        private static let simulator = false
    #endif

    private static var hardware: String {
        var facts = utsname()
        guard uname(&facts) == 0 else { return "unknown" }
        // On Apple's systems "machine" is the model, such as iPhone16,1; elsewhere it is the architecture.
        return withUnsafeBytes(of: facts.machine) { String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self) }
    }

    #if canImport(Darwin)
        // Source: Apple, "Determining instruction set characteristics", and Linux's arm64 elf_hwcaps. Not tried on a phone.
        private static let darwinNames = [
            "hw.optional.arm.FEAT_DotProd": "asimddp",
            "hw.optional.arm.FEAT_FP16": "asimdhp",
            "hw.optional.arm.FEAT_I8MM": "i8mm",
            "hw.optional.arm.FEAT_BF16": "bf16",
        ]

        private static var flags: Set<String> {
            Set(darwinNames.filter { isOn($0.key) }.values)
        }

        private static func isOn(_ name: String) -> Bool {
            var value: Int32 = 0
            var size = MemoryLayout<Int32>.size
            return sysctlbyname(name, &value, &size, nil, 0) == 0 && value != 0
        }
    #else
        private static var flags: Set<String> {
            let text = (try? String(contentsOfFile: "/proc/cpuinfo", encoding: .utf8)) ?? ""
            let lines = text.split(separator: "\n").filter { $0.hasPrefix("flags") || $0.hasPrefix("Features") }
            return Set(lines.flatMap { $0.split(separator: ":").last?.split(separator: " ") ?? [] }.map(String.init))
        }
    #endif
}
