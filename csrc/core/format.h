// printf into a std::string.
#pragma once

#include <cstdio>
#include <string>

namespace hgemm {

/// Returns the text that printf would write.
template <class... Args>
std::string format(const char* pattern, Args... args) {
  std::string text(static_cast<size_t>(std::snprintf(nullptr, 0, pattern, args...)), '\0');
  std::snprintf(text.data(), text.size() + 1, pattern, args...);
  return text;
}

}  // namespace hgemm
