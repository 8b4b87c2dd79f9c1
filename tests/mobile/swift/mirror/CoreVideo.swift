// The part of Core Video that bundles use, by the names that Apple documents, so that the code around it is type-checked and run
// where there is no Core Video. A buffer's memory holds its pixels only while it is locked.
//
// Source: developer.apple.com/documentation/corevideo: CVPixelBuffer, CVBuffer, Pixel Format Identifiers.

import CoreGraphics
import Foundation

public typealias CVReturn = Int32
public typealias OSType = UInt32
public typealias CVPixelBuffer = CVBuffer

public let kCVReturnSuccess: CVReturn = 0
public let kCVPixelFormatType_32BGRA: OSType = 0x4247_5241
public let kCVPixelFormatType_420YpCbCr8BiPlanarFullRange: OSType = 0x3432_3066
public let kCVPixelFormatType_420YpCbCr8BiPlanarVideoRange: OSType = 0x3432_3076
public let kCVImageBufferYCbCrMatrixKey = CFString()
public let kCVImageBufferYCbCrMatrix_ITU_R_601_4 = CFString()
public let kCVImageBufferYCbCrMatrix_ITU_R_709_2 = CFString()

public enum CVAttachmentMode: UInt32, Sendable {
    case shouldNotPropagate, shouldPropagate
}

public struct CVPixelBufferLockFlags: OptionSet, Sendable {
    public let rawValue: UInt64
    public init(rawValue: UInt64) { self.rawValue = rawValue }
    public static let readOnly = CVPixelBufferLockFlags(rawValue: 1)
}

/// One thread uses it at a time.
public final class CVBuffer {
    /// A plane, or all of a buffer without planes.
    public struct Plane {
        fileprivate let height: Int
        fileprivate let bytesPerRow: Int
        fileprivate let pixels: [UInt8]
        fileprivate let memory: UnsafeMutableRawBufferPointer

        public init(height: Int, bytesPerRow: Int, pixels: [UInt8]) {
            self.height = height
            self.bytesPerRow = bytesPerRow
            self.pixels = pixels
            memory = .allocate(byteCount: height * bytesPerRow, alignment: 16)
        }
    }

    fileprivate let width: Int
    fileprivate let height: Int
    fileprivate let format: OSType
    fileprivate let planes: [Plane]
    fileprivate let isPlanar: Bool
    fileprivate let matrix: CFString?
    /// What locking gives.
    fileprivate let lockStatus: CVReturn
    /// How often it is locked now, and was locked at all.
    public private(set) var locks = 0
    public private(set) var lockings = 0

    public init(
        width: Int, height: Int, format: OSType, planes: [Plane], matrix: CFString? = nil, lockStatus: CVReturn = 0
    ) {
        (self.width, self.height, self.format) = (width, height, format)
        (self.planes, self.matrix, self.lockStatus) = (planes, matrix, lockStatus)
        isPlanar = format != kCVPixelFormatType_32BGRA
        hide()
    }

    deinit { for plane in planes { plane.memory.deallocate() } }

    fileprivate func lock() -> CVReturn {
        guard lockStatus == kCVReturnSuccess else { return lockStatus }
        (locks, lockings) = (locks + 1, lockings + 1)
        for plane in planes { plane.memory.copyBytes(from: plane.pixels) }
        return kCVReturnSuccess
    }

    fileprivate func unlock() -> CVReturn {
        precondition(locks > 0, "a buffer is unlocked that is not locked")
        locks -= 1
        if locks == 0 { hide() }
        return kCVReturnSuccess
    }

    fileprivate func start(of number: Int) -> UnsafeMutableRawPointer? {
        locks > 0 ? planes[number].memory.baseAddress : nil
    }

    private func hide() {
        for plane in planes { plane.memory.initializeMemory(as: UInt8.self, repeating: 0xdd) }
    }
}

public func CVPixelBufferLockBaseAddress(_ buffer: CVPixelBuffer, _ flags: CVPixelBufferLockFlags) -> CVReturn {
    precondition(flags == .readOnly)
    return buffer.lock()
}

@discardableResult
public func CVPixelBufferUnlockBaseAddress(_ buffer: CVPixelBuffer, _ flags: CVPixelBufferLockFlags) -> CVReturn {
    precondition(flags == .readOnly)
    return buffer.unlock()
}

public func CVPixelBufferGetWidth(_ buffer: CVPixelBuffer) -> Int { buffer.width }
public func CVPixelBufferGetHeight(_ buffer: CVPixelBuffer) -> Int { buffer.height }
public func CVPixelBufferGetPixelFormatType(_ buffer: CVPixelBuffer) -> OSType { buffer.format }
public func CVPixelBufferGetBaseAddress(_ buffer: CVPixelBuffer) -> UnsafeMutableRawPointer? { buffer.start(of: 0) }
public func CVPixelBufferGetBytesPerRow(_ buffer: CVPixelBuffer) -> Int { buffer.planes[0].bytesPerRow }
public func CVPixelBufferGetPlaneCount(_ buffer: CVPixelBuffer) -> Int { buffer.isPlanar ? buffer.planes.count : 0 }
public func CVPixelBufferGetHeightOfPlane(_ buffer: CVPixelBuffer, _ plane: Int) -> Int { buffer.planes[plane].height }
public func CVPixelBufferGetBytesPerRowOfPlane(_ buffer: CVPixelBuffer, _ plane: Int) -> Int {
    buffer.planes[plane].bytesPerRow
}
public func CVPixelBufferGetBaseAddressOfPlane(_ buffer: CVPixelBuffer, _ plane: Int) -> UnsafeMutableRawPointer? {
    buffer.start(of: plane)
}

public func CVBufferCopyAttachment(
    _ buffer: CVBuffer, _ key: CFString, _ mode: UnsafeMutablePointer<CVAttachmentMode>?
) -> AnyObject? {
    CFEqual(key, kCVImageBufferYCbCrMatrixKey) ? buffer.matrix : nil
}
