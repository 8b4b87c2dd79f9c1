// The part of AVFoundation, and of what it brings, that the sample for iOS uses: declarations to type-check it by.
//
// Source: developer.apple.com/documentation/avfoundation: AVCaptureSession, AVCaptureDevice, AVCaptureVideoDataOutput.

@_exported import CoreVideo
@_exported import Foundation

public let kCVPixelBufferPixelFormatTypeKey = "PixelFormatType"

public final class CMSampleBuffer {}

public func CMSampleBufferGetImageBuffer(_ sample: CMSampleBuffer) -> CVBuffer? { nil }

public struct AVMediaType: Sendable {
    public static let video = AVMediaType()
}

public final class AVCaptureDevice: NSObject {
    public struct DeviceType: Sendable {
        public static let builtInWideAngleCamera = DeviceType()
    }

    public enum Position: Int, Sendable {
        case unspecified, back, front
    }

    public class func requestAccess(for type: AVMediaType) async -> Bool { false }

    public class func `default`(_ kind: DeviceType, for type: AVMediaType?, position: Position) -> AVCaptureDevice? { nil }
}

public class AVCaptureInput: NSObject {}

public class AVCaptureDeviceInput: AVCaptureInput {
    public init(device: AVCaptureDevice) throws {}
}

public final class AVCaptureConnection: NSObject {}

public class AVCaptureOutput: NSObject {}

public protocol AVCaptureVideoDataOutputSampleBufferDelegate: NSObjectProtocol {
    func captureOutput(_ output: AVCaptureOutput, didOutput sample: CMSampleBuffer, from connection: AVCaptureConnection)
}

public class AVCaptureVideoDataOutput: AVCaptureOutput {
    public override init() {}
    public var alwaysDiscardsLateVideoFrames = true
    public var videoSettings: [String: Any]! = [:]
    public func setSampleBufferDelegate(
        _ delegate: (any AVCaptureVideoDataOutputSampleBufferDelegate)?, queue: DispatchQueue?
    ) {}
}

public class AVCaptureSession: NSObject, @unchecked Sendable {
    public struct Preset: Sendable {
        public static let high = Preset()
        public static let vga640x480 = Preset()
    }

    public override init() {}
    public var sessionPreset = Preset.high
    public func beginConfiguration() {}
    public func commitConfiguration() {}
    public func canAddInput(_ input: AVCaptureInput) -> Bool { true }
    public func canAddOutput(_ output: AVCaptureOutput) -> Bool { true }
    public func addInput(_ input: AVCaptureInput) {}
    public func addOutput(_ output: AVCaptureOutput) {}
    public func startRunning() {}
}

open class CALayer: NSObject {}

public class AVCaptureVideoPreviewLayer: CALayer {
    public var session: AVCaptureSession?
}
