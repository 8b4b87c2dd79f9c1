// Detections as exporters write them: the rows of outputs to boxes, classes and scores.

#ifndef EDGEPACK_DETAIL_LAYOUTS_HPP
#define EDGEPACK_DETAIL_LAYOUTS_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "edgepack/detail/error.hpp"
#include "edgepack/detail/json.hpp"
#include "edgepack/detail/tensor.hpp"
#include "edgepack/detail/text.hpp"

namespace edgepack::detail {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// An output that is not as its description says.
inline Error make_output_error(const std::string& what) {
  return Error(Code::broken_bundle, what, "mend the output's description in edgepack.yaml, and build again");
}

/// Values in rows.
struct Table {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::vector<double> values;

  Table() = default;
  Table(std::size_t of_rows, std::size_t of_columns)
      : rows(of_rows), columns(of_columns), values(of_rows * of_columns) {}
  Table(std::size_t of_rows, std::size_t of_columns, std::vector<double> of_values)
      : rows(of_rows), columns(of_columns), values(std::move(of_values)) {}

  double& at(std::size_t row, std::size_t column) { return values[row * columns + column]; }
  double at(std::size_t row, std::size_t column) const { return values[row * columns + column]; }

  Table turn() const {
    Table turned(columns, rows);
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t column = 0; column < columns; ++column)
        turned.at(column, row) = at(row, column);
    }
    return turned;
  }
};

/// Returns a tensor's values as doubles.
inline std::vector<double> read_values(const TensorView& tensor) {
  const std::size_t size = get_facts(tensor.type).size;
  std::vector<double> values(count_values(tensor.shape));
  for (std::size_t k = 0; k < values.size(); ++k)
    values[k] = load_number(static_cast<const std::byte*>(tensor.data) + k * size, tensor.type);
  return values;
}

/// Returns scores of the values of one row.
inline std::vector<double> activate(std::vector<double> values, std::string_view activation) {
  if (activation == "softmax") {
    double highest = -kInfinity, sum = 0;
    for (const double value : values) highest = value > highest ? value : highest;
    for (double& value : values) sum += value = std::exp(value - highest);
    for (double& value : values) value /= sum;
  } else if (activation == "sigmoid") {
    for (double& value : values) value = 1.0 / (1.0 + std::exp(-value));
  }
  return values;
}

/// What the rows of an output hold; each is one object, of the class with its best score.
struct Rows {
  /// Left, top, right, bottom in pixels of the input.
  std::vector<std::array<double, 4>> boxes;
  std::vector<std::int64_t> index;
  /// Minus infinity where there is no object.
  std::vector<double> score;
  /// Of each row's keypoints x and y in pixels of the input, and a score where they have one.
  Table points;
  std::size_t point_values = 3;
};

/// The outputs that an answer is read from beside the described one.
inline std::vector<std::string> list_read_too(const Json& described) {
  std::vector<std::string> names;
  for (const char* key : {"scores", "classes"}) {
    if (const Json* found = described.find(key)) names.push_back(found->text());
  }
  return names;
}

/// How many values of a row are those of keypoints.
inline std::size_t count_point_values(const Json& described) {
  const std::int64_t count = find_integer(described, "keypoints", 0);
  if (count == 0) return 0;
  const std::int64_t values = described.at("keypoint_values").integer();
  constexpr std::int64_t most = 1 << 20;
  if (count < 0 || count > most || values < 2 || values > 3)
    throw make_output_error("an object cannot have " + std::to_string(count) + " keypoints of " +
                            std::to_string(values) + " values");
  return static_cast<std::size_t>(count * values);
}

inline Error make_layout_error(const std::vector<std::int64_t>& shape, const std::string& layout,
                               const std::string& wanted) {
  return make_output_error("the output is " + format_shape(shape) + ": the layout " +
                           quote(layout) + " of a detection has one picture, with " + wanted +
                           " values for each box");
}

/// Takes a box and keypoints from the ends of rows.
inline Rows begin_rows(const Table& rows, const Json& described) {
  Rows read;
  const std::size_t values = count_point_values(described);
  if (rows.columns < 4 + values)
    throw make_output_error("a row has " + std::to_string(rows.columns) +
                            " values: a box and its keypoints are " + std::to_string(4 + values));
  read.point_values = static_cast<std::size_t>(find_integer(described, "keypoint_values", 3));
  read.points = Table(rows.rows, values);
  for (std::size_t row = 0; row < rows.rows; ++row) {
    read.boxes.push_back({rows.at(row, 0), rows.at(row, 1), rows.at(row, 2), rows.at(row, 3)});
    for (std::size_t k = 0; k < values; ++k)
      read.points.at(row, k) = rows.at(row, rows.columns - values + k);
  }
  return read;
}

