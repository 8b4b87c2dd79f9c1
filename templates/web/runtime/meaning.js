import {makeAnswer, readLabels} from "./answers.js";
import {listReadToo, readPriors} from "./boxes.js";
import {ModelError, requireInput} from "./errors.js";
import {copyPixels, findPlacement, makeImageTensor, requireScaled} from "./images.js";
import {countPointNumbers} from "./keypoints.js";
import {isPicture, makePixels} from "./pictures.js";
import {take} from "./shapes.js";
import {Tensor, findArrayType, makeArray} from "./tensors.js";
import {WordPiece} from "./wordpiece.js";

/**
 * @typedef {import("./types.d.ts").AnswerOptions} AnswerOptions
 * @typedef {import("./images.js").ImageDescription} ImageDescription
 * @typedef {import("./images.js").Placement} Placement
 * @typedef {import("./manifest.js").Manifest} Manifest
 * @typedef {import("./shapes.js").Tensors} Tensors
 *
 * @typedef {object} Names the model's names by those in the API
 * @property {Readonly<Record<string, string>>} inputs
 * @property {Readonly<Record<string, string>>} outputs
 * @property {readonly string[]} answered the outputs, by the API's names, that have answers
 *
 * @typedef {object} Feed
 * @property {Tensors} tensors
 * @property {Placement | null} place the picture's place in the input; null unless there is exactly one picture
 */

/** Makes the model's inputs from pictures and texts, and answers from its outputs. */
export class Meaning {
  #manifest;
  #names;
  #specs;
  #prescale;
  /** @type {Map<string, WordPiece>} */
  #tokenizers = new Map();
  /** @type {Map<string, string[]>} */
  #labels = new Map();
  /** @type {Map<string, Float64Array>} */
  #priors = new Map();

  /**
   * @param {Manifest} manifest
   * @param {Names} names
   * @param {boolean} [prescale] whether large pictures are averaged first
   * @throws {ModelError} `input`, if they are to be, and the model takes no pictures, or resizes them itself
   */
  constructor(manifest, names, prescale = false) {
    this.#manifest = manifest;
    this.#names = names;
    this.#prescale = prescale;
    this.#specs = new Map(manifest.inputs.map((spec) => [spec.name, spec]));
    const isResized = manifest.inputs.some(({name, dtype}) => manifest.inputDescriptions.get(name)?.image && dtype !== "uint8");
    requireInput(isResized || !prescale, "the option 'prescale' is for pictures that are resized before the model: leave it out");
  }

  /**
   * Reads what the descriptions name: labels, priors and tokenizers.
   *
   * @param {import("./source.js").Files} files
   * @throws {ModelError} `damaged`, if a tokenizer or a prior is none, or the labels are not as many as the classes, or the
   *     priors as the boxes
   */
  async readFiles(files) {
    for (const [name, {tokens}] of this.#manifest.inputDescriptions) {
      if (tokens) this.#tokenizers.set(name, readWhole(tokens.file, await files.readText(`files/${tokens.file}`), makeTokenizer));
    }
    for (const [name, {labels, priors}] of this.#manifest.outputDescriptions) {
      if (labels) this.#labels.set(name, readLabels(await files.readText(`files/${labels}`)));
      if (labels) this.#requireClasses(name, labels);
      if (priors) this.#priors.set(name, readWhole(priors, await files.readText(`files/${priors}`), readPriors));
      if (priors) this.#requireBoxes(name, priors);
    }
  }

