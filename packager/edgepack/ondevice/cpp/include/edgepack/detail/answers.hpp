// Output tensors to answers, as the manifest's `output_descriptions` say.
//
// The Python, Kotlin, Swift and JavaScript runtimes give the same answers: all is computed in double
// precision, and every order is fixed, ties included.

#ifndef EDGEPACK_DETAIL_ANSWERS_HPP
#define EDGEPACK_DETAIL_ANSWERS_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "edgepack/detail/error.hpp"
#include "edgepack/detail/images.hpp"
#include "edgepack/detail/json.hpp"
#include "edgepack/detail/layouts.hpp"
#include "edgepack/detail/tensor.hpp"
#include "edgepack/detail/text.hpp"

namespace edgepack {

/// One class of a classification.
struct Class {
  std::int64_t index;
  /// None where there are no labels, or fewer than classes.
  std::optional<std::string> label;
  double score;
};

/// One point of an object, such as a joint, in pixels of the picture as it came.
struct Keypoint {
  double x;
  double y;
  /// None where the model gives none.
  std::optional<double> score;
};

/// One object in a picture.
struct Detection {
  /// Of its class.
  std::int64_t index;
  std::optional<std::string> label;
  double score;
  /// In pixels of the picture as it came, clipped to it.
  double left;
  double top;
  double right;
  double bottom;
  /// In the model's order; of a model that gives some.
  std::vector<Keypoint> keypoints;
};

/// What one probability decides.
struct Decision {
  /// After the activation.
  double score;
  /// Whether the score reaches the threshold; never, where it is no number.
  bool positive;
};

/// The class of each pixel of a picture.
struct Mask {
  std::int64_t width;
  std::int64_t height;
  /// Rows behind each other; 255 where the model did not see the picture.
  std::vector<std::uint8_t> classes;
  /// By class; empty where there are none.
  std::vector<std::string> labels;
};

/// The text in a picture of one line, or in a sound.
struct Transcription {
  std::string text;
  /// The mean of the scores of the steps that symbols were read in; 0 where there are none.
  double score;
};

/// The answer in one output: classes, best first; objects, best first; decisions; the class of each
/// pixel; a text; vectors, float32 `(B, D)`, or the output itself.
using Answer = std::variant<Tensor, std::vector<Class>, std::vector<Detection>,
                            std::vector<Decision>, Mask, Transcription>;

/// What one call wants otherwise than the bundle says; none is what that says. An output whose kind
/// knows nothing of an option is answered without it.
struct AnswerOptions {
  /// The least score that counts, of objects and of classes, after the activation.
  std::optional<double> score;
  /// Of two boxes of one class that overlap by more than this, the better one stays.
  std::optional<double> iou;
  /// How many objects, at most.
  std::optional<std::int64_t> most;
  /// How many classes of a classification, at most.
  std::optional<std::int64_t> top;
  /// The labels of the classes that an answer may hold.
  std::optional<std::vector<std::string>> allow;
};

namespace detail {

inline Error make_option_error(const std::string& what) {
  return Error(Code::usage, what, "see AnswerOptions in edgepack.hpp");
}

/// Throws `Error` (usage): `score` or `iou` is not from 0 to 1, or `most` or `top` is below 1.
inline void check_options(const AnswerOptions& options) {
  for (const auto& [name, share] : {std::pair{"score", options.score}, {"iou", options.iou}}) {
    if (share && !(0 <= *share && *share <= 1)) {
      throw make_option_error("the option " + quote(name) + " is " + format_number(*share) +
                              ", expected 0 to 1");
    }
  }
  for (const auto& [name, number] : {std::pair{"most", options.most}, {"top", options.top}}) {
    if (number && *number < 1) {
      throw make_option_error("the option " + quote(name) + " is " + std::to_string(*number) +
                              ", expected 1 or more");
    }
  }
}

/// How an output is answered: its description, and what a call wants otherwise.
struct Answering {
  const Json& described;
  const std::vector<std::string>& labels;
  const AnswerOptions& options;

