#!/usr/bin/env bash
# splines 0.3.3: on an uneven grid, the natural spline has a second derivative of 2.07 at its start, instead of 0.
#
# splines.Natural(vertices, grid) is an interpolating cubic spline. A natural spline has a second derivative of zero at both ends, and one
# would expect the spline that scipy's CubicSpline gives for bc_type="natural". On an even grid it is. But in the equation for the start,
# the slope at the second vertex is multiplied by the length of the second interval instead of the first. So if these two lengths differ,
# the second derivative at the start is not zero, and the whole spline is another one. It still goes through the vertices, and nothing warns
# of it. The end is right, and so are splines with given slopes at the ends.
#
# A way around it: CubicSpline of scipy.
#
# Seen with splines 0.3.3, numpy 2.4.6 and scipy 1.17.1, Python 3.11, for the vertices 1, 3, 2, 5:
#   grid 0, 1, 2, 3:   second derivatives at the ends 0.000 and 0.000, largest difference from scipy 0.000
#   grid 0, 1, 3, 4.5: second derivatives at the ends 2.067 and 0.000, largest difference from scipy 0.111
#   grid 0, 2, 3, 4:   second derivatives at the ends 0.517 and 0.000, largest difference from scipy 0.093
#   grid 0, 1, 2, 4:   second derivatives at the ends 0.000 and 0.000, largest difference from scipy 0.000
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install -q splines==0.3.3 numpy==2.4.6 scipy==1.17.1
"$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import splines
from scipy.interpolate import CubicSpline

vertices = np.array([1.0, 3.0, 2.0, 5.0])
for grid, start in (([0, 1, 2, 3], 0.0), ([0, 1, 3, 4.5], 2.067), ([0, 2, 3, 4], 0.517), ([0, 1, 2, 4], 0.0)):
    natural = splines.Natural(vertices, grid)
    expected = CubicSpline(grid, vertices, bc_type="natural")
    assert np.allclose([natural.evaluate(x) for x in grid], vertices)
    x = np.linspace(grid[0], grid[-1], 101)
    difference = np.abs(natural.evaluate(x) - expected(x)).max()
    ends = [round(float(natural.evaluate(x, 2)), 6) + 0.0 for x in (grid[0], grid[-1])]
    title = f"grid {', '.join(map(str, grid))}:"
    print(
        f"{title:18} second derivatives at the ends {ends[0]:.3f} and {ends[1]:.3f},"
        f" largest difference from scipy {difference:.3f}"
    )
    assert np.allclose(expected([grid[0], grid[-1]], 2), 0, atol=1e-9)
    assert np.allclose(ends, [start, 0], atol=1e-3), "the behaviour has changed"
    assert (difference < 1e-9) == (start == 0)
PYTHON
