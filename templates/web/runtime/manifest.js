import {ModelError} from "./errors.js";

/**
 * The part of `manifest.json` that this code needs.
 *
 * @typedef {import("./tensors.js").Dtype} Dtype
 * @typedef {import("./shapes.js").Sizes} Sizes
 *
 * @typedef {object} Spec one input or output of the model
 * @property {string} name
 * @property {Dtype} dtype
 * @property {readonly (number | string)[]} shape a number where fixed, a name where any size is possible, `?` without one
 *
 * @typedef {object} InputDescription
 * @property {import("./images.js").ImageDescription | null} [image]
 * @property {{file: string, length: number, attention_mask: string | null, token_type_ids: string | null} | null} [tokens]
 * @property {number | null} [pad] what fills the input up
 * @property {object | null} [mask]
 *
 * @typedef {object} OutputDescription with the keys of its `kind`
 * @property {string} kind
 * @property {string | null} [labels] a file with one label a line
 * @property {"none" | "softmax" | "sigmoid"} [activation]
 * @property {number} [top]
 * @property {string} [layout]
 * @property {readonly number[]} [strides]
 * @property {string} [scores] an output that is read with this one
 * @property {string} [classes] another one
 * @property {"corners" | "corners_yx" | "centre"} [box]
 * @property {boolean} [normalized]
 * @property {boolean} [background]
 * @property {string} [priors] a file with one box a line
 * @property {readonly number[]} [variances]
 * @property {number} [keypoints]
 * @property {number} [keypoint_values]
 * @property {number} [score]
 * @property {number} [iou]
 * @property {number} [most]
 * @property {"none" | "cls" | "mean" | "max"} [pooling]
 * @property {boolean} [normalize]
 * @property {string | null} [mask]
 * @property {1 | -1} [axis]
 * @property {number} [threshold]
 * @property {number} [blank]
 *
 * @typedef {object} Bucket the model for one size of each symbolic dimension
 * @property {Sizes} dims
 * @property {string} model
 *
 * @typedef {object} Slice an axis of an output that is cut to a dimension's actual size
 * @property {string} output
 * @property {number} axis
 * @property {string} dim
 *
 * @typedef {object} Provider an execution provider by onnxruntime's name
 * @property {string} name
 * @property {Record<string, string>} options
 *
 * @typedef {object} SessionSettings
 * @property {number} intra_op_num_threads 0 lets onnxruntime decide
 * @property {number} [inter_op_num_threads]
 * @property {"disabled" | "basic" | "extended" | "all"} [graph_optimization_level]
 * @property {"sequential" | "parallel"} [execution_mode]
 * @property {boolean} [enable_cpu_mem_arena]
 * @property {boolean} [enable_mem_pattern]
 * @property {0 | 1 | 2 | 3 | 4} [log_severity_level]
 * @property {Record<string, string>} config session config entries
 *
 * @typedef {object} Variant one way to run the model
 * @property {string} id
 * @property {string} recipe
 * @property {readonly Bucket[]} buckets its models, smallest first; one without sizes where it takes every size
 * @property {readonly Slice[]} slices
 * @property {boolean} exact whether it takes only the buckets' own sizes
 * @property {readonly Provider[]} providers
 * @property {number | null} share of the nodes that the first provider must run; null for all nodes
 * @property {SessionSettings} session
 * @property {readonly string[]} cpuFlags
 * @property {number} minDb
 *
 * @typedef {object} GoldenTensor a golden tensor's file
 * @property {string} name
 * @property {string} path
 * @property {Dtype} dtype
 * @property {readonly number[]} shape
 * @property {number} [stride] of an output: the file has every so many-th value, and only these are compared
 * @property {number} [extra_db]
 * @property {{size: number, runs: [count: number, number: number][], extra_db: number[]} | null} [quantities] of an
 *     output: quantities that must each be near enough, by the number of each channel; `size` values of a channel follow
 *     each other
 * @property {Palette | null} [palette] how the file contains the values; without one they are in it as they are
 *
 * @typedef {object} Palette the different values of each channel, which a file has once, before a byte for each place that
 *     says which it is
 * @property {number} step how many values of a channel follow each other
 * @property {readonly number[]} sizes for each channel, the number of its values
 *
 * @typedef {object} Golden one sample: its inputs, and the outputs that each variant gave on the build host
 * @property {readonly GoldenTensor[]} inputs
 * @property {Record<string, GoldenTensor[]>} outputs
 *
 * @typedef {object} BundleFile
 * @property {string} path
 * @property {string} sha256
 * @property {number} size_bytes
 * @property {string} role
 *
 * @typedef {object} Manifest
 * @property {string} name
 * @property {readonly Spec[]} inputs
 * @property {readonly Spec[]} outputs
 * @property {ReadonlyMap<string, number>} fills the value that fills an input up, by the input's name
 * @property {ReadonlySet<string>} masks the inputs that a caller may leave out
 * @property {ReadonlyMap<string, InputDescription>} inputDescriptions
 * @property {ReadonlyMap<string, OutputDescription>} outputDescriptions
 * @property {readonly Variant[]} variants best first
 * @property {readonly Golden[]} goldens
 * @property {ReadonlyMap<string, string>} sources where to get a runtime with a provider, by its name
 * @property {readonly BundleFile[]} files
 * @property {readonly string[]} weights the files that contain weights of models; they lie beside the models
 */

