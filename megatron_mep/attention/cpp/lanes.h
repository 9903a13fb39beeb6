// Vectors of eight numbers, and products of small matrices.

#pragma once

#include <cstring>

#include "call.h"

typedef float Lanes __attribute__((vector_size(32)));
typedef int32_t Bits __attribute__((vector_size(32)));

constexpr Int WIDTH = 8;
constexpr Int SUMMED = 128;  // products that are summed one after the other
constexpr double LOG2_E = 1.4426950408889634;

inline Lanes load(const float* at) {
    Lanes lanes;
    memcpy(&lanes, at, sizeof lanes);
    return lanes;
}

inline void store(float* at, Lanes lanes) { memcpy(at, &lanes, sizeof lanes); }

inline Lanes max(Lanes a, Lanes b) { return a > b ? a : b; }

inline float sum_of(Lanes a) { return ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7])); }

// 2^x for x below 128, within 2e-7 of it; 0 below -126.5, where it would leave the normal numbers.
inline Lanes exp2(Lanes x) {
    const float shift = 12582912.f + 127;  // 1.5 * 2^23: adding it rounds to an integer, held in the last bits
    x = x < -127.f ? Lanes{} - 127 : x;
    Lanes shifted = x + shift, r = x - (shifted - shift), power = (Lanes)((Bits)shifted << 23);
    // minimax in relative error: 2e-9
    Lanes sum = r * 1.53458124e-4f + 1.33999309e-3f;
    for (float term : {9.61848907e-3f, 5.55032864e-2f, 2.40226462e-1f, 6.93147182e-1f, 1.f}) sum = sum * r + term;
    return sum * power;
}

struct Left {  // a matrix of any strides
    const float* data;
    Int row, column;
};

struct Right {  // one whose rows are dense
    const float* data;
    Int row;
};

struct Out {
    float* data;
    Int row;

    operator Right() const { return {data, row}; }
};

// Four rows of N vectors: out = init + a [4, k] b [k, 8 N]. Sums stay in registers; what may be large is added last.
template <int N>
void tile(Int k, Left a, Right b, Right init, Out out) {
    Lanes sum[4][N] = {};
    for (; k > 0; k--, a.data += a.column, b.data += b.row) {
        Lanes right[N];
        for (int j = 0; j < N; j++) {
            right[j] = load(b.data + j * WIDTH);
#ifdef __AVX__
            asm("" : "+x"(right[j]));  // holds it in its register: GCC would read it again for each row
#endif
        }
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < N; j++) sum[i][j] += a.data[i * a.row] * right[j];
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < N; j++) {
            const Lanes before = load(init.data + i * init.row + j * WIDTH);
            store(out.data + i * out.row + j * WIDTH, before + sum[i][j]);
        }
}

// out = init + a [m, k] b [k, n]; m is rounded up to a multiple of 4, n is one of 8. Long sums are made of short ones.
inline void multiply(Int m, Int n, Int k, Left a, Right b, Right init, Out out) {
    for (Int t = 0; t < k; t += SUMMED, init = out)
        for (Int j = 0, width; j < n; j += width) {
            width = std::min(n - j, 3 * WIDTH);
            auto columns = width == 3 * WIDTH ? tile<3> : width == 2 * WIDTH ? tile<2> : tile<1>;
            for (Int i = 0; i < m; i += 4)
                columns(std::min(SUMMED, k - t), {a.data + i * a.row + t * a.column, a.row, a.column},
                        {b.data + t * b.row + j, b.row}, {init.data + i * init.row + j, init.row},
                        {out.data + i * out.row + j, out.row});
        }
}

inline void multiply_add(Int m, Int n, Int k, Left a, Right b, Out out) { multiply(m, n, k, a, b, out, out); }

inline void copy(Int rows, Int size, Right from, float* to) {
    for (Int i = 0; i < rows; i++) memcpy(to + i * size, from.data + i * from.row, size * sizeof(float));
}

// Entries of a, or 8 further those of b: compilers make one instruction of it.
template <int... Entry>
Lanes pick(Lanes a, Lanes b) {
    return Lanes{(Entry < WIDTH ? a : b)[Entry % WIDTH]...};
}

// Columns of `rows[8]` become rows.
inline void turn(Lanes rows[WIDTH]) {
    Lanes other[WIDTH];
    for (Int l = 0; l < 8; l += 2) {
        other[l] = pick<0, 8, 2, 10, 4, 12, 6, 14>(rows[l], rows[l + 1]);
        other[l + 1] = pick<1, 9, 3, 11, 5, 13, 7, 15>(rows[l], rows[l + 1]);
    }
    for (Int l : {0, 1, 4, 5}) {
        rows[l] = pick<0, 1, 8, 9, 4, 5, 12, 13>(other[l], other[l + 2]);
        rows[l + 2] = pick<2, 3, 10, 11, 6, 7, 14, 15>(other[l], other[l + 2]);
    }
    for (Int l = 0; l < 4; l++) {
        other[l] = pick<0, 1, 2, 3, 8, 9, 10, 11>(rows[l], rows[l + 4]);
        other[l + 4] = pick<4, 5, 6, 7, 12, 13, 14, 15>(rows[l], rows[l + 4]);
    }
    for (Int l = 0; l < WIDTH; l++) rows[l] = other[l];
}

// to [n, m] = factor * from [m, n] transposed, or gains that; m is rounded up to a multiple of 8 with zeros.
inline void transpose(Int m, Int n, Right from, float factor, Out to, bool gains = false) {
    for (Int i = 0; i < m; i += WIDTH)
        for (Int j = 0; j < n; j += WIDTH) {
            Lanes rows[WIDTH];
            for (Int l = 0; l < WIDTH; l++)
                rows[l] = i + l < m ? factor * load(from.data + (i + l) * from.row + j) : Lanes{};
            turn(rows);
            for (Int l = 0; l < WIDTH && j + l < n; l++) {
                float* at = to.data + (j + l) * to.row + i;
                store(at, gains ? load(at) + rows[l] : rows[l]);
            }
        }
}
