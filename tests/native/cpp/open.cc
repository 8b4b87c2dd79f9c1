// Opens a bundle twice, asks for one answer, and prints what that took: tests/bench/native_loader.py.
//
//     open RUNTIME BUNDLE

#include <edgepack/edgepack.hpp>

#include <chrono>
#include <cstdio>

int main(int count, char** words) {
  if (count != 3) return 2;
  edgepack::Options options;
  options.runtime = words[1];
  using Clock = std::chrono::steady_clock;
  const auto started = Clock::now();
  const edgepack::Model model = edgepack::Model::open(words[2], options);
  const std::chrono::duration<double> first = Clock::now() - started;
  const auto again = Clock::now();
  static_cast<void>(edgepack::Model::open(words[2], options));
  const std::chrono::duration<double> second = Clock::now() - again;
  const std::vector<std::uint8_t> pixels(640 * 480 * 3, 127);
  const edgepack::Answers answers =
      model.predict({{model.only_input(), edgepack::make_frame(pixels.data(), 640, 480)}});
  const std::string status = edgepack::detail::read_file("/proc/self/status");
  const std::string resident = edgepack::detail::list_values(status, "VmRSS").at(0);
  std::printf("{\"open_s\": %.6f, \"again_s\": %.6f, \"resident_kib\": %ld, \"answers\": %zu}\n",
              first.count(), second.count(), std::stol(resident), answers.size());
  return 0;
}
