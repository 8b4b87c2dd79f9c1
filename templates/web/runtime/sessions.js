import {ModelError, Refused, explainFailure, formatLine, isOutOfMemory} from "./errors.js";
import {take} from "./shapes.js";
import {Tensor, makeFilled, narrow, widen} from "./tensors.js";

/**
 * @typedef {import("./types.d.ts").Runtime} Runtime
 * @typedef {import("./types.d.ts").RuntimeSession} RuntimeSession
 * @typedef {import("./types.d.ts").RuntimeTensor} RuntimeTensor
 * @typedef {import("./manifest.js").Manifest} Manifest
 * @typedef {import("./manifest.js").Spec} Spec
 * @typedef {import("./manifest.js").Variant} Variant
 * @typedef {import("./shapes.js").Tensors} Tensors
 * @typedef {import("./source.js").Files} Files
 */

const CPU = "CPUExecutionProvider";
const WEBGPU = "WebGpuExecutionProvider";

/** The names that onnxruntime's JavaScript packages have for execution providers; onnxruntime-web takes cpu for wasm. */
const PROVIDERS = new Map([[CPU, "cpu"], [WEBGPU, "webgpu"]]);

/** How long WebAssembly with threads may take to start, its download included: blocked workers never answer. */
const START_TIMEOUT_MS = 120_000;

const NO_FALLBACK = "session.disable_cpu_ep_fallback";

/**
 * What says whether a variant for WebGPU can run: the adapter's features, or why there is no adapter.
 *
 * @typedef {{features: ReadonlySet<string>} | {absence: string}} Gpu
 */

/**
 * Returns what the page's WebGPU has.
 *
 * @returns {Promise<Gpu>}
 */
async function findGpu() {
  const gpu = typeof navigator === "undefined" ? undefined : /** @type {any} */ (navigator).gpu;
  if (!gpu) {
    const why = globalThis.isSecureContext === false ? ": this page is no secure context" : "";
    return {absence: `${WEBGPU} needs WebGPU, and there is no navigator.gpu here${why}`};
  }
  try {
    const adapter = await gpu.requestAdapter();
    return adapter ? {features: adapter.features} : {absence: `${WEBGPU} needs a GPU, and navigator.gpu has no adapter`};
  } catch (error) {
    return {absence: `${WEBGPU} needs a GPU, and navigator.gpu gives none: ${formatLine(error)}`};
  }
}

/**
 * Returns onnxruntime, which the app passes or which is imported, and what the GPU has.
 *
 * onnxruntime-web has a build with WebGPU and one without, whose download is about half: the first one is imported
 * only where a variant can use it.
 *
 * @param {Runtime | {default: Runtime} | undefined} given
 * @param {readonly Variant[]} variants
 * @param {(note: string) => void} tell
 * @returns {Promise<{ort: Runtime, gpu: Gpu}>}
 * @throws {ModelError} `runtime`, if onnxruntime cannot be imported
 */
export async function startRuntime(given, variants, tell) {
  // Official builds of onnxruntime 1.29 and newer send telemetry unless this variable is set before they load.
  // Source: Privacy.md in the onnxruntime 1.31.1 wheel.
  if (typeof process !== "undefined" && process.env) process.env.ORT_DISABLE_TELEMETRY = "1";
  const onGpu = variants.filter(({providers}) => providers.some(({name}) => name === WEBGPU));
  const gpu = onGpu.length ? await findGpu() : {absence: "no variant needs it"};
  const usesGpu = onGpu.some((variant) => !explainAbsence(WEBGPU, variant, gpu));
  const module = /** @type {any} */ (given ?? await importRuntime(usesGpu));
  /** @type {Runtime} */
  const ort = module.InferenceSession ? module : module.default;
  if (ort.env.versions.web) chooseThreads(ort, variants[0], tell);
  return {ort, gpu};
}

/** @param {boolean} usesGpu */
async function importRuntime(usesGpu) {
  try {
    return await (usesGpu ? import("#onnxruntime-webgpu") : import("#onnxruntime"));
  } catch (error) {
    throw new ModelError(
      "runtime",
      `onnxruntime cannot be imported: ${formatLine(error)}: install the peer dependency that package.json names, or`
        + " pass the module as `ort`",
      error,
    );
  }
}

/**
 * Returns why a variant cannot have one of its providers here; nothing where it can.
 *
 * @param {string} provider
 * @param {Variant} variant
 * @param {Gpu} gpu
 */
