/* Memory that ends where it says: for LD_PRELOAD in front of the C library's malloc.
 *
 * What is SMALLEST bytes or more lies at the end of its pages, and the page after it may not be
 * touched; nor may the pages of what was freed, which are never used again. A kernel that reads or
 * writes a vector too many gets a signal at that instruction. Sizes are rounded up to 16 bytes.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

#define PAGE ((size_t)4096)
#define RESERVED ((size_t)1 << 43) /* addresses, not memory */
#define SMALLEST ((size_t)1024)
#define MOST 12000 /* pieces at a time: each takes two of the kernel's mappings */

static char *start, *end;
static char *next;
static long live, guarded;

__attribute__((constructor)) static void reserve(void)
{
    void *all = mmap(NULL, RESERVED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED)
        abort();
    next = all;
    start = all;
    end = start + RESERVED;
}

static int ours(const void *p) { return (char *)p >= start && (char *)p < end; }

static size_t *size_of(void *p) { return (size_t *)(((uintptr_t)p & ~(PAGE - 1)) - PAGE); }

/* A page for the size, the pages of the piece at whose end it lies, a page that nobody may touch. */
static void *guard(size_t size, size_t alignment)
{
    if (!start || size > RESERVED / 2 || size < SMALLEST || live >= MOST)
        return NULL;
    size_t rounded = (size + alignment - 1) / alignment * alignment;
    size_t pages = (rounded + PAGE - 1) / PAGE;
    char *here = __atomic_fetch_add(&next, (pages + 2) * PAGE, __ATOMIC_RELAXED);
    if (here + (pages + 2) * PAGE > end)
        return NULL;
    if (mprotect(here, (pages + 1) * PAGE, PROT_READ | PROT_WRITE))
        return NULL;
    __atomic_fetch_add(&live, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&guarded, 1, __ATOMIC_RELAXED);
    char *p = here + (pages + 1) * PAGE - rounded;
    *size_of(p) = size;
    return p;
}

static void drop(void *p)
{
    size_t size = *size_of(p);
    char *first = (char *)size_of(p);
    size_t pages = (size + PAGE - 1) / PAGE + 1;
    __atomic_fetch_sub(&live, 1, __ATOMIC_RELAXED);
    mmap(first, pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

void *malloc(size_t size)
{
    void *p = guard(size, 16);
    return p ? p : __libc_malloc(size);
}

void *calloc(size_t count, size_t each)
{
    size_t size;
    if (__builtin_mul_overflow(count, each, &size)) {
        errno = ENOMEM;
        return NULL;
    }
    void *p = guard(size, 16); /* pages of zeros */
    return p ? p : __libc_calloc(count, each);
}

void free(void *p)
{
    if (ours(p))
        drop(p);
    else
        __libc_free(p);
}

void *realloc(void *old, size_t size)
{
    if (!ours(old))
        return __libc_realloc(old, size);
    void *p = malloc(size);
    if (p) {
        size_t before = *size_of(old);
        memcpy(p, old, before < size ? before : size);
        drop(old);
    }
    return p;
}

int posix_memalign(void **p, size_t alignment, size_t size)
{
    *p = __libc_memalign(alignment, size);
    return *p ? 0 : ENOMEM;
}

long guarded_pieces(void) { return guarded; }
