"""Where threads wait for work: a mutex, a condition and a chain.

Owns neither the letters nor their meaning. Never takes the interpreter lock,
never allocates.
"""

from plog._native.locks cimport (
    pthread_mutex_destroy, pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock)

cdef extern from "<pthread.h>" nogil:
    int pthread_cond_init(pthread_cond_t* condition, const void* attributes)
    int pthread_cond_destroy(pthread_cond_t* condition)
    int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex)
    int pthread_cond_signal(pthread_cond_t* condition)
    int pthread_cond_broadcast(pthread_cond_t* condition)


cdef void queue_init(LetterQueue* queue) noexcept nogil:
    queue.first = queue.last = NULL
    queue.stopped = False
    pthread_mutex_init(&queue.lock, NULL)
    pthread_cond_init(&queue.filled, NULL)


cdef void queue_destroy(LetterQueue* queue) noexcept nogil:
    pthread_cond_destroy(&queue.filled)
    pthread_mutex_destroy(&queue.lock)


cdef bint queue_put(LetterQueue* queue, Letter* letter) noexcept nogil:
    cdef bint taken
    letter.next = NULL
    pthread_mutex_lock(&queue.lock)
    taken = not queue.stopped
    if taken:
        if queue.first == NULL:
            queue.first = letter
        else:
            queue.last.next = letter
        queue.last = letter
        pthread_cond_signal(&queue.filled)
    pthread_mutex_unlock(&queue.lock)
    return taken


cdef Letter* queue_take(LetterQueue* queue) noexcept nogil:
    cdef Letter* found
    pthread_mutex_lock(&queue.lock)
    while queue.first == NULL and not queue.stopped:
        pthread_cond_wait(&queue.filled, &queue.lock)
    found = queue.first
    if found != NULL:
        queue.first = found.next
    pthread_mutex_unlock(&queue.lock)
    return found


cdef Letter* queue_take_all(LetterQueue* queue) noexcept nogil:
    cdef Letter* found
    pthread_mutex_lock(&queue.lock)
    while queue.first == NULL and not queue.stopped:
        pthread_cond_wait(&queue.filled, &queue.lock)
    found = queue.first
    queue.first = NULL
    pthread_mutex_unlock(&queue.lock)
    return found


cdef void queue_stop(LetterQueue* queue) noexcept nogil:
    pthread_mutex_lock(&queue.lock)
    queue.stopped = True
    pthread_cond_broadcast(&queue.filled)
    pthread_mutex_unlock(&queue.lock)