  /// Which classes are allowed; empty where all are.
  ///
  /// Throws `Error` (usage): a label is allowed that there is none of.
  std::optional<std::vector<bool>> find_allowed() const {
    if (!options.allow) return std::nullopt;
    if (labels.empty()) {
      throw make_option_error(
          "the option 'allow' names labels, and the output has none: leave it out");
    }
    const auto& allow = *options.allow;
    for (const std::string& label : allow) {
      if (std::find(labels.begin(), labels.end(), label) == labels.end())
        throw make_option_error("the option 'allow' names " + quote(label) +
                                ", and the labels are " + list_labels());
    }
    std::vector<bool> allowed;
    for (const std::string& label : labels)
      allowed.push_back(std::find(allow.begin(), allow.end(), label) != allow.end());
    return allowed;
  }

  std::optional<std::string> find_label(std::int64_t index) const {
    const auto at = static_cast<std::size_t>(index);
    return at < labels.size() ? std::optional(labels[at]) : std::nullopt;
  }

 private:
  std::string list_labels() const {
    constexpr std::size_t most = 10;
    std::vector<std::string> quoted;
    for (std::size_t k = 0; k < std::min(most, labels.size()); ++k)
      quoted.push_back(quote(labels[k]));
    const bool is_long = labels.size() > most;
    const std::string more = " and " + std::to_string(labels.size() - most) + " more";
    return join(quoted, ", ") + (is_long ? more : "");
  }
};

/// Returns places by their values, the highest first, of equal ones the first; NaN last.
inline std::vector<std::size_t> order_down(const std::vector<double>& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto is_higher = [&](std::size_t a, std::size_t b) {
    return std::isnan(values[b]) ? !std::isnan(values[a]) : values[a] > values[b];
  };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return is_higher(a, b) || (!is_higher(b, a) && a < b);
  });
  return order;
}

inline bool is_allowed(const std::optional<std::vector<bool>>& allowed, std::int64_t index) {
  const auto at = static_cast<std::size_t>(index);
  return !allowed || (at < allowed->size() && (*allowed)[at]);
}

inline std::vector<Class> find_classes(const TensorView& output, const Answering& how) {
  const std::vector<double> values = read_values(output);
  std::int64_t longest = 1;
  for (const std::int64_t size : output.shape) longest = std::max(longest, size);
  if (values.empty() || values.size() != static_cast<std::size_t>(longest)) {
    throw make_output_error("the output is " + format_shape(output.shape) +
                            ": a classification is one row of scores, so that the classes of"
                            " several samples are asked for one sample at a time");
  }
  const auto allowed = how.find_allowed();
  const auto scores = activate(values, find_text(how.described, "activation", "none"));
  const auto top = how.options.top.value_or(find_integer(how.described, "top", 5));
  std::vector<Class> classes;
  // By the values: activations keep their order, and may round two of them to the same score.
  for (const std::size_t place : order_down(values)) {
    const auto index = static_cast<std::int64_t>(place);
    if (static_cast<std::int64_t>(classes.size()) >= top) break;
    if (how.options.score && !(scores[place] >= *how.options.score)) continue;
    if (is_allowed(allowed, index))
      classes.push_back({index, how.find_label(index), scores[place]});
  }
  return classes;
}

inline double measure_area(const std::array<double, 4>& box) {
  return std::max(box[2] - box[0], 0.0) * std::max(box[3] - box[1], 0.0);
}

/// Whether two boxes overlap by more than a share of their union.
inline bool overlaps(const std::array<double, 4>& box, const std::array<double, 4>& other,
                     double iou) {
  const double wide = std::min(box[2], other[2]) - std::max(box[0], other[0]);
  const double high = std::min(box[3], other[3]) - std::max(box[1], other[1]);
  const double intersection = std::max(wide, 0.0) * std::max(high, 0.0);
  // Multiplied, not divided: two boxes without area have no union.
  return intersection > iou * (measure_area(box) + measure_area(other) - intersection);
}

