import {roundHalfToEven} from "./tensors.js";

/**
 * Resizing as the libraries do it that models are trained with; `filter` in a description's `resize` names the function.
 *
 * The numbers are those of the project's samples, to the bit: what is double in a library is double here, and what is float32
 * is rounded to it after each step.
 *
 * @typedef {object} Span how an axis is scaled
 * @property {number} from its size
 * @property {number} to its new size
 * @property {number} begin the first of its new pixels that is wanted
 * @property {number} end the one behind the last
 *
 * @typedef {import("./images.js").Resize} Resize
 */

/**
 * @template {Int32Array | Float32Array} [Weights=Int32Array]
 * @typedef {object} Axis which pixels make each new pixel, and with what weights
 * @property {number} from the number of pixels
 * @property {number} size the number of new ones
 * @property {Int32Array} first for each of them the first pixel that it is made of; what lies outside stands for the edge
 * @property {Int32Array} taps for each of them how many pixels it is made of
 * @property {Weights} weights `most` for each of them: of its first pixel and the following ones
 * @property {number} most
 * @property {new (size: number) => Weights} type of the weights
 */

/**
 * @template {Uint8Array | Int32Array | Float32Array} [Numbers=Uint8Array]
 * @typedef {object} Rows rows of numbers; each is read once, from the top down, and those that nobody needs are not read
 * @property {number} size how many numbers a row has
 * @property {number} count
 * @property {(y: number, into: Numbers) => void} readRow
 */

/**
 * Returns the part of a scaled picture that is wanted.
 *
 * @param {Rows} rows of bytes
 * @param {number} bands interleaved in a row: 3 for RGB, 1 for grey
 * @param {Span} across
 * @param {Span} down
 * @param {Resize} resize whose `filter` and `antialias` are read
 * @returns {Rows<any>} of bytes, or of float32 where {@link givesFloats}
 */
export function resizeRows(rows, bands, across, down, {filter = "pillow-bilinear", antialias = false}) {
  const make = FILTERS[filter];
  if (!make) throw new Error(`there is no filter '${filter}'`);
  return make({rows, bands, across, down, antialias});
}

/**
 * Returns whether scaled pixels stay float32; those of other filters are rounded to bytes.
 *
 * @param {Resize} resize
 */
export function givesFloats({filter = ""}) {
  return filter.startsWith("torchvision-") || filter.startsWith("tf-");
}

/**
 * @typedef {object} Given
 * @property {Rows} rows
 * @property {number} bands
 * @property {Span} across
 * @property {Span} down
 * @property {boolean} antialias
 */

/** @type {Record<string, (given: Given) => Rows<any>>} */
const FILTERS = {
  "pillow-bilinear": (given) => resizeAsPillow(given, bilinear, 1),
  "pillow-bicubic": (given) => resizeAsPillow(given, bicubic, 2),
  "pillow-nearest": (given) => pick(given, pickCentre),
  "cv2-linear": (given) => interpolate(given, placeLinear),
  "cv2-cubic": resizeAsCubic,
  "cv2-area": resizeAsArea,
  "cv2-nearest": (given) => pick(given, pickCorner),
  "torchvision-bilinear": (given) => resizeAsFloats(given, (span) => given.antialias
    ? spread(span, findScale(span), bilinear, 1) : makeLinearAxis(span, placeOnce(span))),
  "torchvision-bicubic": (given) => resizeAsFloats(given, (span) => given.antialias
    ? spread(span, findScale(span), bicubic, 2) : makeCubicAxis(span)),
  // TensorFlow rounds places in other steps than PyTorch.
  "tf-bilinear": (given) => resizeAsFloats(given, (span) => given.antialias
    ? spread(span, f32(1 / f32(span.to / span.from)), bilinear, 1) : makeLinearAxis(span, placeTwice(span))),
};

const f32 = Math.fround;

/** Fraction bits of a weight of Pillow's: a byte times weights whose sum is 1 fits into 32 bits with a sign. */
const WEIGHT_BITS = 22;

