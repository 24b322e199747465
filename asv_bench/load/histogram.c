#include "load.h"

static int bucket_of(uint64_t ns)
{
    int power;
    if (ns < 1 << STEP_BITS)
        return (int)ns;
    power = 63 - __builtin_clzll(ns) - STEP_BITS;
    return ((power + 1) << STEP_BITS) + (int)((ns >> power) - (1 << STEP_BITS));
}

/* The middle of what falls into a bucket. */
static double middle_of(int bucket)
{
    int power = (bucket >> STEP_BITS) - 1;
    if (power < 0)
        return bucket;
    return (double)(((uint64_t)(bucket & ((1 << STEP_BITS) - 1)) + (1 << STEP_BITS)) << power) +
           (double)(1ull << power) / 2;
}

void histogram_add(Histogram *histogram, int64_t ns)
{
    if (ns < 0)
        ns = 0;
    histogram->counts[bucket_of((uint64_t)ns)]++;
    histogram->total++;
    if (ns > histogram->most_ns)
        histogram->most_ns = ns;
}

double histogram_us(const Histogram *histogram, double quantile)
{
    uint64_t below = 0;
    double ns;
    int bucket;
    for (bucket = 0; bucket < BUCKETS; bucket++) {
        below += histogram->counts[bucket];
        if (below > 0 && (double)below >= quantile * (double)histogram->total) {
            ns = middle_of(bucket);
            return (ns < (double)histogram->most_ns ? ns : (double)histogram->most_ns) / 1e3;
        }
    }
    return 0;
}