inline void find_corners(std::array<double, 4>& box) {
  const double wide = box[2] / 2, high = box[3] / 2;
  box = {box[0] - wide, box[1] - high, box[0] + wide, box[1] + high};
}

/// Appends the class of the highest value, of equal ones the first, never a NaN.
inline void add_best(Rows& rows, const std::vector<double>& values,
                     const std::vector<double>& scores) {
  std::size_t best = 0;
  double highest = -kInfinity;
  for (std::size_t k = 0; k < values.size(); ++k) {
    if (values[k] > highest) {
      highest = values[k];
      best = k;
    }
  }
  rows.index.push_back(static_cast<std::int64_t>(best));
  rows.score.push_back(std::isnan(scores[best]) ? -kInfinity : scores[best]);
}

/// Appends a class that is a number; where that is none, there is no object.
inline void add_named(Rows& rows, double score, double named, std::size_t labels) {
  constexpr double most_classes = 2147483648.0;
  const double end = labels == 0 ? most_classes : static_cast<double>(labels);
  const bool is_class = named >= 0 && named < end && named == std::floor(named);
  rows.index.push_back(is_class ? static_cast<std::int64_t>(named) : 0);
  rows.score.push_back(is_class && !std::isnan(score) ? score : -kInfinity);
}

using Size = std::pair<std::int64_t, std::int64_t>;

/// Boxes in cells of their grids as boxes in pixels. Source: YOLOX, yolox/utils/demo_utils.py,
/// demo_postprocess.
inline void find_in_input(Rows& rows, const Json& strides, const Size& size) {
  std::int64_t cells = 0;
  std::vector<std::int64_t> listed;
  for (const Json& stride : strides.items()) {
    listed.push_back(stride.integer());
    if (listed.back() < 1) throw make_broken("a stride is " + std::to_string(listed.back()));
    cells += (size.first / listed.back()) * (size.second / listed.back());
  }
  if (static_cast<std::int64_t>(rows.boxes.size()) != cells) {
    throw make_output_error("the output has " + std::to_string(rows.boxes.size()) +
                            " boxes: with the strides " + format_shape(listed) + " an input of " +
                            std::to_string(size.first) + " x " + std::to_string(size.second) +
                            " pixels has " + std::to_string(cells));
  }
  auto box = rows.boxes.begin();
  for (const std::int64_t stride : listed) {
    const auto pixels = static_cast<double>(stride);
    for (std::int64_t y = 0; y < size.second / stride; ++y) {
      for (std::int64_t x = 0; x < size.first / stride; ++x, ++box) {
        *box = {((*box)[0] + static_cast<double>(x)) * pixels,
                ((*box)[1] + static_cast<double>(y)) * pixels, std::exp((*box)[2]) * pixels,
                std::exp((*box)[3]) * pixels};
      }
    }
  }
}

/// `yolo`, `yolov5` and `yolox`: centre, width and height, for the latter two a score that there is
/// an object at all, a score per class.
inline Rows read_yolo(const TensorView& output, const Json& described, std::size_t labels,
                      const Size& size) {
  const std::string& layout = described.at("layout").text();
  const std::size_t before = layout == "yolo" ? 4 : 5;
  const std::size_t after = count_point_values(described), others = before + after;
  const auto& shape = output.shape;
  Table rows;
  const bool fits = shape.size() == 3 && shape[0] == 1;
  if (fits) {
    rows = {static_cast<std::size_t>(shape[1]), static_cast<std::size_t>(shape[2]),
            read_values(output)};
    // An axis that is empty holds no boxes: there is no object.
    const std::size_t least = std::min(rows.rows, rows.columns);
    const std::size_t values = labels > 0  ? others + labels
                               : least > 0 ? least
                                           : std::max(rows.rows, rows.columns);
    // Where both axes have that size, the first one is taken, as in ultralytics' exports.
    if (layout == "yolo" && rows.rows == values) rows = rows.turn();
  }
  if (!fits || rows.columns <= others || (labels > 0 && rows.columns != others + labels)) {
    throw make_layout_error(shape, layout,
                            labels > 0 ? std::to_string(others + labels)
                                       : std::to_string(others) + " and a score per class");
  }
  Rows read = begin_rows(rows, described);
  if (layout == "yolox") find_in_input(read, described.at("strides"), size);
  for (std::size_t row = 0; row < rows.rows; ++row) {
    find_corners(read.boxes[row]);
    std::vector<double> scores;
    for (std::size_t k = before; k < rows.columns - after; ++k)
      scores.push_back(before > 4 ? rows.at(row, k) * rows.at(row, 4) : rows.at(row, k));
    add_best(read, scores, scores);
  }
  return read;
}

