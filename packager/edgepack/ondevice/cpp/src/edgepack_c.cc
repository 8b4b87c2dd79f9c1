// The C functions of edgepack.h, over edgepack.hpp. Nothing that is thrown leaves them.

#include <edgepack/edgepack.h>
#include <edgepack/edgepack.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iterator>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

static_assert(static_cast<int>(edgepack::Code::internal) == EDGEPACK_INTERNAL,
              "the codes are the same");
static_assert(static_cast<int>(edgepack::Code::refused) == EDGEPACK_REFUSED,
              "the codes are the same");
static_assert(static_cast<int>(edgepack::Type::uint64) == EDGEPACK_UINT64,
              "the types are the same");
static_assert(static_cast<int>(edgepack::Type::boolean) == EDGEPACK_BOOL, "the types are the same");

namespace {

/// The descriptions of a model's inputs or outputs, and what they point to.
class Descriptions {
 public:
  explicit Descriptions(const std::vector<edgepack::TensorSpec>& specs) {
    for (const edgepack::TensorSpec& spec : specs) {
      std::vector<std::int64_t>& shape = shapes_.emplace_back();
      std::vector<const char*>& dims = dims_.emplace_back();
      for (const edgepack::Dimension& dim : spec.shape) {
        shape.push_back(dim.name.empty() ? dim.size : -1);
        dims.push_back(dim.name.empty() ? nullptr : dim.name.c_str());
      }
      all_.push_back({spec.name.c_str(), static_cast<std::int32_t>(spec.type), shape.size(),
                      nullptr, nullptr});
    }
    // Only now, as the vectors no longer move.
    for (std::size_t k = 0; k < all_.size(); ++k) {
      all_[k].shape = shapes_[k].data();
      all_[k].dims = dims_[k].data();
    }
  }

  std::size_t count() const { return all_.size(); }
  const edgepack_description* find(std::size_t index) const {
    return index < all_.size() ? &all_[index] : nullptr;
  }

 private:
  std::vector<std::vector<std::int64_t>> shapes_;
  std::vector<std::vector<const char*>> dims_;
  std::vector<edgepack_description> all_;
};

}  // namespace

struct edgepack_model {
  explicit edgepack_model(edgepack::Model opened)
      : model(std::move(opened)), inputs(model.inputs()), outputs(model.outputs()) {}

  edgepack::Model model;
  Descriptions inputs;
  Descriptions outputs;
};

struct edgepack_outputs {
  explicit edgepack_outputs(const edgepack_model& of, edgepack::Tensors&& found) {
    for (const edgepack::TensorSpec& spec : of.model.outputs()) {
      names.push_back(spec.name);
      tensors.push_back(std::move(found.at(spec.name)));
    }
    for (std::size_t k = 0; k < names.size(); ++k) {
      const edgepack::Tensor& each = tensors[k];
      views.push_back({names[k].c_str(), static_cast<std::int32_t>(each.type), each.shape.size(),
                       each.shape.data(), each.bytes.data(), each.bytes.size()});
    }
  }

  std::vector<std::string> names;
  std::vector<edgepack::Tensor> tensors;
  std::vector<edgepack_tensor> views;
};

