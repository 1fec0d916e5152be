#include "dispatch/context.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <pthread.h>

#include "dispatch/stats.h"

namespace hgemm {
namespace detail {

thread_local HgemmSettings thread_settings = kNoSettings;
std::atomic<HgemmSettings> shared_settings{kNoSettings};
std::atomic<int> default_tunes{0};
thread_local int thread_site = 0;
std::atomic<bool> sites_on{false};

}  // namespace detail

namespace {

struct Context {
  HgemmSettings settings;
  Tally tally;
  int entered = 0;
};

/// One entry of a context, which may be entered many times and by several threads.
struct Entry {
  std::shared_ptr<Context> context;
  bool left = false;       // it has ended, maybe on another thread: a generator may be closed there
  bool suspended = false;  // it belongs to a span that is suspended: it has no effect now
};

using Entries = std::vector<std::shared_ptr<Entry>>;

/// The entries of all threads that have not ended, in the order of entering, and the context of the whole process.
struct Everyone {
  std::mutex mutex;
  Entries entries;
  std::shared_ptr<Context> process;  // null where there is none
};

/// The entries that this thread made, in the order of entering, without those of suspended spans.
thread_local Entries own;

void after_fork();

Everyone& everyone() {
  static Everyone& instance = *[] {
    // A process may fork while another thread enters a context. The child must not find the mutex locked.
    pthread_atfork([] { everyone().mutex.lock(); }, [] { everyone().mutex.unlock(); }, after_fork);
    return new Everyone;  // threads may outlive static destructors
  }();
  return instance;
}

/// The settings of nested entries, outermost first, inside the context of the process: variant and tuning are the
/// innermost entry's, numerics and float32 those of the innermost entry that sets them. Suspended entries do not count.
HgemmSettings together(const Entries& entries, const Context* process) {
  HgemmSettings settings = kNoSettings;
  const auto add = [&settings](const HgemmSettings& outer) {
    if (settings.variant == kNoContext) settings = outer;
    if (settings.numerics == kAuto) settings.numerics = outer.numerics;
    if (settings.float32 == kAuto) settings.float32 = outer.float32;
  };
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    if (!(*entry)->suspended) add((*entry)->context->settings);
  }
  if (process != nullptr) add(process->settings);
  return settings;
}

/// Recomputes this thread's settings and the shared ones after a change. The caller holds the mutex.
void apply(const Everyone& all) {
  own.erase(std::remove_if(own.begin(), own.end(), [](const auto& entry) { return entry->left; }), own.end());
  detail::thread_settings = own.empty() ? kNoSettings : together(own, all.process.get());
  detail::shared_settings.store(together(all.entries, all.process.get()), std::memory_order_relaxed);
}

/// Starts to count for a context, unless an earlier entry of it does.
void start_counting(Context& context) {
  if (context.entered++ == 0) context.tally.start();
}

/// Ends one start_counting().
void stop_counting(Context& context) {
  if (--context.entered == 0) context.tally.stop();
}

/// The last of these entries that is of `context`, has not ended, and is suspended or not; null where there is none.
std::shared_ptr<Entry> last_of(const Entries& entries, const Context* context, bool suspended = false) {
  const auto found = std::find_if(entries.rbegin(), entries.rend(), [&](const auto& entry) {
    return entry->context.get() == context && !entry->left && entry->suspended == suspended;
  });
  return found == entries.rend() ? nullptr : *found;
}

// The functions from here on change the entries of this thread and of all threads. The caller holds the mutex, and
// calls apply() afterwards.

/// Makes an entry the innermost one of this thread, and starts to count for its context.
void push(Everyone& all, const std::shared_ptr<Entry>& entry) {
  own.push_back(entry);
  all.entries.push_back(entry);
  start_counting(*entry->context);
}

/// Removes an entry, whatever entries were made after it, and stops to count for its context.
void remove(Everyone& all, Entry& entry) {
  const auto is_entry = [&](const auto& other) { return other.get() == &entry; };
  all.entries.erase(std::find_if(all.entries.begin(), all.entries.end(), is_entry));
  if (!entry.suspended) stop_counting(*entry.context);
}

/// Runs in the child of a fork, which has the mutex locked: it has this thread alone, so all entries of others end.
void after_fork() {
  Everyone& all = everyone();
  for (const std::shared_ptr<Entry>& entry : Entries(all.entries)) {
    if (entry->suspended || std::find(own.begin(), own.end(), entry) != own.end()) continue;
    entry->left = true;
    remove(all, *entry);
  }
  apply(all);
  all.mutex.unlock();
}

}  // namespace
}  // namespace hgemm

