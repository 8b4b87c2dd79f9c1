import {ModelError, Refused} from "./errors.js";
import {Goldens} from "./goldens.js";
import {Loaded} from "./loaded.js";
import {parseManifest} from "./manifest.js";
import {Meaning} from "./meaning.js";
import {Sessions, startRuntime} from "./sessions.js";
import {formatSizes} from "./shapes.js";
import {Files} from "./source.js";

/**
 * @typedef {import("./types.d.ts").PassedOver} PassedOver
 * @typedef {import("./manifest.js").Manifest} Manifest
 * @typedef {import("./manifest.js").Variant} Variant
 * @typedef {import("./shapes.js").Tensors} Tensors
 *
 * @typedef {object} Opened a bundle with its variant that works here
 * @property {Loaded} loaded
 * @property {Goldens} goldens
 * @property {Meaning} meaning
 * @property {readonly PassedOver[]} passedOver
 * @property {readonly string[]} notes
 */

/**
 * Opens the first variant of the bundle that works here.
 *
 * @param {import("./types.d.ts").OpenOptions} options
 * @param {import("./meaning.js").Names} names
 * @param {import("./source.js").Packed} packed where the package has the bundle's files
 * @returns {Promise<Opened>}
 * @throws {ModelError} `variant`, if none works, with the reason for each, or there is none with this id; `memory`
 *     instead, if there was not enough of it for one; `missing`,
 *     `changed` or `damaged`, if the bundle is not whole; `runtime`, if onnxruntime cannot be imported or does not start; `input`, for `prescale` without
 *     pictures that are resized
 */
export async function openBundle({variant: only, source, ort, prescale} = {}, names, packed) {
  /** @type {string[]} */
  const notes = [];
  /** @type {(note: string) => void} */
  const tell = (note) => {
    if (!notes.includes(note)) notes.push(note);
  };
  const files = new Files(source, tell, packed);
  const manifest = parseManifest(await files.readText("manifest.json"));
  await files.know(manifest.files, manifest.name);
  const ids = manifest.variants.map(({id}) => id);
  if (only !== undefined && !ids.includes(only)) {
    throw new ModelError("variant", `the bundle has no variant '${only}'; it has: ${ids.join(", ")}`);
  }
  const variants = manifest.variants.filter(({id}) => only === undefined || id === only);
  const goldens = new Goldens(files, manifest);
  const sessions = new Sessions(await startRuntime(ort, variants, tell), files, manifest);
  const meaning = new Meaning(manifest, names, prescale);
  await meaning.readFiles(files);
  const {loaded, passedOver} = await new Opener(sessions, goldens, manifest).openFirst(variants);
  await files.forgetOthers();
  return {loaded, goldens, meaning, passedOver, notes};
}

class Opener {
  #sessions;
  #goldens;
  #manifest;

  /**
   * @param {Sessions} sessions
   * @param {Goldens} goldens
   * @param {Manifest} manifest
   */
  constructor(sessions, goldens, manifest) {
    this.#sessions = sessions;
    this.#goldens = goldens;
    this.#manifest = manifest;
  }

  /** @param {readonly Variant[]} variants */
  async openFirst(variants) {
    /** @type {PassedOver[]} */
    const passedOver = [];
    let isMemory = false;
    for (const variant of variants) {
      try {
        return {loaded: await this.#openProven(variant), passedOver};
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        passedOver.push({variant: variant.id, reason: error.message});
        isMemory ||= error.isMemory;
      }
    }
    const reasons = passedOver.map(({variant, reason}) => `\n  ${variant}: ${reason}`).join("");
    throw new ModelError(isMemory ? "memory" : "variant", `no variant of ${this.#manifest.name} works here:${reasons}`);
  }

  /**
   * Opens a variant's sessions and checks that their outputs are near enough to the golden ones.
   *
   * @param {Variant} variant
   */
  async #openProven(variant) {
    this.#sessions.require(variant);
    /** @type {import("./sessions.js").Session[]} */
    const opened = [];
    const loaded = new Loaded(variant, opened, this.#manifest);
    try {
      for (const {model} of variant.buckets) opened.push(await this.#sessions.open(variant, model));
      await this.#prove(loaded);
      return loaded;
    } catch (error) {
      await loaded.close();
      if (!(error instanceof ModelError && IN_RUNS.has(error.reason))) throw error;
      throw new Refused(error.message, error.reason === "memory");
    }
  }

  /** @param {Loaded} loaded */
  async #prove(loaded) {
    const {variant} = loaded;
    for (let index = 0; index < this.#goldens.count; index++) {
      const outputs = await loaded.run(await this.#goldens.readInputs(index));
      const found = await this.#goldens.computeClosenessDb(index, variant.id, outputs);
      requireNear(variant, found, index ? ` for golden sample ${index + 1}` : "");
      if (!index) await this.#proveSizes(loaded);
    }
  }

  /**
   * Runs a padded golden input in each session and compares the outputs.
   *
   * Where no golden input fits into a size, it runs one that is cut to the size; nothing is known about its outputs.
   *
   * @param {Loaded} loaded
   */
  async #proveSizes(loaded) {
    const {variant} = loaded;
    if (variant.buckets.length === 1) return;
    const feeds = await Promise.all(Array.from({length: this.#goldens.count}, (_, index) => this.#goldens.readInputs(index)));
    for (const [number, bucket] of variant.buckets.entries()) {
      const held = feeds.findIndex((feed) => loaded.isTaking(bucket, feed));
      if (held < 0) {
        await loaded.runResized(number, feeds[0]);
        continue;
      }
      const outputs = await loaded.runIn(number, feeds[held]);
      const found = await this.#goldens.computeClosenessDb(held, variant.id, outputs);
      requireNear(variant, found, ` for ${formatSizes(bucket.dims)}`);
    }
  }
}

/** Reasons of a failed run that pass a variant over; others, such as a missing file, end the opening. */
const IN_RUNS = new Set(["inference", "memory", "device-lost"]);

/**
 * @param {Variant} variant
 * @param {number} found
 * @param {string} which
 */
function requireNear({minDb}, found, which) {
  if (found >= minDb) return;
  throw new Refused(`its output${which} is ${formatDb(found)} dB near the golden one, ${formatDb(minDb)} dB are needed`);
}

/** @param {number} db */
function formatDb(db) {
  return Number.isFinite(db) ? db.toFixed(1) : "-inf";
}