inline double map_back(double value, std::int64_t offset, std::int64_t scaled, std::int64_t size) {
  const auto side = static_cast<double>(size);
  const double at = (value - static_cast<double>(offset)) * side / static_cast<double>(scaled);
  return std::min(std::max(at, 0.0), side);
}

inline bool has_only_numbers(const Rows& rows, std::size_t row) {
  const auto is_number = [](double value) { return std::isfinite(value); };
  const auto& box = rows.boxes[row];
  const double* points = rows.points.values.data() + row * rows.points.columns;
  return std::isfinite(rows.score[row]) && std::all_of(box.begin(), box.end(), is_number) &&
         std::all_of(points, points + rows.points.columns, is_number);
}

inline Detection make_detection(const Rows& rows, std::size_t row, const Answering& how,
                                const Placement& place) {
  const auto map_x = [&](double x) {
    return map_back(x, place.left, place.width, place.picture_width);
  };
  const auto map_y = [&](double y) {
    return map_back(y, place.top, place.height, place.picture_height);
  };
  const auto& box = rows.boxes[row];
  Detection found{rows.index[row], how.find_label(rows.index[row]), rows.score[row],
                  map_x(box[0]),   map_y(box[1]),                   map_x(box[2]),
                  map_y(box[3]),   {}};
  for (std::size_t k = 0; k + 1 < rows.points.columns; k += rows.point_values) {
    Keypoint point{map_x(rows.points.at(row, k)), map_y(rows.points.at(row, k + 1)), {}};
    if (rows.point_values > 2) point.score = rows.points.at(row, k + 2);
    found.keypoints.push_back(point);
  }
  return found;
}

/// Returns the objects in a picture, best first; of equal ones, the output's first row first. Of two
/// objects of one class that overlap by more than `iou`, the better one is kept. Classes that are
/// not allowed hide none.
inline std::vector<Detection> find_detections(const std::vector<TensorView>& outputs,
                                              const Answering& how, const Table& priors,
                                              const Placement& place) {
  const Json& described = how.described;
  const auto allowed = how.find_allowed();
  const Rows rows = read_rows(outputs, described, priors, how.labels.size(),
                              {place.input_width, place.input_height});
  const double least = how.options.score ? *how.options.score : described.at("score").number();
  const double iou = how.options.iou ? *how.options.iou : described.at("iou").number();
  const auto most = how.options.most ? *how.options.most : described.at("most").integer();
  const bool is_clear = described.at("layout").text() == "end2end";
  std::vector<std::size_t> kept;
  for (const std::size_t row : order_down(rows.score)) {
    if (static_cast<std::int64_t>(kept.size()) >= most) break;
    // A NaN is below every limit.
    if (!(rows.score[row] >= least) || !has_only_numbers(rows, row)) continue;
    if (!is_allowed(allowed, rows.index[row])) continue;
    const bool is_hidden =
        !is_clear && std::any_of(kept.begin(), kept.end(), [&](std::size_t better) {
          return rows.index[better] == rows.index[row] &&
                 overlaps(rows.boxes[better], rows.boxes[row], iou);
        });
    if (!is_hidden) kept.push_back(row);
  }
  std::vector<Detection> found;
  for (const std::size_t row : kept) found.push_back(make_detection(rows, row, how, place));
  return found;
}

/// Throws `Error` unless values are `(B, S, D)` and a mask of them, if there is one, `(B, S)`.
inline void check_pooled(const TensorView& output, const TensorView* mask) {
  const auto& shape = output.shape;
  const bool fits = shape.size() == 3 && (mask == nullptr || (mask->shape.size() == 2 &&
                                                              mask->shape[0] == shape[0] &&
                                                              mask->shape[1] == shape[1]));
  if (fits) return;
  const std::string of_mask =
      mask == nullptr ? "" : " and its mask " + format_shape(mask->shape);
  throw make_output_error("the output is " + format_shape(shape) + of_mask +
                          ": pooling takes [batch, positions, values] and a mask [batch,"
                          " positions]");
}

