// What Python hands over, see compiled.py, and how it is cut up.

#pragma once

#include <algorithm>
#include <cstdint>

using Int = int64_t;

constexpr Int ROWS = 96;        // queries of a block, a multiple of 3 vectors
constexpr Int PAD = ROWS + 8;   // entries on either side of the vectors by distance
constexpr Int PART_NUMBERS = 16384;  // in the keys whose gradients are added up in the cache
constexpr float LOWEST = -1e29f;  // above the scores of excluded keys, below all others

struct View {  // a tensor [B, heads, rows, D] whose last dimension is dense
    float* data;
    Int sample, head, row;

    float* at(Int b, Int h, Int r) const { return data + b * sample + h * head + r * row; }
};

struct Call {
    View query, key, value, output, grad_output, grad_query, grad_key, grad_value;
    float *most, *total, *bias, *tails, *longest, *centred, *mean, *dropped, *grad_bias;
    Int* first;
    Int batch, heads, groups, queries, keys, size, sinks, threads;
    double scale, epsilon, largest;

    Int blocks() const { return (queries + ROWS - 1) / ROWS; }
    Int part() const { return std::max<Int>(PART_NUMBERS / size / 64 * 64, 64); }
    Int parts() const { return (keys + part() - 1) / part(); }
    Int group_size() const { return heads / groups; }
    // where the first query of a block stands among the keys
    Int position(Int block) const { return keys - queries + block * ROWS; }
    Int rows(Int block) const { return std::min(ROWS, queries - block * ROWS); }
    // entries of head h in a vector by distance, from distance d on
    float* by_distance(float* vector, Int h, Int d) const { return vector + h * (keys + 2 * PAD) + PAD + d; }
    // the first key that a block attends to, sinks aside
    Int& first_of(Int b, Int h, Int block) const { return first[(b * heads + h) * blocks() + block]; }
    // of a block in a tensor [B, H, Q]
    float* of_block(float* tensor, Int b, Int h, Int block) const {
        return tensor + (b * heads + h) * queries + block * ROWS;
    }
};
