// Opens a bundle, runs it once more than opening does, and prints its variant and notes, or what is wrong.
//
//     node open.js PACKAGE TYPE node|web|none [INPUT SIZE ...]
//
// An input and sizes: one is run after the other, each as that input alone.

import {resolve} from "node:path";
import {pathToFileURL} from "node:url";

const [bundle, type, which, input, ...sizes] = process.argv.slice(2);
const {Tensor, [type]: Subject} = await import(pathToFileURL(resolve(bundle, "index.js")).href);

/** @param {() => Promise<string>} call */
async function tell(call) {
  try {
    process.stdout.write(`${await call()}\n`);
  } catch (error) {
    process.stdout.write(`${error.reason}: ${error.message.replaceAll("\n", " ")}\n`);
  }
}

await tell(async () => {
  const ort = which === "web" ? await import("onnxruntime-web") : undefined;
  const model = await Subject.open({ort});
  const {passed} = await model.selfTest();
  for (const size of sizes) {
    await tell(async () => {
      const [output] = Object.values(await model.run({[input]: new Tensor(new BigInt64Array([BigInt(size)]), [1])}));
      return `${output}`;
    });
  }
  await model.close();
  return `${model.variant} ${passed}`;
});