inline Table pool_vectors(const TensorView& output, const std::string& pooling,
                          const TensorView* mask) {
  check_pooled(output, mask);
  const auto batch = static_cast<std::size_t>(output.shape[0]);
  const auto positions = static_cast<std::size_t>(output.shape[1]);
  const auto size = static_cast<std::size_t>(output.shape[2]);
  const Table values(batch * positions, size, read_values(output));
  const std::vector<double> counts = mask == nullptr ? std::vector<double>(batch * positions, 1.0)
                                                     : read_values(*mask);
  if (pooling == "cls" && positions == 0) {
    throw make_output_error("the output is " + format_shape(output.shape) +
                            ": the pooling 'cls' takes the first position, and there is none");
  }
  Table pooled(batch, size);
  for (std::size_t sample = 0; sample < batch; ++sample) {
    std::size_t number = 0;
    for (std::size_t k = sample * positions; k < (sample + 1) * positions; ++k) {
      const bool is_first = number == 0;
      if (pooling == "cls" ? k != sample * positions : counts[k] == 0) continue;
      ++number;
      for (std::size_t d = 0; d < size; ++d) {
        double& sum = pooled.at(sample, d);
        if (pooling == "max")
          sum = is_first ? values.at(k, d) : std::max(sum, values.at(k, d));
        else
          sum += values.at(k, d);
      }
    }
    if (pooling == "mean" && number > 1) {
      for (std::size_t d = 0; d < size; ++d) pooled.at(sample, d) /= static_cast<double>(number);
    }
  }
  return pooled;
}

/// Returns one vector per sample: float32 `(B, D)`. Where no position counts, and of a vector of
/// zeros, it is zeros.
inline Tensor make_vectors(const TensorView& output, const Json& described,
                           const TensorView* mask) {
  const std::string& pooling = described.at("pooling").text();
  Table pooled;
  if (pooling == "none") {
    const auto& shape = output.shape;
    const auto samples = static_cast<std::size_t>(shape.empty() ? 1 : shape[0]);
    std::size_t size = 1;
    for (std::size_t k = 1; k < shape.size(); ++k) size *= static_cast<std::size_t>(shape[k]);
    pooled = {samples, size, read_values(output)};
  } else {
    pooled = pool_vectors(output, pooling, mask);
  }
  Tensor vectors = edgepack::make_tensor(Type::float32, {static_cast<std::int64_t>(pooled.rows),
                                                         static_cast<std::int64_t>(pooled.columns)});
  for (std::size_t row = 0; row < pooled.rows; ++row) {
    double length = 0;
    for (std::size_t k = 0; k < pooled.columns; ++k) length += pooled.at(row, k) * pooled.at(row, k);
    length = std::sqrt(length);
    const bool is_scaled = is_true(described, "normalize") && length > 0;
    for (std::size_t k = 0; k < pooled.columns; ++k) {
      const double value = is_scaled ? pooled.at(row, k) / length : pooled.at(row, k);
      vectors.data<float>()[row * pooled.columns + k] = static_cast<float>(value);
    }
  }
  return vectors;
}

inline std::vector<Decision> make_decisions(const TensorView& output, const Json& described) {
  const std::vector<double> values = read_values(output);
  const std::string& activation = described.at("activation").text();
  const double threshold = described.at("threshold").number();
  std::vector<Decision> decisions;
  for (const double value : values) {
    const double score = activation == "sigmoid" ? activate({value}, activation)[0] : value;
    decisions.push_back({score, score >= threshold});
  }
  return decisions;
}

// --- Segmentations

constexpr std::uint8_t kUnseen = 255;  // The class of pixels that were cut away.

/// A map of classes; none where the output is no such map.
struct ClassMap {
  std::size_t width;
  std::size_t height;
  std::vector<std::int64_t> classes;
};