function explainAbsence(provider, {recipe}, gpu) {
  if (!PROVIDERS.has(provider)) return `${provider} is not one that JavaScript apps can add`;
  if (provider !== WEBGPU) return "";
  if ("absence" in gpu) return gpu.absence;
  const isHalf = recipe.startsWith("fp16");
  return isHalf && !gpu.features.has("shader-f16") ? "the GPU has no shader-f16, which float16 needs" : "";
}

/**
 * Sets the number of WebAssembly's threads, and how long it may take to start, unless the app has: all sessions of a
 * page share them.
 *
 * @param {Runtime} ort
 * @param {Variant} variant
 * @param {(note: string) => void} tell
 */
function chooseThreads(ort, {session}, tell) {
  if (globalThis.crossOriginIsolated === false) {
    ort.env.wasm.numThreads = 1;
    tell(
      "WebAssembly has one thread, because this page is not cross-origin isolated: serve it with the headers"
        + " Cross-Origin-Opener-Policy: same-origin and Cross-Origin-Embedder-Policy: require-corp",
    );
  } else if (session.intra_op_num_threads && !ort.env.wasm.numThreads) {
    ort.env.wasm.numThreads = session.intra_op_num_threads;
  }
  // Not in Node, which would wait for onnxruntime's timer before it ends.
  if (globalThis.crossOriginIsolated && ort.env.wasm.numThreads !== 1) ort.env.wasm.initTimeout ||= START_TIMEOUT_MS;
}

/** Sessions of one module of onnxruntime: it runs one thing at a time. */
export class Sessions {
  #ort;
  #gpu;
  #files;
  #manifest;
  /** Why the GPU's device is gone; empty while it is there. */
  #lost = "";

  /**
   * @param {{ort: Runtime, gpu: Gpu}} runtime
   * @param {Files} files
   * @param {Manifest} manifest
   */
  constructor({ort, gpu}, files, manifest) {
    this.#ort = ort;
    this.#gpu = gpu;
    this.#files = files;
    this.#manifest = manifest;
  }

