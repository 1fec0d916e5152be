#!/usr/bin/env bash
# @sgratzl/science 2.0.0: the Jaccard distance of a vector to itself is 1, and clusters join what differs most.
#
# stats.distance has distances of two vectors, which are 0 for equal ones, and hcluster and kmeans take one of them to
# find vectors that are close. distance.jaccard divides the number of equal elements by the number of elements. That is
# a similarity, and grows when the vectors get more alike. The distance is 1 minus it. So hierarchical clustering with
# this distance joins the least similar vectors first. Nothing warns of it. The other distances are 0 for equal vectors.
#
# A way around it: (a, b) => 1 - stats.distance.jaccard(a, b) as the distance.
#
# Seen with @sgratzl/science 2.0.0 on node 20.20:
#   jaccard of 1 1 1 1 and 1 1 1 1:                1, expected 0
#   jaccard of 1 1 1 1 and 1 1 1 0:                0.75, expected 0.25
#   jaccard of 1 1 1 1 and 0 0 0 0:                0, expected 1
#   first two joined of 1 1 1 1, 1 1 1 0, 0 0 0 0: 1111 and 0000, expected 1111 and 1110
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit @sgratzl/science@2.0.0
cat > jaccard.cjs <<'JAVASCRIPT'
const assert = require("node:assert/strict");
const { stats } = require("@sgratzl/science");

const [ones, close, zeros] = [[1, 1, 1, 1], [1, 1, 1, 0], [0, 0, 0, 0]];
const { jaccard, minkowski, ...others } = stats.distance;
for (const [vector, seen, expected] of [[ones, 1, 0], [close, 0.75, 0.25], [zeros, 0, 1]]) {
  const found = jaccard(ones, vector);
  console.log(`${`jaccard of ${ones.join(" ")} and ${vector.join(" ")}:`.padEnd(46)} ${found}, expected ${expected}`);
  assert.equal(found, seen, "the behaviour has changed");
  assert.equal(1 - found, expected);
}
for (const distance of [minkowski(3), ...Object.values(others)]) {
  assert.equal(distance(ones, ones), 0);
}
const vectors = [ones, close, zeros];
const firstPair = (distance) => {
  const root = stats.hcluster().distance(distance)(vectors);
  const pair = root.left.left ? root.left : root.right;
  return [pair.left, pair.right].map((leaf) => leaf.centroid.join("")).join(" and ");
};
const [found, expected] = [firstPair(jaccard), firstPair((a, b) => 1 - jaccard(a, b))];
console.log(`first two joined of ${vectors.map((v) => v.join(" ")).join(", ")}: ${found}, expected ${expected}`);
assert.deepEqual([found, expected], ["1111 and 0000", "1111 and 1110"], "the behaviour has changed");
JAVASCRIPT
node jaccard.cjs
