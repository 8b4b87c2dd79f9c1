import {activate, readLabels} from "./answers.js";
import {requireInput} from "./errors.js";
import {formatShape, readNumbers} from "./tensors.js";

/**
 * Detections whose boxes and scores are outputs of their own: the layout `ssd`.
 *
 * @typedef {import("./detections.js").Candidate} Candidate
 * @typedef {import("./detections.js").Edges} Edges
 * @typedef {import("./images.js").Placement} Placement
 * @typedef {import("./manifest.js").OutputDescription} OutputDescription
 * @typedef {import("./tensors.js").Tensor} Tensor
 *
 * @typedef {object} Several what an answer in several outputs is read from, beside the described one
 * @property {readonly Tensor[]} beside
 * @property {Float64Array} [priors] what `readPriors` returned of the file that the description names
 */

const NUMBER = String.raw`[ \t]*-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?[ \t]*`;
const PRIOR = new RegExp(`^${Array(4).fill(NUMBER).join(",")}$`, "u");

/**
 * Returns the outputs that an answer is read from beside the described one.
 *
 * @param {OutputDescription} description
 */
export function listReadToo({scores, classes}) {
  return [scores, classes].filter((name) => typeof name === "string");
}

/**
 * Returns the boxes in a file's text, one a line: centre x and y, width and height, all in one row.
 *
 * @param {string} text
 * @throws {import("./errors.js").ModelError} `input`, if a line is none
 */
export function readPriors(text) {
  return Float64Array.from(readLabels(text).flatMap((line, number) => {
    requireInput(PRIOR.test(line), `line ${number + 1} is '${line}', expected four numbers: cx,cy,w,h`);
    return line.split(",").map(Number);
  }));
}

/**
 * Yields a candidate for each box that has a class.
 *
 * @param {Tensor} output the boxes: (1, N, 4)
 * @param {Several} several their scores (1, N, C); or (1, N), and classes (1, N)
 * @param {OutputDescription} description
 * @param {number} labels
 * @param {Placement} place
 * @returns {Generator<Candidate>}
 */
export function* listBoxes(output, {beside, priors}, description, labels, place) {
  const [scores, classes] = beside;
  requireShapes(output, scores, classes);
  const {activation = "none"} = description;
  const background = Number(description.background);
  const count = output.shape[1];
  const width = scores.shape[2] ?? 1;
  const limit = labels || Infinity;
  requireInput(!priors || priors.length === 4 * count, `the output has ${count} boxes, the priors are ${(priors?.length ?? 0) / 4}`);
  requireInput(
    classes !== undefined || (width > background && (!labels || width - background === labels)),
    `the scores have ${width} classes, expected ${labels ? labels + background : `${1 + background} or more`}`
      + (background ? " with the background" : ""),
  );
  const [boxes, values, named] = [output, scores, classes].map((tensor) => tensor && readNumbers(tensor));
  for (let row = 0; row < count; row++) {
    const own = values.subarray(row * width, (row + 1) * width);
    const index = named ? named[row] - background : findHighest(own.subarray(background));
    if (Number.isInteger(index) && index >= 0 && index < Math.min(limit, 2 ** 31)) {
      const score = activate(own, activation)[named ? 0 : background + index];
      yield {index, score, edges: findEdges(boxes.subarray(4 * row, 4 * row + 4), row, description, place, priors)};
    }
  }
}

/**
 * @param {Tensor} output
 * @param {Tensor} scores
 * @param {Tensor} [classes]
 */
function requireShapes(output, scores, classes) {
  const [pictures, count, size] = output.shape;
  const [shape, ofScores, ofClasses] = [output, scores, classes].map((tensor) => tensor ? formatShape(tensor.shape) : "");
  const isScored = scores.shape.length === (classes ? 2 : 3) && scores.shape[0] === 1 && scores.shape[1] === count;
  requireInput(
    output.shape.length === 3 && pictures === 1 && size === 4 && isScored && (!classes || ofClasses === `[1, ${count}]`),
    `the output is ${shape}, its scores ${ofScores}${classes ? `, its classes ${ofClasses}` : ""}: the layout 'ssd' of a`
      + ` detection has one picture, with boxes [1, N, 4], scores ${classes ? "[1, N] and classes [1, N]" : "[1, N, classes]"}`,
  );
}

/**
 * Returns the place of the highest value, among equal ones the first; never that of a NaN, unless all are.
 *
 * @param {ArrayLike<number>} values
 */
function findHighest(values) {
  let best = 0;
  let highest = -Infinity;
  for (let index = 0; index < values.length; index++) {
    if (values[index] > highest) [best, highest] = [index, values[index]];
  }
  return best;
}

/**
 * Returns a box in pixels of the input.
 *
 * @param {ArrayLike<number>} values
 * @param {number} row
 * @param {OutputDescription} description
 * @param {Placement} place
 * @param {Float64Array} [priors]
 * @returns {Edges}
 */
function findEdges(values, row, {box, normalized, variances = []}, place, priors) {
  const [width, height] = normalized ? [place.width, place.height] : [1, 1];
  let [a, b, c, d] = Array.from(values);
  if (priors) {
    const [x, y, w, h] = priors.subarray(4 * row, 4 * row + 4);
    // Source: biubug6/Pytorch_Retinaface, utils/box_utils.py, decode.
    [a, b] = [x + variances[0] * a * w, y + variances[0] * b * h];
    [c, d] = [w * Math.exp(variances[1] * c), h * Math.exp(variances[1] * d)];
  }
  if (box === "corners_yx") [a, b, c, d] = [b, a, d, c];
  [a, b, c, d] = [a * width, b * height, c * width, d * height];
  if (box === "corners" || box === "corners_yx") return [a, b, c, d];
  return [a - c / 2, b - d / 2, a + c / 2, b + d / 2];
}
