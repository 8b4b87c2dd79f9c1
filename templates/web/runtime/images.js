import {requireInput} from "./errors.js";
import {givesFloats, resizeRows} from "./resizing.js";
import {Tensor, roundHalfToEven} from "./tensors.js";

/**
 * @typedef {object} Pixels a picture of 8-bit RGB pixels, upright and opaque; it is read row by row
 * @property {number} width at least 1
 * @property {number} height at least 1
 * @property {(y: number, into: Uint8Array) => void} readRow writes the row `y`, counted from the top, into an array
 *     of `3 * width` bytes
 * @property {(factor: number) => Pixels} [shrink] returns the averages of its blocks; without it, those of its colours are
 *     meant
 *
 * @typedef {object} Resize how a picture gets its size: `{letterbox, pad}`, `{short_side, crop}` or `{width, height}`
 * @property {number} [letterbox]
 * @property {number} [pad]
 * @property {number} [short_side]
 * @property {number} [crop]
 * @property {number} [width]
 * @property {number} [height]
 * @property {string} [filter] the library's function that resizes; Pillow's bilinear one without it
 * @property {boolean} [antialias] where the library leaves that open
 *
 * @typedef {import("./resizing.js").Rows} Rows
 *
 * @typedef {object} ImageDescription one `image` of the manifest's `input_descriptions`
 * @property {Resize} resize
 * @property {"RGB" | "BGR" | "GRAY"} order
 * @property {number} scale the factor for values from 0 to 255
 * @property {number[]} mean subtracted after that, one value per channel of the tensor; empty for none
 * @property {number[]} std the divisor, applied last, one value per channel; empty for none
 * @property {"NCHW" | "NHWC"} layout
 *
 * @typedef {object} Placement where a picture lies in the input, all in pixels
 * @property {number} pictureWidth of the picture as it came
 * @property {number} pictureHeight
 * @property {number} scaledWidth that the whole picture is scaled to
 * @property {number} scaledHeight
 * @property {number} left column of the input in which the scaled picture begins; negative if it is cut there
 * @property {number} top row of the input in which it begins; negative if it is cut there
 * @property {number} width of the input
 * @property {number} height
 */

const MOST_PIXELS = 2 ** 28;

/**
 * Returns where a picture of a size lies in the input.
 *
 * @param {number} width
 * @param {number} height
 * @param {Resize} resize
 * @returns {Placement}
 */
export function findPlacement(width, height, resize) {
  if (resize.letterbox) return centre(width, height, resize.letterbox / Math.max(width, height), resize.letterbox);
  if (resize.short_side && resize.crop) {
    return centre(width, height, resize.short_side / Math.min(width, height), resize.crop);
  }
  const [scaledWidth, scaledHeight] = [Number(resize.width), Number(resize.height)];
  const size = {width: scaledWidth, height: scaledHeight};
  return {pictureWidth: width, pictureHeight: height, scaledWidth, scaledHeight, left: 0, top: 0, ...size};
}

/**
 * Returns the placement of a scaled picture in the middle of a square.
 *
 * @param {number} width
 * @param {number} height
 * @param {number} ratio
 * @param {number} side
 * @returns {Placement}
 */
function centre(width, height, ratio, side) {
  const scaledWidth = Math.max(1, roundHalfToEven(width * ratio));
  const scaledHeight = Math.max(1, roundHalfToEven(height * ratio));
  // Towards zero: where the picture is larger than the input, the cut begins at floor((scaled - side) / 2).
  const left = Math.trunc((side - scaledWidth) / 2);
  const top = Math.trunc((side - scaledHeight) / 2);
  const picture = {pictureWidth: width, pictureHeight: height};
  return {...picture, scaledWidth, scaledHeight, left, top, width: side, height: side};
}

/**
 * Throws if the whole scaled picture, which the model makes before it cuts, is too large.
 *
 * @param {Placement} place
 */
export function requireScaled(place) {
  requireInput(
    place.scaledWidth * place.scaledHeight <= MOST_PIXELS,
    `the picture of ${place.pictureWidth} x ${place.pictureHeight} pixels would become ${place.scaledWidth} x`
      + ` ${place.scaledHeight} in the model before it is cut: cut its ends off first`,
  );
}

