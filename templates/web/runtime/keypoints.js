/**
 * Points of objects, such as joints, at the end of each row of a detection.
 *
 * @typedef {import("./manifest.js").OutputDescription} OutputDescription
 * @typedef {import("./types.d.ts").Keypoint} Keypoint
 */

/**
 * Returns how many numbers of a row are those of keypoints.
 *
 * @param {OutputDescription} description
 */
export function countPointNumbers({keypoints = 0, keypoint_values = 0}) {
  return keypoints * keypoint_values;
}

/**
 * Returns a row's keypoints, as numbers in pixels of the input, in pixels of the picture; nothing where it has none.
 *
 * @param {ArrayLike<number>} numbers
 * @param {OutputDescription} description
 * @param {(value: number) => number} moveX
 * @param {(value: number) => number} moveY
 * @returns {{keypoints?: Keypoint[]}}
 */
export function makeKeypoints(numbers, {keypoints = 0, keypoint_values = 0}, moveX, moveY) {
  if (!keypoints) return {};
  return {
    keypoints: Array.from({length: keypoints}, (_, point) => {
      const at = point * keypoint_values;
      return {x: moveX(numbers[at]), y: moveY(numbers[at + 1]), score: keypoint_values > 2 ? numbers[at + 2] : null};
    }),
  };
}
