// printf into a std::string.
#pragma once

#include <cstdio>
#include <string>

namespace hgemm {

/// Returns the text that printf would write.
template <class... Args>
std::string format(const char* pattern, Args... args) {
  char text[256];  // most texts fit
  const auto length = static_cast<size_t>(std::snprintf(text, sizeof(text), pattern, args...));
  if (length < sizeof(text)) return std::string(text, length);
  std::string longer(length, '\0');
  std::snprintf(longer.data(), length + 1, pattern, args...);
  return longer;
}

}  // namespace hgemm
