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
export class Refused extends Error {}

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

// What V8, SpiderMonkey, JavaScriptCore, emscripten and onnxruntime say when there is no memory left.
const NO_MEMORY = /bad_alloc|out of memory|Aborted\(OOM\)|Array buffer allocation|could not allocate|failed to allocate/i;

/**
 * Returns the error of an inference that onnxruntime ended with another error.
 *
 * @param {unknown} error
 * @param {string} doing such as `inference`
 */
export function explainFailure(error, doing) {
  if (error instanceof ModelError) return error;
  const line = formatLine(error);
  if (NO_MEMORY.test(line) || (error instanceof RangeError && /memory/i.test(line))) {
    return new ModelError("memory", `${doing} failed: there is not enough memory: ${line}`, error);
  }
  return new ModelError("inference", `${doing} failed: ${line}`, error);
}
