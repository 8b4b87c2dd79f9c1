// Asks the parts that count what a model does.
//
//     counting plain MOST < LINES   prints each line as counters write it
//     counting fork FOLDER          counts a check, and one more in a child that is forked
//     counting write FOLDER TIMES   counts a check and writes, as often, in one process
//     counting full FOLDER          the same, without memory for node_exporter's file at first
//     counting end FOLDER           ends with two models open, whose writes wait for each other

#include <edgepack/edgepack.hpp>

#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <chrono>
#include <condition_variable>
#include <iostream>
#include <mutex>
#include <new>

namespace detail = edgepack::detail;

namespace {

bool is_full = false;

std::mutex guard;
std::condition_variable changed;
int writers = 0;
int needed = 0;

}  // namespace

// Stands before the C library's.
extern "C" FILE* fopen(const char* path, const char*) {
  if (is_full) throw std::bad_alloc();
  const int handle = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  return handle < 0 ? nullptr : fdopen(handle, "w");
}

extern "C" int flock(int handle, int how) noexcept {
  {
    std::unique_lock<std::mutex> lock(guard);
    ++writers;
    changed.notify_all();
    // Longer than the end of a program waits for one write.
    if (!changed.wait_for(lock, 2 * detail::kLastWrite, [] { return writers >= needed; })) _exit(4);
  }
  return static_cast<int>(syscall(SYS_flock, handle, how));
}

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
  } else if (words[0] == "full") {
    const auto counters = detail::Counters::open(words.at(1), about, words[1]);
    counters->count_checked({});
    is_full = true;
    counters->close();
    is_full = false;
  } else if (words[0] == "end") {
    needed = 2;
    for (const char* name : {"/a", "/b"}) {
      // They are never released.
      const auto* kept = new auto(detail::Counters::open(words.at(1) + name, about, ""));
      (*kept)->count_checked({});
    }
  } else {
    for (std::size_t k = std::stoul(words.at(2)); k > 0; --k)
      detail::Counters::open(words.at(1), about, "")->count_checked({});
  }
  return 0;
}
