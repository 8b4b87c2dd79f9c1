import {requireInput} from "./errors.js";
import {averageBlocks} from "./images.js";

/**
 * Camera frames and plain pixels to upright RGB rows. Nothing here needs a browser.
 *
 * @typedef {import("./types.d.ts").Frame} Frame
 * @typedef {import("./types.d.ts").RawPixels} RawPixels
 * @typedef {import("./types.d.ts").Bytes} Bytes
 * @typedef {import("./images.js").Pixels} Pixels
 *
 * @typedef {object} Plane samples in rows
 * @property {Bytes} data
 * @property {number} rowStride bytes from a row to the next one
 * @property {number} pixelStride bytes from a sample to the next one
 * @property {number} offset the first sample's place in `data`
 *
 * @typedef {(row: number, column: number, down: number, right: number, into: Uint8Array) => void} ReadRun writes the RGB
 *     of `into.length / 3` pixels: the first one is in a row and column of the frame, each next one a step down and right
 */

/**
 * In 1/65536: luma's factor and offset, then those of V in red, of U and V in green, of U in blue.
 *
 * Source: ITU-R BT.601-7 and BT.709-6; Kr and Kb are 0.299 and 0.114, 0.2126 and 0.0722.
 */
const FACTORS = {
  bt601: {full: [65536, 0, 91881, 22553, 46802, 116130], video: [76309, 16, 104597, 25675, 53279, 132201]},
  bt709: {full: [65536, 0, 103206, 12276, 30679, 121609], video: [76309, 16, 117489, 13975, 34925, 138438]},
};

/** For each format with one plane: the bytes of a pixel, and where in it red, green, blue and alpha are. */
const INTERLEAVED = {
  rgb: {bytes: 3, places: [0, 1, 2, -1]},
  rgba: {bytes: 4, places: [0, 1, 2, 3]},
  bgra: {bytes: 4, places: [2, 1, 0, 3]},
  bgrx: {bytes: 4, places: [2, 1, 0, -1]}, // only of a VideoFrame
};

/**
 * Returns the upright pixels of a frame.
 *
 * @param {Frame} frame
 * @returns {Pixels}
 * @throws {import("./errors.js").ModelError} `input`, if the frame is not whole; says what is wrong
 */
export function makeFramePixels(frame) {
  const {format, width, height, planes, rotation = 0, matrix = "bt601", range = "full"} = frame;
  const count = format === "yuv420" ? 3 : 1;
  requireInput(
    count === 3 || format in INTERLEAVED, `the frame's format is '${format}', expected yuv420, rgb, rgba, bgra`,
  );
  requireInput(
    Number.isInteger(width) && Number.isInteger(height) && width > 0 && height > 0,
    `the frame is ${width} x ${height} pixels, at least 1 x 1 is needed`,
  );
  requireInput(planes?.length === count, `the frame has ${planes?.length ?? 0} planes, ${format} has ${count}`);
  requireInput(
    [0, 90, 180, 270].includes(rotation), `the frame's rotation is ${rotation}, expected 0, 90, 180 or 270`,
  );
  requireInput(
    Boolean(FACTORS[matrix]?.[range]),
    `the frame's matrix is '${matrix}' and its range '${range}', expected bt601 or bt709, and full or video`,
  );
  if (count === 3) return makeYuvPixels(frame, FACTORS[matrix][range]);
  return {...findUpright(frame), readRow: turn(readInterleaved(frame), frame)};
}

/**
 * Returns the size of an upright picture.
 *
 * @param {{width: number, height: number, rotation?: number}} frame
 */
function findUpright({width, height, rotation = 0}) {
  return rotation % 180 ? {width: height, height: width} : {width, height};
}

/**
 * Returns the upright pixels of an array: rows from the top without gaps.
 *
 * @param {RawPixels} pixels three bytes (R, G, B) or four (R, G, B, A; not premultiplied) per pixel
 * @returns {Pixels}
 * @throws {import("./errors.js").ModelError} `input`, if the array has another size
 */
export function makePlainPixels({data, width, height}) {
  const count = width * height;
  requireInput(
    data?.length === 3 * count || data?.length === 4 * count,
    `${data?.length} bytes for ${width} x ${height} pixels: give ${3 * count} (R, G, B) or ${4 * count} (R, G, B, A)`,
  );
  return makeFramePixels({format: data.length === 3 * count ? "rgb" : "rgba", width, height, planes: [{data}]});
}

/**
 * Returns what reads a row of the upright picture.
 *
 * @param {ReadRun} read
 * @param {{width: number, height: number, rotation?: number}} frame
 * @returns {Pixels["readRow"]}
 */
function turn(read, {width, height, rotation}) {
  if (rotation === 90) return (y, into) => read(height - 1, y, -1, 0, into);
  if (rotation === 180) return (y, into) => read(height - 1 - y, width - 1, 0, -1, into);
  if (rotation === 270) return (y, into) => read(0, width - 1 - y, 1, 0, into);
  return (y, into) => read(y, 0, 0, 1, into);
}

/**
 * @param {Frame} frame
 * @returns {ReadRun}
 */
