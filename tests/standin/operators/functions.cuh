/* SPDX-License-Identifier: Apache-2.0 */
/*
 * functions.cuh - what an expression of table.py calls beyond C's library
 */
#ifndef OPERATORS_FUNCTIONS_CUH
#define OPERATORS_FUNCTIONS_CUH

#include <type_traits>

/* The remainder has the sign of the divisor, as in Python. */
template <class T> __device__ T remainder_of(T a, T b)
{
    if constexpr (std::is_integral<T>::value) {
        T rest = a % b;
        return rest && (rest < 0) != (b < 0) ? rest + b : rest;
    } else {
        T rest = fmod(a, b);
        return rest != T(0) && (rest < T(0)) != (b < T(0)) ? rest + b : rest;
    }
}

template <class T> __device__ T floor_divide(T a, T b)
{
    if constexpr (std::is_integral<T>::value) {
        T whole = a / b;
        return a % b && (a < 0) != (b < 0) ? whole - 1 : whole;
    } else {
        if (b == T(0))
            return a / b;
        T exact = (a - remainder_of(a, b)) / b;
        if (exact == T(0))
            return copysign(T(0), a / b);
        T whole = floor(exact);
        return exact - whole > T(0.5) ? whole + T(1) : whole;
    }
}

#endif
