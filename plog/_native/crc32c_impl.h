/* CRC-32C: three implementations behind one signature, chosen once at import.
 *
 * Every function takes the checksum so far (0 for none) and returns the checksum
 * with `size` bytes more. Internally the state is the complement of the checksum,
 * bits reflected, as the instructions of both processors have it.
 *
 * The instructions have a latency of three cycles and start one per cycle, so
 * three neighbouring blocks are summed side by side. Appending n zero bytes to a
 * state is a linear map; its table (one row per byte of the state) carries the
 * sum of a block over the block behind it, where the two are added.
 */
#ifndef PLOG_CRC32C_IMPL_H
#define PLOG_CRC32C_IMPL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define PLOG_CRC_SSE42 1
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#define PLOG_CRC_ARMV8 1
#endif

#define PLOG_CRC_POLYNOMIAL 0x82F63B78u /* 0x1EDC6F41 with its bits reflected */

/* Powers of two: the skip tables are built by squaring. */
enum { PLOG_CRC_LONG = 4096, PLOG_CRC_SHORT = 256 };

typedef uint32_t (*plog_crc_function)(uint32_t crc, const uint8_t *data, size_t size);

/* Row k maps a byte to its checksum with k zero bytes behind it. */
static uint32_t plog_crc_table[8][256];
/* Row k maps byte k of a state to the state after a block of zeros. */
static uint32_t plog_crc_skip_long[4][256];
static uint32_t plog_crc_skip_short[4][256];

static inline uint32_t plog_crc_le32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t plog_crc_le64(const uint8_t *p)
{
    return plog_crc_le32(p) | (uint64_t)plog_crc_le32(p + 4) << 32;
}

static inline uint32_t plog_crc_skip(uint32_t skip[4][256], uint32_t state)
{
    return skip[0][state & 0xFF] ^ skip[1][state >> 8 & 0xFF] ^ skip[2][state >> 16 & 0xFF] ^
           skip[3][state >> 24];
}

/* A linear map on states, given by what it makes of each single bit. */
static uint32_t plog_crc_apply(const uint32_t map[32], uint32_t state)
{
    uint32_t image = 0;
    int bit;
    for (bit = 0; bit < 32; bit++)
        if (state >> bit & 1)
            image ^= map[bit];
    return image;
}

static void plog_crc_build_skip(uint32_t skip[4][256], size_t zeros)
{
    uint32_t map[32], twice[32];
    uint32_t byte;
    int i;
    for (i = 0; i < 32; i++) {
        uint32_t state = (uint32_t)1 << i;
        map[i] = state >> 8 ^ plog_crc_table[0][state & 0xFF];
    }
    for (; zeros > 1; zeros /= 2) {
        for (i = 0; i < 32; i++)
            twice[i] = plog_crc_apply(map, map[i]);
        memcpy(map, twice, sizeof map);
    }
    for (i = 0; i < 4; i++)
        for (byte = 0; byte < 256; byte++)
            skip[i][byte] = plog_crc_apply(map, byte << 8 * i);
}

static void plog_crc_build_tables(void)
{
    uint32_t byte;
    int row, bit;
    for (byte = 0; byte < 256; byte++) {
        uint32_t state = byte;
        for (bit = 0; bit < 8; bit++)
            state = state >> 1 ^ (PLOG_CRC_POLYNOMIAL & (0 - (state & 1)));
        plog_crc_table[0][byte] = state;
    }
    for (byte = 0; byte < 256; byte++)
        for (row = 1; row < 8; row++) {
            uint32_t state = plog_crc_table[row - 1][byte];
            plog_crc_table[row][byte] = state >> 8 ^ plog_crc_table[0][state & 0xFF];
        }
    plog_crc_build_skip(plog_crc_skip_long, PLOG_CRC_LONG);
    plog_crc_build_skip(plog_crc_skip_short, PLOG_CRC_SHORT);
}

