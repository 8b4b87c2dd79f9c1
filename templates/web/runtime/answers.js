import {transcribe} from "./ctc.js";
import {findObjects} from "./detections.js";
import {requireInput} from "./errors.js";
import {makeMask} from "./masks.js";
import {countElements, formatShape, readNumbers} from "./tensors.js";

/**
 * Output tensors to answers, as the manifest's `output_descriptions` say. All is computed in double precision.
 *
 * @typedef {import("./types.d.ts").Answer} Answer
 * @typedef {import("./types.d.ts").AnswerOptions} AnswerOptions
 * @typedef {import("./types.d.ts").Classification} Classification
 * @typedef {import("./types.d.ts").Decision} Decision
 * @typedef {import("./images.js").Placement} Placement
 * @typedef {import("./manifest.js").OutputDescription} OutputDescription
 * @typedef {import("./tensors.js").Tensor} Tensor
 * @typedef {import("./tensors.js").TypedArray} TypedArray
 *
 * @typedef {object} Given what an answer is made of beside the output
 * @property {OutputDescription} description of the output, as the manifest has it
 * @property {readonly string[]} labels by index; empty where there are none
 * @property {Placement | null} place the picture's place in the input; null without exactly one picture
 * @property {import("./boxes.js").Several} several what is read with the output
 * @property {Tensor} [mask] the input that `mask` of an embedding names
 * @property {AnswerOptions} options of the caller
 */

/**
 * Returns the answer in one output.
 *
 * @param {Tensor} output
 * @param {Given} given
 * @returns {Answer | Tensor} the output itself where its kind has no answer
 * @throws {import("./errors.js").ModelError} `input`, if the output's shape is not one of its kind, or an option is wrong
 */
export function makeAnswer(output, {description, labels, place, several, mask, options}) {
  checkOptions(options);
  const changed = {...description, ...pickGiven(options)};
  switch (description.kind) {
    case "classification":
      return findClasses(output, changed, labels, findAllowed(options, labels));
    case "detection":
      return findObjects(output, changed, labels, requirePlace(place, "a detection's boxes"), findAllowed(options, labels), several);
    case "embedding":
      return makeVectors(output, changed, mask);
    case "mask":
      return makeMask(output, changed, requirePlace(place, "a mask's classes"), labels);
    case "probability":
      return makeDecisions(output, changed);
    case "text":
      return transcribe(output, changed, labels);
    default:
      return output;
  }
}

/**
 * Returns the labels in a file's text, one per line, without a byte order mark and carriage returns.
 *
 * @param {string} text
 */
export function readLabels(text) {
  const lines = text.replace(/[\uFEFF\r]/g, "").split("\n");
  return lines.at(-1) ? lines : lines.slice(0, -1);
}

/**
 * @param {Placement | null} place
 * @param {string} what
 */
function requirePlace(place, what) {
  requireInput(place !== null, `${what} are in the pixels of a picture: give the picture, and not a tensor`);
  return place;
}

const OPTIONS = ["score", "iou", "most", "top", "allow"];

/** @param {AnswerOptions} options */
function checkOptions(options) {
  for (const name of Object.keys(options)) {
    requireInput(OPTIONS.includes(name), `there is no option '${name}'; there are: ${OPTIONS.join(", ")}`);
  }
  const {score, iou, most, top, allow} = options;
  requireInput(!allow || Array.isArray(allow), `the option 'allow' is '${allow}', expected a list of labels`);
  for (const [name, value] of Object.entries({score, iou})) {
    requireInput(value === undefined || (value >= 0 && value <= 1), `the option '${name}' is ${value}, expected 0 to 1`);
  }
  for (const [name, value] of Object.entries({most, top})) {
    requireInput(
      value === undefined || (Number.isInteger(value) && value >= 1), `the option '${name}' is ${value}, expected 1 or more`,
    );
  }
}

/** @param {AnswerOptions} options */
function pickGiven({score, iou, most, top}) {
  return Object.fromEntries(Object.entries({score, iou, most, top}).filter(([, value]) => value !== undefined));
}

const SHOWN = 10;

/**
 * Returns whether a class is allowed, by its index.
 *
 * @param {AnswerOptions} options
 * @param {readonly string[]} labels
 * @returns {(index: number) => boolean}
 */
function findAllowed({allow}, labels) {
  if (!allow) return () => true;
  requireInput(labels.length > 0, "the option 'allow' names labels, and the output has none: leave it out");
  const listed = labels.slice(0, SHOWN).map((label) => `'${label}'`).join(", ");
  const more = labels.length > SHOWN ? ` and ${labels.length - SHOWN} more` : "";
  for (const label of allow) {
    requireInput(
      labels.includes(label),
      `the option 'allow' names '${label}', and the labels are ${listed}${more}`,
    );
  }
  const wanted = new Set(allow);
  return (index) => index < labels.length && wanted.has(labels[index]);
}