struct HgemmContext {
  std::shared_ptr<hgemm::Context> context;
};

struct HgemmSpan {
  std::shared_ptr<hgemm::Context> context;
  std::shared_ptr<hgemm::Entry> entry;  // of the context; null while the span is suspended
  hgemm::Entries inner;                 // while it is suspended: the entries that its code made and has not ended
};

HgemmContext* hgemm_context_new(HgemmSettings settings) {
  return new HgemmContext{std::make_shared<hgemm::Context>(hgemm::Context{settings, {}, 0})};
}

void hgemm_context_delete(HgemmContext* handle) {
  delete handle;  // an entry that has not ended keeps the context alive
}

void hgemm_context_enter(HgemmContext* handle) {
  using namespace hgemm;
  Everyone& all = everyone();
  const std::lock_guard<std::mutex> lock(all.mutex);
  push(all, std::make_shared<Entry>(Entry{handle->context}));
  apply(all);
}

int hgemm_context_exit(HgemmContext* handle) {
  using namespace hgemm;
  Everyone& all = everyone();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const Context* const context = handle->context.get();
  std::shared_ptr<Entry> entry = last_of(own, context);
  if (!entry) entry = last_of(all.entries, context);
  if (!entry) entry = last_of(all.entries, context, true);
  if (!entry) return 0;
  entry->left = true;
  remove(all, *entry);
  apply(all);
  return 1;
}

void hgemm_context_set_process(HgemmContext* handle) {
  using namespace hgemm;
  Everyone& all = everyone();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (all.process) stop_counting(*all.process);
  all.process = handle == nullptr ? nullptr : handle->context;
  if (all.process) start_counting(*all.process);
  apply(all);
}

HgemmSpan* hgemm_span_new(HgemmContext* handle) {
  return new HgemmSpan{.context = handle->context, .entry = nullptr, .inner = {}};
}

void hgemm_span_resume(HgemmSpan* span) {
  using namespace hgemm;
  Everyone& all = everyone();
  const std::lock_guard<std::mutex> lock(all.mutex);
  span->entry = std::make_shared<Entry>(Entry{span->context});
  push(all, span->entry);
  for (const std::shared_ptr<Entry>& entry : span->inner) {
    if (entry->left) continue;
    remove(all, *entry);  // from its old place in the order of entering
    entry->suspended = false;
    push(all, entry);
  }
  span->inner.clear();
  apply(all);
}

void hgemm_span_suspend(HgemmSpan* span) {
  using namespace hgemm;
  Everyone& all = everyone();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto first = std::find(own.begin(), own.end(), span->entry);
  for (auto entry = first; entry != own.end(); ++entry) {
    if ((*entry)->left) continue;
    remove(all, **entry);
    if (entry == first) continue;
    (*entry)->suspended = true;
    all.entries.push_back(*entry);  // its context may be left meanwhile
    span->inner.push_back(*entry);
  }
  own.erase(first, own.end());
  span->entry.reset();
  apply(all);
}

void hgemm_span_delete(HgemmSpan* span) {
  using namespace hgemm;
  Everyone& all = everyone();
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (const std::shared_ptr<Entry>& entry : span->inner) {
    if (!entry->left) remove(all, *entry);
    entry->left = true;
  }
  delete span;
}

int hgemm_context_rows(const HgemmContext* handle, int as_shown, HgemmCallCount* rows, int capacity) {
  const std::lock_guard<std::mutex> lock(hgemm::everyone().mutex);
  const size_t most = static_cast<size_t>(std::max(capacity, 0));
  return static_cast<int>(handle->context->tally.rows(as_shown != 0, rows, most));
}

void hgemm_context_leave_all(void) {
  hgemm::detail::thread_settings = hgemm::kNoSettings;
  hgemm::detail::thread_settings.variant = hgemm::kOutside;
  hgemm::detail::thread_settings.tunes = 0;
}

void hgemm_tuning_default(int tunes) {
  hgemm::detail::default_tunes.store(tunes, std::memory_order_relaxed);
}

void hgemm_sites_enable(int on) {
  hgemm::detail::sites_on.store(on != 0, std::memory_order_relaxed);
}

int hgemm_site_set(int site) {
  return std::exchange(hgemm::detail::thread_site, site);
}