/**
 * Returns 8, 4, 2 or 1: the largest that leaves a picture at least as large as it is scaled to.
 *
 * @param {Placement} place
 */
function findFactor({pictureWidth, pictureHeight, scaledWidth, scaledHeight}) {
  const isLarge = (/** @type {number} */ factor) =>
    Math.floor(pictureWidth / factor) >= scaledWidth && Math.floor(pictureHeight / factor) >= scaledHeight;
  return [8, 4, 2].find(isLarge) ?? 1;
}

/**
 * @param {Pixels} pixels
 * @param {number} factor
 * @returns {Pixels}
 */
function shrink({width, height, readRow, shrink: shrinkItself}, factor) {
  if (shrinkItself) return shrinkItself(factor);
  const rows = averageBlocks({size: 3 * width, count: height, readRow}, 3, factor);
  return {width: rows.size / 3, height: rows.count, readRow: rows.readRow};
}

/**
 * Returns rows of averages of blocks of `factor` by `factor` samples, rounded; what fills no block at an end is left out.
 *
 * @param {Rows} rows
 * @param {number} bands interleaved in a row
 * @param {number} factor
 * @returns {Rows}
 */
export function averageBlocks({size, count, readRow}, bands, factor) {
  if (factor === 1) return {size, count, readRow};
  const row = new Uint8Array(size);
  const sums = new Uint32Array(Math.floor(size / bands / factor) * bands);
  const area = factor * factor;
  /** @param {number} band */
  const add = (band) => {
    let at = band;
    for (let to = band; to < sums.length; to += bands) {
      for (let column = 0; column < factor; column++, at += bands) sums[to] += row[at];
    }
  };
  return {
    size: sums.length,
    count: Math.floor(count / factor),
    readRow(y, into) {
      sums.fill(area / 2);
      for (let n = 0; n < factor; n++) {
        readRow(factor * y + n, row);
        for (let band = 0; band < bands; band++) add(band);
      }
      for (let n = 0; n < sums.length; n++) into[n] = Math.floor(sums[n] / area);
    },
  };
}

/** For each channel of the tensor that of RGB; grey has one of its own. */
const CHANNELS = {RGB: [0, 1, 2], BGR: [2, 1, 0], GRAY: [0]};

/**
 * Makes a picture's input tensor: resizes it, then applies the description's order, scale, mean, std and layout.
 *
 * The values equal those of the project's samples to the bit: resizing is that of the library which the description names.
 *
 * @param {Pixels} pixels
 * @param {ImageDescription} description
 * @param {boolean} [prescale] whether a picture that is much larger than its place in the input is made smaller first, by
 *     averages of blocks of 2, 4 or 8 pixels: the values are other ones then
 * @returns {{tensor: Tensor<Float32Array>, place: Placement}} float32 (1, C, H, W) or (1, H, W, C) as `layout` says
 */
export function makeImageTensor(pixels, description, prescale = false) {
  const {resize, order, layout} = description;
  const place = findPlacement(pixels.width, pixels.height, resize);
  const channels = CHANNELS[order];
  const bands = channels.length;
  const factor = prescale ? findFactor(place) : 1;
  const shown = resizeShown(factor > 1 ? shrink(pixels, factor) : pixels, bands, place, resize);
  const area = place.width * place.height;
  const data = new Float32Array(bands * area);
  const first = layout === "NCHW";
  const step = first ? 1 : bands;
  // Where the picture is cut, its visible part fills the input.
  const left = Math.max(0, place.left);
  const top = Math.max(0, place.top);
  const columns = Math.min(place.scaledWidth, place.width);
  const rows = Math.min(place.scaledHeight, place.height);
  for (const [channel, normalize] of listNormalizing(description, bands).entries()) {
    const begin = first ? channel * area : channel;
    if (columns * rows < area) {
      const pad = normalize(resize.pad ?? 0);
      for (let n = 0; n < area; n++) data[begin + n * step] = pad;
    }
    if (shown instanceof Uint8Array) {
      // Bytes have 256 values: each is computed once.
      const values = Float32Array.from({length: 256}, (_, value) => normalize(value));
      for (let y = 0; y < rows; y++) {
        let from = y * columns * bands + channels[channel];
        let to = begin + ((top + y) * place.width + left) * step;
        for (let x = 0; x < columns; x++, from += bands, to += step) data[to] = values[shown[from]];
      }
    } else {
      for (let y = 0; y < rows; y++) {
        let from = y * columns * bands + channels[channel];
        let to = begin + ((top + y) * place.width + left) * step;
        for (let x = 0; x < columns; x++, from += bands, to += step) data[to] = normalize(shown[from]);
      }
    }
  }
  const {width, height} = place;
  const shape = first ? [1, bands, height, width] : [1, height, width, bands];
  return {tensor: new Tensor(data, shape), place};
}

