// What a report says of the calls that were counted (stats.h).
#pragma once

#include <string>

#include "dispatch/c_api.h"
#include "dispatch/stats.h"

namespace hgemm {

/// HgemmCallKind::act of a grouped product.
constexpr int8_t kGroupedAct = -1;

/// The kind of a call that is to be counted.
HgemmCallKind kind_of(const CountedCall& call);

/// The kind without the fields that a report does not show, so that all fields of kinds which look alike are equal.
/// Times are rounded as their text is.
HgemmCallKind shown_of(const HgemmCallKind& kind);

/// Why the kernel, or torch, was chosen: "model: predicted 10.1 us against torch's 12.0 us".
std::string reason_of(const HgemmCallKind& kind);

}  // namespace hgemm
