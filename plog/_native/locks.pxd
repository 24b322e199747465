# What the kernels that share state between threads are built from: POSIX mutexes and the compiler's atomics.
# Declarations only; there is nothing to link or import.
from libc.stdint cimport int64_t

cdef enum:
    CACHE_LINE_BYTES = 64        # two processors that write to one take it from each other

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t* mutex, const void* attributes)
    int pthread_mutex_destroy(pthread_mutex_t* mutex)
    int pthread_mutex_lock(pthread_mutex_t* mutex)
    int pthread_mutex_trylock(pthread_mutex_t* mutex)
    int pthread_mutex_unlock(pthread_mutex_t* mutex)

cdef extern from * nogil:
    """
    /* Acquire loads and release stores: who sees a number sees all that was written before it. */
    static inline int64_t plog_load(const int64_t* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
    static inline void plog_store(int64_t* at, int64_t value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }
    /* Returns the number after the addition. In one order with plog_load_ordered: of two threads that each add here
       and then look there, one sees what the other has added. */
    static inline int64_t plog_add(int64_t* at, int64_t by) { return __atomic_add_fetch(at, by, __ATOMIC_SEQ_CST); }
    static inline int64_t plog_load_ordered(const int64_t* at) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }
    /* Returns what was there before. */
    static inline int64_t plog_exchange(int64_t* at, int64_t value) {
        return __atomic_exchange_n(at, value, __ATOMIC_ACQ_REL);
    }
    /* Puts `value` where `expected` is and returns 1, or leaves what is there and returns 0. */
    static inline int plog_exchange_if(int64_t* at, int64_t expected, int64_t value) {
        return __atomic_compare_exchange_n(at, &expected, value, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    }
    static inline void* plog_load_pointer(void** at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
    static inline void plog_store_pointer(void** at, void* value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }
    /* Puts `value` where NULL is and returns 1, or leaves what is there and returns 0. */
    static inline int plog_claim_pointer(void** at, void* value) {
        void* expected = 0;
        return __atomic_compare_exchange_n(at, &expected, value, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    }
    """
    int64_t load "plog_load"(const int64_t* at)
    int64_t load_ordered "plog_load_ordered"(const int64_t* at)
    void store "plog_store"(int64_t* at, int64_t value)
    int64_t add "plog_add"(int64_t* at, int64_t by)
    int64_t exchange "plog_exchange"(int64_t* at, int64_t value)
    bint exchange_if "plog_exchange_if"(int64_t* at, int64_t expected, int64_t value)
    void* load_pointer "plog_load_pointer"(void** at)
    void store_pointer "plog_store_pointer"(void** at, void* value)
    bint claim_pointer "plog_claim_pointer"(void** at, void* value)
