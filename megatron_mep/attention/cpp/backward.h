// The gradients of some keys of one group, and what those keys add to the gradients of queries and biases.
//
// Parts add to the same query or bias in the order of their keys. A part waits only for those that were begun before.

#pragma once

#include "lanes.h"
#include "share.h"

constexpr Int AT_ONCE = 64;  // keys whose scores are held

// Which part is next to add to a block of queries, and which part and sample to the biases of a head.
class Turns {
  public:
    explicit Turns(const Call& call) : c(call), turns(call.batch * call.heads * call.blocks()), bias_turns(call.heads) {
        for (size_t index = 0; index < turns.size(); index++) turns[index] = c.sinks ? 0 : c.first[index] / c.part();
    }

    std::atomic<Int>& of_block(Int b, Int h, Int block) { return turns[&c.first_of(b, h, block) - c.first]; }
    std::atomic<Int>& of_bias(Int h) { return bias_turns[h]; }

    static void await(const std::atomic<Int>& turn, Int mine) {
        while (turn.load(std::memory_order_acquire) != mine) std::this_thread::yield();
    }

  private:
    const Call& c;
    std::vector<std::atomic<Int>> turns, bias_turns;
};

class Part {
  public:
    static Int numbers(const Call& c) {
        return 4 * (c.part() + 4) * c.size + 5 * ROWS * c.size + 2 * (AT_ONCE + 4) * ROWS + 3 * ROWS + c.keys + 2 * PAD;
    }

    Part(const Call& call, Int item, float* memory, Turns& all)
        : c(call), D(call.size), g(item % call.groups), b(item / call.groups % call.batch),
          part(item / call.groups / call.batch), start(part * call.part()),
          stop(std::min(start + call.part(), call.keys)), turns(all) {
        Scratch scratch{memory};
        for (float** each : {&key, &value, &grad_key, &grad_value}) *each = scratch.take((c.part() + 4) * D);
        for (float** each : {&query, &grad, &query_t, &grad_t, &grad_query}) *each = scratch.take(D * ROWS);
        for (float** each : {&probs, &grad_scores}) *each = scratch.take((AT_ONCE + 4) * ROWS);
        for (float** each : {&most, &share, &expected}) *each = scratch.take(ROWS);
        grad_bias = scratch.take(c.keys + 2 * PAD) + PAD;
        copy(stop - start, D, {c.key.at(b, g, start), c.key.row}, key);
        copy(stop - start, D, {c.value.at(b, g, start), c.value.row}, value);
        std::fill(grad_key, query, 0.f);
    }

    void run() {
        for (Int h = g * c.group_size(); h < (g + 1) * c.group_size(); h++) {
            if (c.grad_bias) std::fill(grad_bias, grad_bias + c.keys, 0.f);
            for (Int block = std::max<Int>(0, start - c.position(0)) / ROWS; block < c.blocks(); block++)
                if (c.first_of(b, h, block) < stop || start < c.sinks) visit(h, block);
            if (!c.grad_bias) continue;
            Turns::await(turns.of_bias(h), part * c.batch + b);
            for (Int d = 0; d < c.keys; d++) c.grad_bias[h * c.keys + d] += grad_bias[d];
            turns.of_bias(h)++;
        }
        for (Int j = 0; j < stop - start; j++)
            for (Int d = 0; d < D; d++) {
                c.grad_key.at(b, g, start + j)[d] = c.scale * grad_key[j * D + d];
                c.grad_value.at(b, g, start + j)[d] = grad_value[j * D + d];
            }
    }

  private:
    const Call& c;
    const Int D, g, b, part, start, stop;
    Turns& turns;
    float *key, *value, *grad_key, *grad_value;               // [keys, D]
    float *query, *grad, *query_t, *grad_t, *grad_query;      // [ROWS, D] twice, then [D, ROWS]
    float *probs, *grad_scores;                               // [AT_ONCE, ROWS]
    float *most, *share, *expected, *grad_bias;               // [ROWS], and by distance

    void visit(Int h, Int block) {
        const Int first = c.first_of(b, h, block), rows = c.rows(block), position = c.position(block);
        const Int end = std::min(stop, position + rows);
        gather(h, block, rows);
        for (Int j = start, n; j < end; j += n) {
            const bool in_sinks = j < c.sinks && c.sinks < first;
            n = std::min(AT_ONCE, (in_sinks ? std::min(c.sinks, end) : end) - j);
            if (c.sinks <= j && j < first) n = first - j;
            else take(h, position, rows, j, n);
        }
        Turns::await(turns.of_block(b, h, block), part);
        View to = c.grad_query;
        transpose(D, rows, {grad_query, ROWS}, c.scale, {to.at(b, h, block * ROWS), to.row}, true);
        const Int next = part == 0 && first >= stop ? first / c.part() : part + 1;
        turns.of_block(b, h, block).store(next, std::memory_order_release);
    }

    // Reads a block of queries, and what each row of dS has subtracted: the sum over its probabilities times dP.
    void gather(Int h, Int block, Int rows) {
        const Int row = block * ROWS;
        std::fill(query_t, probs, 0.f);
        copy(rows, D, {c.query.at(b, h, row), c.query.row}, query);
        copy(rows, D, {c.grad_output.at(b, h, row), c.grad_output.row}, grad);
        transpose(rows, D, {query, D}, c.scale * LOG2_E, {query_t, ROWS});
        transpose(rows, D, {grad, D}, 1, {grad_t, ROWS});
        for (Int i = 0; i < ROWS; i++) {
            const float* output = c.output.at(b, h, row + i);
            Lanes sum = {};
            for (Int d = 0; d < D && i < rows; d += WIDTH) sum -= load(grad + i * D + d) * load(output + d);
            expected[i] = sum_of(sum);
            most[i] = i < rows ? c.of_block(c.most, b, h, block)[i] : -LOWEST;
            share[i] = i < rows ? 1 / c.of_block(c.total, b, h, block)[i] : 0;
        }
    }

    // Adds what `rows` queries and n keys from j on make of each other's gradients.
    void take(Int h, Int position, Int rows, Int j, Int n) {
        const Int at = (j - start) * D;
        const Right bias = {c.by_distance(c.bias, h, position - j), -1};
        multiply(n, ROWS, D, {key + at, D, 1}, {query_t, ROWS}, bias, {probs, ROWS});
        multiply(n, ROWS, D, {value + at, D, 1}, {grad_t, ROWS}, {expected, 0}, {grad_scores, ROWS});
        for (Int t = 0; t < n; t++)
            for (Int i = 0; i < ROWS; i += WIDTH) {
                const Lanes weight = exp2(load(probs + t * ROWS + i) - load(most + i)) * load(share + i);
                const Lanes change = weight * load(grad_scores + t * ROWS + i);
                store(probs + t * ROWS + i, weight);
                store(grad_scores + t * ROWS + i, change);
                float* sum = grad_bias + position - j - t + i;
                if (c.grad_bias) store(sum, load(sum) + change);
            }
        // products round n up: the keys behind gain nothing
        for (float* each : {probs, grad_scores}) std::fill(each + n * ROWS, each + (n + 3) * ROWS, 0.f);
        multiply_add(n, D, rows, {probs, ROWS, 1}, {grad, D}, {grad_value + at, D});
        multiply_add(n, D, rows, {grad_scores, ROWS, 1}, {query, D}, {grad_key + at, D});
        multiply_add(D, ROWS, n, {key + at, 1, D}, {grad_scores, ROWS}, {grad_query, ROWS});
    }
};