/**
 * Returns, for each channel, what makes the tensor's value of a pixel's.
 *
 * @param {ImageDescription} description
 * @param {number} bands
 * @returns {((value: number) => number)[]}
 */
function listNormalizing({scale, mean, std}, bands) {
  const factor = Math.fround(scale);
  return Array.from({length: bands}, (_, channel) => {
    const [shift, divisor] = [Math.fround(mean[channel]), Math.fround(std[channel])];
    return (value) => {
      // Each step is rounded to float32; in double precision between, that is the same as float32 throughout.
      let result = Math.fround(value * factor);
      if (mean.length) result = Math.fround(result - shift);
      if (std.length) result = Math.fround(result / divisor);
      return result;
    };
  });
}

/**
 * Returns all pixels of a picture: (height, width, 3).
 *
 * @param {Pixels} pixels
 */
export function copyPixels({width, height, readRow}) {
  const data = new Uint8Array(3 * width * height);
  for (let y = 0; y < height; y++) readRow(y, data.subarray(3 * width * y, 3 * width * (y + 1)));
  return new Tensor(data, [height, width, 3]);
}

/**
 * Returns the part of a scaled picture that the input shows, in `bands` interleaved channels: 3 for RGB, 1 for grey.
 *
 * It computes nothing else: the rest of a long and thin picture may be gigabytes.
 *
 * @param {Pixels} pixels
 * @param {number} bands
 * @param {Placement} place
 * @param {Resize} resize
 */
function resizeShown(pixels, bands, place, resize) {
  const rgb = {size: 3 * pixels.width, count: pixels.height, readRow: pixels.readRow};
  const rows = bands === 1 ? makeGrey(rgb) : rgb;
  const across = makeSpan(pixels.width, place.scaledWidth, place.left, place.width);
  const down = makeSpan(pixels.height, place.scaledHeight, place.top, place.height);
  const result = resizeRows(rows, bands, across, down, resize);
  const type = givesFloats(resize) ? Float32Array : Uint8Array;
  const data = new type(result.count * result.size);
  for (let y = 0; y < result.count; y++) result.readRow(y, data.subarray(y * result.size, (y + 1) * result.size));
  return data;
}

/**
 * Returns how an axis is scaled, and which of its new pixels are in the input.
 *
 * @param {number} from
 * @param {number} to
 * @param {number} offset of the scaled picture in the input
 * @param {number} side of the input
 */
function makeSpan(from, to, offset, side) {
  return {from, to, begin: Math.max(0, -offset), end: Math.min(to, side - offset)};
}

/**
 * Converts RGB rows to brightness, with Pillow's fixed-point weights for its mode L.
 *
 * @param {Rows} rows
 * @returns {Rows}
 */
function makeGrey(rows) {
  const rgb = new Uint8Array(rows.size);
  return {
    size: rows.size / 3,
    count: rows.count,
    readRow(y, into) {
      rows.readRow(y, rgb);
      for (let x = 0; x < into.length; x++) {
        into[x] = (19595 * rgb[3 * x] + 38470 * rgb[3 * x + 1] + 7471 * rgb[3 * x + 2] + 0x8000) >> 16;
      }
    },
  };
}
