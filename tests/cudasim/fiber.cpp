#include "tests/cudasim/fiber.h"

#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>

#if !defined(__x86_64__)
#error "cudasim changes stacks in x86-64 assembly; build with WEIR_CUDA=OFF elsewhere"
#endif

#ifdef CUDASIM_TSAN
extern "C" {
void *__tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void *fiber);
void __tsan_set_fiber_name(void *fiber, const char *name);
void *__tsan_get_current_fiber(void);
void __tsan_switch_to_fiber(void *fiber, unsigned flags);
void __tsan_acquire(void *address);
void __tsan_release(void *address);
void __tsan_read_range(void *address, unsigned long bytes);
void __tsan_write_range(void *address, unsigned long bytes);
}
#endif
#ifdef CUDASIM_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

/* void cudasim_switch(void **save, void *load): the callee-saved registers and the stack pointer.
 */
extern "C" void cudasim_switch(void **save, void *load);
asm(R"(
.text
.globl cudasim_switch
.type cudasim_switch, @function
cudasim_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
.size cudasim_switch, . - cudasim_switch
.type cudasim_fiber_start, @function
cudasim_fiber_start:
    mov %r12, %rdi
    call *%r13
    ud2
.size cudasim_fiber_start, . - cudasim_fiber_start
)");
extern "C" void cudasim_fiber_start(void);

namespace cudasim
{

namespace
{
constexpr size_t stack_bytes = 256 << 10, guard_bytes = 4096;
#ifdef CUDASIM_TSAN
constexpr unsigned no_order = 1; /* __tsan_switch_to_fiber_no_sync */
#endif
#ifdef CUDASIM_ASAN
/* An instrumented access, where there is something to report. */
void touch_poisoned(const void *bytes, size_t count)
{
    void *bad = __asan_region_is_poisoned(const_cast<void *>(bytes), count);
    if (bad)
        (void)*static_cast<volatile unsigned char *>(bad);
}
#endif
} // namespace

void fiber_first(Fiber *fiber)
{
    Fiber::first(fiber);
}

void Fiber::first(Fiber *self)
{
#ifdef CUDASIM_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &self->asan_stack_, &self->asan_bytes_);
#endif
    self->entry_(self->argument_);
    abort();
}

Fiber::Fiber(void (*entry)(void *), void *argument, [[maybe_unused]] const char *name)
    : entry_(entry), argument_(argument)
{
    void *stack = mmap(nullptr, guard_bytes + stack_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED || mprotect(stack, guard_bytes, PROT_NONE) != 0) {
        perror("cudasim: no stack for a fiber");
        abort();
    }
    stack_ = static_cast<unsigned char *>(stack);
    /* What cudasim_switch pops: r15 r14 r13 r12 rbx rbp, then the address it returns to; that
     * leaves the stack pointer at a multiple of 16, as a call wants it. */
    void **top = reinterpret_cast<void **>(stack_ + guard_bytes + stack_bytes) - 9;
    top[2] = reinterpret_cast<void *>(&fiber_first); /* r13 */
    top[3] = this;                                   /* r12 */
    top[6] = reinterpret_cast<void *>(&cudasim_fiber_start);
    inside_ = top;
#ifdef CUDASIM_TSAN
    tsan_ = __tsan_create_fiber(0);
    __tsan_set_fiber_name(tsan_, name);
#endif
}

Fiber::~Fiber()
{
#ifdef CUDASIM_TSAN
    __tsan_destroy_fiber(tsan_);
#endif
    munmap(stack_, guard_bytes + stack_bytes);
}

void Fiber::enter()
{
#ifdef CUDASIM_TSAN
    tsan_outside_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(tsan_, no_order);
#endif
#ifdef CUDASIM_ASAN
    void *fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, stack_ + guard_bytes, stack_bytes);
#endif
    cudasim_switch(&outside_, inside_);
#ifdef CUDASIM_ASAN
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

void Fiber::leave()
{
#ifdef CUDASIM_TSAN
    __tsan_switch_to_fiber(tsan_outside_, no_order);
#endif
#ifdef CUDASIM_ASAN
    __sanitizer_start_switch_fiber(&asan_inside_, asan_stack_, asan_bytes_);
#endif
    cudasim_switch(&inside_, outside_);
#ifdef CUDASIM_ASAN
    __sanitizer_finish_switch_fiber(asan_inside_, &asan_stack_, &asan_bytes_);
#endif
}

void happens_before([[maybe_unused]] void *address)
{
#ifdef CUDASIM_TSAN
    __tsan_release(address);
#endif
}

void happens_after([[maybe_unused]] void *address)
{
#ifdef CUDASIM_TSAN
    __tsan_acquire(address);
#endif
}

void reads([[maybe_unused]] const void *bytes, [[maybe_unused]] size_t count)
{
#ifdef CUDASIM_TSAN
    __tsan_read_range(const_cast<void *>(bytes), count);
#endif
#ifdef CUDASIM_ASAN
    touch_poisoned(bytes, count);
#endif
}

void writes([[maybe_unused]] void *bytes, [[maybe_unused]] size_t count)
{
#ifdef CUDASIM_TSAN
    __tsan_write_range(bytes, count);
#endif
#ifdef CUDASIM_ASAN
    touch_poisoned(bytes, count);
#endif
}

void copy_unseen(void *to, const void *from, size_t bytes)
{
    asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes)::"memory");
}

void fill_unseen(void *to, unsigned char value, size_t bytes)
{
    asm volatile("rep stosb" : "+D"(to), "+c"(bytes) : "a"(value) : "memory");
}

} // namespace cudasim
