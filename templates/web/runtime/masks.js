import {requireInput} from "./errors.js";
import {formatShape, readNumbers} from "./tensors.js";

/**
 * @typedef {import("./types.d.ts").Mask} Mask
 * @typedef {import("./images.js").Placement} Placement
 * @typedef {import("./tensors.js").Tensor} Tensor
 */

/** The class of pixels that the model did not see, because the picture was cut. */
export const UNSEEN = 255;

/**
 * Returns the class at each pixel of the caller's picture.
 *
 * A pixel has the class of the output's place that its centre lies in.
 *
 * @param {Tensor} output (1, C, h, w) where `axis` is 1, (1, h, w, C) where it is -1, or (1, h, w): integers are classes,
 *     of several floats the highest one is the class, of one `threshold` decides
 * @param {import("./manifest.js").OutputDescription} description
 * @param {Placement} place
 * @param {readonly string[]} labels by class
 * @returns {Mask}
 */
export function makeMask(output, {axis = 1, threshold = 0.5}, place, labels) {
  const {classes, width, height} = findClasses(output, axis, threshold);
  const columns = listPlaces(place.pictureWidth, place.scaledWidth, place.left, place.width, width);
  const rows = listPlaces(place.pictureHeight, place.scaledHeight, place.top, place.height, height);
  const found = new Uint8Array(columns.length * rows.length).fill(UNSEEN);
  for (const [y, row] of rows.entries()) {
    if (row < 0) continue;
    for (let x = 0; x < columns.length; x++) {
      if (columns[x] >= 0) found[y * columns.length + x] = classes[row * width + columns[x]];
    }
  }
  return {width: place.pictureWidth, height: place.pictureHeight, classes: found, labels};
}

/**
 * Returns for each pixel along an axis of the picture the output's place; -1 where the model did not see it.
 *
 * @param {number} size of the picture
 * @param {number} scaled
 * @param {number} offset
 * @param {number} input
 * @param {number} output
 */
function listPlaces(size, scaled, offset, input, output) {
  return Int32Array.from({length: size}, (_, pixel) => {
    const place = ((pixel + 0.5) * scaled) / size + offset;
    return place >= 0 && place < input ? Math.min(Math.floor((place * output) / input), output - 1) : -1;
  });
}

/**
 * Returns the class at each place of the output: (height, width).
 *
 * @param {Tensor} output
 * @param {number} axis
 * @param {number} threshold
 */
function findClasses(output, axis, threshold) {
  const {shape} = output;
  const [height, width, count] = shape.length === 3 ? [shape[1], shape[2], 1]
    : axis === 1 ? [shape[2], shape[3], shape[1]] : [shape[1], shape[2], shape[3]];
  requireInput(
    (shape.length === 3 || shape.length === 4) && shape[0] === 1 && count > 0,
    `the output is ${formatShape(shape)}: a mask has one picture, [1, classes, height, width] or [1, height, width, classes]`,
  );
  const values = readNumbers(output);
  const area = width * height;
  const [next, step] = axis === 1 ? [1, area] : [count, 1];
  const isScore = output.data instanceof Float32Array || output.data instanceof Float64Array;
  const classes = new Uint8Array(area);
  for (let place = 0; place < area; place++) {
    const found = count > 1 ? findHighest(values, place * next, step, count)
      : isScore ? Number(values[place] >= threshold) : values[place];
    requireInput(
      found >= 0 && found < UNSEEN, `the output holds the class ${found}: a mask has classes from 0 to ${UNSEEN - 1}`,
    );
    classes[place] = found;
  }
  return {classes, width, height};
}

/**
 * Returns which of `count` values is the highest: the first of equal ones, never NaN where another is a number.
 *
 * @param {ArrayLike<number>} values
 * @param {number} first
 * @param {number} step
 * @param {number} count
 */
function findHighest(values, first, step, count) {
  let best = 0;
  let highest = -Infinity;
  for (let index = 0; index < count; index++) {
    const value = values[first + index * step];
    if (value > highest) [best, highest] = [index, value];
  }
  return best;
}
