// Prints the number of each eight bytes on stdin as JSON would have it, a line each.
//
// -DWITHOUT_TO_CHARS: as with a C++ library that has no std::to_chars for it.

#include <charconv>
#ifdef WITHOUT_TO_CHARS
#undef __cpp_lib_to_chars
#elif !defined(__cpp_lib_to_chars)
#error "this compiler has no std::to_chars for double: both ways would be one"
#endif
#include <edgepack/detail/text.hpp>

#include <cstdio>

int main() {
  for (double value = 0; std::fread(&value, sizeof value, 1, stdin) == 1;)
    std::puts(edgepack::detail::format_number(value).c_str());
}
