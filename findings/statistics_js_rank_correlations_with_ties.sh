#!/usr/bin/env bash
# statistics.js 1.0.0: of two equal columns, Kendall's tau b is 0.8, and adjusted for ties, Spearman's rho changes without any ties.
#
# kendallsTau and spearmansRho are documented to give rank correlations of two columns, which are 1 for equal columns. tau b is made for
# equal values, called ties, and adjustForTies is the parameter of spearmansRho for them. Two sums over ties are wrong. For tau b, pairs
# that are equal in both columns count as no ties at all, and of other ties the different values are counted instead of the pairs. For rho,
# the sum of t**3 - t over the groups of t ties starts with the first t itself. So rho is off by a little even without ties, where the
# adjustment should have no effect. Nothing warns of it. Without the parameter, rho is right if there are no ties.
#
# A way around it: correlationCoefficient of the ranks is rho with ties.
#
# Seen with statistics.js 1.0.0 on node 20.20:
#   1 1 2 2 3 and 1 1 2 2 3:     tau b 0.8, expected 1; adjusted rho 1, expected 1
#   1 1 2 2 3 4 and 1 2 2 3 3 3: tau b 0.8182, expected 0.7526; adjusted rho 0.8283, expected 0.8263
#   1 2 3 4 5 and 1 2 3 5 4:     tau b 0.8, expected 0.8; adjusted rho 0.8992, expected 0.9
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit statistics.js@1.0.0
cat > ties.cjs <<'JAVASCRIPT'
const assert = require("node:assert/strict");
const Statistics = require("statistics.js");

const cases = [
  [[1, 1, 2, 2, 3], [1, 1, 2, 2, 3], 0.8, 1],
  [[1, 1, 2, 2, 3, 4], [1, 2, 2, 3, 3, 3], 0.8182, 0.8283],
  [[1, 2, 3, 4, 5], [1, 2, 3, 5, 4], 0.8, 0.8992],
];
const round = (x) => Math.round(x * 1e4) / 1e4;
const signs = (x) => x.flatMap((a) => x.map((b) => Math.sign(a - b)));
const ranks = (x) => x.map((a) => x.filter((b) => b < a).length + x.filter((b) => b === a).length / 2);
const centred = (x) => x.map((a) => a - x.reduce((sum, b) => sum + b) / x.length);
const cosine = (x, y) => {
  const dot = (p, q) => p.reduce((sum, a, k) => sum + a * q[k], 0);
  return dot(x, y) / Math.sqrt(dot(x, x) * dot(y, y));
};
for (const [x, y, seenTau, seenRho] of cases) {
  const statistics = new Statistics(x.map((_, k) => ({ x: x[k], y: y[k] })), { x: "metric", y: "metric" });
  statistics.suppressWarnings = true;
  const [tau, rho] = [statistics.kendallsTau("x", "y").b.tauB, statistics.spearmansRho("x", "y", true).rho].map(round);
  const [rightTau, rightRho] = [cosine(signs(x), signs(y)), cosine(centred(ranks(x)), centred(ranks(y)))].map(round);
  const name = `${x.join(" ")} and ${y.join(" ")}:`;
  console.log(`${name.padEnd(28)} tau b ${tau}, expected ${rightTau}; adjusted rho ${rho}, expected ${rightRho}`);
  assert.deepEqual([tau, rho], [seenTau, seenRho], "the behaviour has changed");
  assert.ok(tau !== rightTau || rho !== rightRho);
  assert.equal(round(statistics.correlationCoefficient(ranks(x), ranks(y)).correlationCoefficient), rightRho);
}
JAVASCRIPT
node ties.cjs