/// `end2end`: left, top, right, bottom, score and class.
inline Rows read_objects(const TensorView& output, const Json& described, std::size_t labels) {
  const std::size_t values = 6 + count_point_values(described);
  const auto& shape = output.shape;
  if (shape.size() != 3 || shape[0] != 1 || shape[2] != static_cast<std::int64_t>(values))
    throw make_layout_error(shape, "end2end", std::to_string(values));
  const Table rows(static_cast<std::size_t>(shape[1]), values, read_values(output));
  Rows read = begin_rows(rows, described);
  for (std::size_t row = 0; row < rows.rows; ++row)
    add_named(read, rows.at(row, 4), rows.at(row, 5), labels);
  return read;
}

/// Returns the outputs of `ssd` as rows of a box and a score per class, or of a box, its score and
/// its class.
inline Table join_outputs(const std::vector<TensorView>& given) {
  if (given.size() < 2) throw make_output_error("there are no scores of the boxes");
  const auto &boxes = given[0].shape, &scores = given[1].shape;
  const bool has_classes = given.size() > 2;
  const auto begins_so = [&](const std::vector<std::int64_t>& shape, std::size_t rank) {
    return shape.size() == rank && shape[0] == boxes[0] && shape[1] == boxes[1];
  };
  const bool fits = boxes.size() == 3 && boxes[0] == 1 && boxes[2] == 4 &&
                    begins_so(scores, has_classes ? 2 : 3) &&
                    (!has_classes || begins_so(given[2].shape, 2));
  if (!fits) {
    std::string shapes = format_shape(boxes) + ", its scores " + format_shape(scores);
    if (has_classes) shapes += ", its classes " + format_shape(given[2].shape);
    throw make_output_error(
        "the output is " + shapes +
        ": the layout 'ssd' of a detection has one picture, with boxes [1, N, 4], " +
        (has_classes ? "scores [1, N] and classes [1, N]" : "scores [1, N, classes]"));
  }
  const auto count = static_cast<std::size_t>(boxes[1]);
  std::vector<Table> tables;
  std::size_t columns = 0;
  for (const TensorView& each : given) {
    const std::size_t width = each.shape.size() == 3 ? static_cast<std::size_t>(each.shape[2]) : 1;
    tables.emplace_back(count, width, read_values(each));
    columns += width;
  }
  Table joined(count, columns);
  for (std::size_t row = 0; row < count; ++row) {
    std::size_t at = 0;
    for (const Table& each : tables) {
      for (std::size_t column = 0; column < each.columns; ++column)
        joined.at(row, at++) = each.at(row, column);
    }
  }
  return joined;
}

/// Returns the number that a text is, with spaces around it; NaN where it is none.
inline double parse_prior(const std::string& text) {
  std::size_t at = text.find_first_not_of(" \t");
  const std::size_t end = text.find_last_not_of(" \t");
  constexpr double none = std::numeric_limits<double>::quiet_NaN();
  if (at == std::string::npos) return none;
  std::string number = text.substr(at, end - at + 1);
  const bool is_negative = number[0] == '-';
  const std::string digits = number.substr(is_negative ? 1 : 0);
  // JSON forbids zeros before a number, and these files do not.
  const std::size_t zeros = digits.find_first_not_of('0');
  const bool has_digit = zeros != std::string::npos && digits[zeros] >= '0' && digits[zeros] <= '9';
  const bool begins = !digits.empty() && digits[0] >= '0' && digits[0] <= '9';
  if (!begins) return none;
  number = zeros == std::string::npos ? "0" : (has_digit ? "" : "0") + digits.substr(zeros);
  try {
    const double value = Json::parse(number, "a prior").number();
    return is_negative ? -value : value;
  } catch (const Error&) {
    return none;
  }
}

