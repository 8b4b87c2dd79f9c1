// Opens bundles and prints what the Python loader would say of them, as JSON lines.
//
//     describe RUNTIME BUNDLE [OPTION ...] [INPUTS OUTPUTS ...]
//
// --variant ID    uses only this one
// --cache FOLDER  is the cache
// --bound         runs with inputs and outputs in memory that stays
// --threads N     runs in as many threads at once, --race with a race between them
// --wait          waits for the end of stdin behind opening
// --exit          ends with exit(), which leaves the model open
// --limit MB      may use so much more memory for what it runs
// --again PATH    opens the bundle once more from another folder, with another onnxruntime
//
// RUNTIME is the path of onnxruntime, or - for what the library finds. INPUTS is a folder with a
// file of raw values for each input and a line `NUMBER TYPE SIZES...` of `shapes` for each; the
// outputs are written in the same form.

#include <edgepack/edgepack.hpp>

#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>
#include <thread>
#include <type_traits>
#include <utility>

namespace {

using edgepack::detail::format_json_text;

static_assert(!std::is_assignable_v<decltype(std::declval<edgepack::Bound&>().input("")),
                                    edgepack::Tensor>,
              "the memory that onnxruntime is bound to stays");

std::string read(const std::string& path) { return edgepack::detail::read_file(path); }

edgepack::Tensors read_tensors(const edgepack::Model& model, const std::string& folder) {
  edgepack::Tensors tensors;
  std::istringstream lines(read(folder + "/shapes"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::size_t number = 0;
    std::string type;
    words >> number >> type;
    edgepack::Tensor tensor{edgepack::detail::find_type(type)->type, {}, {}};
    for (std::int64_t size = 0; words >> size;) tensor.shape.push_back(size);
    const std::string data = read(folder + "/" + std::to_string(number));
    const auto* begin = reinterpret_cast<const std::byte*>(data.data());
    tensor.bytes.assign(begin, begin + data.size());
    tensors[model.inputs().at(number).name] = tensor;
  }
  return tensors;
}

void write_tensors(const edgepack::Model& model, const edgepack::Tensors& tensors,
                   const std::string& folder) {
  std::ofstream shapes(folder + "/shapes");
  for (std::size_t k = 0; k < model.outputs().size(); ++k) {
    const edgepack::Tensor& tensor = tensors.at(model.outputs()[k].name);
    shapes << k << ' ' << edgepack::detail::get_facts(tensor.type).name;
    for (const std::int64_t size : tensor.shape) shapes << ' ' << size;
    shapes << '\n';
    std::ofstream(folder + "/" + std::to_string(k), std::ios::binary)
        .write(reinterpret_cast<const char*>(tensor.bytes.data()),
               static_cast<std::streamsize>(tensor.bytes.size()));
  }
}

/// Runs what was bound with zeros, and has been written since; it takes the place of another model's.
edgepack::Tensors run_bound(const edgepack::Model& model, const edgepack::TensorViews& views,
                            edgepack::Bound bound) {
  edgepack::Tensors zeros;
  edgepack::TensorViews zero_views;
  for (const auto& [name, view] : views) {
    zeros[name] = edgepack::make_tensor(view.type, view.shape);
    zero_views[name] = zeros[name].view();
  }
  bound = model.bind(zero_views);
  for (const auto& [name, view] : views) {
    const edgepack::BoundInput input = bound.input(name);
    if (input.view().shape != view.shape || input.view().type != view.type)
      throw std::runtime_error("another input is bound");
    std::memcpy(input.data(), view.data, view.bytes);
  }
  for (int k = 0; k < 2; ++k) bound.run();
  edgepack::Tensors outputs;
  for (const edgepack::TensorSpec& spec : model.outputs())
    outputs[spec.name] = bound.output(spec.name);
  return outputs;
}

/// Runs in several threads at once; all of them have to give the same bytes.
edgepack::Tensors run_threads(const edgepack::Model& model, const edgepack::TensorViews& views,
                              std::size_t count, bool races) {
  std::vector<edgepack::Tensors> found(count);
  std::vector<std::thread> threads;
  for (edgepack::Tensors& each : found) {
    threads.emplace_back([&] {
      for (int k = 0; k < 5; ++k) each = model.run(views);
      if (races) found[0] = each;
    });
  }
  for (std::thread& each : threads) each.join();
  for (const edgepack::Tensors& each : found) {
    for (const auto& [name, tensor] : each) {
      if (tensor.bytes != found[0].at(name).bytes)
        throw std::runtime_error("threads differ in " + name);
    }
  }
  return found.at(0);
}

void print(const edgepack::Model& model) {
  std::string passed;
  for (const edgepack::PassedOver& each : model.passed_over()) {
    passed += (passed.empty() ? "[" : ", [") + format_json_text(each.variant) + ", " +
              format_json_text(each.reason) + "]";
  }
  std::cout << "{\"variant\": " << format_json_text(model.variant()) << ", \"passed_over\": ["
            << passed << "], \"compiled_for\": " << format_json_text(model.compiled_for())
            << ", \"golden_sqnr_db\": " << edgepack::detail::format_fixed(model.golden_sqnr_db(), 9)
            << ", \"runtime\": " << format_json_text(model.runtime_version()) << "}\n";
}

/// Lets the process have so much more memory than it has.
void limit_memory(std::size_t megabytes) {
  const std::string pages = read("/proc/self/statm");
  const rlim_t most = std::stoul(pages) * 4096 + (megabytes << 20);
  const rlimit limit{most, most};
  if (setrlimit(RLIMIT_AS, &limit) != 0) throw std::runtime_error("no limit");
}

int run(const std::vector<std::string>& words) {
  edgepack::Options options;
  options.runtime = words.at(0) == "-" ? "" : words[0];
  std::size_t threads = 0, limit = 0, at = 2;
  std::string again;
  bool bound = false, races = false, waits = false, exits = false;
  for (; at < words.size() && words[at].rfind("--", 0) == 0; ++at) {
    const std::string& word = words[at];
    if (word == "--bound") bound = true;
    if (word == "--race") races = true;
    if (word == "--wait") waits = true;
    if (word == "--exit") exits = true;
    if (word == "--variant") options.variant = words.at(++at);
    if (word == "--cache") options.cache = words.at(++at);
    if (word == "--threads") threads = std::stoul(words.at(++at));
    if (word == "--limit") limit = std::stoul(words.at(++at));
    if (word == "--again") again = words.at(++at);
  }
  const edgepack::Model model = edgepack::Model::open(words.at(1), options);
  print(model);
  std::cout.flush();
  if (waits) std::cin.ignore(1 << 20, EOF);
  if (!again.empty()) {
    options.runtime = again;
    if (chdir("/") != 0) throw std::runtime_error("there is no other folder");
    print(edgepack::Model::open(words[1], options));
  }
  for (; at + 1 < words.size(); at += 2) {
    const edgepack::Tensors inputs = read_tensors(model, words[at]);
    edgepack::TensorViews views;
    for (const auto& [name, tensor] : inputs) views[name] = tensor.view();
    if (limit > 0) limit_memory(limit);
    const auto open = [&] { return edgepack::Model::open(words[1], options).bind(views); };
    const edgepack::Tensors outputs = bound         ? run_bound(model, views, open())
                                      : threads > 0 ? run_threads(model, views, threads, races)
                                                    : model.run(views);
    write_tensors(model, outputs, words[at + 1]);
  }
  if (exits) std::exit(0);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const edgepack::Error& error) {
    std::cout << "{\"code\": " << static_cast<int>(error.code())
              << ", \"text\": " << format_json_text(error.what())
              << ", \"hint\": " << format_json_text(error.hint()) << "}\n";
    return 3;
  }
}
