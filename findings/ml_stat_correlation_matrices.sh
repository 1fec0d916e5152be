#!/usr/bin/env bash
# ml-stat 1.3.3: matrix.correlation gives the covariances, and zScores are not divided by the standard deviations.
#
# matrix.correlation gives the correlations of the columns of a matrix. One would expect 1 on the diagonal, and numbers
# from -1 to 1 elsewhere. Both functions ask matrix.standardDeviation for the deviations, and pass its second and third
# argument in the wrong order: true takes the place of the means. So all deviations are NaN, and standardize leaves a
# column as it is if its deviation is NaN. The scores are only centred, and the correlations are the covariances.
# Nothing warns of it. matrix.standardDeviation itself is right.
#
# A way around it: pass means and standard deviations to zScores, and take the covariance of the scores.
#
# Seen with ml-stat 1.3.3 on node 20.20, for the columns 1, 2, 3 and -20, -40, -60:
#   correlation:                [[1,-20],[-20,400]], expected [[1,-1],[-1,1]]
#   covariance:                 [[1,-20],[-20,400]], expected [[1,-20],[-20,400]]
#   zScores:                    [[-1,20],[0,0],[1,-20]], expected [[-1,1],[0,0],[1,-1]]
#   zScores with deviations:    [[-1,1],[0,0],[1,-1]], expected [[-1,1],[0,0],[1,-1]]
#   covariance of these scores: [[1,-1],[-1,1]], expected [[1,-1],[-1,1]]
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit ml-stat@1.3.3
cat > correlation.cjs <<'JAVASCRIPT'
const assert = require("node:assert/strict");
const { matrix } = require("ml-stat");

const data = [[1, -20], [2, -40], [3, -60]];
const scores = matrix.zScores(data, matrix.mean(data), matrix.standardDeviation(data));
const [covariances, correlations] = [[[1, -20], [-20, 400]], [[1, -1], [-1, 1]]];
const [centred, standard] = [[[-1, 20], [0, 0], [1, -20]], [[-1, 1], [0, 0], [1, -1]]];
const cases = [
  ["correlation", matrix.correlation(data), covariances, correlations],
  ["covariance", matrix.covariance(data), covariances, covariances],
  ["zScores", matrix.zScores(data), centred, standard],
  ["zScores with deviations", scores, standard, standard],
  ["covariance of these scores", matrix.covariance(scores), correlations, correlations],
];
assert.deepEqual(matrix.standardDeviation(data), [1, 20]);
for (const [name, found, seen, expected] of cases) {
  console.log(`${(name + ":").padEnd(27)} ${JSON.stringify(found)}, expected ${JSON.stringify(expected)}`);
  assert.equal(JSON.stringify(found), JSON.stringify(seen), "the behaviour has changed");
}
JAVASCRIPT
node correlation.cjs