  /**
   * Checks that this machine has the providers and CPU flags that a variant needs.
   *
   * @param {Variant} variant
   * @throws {Refused} if one is missing
   */
  require(variant) {
    for (const {name} of variant.providers) {
      const absence = explainAbsence(name, variant, this.#gpu);
      const about = this.#manifest.sources.get(name);
      if (absence) throw new Refused(about ? `${absence}. ${about}` : absence);
    }
    if (variant.cpuFlags.length) {
      throw new Refused(`this CPU may lack ${variant.cpuFlags.join(", ")}: JavaScript cannot see its flags`);
    }
  }

  /**
   * Creates a variant's session for one size.
   *
   * @param {Variant} variant
   * @param {string} model
   * @returns {Promise<Session>}
   * @throws {Refused} if onnxruntime does not create the session
   * @throws {ModelError} `runtime`, if WebAssembly does not start
   */
  async open(variant, model) {
    const bytes = await this.#files.readBytes(model);
    const needed = this.#manifest.weights.filter((path) => hasName(bytes, getFileName(path)));
    const externalData = await Promise.all(
      needed.map(async (path) => ({path: getFileName(path), data: await this.#files.readBytes(path)})),
    );
    const options = makeOptions(variant, externalData);
    try {
      const session = await this.#create(bytes, options);
      await this.#watchDevice(variant);
      return new Session(this.#ort, session, this.#manifest, () => this.#lost);
    } catch (error) {
      throw explainRefusal(this.#ort, error, variant);
    }
  }

  /**
   * @param {Uint8Array} bytes
   * @param {any} options
   */
  async #create(bytes, options) {
    // onnxruntime's default int8 kernels saturate on x86-64 without VNNI.
    const {extra} = options;
    const precise = {...options, extra: {...extra, session: {...extra.session, x64quantprecision: "1"}}};
    if (!await isSaturating(this.#ort)) return enqueue(this.#ort, () => this.#ort.InferenceSession.create(bytes, options));
    try {
      return await enqueue(this.#ort, () => this.#ort.InferenceSession.create(bytes, precise));
    } catch {
      // onnxruntime 1.31.1 fails with precise kernels where nodes share an int8 constant. The golden outputs show
      // whether the default kernels are good enough.
      return enqueue(this.#ort, () => this.#ort.InferenceSession.create(bytes, options));
    }
  }

  /** @param {Variant} variant */
  async #watchDevice({providers}) {
    if (!providers.some(({name}) => name === WEBGPU)) return;
    const device = /** @type {any} */ (await this.#ort.env.webgpu?.device);
    device?.lost.then((/** @type {{message: string, reason: string}} */ {message, reason}) => {
      this.#lost = message || reason;
    });
  }
}

/**
 * Returns whether the default int8 kernels saturate: on x86-64 without VNNI, but not in WebAssembly.
 *
 * @param {Runtime} ort
 */
async function isSaturating(ort) {
  if (!ort.env.versions.node || process.arch !== "x64") return false;
  const {readFile} = process.getBuiltinModule("node:fs/promises");
  // Elsewhere than on Linux the flags are not known.
  const flags = await readFile("/proc/cpuinfo", "utf8").catch(() => "");
  return !/\b(avx512_vnni|avx_vnni)\b/.test(flags);
}

/**
 * Returns a session's options as onnxruntime's JavaScript packages take them.
 *
 * @param {Variant} variant
 * @param {{path: string, data: Uint8Array}[]} externalData
 */
function makeOptions({providers, session, share}, externalData) {
  const config = {...session.config};
  if (share === null && providers[0].name !== CPU) config[NO_FALLBACK] = "1";
  return {
    executionProviders: providers.map(({name, options}) => ({...options, name: PROVIDERS.get(name)})),
    graphOptimizationLevel: session.graph_optimization_level ?? "all",
    executionMode: session.execution_mode ?? "sequential",
    intraOpNumThreads: session.intra_op_num_threads,
    interOpNumThreads: session.inter_op_num_threads ?? 0,
    enableCpuMemArena: session.enable_cpu_mem_arena ?? true,
    enableMemPattern: session.enable_mem_pattern ?? true,
    logSeverityLevel: session.log_severity_level ?? 3,
    extra: makeExtra(config),
    ...(externalData.length ? {externalData} : {}),
  };
}

/**
 * Returns session config entries as nested objects: `session.x` is `{session: {x}}`.
 *
 * @param {Record<string, string>} config
 * @returns {Record<string, any>}
 */
function makeExtra(config) {
  /** @type {Record<string, any>} */
  const extra = {};
  for (const [key, value] of Object.entries(config)) {
    const words = key.split(".");
    const last = words.pop() ?? "";
    let place = extra;
    for (const word of words) place = place[word] ??= {};
    place[last] = value;
  }
  return extra;
}

/**
 * @param {Runtime} ort
 * @param {unknown} error
 * @param {Variant} variant
 */
function explainRefusal(ort, error, {providers}) {
  // onnxruntime 1.30.0 does not start WebAssembly anew after this, with one thread either.
  if (/initializing failed due to timeout/.test(formatLine(error))) {
    return new ModelError(
      "runtime",
      `onnxruntime did not start: ${formatLine(error)}: with several threads, the page's policy has to let workers load its`
        + " script (worker-src); or load the page anew, set env.wasm.numThreads = 1 and pass the module as `ort`",
      error,
    );
  }
  const failure = explainShort(ort, error, "the session's creation failed");
  if (failure.reason === "memory") return new Refused(failure.message, true);
  const line = formatLine(error);
  // onnxruntime gives this message for a session without the CPU, whatever the reason is.
  const why = line.includes("fallback to CPU EP has been explicitly disabled")
    ? `${providers[0].name} does not take every node, or not this device` : line;
  return new Refused(`the session cannot be created: ${why}`);
}

/** One session of onnxruntime. */
export class Session {
  #ort;
  #session;
  #manifest;
  #findLoss;

  /**
   * @param {Runtime} ort
   * @param {RuntimeSession} session
   * @param {Manifest} manifest
   * @param {() => string} findLoss returns why the GPU's device is gone; empty while it is there
   */
  constructor(ort, session, manifest, findLoss) {
    this.#ort = ort;
    this.#session = session;
    this.#manifest = manifest;
    this.#findLoss = findLoss;
  }

  /**
   * Runs an inference.
   *
   * @param {Tensors} feed all inputs, in shapes that the model takes
   * @returns {Promise<Tensors>}
   * @throws {ModelError} `device-lost`, `memory` or `inference`, if onnxruntime fails
   */
  async run(feed) {
    const {inputs, outputs} = this.#manifest;
    try {
      const made = Object.fromEntries(inputs.map((spec) => [spec.name, this.#encode(spec, take(feed, spec.name))]));
      const names = outputs.map(({name}) => name);
      const found = await enqueue(this.#ort, async () => {
        this.#requireDevice();
        await requireRoom(this.#ort, made);
        return this.#session.run(made, names);
      });
      return new Map(outputs.map((spec) => [spec.name, readOutput(spec, found[spec.name])]));
    } catch (error) {
      // The device's promise may settle after the run has failed.
      await new Promise((resolve) => {
        setTimeout(resolve, 0);
      });
      this.#requireDevice(error);
      throw explainShort(this.#ort, error, "inference failed");
    }
  }

  /** @param {unknown} [cause] */
  #requireDevice(cause) {
    const lost = this.#findLoss();
    if (lost) throw new ModelError("device-lost", `the GPU's device was lost: ${lost}: close the model and open it again`, cause);
  }

  /**
   * @param {Spec} spec
   * @param {Tensor} tensor
   */
  #encode({dtype}, {data, shape}) {
    const given = dtype === "float16" ? narrow(/** @type {Float32Array} */ (data)) : data;
    return new this.#ort.Tensor(dtype, given, shape);
  }

  /** Frees the session's memory, after the runs that have begun. */
  async close() {
    await enqueue(this.#ort, () => this.#session.release());
  }
}

/**
 * @param {Spec} spec
 * @param {RuntimeTensor} output
 */
function readOutput({dtype}, {dims, data}) {
  if (dims.includes(0)) return makeFilled(dtype, dims, 0);
  if (dtype !== "float16") return new Tensor(data, dims);
  // A Float16Array where the engine has such, else the same bits in an Uint16Array.
  return new Tensor(widen(new Uint16Array(data.buffer, data.byteOffset, data.length)), dims);
}

/** From so many bytes of inputs on, room is looked for. */
const LARGE = 2 ** 26;

/** From so many on, WebAssembly has no addresses. */
const MOST = 2 ** 32 - 1;

const SHORT = Symbol.for("edgepack.short");

/**
 * Returns the error of something that failed; where memory is short, room is looked for from now on, for all models.
 *
 * @param {Runtime} ort
 * @param {unknown} error
 * @param {string} what such as `inference failed`
 */
function explainShort({env}, error, what) {
  const failure = explainFailure(error, what);
  if (failure.reason === "memory") /** @type {any} */ (env)[SHORT] = true;
  return failure;
}

/**
 * Checks that WebAssembly has room for inputs, where they are large or memory was short before.
 *
 * onnxruntime-web 1.30.0 does not look: where there is none, it writes inputs over its own data, and no model runs any more
 * (`prepareInputOutputTensor` in its wasm-core-impl.ts). It looks when it creates a session, which fails: zeros are no model.
 *
 * @param {Runtime} ort
 * @param {Record<string, any>} inputs
 * @throws {ModelError} `memory`, if there is no room
 */
async function requireRoom({env, InferenceSession}, inputs) {
  const bytes = Object.values(inputs).reduce((sum, {data}) => sum + data.byteLength, 0);
  if (!env.versions.web || !bytes || (bytes < LARGE && !(SHORT in env))) return;
  try {
    // emscripten would take a larger size modulo that of all addresses.
    await InferenceSession.create(new Uint8Array(Math.min(bytes, MOST)), {executionProviders: ["wasm"]});
  } catch (error) {
    if (isOutOfMemory(error)) throw explainFailure(error, `no room for inputs of ${bytes} bytes`);
  }
}

const QUEUE = Symbol.for("edgepack.queue");

/**
 * Does something with onnxruntime after all that was begun before: it fails where two calls overlap on the GPU.
 *
 * Packages of several models on one page share onnxruntime, and so the queue.
 *
 * @template T
 * @param {Runtime} ort
 * @param {() => Promise<T>} job
 * @returns {Promise<T>}
 */
function enqueue(ort, job) {
  const env = /** @type {any} */ (ort.env);
  const done = (env[QUEUE] ?? Promise.resolve()).then(job);
  env[QUEUE] = done.catch(() => undefined);
  return done;
}

/** @param {string} path */
function getFileName(path) {
  return path.slice(path.lastIndexOf("/") + 1);
}

/**
 * Returns whether a model contains a file's name: an ONNX file contains the names of its weight files.
 *
 * @param {Uint8Array} model
 * @param {string} file
 */
function hasName(model, file) {
  const name = new TextEncoder().encode(file);
  for (let at = model.indexOf(name[0]); at >= 0; at = model.indexOf(name[0], at + 1)) {
    if (name.every((byte, place) => model[at + place] === byte)) return true;
  }
  return false;
}