  /** @param {string | undefined} name */
  #getShape(name) {
    return this.#manifest.outputs.find((spec) => spec.name === name)?.shape ?? [];
  }

  /**
   * @param {string} name of an output
   * @param {string} file with its priors
   */
  #requireBoxes(name, file) {
    const count = (this.#priors.get(name)?.length ?? 0) / 4;
    const boxes = this.#getShape(name)[1];
    if (typeof boxes !== "number" || boxes === count) return;
    throw new ModelError("damaged", `the bundle is damaged: files/${file} has ${count} priors, the output '${name}' ${boxes} boxes`);
  }

  /**
   * @param {string} name of an output
   * @param {string} file with its labels
   */
  #requireClasses(name, file) {
    const {length} = this.#labels.get(name) ?? [];
    const description = this.#manifest.outputDescriptions.get(name);
    const counts = listClassCounts(this.#getShape(description?.scores ?? name), description);
    if (!counts.length || counts.includes(length)) return;
    throw new ModelError(
      "damaged", `the bundle is damaged: files/${file} has ${length} labels, the output '${name}' ${counts.join(" or ")} classes`,
    );
  }

  /**
   * Returns tensors for what a caller gives.
   *
   * @param {unknown} given by input, or the one itself where only one is needed
   * @returns {Promise<Feed>}
   */
  async makeFeed(given) {
    /** @type {Tensors} */
    const tensors = new Map();
    /** @type {Placement[]} */
    const places = [];
    for (const [name, value] of this.#listGiven(given)) {
      const {image, tokens} = this.#manifest.inputDescriptions.get(name) ?? {};
      if (image && !(value instanceof Tensor)) {
        const {tensor, place} = await this.#makePicture(name, image, value);
        tensors.set(name, tensor);
        places.push(place);
      } else if (tokens && typeof value === "string") {
        for (const [made, tensor] of this.#encodeText(name, value)) tensors.set(made, tensor);
      } else {
        requireInput(value instanceof Tensor, `the input '${name}' is no Tensor${image ? " and no picture" : tokens ? " and no text" : ""}`);
        requireInput(!tensors.has(name), `the input '${name}' is made of the text: leave it out`);
        tensors.set(name, value);
      }
    }
    return {tensors, place: places.length === 1 ? places[0] : null};
  }

  /**
   * Returns what is given for each input, by the model's names; texts come first.
   *
   * @param {unknown} given
   * @returns {[name: string, value: unknown][]}
   */
  #listGiven(given) {
    const {inputs} = this.#names;
    const isOne = typeof given !== "object" || given === null || given instanceof Tensor || isPicture(given);
    if (isOne) {
      const needed = this.#listNeeded();
      requireInput(
        needed.length === 1, `the model has several inputs: pass an object with ${Object.keys(inputs).join(", ")}`,
      );
      return [[needed[0], given]];
    }
    const all = Object.entries(given).filter(([, value]) => value !== undefined);
    for (const [name] of all) {
      requireInput(Object.hasOwn(inputs, name), `the model has no input '${name}'; it has: ${Object.keys(inputs).join(", ")}`);
    }
    const named = all.map(([name, value]) => /** @type {[string, unknown]} */ ([inputs[name], value]));
    return named.toSorted(([, one], [, other]) => Number(typeof other === "string") - Number(typeof one === "string"));
  }

  /** Returns the inputs that a caller has to give: neither masks nor what is made of a text. */
  #listNeeded() {
    const descriptions = this.#manifest.inputDescriptions;
    const made = new Set([...descriptions.values()].flatMap(({tokens}) => tokens ? [tokens.attention_mask, tokens.token_type_ids] : []));
    return [...this.#specs.keys()].filter((name) => !made.has(name) && !this.#manifest.masks.has(name));
  }

  /**
   * Returns a picture's tensor, or its plain pixels where the model does the rest itself.
   *
   * @param {string} name
   * @param {ImageDescription} image
   * @param {unknown} picture
   */
  async #makePicture(name, image, picture) {
    requireInput(
      isPicture(picture), `the input '${name}' is no picture: give ImageData, a video, a canvas, a VideoFrame or a frame`,
    );
    const pixels = await makePixels(picture);
    const dtype = this.#specs.get(name)?.dtype ?? "float32";
    if (dtype === "uint8") {
      const place = findPlacement(pixels.width, pixels.height, image.resize);
      requireScaled(place);
      return {tensor: copyPixels(pixels), place};
    }
    const made = makeImageTensor(pixels, image, this.#prescale);
    if (dtype !== "float64") return made;
    return {tensor: new Tensor(Float64Array.from(made.tensor.data), made.tensor.shape), place: made.place};
  }

  /**
   * Returns the token ids of a text, and the mask and types that the model takes beside them.
   *
   * @param {string} name
   * @param {string} text
   * @returns {Tensors}
   */
  #encodeText(name, text) {
    const tokens = this.#manifest.inputDescriptions.get(name)?.tokens;
    const tokenizer = this.#tokenizers.get(name);
    if (!tokens || !tokenizer) throw new Error(`${name} is no text`);
    const isFixed = typeof this.#specs.get(name)?.shape.at(-1) === "number";
    const {inputIds, attentionMask, tokenTypeIds} = tokenizer.encode(text, tokens.length, isFixed);
    const made = new Map([[name, inputIds], [tokens.attention_mask, attentionMask], [tokens.token_type_ids, tokenTypeIds]]);
    return new Map([...this.#specs.values()].filter((spec) => made.has(spec.name)).map((spec) =>
      [spec.name, makeRow(spec.dtype, made.get(spec.name) ?? [])]));
  }

  /**
   * Returns the outputs by the API's names.
   *
   * @param {Tensors} outputs
   */
  nameOutputs(outputs) {
    return Object.fromEntries(Object.entries(this.#names.outputs).map(([key, name]) => [key, take(outputs, name)]));
  }

  /**
   * Returns the answers by the API's names of those outputs that have some.
   *
   * @param {Tensors} outputs
   * @param {Feed} feed
   * @param {AnswerOptions} options
   */
  makeAnswers(outputs, {tensors, place}, options) {
    return Object.fromEntries(this.#names.answered.map((key) => {
      const name = this.#names.outputs[key];
      const description = this.#manifest.outputDescriptions.get(name) ?? {kind: "raw"};
      const mask = description.mask ? tensors.get(description.mask) : undefined;
      const labels = this.#labels.get(name) ?? [];
      const several = {beside: listReadToo(description).map((read) => take(outputs, read)), priors: this.#priors.get(name)};
      return [key, makeAnswer(take(outputs, name), {description, labels, place, several, mask, options})];
    }));
  }
}