inline std::optional<ClassMap> find_map(const TensorView& output, const Json& described) {
  const auto& shape = output.shape;
  const bool is_four = shape.size() == 4;
  if ((shape.size() != 3 && !is_four) || shape[0] != 1 || count_values(shape) == 0)
    return std::nullopt;
  const bool is_last = is_four && described.at("axis").integer() == -1;
  const auto at = [&](std::size_t k) { return static_cast<std::size_t>(shape[k]); };
  const std::size_t count = is_last ? at(3) : is_four ? at(1) : 1;
  const std::size_t height = is_last ? at(1) : at(shape.size() - 2);
  const std::size_t width = is_last ? at(2) : at(shape.size() - 1);
  const bool has_scores = is_float(output.type);
  if (!has_scores && count != 1) return std::nullopt;
  const std::vector<double> values = read_values(output);
  const double threshold = described.at("threshold").number();
  constexpr double most = 9e18;  // what 64 bits hold, nearly
  ClassMap map{width, height, std::vector<std::int64_t>(width * height)};
  for (std::size_t pixel = 0; pixel < map.classes.size(); ++pixel) {
    std::int64_t& best = map.classes[pixel];
    if (count == 1) {
      best = has_scores ? (values[pixel] >= threshold ? 1 : 0)
                        : static_cast<std::int64_t>(std::clamp(values[pixel], -most, most));
      continue;
    }
    double highest = -kInfinity;
    for (std::size_t k = 0; k < count; ++k) {
      const double value = values[is_last ? pixel * count + k : k * map.classes.size() + pixel];
      if (value > highest) {
        highest = value;
        best = static_cast<std::int64_t>(k);
      }
    }
  }
  return map;
}

/// Returns for each pixel along an axis its place in the output; -1 where there is none.
inline std::vector<std::int64_t> find_places(std::int64_t size, std::int64_t scaled,
                                             std::int64_t offset, std::int64_t seen,
                                             std::size_t count) {
  std::vector<std::int64_t> places;
  const auto last = static_cast<std::int64_t>(count) - 1;
  for (std::int64_t pixel = 0; pixel < size; ++pixel) {
    const double at = (static_cast<double>(pixel) + 0.5) * static_cast<double>(scaled) /
                          static_cast<double>(size) +
                      static_cast<double>(offset);
    const auto end = static_cast<double>(seen);
    const bool is_seen = at >= 0 && at < end;
    const double place = is_seen ? at * static_cast<double>(count) / end : 0.0;
    places.push_back(is_seen ? std::min(static_cast<std::int64_t>(place), last) : -1);
  }
  return places;
}

/// Returns the class of each pixel, which is that of the place that it lies in; none without a
/// picture, and of other shapes.
///
/// Throws `Error` (broken_bundle): a class is below 0 or above 254.
inline std::optional<Mask> make_mask(const TensorView& output, const Answering& how,
                                     const Placement* place) {
  if (place == nullptr) return std::nullopt;
  const std::optional<ClassMap> map = find_map(output, how.described);
  if (!map) return std::nullopt;
  const auto [low, high] = std::minmax_element(map->classes.begin(), map->classes.end());
  if (*low < 0 || *high >= kUnseen) {
    throw make_output_error("the mask has classes from " + std::to_string(*low) + " to " +
                            std::to_string(*high) + ", and a pixel's class is 0 to " +
                            std::to_string(kUnseen - 1));
  }
  const auto columns = find_places(place->picture_width, place->width, place->left,
                                   place->input_width, map->width);
  const auto rows = find_places(place->picture_height, place->height, place->top,
                                place->input_height, map->height);
  Mask mask{place->picture_width, place->picture_height, {}, how.labels};
  mask.classes.reserve(columns.size() * rows.size());
  for (const std::int64_t y : rows) {
    for (const std::int64_t x : columns) {
      const auto at = static_cast<std::size_t>(y * static_cast<std::int64_t>(map->width) + x);
      mask.classes.push_back(x < 0 || y < 0 ? kUnseen
                                            : static_cast<std::uint8_t>(map->classes[at]));
    }
  }
  return mask;
}

