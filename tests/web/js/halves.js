// Converts halves.bin to float32 and floats.bin to float16, in files that end in .out.
//
//     node halves.js PACKAGE FOLDER

import {readFileSync, writeFileSync} from "node:fs";
import {join, resolve} from "node:path";
import {pathToFileURL} from "node:url";

const [bundle, folder] = process.argv.slice(2);
const {narrow, widen} = await import(pathToFileURL(resolve(bundle, "runtime", "tensors.js")).href);

/** @param {string} name */
const read = (name) => new Uint8Array(readFileSync(join(folder, name))).buffer;

writeFileSync(join(folder, "halves.out"), widen(new Uint16Array(read("halves.bin"))));
writeFileSync(join(folder, "floats.out"), narrow(new Float32Array(read("floats.bin"))));
