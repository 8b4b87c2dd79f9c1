// swift-tools-version: 5.9
import PackageDescription

let package = Package(
    name: "Measure",
    platforms: [.iOS(.v15)],
    products: [.library(name: "EdgepackMeasure", targets: ["EdgepackMeasure"])],
    targets: [
        .binaryTarget(
            name: "onnxruntime",
            url: "https://download.onnxruntime.ai/pod-archive-onnxruntime-c-{version}.zip",
            checksum: "{checksum}"
        ),
        .target(
            name: "EdgepackMeasure",
            dependencies: ["onnxruntime"],
            cSettings: [.define("EDGEPACK_LINKED")],
            linkerSettings: [
                .linkedLibrary("c++"), .linkedFramework("CoreML"), .linkedFramework("Foundation"),
                .linkedFramework("Network"), .linkedFramework("Security"),
                .linkedFramework("SystemConfiguration"), .linkedFramework("UIKit"),
            ]
        ),
    ]
)
