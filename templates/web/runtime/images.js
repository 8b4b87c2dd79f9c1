import {requireInput} from "./errors.js";
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
 * The values equal those of the project's samples to the bit: resizing is Pillow's bilinear filter with antialiasing.
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
  const shown = resizeShown(factor > 1 ? shrink(pixels, factor) : pixels, bands, place);
  const area = place.width * place.height;
  const data = new Float32Array(bands * area);
  const first = layout === "NCHW";
  const step = first ? 1 : bands;
  // Where the picture is cut, its visible part fills the input.
  const left = Math.max(0, place.left);
  const top = Math.max(0, place.top);
  const columns = Math.min(place.scaledWidth, place.width);
  const rows = Math.min(place.scaledHeight, place.height);
  for (const [channel, values] of listValues(description, bands).entries()) {
    const begin = first ? channel * area : channel;
    if (columns * rows < area) {
      const pad = values[resize.pad ?? 0];
      for (let n = 0; n < area; n++) data[begin + n * step] = pad;
    }
    for (let y = 0; y < rows; y++) {
      let from = y * columns * bands + channels[channel];
      let to = begin + ((top + y) * place.width + left) * step;
      for (let x = 0; x < columns; x++, from += bands, to += step) data[to] = values[shown[from]];
    }
  }
  const {width, height} = place;
  const shape = first ? [1, bands, height, width] : [1, height, width, bands];
  return {tensor: new Tensor(data, shape), place};
}

/**
 * Returns, for each channel, the tensor's values for the 256 values that a pixel can have.
 *
 * @param {ImageDescription} description
 * @param {number} bands
 */
