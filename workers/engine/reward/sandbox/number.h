/* number.h - numbers in a program's answer, compared as judges compare them
 *
 * A whole number is exact. A tolerance is given only where the expected number is written with a decimal point or an
 * exponent. Any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* numpy.allclose with its defaults: 1e-8 + 1e-5 of the expected value. Infinities equal themselves, NaN nothing. */
bool number_is_close(double got, double expected);
/* Is the text a number as Python's float() reads it, without white space and underscores? */
bool number_is(const char *text, size_t len);
/* Two numbers (number_is). Both written as whole numbers: the texts are equal, since digits may be names. Expected as a whole
 * number: the value is exactly that (1.0 is 1). Otherwise close. A number too large for a double equals only its own text. */
bool number_equal(const char *got, size_t got_len, const char *expected, size_t expected_len);