/* Eight bytes per step, from tables alone. */
static uint32_t plog_crc_by_table(uint32_t crc, const uint8_t *data, size_t size)
{
    uint32_t state = ~crc;
    for (; size >= 8; data += 8, size -= 8) {
        uint32_t low = plog_crc_le32(data) ^ state;
        uint32_t high = plog_crc_le32(data + 4);
        state = plog_crc_table[7][low & 0xFF] ^ plog_crc_table[6][low >> 8 & 0xFF] ^
                plog_crc_table[5][low >> 16 & 0xFF] ^ plog_crc_table[4][low >> 24] ^
                plog_crc_table[3][high & 0xFF] ^ plog_crc_table[2][high >> 8 & 0xFF] ^
                plog_crc_table[1][high >> 16 & 0xFF] ^ plog_crc_table[0][high >> 24];
    }
    for (; size > 0; data++, size--)
        state = state >> 8 ^ plog_crc_table[0][(state ^ *data) & 0xFF];
    return ~state;
}

/* While three blocks are left: sum them side by side, then join the sums. */
#define PLOG_CRC_BLOCKS(BLOCK, SKIP, STEP8)                                       \
    while (size >= 3 * (size_t)(BLOCK)) {                                         \
        uint32_t second = 0, third = 0;                                           \
        size_t at;                                                                \
        for (at = 0; at < (BLOCK); at += 8) {                                     \
            state = STEP8(state, plog_crc_le64(data + at));                       \
            second = STEP8(second, plog_crc_le64(data + (BLOCK) + at));           \
            third = STEP8(third, plog_crc_le64(data + 2 * (BLOCK) + at));         \
        }                                                                         \
        state = plog_crc_skip(SKIP, plog_crc_skip(SKIP, state) ^ second) ^ third; \
        data += 3 * (BLOCK);                                                      \
        size -= 3 * (size_t)(BLOCK);                                              \
    }

#define PLOG_CRC_BODY(STEP8, STEP1)                           \
    uint32_t state = ~crc;                                    \
    PLOG_CRC_BLOCKS(PLOG_CRC_LONG, plog_crc_skip_long, STEP8)   \
    PLOG_CRC_BLOCKS(PLOG_CRC_SHORT, plog_crc_skip_short, STEP8) \
    for (; size >= 8; data += 8, size -= 8)                   \
        state = STEP8(state, plog_crc_le64(data));            \
    for (; size > 0; data++, size--)                          \
        state = STEP1(state, *data);                          \
    return ~state;

#ifdef PLOG_CRC_SSE42
#define PLOG_CRC_STEP8(state, word) ((uint32_t)_mm_crc32_u64(state, word))
#define PLOG_CRC_STEP1(state, byte) _mm_crc32_u8(state, byte)

__attribute__((target("sse4.2"))) static uint32_t plog_crc_by_instruction(
    uint32_t crc, const uint8_t *data, size_t size)
{
    PLOG_CRC_BODY(PLOG_CRC_STEP8, PLOG_CRC_STEP1)
}

static const char *plog_crc_instruction_name(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.2") ? "sse4.2" : NULL;
}

#elif defined(PLOG_CRC_ARMV8)
/* In assembler, so that the build needs no processor flags of its own. */
static inline uint32_t plog_crc_step8(uint32_t state, uint64_t word)
{
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(state) : "r"(word));
    return state;
}

static inline uint32_t plog_crc_step1(uint32_t state, uint32_t byte)
{
    __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(state) : "r"(byte));
    return state;
}

static uint32_t plog_crc_by_instruction(uint32_t crc, const uint8_t *data, size_t size)
{
    PLOG_CRC_BODY(plog_crc_step8, plog_crc_step1)
}

static const char *plog_crc_instruction_name(void)
{
    return getauxval(AT_HWCAP) & (1 << 7 /* HWCAP_CRC32 */) ? "armv8" : NULL;
}

#else
static uint32_t plog_crc_by_instruction(uint32_t crc, const uint8_t *data, size_t size)
{
    return plog_crc_by_table(crc, data, size);
}

static const char *plog_crc_instruction_name(void)
{
    return NULL;
}
#endif

#endif