/** Added to a sum of weighted bytes, so that it rounds to the nearest. */
const HALF = 1 << (WEIGHT_BITS - 1);

/**
 * Pillow's way for 8-bit channels: two passes with weights in fixed point, each of which rounds.
 *
 * @param {Given} given
 * @param {Kernel} kernel
 * @param {number} reach of the kernel
 */
function resizeAsPillow({rows, bands, across, down}, kernel, reach) {
  const wide = makePillowAxis(across, kernel, reach);
  const high = makePillowAxis(down, kernel, reach);
  const lostWidth = across.from - across.to;
  const lostHeight = down.from - down.to;
  // Both passes round to 8 bits, so their order changes the result. This is the order of Pillow 13.
  return lostHeight > 2 * Math.max(lostWidth, 0)
    ? scaleWidth(scaleHeight(rows, high), bands, wide)
    : scaleHeight(scaleWidth(rows, bands, wide), high);
}

/**
 * Source: Pillow, src/libImaging/Resample.c. What is double there is double here, in the same sequence.
 *
 * @param {Span} span
 * @param {Kernel} kernel
 * @param {number} reach
 */
function makePillowAxis(span, kernel, reach) {
  const scale = span.from / span.to;
  // Scaling down, the filter is as wide as the scale: that is the antialiasing.
  const stretched = Math.max(scale, 1);
  const axis = makeAxis(span, 2 * Math.ceil(reach * stretched) + 1, Int32Array);
  const weigh = makeWeighing(span.from, reach * stretched, 1 / stretched, kernel, (value) => value);
  for (let pixel = 0; pixel < axis.size; pixel++) {
    const shares = weigh((span.begin + pixel + 0.5) * scale, axis, pixel);
    for (let tap = 0; tap < axis.taps[pixel]; tap++) {
      const exact = shares[tap] * (1 << WEIGHT_BITS);
      axis.weights[pixel * axis.most + tap] = Math.trunc(exact < 0 ? exact - 0.5 : exact + 0.5);
    }
  }
  return axis;
}

/**
 * @template {Int32Array | Float32Array} Weights
 * @param {Span} span
 * @param {number} most
 * @param {new (size: number) => Weights} type
 * @returns {Axis<Weights>}
 */
function makeAxis({from, begin, end}, most, type) {
  const size = end - begin;
  const [first, taps] = [new Int32Array(size), new Int32Array(size).fill(most)];
  return {from, size, most, first, taps, weights: new type(size * most), type};
}

/**
 * Returns a function that writes into an axis which pixels make a new one, and returns their shares, whose sum is 1.
 *
 * @param {number} from the number of pixels
 * @param {number} reach of the stretched kernel
 * @param {number} narrowing 1 over how much it is stretched
 * @param {Kernel} kernel
 * @param {(value: number) => number} round to the type that the library computes in
 */
function makeWeighing(from, reach, narrowing, kernel, round) {
  const shares = new Float64Array(2 * Math.ceil(reach) + 1);
  /** @param {number} centre @param {Axis<any>} axis @param {number} pixel */
  return (centre, axis, pixel) => {
    const first = Math.max(0, Math.trunc(round(round(centre - reach) + 0.5)));
    const taps = Math.min(from, Math.trunc(round(round(centre + reach) + 0.5))) - first;
    let sum = 0;
    for (let tap = 0; tap < taps; tap++) {
      const distance = Math.abs(round(round(round(first + tap - centre) + 0.5) * narrowing));
      shares[tap] = kernel(distance, round);
      sum = round(sum + shares[tap]);
    }
    for (let tap = 0; tap < taps; tap++) shares[tap] = round(shares[tap] / sum);
    axis.first[pixel] = first;
    axis.taps[pixel] = taps;
    return shares;
  };
}

/**
 * @callback Kernel
 * @param {number} distance
 * @param {(value: number) => number} round
 * @returns {number}
 */

/** @type {Kernel} */
function bilinear(distance, round) {
  return Math.max(0, round(1 - distance));
}