/**
 * Returns the best classes of one sample, best first; among equal scores, the lower index first.
 *
 * @param {Tensor} output scores or logits: one axis has any size, all others have size 1
 * @param {OutputDescription} description
 * @param {readonly string[]} labels by index
 * @param {(index: number) => boolean} isAllowed
 * @returns {Classification[]}
 */
function findClasses(output, {activation = "none", top = 5, score}, labels, isAllowed) {
  const count = countElements(output.shape);
  requireInput(
    count > 0 && count === Math.max(1, ...output.shape),
    `the output is ${formatShape(output.shape)}: a classification is one row of scores, so that the classes of several`
      + " samples are asked for one sample at a time",
  );
  const values = readNumbers(output);
  const scores = activate(values, activation);
  const counted = [...values.keys()].filter((index) => isAllowed(index) && (score === undefined || scores[index] >= score));
  // Sorted by the values: an activation keeps their order, but may round two of them to the same score.
  return sortBestFirst(counted, (index) => Number(values[index])).slice(0, top)
    .map((index) => ({index, label: labels[index] ?? null, score: scores[index]}));
}

/**
 * @param {ArrayLike<number>} values
 * @param {string} activation
 * @returns {number[]}
 */
export function activate(values, activation) {
  const numbers = Array.from(values);
  if (activation === "sigmoid") return numbers.map((value) => 1 / (1 + Math.exp(-value)));
  if (activation !== "softmax") return numbers;
  const highest = numbers.reduce((most, value) => Math.max(most, value), -Infinity);
  const powers = numbers.map((value) => Math.exp(value - highest));
  const sum = powers.reduce((total, power) => total + power, 0);
  return powers.map((power) => power / sum);
}

/**
 * Returns things, the highest value first; equal values keep their order, NaN comes last.
 *
 * @template T
 * @param {T[]} things
 * @param {(thing: T) => number} value
 */
export function sortBestFirst(things, value) {
  return things.toSorted((one, other) => {
    const [a, b] = [value(one), value(other)];
    return a > b ? -1 : a < b ? 1 : Number(Number.isNaN(a)) - Number(Number.isNaN(b));
  });
}

/**
 * Returns, for each value in order, its probability and whether it is at least the threshold.
 *
 * @param {Tensor} output
 * @param {OutputDescription} description
 * @returns {Decision[]}
 */
function makeDecisions(output, {activation = "none", threshold = 0.5}) {
  return activate(readNumbers(output), activation).map((score) => ({score, positive: score >= threshold}));
}

/**
 * Returns one vector per sample.
 *
 * @param {Tensor} output (B, S, D): `pooling` makes one vector of the S positions; with pooling `none` any shape: all
 *     values of a sample are its vector
 * @param {OutputDescription} description `normalize` leaves a vector of zeros as it is
 * @param {Tensor} [mask] (B, S): positions with 0 do not count. Where no position counts, the vector is zeros
 * @returns {Float32Array[]}
 */
function makeVectors(output, {pooling = "none", normalize = false}, mask) {
  const values = readNumbers(output);
  const {shape} = output;
  if (pooling === "none") {
    const size = countElements(shape.slice(1));
    return Array.from({length: shape[0] ?? 1}, (_, sample) =>
      makeVector(Float64Array.from(values.subarray(sample * size, (sample + 1) * size)), normalize));
  }
  const ofMask = mask ? ` and its mask ${formatShape(mask.shape)}` : "";
  requireInput(
    shape.length === 3 && (!mask || formatShape(mask.shape) === formatShape(shape.slice(0, 2))),
    `the output is ${formatShape(shape)}${ofMask}: pooling takes [batch, positions, values] and a mask [batch, positions]`,
  );
  const [samples, positions, width] = shape;
  requireInput(
    pooling !== "cls" || positions > 0,
    `the output is ${formatShape(shape)}: the pooling 'cls' takes the first position, and there is none`,
  );
  const counts = mask && readNumbers(mask);
  return Array.from({length: samples}, (_, sample) => {
    const all = Array.from({length: positions}, (_position, position) => sample * positions + position);
    const counted = pooling === "cls" ? all.slice(0, 1) : all.filter((position) => !counts || counts[position]);
    const rows = counted.map((position) => values.subarray(position * width, (position + 1) * width));
    return makeVector(pool(rows, width, pooling), normalize);
  });
}

/**
 * @param {ArrayLike<number>[]} rows
 * @param {number} width
 * @param {string} pooling `mean`, or else the highest
 */
function pool(rows, width, pooling) {
  return Float64Array.from({length: width}, (_, column) => {
    if (!rows.length) return 0;
    if (pooling === "mean") return rows.reduce((sum, row) => sum + row[column], 0) / rows.length;
    return rows.reduce((most, row) => Math.max(most, row[column]), -Infinity);
  });
}

/**
 * @param {Float64Array} values
 * @param {boolean} normalize
 */
function makeVector(values, normalize) {
  const length = normalize ? Math.sqrt(values.reduce((sum, value) => sum + value * value, 0)) : 1;
  return Float32Array.from(length > 0 ? values.map((value) => value / length) : values);
}
