import {requireInput} from "./errors.js";

/**
 * @typedef {import("./types.d.ts").TypedArray} TypedArray
 * @typedef {"float16" | "float32" | "float64" | "int8" | "uint8" | "int16" | "uint16" | "int32" | "uint32"
 *   | "int64" | "uint64" | "bool"} Dtype an element type by numpy's name, which is onnxruntime's too
 * @typedef {{new (size: number): TypedArray, new (buffer: ArrayBuffer): TypedArray, name: string}} ArrayType
 */

/**
 * Numbers with a shape: an input or output of the model.
 *
 * The last axis is the fastest. A tensor uses the array that it was made with, not a copy.
 *
 * @template {TypedArray} [D=TypedArray]
 */
export class Tensor {
  /**
   * @param {D} data the elements; float16 as float32, bool as bytes 0 and 1
   * @param {readonly number[]} shape the size of each axis; empty for a single number
   * @throws {import("./errors.js").ModelError} `input`, if the array's size does not match the shape
   */
  constructor(data, shape) {
    const wanted = countElements(shape);
    requireInput(
      ArrayBuffer.isView(data) && shape.every((size) => Number.isInteger(size) && size >= 0) && data.length === wanted,
      `a tensor of shape ${formatShape(shape)} has ${wanted} elements, not ${data?.length}`,
    );
    this.data = data;
    this.shape = shape;
  }

  toString() {
    return `${this.data.constructor.name}${formatShape(this.shape)}`;
  }
}

/** @param {readonly number[]} shape */
export function countElements(shape) {
  return shape.reduce((product, size) => product * size, 1);
}

/** @param {readonly (number | string)[]} shape */
export function formatShape(shape) {
  return `[${shape.join(", ")}]`;
}

/** @type {Record<Dtype, [bytes: number, array: ArrayType]>} */
const TYPES = {
  float16: [2, Float32Array],
  float32: [4, Float32Array],
  float64: [8, Float64Array],
  int8: [1, Int8Array],
  uint8: [1, Uint8Array],
  int16: [2, Int16Array],
  uint16: [2, Uint16Array],
  int32: [4, Int32Array],
  uint32: [4, Uint32Array],
  int64: [8, BigInt64Array],
  uint64: [8, BigUint64Array],
  bool: [1, Uint8Array],
};

/**
 * Returns the class of the arrays that hold a type's elements.
 *
 * @param {Dtype} dtype
 */
export function findArrayType(dtype) {
  return TYPES[dtype][1];
}

/**
 * Returns the number of bytes of one element in a file.
 *
 * @param {Dtype} dtype
 */
export function findElementBytes(dtype) {
  return TYPES[dtype][0];
}

/** @param {Dtype} dtype */
export function isFloat(dtype) {
  return dtype.startsWith("float");
}

/**
 * Returns the tensor of a type and shape whose elements are these bytes, little-endian.
 *
 * Every platform with JavaScript engines of today is little-endian, as arrays of numbers are.
 *
 * @param {Dtype} dtype
 * @param {readonly number[]} shape
 * @param {Uint8Array} bytes
 * @throws {import("./errors.js").ModelError} `input`, if there are more or fewer elements
 */
export function decode(dtype, shape, bytes) {
  const [size, Type] = TYPES[dtype];
  requireInput(bytes.length % size === 0, `${bytes.length} bytes are no whole number of ${dtype}`);
  // A copy: arrays of larger elements begin at multiples of their size.
  const {buffer} = new Uint8Array(bytes);
  if (dtype === "float16") return new Tensor(widen(new Uint16Array(buffer)), shape);
  return new Tensor(new Type(buffer), shape);
}

/**
 * Returns a tensor of a type with one value everywhere.
 *
 * @param {Dtype} dtype
 * @param {readonly number[]} shape
 * @param {number} value
 */
export function makeFilled(dtype, shape, value) {
  const data = makeArray(findArrayType(dtype), countElements(shape));
  if (data instanceof BigInt64Array || data instanceof BigUint64Array) data.fill(BigInt(value));
  else data.fill(value);
  return new Tensor(data, shape);
}

/**
 * @param {ArrayType} Type
 * @param {number} size
 */
export function makeArray(Type, size) {
  return new Type(size);
}

/**
 * Returns a tensor's elements as numbers: the array itself where it holds such.
 *
 * @param {Tensor} tensor
 */
export function readNumbers({data}) {
  return data instanceof BigInt64Array || data instanceof BigUint64Array ? Float64Array.from(data, Number) : data;
}

const SMALLEST_HALF = 2 ** -24;

/** @type {Float32Array | undefined} */
let halves;

/**
 * Converts float16, given as their bits, to the equal float32.
 *
 * @param {Uint16Array} bits
 */
export function widen(bits) {
  // All 65,536 of them once: a look-up is several times as fast as the conversion.
  halves ??= Float32Array.from({length: 1 << 16}, (_, half) => widenOne(half));
  const table = halves;
  const data = new Float32Array(bits.length);
  for (let n = 0; n < bits.length; n++) data[n] = table[bits[n]];
  return data;
}

/** @param {number} half */
function widenOne(half) {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >> 10) & 0x1f;
  const mantissa = half & 0x3ff;
  if (exponent === 0) return sign * mantissa * SMALLEST_HALF;
  if (exponent === 0x1f) return mantissa ? NaN : sign * Infinity;
  return sign * (1024 + mantissa) * 2 ** (exponent - 25);
}

/**
 * Returns the bits of the nearest float16 of each number; ties go to the even one.
 *
 * @param {Float32Array} values
 */
export function narrow(values) {
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  const data = new Uint16Array(values.length);
  for (let n = 0; n < values.length; n++) data[n] = ((bits[n] >>> 16) & 0x8000) | narrowSize(bits[n] & 0x7fffffff, values[n]);
  return data;
}

/**
 * @param {number} size a float32's bits without the sign
 * @param {number} value the float32
 */
function narrowSize(size, value) {
  if (size > 0x7f800000) return 0x7e00; // not a number
  if (size >= 0x477ff000) return 0x7c00; // 65520 and more: infinity
  if (size < 0x38800000) return roundHalfToEven(Math.abs(value) / SMALLEST_HALF);
  return (size - 0x38000000 + 0xfff + ((size >>> 13) & 1)) >>> 13;
}

/**
 * Rounds a number of 0 or more as Python's round() does: halves to the even neighbour.
 *
 * @param {number} value
 */
export function roundHalfToEven(value) {
  const below = Math.floor(value);
  const over = value - below;
  return over < 0.5 || (over === 0.5 && below % 2 === 0) ? below : below + 1;
}