/** Keys' kernel with a = -0.5. @type {Kernel} */
function bicubic(d, round) {
  if (d < 1) return round(round(round(round(round(1.5 * d) - 2.5) * d) * d) + 1);
  return d < 2 ? round(round(round(round(round(round(d - 5) * d) + 8) * d) - 4) * -0.5) : 0;
}

/**
 * Scales rows of `bands` interleaved channels to another width, and rounds.
 *
 * @param {Rows} rows
 * @param {number} bands
 * @param {Axis} axis
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
 * Scales rows to another height, and rounds. It keeps only as many rows as one new row needs.
 *
 * @param {Rows} rows
 * @param {Axis} axis
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
  // Rounding can make the sum of many weights larger than 1, and some weights of a bicubic filter are negative.
  return Math.max(0, Math.min(255, sum >> WEIGHT_BITS));
}

/**
 * Makes each new row of those that it is made of. It keeps only as many as one new row needs.
 *
 * @template {Int32Array | Float32Array} Numbers
 * @template {Uint8Array | Int32Array | Float32Array} Joined
 * @param {Rows<Numbers>} rows of the weights' type
 * @param {Axis<Numbers>} axis
 * @param {(held: Numbers[], y: number, into: Joined) => void} join
 * @returns {Rows<Joined>}
 */
function joinRows(rows, {from, size, first, taps, most, type}, join) {
  const kept = Array.from({length: most}, () => new type(rows.size));
  const held = kept.slice();
  const clamp = (/** @type {number} */ row) => Math.max(0, Math.min(from - 1, row));
  let read = 0;
  return {
    size: rows.size,
    count: size,
    readRow(y, into) {
      read = Math.max(read, clamp(first[y]));
      for (const end = clamp(first[y] + taps[y] - 1); read <= end; read++) rows.readRow(read, kept[read % most]);
      for (let tap = 0; tap < taps[y]; tap++) held[tap] = kept[clamp(first[y] + tap) % most];
      join(held, y, into);
    },
  };
}

/**
 * Takes one pixel for each new one.
 *
 * @param {Given} given
 * @param {(span: Span) => Int32Array} place returns which
 * @returns {Rows}
 */
function pick({rows, bands, across, down}, place) {
  const [columns, lines] = [place(across), place(down)];
  const wide = new Uint8Array(rows.size);
  let read = -1;
  return {
    size: columns.length * bands,
    count: lines.length,
    readRow(y, into) {
      if (read !== lines[y]) rows.readRow(lines[y], wide);
      read = lines[y];
      for (const [x, column] of columns.entries()) {
        for (let band = 0; band < bands; band++) into[x * bands + band] = wide[column * bands + band];
      }
    },
  };
}

/** Pillow adds up steps, from the first pixel on. Source: src/libImaging/Geometry.c. @param {Span} span */
function pickCentre({from, to, begin, end}) {
  const step = from / to;
  const picked = new Int32Array(end - begin);
  let place = step * 0.5;
  for (let pixel = 0; pixel < end; pixel++, place += step) {
    if (pixel >= begin) picked[pixel - begin] = Math.trunc(place);
  }
  return picked;
}

/** @param {Span} span */
function pickCorner(span) {
  const [scale] = findExactScale(span);
  return Int32Array.from({length: span.end - span.begin}, (_, pixel) =>
    Math.min(Math.floor((span.begin + pixel) * scale), span.from - 1));
}

/** Returns how many pixels become one, and what that is computed from, as OpenCV divides. @param {Span} span */
function findExactScale({from, to}) {
  const inverse = to / from;
  return [1 / inverse, inverse];
}

/**
 * OpenCV's way between two pixels of each axis, in fixed point. Source: OpenCV, modules/imgproc/src/resize.cpp.
 *
 * @param {Given} given
 * @param {(pixel: number, span: Span) => [first: number, part: number]} place
 * @returns {Rows}
 */
