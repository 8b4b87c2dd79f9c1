export {ModelError} from "./runtime/errors.js";
export {Tensor} from "./runtime/tensors.js";
