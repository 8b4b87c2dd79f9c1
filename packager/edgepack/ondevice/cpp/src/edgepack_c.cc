// The C functions of edgepack.h, over edgepack.hpp. Nothing that is thrown leaves them.

#include <edgepack/edgepack.h>
#include <edgepack/edgepack.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iterator>
#include <list>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
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

struct edgepack_answers {
  explicit edgepack_answers(edgepack::Answers&& found) : all(std::move(found)) {
    for (const auto& [name, answer] : all) {
      edgepack_answer& told = views.emplace_back();
      told = {};
      told.name = name.c_str();
      std::visit([&](const auto& each) { tell(told, each); }, answer);
    }
  }

  /// Null where there is no memory for it.
  const char* write_json() const noexcept {
    try {
      if (!json.empty()) return json.c_str();
      std::string text;
      for (const auto& [name, answer] : all) {
        text += (text.empty() ? "{" : ", ") + edgepack::detail::format_json_text(name) + ": " +
                edgepack::to_json(answer);
      }
      json = text.empty() ? "{}" : text + "}";
      return json.c_str();
    } catch (...) {
      return nullptr;
    }
  }

  std::vector<edgepack_answer> views;

 private:
  mutable std::string json;  // empty until it is asked for
  // What views point to moves no more: lists in which nothing is moved.
  edgepack::Answers all;
  std::list<std::vector<edgepack_class>> classes;
  std::list<std::vector<edgepack_detection>> detections;
  std::list<std::vector<edgepack_decision>> decisions;
  std::list<std::vector<edgepack_keypoint>> keypoints;

  static const char* find_label(const std::optional<std::string>& label) {
    return label ? label->c_str() : nullptr;
  }

  void tell(edgepack_answer& told, const edgepack::Tensor& found) {
    told.kind = EDGEPACK_TENSOR;
    told.tensor = {told.name,          static_cast<std::int32_t>(found.type), found.shape.size(),
                   found.shape.data(), found.bytes.data(),                    found.bytes.size()};
  }

  void tell(edgepack_answer& told, const std::vector<edgepack::Class>& found) {
    auto& made = classes.emplace_back();
    for (const edgepack::Class& each : found)
      made.push_back({each.index, find_label(each.label), each.score});
    told.kind = EDGEPACK_CLASSES;
    told.count = made.size();
    told.classes = made.data();
  }

  void tell(edgepack_answer& told, const std::vector<edgepack::Detection>& found) {
    auto& made = detections.emplace_back();
    for (const edgepack::Detection& each : found) {
      auto& points = keypoints.emplace_back();
      for (const edgepack::Keypoint& point : each.keypoints)
        points.push_back({point.x, point.y, point.score.value_or(std::nan(""))});
      made.push_back({each.index, find_label(each.label), each.score, each.left, each.top,
                      each.right, each.bottom, points.size(), points.data()});
    }
    told.kind = EDGEPACK_DETECTIONS;
    told.count = made.size();
    told.detections = made.data();
  }

  void tell(edgepack_answer& told, const std::vector<edgepack::Decision>& found) {
    auto& made = decisions.emplace_back();
    for (const edgepack::Decision& each : found) made.push_back({each.score, each.positive ? 1 : 0});
    told.kind = EDGEPACK_DECISIONS;
    told.count = made.size();
    told.decisions = made.data();
  }

  void tell(edgepack_answer& told, const edgepack::Mask& found) {
    told.kind = EDGEPACK_MASK;
    told.width = found.width;
    told.height = found.height;
    told.mask = found.classes.data();
  }

