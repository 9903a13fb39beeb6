// Causal attention with a bias by distance on a CPU, both passes, in fp32 and in memory linear in the length.
//
// Scores are held transposed, keys by queries: so softmax runs along the lanes of vectors and reduces across none, a
// key's biases are consecutive entries of the vector by distance, and no operand but the queries has to be transposed.
// Every sum has one order, whatever the number of threads.

#include "backward.h"
#include "call.h"
#include "forward.h"
#include "share.h"

extern "C" {

Int toeplitz_rows() { return ROWS; }

Int toeplitz_pad() { return PAD; }

Int toeplitz_call_size() { return sizeof(Call); }

// Blocks of queries head by head, those with the most keys first.
void toeplitz_forward(const Call* call) {
    share(call->batch * call->heads * call->blocks(), call->threads, Block::numbers(*call),
          [call](Int item, float* scratch) { Block(*call, item, scratch).walk(); });
}

// Parts of the keys, those with the most queries first.
void toeplitz_backward(const Call* call) {
    Turns turns(*call);
    share(call->parts() * call->batch * call->groups, call->threads, Part::numbers(*call),
          [&](Int item, float* scratch) { Part(*call, item, scratch, turns).run(); });
}

}  // extern "C"