function interpolate({rows, bands, across, down}, place) {
  const wide = sumWidth(rows, bands, makeFixedAxis(across, place, true));
  const axis = makeFixedAxis(down, place, false);
  return joinRows(wide, axis, ([upper, lower], y, into) => {
    const [above, below] = [axis.weights[2 * y], axis.weights[2 * y + 1]];
    for (let i = 0; i < upper.length; i++) {
      const sum = (((upper[i] >> 4) * above) >> 16) + (((lower[i] >> 4) * below) >> 16);
      into[i] = Math.min(255, (sum + 2) >> 2);
    }
  });
}

/**
 * OpenCV's way between four pixels of each axis. It joins eight numbers of a row at a time in float32, from the last row on, and
 * those that are left at its end as whole numbers.
 *
 * @param {Given} given
 * @returns {Rows}
 */
function resizeAsCubic({rows, bands, across, down}) {
  const axis = makeFixedCubicAxis(down);
  const atOnce = Math.floor(across.to * bands / 8) * 8 - across.begin * bands;
  return joinRows(sumWidth(rows, bands, makeFixedCubicAxis(across)), axis, (held, y, into) => {
    const weights = axis.weights.subarray(4 * y, 4 * y + 4);
    for (let i = 0; i < into.length; i++) {
      const round = i < atOnce ? f32 : keep;
      let sum = 0;
      for (let tap = 3; tap >= 0; tap--) sum = round(round(held[tap][i] * weights[tap]) + sum);
      const exact = sum / 2 ** 22;
      into[i] = roundAndClip(i < atOnce ? exact : Math.floor(exact + 0.5));
    }
  });
}

/** @param {Span} span */
function makeFixedCubicAxis(span) {
  const axis = makeAxis(span, 4, Int32Array);
  for (let pixel = 0; pixel < axis.size; pixel++) {
    const [first, part] = placeLinear(span.begin + pixel, span);
    const shares = [weighFar(f32(part + 1)), weighNear(part), weighNear(f32(1 - part))];
    axis.first[pixel] = first - 1;
    shares.push(f32(f32(f32(1 - shares[0]) - shares[1]) - shares[2]));
    for (let tap = 0; tap < 4; tap++) axis.weights[4 * pixel + tap] = roundHalfToEven(shares[tap] * 2048);
  }
  return axis;
}

/**
 * @param {Span} span
 * @param {(pixel: number, span: Span) => [first: number, part: number]} place
 * @param {boolean} isRow whether what lies outside is moved to the edge
 */
function makeFixedAxis(span, place, isRow) {
  const axis = makeAxis(span, 2, Int32Array);
  for (let pixel = 0; pixel < axis.size; pixel++) {
    let [first, part] = place(span.begin + pixel, span);
    if (isRow && (first < 0 || first >= span.from - 1)) {
      first = first < 0 ? 0 : span.from - 1;
      part = 0;
    }
    axis.first[pixel] = first;
    axis.weights[2 * pixel] = roundHalfToEven(f32(1 - part) * 2048);
    axis.weights[2 * pixel + 1] = roundHalfToEven(part * 2048);
  }
  return axis;
}

/** @param {number} pixel @param {Span} span @returns {[first: number, part: number]} */
function placeLinear(pixel, span) {
  const exact = f32((pixel + 0.5) * findExactScale(span)[0] - 0.5);
  const first = Math.floor(exact);
  return [first, f32(exact - first)];
}

/** OpenCV's INTER_AREA where a side grows. @param {number} pixel @param {Span} span @returns {[first: number, part: number]} */
function placeAreas(pixel, span) {
  const [scale, inverse] = findExactScale(span);
  const first = Math.floor(pixel * scale);
  const part = f32(pixel + 1 - (first + 1) * inverse);
  return [first, part <= 0 ? 0 : f32(part - Math.floor(part))];
}

