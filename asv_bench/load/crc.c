/* plog's own CRC-32C: the baselines must not lose by a slower one. */
#include "../../plog/_native/crc32c_impl.h"
#include "load.h"

static plog_crc_function best = plog_crc_by_table;

void crc_init(void)
{
    plog_crc_build_tables();
    if (plog_crc_instruction_name() != NULL)
        best = plog_crc_by_instruction;
}

uint32_t crc32c(const uint8_t *data, size_t size) { return best(0, data, size); }
