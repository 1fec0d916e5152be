// What the C++ tests check, and how many checks failed. Threads may check, too.
#pragma once

#include <atomic>
#include <cstdio>

namespace hgemm {

inline std::atomic<int> failures{0};

}  // namespace hgemm

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      ++failures;                                                          \
    }                                                                      \
  } while (false)
