#!/usr/bin/env bash
# vectorious 6.1.14: the inverse of the transpose of a matrix is the inverse of the matrix.
#
# vectorious is a package for linear algebra in JavaScript. Its x.T is a view of x with the strides swapped, and toArray, add and multiply
# take the strides into account. One would expect the same of every function. But map, slice, reshape, augment, solve, inv and rank read
# the memory in its order, as if it were not transposed. So solve(a.T, b) solves the system of a, inv(a.T) times a.T is not the identity,
# and the rank of the transpose of a rectangle is wrong. Nothing warns of it. det is right.
#
# A way around it: array(x.T.toArray()), which copies the elements in the order of the view.
#
# Seen with vectorious 6.1.14 on node 20.20, without its optional bindings to LAPACK, for a = [[1,2],[3,4]], w = [[1,2,3],[4,5,6]]
# and b = [[1],[2]]:
#   a.T.toArray():       of the view [[1,3],[2,4]], of a copy [[1,3],[2,4]]
#   multiply(a.T, b):    of the view [[7],[10]], of a copy [[7],[10]]
#   map(a.T, double):    of the view [[2,4],[6,8]], of a copy [[2,6],[4,8]]
#   slice(a.T, 0, 1):    of the view [[1,2]], of a copy [[1,3]]
#   reshape(w.T, 6):     of the view [1,2,3,4,5,6], of a copy [1,4,2,5,3,6]
#   augment(a.T, b):     of the view [[1,2,1],[3,4,2]], of a copy [[1,3,1],[2,4,2]]
#   solve(a.T, b):       of the view [[0],[0.5]], of a copy [[1],[0]]
#   inv(a.T):            of the view [[-2,1],[1.5,-0.5]], of a copy [[-2,1.5],[1,-0.5]]
#   rank(w.T):           of the view 1, of a copy 2
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit --omit=optional vectorious@6.1.14
cat > transposes.mjs <<'JAVASCRIPT'
import assert from "node:assert/strict";
import { array, augment, inv, map, multiply, rank, reshape, slice, solve } from "vectorious";

const square = [[1, 2], [3, 4]];
const wide = [[1, 2, 3], [4, 5, 6]];
const b = () => array([[1], [2]]);
const cases = [
  ["a.T.toArray()", square, (m) => m, [[1, 3], [2, 4]]],
  ["multiply(a.T, b)", square, (m) => multiply(m, b()), [[7], [10]]],
  ["map(a.T, double)", square, (m) => map(m, (x) => 2 * x), [[2, 4], [6, 8]]],
  ["slice(a.T, 0, 1)", square, (m) => slice(m, 0, 1), [[1, 2]]],
  ["reshape(w.T, 6)", wide, (m) => reshape(m, 6), [1, 2, 3, 4, 5, 6]],
  ["augment(a.T, b)", square, (m) => augment(m, b()), [[1, 2, 1], [3, 4, 2]]],
  ["solve(a.T, b)", square, (m) => solve(m, b()), [[0], [0.5]]],
  ["inv(a.T)", square, (m) => inv(m), [[-2, 1], [1.5, -0.5]]],
  ["rank(w.T)", wide, (m) => rank(m), 1],
];
const plain = (result) => (typeof result === "number" ? result : result.toArray());
const rounded = (value) => (Array.isArray(value) ? value.map(rounded) : Math.round(value * 1e9) / 1e9);
for (const [name, rows, f, seen] of cases) {
  const ofView = rounded(plain(f(array(rows).T)));
  const ofCopy = rounded(plain(f(array(array(rows).T.toArray()))));
  console.log(`${(name + ":").padEnd(20)} of the view ${JSON.stringify(ofView)}, of a copy ${JSON.stringify(ofCopy)}`);
  assert.deepEqual(ofView, seen, "the behaviour has changed");
  const right = name === "a.T.toArray()" || name.startsWith("multiply");
  assert.equal(JSON.stringify(ofView) === JSON.stringify(ofCopy), right, "the behaviour has changed");
}
assert.deepEqual(rounded(multiply(inv(array(array(square).T.toArray())), array(square).T).toArray()), [[1, 0], [0, 1]]);
JAVASCRIPT
node transposes.mjs