// --- Texts

/// Returns the values of the classes in each step; throws `Error` of another shape.
inline Table find_steps(const TensorView& output, const Json& described) {
  const auto& shape = output.shape;
  const bool is_last = described.at("axis").integer() == -1;
  const bool fits = shape.size() == 3 && (shape[0] == 1 || (is_last && shape[1] == 1));
  Table steps;
  if (fits) {
    const std::size_t first = static_cast<std::size_t>(shape[0] == 1 ? shape[1] : shape[0]);
    steps = {first, static_cast<std::size_t>(shape[2]), read_values(output)};
    if (!is_last) steps = steps.turn();
  }
  if (!fits || steps.columns < 2) {
    throw make_output_error("the output is " + format_shape(shape) +
                            ": a text has the values of two or more classes in each step, " +
                            (is_last ? "[1, T, C] or [T, 1, C]" : "[1, C, T]"));
  }
  const std::int64_t blank = described.at("blank").integer();
  if (blank < -1 || blank >= static_cast<std::int64_t>(steps.columns)) {
    throw make_output_error("the output has " + std::to_string(steps.columns) +
                            " classes: the blank cannot be " + std::to_string(blank));
  }
  return steps;
}

/// Returns the text that the best class of each step gives. Steps of the blank's class are no
/// symbol, and neither are those of the class of the step before. Source: PaddleOCR,
/// ppocr/postprocess/rec_postprocess.py, CTCLabelDecode.
inline Transcription transcribe(const TensorView& output, const Answering& how) {
  const Table steps = find_steps(output, how.described);
  const std::vector<std::string>& alphabet = how.labels;
  if (alphabet.size() != steps.columns - 1) {
    throw make_output_error("the output has " + std::to_string(steps.columns) +
                            " classes: there are " + std::to_string(alphabet.size()) +
                            " symbols and the blank");
  }
  const std::int64_t given = how.described.at("blank").integer();
  const std::size_t blank = given == -1 ? steps.columns - 1 : static_cast<std::size_t>(given);
  const std::string& activation = how.described.at("activation").text();
  Transcription read{"", 0};
  double total = 0;
  std::size_t symbols = 0, before = blank;
  for (std::size_t step = 0; step < steps.rows; ++step) {
    const double* values = steps.values.data() + step * steps.columns;
    // Where no value is more than minus infinity, there is no symbol.
    std::size_t best = blank;
    double highest = -kInfinity;
    for (std::size_t k = 0; k < steps.columns; ++k) {
      if (values[k] > highest) {
        highest = values[k];
        best = k;
      }
    }
    if (best != before && best != blank) {
      total += activate({values, values + steps.columns}, activation)[best];
      read.text += alphabet[best > blank ? best - 1 : best];
      ++symbols;
    }
    before = best;
  }
  if (symbols > 0) read.score = total / static_cast<double>(symbols);
  return read;
}

// --- All of them

/// What an answer depends on beside its output and its description.
struct Given {
  const Placement* place = nullptr;
  const TensorView* mask = nullptr;
  const Table* priors = nullptr;
};

/// Returns the answer in an output, which stands first, and those that it is read with.
///
/// Throws `Error`: broken_bundle where an output has not the shape that its description wants, usage
/// where the options are none.
inline Answer make_answer(const std::vector<TensorView>& outputs, const Answering& how,
                          const Given& given) {
  check_options(how.options);
  const std::string& kind = how.described.at("kind").text();
  const TensorView& output = outputs.front();
  if (kind == "classification") return find_classes(output, how);
  if (kind == "detection") {
    if (given.place == nullptr) {
      throw make_option_error(
          "a detection's boxes are in the pixels of a picture: give one picture");
    }
    const Table none;
    return find_detections(outputs, how, given.priors == nullptr ? none : *given.priors,
                           *given.place);
  }
  if (kind == "embedding") {
    const Json* mask = how.described.find("mask");
    if (mask != nullptr && given.mask == nullptr)
      throw make_option_error("the vectors are pooled with the mask " + quote(mask->text()) +
                              ": give it");
    return make_vectors(output, how.described, given.mask);
  }
  if (kind == "text") return transcribe(output, how);
  if (kind == "probability") return make_decisions(output, how.described);
  if (kind == "mask") {
    if (std::optional<Mask> mask = make_mask(output, how, given.place)) return std::move(*mask);
  }
  return copy_tensor(output);
}

