import {requireInput} from "./errors.js";
import {Tensor, countElements, findArrayType, formatShape, makeArray, makeFilled} from "./tensors.js";

/**
 * @typedef {Map<string, Tensor>} Tensors by their names in the model
 * @typedef {Map<string, number>} Sizes by symbolic dimension
 * @typedef {import("./manifest.js").Spec} Spec
 */

const UNKNOWN = "?";

/** The sizes of the model's inputs; pads inputs for a model with static shapes. */
export class Shapes {
  /** @param {import("./manifest.js").Manifest} manifest */
  constructor(manifest) {
    this.inputs = manifest.inputs;
    this.fills = manifest.fills;
    this.masks = manifest.masks;
  }

  /**
   * Checks the inputs and adds the masks that are missing: ones, in the other inputs' sizes.
   *
   * @param {Tensors} given
   * @returns {Tensors}
   * @throws {import("./errors.js").ModelError} `input`, if a name, type or shape is not the model's, or two shapes
   *     do not fit together
   */
  checkInputs(given) {
    const names = this.inputs.map((spec) => spec.name);
    const missing = names.filter((name) => !given.has(name) && !this.masks.has(name));
    const unknown = [...given.keys()].filter((name) => !names.includes(name));
    requireInput(
      !missing.length && !unknown.length,
      `the inputs are ${[...given.keys()].join(", ") || "none"}, expected ${names.join(", ")}`,
    );
    for (const spec of this.inputs) {
      const tensor = given.get(spec.name);
      if (tensor) checkTensor(spec, tensor);
    }
    const sizes = this.readSizes(given);
    return new Map(this.inputs.map((spec) => {
      const shape = spec.shape.map((axis) => (typeof axis === "number" ? axis : sizes.get(axis) ?? 0));
      return [spec.name, given.get(spec.name) ?? makeFilled(spec.dtype, shape, 1)];
    }));
  }

  /**
   * Returns the size of each symbolic dimension, from the inputs' shapes.
   *
   * @param {Tensors} feed
   * @returns {Sizes}
   * @throws {import("./errors.js").ModelError} `input`, if two inputs have different sizes for one dimension
   */
  readSizes(feed) {
    /** @type {Map<string, [size: number, owner: string]>} */
    const found = new Map();
    for (const spec of this.inputs) {
      const shape = feed.get(spec.name)?.shape ?? [];
      for (const [place, size] of shape.entries()) {
        const dim = spec.shape[place];
        if (typeof dim === "number" || dim === UNKNOWN) continue;
        const [first, owner] = found.get(dim) ?? [size, spec.name];
        requireInput(
          size === first,
          `the inputs do not fit together: '${dim}' is ${first} in '${owner}' and ${size} in '${spec.name}'`,
        );
        found.set(dim, [first, owner]);
      }
    }
    return new Map([...found].map(([dim, [size]]) => [dim, size]));
  }

  /**
   * Fills the inputs up at the end to a bucket's sizes. The inputs must fit into the bucket.
   *
   * @param {Tensors} feed
   * @param {Sizes} bucket
   * @returns {Tensors}
   */
  padInputs(feed, bucket) {
    return this.#change(feed, bucket, (tensor, shape, spec) =>
      copyInto(tensor, makeFilled(spec.dtype, shape, this.fills.get(spec.name) ?? 0)));
  }

  /**
   * Cuts the inputs to other sizes, or repeats them from their beginning.
   *
   * @param {Tensors} feed
   * @param {Sizes} sizes
   * @returns {Tensors}
   */
  resizeInputs(feed, sizes) {
    return this.#change(feed, sizes, repeatTo);
  }

  /**
   * @param {Tensors} feed
   * @param {Sizes} sizes
   * @param {(tensor: Tensor, shape: number[], spec: Spec) => Tensor} change
   * @returns {Tensors}
   */
  #change(feed, sizes, change) {
    return new Map(this.inputs.map((spec) => {
      const tensor = take(feed, spec.name);
      const shape = tensor.shape.map((size, axis) => sizes.get(String(spec.shape[axis])) ?? size);
      return [spec.name, isSame(shape, tensor.shape) ? tensor : change(tensor, shape, spec)];
    }));
  }
}

/**
 * @param {Spec} spec
 * @param {Tensor} tensor
 */
function checkTensor(spec, tensor) {
  const Type = findArrayType(spec.dtype);
  requireInput(
    tensor instanceof Tensor && tensor.data instanceof Type,
    `input '${spec.name}' is ${tensor?.data?.constructor?.name ?? typeof tensor}, expected a Tensor of ${Type.name}`,
  );
  const fits = tensor.shape.length === spec.shape.length
    && spec.shape.every((axis, place) => typeof axis === "string" || axis === tensor.shape[place]);
  requireInput(
    fits, `input '${spec.name}' has shape ${formatShape(tensor.shape)}, expected ${formatShape(spec.shape)}`,
  );
}

/**
 * Returns a tensor by its name in the model.
 *
 * @param {Tensors} tensors
 * @param {string} name
 */
