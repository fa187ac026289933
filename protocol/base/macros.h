/* macros.h - the few macros used everywhere */
#pragma once
#include <stddef.h>
#include <sys/param.h>    // has its own MIN and MAX; libraries bring it (FLINT does), and it is read only once
#define MUST_USE __attribute__((warn_unused_result))
#define UNUSED __attribute__((unused))
#define PRINTF_LIKE(fmt, args) __attribute__((format(printf, fmt, args)))
#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
/* MIN and MAX: the smaller and the larger of two numbers, in the type that C gives them together. They call functions, so each
 * argument is evaluated once, whatever it does. For the same reason they are not constant expressions. */
#undef MIN
#undef MAX
#ifdef __cplusplus
extern "C++" {    // wherever it is included from
template <class A, class B> static inline auto number_min(A a, B b) -> decltype(a + b)
{
    return a < b ? a : b;
}
template <class A, class B> static inline auto number_max(A a, B b) -> decltype(a + b)
{
    return a > b ? a : b;
}
}
#define MIN(a, b) number_min(a, b)
#define MAX(a, b) number_max(a, b)
#else
#define NUMBER_KINDS(X)                                                                                                                    \
    X(int, int)                                                                                                                            \
    X(unsigned, unsigned)                                                                                                                  \
    X(long, long)                                                                                                                          \
    X(ulong, unsigned long)                                                                                                                \
    X(llong, long long)                                                                                                                    \
    X(ullong, unsigned long long)                                                                                                          \
    X(float, float)                                                                                                                        \
    X(double, double)
#define NUMBER_FUNCTIONS(kind, type)                                                                                                       \
    static inline type number_min_##kind(type a, type b)                                                                                   \
    {                                                                                                                                      \
        return a < b ? a : b;                                                                                                              \
    }                                                                                                                                      \
    static inline type number_max_##kind(type a, type b)                                                                                   \
    {                                                                                                                                      \
        return a > b ? a : b;                                                                                                              \
    }
NUMBER_KINDS(NUMBER_FUNCTIONS)
#define NUMBER_OF(which, either)                                                                                                           \
    _Generic((either), int                                                                                                                 \
             : number_##which##_int, unsigned                                                                                              \
             : number_##which##_unsigned, long                                                                                             \
             : number_##which##_long, unsigned long                                                                                        \
             : number_##which##_ulong, long long                                                                                           \
             : number_##which##_llong, unsigned long long                                                                                  \
             : number_##which##_ullong, float                                                                                              \
             : number_##which##_float, double                                                                                              \
             : number_##which##_double)
#define MIN(a, b) NUMBER_OF(min, 1 ? (a) : (b))((a), (b))
#define MAX(a, b) NUMBER_OF(max, 1 ? (a) : (b))((a), (b))
#endif
/* The only macro that hides a jump: leave through the function's one cleanup label. */
#define TRY(call)                                                                                                                          \
    do {                                                                                                                                   \
        if (!(call))                                                                                                                       \
            goto out;                                                                                                                      \
    } while (0)
