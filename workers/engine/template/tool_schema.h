/* tool_schema.h - does a value fit the schema of a tool's arguments?
 *
 * The part of JSON Schema (draft 2020-12) that tools are described with: the keywords of the table in tool_schema.c. A schema with another
 * keyword that asks for something (pattern, format, ...) is refused, so that what is said to fit does fit. Any thread. */
#pragma once
#include <stdbool.h>
#include <jansson.h>
#include "protocol/base/error.h"

/* Is each keyword of this schema known, and each $ref there? ERR_DATA: err names the keyword. */
MUST_USE bool tool_schema_check(const json_t *schema, struct error *err);
/* schema has passed tool_schema_check. False, too: it takes more than TOOL_SCHEMA_STEPS to tell. */
bool tool_schema_fits(const json_t *schema, const json_t *value);
#define TOOL_SCHEMA_STEPS 100000    // schemas that are tried for one value; $ref and anyOf can make exponentially many