namespace {

/// Copies a text, cut where it is too long, but not within a character.
template <std::size_t size>
void copy_text(char (&into)[size], const char* text) noexcept {
  std::size_t count = std::min(std::strlen(text), size - 1);
  while (text[count] != '\0' && count > 0 &&
         (static_cast<unsigned char>(text[count]) & 0xC0) == 0x80)
    --count;
  std::memcpy(into, text, count);
  into[count] = '\0';
}

std::int32_t tell(edgepack_status* status, edgepack::Code code, const char* text,
                  const char* hint) noexcept {
  if (status != nullptr) {
    status->code = static_cast<std::int32_t>(code);
    copy_text(status->text, text);
    copy_text(status->hint, hint);
  }
  return static_cast<std::int32_t>(code);
}

/// Calls what may throw, and returns the code of what it threw.
template <class Call>
std::int32_t guard(edgepack_status* status, Call call) noexcept {
  try {
    call();
    return tell(status, edgepack::Code::ok, "", "");
  } catch (const edgepack::Error& error) {
    return tell(status, error.code(), error.what(), error.hint().c_str());
  } catch (const std::bad_alloc&) {
    return tell(status, edgepack::Code::out_of_memory, "there is no memory left",
                "free some memory");
  } catch (const std::length_error&) {
    return tell(status, edgepack::Code::out_of_memory, "a tensor is larger than memory",
                "give smaller inputs");
  } catch (const std::exception& error) {
    return tell(status, edgepack::Code::internal, error.what(),
                "this is a fault in edgepack: please report it");
  } catch (...) {
    return tell(status, edgepack::Code::internal, "something unknown was thrown",
                "this is a fault in edgepack: please report it");
  }
}

void require(bool holds, const char* what) {
  if (!holds)
    throw edgepack::Error(edgepack::Code::usage, std::string(what) + " is a null pointer",
                          "see edgepack.h");
}

/// Reads options as far as the caller knows them.
edgepack::Options read_options(const edgepack_options* given) {
  edgepack::Options options;
  if (given == nullptr) return options;
  edgepack_options known = {};
  if (given->size < sizeof given->size) {
    throw edgepack::Error(edgepack::Code::usage, "the options have no size",
                          "set it to sizeof(edgepack_options)");
  }
  std::memcpy(&known, given, std::min(given->size, sizeof known));
  const auto set = [](std::string& option, const char* text) {
    if (text != nullptr) option = text;
  };
  set(options.runtime, known.runtime);
  set(options.variant, known.variant);
  set(options.cache, known.cache);
  set(options.extensions, known.extensions);
  return options;
}

edgepack::TensorViews read_inputs(const edgepack_tensor* inputs, std::size_t count) {
  edgepack::TensorViews views;
  for (std::size_t k = 0; k < count; ++k) {
    const edgepack_tensor& each = inputs[k];
    require(each.name != nullptr, "an input's name");
    require(each.shape != nullptr || each.rank == 0, "an input's shape");
    if (edgepack::detail::find_type(each.type) == nullptr) {
      throw edgepack::Error(
          edgepack::Code::bad_input,
          std::string("input ") + each.name + " has no type: " + std::to_string(each.type),
          "see edgepack_type");
    }
    edgepack::TensorView view{static_cast<edgepack::Type>(each.type), {}, each.data, each.bytes};
    if (each.rank > 0) view.shape.assign(each.shape, each.shape + each.rank);
    if (!views.emplace(each.name, std::move(view)).second) {
      throw edgepack::Error(edgepack::Code::bad_input,
                            std::string("input ") + each.name + " is there twice", "give it once");
    }
  }
  return views;
}

}  // namespace

extern "C" {

std::int32_t edgepack_open(const char* folder, const edgepack_options* options,
                           edgepack_model** model, edgepack_status* status) {
  if (model != nullptr) *model = nullptr;
  return guard(status, [&] {
    require(folder != nullptr, "the folder");
    require(model != nullptr, "the place of the model");
    *model = new edgepack_model(edgepack::Model::open(folder, read_options(options)));
  });
}

void edgepack_close(edgepack_model* model) { delete model; }

const char* edgepack_get_variant(const edgepack_model* model) {
  return model == nullptr ? nullptr : model->model.variant().c_str();
}

double edgepack_get_golden_sqnr_db(const edgepack_model* model) {
  return model == nullptr ? 0 : model->model.golden_sqnr_db();
}

const char* edgepack_get_runtime_version(const edgepack_model* model) {
  return model == nullptr ? nullptr : model->model.runtime_version().c_str();
}

std::size_t edgepack_count_passed_over(const edgepack_model* model) {
  return model == nullptr ? 0 : model->model.passed_over().size();
}

const char* edgepack_get_passed_over_variant(const edgepack_model* model, std::size_t index) {
  return index < edgepack_count_passed_over(model)
             ? model->model.passed_over()[index].variant.c_str()
             : nullptr;
}

const char* edgepack_get_passed_over_reason(const edgepack_model* model, std::size_t index) {
  return index < edgepack_count_passed_over(model)
             ? model->model.passed_over()[index].reason.c_str()
             : nullptr;
}

std::size_t edgepack_count_inputs(const edgepack_model* model) {
  return model == nullptr ? 0 : model->inputs.count();
}

std::size_t edgepack_count_outputs(const edgepack_model* model) {
  return model == nullptr ? 0 : model->outputs.count();
}

const edgepack_description* edgepack_describe_input(const edgepack_model* model,
                                                    std::size_t index) {
  return model == nullptr ? nullptr : model->inputs.find(index);
}

const edgepack_description* edgepack_describe_output(const edgepack_model* model,
                                                     std::size_t index) {
  return model == nullptr ? nullptr : model->outputs.find(index);
}

std::int32_t edgepack_run(const edgepack_model* model, const edgepack_tensor* inputs,
                          std::size_t count, edgepack_outputs** outputs, edgepack_status* status) {
  if (outputs != nullptr) *outputs = nullptr;
  return guard(status, [&] {
    require(model != nullptr, "the model");
    require(inputs != nullptr || count == 0, "the inputs");
    require(outputs != nullptr, "the place of the outputs");
    *outputs = new edgepack_outputs(*model, model->model.run(read_inputs(inputs, count)));
  });
}

const edgepack_tensor* edgepack_get_output(const edgepack_outputs* outputs, std::size_t index) {
  return outputs == nullptr || index >= outputs->views.size() ? nullptr : &outputs->views[index];
}

void edgepack_free_outputs(edgepack_outputs* outputs) { delete outputs; }

}  // extern "C"
