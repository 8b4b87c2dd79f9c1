// Fuzzes the reader of vocabularies: a tokenizer.json, a NUL, and a text for it.

#include <edgepack/detail/wordpiece.hpp>

#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace edgepack::detail;
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::size_t end = all.find('\0');
  if (end == std::string_view::npos) return 0;
  const std::string_view text = all.substr(end + 1);
  if (find_bad_utf8(text) != std::string_view::npos) return 0;
  const auto attempt = [](auto&& call) {
    try {
      call();
    } catch (const edgepack::Error&) {
    } catch (const TokenizerError&) {
    }
  };
  attempt([&] {
    const Json tokenizer = Json::parse(all.substr(0, end), "fuzzed");
    attempt([&] { (void)InModel(tokenizer).encode_text(std::string(text)); });
    const WordPiece pieces(tokenizer);
    const Encoding encoding = pieces.encode(text, 64, true);
    if (encoding.input_ids.size() != 64 || encoding.attention_mask.size() != 64) std::abort();
  });
  return 0;
}