  void tell(edgepack_answer& told, const edgepack::Transcription& found) {
    told.kind = EDGEPACK_TEXT;
    told.text = found.text.c_str();
    told.score = found.score;
  }
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
  if (known.stats != nullptr) options.stats = known.stats;
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

edgepack::Frame read_frame(const edgepack_frame& given) {
  constexpr std::size_t most = sizeof given.plane / sizeof given.plane[0];
  if (given.format < EDGEPACK_YUV420 || given.format > EDGEPACK_GRAY || given.planes > most ||
      (given.matrix != 0 && given.matrix != 601 && given.matrix != 709)) {
    throw edgepack::Error(edgepack::Code::bad_input,
                          "the frame's format, matrix or number of planes is none",
                          "see edgepack_frame");
  }
  edgepack::Frame frame;
  frame.format = static_cast<edgepack::Format>(given.format);
  frame.width = given.width;
  frame.height = given.height;
  for (std::size_t k = 0; k < given.planes; ++k) {
    const edgepack_plane& plane = given.plane[k];
    frame.planes.push_back({plane.data, plane.bytes, plane.row_stride, plane.pixel_stride});
  }
  frame.rotation = given.rotation;
  frame.matrix = given.matrix == 709 ? edgepack::Matrix::bt709 : edgepack::Matrix::bt601;
  frame.range = given.is_video != 0 ? edgepack::Range::video : edgepack::Range::full;
  return frame;
}

edgepack::Items read_items(const edgepack_model& model, const edgepack_item* given,
                           std::size_t count) {
  edgepack::Items items;
  for (std::size_t k = 0; k < count; ++k) {
    const edgepack_item& each = given[k];
    const int some = (each.tensor != nullptr) + (each.frame != nullptr) + (each.text != nullptr) +
                     (each.file != nullptr);
    if (some != 1) {
      throw edgepack::Error(edgepack::Code::usage,
                            "an item is made of " + std::to_string(some) + " things, not of one",
                            "see edgepack_item");
    }
    const std::string name = each.name != nullptr ? each.name : model.model.only_input();
    edgepack::Item item;
    if (each.tensor != nullptr) {
      edgepack_tensor tensor = *each.tensor;
      tensor.name = name.c_str();
      item = read_inputs(&tensor, 1).begin()->second;
    } else if (each.frame != nullptr) {
      item = read_frame(*each.frame);
    } else if (each.text != nullptr) {
      item = std::string(each.text);
    } else {
      item = edgepack::FileBytes{each.file, each.file_bytes};
    }
    if (!items.emplace(name, std::move(item)).second) {
      throw edgepack::Error(edgepack::Code::bad_input, "input " + name + " is there twice",
                            "give it once");
    }
  }
  return items;
}

/// Reads options as far as the caller knows them.
edgepack::AnswerOptions read_answer_options(const edgepack_answer_options* given) {
  edgepack::AnswerOptions options;
  if (given == nullptr) return options;
  edgepack_answer_options known = {};
  if (given->size < sizeof given->size) {
    throw edgepack::Error(edgepack::Code::usage, "the options have no size",
                          "set it to sizeof(edgepack_answer_options)");
  }
  std::memcpy(&known, given, std::min(given->size, sizeof known));
  if (known.score != nullptr) options.score = *known.score;
  if (known.iou != nullptr) options.iou = *known.iou;
  if (known.most != 0) options.most = known.most;
  if (known.top != 0) options.top = known.top;
  if (known.allow != nullptr) {
    options.allow.emplace();
    for (std::size_t k = 0; k < known.allow_count; ++k) {
      require(known.allow[k] != nullptr, "a label that is allowed");
      options.allow->push_back(known.allow[k]);
    }
  }
  return options;
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

const char* edgepack_get_name(const edgepack_model* model) {
  return model == nullptr ? nullptr : model->model.name().c_str();
}

const char* edgepack_get_version(const edgepack_model* model) {
  return model == nullptr ? nullptr : model->model.version().c_str();
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

std::int32_t edgepack_predict(const edgepack_model* model, const edgepack_item* items,
                              std::size_t count, const edgepack_answer_options* options,
                              edgepack_answers** answers, edgepack_status* status) {
  if (answers != nullptr) *answers = nullptr;
  return guard(status, [&] {
    require(model != nullptr, "the model");
    require(items != nullptr || count == 0, "the items");
    require(answers != nullptr, "the place of the answers");
    *answers = new edgepack_answers(model->model.predict(read_items(*model, items, count),
                                                         read_answer_options(options)));
  });
}

const edgepack_answer* edgepack_get_answer(const edgepack_answers* answers, std::size_t index) {
  return answers == nullptr || index >= answers->views.size() ? nullptr : &answers->views[index];
}

const char* edgepack_get_json(const edgepack_answers* answers) {
  return answers == nullptr ? nullptr : answers->write_json();
}

void edgepack_free_answers(edgepack_answers* answers) { delete answers; }

}  // extern "C"
