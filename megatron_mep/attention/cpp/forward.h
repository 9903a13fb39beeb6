// One block of queries of one head: walks from its nearest keys outwards until what is left can be dropped.

#pragma once

#include <cmath>

#include "lanes.h"
#include "share.h"

constexpr Int KEYS = 128;          // by which a block walks on at most
constexpr Int STEP = 32;           // of which a walk may end at each
constexpr float ROUNDING = 2e-3f;  // bits kept back for it, and as many of it in the largest number that is added up
constexpr float ROUNDINGS = 256 * 1.1920929e-7f;  // as two products over a head of 256 may make

class Block {
  public:
    static Int numbers(const Call& c) {
        return 2 * c.size * ROWS + (KEYS + 4) * ROWS + 2 * (KEYS + 4) * c.size + 4 * ROWS;
    }

    Block(const Call& call, Int item, float* memory)
        : c(call), D(call.size), block(call.blocks() - 1 - item % call.blocks()), h(item / call.blocks() % call.heads),
          b(item / call.blocks() / call.heads), g(h / call.group_size()), rows(call.rows(block)),
          position(call.position(block)) {
        Scratch scratch{memory};
        query = scratch.take(D * ROWS), sums = scratch.take(D * ROWS), probs = scratch.take((KEYS + 4) * ROWS);
        key = scratch.take((KEYS + 4) * D), value = scratch.take((KEYS + 4) * D);
        for (float** each : {&most, &total, &length, &along}) *each = scratch.take(ROWS);
        std::fill(query, probs, 0.f);
        View from = c.query;
        transpose(rows, D, {from.at(b, h, block * ROWS), from.row}, c.scale * LOG2_E, {query, ROWS});
        // for a column without a query all weighs nothing: it can drop all
        for (Int i = 0; i < ROWS; i++) most[i] = i < rows ? LOWEST : -LOWEST, total[i] = i < rows ? 0 : 1;
        if (c.epsilon) measure();
    }

    void walk() {
        Int first = position + rows;
        bool done = false;
        while (first > c.sinks && !done) {
            const Int stop = first, step = c.epsilon && total[0] > 0 ? STEP : KEYS;
            // no farther than needed, were the weights so far to be all
            for (first = stop - step; first > std::max(c.sinks, stop - KEYS) && !can_drop(first);) first -= STEP;
            first = std::max(first, c.sinks);
            attend(first, stop);
            done = c.epsilon && first > c.sinks && can_drop(first);
        }
        if (c.sinks) attend(0, std::min(c.sinks, position + rows));
        c.first_of(b, h, block) = std::max(first, c.sinks);
        c.dropped[&c.first_of(b, h, block) - c.first] = done ? share_lost : 0;
        finish();
    }

  private:
    const Call& c;
    const Int D, block, h, b, g, rows, position;
    float *query, *sums, *probs, *key, *value;  // [D, ROWS], [D, ROWS], [KEYS, ROWS], [KEYS, D], [KEYS, D]
    float *most, *total;     // of each query: its largest score, and the sum of exp2 of what the others are below it
    float *length, *along;   // the length of each query, and its product with the mean of the keys
    float share_lost = 0;

    void attend(Int start, Int stop) {
        const Int n = stop - start;
        copy(n, D, {c.key.at(b, g, start), c.key.row}, key);
        copy(n, D, {c.value.at(b, g, start), c.value.row}, value);
        const Right bias = {c.by_distance(c.bias, h, position - start), -1};
        multiply(n, ROWS, D, {key, D, 1}, {query, ROWS}, bias, {probs, ROWS});
        for (Int i = 0; i < ROWS; i += WIDTH) weigh(n, i);
        multiply_add(D, ROWS, n, {value, 1, D}, {probs, ROWS}, {sums, ROWS});
    }

    // Scores of eight queries become weights.
    void weigh(Int n, Int i) {
        const Lanes before = load(most + i);
        Lanes now = before, sum = {};
        for (Int j = 0; j < n; j++) now = max(load(probs + j * ROWS + i), now);
        for (Int j = 0; j < n; j++) {
            const Lanes weight = exp2(load(probs + j * ROWS + i) - now);
            store(probs + j * ROWS + i, weight);
            sum += weight;
        }
        const Lanes factor = exp2(before - now);
        store(most + i, now);
        store(total + i, load(total + i) * factor + sum);
        bool same = true;
        for (Int l = 0; l < WIDTH; l++) same &= factor[l] == 1;
        for (Int d = 0; d < D && !same; d++) store(sums + d * ROWS + i, load(sums + d * ROWS + i) * factor);
    }

    void measure() {
        const float* mean = c.mean + (b * c.groups + g) * D;
        for (Int i = 0; i < ROWS; i += WIDTH) {
            Lanes square = {}, product = {};
            for (Int d = 0; d < D; d++) {
                const Lanes q = load(query + d * ROWS + i);
                square += q * q;
                product += q * mean[d];
            }
            for (Int l = 0; l < WIDTH; l++) length[i + l] = std::sqrt(square[l]);
            store(along + i, product);
        }
    }

    // Whether each query may lose the keys from the sinks to before `first`: see reach.py. Sets `share_lost` if so.
    bool can_drop(Int first) {
        if (first > position) return false;
        const Int entry = (b * c.groups + g) * (c.keys + 1) + first;
        const float* tails = c.by_distance(c.tails, h, position - first + 1);
        Lanes worst = {};
        for (Int i = 0; i < ROWS; i += WIDTH) {
            const Lanes q = load(length + i), now = load(most + i), tail = load(tails + i);
            const Lanes plain = q * c.longest[entry], centred = load(along + i) + q * c.centred[entry];
            const Lanes size = (now < 0 ? -now : now) + (tail < 0 ? -tail : tail) + q * static_cast<float>(c.largest);
            Lanes lost = (plain < centred ? plain : centred) + tail - now + ROUNDING + ROUNDINGS * size;
            const Lanes share = exp2(lost > 100 ? Lanes{} + 100 : lost) / load(total + i);
            for (Int l = 0; l < WIDTH; l++)
                if (!(share[l] <= c.epsilon)) return false;  // what is no number proves nothing
            worst = max(worst, share);
        }
        share_lost = *std::max_element(reinterpret_cast<float*>(&worst), reinterpret_cast<float*>(&worst) + WIDTH);
        return true;
    }

    void finish() {
        for (Int i = 0; i < ROWS; i += WIDTH)
            for (Int d = 0; d < D; d++) store(sums + d * ROWS + i, load(sums + d * ROWS + i) / load(total + i));
        transpose(D, rows, {sums, ROWS}, 1, {c.output.at(b, h, block * ROWS), c.output.row});
        copy(1, rows, {most, 0}, c.of_block(c.most, b, h, block));
        copy(1, rows, {total, 0}, c.of_block(c.total, b, h, block));
    }
};
