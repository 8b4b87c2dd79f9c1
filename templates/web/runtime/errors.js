/**
 * What every call of the package throws: a text for people, and a reason for code.
 *
 * The app keeps running: after any of these another call, or another `open`, may work.
 */
export class ModelError extends Error {
  /**
   * @param {import("./types.d.ts").Reason} reason
   * @param {string} message what was found, and what to do
   * @param {unknown} [cause] the error behind this one
   */
  constructor(reason, message, cause) {
    super(message, cause === undefined ? undefined : {cause});
    this.name = "ModelError";
    /** Why, for code that decides what to do. */
    this.reason = reason;
  }
}

/** Why one variant cannot be used here. */
export class Refused extends Error {
  /**
   * @param {string} message
   * @param {boolean} [isMemory] whether there is not enough memory for it
   */
  constructor(message, isMemory = false) {
    super(message);
    this.isMemory = isMemory;
  }
}

/**
 * Throws a {@link ModelError} with the reason `input` unless `held`.
 *
 * @param {boolean} held
 * @param {string} otherwise what was found, and what to do
 * @returns {asserts held}
 */
export function requireInput(held, otherwise) {
  if (!held) throw new ModelError("input", otherwise);
}

const LONGEST = 400;

/**
 * Returns the beginning and the end of an error's message as one line; the cause is at the end.
 *
 * @param {unknown} error
 */
export function formatLine(error) {
  const text = String(error instanceof Error ? error.message : error).trim().replace(/\s+/g, " ");
  return text.length <= LONGEST ? text : `${text.slice(0, 80)} ... ${text.slice(80 - LONGEST)}`;
}

// What engines, emscripten and onnxruntime say when there is no memory left; the last two of a tensor that is larger than
// all addresses, of which WebAssembly has 4 GB.
const NO_MEMORY = /bad_alloc|out of memory|Aborted\(OOM\)|could not allocate|failed to allocate|Integer overflow|shape is too large/i;

/**
 * Returns the error of something that failed, with the reason `memory` where that is why.
 *
 * @param {unknown} error
 * @param {string} what such as `inference failed`
 * @param {import("./types.d.ts").Reason} [reason] otherwise
 */
export function explainFailure(error, what, reason = "inference") {
  if (error instanceof ModelError) return error;
  const line = formatLine(error);
  if (!isOutOfMemory(error)) return new ModelError(reason, `${what}: ${line}`, error);
  return new ModelError("memory", `${what}: there is not enough memory: ${line}`, error);
}

// What engines say of an array of a size that they cannot have. Other RangeErrors, such as of an offset, are faults.
const NO_ARRAY = /array (buffer )?length|string length|array size|allocation|memory|too (big|large)|maximum size/i;

/**
 * Returns whether something failed because there is not enough memory for it.
 *
 * @param {unknown} error
 */
export function isOutOfMemory(error) {
  const line = formatLine(error);
  return NO_MEMORY.test(line) || (error instanceof RangeError && NO_ARRAY.test(line));
}

/**
 * Does something whose arrays may be too large.
 *
 * @template T
 * @param {string} what fails then
 * @param {() => Promise<T> | T} job
 * @returns {Promise<T>}
 * @throws {ModelError} `memory`, if there is not enough of it; other errors stay
 */
export async function requireMemory(what, job) {
  try {
    return await job();
  } catch (error) {
    throw isOutOfMemory(error) ? explainFailure(error, what) : error;
  }
}
