// Runs off the caller's thread, which end when the caller's task is cancelled.

import Foundation

/// Tells a run to end. One thread runs, any thread cancels.
@_spi(EdgepackGenerated)
public final class Cancellation: @unchecked Sendable {
    private let lock = NSLock()
    private var isCancelled = false
    private var end: (() -> Void)?

    /// Ends the run, now or as soon as it begins.
    func cancel() {
        lock.lock()
        defer { lock.unlock() }
        isCancelled = true
        end?()
    }

    /// Does work that a function can end from another thread.
    ///
    /// - Parameter end: Called once if the run is cancelled, and never after the work is done.
    /// - Throws: `CancellationError` if the run was cancelled, whatever the work itself throws then.
    func run<Value>(endedBy end: @escaping () -> Void, _ work: () throws -> Value) throws -> Value {
        try set(end)
        let result = Result(catching: work)
        try set(nil)
        return try result.get()
    }

    private func set(_ end: (() -> Void)?) throws {
        lock.lock()
        defer { lock.unlock() }
        self.end = end
        if isCancelled {
            self.end = nil
            throw CancellationError()
        }
    }

    /// - Throws: `CancellationError` if the run was cancelled.
    func check() throws { try set(nil) }
}

/// A model's own thread for runs: one after the other, in the order in which they were asked for.
struct RunQueue: Sendable {
    private let queue = DispatchQueue(label: "edgepack.runs", qos: .userInitiated)

    /// Does work on the queue.
    ///
    /// - Throws: `CancellationError` if the caller's task is cancelled: before its turn the work does not begin.
    func run<Value: Sendable>(_ work: @escaping @Sendable (Cancellation) throws -> Value) async throws -> Value {
        let cancellation = Cancellation()
        return try await withTaskCancellationHandler {
            try await withCheckedThrowingContinuation { continuation in
                queue.async {
                    continuation.resume(
                        with: Result {
                            try cancellation.check()
                            return try work(cancellation)
                        })
                }
            }
        } onCancel: {
            cancellation.cancel()
        }
    }
}

/// Does work that may take long: elsewhere if this is the main thread, else at once.
func runOffMainThread(_ work: @escaping @Sendable () -> Void) {
    if Thread.isMainThread {
        DispatchQueue.global(qos: .utility).async(execute: work)
    } else {
        work()
    }
}
