// The part of SwiftUI, and of UIKit, that the sample for iOS uses: declarations to type-check it by. Nothing is drawn.
//
// Source: developer.apple.com/documentation/swiftui.

import AVFoundation
import Foundation

@MainActor @preconcurrency
public protocol View {
    associatedtype Body: View
    @ViewBuilder var body: Body { get }
}

extension Never: View {
    public var body: Never { return fatalError("no view") }
}

/// What has no body.
@MainActor @preconcurrency
public protocol Leaf: View where Body == Never {}

extension Leaf {
    public var body: Never { fatalError("a leaf") }
}

public struct Group<each Part: View>: Leaf {}

extension Optional: View where Wrapped: View {
    public var body: Never { return fatalError("a leaf") }
}

@resultBuilder
public struct ViewBuilder {
    public static func buildBlock<each Part: View>(_ parts: repeat each Part) -> Group<repeat each Part> { Group() }
    public static func buildIf<Part: View>(_ part: Part?) -> Part? { part }
}

extension View {
    public func aspectRatio(_ ratio: CGFloat? = nil, contentMode: ContentMode) -> some View { self }
    public func accessibilityHidden(_ isHidden: Bool) -> some View { self }
    public func padding(_ length: CGFloat? = nil) -> some View { self }
    public func task(
        priority: TaskPriority = .userInitiated, _ action: @escaping @Sendable @isolated(any) () async -> Void
    ) -> some View { self }
}

public enum ContentMode: Sendable {
    case fit, fill
}

public struct VStack<Content: View>: Leaf {
    public init(@ViewBuilder content: () -> Content) {}
}

public struct ZStack<Content: View>: Leaf {
    public init(@ViewBuilder content: () -> Content) {}
}

public struct Text: Leaf, Sendable {
    public nonisolated init<S: StringProtocol>(_ content: S) {}
    public nonisolated func foregroundColor(_ color: Color?) -> Text { self }
    public nonisolated func bold() -> Text { self }
}

public struct Slider<Label: View>: Leaf {
    public init(value: Binding<Double>, in bounds: ClosedRange<Double>, @ViewBuilder label: () -> Label) {}
}

public struct Color: Sendable {
    public static let white = Color(red: 1, green: 1, blue: 1)
    public init(red: Double, green: Double, blue: Double) {}
}

public struct Path: Sendable {
    public init(_ rect: CGRect) {}
}

public struct UnitPoint: Sendable {
    public static let topLeading = UnitPoint()
}

public struct GraphicsContext {
    public struct Shading: Sendable {
        public static func color(_ color: Color) -> Shading { Shading() }
    }

    public func stroke(_ path: Path, with shading: Shading, lineWidth: CGFloat = 1) {}
    public func draw(_ text: Text, at point: CGPoint, anchor: UnitPoint) {}
}

public struct Canvas: Leaf {
    public init(renderer: @escaping (inout GraphicsContext, CGSize) -> Void) {}
}

public struct Binding<Value> {}

public protocol ObservableObject: AnyObject {}

@propertyWrapper
public struct Published<Value> {
    public var wrappedValue: Value
    public init(wrappedValue: Value) { self.wrappedValue = wrappedValue }
}

@MainActor @preconcurrency @propertyWrapper
public struct StateObject<Object: ObservableObject> {
    @MainActor @preconcurrency @dynamicMemberLookup
    public struct Wrapper {
        public subscript<Value>(dynamicMember path: ReferenceWritableKeyPath<Object, Value>) -> Binding<Value> { Binding() }
    }

    public let wrappedValue: Object
    public var projectedValue: Wrapper { Wrapper() }
    public init(wrappedValue: @autoclosure @escaping () -> Object) { self.wrappedValue = wrappedValue() }
}

@MainActor @preconcurrency
public protocol Scene {}

public struct WindowGroup<Content: View>: Scene {
    public init(@ViewBuilder content: () -> Content) {}
}

@MainActor @preconcurrency
public protocol App {
    associatedtype Body: Scene
    var body: Body { get }
    init()
}

extension App {
    public static func main() {}
}

@MainActor
open class UIView: NSObject {
    public nonisolated override init() {}
    open class var layerClass: AnyClass { CALayer.self }
    public var layer: CALayer { CALayer() }
}

@MainActor @preconcurrency
public protocol UIViewRepresentable: Leaf {
    associatedtype UIViewType: UIView
    typealias Context = RepresentableContext
    func makeUIView(context: Context) -> UIViewType
    func updateUIView(_ view: UIViewType, context: Context)
}

public struct RepresentableContext {}
