// Runs this bundle's model from C++17: the best variant that works on this machine.
//
//     edgepack::Model model = edgepack::Model::open("dist/classifier-1.0.0-linux-x86-64");
//     std::vector<float> pixels(3 * 224 * 224);
//     edgepack::Tensors outputs = model.run({{"images", edgepack::make_view(pixels.data(), {1, 3,
//     224, 224})}}); const float* scores = outputs.at("scores").data<float>();
//
// The same rules as the Python loader's, edgepack_loader.py: the bundle's manifest lists variants,
// best first. A variant whose execution provider or CPU flags this machine lacks is skipped. Its
// session is created, golden inputs run, their outputs are compared with the golden ones, and the
// nodes have to run where the variant needs them. The first variant that passes is used.
//
// Needs POSIX, a C++17 compiler and, while it runs, a libonnxruntime.so of
// version 1.16 or newer, which is opened by dlopen: nothing of onnxruntime is linked, and no header
// of it is needed.

#ifndef EDGEPACK_EDGEPACK_HPP
#define EDGEPACK_EDGEPACK_HPP

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "edgepack/detail/answers.hpp"
#include "edgepack/detail/error.hpp"
#include "edgepack/detail/frames.hpp"
#include "edgepack/detail/loaded.hpp"
#include "edgepack/detail/manifest.hpp"
#include "edgepack/detail/meaning.hpp"
#include "edgepack/detail/ort.hpp"
#include "edgepack/detail/tensor.hpp"

namespace edgepack {

/// The values of an input that is bound: they are written where they lie.
class BoundInput {
 public:
  TensorView view() const { return tensor_->view(); }

  void* data() const { return tensor_->bytes.data(); }

  /// The values. Throws `Error` (usage) where the input holds others.
  template <class T>
  T* data() const {
    return tensor_->data<T>();
  }

 private:
  friend class Bound;

  explicit BoundInput(Tensor& tensor) : tensor_(&tensor) {}

  Tensor* tensor_;
};

/// A model whose inputs and outputs stay where they are from run to run, so that a run allocates
/// and copies nothing of them. One thread may use it at a time.
class Bound {
 public:
  /// An input's values, to be written before a run, as long as this lives. Throws `Error` (usage):
  /// there is none of that name.
  BoundInput input(const std::string& name) { return BoundInput(find(bound_->inputs, name)); }

  /// An output's values, as the last run left them. Throws `Error` (usage): there is none of that
  /// name.
  const Tensor& output(const std::string& name) const { return find(bound_->outputs, name); }

  /// Computes. Throws `Error`: onnxruntime does not, or an output has another shape for these
  /// values.
  void run() {
    detail::call_safely("inference failed", [&] {
      const detail::api::RunOptions* no_options = nullptr;
      bound_->runtime->call(detail::api::RunWithBinding, bound_->session, no_options,
                            static_cast<const detail::api::IoBinding*>(bound_->binding.get()));
    });
  }

 private:
  friend class Model;

  /// In the order in which they need each other: what is below is released first.
  struct Memory {
    Memory(std::shared_ptr<const detail::Loaded> of_loaded, const TensorViews& feed, Tensors made)
        : loaded(std::move(of_loaded)),
          runtime(&loaded->sessions()[0].runtime()),
          session(loaded->sessions()[0].get()),
          outputs(std::move(made)),
          binding(detail::make_owned(*runtime, detail::api::ReleaseIoBinding,
                                     detail::api::CreateIoBinding, session)) {
      for (const auto& [name, view] : feed) inputs[name] = detail::copy_tensor(view);
      for (const auto& [name, tensor] : inputs) bind(detail::api::BindInput, name, tensor);
      for (const auto& [name, tensor] : outputs) bind(detail::api::BindOutput, name, tensor);
    }

    template <class Slot>
    void bind(const Slot& slot, const std::string& name, const Tensor& tensor) {
      values.push_back(detail::make_value(*runtime, tensor.view()));
      runtime->call(slot, binding.get(), name.c_str(),
                    static_cast<const detail::api::Value*>(values.back().get()));
    }

    std::shared_ptr<const detail::Loaded> loaded;
    const detail::Runtime* runtime;
    detail::api::Session* session;
    Tensors inputs;
    Tensors outputs;
    std::vector<detail::Owned<detail::api::Value>> values;
    detail::Owned<detail::api::IoBinding> binding;
  };

  explicit Bound(std::unique_ptr<Memory> bound) : bound_(std::move(bound)) {}

