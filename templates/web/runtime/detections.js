import {sortBestFirst} from "./answers.js";
import {listBoxes} from "./boxes.js";
import {requireInput} from "./errors.js";
import {countPointNumbers, makeKeypoints} from "./keypoints.js";
import {formatShape, readNumbers} from "./tensors.js";

/**
 * @typedef {import("./types.d.ts").Detection} Detection
 * @typedef {import("./images.js").Placement} Placement
 * @typedef {import("./manifest.js").OutputDescription} OutputDescription
 * @typedef {import("./tensors.js").Tensor} Tensor
 * @typedef {readonly [left: number, top: number, right: number, bottom: number]} Edges in pixels of the input
 *
 * @typedef {object} Candidate an object that may be kept
 * @property {number} index of its class
 * @property {number} score
 * @property {Edges} edges
 * @property {readonly number[]} [points] the numbers of its keypoints, in pixels of the input
 */

/** Classes that a model without labels may name: larger numbers are none. */
const MOST_CLASSES = 2 ** 31;

/**
 * Returns the objects in a picture, best first; among equal scores, in the output's order.
 *
 * A row of the output is one object of the class with its best score. Rows below the description's `score` are left
 * out, and so are rows with a NaN or an infinite value, and those of classes that are not allowed. Of two objects of
 * one class that overlap by more than `iou` (intersection over union) the better one is kept, and at most `most` in
 * all. In the layout `end2end` the model has done that.
 *
 * @param {Tensor} output (1, 4 + C, N) or (1, N, 4 + C) for the layout `yolo`, (1, N, 5 + C) for `yolov5` and `yolox`,
 *     (1, N, 6) for `end2end`, boxes (1, N, 4) for `ssd`
 * @param {OutputDescription} description
 * @param {readonly string[]} labels by index; where there are any, their number is C
 * @param {Placement} place
 * @param {(index: number) => boolean} isAllowed
 * @param {import("./boxes.js").Several} several for `ssd`
 * @returns {Detection[]}
 */
export function findObjects(output, description, labels, place, isAllowed, several) {
  const {layout, score: least = 0, iou = 1, most = Infinity} = description;
  const rows = layout === "ssd" ? listBoxes(output, several, description, labels.length, place)
    : layout === "end2end" ? listFinished(output, description, labels.length) : listScored(output, description, labels.length, place);
  const good = [...rows].filter(({index, score, edges, points = []}) =>
    score >= least && Number.isFinite(score) && isAllowed(index) && [...edges, ...points].every(Number.isFinite));
  const best = sortBestFirst(good, ({score}) => score);
  const kept = layout === "end2end" ? best.slice(0, most) : dropOverlaps(best, iou, most);
  const {moveX, moveY} = makeMoves(place);
  return kept.map(({index, score, edges: [left, top, right, bottom], points = []}) => ({
    index, label: labels[index] ?? null, score, box: [moveX(left), moveY(top), moveX(right), moveY(bottom)],
    ...makeKeypoints(points, description, moveX, moveY),
  }));
}

/**
 * Yields the rows of a layout that scores classes.
 *
 * @param {Tensor} output
 * @param {OutputDescription} description
 * @param {number} labels
 * @param {Placement} place
 * @returns {Generator<Candidate>}
 */
function* listScored(output, description, labels, place) {
  const {layout = "", strides = []} = description;
  const after = countPointNumbers(description);
  const values = readNumbers(output);
  const hasObjectScore = layout !== "yolo";
  const before = hasObjectScore ? 5 : 4;
  const {count, width, isTransposed} = findRows(output, layout, before + after, labels);
  const cells = layout === "yolox" ? listCells(strides, place, count) : [];
  const [across, down] = isTransposed ? [count, 1] : [1, width];
  for (let row = 0; row < count; row++) {
    const at = row * down;
    const objectScore = hasObjectScore ? values[at + 4 * across] : 1;
    let index = 0;
    let score = -Infinity;
    for (let column = before; column < width - after; column++) {
      const found = values[at + column * across] * objectScore;
      if (found > score) [index, score] = [column - before, found];
    }
    let box = [values[at], values[at + across], values[at + 2 * across], values[at + 3 * across]];
    if (layout === "yolox") {
      const {x, y, stride} = cells[row];
      box = [(box[0] + x) * stride, (box[1] + y) * stride, Math.exp(box[2]) * stride, Math.exp(box[3]) * stride];
    }
    const [half, halfHeight] = [box[2] / 2, box[3] / 2];
    const points = Array.from({length: after}, (_, number) => values[at + (width - after + number) * across]);
    yield {index, score, edges: [box[0] - half, box[1] - halfHeight, box[0] + half, box[1] + halfHeight], points};
  }
}

