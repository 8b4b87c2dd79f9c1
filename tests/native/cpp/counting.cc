// Asks the parts that count what a model does.
//
//     counting plain MOST < LINES   prints each line as counters write it
//     counting fork FOLDER          counts a check, and one more in a child that is forked
//     counting write FOLDER TIMES   counts a check and writes, as often, in one process

#include <edgepack/edgepack.hpp>

#include <sys/wait.h>

#include <iostream>

namespace detail = edgepack::detail;

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const detail::About about{"tiny", "1.0.0", "0123456789abcdef", "cpu-fp32", {}, true};
  if (words.at(0) == "plain") {
    for (std::string line; std::getline(std::cin, line);)
      std::cout << detail::make_plain(line, std::stoul(words.at(1))) << '\n';
  } else if (words[0] == "fork") {
    const auto counters = detail::Counters::open(words.at(1), about, "");
    const pid_t child = fork();
    counters->count_checked({"x"});
    int status = 0;
    if (child != 0 && (waitpid(child, &status, 0) != child || status != 0)) return 1;
  } else {
    for (std::size_t k = std::stoul(words.at(2)); k > 0; --k)
      detail::Counters::open(words.at(1), about, "")->count_checked({});
  }
  return 0;
}