export function take(tensors, name) {
  const tensor = tensors.get(name);
  if (!tensor) throw new Error(`there is no tensor ${name}`);
  return tensor;
}

/**
 * Returns the index of the first bucket into which the sizes fit, or which has exactly these sizes.
 *
 * @param {readonly Sizes[]} buckets
 * @param {Sizes} sizes
 * @param {boolean} exact
 * @throws {import("./errors.js").ModelError} `input`, if there is no such bucket
 */
export function chooseBucket(buckets, sizes, exact) {
  const index = buckets.findIndex((bucket) => isTaking(bucket, sizes, exact));
  requireInput(
    index >= 0,
    `the inputs have ${formatSizes(sizes)}, and this variant of the model takes`
      + ` ${exact ? "just the sizes" : "sizes up to"} ${buckets.map(formatSizes).join("; ")}`,
  );
  return index;
}

/**
 * Returns whether the sizes fit into a bucket; with `exact`, whether the bucket has exactly these sizes.
 *
 * @param {Sizes} bucket
 * @param {Sizes} sizes
 * @param {boolean} exact
 */
export function isTaking(bucket, sizes, exact) {
  const equal = bucket.size === sizes.size && [...sizes].every(([dim, size]) => bucket.get(dim) === size);
  return equal || (!exact && [...sizes].every(([dim, size]) => size <= (bucket.get(dim) ?? size)));
}

/**
 * Returns sizes as text, such as `batch 1, sequence 16`.
 *
 * @param {Sizes} sizes
 */
export function formatSizes(sizes) {
  return [...sizes].map(([dim, size]) => `${dim} ${size}`).join(", ");
}

/**
 * Cuts the axes in `slices` of the outputs to their dimensions' sizes.
 *
 * @param {Tensors} outputs
 * @param {readonly import("./manifest.js").Slice[]} slices
 * @param {Sizes} sizes
 * @returns {Tensors}
 */
export function cutOutputs(outputs, slices, sizes) {
  const whole = new Map(outputs);
  for (const {output, axis, dim} of slices) {
    const tensor = take(whole, output);
    const shape = [...tensor.shape];
    shape[axis] = Math.min(shape[axis], sizes.get(dim) ?? shape[axis]);
    whole.set(output, repeatTo(tensor, shape));
  }
  return whole;
}

/**
 * Copies a tensor's elements to the same places of a larger one, and returns that.
 *
 * @param {Tensor} tensor
 * @param {Tensor} larger
 */
function copyInto(tensor, larger) {
  const row = tensor.shape.at(-1) ?? 1;
  let from = 0;
  for (const place of listRows(tensor.shape)) {
    copy(tensor.data, from, larger.data, computeOffset(place, larger.shape), row);
    from += row;
  }
  return larger;
}

/**
 * Cuts a tensor at its end, or repeats it from its beginning, to get another shape.
 *
 * @param {Tensor} tensor
 * @param {readonly number[]} shape
 */
function repeatTo(tensor, shape) {
  if (isSame(shape, tensor.shape) || tensor.shape.includes(0)) return tensor;
  const Type = /** @type {import("./tensors.js").ArrayType} */ (tensor.data.constructor);
  const made = new Tensor(makeArray(Type, countElements(shape)), shape);
  const here = tensor.shape.at(-1) ?? 1;
  const row = shape.at(-1) ?? 1;
  let to = 0;
  for (const place of listRows(shape)) {
    const from = computeOffset(place.map((index, axis) => index % tensor.shape[axis]), tensor.shape);
    for (let start = 0; start < row; start += here) {
      copy(tensor.data, from, made.data, to + start, Math.min(here, row - start));
    }
    to += row;
  }
  return made;
}

/**
 * @param {import("./tensors.js").TypedArray} source
 * @param {number} from
 * @param {import("./tensors.js").TypedArray} target of the same class
 * @param {number} to
 * @param {number} count
 */
function copy(source, from, target, to, count) {
  /** @type {Uint8Array} */ (target).set(/** @type {Uint8Array} */ (source).subarray(from, from + count), to);
}

/**
 * Yields the place at which each row along the last axis begins, in order.
 *
 * @param {readonly number[]} shape
 */
function* listRows(shape) {
  const outer = shape.slice(0, -1);
  const number = shape.includes(0) ? 0 : countElements(outer);
  for (let index = 0; index < number; index++) {
    const place = shape.map(() => 0);
    let rest = index;
    for (let axis = outer.length - 1; axis >= 0; axis--) {
      place[axis] = rest % outer[axis];
      rest = Math.floor(rest / outer[axis]);
    }
    yield place;
  }
}

/**
 * @param {readonly number[]} place
 * @param {readonly number[]} shape
 */
function computeOffset(place, shape) {
  return shape.reduce((sum, size, axis) => sum * size + place[axis], 0);
}

/**
 * @param {readonly number[]} one
 * @param {readonly number[]} other
 */
export function isSame(one, other) {
  return one.length === other.length && one.every((size, axis) => size === other[axis]);
}