function listValues({scale, mean, std}, bands) {
  const factor = Math.fround(scale);
  return Array.from({length: bands}, (_, channel) => Float32Array.from({length: 256}, (_value, value) => {
    // Each step is rounded to float32; in double precision between, that is the same as float32 throughout.
    let result = Math.fround(value * factor);
    if (mean.length) result = Math.fround(result - Math.fround(mean[channel]));
    if (std.length) result = Math.fround(result / Math.fround(std[channel]));
    return result;
  }));
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
 * @typedef {object} Rows rows of bytes; each may be read once, from the top down
 * @property {number} size of a row in bytes
 * @property {number} count
 * @property {(y: number, into: Uint8Array) => void} readRow
 */

/**
 * Returns the part of a scaled picture that the input shows, in `bands` interleaved channels: 3 for RGB, 1 for grey.
 *
 * It computes nothing else: the rest of a long and thin picture may be gigabytes.
 *
 * @param {Pixels} pixels
 * @param {number} bands
 * @param {Placement} place
 */
function resizeShown(pixels, bands, place) {
  const rgb = {size: 3 * pixels.width, count: pixels.height, readRow: pixels.readRow};
  const rows = bands === 1 ? makeGrey(rgb) : rgb;
  const across = makeFilter(pixels.width, place.scaledWidth, findShown(place.left, place.scaledWidth, place.width));
  const down = makeFilter(pixels.height, place.scaledHeight, findShown(place.top, place.scaledHeight, place.height));
  const lostWidth = pixels.width - place.scaledWidth;
  const lostHeight = pixels.height - place.scaledHeight;
  // Both passes round to 8 bits, so their order changes the result. This is the order of Pillow 13.
  const result = lostHeight > 2 * Math.max(lostWidth, 0)
    ? scaleWidth(scaleHeight(rows, down), bands, across)
    : scaleHeight(scaleWidth(rows, bands, across), down);
  const data = new Uint8Array(result.count * result.size);
  for (let y = 0; y < result.count; y++) result.readRow(y, data.subarray(y * result.size, (y + 1) * result.size));
  return data;
}

/**
 * Returns the first pixel of a scaled axis that is in the input, and the one behind the last.
 *
 * @param {number} offset
 * @param {number} scaled
 * @param {number} side
 * @returns {[first: number, end: number]}
 */
function findShown(offset, scaled, side) {
  return [Math.max(0, -offset), Math.min(scaled, side - offset)];
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

/** Fraction bits of a weight: a byte times weights whose sum is 1 fits into 32 bits with a sign. */
const WEIGHT_BITS = 22;

/** Added to a sum of weighted bytes, so that it rounds to the nearest. */
const HALF = 1 << (WEIGHT_BITS - 1);

/**
 * @typedef {object} Filter which pixels along an axis make each scaled pixel, and with what weights
 * @property {number} size the number of scaled pixels
 * @property {Int32Array} first for each of them the first pixel that it is made of
 * @property {Int32Array} taps for each of them how many pixels it is made of
 * @property {Int32Array} weights `most` for each of them: of its first pixel and the following ones
 * @property {number} most
 */

/**
 * Returns the bilinear filter that scales an axis, for some of the new pixels.
 *
 * It is Pillow's filter for 8-bit channels, so the results are the same to the bit: when it makes a picture smaller, it
 * is as wide as the scale (the antialiasing), and its weights are fixed-point numbers. What is double there is double
 * here, in the same sequence. Source: Pillow, src/libImaging/Resample.c.
 *
 * @param {number} from the axis's size
 * @param {number} to its new size
 * @param {[first: number, end: number]} shown which of the scaled pixels to compute
 * @returns {Filter}
 */
function makeFilter(from, to, [begin, end]) {
  const scale = from / to;
  const reach = Math.max(scale, 1);
  const most = 2 * Math.ceil(reach) + 1;
  const size = end - begin;
  const filter = {
    size, most, first: new Int32Array(size), taps: new Int32Array(size), weights: new Int32Array(size * most),
  };
  const shares = new Float64Array(most);
  for (let pixel = 0; pixel < size; pixel++) {
    const middle = (begin + pixel + 0.5) * scale;
    const first = Math.max(0, Math.trunc(middle - reach + 0.5));
    const taps = Math.min(from, Math.trunc(middle + reach + 0.5)) - first;
    let sum = 0;
    for (let tap = 0; tap < taps; tap++) {
      shares[tap] = Math.max(0, 1 - Math.abs((first + tap - middle + 0.5) * (1 / reach)));
      sum += shares[tap];
    }
    filter.first[pixel] = first;
    filter.taps[pixel] = taps;
    for (let tap = 0; tap < taps; tap++) {
      filter.weights[pixel * most + tap] = Math.trunc(0.5 + (shares[tap] / sum) * (1 << WEIGHT_BITS));
    }
  }
  return filter;
}

/**
 * Scales rows of `bands` interleaved channels to another width.
 *
 * @param {Rows} rows
 * @param {number} bands
 * @param {Filter} filter
 * @returns {Rows}
 */
function scaleWidth(rows, bands, {size, first, taps, weights, most}) {
  const wide = new Uint8Array(rows.size);
  return {
    size: size * bands,
    count: rows.count,
    readRow(y, into) {
      rows.readRow(y, wide);
      for (let x = 0; x < size; x++) {
        for (let band = 0; band < bands; band++) {
          let at = first[x] * bands + band;
          let sum = HALF;
          for (let tap = x * most; tap < x * most + taps[x]; tap++, at += bands) {
            sum = (sum + Math.imul(weights[tap], wide[at])) | 0;
          }
          into[x * bands + band] = roundToByte(sum);
        }
      }
    },
  };
}

/**
 * Scales rows to another height. It keeps only as many rows as one new row needs.
 *
 * @param {Rows} rows
 * @param {Filter} filter
 * @returns {Rows}
 */
function scaleHeight(rows, {size, first, taps, weights, most}) {
  const held = Array.from({length: most}, () => new Uint8Array(rows.size));
  const sums = new Int32Array(rows.size);
  let read = first[0];
  return {
    size: rows.size,
    count: size,
    readRow(y, into) {
      const begin = first[y];
      for (; read < begin + taps[y]; read++) rows.readRow(read, held[read % most]);
      sums.fill(HALF);
      for (let tap = 0; tap < taps[y]; tap++) {
        const row = held[(begin + tap) % most];
        const weight = weights[y * most + tap];
        for (let i = 0; i < sums.length; i++) sums[i] += Math.imul(weight, row[i]);
      }
      for (let i = 0; i < sums.length; i++) into[i] = roundToByte(sums[i]);
    },
  };
}

/** @param {number} sum */
function roundToByte(sum) {
  // Rounding can make the sum of many weights larger than 1.
  return Math.min(255, sum >> WEIGHT_BITS);
}
