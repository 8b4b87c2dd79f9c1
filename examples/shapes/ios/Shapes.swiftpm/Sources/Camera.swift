import AVFoundation

/// Why there are no frames.
enum CameraError: LocalizedError {
    case refused, missing

    var errorDescription: String? {
        switch self {
        case .refused: "This app may not use the camera: allow it in Settings."
        case .missing: "This device has no camera on its back that this app can use."
        }
    }
}

/// The camera on the device's back, whose frames go to a function, one at a time.
final class Camera: NSObject, AVCaptureVideoDataOutputSampleBufferDelegate, @unchecked Sendable {
    let session = AVCaptureSession()
    private let queue = DispatchQueue(label: "camera")
    private let look: @Sendable (CVPixelBuffer) -> Void

    /// - Parameter look: Takes each frame, on the camera's queue. Frames that come until it returns are left out.
    init(look: @escaping @Sendable (CVPixelBuffer) -> Void) {
        self.look = look
    }

    /// Asks for the camera, and starts it.
    func start() async throws {
        guard await AVCaptureDevice.requestAccess(for: .video) else { throw CameraError.refused }
        try configure()
        queue.async { self.session.startRunning() }  // It takes a while.
    }

    private func configure() throws {
        session.beginConfiguration()
        defer { session.commitConfiguration() }
        session.sessionPreset = .vga640x480
        guard let device = AVCaptureDevice.default(.builtInWideAngleCamera, for: .video, position: .back) else {
            throw CameraError.missing
        }
        let input = try AVCaptureDeviceInput(device: device)
        let output = AVCaptureVideoDataOutput()
        output.alwaysDiscardsLateVideoFrames = true
        // 420f, as the camera makes it: the model's own code reads it where it lies.
        let format = kCVPixelFormatType_420YpCbCr8BiPlanarFullRange
        output.videoSettings = [kCVPixelBufferPixelFormatTypeKey as String: format]
        output.setSampleBufferDelegate(self, queue: queue)
        guard session.canAddInput(input), session.canAddOutput(output) else { throw CameraError.missing }
        session.addInput(input)
        session.addOutput(output)
    }

    func captureOutput(_ output: AVCaptureOutput, didOutput sample: CMSampleBuffer, from connection: AVCaptureConnection) {
        if let frame = CMSampleBufferGetImageBuffer(sample) { look(frame) }
    }
}
