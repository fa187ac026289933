/* preset.h - the table of algorithms, and of the defaults of other systems
 *
 * What 'algo' and 'preset' set unless somebody else did. Read-only data: any thread. */
#pragma once
#include "protocol/settings/run_config.h"

/* Give every setting that is still a default or a preset's the value of c's algo and preset; a row of the preset wins over one of the
 * algorithm. A second call changes nothing. */
MUST_USE bool preset_apply(struct run_config *c, struct error *err);
