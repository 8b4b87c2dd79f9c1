import {ModelError, requireInput} from "./errors.js";
import {isSame, take} from "./shapes.js";
import {Tensor, decode, findArrayType, findElementBytes, isFloat, makeArray, readNumbers} from "./tensors.js";

/**
 * @typedef {import("./manifest.js").GoldenTensor} GoldenTensor
 * @typedef {import("./shapes.js").Tensors} Tensors
 */

/** The closeness of equal tensors. */
export const EQUAL_DB = 200;

/** The share of values that must be equal in a tensor of integers or booleans, for example of class indices. */
const MIN_EQUAL_SHARE = 0.99;

/** Of a channel in a palette: what a byte tells apart. */
const MOST_VALUES = 256;

/** The bundle's golden tensors: inputs, and the outputs that each variant gave for them on the build host. */
export class Goldens {
  #files;
  #goldens;

  /**
   * @param {import("./source.js").Files} files
   * @param {import("./manifest.js").Manifest} manifest
   */
  constructor(files, manifest) {
    this.#files = files;
    this.#goldens = manifest.goldens;
  }

  /** The number of samples, at least 1. */
  get count() {
    return this.#goldens.length;
  }

  /**
   * Returns the inputs of one sample.
   *
   * @param {number} index
   * @returns {Promise<Tensors>}
   */
  async readInputs(index) {
    const {inputs} = this.#goldens[index];
    const tensors = await Promise.all(inputs.map((entry) => this.#readTensor(entry)));
    return new Map(inputs.map(({name}, place) => [name, tensors[place]]));
  }

  /**
   * Returns the closeness of a sample's outputs to its golden outputs in dB: that of the worst output.
   *
   * Where an output or a quantity must be nearer than others, its extra dB are subtracted, so that one limit serves all.
   *
   * @param {number} index
   * @param {string} variant
   * @param {Tensors} found
   */
  async computeClosenessDb(index, variant, found) {
    const entries = this.#goldens[index].outputs[variant];
    const all = await Promise.all(entries.map(async (entry) =>
      computeClosenessDb(entry, await this.#readTensor(entry), take(found, entry.name))));
    return Math.min(...all);
  }

  /** @param {GoldenTensor} entry */
  async #readTensor(entry) {
    const file = await this.#files.readBytes(entry.path);
    try {
      const width = findElementBytes(entry.dtype);
      const bytes = entry.palette ? unpack(file, entry.palette, width) : file;
      const count = [bytes.length / width];
      return decode(entry.dtype, (entry.stride ?? 1) === 1 ? entry.shape : count, bytes);
    } catch (error) {
      throw new ModelError("damaged", `the bundle is damaged: ${entry.path}: ${/** @type {Error} */ (error).message}`, error);
    }
  }
}

/**
 * Returns the values of a file as they are without a palette.
 *
 * @param {Uint8Array} packed
 * @param {import("./manifest.js").Palette} palette
 * @param {number} width of a value, in bytes
 * @throws {ModelError} `input`, if the palette is none, or not all there, or a byte stands for no value of it
 */
function unpack(packed, {step, sizes}, width) {
  requireInput(step > 0 && sizes.length > 0 && sizes.every((size) => size > 0 && size <= MOST_VALUES),
    `a palette cannot have the step ${step} and the sizes [${sizes.join(", ")}]`);
  const begins = sizes.map((_, channel) => sizes.slice(0, channel).reduce((sum, size) => sum + size, 0) * width);
  const table = sizes.reduce((sum, size) => sum + size, 0) * width;
  requireInput(table <= packed.length, `it has ${packed.length} bytes, its palette alone ${table}`);
  const values = new Uint8Array((packed.length - table) * width);
  packed.subarray(table).forEach((which, place) => {
    const channel = Math.floor(place / step) % sizes.length;
    requireInput(which < sizes[channel], "a byte is beyond its channel's palette");
    const from = begins[channel] + which * width;
    for (let n = 0; n < width; n++) values[place * width + n] = packed[from + n];
  });
  return values;
}

/**
 * @param {GoldenTensor} entry
 * @param {Tensor} golden
 * @param {Tensor} output
 */
export function computeClosenessDb(entry, golden, output) {
  if (!isSame(entry.shape, output.shape)) return -Infinity;
  const stride = entry.stride ?? 1;
  const some = takeStored(output, entry.dtype, stride);
  if (golden.data.length !== some.length) return -Infinity;
  if (!isFloat(entry.dtype)) return computeEqualDb(golden.data, some);
  const {size, runs, extra_db: extraDb} = entry.quantities ?? {size: 1, runs: [[1, 0]], extra_db: [entry.extra_db ?? 0]};
  const ofChannel = runs.flatMap(([count, number]) => Array.from({length: count}, () => number));
  const [wanted, found] = [readNumbers(golden), readNumbers(new Tensor(some, golden.shape))];
  return Math.min(...extraDb.map((extra, number) => {
    const near = computeSqnrDb(wanted, found, (place) =>
      ofChannel[Math.floor((place * stride) / size) % ofChannel.length] === number);
    return near === EQUAL_DB ? near : near - extra;
  }));
}

/**
 * Returns the values of an output that a golden tensor contains: all, or every `stride`-th.
 *
 * @param {Tensor} output
 * @param {import("./tensors.js").Dtype} dtype
 * @param {number} stride
 */
function takeStored({data}, dtype, stride) {
  if (stride === 1) return data;
  const some = makeArray(findArrayType(dtype), Math.ceil(data.length / stride));
  for (let n = 0; n < some.length; n++) some[n] = data[n * stride];
  return some;
}

/**
 * Returns 200 if 99 % of the values are equal, else minus infinity.
 *
 * @param {import("./tensors.js").TypedArray} golden
 * @param {import("./tensors.js").TypedArray} found
 */
function computeEqualDb(golden, found) {
  let equal = 0;
  for (let n = 0; n < golden.length; n++) equal += golden[n] === found[n] ? 1 : 0;
  return !golden.length || equal / golden.length >= MIN_EQUAL_SHARE ? EQUAL_DB : -Infinity;
}

/**
 * Returns the signal-to-noise ratio in dB, at most 200, which means equal values.
 *
 * Only the places that `counts` accepts count. A NaN or infinity in only one of the arrays gives minus infinity.
 *
 * @param {ArrayLike<number>} reference
 * @param {ArrayLike<number>} output
 * @param {(place: number) => boolean} [counts]
 */
export function computeSqnrDb(reference, output, counts = () => true) {
  let signal = 0;
  let noise = 0;
  for (let n = 0; n < reference.length; n++) {
    if (!counts(n)) continue;
    const [wanted, found] = [reference[n], output[n]];
    if (Number.isFinite(wanted)) {
      signal += wanted * wanted;
      noise += (wanted - found) * (wanted - found);
    } else if (wanted !== found && !(Number.isNaN(wanted) && Number.isNaN(found))) {
      return -Infinity;
    }
  }
  if (noise === 0) return EQUAL_DB;
  if (!Number.isFinite(noise) || signal === 0) return -Infinity;
  return Math.min(EQUAL_DB, 10 * Math.log10(signal / noise));
}