/// Returns the boxes in a file's text: centre x and y, width and height.
///
/// Throws `Error`: a line is not four numbers with commas between them.
inline Table read_priors(std::string_view text) {
  Table priors;
  priors.columns = 4;
  for (const std::string& line : split_lines(text)) {
    ++priors.rows;
    std::size_t numbers = 0, at = 0;
    bool fits = true;
    while (at <= line.size()) {
      const std::size_t comma = std::min(line.find(',', at), line.size());
      priors.values.push_back(parse_prior(line.substr(at, comma - at)));
      fits = fits && !std::isnan(priors.values.back());
      ++numbers;
      at = comma + 1;
    }
    if (numbers != 4 || !fits) {
      throw make_output_error("line " + std::to_string(priors.rows) + " is '" + line +
                              "', expected four numbers: cx,cy,w,h");
    }
  }
  return priors;
}

/// Boxes that are relative to priors as centre, width and height. Source:
/// biubug6/Pytorch_Retinaface, utils/box_utils.py, decode.
inline void decode_offsets(Rows& rows, const Json& variances, const Table& priors) {
  if (priors.rows != rows.boxes.size()) {
    throw make_output_error("the output has " + std::to_string(rows.boxes.size()) +
                            " boxes, the priors are " + std::to_string(priors.rows));
  }
  if (variances.items().size() != 2) throw make_broken("there are not two variances");
  const double of_centre = variances.items()[0].number();
  const double of_size = variances.items()[1].number();
  for (std::size_t row = 0; row < priors.rows; ++row) {
    auto& box = rows.boxes[row];
    for (std::size_t k = 0; k < 2; ++k) {
      box[k] = priors.at(row, k) + of_centre * box[k] * priors.at(row, k + 2);
      box[k + 2] = priors.at(row, k + 2) * std::exp(of_size * box[k + 2]);
    }
  }
}

/// `ssd`: boxes, and a score per class or a score and a class.
inline Rows read_boxes(const std::vector<TensorView>& outputs, const Json& described,
                       const Table& priors, std::size_t labels, const Size& size) {
  const Table rows = join_outputs(outputs);
  Rows read = begin_rows(rows, described);
  if (const Json* variances = described.find("variances"))
    decode_offsets(read, *variances, priors);
  const std::string form = find_text(described, "box", "centre");
  for (auto& box : read.boxes) {
    if (form == "corners_yx") box = {box[1], box[0], box[3], box[2]};
    if (is_true(described, "normalized")) {
      const auto wide = static_cast<double>(size.first), high = static_cast<double>(size.second);
      box = {box[0] * wide, box[1] * high, box[2] * wide, box[3] * high};
    }
    if (form == "centre") find_corners(box);
  }
  const std::size_t before = is_true(described, "background") ? 1 : 0;
  const std::string activation = find_text(described, "activation", "none");
  if (outputs.size() > 2) {
    for (std::size_t row = 0; row < rows.rows; ++row) {
      const double score = activate({rows.at(row, 4)}, activation)[0];
      add_named(read, score, rows.at(row, 5) - static_cast<double>(before), labels);
    }
    return read;
  }
  const std::size_t given = rows.columns - 4;
  if (given < before + 1 || (labels > 0 && given - before != labels)) {
    const std::string wanted = labels > 0 ? std::to_string(labels + before)
                                          : std::to_string(1 + before) + " or more";
    throw make_output_error("the scores have " + std::to_string(given) + " classes, expected " +
                            wanted + (before > 0 ? " with the background" : ""));
  }
  for (std::size_t row = 0; row < rows.rows; ++row) {
    const auto* values = rows.values.data() + row * rows.columns + 4;
    const std::vector<double> own(values + before, values + given);
    const std::vector<double> scores = activate({values, values + given}, activation);
    // By the values: activations keep their order, and may round two of them to the same score.
    add_best(read, own, {scores.begin() + static_cast<std::ptrdiff_t>(before), scores.end()});
  }
  return read;
}

/// Returns the rows of a detection, by the `layout` of its description.
///
/// `outputs` are the described one and those of `list_read_too`; `labels` says how many there are, 0
/// where they say nothing. Throws `Error` (broken_bundle): another shape.
inline Rows read_rows(const std::vector<TensorView>& outputs, const Json& described,
                      const Table& priors, std::size_t labels, const Size& size) {
  const std::string& layout = described.at("layout").text();
  if (layout == "end2end") return read_objects(outputs[0], described, labels);
  if (layout == "ssd") return read_boxes(outputs, described, priors, labels, size);
  return read_yolo(outputs[0], described, labels, size);
}

}  // namespace edgepack::detail

#endif