// --- As JSON

inline std::string write_label(const std::optional<std::string>& label) {
  return label ? format_json_text(*label) : "null";
}

inline std::string write_value(double value) {
  return std::isfinite(value) ? format_number(value) : "null";
}

inline std::string write_answer(const Class& found) {
  return "{\"index\": " + std::to_string(found.index) + ", \"label\": " +
         write_label(found.label) + ", \"score\": " + write_value(found.score) + "}";
}

inline std::string write_answer(const Decision& found) {
  return "{\"score\": " + write_value(found.score) +
         ", \"positive\": " + (found.positive ? "true" : "false") + "}";
}

inline std::string write_answer(const Keypoint& found) {
  return "{\"x\": " + write_value(found.x) + ", \"y\": " + write_value(found.y) +
         ", \"score\": " + (found.score ? write_value(*found.score) : "null") + "}";
}

std::string write_answer(const Detection& found);

template <class Each>
std::string write_answer(const std::vector<Each>& several) {
  std::vector<std::string> texts;
  for (const Each& each : several) texts.push_back(write_answer(each));
  return "[" + join(texts, ", ") + "]";
}

inline std::string write_answer(const Detection& found) {
  std::string text = "{\"index\": " + std::to_string(found.index) +
                     ", \"label\": " + write_label(found.label) +
                     ", \"score\": " + write_value(found.score) + ", \"box\": [" +
                     write_value(found.left) + ", " + write_value(found.top) + ", " +
                     write_value(found.right) + ", " + write_value(found.bottom) + "]";
  if (!found.keypoints.empty()) text += ", \"keypoints\": " + write_answer(found.keypoints);
  return text + "}";
}

inline std::string write_answer(const Transcription& found) {
  return "{\"text\": " + format_json_text(found.text) + ", \"score\": " + write_value(found.score) + "}";
}

/// Classes row by row as runs of equal ones: `[class, count]` each.
inline std::string write_answer(const Mask& mask) {
  std::vector<std::string> runs;
  for (std::size_t at = 0, next = 0; at < mask.classes.size(); at = next) {
    while (next < mask.classes.size() && mask.classes[next] == mask.classes[at]) ++next;
    runs.push_back("[" + std::to_string(mask.classes[at]) + ", " + std::to_string(next - at) + "]");
  }
  return "{\"width\": " + std::to_string(mask.width) + ", \"height\": " +
         std::to_string(mask.height) + ", \"runs\": [" + join(runs, ", ") + "]}";
}

/// Values in lists, an axis each.
inline std::string write_values(const std::vector<double>& values,
                                const std::vector<std::int64_t>& shape, std::size_t axis,
                                std::size_t& at) {
  if (axis == shape.size()) return write_value(values[at++]);
  std::vector<std::string> texts;
  for (std::int64_t k = 0; k < shape[axis]; ++k)
    texts.push_back(write_values(values, shape, axis + 1, at));
  return "[" + join(texts, ", ") + "]";
}

inline std::string write_answer(const Tensor& tensor) {
  std::size_t at = 0;
  return write_values(read_values(tensor.view()), tensor.shape, 0, at);
}

}  // namespace detail

/// Returns an answer as one line of JSON; what is no number is null.
inline std::string to_json(const Answer& answer) {
  return std::visit([](const auto& found) { return detail::write_answer(found); }, answer);
}

}  // namespace edgepack

#endif