/**
 * Returns how many classes an output may have by its shape; nothing where that is open.
 *
 * @param {readonly (number | string)[]} shape
 * @param {import("./manifest.js").OutputDescription} [description]
 * @returns {number[]}
 */
function listClassCounts(shape, description = {kind: "raw"}) {
  const {kind, layout = "", axis, background, classes} = description;
  const before = {yolo: 4 + countPointNumbers(description), yolov5: 5, yolox: 5, ssd: Number(background)}[layout] ?? Number(kind === "text");
  /** @type {readonly (number | string)[]} */
  let axes = [];
  if (kind === "classification") axes = (shape.length > 1 ? shape.slice(1) : shape).filter((size) => size !== 1).slice(0, 1);
  if (kind === "mask" && shape.length === 4) axes = [shape[axis === 1 ? 1 : 3]];
  if (kind === "text" && shape.length === 3) axes = [shape[axis === 1 ? 1 : 2]];
  if (kind === "detection" && layout !== "end2end" && !classes) axes = shape.slice(layout === "yolo" ? 1 : 2);
  const sizes = axes.filter((size) => typeof size === "number");
  // One class of a mask is a threshold's: its labels name what lies below and above it.
  return sizes.length < axes.length || (!before && sizes.includes(1)) ? [] : sizes.map((size) => size - before);
}

/**
 * @param {import("./tensors.js").Dtype} dtype
 * @param {readonly number[]} ids
 */
function makeRow(dtype, ids) {
  const data = makeArray(findArrayType(dtype), ids.length);
  for (const [place, id] of ids.entries()) data[place] = data instanceof BigInt64Array ? BigInt(id) : id;
  return new Tensor(data, [1, ids.length]);
}

/** @param {string} text */
function makeTokenizer(text) {
  return new WordPiece(JSON.parse(text));
}

/**
 * @template T
 * @param {string} file
 * @param {string} text
 * @param {(text: string) => T} read
 */
function readWhole(file, text, read) {
  try {
    return read(text);
  } catch (error) {
    throw new ModelError("damaged", `the bundle is damaged: files/${file}: ${/** @type {Error} */ (error).message}`, error);
  }
}