/** OpenCV's INTER_AREA: the mean of the pixels that become one, where no side grows. @param {Given} given @returns {Rows} */
function resizeAsArea(given) {
  const {rows, bands, across, down} = given;
  const [[wide], [high]] = [findExactScale(across), findExactScale(down)];
  if (Math.min(wide, high) < 1) return interpolate(given, placeAreas);
  const blocks = [roundHalfToEven(wide), roundHalfToEven(high)];
  if (Math.max(Math.abs(wide - blocks[0]), Math.abs(high - blocks[1])) < Number.EPSILON) {
    return averageWholes(given, blocks[0], blocks[1]);
  }
  const floats = sumHeight(sumWidth(rows, bands, makeAreaAxis(across)), makeAreaAxis(down));
  const exact = new Float32Array(floats.size);
  return {
    ...floats,
    readRow(y, into) {
      floats.readRow(y, exact);
      for (let i = 0; i < exact.length; i++) into[i] = roundAndClip(exact[i]);
    },
  };
}

/** @param {number} value */
function roundAndClip(value) {
  return Math.max(0, Math.min(255, roundHalfToEven(value)));
}

/** @param {Given} given @param {number} wide @param {number} high @returns {Rows} */
function averageWholes({rows, bands, across, down}, wide, high) {
  const sums = sumHeight(sumWidth(rows, bands, makeBlockAxis(across, wide)), makeBlockAxis(down, high));
  const whole = new Int32Array(sums.size);
  const share = f32(1 / f32(wide * high));
  const isFour = wide === 2 && high === 2;
  return {
    ...sums,
    readRow(y, into) {
      sums.readRow(y, whole);
      for (let i = 0; i < whole.length; i++) {
        into[i] = isFour ? (whole[i] + 2) >> 2 : roundAndClip(f32(f32(whole[i]) * share));
      }
    },
  };
}

/** @param {Span} span @param {number} block */
function makeBlockAxis(span, block) {
  const axis = makeAxis(span, block, Int32Array);
  axis.weights.fill(1);
  for (let pixel = 0; pixel < axis.size; pixel++) axis.first[pixel] = (span.begin + pixel) * block;
  return axis;
}

/** Which part of each pixel lies in each new one. Source: computeResizeAreaTab there. @param {Span} span */
function makeAreaAxis(span) {
  const [scale] = findExactScale(span);
  const least = 1e-3;
  const axis = makeAxis(span, Math.ceil(scale) + 2, Float32Array);
  for (let pixel = 0; pixel < axis.size; pixel++) {
    const begin = (span.begin + pixel) * scale;
    const end = begin + scale;
    const cell = Math.min(scale, span.from - begin);
    const last = Math.min(Math.floor(end), span.from - 1);
    const inner = Math.min(Math.ceil(begin), last);
    const at = pixel * axis.most - inner + 1;
    axis.first[pixel] = inner - 1;
    axis.taps[pixel] = last - inner + 2;
    if (inner - begin > least) axis.weights[at + inner - 1] = (inner - begin) / cell;
    for (let row = inner; row < last; row++) axis.weights[at + row] = 1 / cell;
    if (end - last > least) axis.weights[at + last] = Math.min(end - last, 1, cell) / cell;
  }
  return axis;
}

/**
 * PyTorch's and TensorFlow's way: weighted sums in float32 along the rows, and then of rows; nothing is rounded to bytes.
 *
 * @param {Given} given
 * @param {(span: Span) => Axis<Float32Array>} make
 */
function resizeAsFloats({rows, bands, across, down}, make) {
  return sumHeight(sumWidth(rows, bands, make(across)), make(down));
}

/** Returns how many pixels become one, as float32. @param {Span} span */
function findScale({from, to}) {
  return f32(from / to);
}

/**
 * The antialiasing: weights that reach over all pixels that become one.
 *
 * @param {Span} span
 * @param {number} scale
 * @param {Kernel} kernel
 * @param {number} reach
 */
function spread(span, scale, kernel, reach) {
  const stretched = Math.max(scale, 1);
  const reaches = f32(reach * stretched);
  const axis = makeAxis(span, 2 * Math.ceil(reaches) + 1, Float32Array);
  const weigh = makeWeighing(span.from, reaches, f32(1 / stretched), kernel, f32);
  for (let pixel = 0; pixel < axis.size; pixel++) {
    const shares = weigh(f32((span.begin + pixel + 0.5) * scale), axis, pixel);
    axis.weights.set(shares.subarray(0, axis.taps[pixel]), pixel * axis.most);
  }
  return axis;
}