function readInterleaved(frame) {
  const {bytes, places} = INTERLEAVED[/** @type {keyof typeof INTERLEAVED} */ (frame.format)];
  const [red, green, blue, alpha] = places;
  const [{data, rowStride, pixelStride, offset}] = checkPlanes(frame, [[frame.width, frame.height, bytes]]);
  return (row, column, down, right, into) => {
    const step = down * rowStride + right * pixelStride;
    let at = offset + row * rowStride + column * pixelStride;
    for (let i = 0; i < into.length; i += 3, at += step) {
      const opaque = alpha < 0 ? 255 : data[at + alpha];
      into[i] = layOverWhite(data[at + red], opaque);
      into[i + 1] = layOverWhite(data[at + green], opaque);
      into[i + 2] = layOverWhite(data[at + blue], opaque);
    }
  };
}

/**
 * Lays a channel's value over white; the result equals that of Pillow's `alpha_composite` for all values.
 *
 * @param {number} value
 * @param {number} alpha
 */
function layOverWhite(value, alpha) {
  return alpha === 255 ? value : ((value * alpha + 255 * (255 - alpha) + 127) / 255) | 0;
}

/**
 * @param {Frame} frame
 * @param {number[]} factors
 * @returns {Pixels}
 */
function makeYuvPixels(frame, factors) {
  const half = [(frame.width + 1) >> 1, (frame.height + 1) >> 1, 1];
  const sizes = [[frame.width, frame.height, 1], half, half];
  const planes = checkPlanes(frame, sizes);
  const convert = makeConvert(factors);
  const [yPlane, uPlane, vPlane] = planes;
  /** @type {ReadRun} */
  const read = (row, column, down, right, into) => {
    for (let i = 0; i < into.length; i += 3, row += down, column += right) {
      const y = yPlane.data[locate(yPlane, row, column)];
      const u = uPlane.data[locate(uPlane, row >> 1, column >> 1)];
      convert(y, u, vPlane.data[locate(vPlane, row >> 1, column >> 1)], into, i);
    }
  };
  /** Samples are averaged before they become colours. @param {number} factor @returns {Pixels} */
  const shrink = (factor) => {
    const averages = planes.map((plane, n) => {
      const [width, height] = sizes[n];
      const turned = {width, height, rotation: frame.rotation};
      const upright = findUpright(turned);
      const rows = {size: upright.width, count: upright.height, readRow: turn(readSamples(plane), turned)};
      return averageBlocks(rows, 1, n ? factor / 2 : factor);
    });
    const samples = averages.map(({size}) => new Uint8Array(size));
    const [{size: width, count: height}] = averages;
    return {width, height, readRow(row, into) {
      for (const [n, average] of averages.entries()) average.readRow(row, samples[n]);
      for (let x = 0; x < width; x++) convert(samples[0][x], samples[1][x], samples[2][x], into, 3 * x);
    }};
  };
  return {...findUpright(frame), readRow: turn(read, frame), shrink};
}

/**
 * Returns what writes the colour of Y, U and V.
 *
 * @param {number[]} factors
 * @returns {(y: number, u: number, v: number, into: Uint8Array, at: number) => void}
 */
function makeConvert([luma, black, redV, greenU, greenV, blueU]) {
  return (y, u, v, into, at) => {
    const bright = luma * (y - black) + 32768;
    into[at] = clamp((bright + redV * (v - 128)) >> 16);
    into[at + 1] = clamp((bright - greenU * (u - 128) - greenV * (v - 128)) >> 16);
    into[at + 2] = clamp((bright + blueU * (u - 128)) >> 16);
  };
}

/**
 * Returns what reads a plane's samples, one byte each.
 *
 * @param {Plane} plane
 * @returns {ReadRun}
 */
function readSamples(plane) {
  return (row, column, down, right, into) => {
    for (let i = 0; i < into.length; i++, row += down, column += right) into[i] = plane.data[locate(plane, row, column)];
  };
}

/**
 * @param {Plane} plane
 * @param {number} row
 * @param {number} column
 */
function locate(plane, row, column) {
  return plane.offset + row * plane.rowStride + column * plane.pixelStride;
}

/** @param {number} value */
function clamp(value) {
  return value < 0 ? 0 : value > 255 ? 255 : value;
}

/**
 * Returns a frame's planes, whole, with the strides that it leaves out.
 *
 * @param {Frame} frame
 * @param {number[][]} sizes of each plane: columns, rows, and bytes of a sample
 * @returns {Plane[]}
 */
function checkPlanes({format, width, height, planes}, sizes) {
  return planes.map(({data, pixelStride, rowStride, offset = 0}, number) => {
    const [columns, rows, bytes] = sizes[number];
    const across = pixelStride ?? bytes;
    const down = rowStride ?? columns * across;
    const row = (columns - 1) * across + bytes;
    const needed = (rows - 1) * down + row;
    const which = `plane ${number} of the frame (${format}, ${width} x ${height})`;
    requireInput(across >= bytes, `${which} has a pixel stride of ${across}, ${bytes} are needed`);
    requireInput(down >= row, `${which} has a row stride of ${down}, a row has ${row} bytes`);
    const size = (data?.length ?? 0) - offset;
    requireInput(offset >= 0 && size >= needed, `${which} has ${size} bytes, ${needed} are needed`);
    return {data, offset, rowStride: down, pixelStride: across};
  });
}
