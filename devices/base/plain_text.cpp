#include "devices/base/plain_text.h"

namespace troupe {

namespace {

void append_escape(std::string& out, unsigned char c) {
  constexpr const char* digits = "0123456789abcdef";
  out += "\\x";
  out += digits[c >> 4];
  out += digits[c & 15];
}

std::string escaped(std::string_view text, bool newline_stays) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    if (c == 0xc2 && next >= 0x80 && next < 0xa0) {  // U+0080 to U+009F in UTF-8
      append_escape(out, next);
      ++i;
    } else if ((c >= ' ' && c != 0x7f) || c == '\t' || (c == '\n' && newline_stays)) {
      out += text[i];
    } else {
      append_escape(out, c);
    }
  }
  return out;
}

}  // namespace

std::string plain_text(std::string_view text) { return escaped(text, true); }

std::string plain_line(std::string_view line, std::size_t bytes_max) {
  if (line.size() <= bytes_max) return escaped(line, false);
  return escaped(line.substr(0, bytes_max), false) + "... (" + std::to_string(line.size() - bytes_max) + " bytes more)";
}

}  // namespace troupe