/** Returns a new pixel's centre, counted from the first one's, rounded once. @param {Span} span */
function placeOnce(span) {
  const scale = findScale(span);
  return (/** @type {number} */ pixel) => f32((pixel + 0.5) * scale - 0.5);
}

/** The same, rounded twice. @param {Span} span */
function placeTwice(span) {
  const scale = findScale(span);
  return (/** @type {number} */ pixel) => f32(f32((pixel + 0.5) * scale) - 0.5);
}

/** @param {Span} span @param {(pixel: number) => number} place */
function makeLinearAxis(span, place) {
  const axis = makeAxis(span, 2, Float32Array);
  for (let pixel = 0; pixel < axis.size; pixel++) {
    const exact = Math.max(0, place(span.begin + pixel));
    const first = Math.floor(exact);
    const part = f32(exact - first);
    axis.first[pixel] = first;
    axis.weights.set([1 - part, part], 2 * pixel);
  }
  return axis;
}

/** Keys' kernel with a = -0.75, over four pixels. @param {Span} span */
function makeCubicAxis(span) {
  const axis = makeAxis(span, 4, Float32Array);
  const place = placeOnce(span);
  for (let pixel = 0; pixel < axis.size; pixel++) {
    const exact = place(span.begin + pixel);
    const first = Math.floor(exact);
    const part = f32(exact - first);
    const rest = f32(1 - part);
    axis.first[pixel] = first - 1;
    axis.weights.set([weighFar(f32(part + 1)), weighNear(part), weighNear(rest), weighFar(f32(rest + 1))], 4 * pixel);
  }
  return axis;
}

/** @param {number} d */
function weighNear(d) {
  return f32(f32(f32(f32(f32(1.25 * d) - 2.25) * d) * d) + 1);
}

/** @param {number} d */
function weighFar(d) {
  return f32(f32(f32(f32(f32(f32(-0.75 * d) + 3.75) * d) - 6) * d) + 3);
}

/**
 * Sums up weighted numbers of each row.
 *
 * @template {Int32Array | Float32Array} Numbers
 * @param {Rows} rows
 * @param {number} bands
 * @param {Axis<Numbers>} axis
 * @returns {Rows<Numbers>}
 */
function sumWidth(rows, bands, {from, size, first, taps, weights, most, type}) {
  const wide = new Uint8Array(rows.size);
  const round = findRounding(type);
  return {
    size: size * bands,
    count: rows.count,
    readRow(y, into) {
      rows.readRow(y, wide);
      for (let x = 0; x < size; x++) {
        for (let band = 0; band < bands; band++) {
          let sum = 0;
          for (let tap = 0; tap < taps[x]; tap++) {
            const column = Math.max(0, Math.min(from - 1, first[x] + tap));
            sum = round(sum + round(weights[x * most + tap] * wide[column * bands + band]));
          }
          into[x * bands + band] = sum;
        }
      }
    },
  };
}

/**
 * Sums up weighted rows.
 *
 * @template {Int32Array | Float32Array} Numbers
 * @param {Rows<Numbers>} rows
 * @param {Axis<Numbers>} axis
 * @returns {Rows<Numbers>}
 */
function sumHeight(rows, axis) {
  const {most, taps, weights, type} = axis;
  const sums = new type(rows.size);
  const round = findRounding(type);
  return joinRows(rows, axis, (held, y, into) => {
    sums.fill(0);
    for (let tap = 0; tap < taps[y]; tap++) {
      const [row, weight] = [held[tap], weights[y * most + tap]];
      // Storing rounds a sum, but not what is added to it.
      for (let i = 0; i < sums.length; i++) sums[i] += round(weight * row[i]);
    }
    into.set(sums);
  });
}

/**
 * Returns what rounds to a type. Of whole numbers, products and sums are exact as they are.
 *
 * @param {new (size: number) => Int32Array | Float32Array} type
 */
function findRounding(type) {
  return type === Float32Array ? f32 : keep;
}

/** @param {number} value */
function keep(value) {
  return value;
}
