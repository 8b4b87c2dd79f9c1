/* Counts the bytes that a process asks its allocator for, in all threads, whether it frees them or not. Loaded before other
 * libraries (LD_PRELOAD); glibc has its own functions by these names, too. */
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *old, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static atomic_ulong bytes;

unsigned long counted_bytes(void) { return bytes; }

void *malloc(size_t size) {
    bytes += size;
    return __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
    bytes += count * size;
    return __libc_calloc(count, size);
}

void *realloc(void *old, size_t size) {
    bytes += size;
    return __libc_realloc(old, size);
}

void *memalign(size_t alignment, size_t size) {
    bytes += size;
    return __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void **made, size_t alignment, size_t size) {
    void *memory = memalign(alignment, size);
    if (memory == NULL) {
        return ENOMEM;
    }
    *made = memory;
    return 0;
}
