import {activate} from "./answers.js";
import {requireInput} from "./errors.js";
import {formatShape, readNumbers} from "./tensors.js";

/**
 * Returns the text that the best class of each step gives.
 *
 * The class of a step is the one with the highest value, of equal ones the first, never a NaN. Steps of the blank's class
 * are no symbol, and neither are those of the class of the step before.
 *
 * @param {import("./tensors.js").Tensor} output (1, T, C) or (T, 1, C), or with `axis` 1 (1, C, T): values of C classes,
 *     which are the alphabet's and the blank, in T steps
 * @param {import("./manifest.js").OutputDescription} description
 * @param {readonly string[]} alphabet the symbol of each class, without the blank
 * @returns {import("./types.d.ts").Transcription}
 */
export function transcribe(output, {axis = -1, blank: given = 0, activation = "none"}, alphabet) {
  const {steps, classes} = findSizes(output.shape, axis);
  requireInput(given >= -1 && given < classes, `the output has ${classes} classes: the blank cannot be ${given}`);
  requireInput(
    alphabet.length === classes - 1,
    `the output has ${classes} classes: there are ${alphabet.length} symbols and the blank`,
  );
  const blank = given < 0 ? classes - 1 : given;
  const values = readNumbers(output);
  let [text, kept, total, before] = ["", 0, 0, blank];
  for (let step = 0; step < steps; step++) {
    const row = Array.from({length: classes}, (_, index) => values[axis === -1 ? step * classes + index : index * steps + step]);
    const found = findHighest(row, blank);
    if (found !== blank && found !== before) {
      text += alphabet[found > blank ? found - 1 : found];
      total += activate(row, activation)[found];
      kept++;
    }
    before = found;
  }
  return {text, score: kept ? total / kept : 0};
}

/**
 * @param {readonly number[]} shape
 * @param {number} axis
 */
function findSizes(shape, axis) {
  const [first, second, third] = shape;
  const isLast = axis === -1;
  const fits = shape.length === 3 && (first === 1 || (isLast && second === 1));
  const [steps, classes] = isLast ? [first === 1 ? second : first, third] : [third, second];
  requireInput(
    fits && classes > 1,
    `the output is ${formatShape(shape)}: a text has the values of two or more classes in each step,`
      + ` ${isLast ? "[1, T, C] or [T, 1, C]" : "[1, C, T]"}`,
  );
  return {steps, classes};
}

/**
 * Returns the best class of a step; the blank where no value is more than minus infinity.
 *
 * @param {readonly number[]} row
 * @param {number} blank
 */
function findHighest(row, blank) {
  let [best, highest] = [blank, -Infinity];
  for (const [index, value] of row.entries()) {
    if (value > highest) [best, highest] = [index, value];
  }
  return best;
}
