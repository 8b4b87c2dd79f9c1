import AVFoundation
import SwiftUI

@main
struct ShapesApp: App {
    var body: some Scene {
        WindowGroup { ShapesView() }
    }
}

/// Brings the camera's frames to the model, and what is found to the screen.
@MainActor
final class ShapesModel: ObservableObject {
    @Published var found: Found?
    @Published var problem: String?
    @Published var camera: Camera?
    @Published var score = 0.4 { didSet { finder?.score = score } }
    private var finder: ShapeFinder?

    func start() async {
        guard finder == nil else { return }
        do {
            let finder = try await ShapeFinder.open()
            finder.score = score
            self.finder = finder
            let camera = Camera { [weak self] frame in
                let result = Result { try finder.find(in: frame) }
                Task { @MainActor [weak self] in self?.show(result) }
            }
            try await camera.start()
            self.camera = camera
        } catch {
            problem = error.localizedDescription
        }
    }

    private func show(_ result: Result<Found, any Error>) {
        switch result {
        case .success(let newest): (found, problem) = (newest, nil)
        case .failure(let error): problem = error.localizedDescription
        }
    }

    var words: String {
        problem ?? found.map { "\($0.variant): \($0.words)" } ?? "Opening the model ..."
    }
}

/// The camera with boxes over it, what is found in words, the least score.
struct ShapesView: View {
    @StateObject private var shapes = ShapesModel()

    var body: some View {
        VStack {
            ZStack {
                if let camera = shapes.camera { Preview(session: camera.session) }
                if let found = shapes.found { Boxes(found: found).accessibilityHidden(true) }
            }
            .aspectRatio(3 / 4, contentMode: .fit)  // of the camera's 640 x 480, upright
            Text(shapes.words)
            Slider(value: $shapes.score, in: 0.05...0.95) { Text("Least score") }
        }
        .padding()
        .task { await shapes.start() }
    }
}

/// Draws boxes over a preview that shows the whole frame.
struct Boxes: View {
    let found: Found
    /// Of each label: colours that people with any kind of colour vision tell apart (Okabe and Ito).
    private static let colours: [String: Color] = [
        "circle": Color(red: 0.90, green: 0.62, blue: 0),
        "square": Color(red: 0.34, green: 0.71, blue: 0.91),
        "triangle": Color(red: 0, green: 0.62, blue: 0.45),
    ]

    var body: some View {
        Canvas { context, size in
            let scale = size.width / Double(found.width)
            for shape in found.shapes {
                let (box, label) = (shape.box, shape.label ?? "?")
                let place = CGRect(
                    x: box.left * scale, y: box.top * scale, width: (box.right - box.left) * scale,
                    height: (box.bottom - box.top) * scale)
                let colour = Self.colours[label] ?? .white
                context.stroke(Path(place), with: .color(colour), lineWidth: 3)
                let words = Text("\(label) \(Int((shape.score * 100).rounded())) %").foregroundColor(colour).bold()
                context.draw(words, at: place.origin, anchor: .topLeading)
            }
        }
    }
}

/// What the camera sees.
struct Preview: UIViewRepresentable {
    let session: AVCaptureSession

    func makeUIView(context: Context) -> PreviewLayerView {
        let view = PreviewLayerView()
        view.previewLayer.session = session
        return view
    }

    func updateUIView(_ view: PreviewLayerView, context: Context) {}

    /// A view whose layer is the preview.
    final class PreviewLayerView: UIView {
        override class var layerClass: AnyClass { AVCaptureVideoPreviewLayer.self }
        var previewLayer: AVCaptureVideoPreviewLayer { layer as! AVCaptureVideoPreviewLayer }
    }
}
