// swift-tools-version: 6.0

import AppleProductTypes
import PackageDescription

let package = Package(
    name: "Shapes",
    platforms: [.iOS("16.0")],
    products: [
        .iOSApplication(
            name: "Shapes",
            targets: ["Shapes"],
            bundleIdentifier: "com.example.shapes",
            displayVersion: "1.0",
            bundleVersion: "1",
            appIcon: .placeholder(icon: .camera),
            accentColor: .presetColor(.blue),
            supportedDeviceFamilies: [.pad, .phone],
            supportedInterfaceOrientations: [.portrait],
            capabilities: [.camera(purposeString: "The camera shows the shapes that this app finds.")]
        )
    ],
    // The bundle, as `edgepack build --target ios` writes it.
    dependencies: [.package(path: "../../dist/shapes-1.0.0-ios")],
    targets: [
        .executableTarget(
            name: "Shapes",
            dependencies: [.product(name: "EdgepackShapeDetector", package: "shapes-1.0.0-ios")],
            path: "Sources"
        )
    ]
)