/**
 * Returns the number of rows of a layout that scores classes, and how they lie.
 *
 * @param {Tensor} output
 * @param {string} layout
 * @param {number} others how many values of a row are no scores of classes
 * @param {number} labels
 */
function findRows({shape}, layout, others, labels) {
  const [rows, columns] = shape.length === 3 && shape[0] === 1 ? shape.slice(1) : [0, 0];
  // Where both axes have that size, the first one counts, as in ultralytics' exports.
  // An empty axis contains no boxes: there is no object.
  const size = labels ? others + labels : Math.min(rows, columns) || Math.max(rows, columns);
  const isTransposed = layout === "yolo" && rows === size;
  const [count, width] = isTransposed ? [columns, rows] : [rows, columns];
  requireInput(
    width > others && (!labels || width === others + labels),
    `the output is ${formatShape(shape)}: the layout '${layout}' of a detection has one picture, with`
      + ` ${labels ? others + labels : `${others} and a score per class`} values for each box`,
  );
  return {count, width, isTransposed};
}

/**
 * Returns the grid's cell of each row of a `yolox` output: by stride, then row, then column.
 *
 * Source: YOLOX's export without decoding.
 *
 * @param {readonly number[]} strides
 * @param {Placement} place
 * @param {number} count the output's rows
 */
function listCells(strides, {width, height}, count) {
  const cells = strides.flatMap((stride) => {
    const columns = Math.floor(width / stride);
    const size = columns * Math.floor(height / stride);
    return Array.from({length: size}, (_, cell) => ({x: cell % columns, y: Math.floor(cell / columns), stride}));
  });
  requireInput(
    cells.length === count,
    `the output has ${count} boxes: with the strides [${strides.join(", ")}] an input of ${width} x ${height} pixels has`
      + ` ${cells.length}`,
  );
  return cells;
}

/**
 * Yields the rows of an output whose model has suppressed overlaps itself, without padding.
 *
 * @param {Tensor} output
 * @param {OutputDescription} description
 * @param {number} labels
 * @returns {Generator<Candidate>}
 */
function* listFinished(output, description, labels) {
  const {shape} = output;
  const width = 6 + countPointNumbers(description);
  requireInput(
    shape.length === 3 && shape[0] === 1 && shape[2] === width,
    `the output is ${formatShape(shape)}: the layout 'end2end' of a detection has one picture, with ${width} values for each box`,
  );
  const values = readNumbers(output);
  for (let at = 0; at < values.length; at += width) {
    const [left, top, right, bottom, score, index, ...points] = values.subarray(at, at + width);
    if (Number.isInteger(index) && index >= 0 && index < (labels || MOST_CLASSES)) {
      yield {index, score, edges: [left, top, right, bottom], points};
    }
  }
}

/**
 * Returns at most `most` candidates, without those that overlap an earlier one of the same class.
 *
 * @param {readonly Candidate[]} candidates best first
 * @param {number} iou
 * @param {number} most
 */
function dropOverlaps(candidates, iou, most) {
  /** @type {Candidate[]} */
  const kept = [];
  for (const candidate of candidates) {
    if (kept.length === most) break;
    const isFree = kept.every(({index, edges}) => index !== candidate.index || !isOverlapping(edges, candidate.edges, iou));
    if (isFree) kept.push(candidate);
  }
  return kept;
}

/**
 * @param {Edges} one
 * @param {Edges} other
 * @param {number} iou
 */
function isOverlapping(one, other, iou) {
  const across = Math.max(Math.min(one[2], other[2]) - Math.max(one[0], other[0]), 0);
  const down = Math.max(Math.min(one[3], other[3]) - Math.max(one[1], other[1]), 0);
  const intersection = across * down;
  // Multiplies instead of dividing: the union of two boxes without area is 0.
  return intersection > iou * (computeArea(one) + computeArea(other) - intersection);
}

/** @param {Edges} edges */
function computeArea([left, top, right, bottom]) {
  return Math.max(right - left, 0) * Math.max(bottom - top, 0);
}

/**
 * Returns what converts x and y from pixels of the input to pixels of the picture, and clips them to the picture.
 *
 * @param {Placement} place
 */
function makeMoves(place) {
  /** @type {(value: number) => number} */
  const moveX = (value) => moveBack(value, place.left, place.scaledWidth, place.pictureWidth);
  /** @type {(value: number) => number} */
  const moveY = (value) => moveBack(value, place.top, place.scaledHeight, place.pictureHeight);
  return {moveX, moveY};
}

/**
 * @param {number} value
 * @param {number} offset
 * @param {number} scaled
 * @param {number} size
 */
function moveBack(value, offset, scaled, size) {
  return Math.min(Math.max(((value - offset) * size) / scaled, 0), size);
}
