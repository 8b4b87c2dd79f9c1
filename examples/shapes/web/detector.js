/** The model in a worker: WebAssembly blocks the thread that it runs in, and the page has to stay smooth. */
export class Detector {
  #worker = new Worker(new URL("worker.js", import.meta.url), {type: "module"});
  #calls = new Map();
  #count = 0;
  /** Why the worker does not run; null while it does. */
  #failure = null;

  constructor() {
    this.#worker.addEventListener("message", ({data: {id, result, error}}) => {
      const {resolve, reject} = this.#calls.get(id);
      this.#calls.delete(id);
      if (error) reject(new Error(error));
      else resolve(result);
    });
    this.#worker.addEventListener("error", ({message}) => {
      this.#failure = new Error(message || "The model's code cannot be loaded: is it installed, as README.md says?");
      for (const {reject} of this.#calls.values()) reject(this.#failure);
      this.#calls.clear();
    });
  }

  /** Opens the model; returns `{variant, notes}`: the notes say what does not work as it could. */
  open() {
    return this.#call({});
  }

  /**
   * Returns the objects in a picture, best first, each `{label, score, box: [left, top, right, bottom]}` in its pixels.
   *
   * A VideoFrame or ImageBitmap moves to the worker, which closes it; a Blob is copied.
   */
  predict(picture, options) {
    return this.#call({picture, options}, picture instanceof Blob ? [] : [picture]);
  }

  async #call(given, moved = []) {
    if (this.#failure) throw this.#failure;
    const id = this.#count++;
    return new Promise((resolve, reject) => {
      this.#calls.set(id, {resolve, reject});
      this.#worker.postMessage({id, ...given}, moved);
    });
  }
}
