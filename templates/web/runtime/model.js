import {ModelError, requireMemory} from "./errors.js";

/** A model in its best variant that works here; the package's own class has its name and types. */
export class Model {
  #opened;
  #isClosed = false;

  /** @param {import("./opener.js").Opened} opened */
  constructor(opened) {
    this.#opened = opened;
  }

  /** The id of the variant in use. */
  get variant() {
    return this.#opened.loaded.variant.id;
  }

  /** The better variants that are not used, each with the reason. */
  get passedOver() {
    return this.#opened.passedOver;
  }

  /** What does not work as it could, such as only one thread. */
  get notes() {
    return this.#opened.notes;
  }

  /** @param {unknown} given */
  async run(given) {
    const {outputs} = await this.#infer(given);
    return this.#opened.meaning.nameOutputs(outputs);
  }

  /**
   * @param {unknown} given
   * @param {import("./types.d.ts").AnswerOptions | null} [options]
   */
  async predict(given, options) {
    const {outputs, feed} = await this.#infer(given);
    const {meaning} = this.#opened;
    const make = () => meaning.makeAnswers(outputs, feed, options ?? {});
    return {...meaning.nameOutputs(outputs), answers: await requireMemory("the answers cannot be made", make)};
  }

  /** @param {unknown} given */
  async #infer(given) {
    const {meaning, loaded} = this.#opened;
    this.#requireOpen();
    const {tensors, place} = await requireMemory("the inputs cannot be made", () => meaning.makeFeed(given));
    // Pooling needs the masks too, even those that the caller left out.
    const feed = {tensors: loaded.checkInputs(tensors), place};
    this.#requireOpen();
    return {outputs: await loaded.run(feed.tensors), feed};
  }

  async selfTest() {
    const {goldens, loaded} = this.#opened;
    const decibels = [];
    for (let index = 0; index < goldens.count; index++) {
      const feed = await goldens.readInputs(index);
      this.#requireOpen();
      decibels.push(await goldens.computeClosenessDb(index, this.variant, await loaded.run(feed)));
    }
    const needed = loaded.variant.minDb;
    return {variant: this.variant, decibels, needed, passed: decibels.every((found) => found >= needed)};
  }

  async close() {
    if (this.#isClosed) return;
    this.#isClosed = true;
    await this.#opened.loaded.close();
  }

  #requireOpen() {
    if (this.#isClosed) throw new ModelError("closed", `this ${this.constructor.name} is closed`);
  }
}
