#!/usr/bin/env bash
# einx 0.4.3: einx.var and einx.std accept ddof=1, and it has no effect.
#
# einx.var("[a]", x) is np.var(x) in einx's notation, and einx.roll, for example, passes on the argument shift. One would expect ddof=1, for
# the sample variance, to be passed on to numpy, or to be refused. But a keyword that einx does not know is the length of an axis of this
# name. There is no axis called ddof, so the length is ignored, and the variance is that of the whole population. Names with a typing error
# have no effect in the same way. Nothing warns of it. The length of an axis that does exist is checked.
#
# A way around it: einx.var("[a]", x) * n / (n - 1).
#
# Seen with einx 0.4.3 and numpy 2.4.6, Python 3.11, for x = [1, 2, 3, 6]:
#   var:                einx 3.5, numpy 3.5
#   var, ddof=1:        einx 3.5, numpy 4.6667
#   std, ddof=1:        einx 1.8708, numpy 2.1602
#   var, ddof=3:        einx 3.5, numpy 14.0
#   var, correction=1:  einx 3.5, numpy 4.6667
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q einx==0.4.3 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import einx
import numpy as np

x = np.array([1.0, 2.0, 3.0, 6.0])
cases = (
    ("var", {}, 3.5),
    ("var", {"ddof": 1}, 3.5),
    ("std", {"ddof": 1}, 1.8708),
    ("var", {"ddof": 3}, 3.5),
    ("var", {"correction": 1}, 3.5),
)
for name, options, seen in cases:
    found = round(float(getattr(einx, name)("[a]", x, **options)), 4)
    expected = round(float(getattr(np, name)(x, **options)), 4)
    title = ", ".join([name, *(f"{key}={value}" for key, value in options.items())])
    print(f"{title + ':':19} einx {found}, numpy {expected}")
    assert found == seen, "the behaviour has changed"
    assert (found == expected) == (not options)
assert einx.roll("[a]", x, shift=1).tolist() == [6, 1, 2, 3] and einx.var("[a]", x, a=4) == 3.5
try:
    einx.var("[a]", x, a=5)
except Exception as error:
    assert type(error).__module__.startswith("einx")
else:
    raise AssertionError("the length of an axis is not checked")
PYTHON
