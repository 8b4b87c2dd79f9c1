// What a model does, for apps that put a fake in its place in their tests, with the ways in for each source of pictures.

#if canImport(CoreVideo)
    import CoreVideo
#endif
#if canImport(CoreGraphics)
    import CoreGraphics
#endif
#if canImport(ImageIO)
    import ImageIO
#endif

/// Runs on tensors.
public protocol TensorPredicting: Sendable {
    /// What the model takes.
    associatedtype Inputs: Sendable
    /// What the model gives.
    associatedtype Outputs: Sendable

    /// Runs the model on a queue of its own. It ends with `CancellationError` when the caller's task is cancelled.
    func predict(_ inputs: Inputs, options: AnswerOptions) async throws -> Outputs
    /// Runs the model on the caller's thread.
    func predictSync(_ inputs: Inputs, options: AnswerOptions) throws -> Outputs
}

extension TensorPredicting {
    /// Runs the model on a queue of its own, with the manifest's options.
    public func predict(_ inputs: Inputs) async throws -> Outputs { try await predict(inputs, options: .init()) }

    /// Runs the model on the caller's thread, with the manifest's options.
    public func predictSync(_ inputs: Inputs) throws -> Outputs { try predictSync(inputs, options: .init()) }
}

/// Runs on a picture.
public protocol PicturePredicting: Sendable {
    /// What the model gives.
    associatedtype Outputs: Sendable

    /// Converts a picture to the model's size, layout and range, and runs the model on it, on a queue of its own. It ends with
    /// `CancellationError` when the caller's task is cancelled.
    func predict(_ picture: Picture, options: AnswerOptions) async throws -> Outputs
    /// Converts a picture to the model's size, layout and range, and runs the model on it, on the caller's thread.
    func predictSync(_ picture: Picture, options: AnswerOptions) throws -> Outputs
}

extension PicturePredicting {
    /// Runs the model on a picture, on a queue of its own.
    public func predict(_ source: some PictureSource, options: AnswerOptions = .init()) async throws -> Outputs {
        try await predict(source.picture, options: options)
    }

    /// Runs the model on a picture, on the caller's thread.
    public func predictSync(_ source: some PictureSource, options: AnswerOptions = .init()) throws -> Outputs {
        try predictSync(source.picture, options: options)
    }

    #if canImport(CoreVideo) && canImport(ImageIO)
        /// Runs the model on a camera's picture, on a queue of its own; see ``Picture``.
        ///
        /// - Parameter orientation: How it is turned: `right` for a buffer that must be turned clockwise by 90 degrees.
        public func predict(
            _ pixelBuffer: CVPixelBuffer, orientation: CGImagePropertyOrientation = .up, options: AnswerOptions = .init()
        ) async throws -> Outputs {
            try await predict(Picture(pixelBuffer, orientation: orientation), options: options)
        }

        /// Runs the model on a camera's picture, on the caller's thread; see ``Picture``.
        ///
        /// - Parameter orientation: How it is turned: `right` for a buffer that must be turned clockwise by 90 degrees.
        public func predictSync(
            _ pixelBuffer: CVPixelBuffer, orientation: CGImagePropertyOrientation = .up, options: AnswerOptions = .init()
        ) throws -> Outputs {
            try predictSync(Picture(pixelBuffer, orientation: orientation), options: options)
        }
    #endif

    #if canImport(CoreGraphics) && canImport(ImageIO)
        /// Runs the model on a Core Graphics picture, on a queue of its own; see ``Picture``.
        ///
        /// - Parameter orientation: How it is turned; a `CGImage` does not contain it.
        public func predict(
            _ image: CGImage, orientation: CGImagePropertyOrientation = .up, options: AnswerOptions = .init()
        ) async throws -> Outputs {
            try await predict(Picture(image, orientation: orientation), options: options)
        }

        /// Runs the model on a Core Graphics picture, on the caller's thread; see ``Picture``.
        ///
        /// - Parameter orientation: How it is turned; a `CGImage` does not contain it.
        public func predictSync(
            _ image: CGImage, orientation: CGImagePropertyOrientation = .up, options: AnswerOptions = .init()
        ) throws -> Outputs {
            try predictSync(Picture(image, orientation: orientation), options: options)
        }
    #endif
}

/// Runs on a text.
public protocol TextPredicting: Sendable {
    /// What the model gives.
    associatedtype Outputs: Sendable

    /// Converts a text to tokens and runs the model on it, on a queue of its own. It ends with `CancellationError` when the
    /// caller's task is cancelled.
    func predict(_ text: String, options: AnswerOptions) async throws -> Outputs
    /// Converts a text to tokens and runs the model on it, on the caller's thread.
    func predictSync(_ text: String, options: AnswerOptions) throws -> Outputs
}

extension TextPredicting {
    /// Runs the model on a text, on a queue of its own, with the manifest's options.
    public func predict(_ text: String) async throws -> Outputs { try await predict(text, options: .init()) }

    /// Runs the model on a text, on the caller's thread, with the manifest's options.
    public func predictSync(_ text: String) throws -> Outputs { try predictSync(text, options: .init()) }
}