  static Tensor& find(Tensors& tensors, const std::string& name) {
    const auto found = tensors.find(name);
    if (found == tensors.end())
      throw Error(Code::usage, "nothing is bound to the name " + name, "see the bundle's README");
    return found->second;
  }

  std::unique_ptr<Memory> bound_;
};

/// One variant of a bundle, proven on this machine. Copies are the same model; threads may share
/// it.
class Model {
 public:
  /// Opens the first variant of a bundle that works on this machine.
  ///
  /// The bundle's files are read here alone: the folder may go away afterwards.
  ///
  /// Throws `Error`: no_runtime, not_found, broken_bundle, newer_schema; refused where no variant
  /// works, with the reason for each; usage where the bundle has no such variant, or the cache is
  /// inside it.
  static Model open(const std::string& folder, const Options& options = {}) {
    return detail::call_safely("onnxruntime failed",
                               [&] { return Model(detail::Loaded::open(folder, options)); });
  }

  /// Runs the model and returns its outputs by name.
  ///
  /// Takes one view for each input, but for masks. Where the variant has a model for each of
  /// several sizes, the smallest that holds the inputs runs: they are padded, and the outputs cut
  /// back.
  ///
  /// Throws `Error` (bad_input): a name, type, shape or count of bytes is not what the model takes.
  Tensors run(const TensorViews& inputs) const {
    return detail::call_safely("inference failed", [&] { return loaded_->run(inputs); });
  }

  /// The name of the one input that a caller has to give, as masks and what is made of a text are
  /// made. Throws `Error` (usage): it needs several.
  std::string only_input() const {
    return detail::call_safely("", [&] { return loaded_->only_input(); });
  }

  /// Returns answers by output, such as the objects in a picture in its own pixels:
  ///
  ///     edgepack::Answers answers = model.predict({{"images", edgepack::make_frame(rgb, 640, 480)}});
  ///
  /// Takes for each input a picture, a text, a file's bytes (of a `.wav` for a sound) or a tensor,
  /// as the bundle describes it. What is made of a text, such as its mask, is left out.
  /// An output without a description is answered by its tensor.
  ///
  /// Throws `Error`: bad_input where an item is not what its input is made of, as `run` otherwise;
  /// usage where an option is none; broken_bundle where an output is not as it is described.
  Answers predict(const Items& items, const AnswerOptions& options = {}) const {
    return detail::call_safely("inference failed",
                               [&] { return loaded_->predict(items, options); });
  }

  /// Returns this model with fixed memory for inputs like these and their outputs; their values are
  /// there already.
  ///
  /// The memory is the host's: a provider that computes elsewhere copies in each run.
  ///
  /// Throws `Error`: bad_input as `run`; usage where the variant has a model for each of several
  /// sizes.
  Bound bind(const TensorViews& inputs) const {
    if (!loaded_->variant().buckets.empty()) {
      throw Error(Code::usage, loaded_->variant().id + " has a model for each of several sizes",
                  "call run");
    }
    return detail::call_safely("inference failed", [&] {
      TensorViews feed = inputs;
      Tensors masks;
      loaded_->check(feed, masks);
      return Bound(std::make_unique<Bound::Memory>(loaded_, feed, loaded_->run(feed)));
    });
  }

  /// The id of the variant in use.
  const std::string& variant() const { return loaded_->variant().id; }

  /// The hardware for which the model in use was compiled during the build; empty where the
  /// provider takes the model itself.
  const std::string& compiled_for() const { return loaded_->variant().compiled_for; }

  /// The variants that come before the one in use, and its compiled models, each with the reason
  /// why it is not used.
  const std::vector<PassedOver>& passed_over() const { return loaded_->passed_over(); }

  /// What the model takes. A caller may leave out masks that the bundle describes.
  const std::vector<TensorSpec>& inputs() const { return loaded_->manifest().inputs(); }

  /// What the model gives.
  const std::vector<TensorSpec>& outputs() const { return loaded_->manifest().outputs(); }

  /// How near the golden outputs were, in dB, in the worst output and in all sessions; 200 stands
  /// for equal.
  double golden_sqnr_db() const { return loaded_->golden_sqnr_db(); }

  /// The version of onnxruntime in use, such as `1.31.1`.
  const std::string& runtime_version() const { return loaded_->sessions()[0].runtime().version(); }

  /// The bundle's name and version, as its project has them.
  const std::string& name() const { return loaded_->manifest().name(); }
  const std::string& version() const { return loaded_->manifest().version(); }

 private:
  explicit Model(std::shared_ptr<const detail::Loaded> loaded) : loaded_(std::move(loaded)) {}

  std::shared_ptr<const detail::Loaded> loaded_;
};

}  // namespace edgepack

#endif
