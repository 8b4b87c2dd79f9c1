// Opens a bundle, which runs its golden samples, and says which variant is right on this machine.
//
//     edgepack_self_test [--runtime LIBRARY] BUNDLE
//
// Exit codes: 0; 1 the bundle does not open, or no variant is right; 2 the arguments are wrong.
// What is wrong stands on stderr.

#include <edgepack/edgepack.hpp>

#include <exception>
#include <iostream>
#include <string>
#include <vector>

namespace {

void test(const std::vector<std::string>& words) {
  const bool has_runtime = words.size() == 3 && words[0] == "--runtime";
  if (!has_runtime && words.size() != 1)
    throw edgepack::Error(edgepack::Code::usage, "one bundle is tested",
                          "edgepack_self_test [--runtime LIBRARY] BUNDLE");
  edgepack::Options options;
  if (has_runtime) options.runtime = words[1];
  const edgepack::Model model = edgepack::Model::open(words.back(), options);
  for (const edgepack::PassedOver& each : model.passed_over())
    std::cout << each.variant << " is passed over: " << each.reason << "\n";
  std::cout << model.name() << " " << model.version() << ": " << model.variant()
            << " is right on onnxruntime " << model.runtime_version() << ", "
            << edgepack::detail::format_fixed(model.golden_sqnr_db(), 1)
            << " dB near the golden outputs\n";
}

}  // namespace

int main(int count, char** words) {
  try {
    test({words + 1, words + count});
    return 0;
  } catch (const edgepack::Error& error) {
    std::cerr << "error: " << error.what() << "\n  hint: " << error.hint() << "\n";
    return error.code() == edgepack::Code::usage ? 2 : 1;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
}
