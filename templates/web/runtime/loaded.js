import {Shapes, chooseBucket, cutOutputs, isTaking} from "./shapes.js";

/**
 * @typedef {import("./manifest.js").Variant} Variant
 * @typedef {import("./shapes.js").Tensors} Tensors
 */

/** A variant with its sessions. */
export class Loaded {
  #sessions;
  #shapes;

  /**
   * @param {Variant} variant
   * @param {readonly import("./sessions.js").Session[]} sessions one for each bucket
   * @param {import("./manifest.js").Manifest} manifest
   */
  constructor(variant, sessions, manifest) {
    this.variant = variant;
    this.#sessions = sessions;
    this.#shapes = new Shapes(manifest);
  }

  /**
   * Checks the inputs and adds the masks that are missing.
   *
   * @param {Tensors} given
   * @throws {import("./errors.js").ModelError} `input`, if they do not fit the model or each other
   */
  checkInputs(given) {
    return this.#shapes.checkInputs(given);
  }

  /**
   * Runs an inference in the session of the smallest size into which the inputs fit.
   *
   * @param {Tensors} given masks may be left out
   * @throws {import("./errors.js").ModelError} if they do not fit, or are larger than every model, or onnxruntime fails
   */
  async run(given) {
    const feed = this.checkInputs(given);
    const dims = this.variant.buckets.map((bucket) => bucket.dims);
    return this.runIn(chooseBucket(dims, this.#shapes.readSizes(feed), this.variant.exact), feed);
  }

  /**
   * Runs an inference in the session of one size, into which the inputs fit.
   *
   * @param {number} number
   * @param {Tensors} feed
   */
  async runIn(number, feed) {
    const {buckets, slices} = this.variant;
    const outputs = await this.#sessions[number].run(this.#shapes.padInputs(feed, buckets[number].dims));
    return cutOutputs(outputs, slices, this.#shapes.readSizes(feed));
  }

  /**
   * Returns whether the inputs fit into a bucket's sizes.
   *
   * @param {import("./manifest.js").Bucket} bucket
   * @param {Tensors} feed
   */
  isTaking(bucket, feed) {
    return isTaking(bucket.dims, this.#shapes.readSizes(feed), this.variant.exact);
  }

  /**
   * Runs an inference on inputs that are cut, or repeated, to a bucket's sizes; nothing is known about its outputs.
   *
   * @param {number} number
   * @param {Tensors} feed
   */
  async runResized(number, feed) {
    await this.runIn(number, this.#shapes.resizeInputs(feed, this.variant.buckets[number].dims));
  }

  /** Frees the sessions' memory. */
  async close() {
    await Promise.all(this.#sessions.map((session) => session.close()));
  }
}