/**
 * Reads `manifest.json`.
 *
 * @param {string} text
 * @returns {Manifest}
 * @throws {ModelError} `damaged`, if the text is no manifest, or one of another schema version
 */
export function parseManifest(text) {
  try {
    return readManifest(JSON.parse(text));
  } catch (error) {
    if (error instanceof ModelError) throw error;
    throw new ModelError("damaged", `the bundle is damaged: manifest.json: ${/** @type {Error} */ (error).message}`, error);
  }
}

/**
 * @param {any} json
 * @returns {Manifest}
 */
function readManifest(json) {
  if (json.schema_version !== 1) {
    throw new ModelError("damaged", `manifest.json has schema version ${json.schema_version}, this code reads 1`);
  }
  const inputDescriptions = readEntries(json.input_descriptions);
  const variants = json.variants.map(readVariant);
  const models = new Set(variants.flatMap((/** @type {Variant} */ variant) => variant.buckets.map(({model}) => model)));
  /** @type {BundleFile[]} */
  const files = json.files;
  return {
    name: json.name,
    inputs: json.inputs,
    outputs: json.outputs,
    fills: new Map([...inputDescriptions].map(([name, {pad}]) => [name, pad ?? 0])),
    masks: new Set([...inputDescriptions].filter(([, {mask}]) => mask).map(([name]) => name)),
    inputDescriptions,
    outputDescriptions: readEntries(json.output_descriptions),
    variants,
    goldens: json.goldens,
    sources: new Map([...readEntries(json.provider_sources)].map(([name, {about}]) => [name, about])),
    files,
    weights: files.filter(({path, role}) => role === "model" && !models.has(path)).map(({path}) => path),
  };
}

/**
 * @param {any} json
 * @returns {Variant}
 */
function readVariant(json) {
  const buckets = json.buckets?.length ? json.buckets : [json];
  return {
    id: json.id,
    recipe: json.recipe,
    buckets: buckets.map((/** @type {any} */ bucket) => ({dims: readEntries(bucket.dims), model: bucket.model})),
    slices: json.slices ?? [],
    exact: Boolean(json.exact),
    providers: json.providers,
    share: typeof json.placement === "number" ? json.placement : null,
    session: json.session,
    cpuFlags: json.requires.cpu ?? [],
    minDb: json.min_sqnr_db,
  };
}

/**
 * Returns an object's entries: names from a model may be those of an object's own functions.
 *
 * @param {Record<string, any> | null | undefined} json
 * @returns {Map<string, any>}
 */
function readEntries(json) {
  return new Map(Object.entries(json ?? {}));
}
