// What models say where memory is short, and that they run afterwards: in Node and in a page.

/**
 * Returns what each call gave or said; `hungry` computes with so many numbers as it is asked for, `pixels` takes a picture's bytes.
 *
 * @param {any} hungry its module
 * @param {any} pixels its module
 * @param {any} options of opening
 */
export async function exhaust(hungry, pixels, options) {
  const model = await hungry.Hungry.open(options);
  const other = await pixels.Pixels.open(options);
  /** @type {string[]} */
  const said = [];
  /** @param {() => Promise<unknown>} call */
  const tell = async (call) => {
    try {
      said.push(`${await call()}`);
    } catch (error) {
      said.push(`${error.reason}: ${error.message}`);
    }
  };
  /** @param {number} size */
  const compute = (size) => tell(async () => {
    const {total} = await model.run(new hungry.Tensor(BigInt64Array.of(BigInt(size)), [1]));
    return total.data[0];
  });
  /** @param {number} width */
  const look = (width) => tell(async () => {
    // Its memory is not touched where there is no room for it.
    const images = new pixels.Tensor(new Uint8Array(300 * width), [100, width, 3]);
    return (await other.run({images})).objects.shape;
  });
  // More than a shape may have, and than there are addresses: 3 GB of memory stay with the session.
  for (const size of [100, 1e18, 750e6, 100]) await compute(size);
  for (const width of [100, 4.7e6, 100]) await look(width);
  await compute(100);
  await model.close();
  await other.close();
  const again = await pixels.Pixels.open(options);
  await tell(async () => (await again.selfTest()).passed);
  return said;
}
