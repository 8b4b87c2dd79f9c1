// What goes wrong: one exception with a code, a text and a hint.

#ifndef EDGEPACK_DETAIL_ERROR_HPP
#define EDGEPACK_DETAIL_ERROR_HPP

#include <stdexcept>
#include <string>
#include <utility>

namespace edgepack {

/// What went wrong. The numbers are those of `edgepack_code` in edgepack.h and stay as they are.
enum class Code {
  ok = 0,
  /// A function is called as it cannot be: a null pointer, a name that the bundle has not.
  usage = 1,
  /// The folder, or a file that is not part of a bundle, is not there or cannot be read.
  not_found = 2,
  /// A file of the bundle is missing, truncated or not as the manifest says.
  broken_bundle = 3,
  /// The manifest is of a schema that this code does not read.
  newer_schema = 4,
  /// No libonnxruntime is found, or it is too old.
  no_runtime = 5,
  /// No variant works on this machine; the text has the reason for each.
  refused = 6,
  /// An input is not what the model takes.
  bad_input = 7,
  out_of_memory = 8,
  /// A fault of this code or of onnxruntime.
  internal = 9,
};

/// What this library throws; beside it only `std::bad_alloc`, where memory is not enough for an
/// `Error`, and from what needs no `Model`.
class Error : public std::runtime_error {
 public:
  Error(Code code, const std::string& text, std::string hint)
      : std::runtime_error(text), code_(code), hint_(std::move(hint)) {}

  Code code() const noexcept { return code_; }

  /// What to do about it, in one sentence.
  const std::string& hint() const noexcept { return hint_; }

 private:
  Code code_;
  std::string hint_;
};

namespace detail {

/// A damaged bundle: what is wrong with which file, and the one thing that helps.
inline Error make_broken(const std::string& what) {
  return Error(Code::broken_bundle, "the bundle is damaged: " + what,
               "copy the bundle again, or build it again");
}

}  // namespace detail
}  // namespace edgepack

#endif
