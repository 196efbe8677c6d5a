/*
 * Operations of a warp and asynchronous copies. See shim.h.
 */
#include "tests/cudasim/shim_block.h"

#include <algorithm>

namespace cudasim
{

namespace
{

const char *const what_names[] = {"nothing",    "a shuffle",        "a vote",
                                  "__syncwarp", "a matrix product", "a load of matrices"};

/* Deposit, wait until every lane of the mask has, and see all deposits. */
const Deposit *meet(unsigned mask, Collective what, const Deposit &mine)
{
    const char *name = what_names[(int)what];
    unsigned first = block.thread->linear - lane(), bit = 1u << lane();
    unsigned left = block.thread_count - first;
    unsigned lanes_here = left >= lanes ? ~0u : (1u << left) - 1;
    if (!(mask & bit))
        die("%s: lane %u is not in its own mask %08x", name, lane(), mask);
    if (mask & ~lanes_here)
        die("%s: mask %08x names lanes that the block of %u threads does not have", name, mask,
            block.thread_count);
    if (mask & warp().exited)
        die("%s: mask %08x names lanes %08x, which have exited", name, mask, mask & warp().exited);
    Meeting &meeting = warp().meetings[__builtin_ctz(mask)];
    if (meeting.arrived && (meeting.mask != mask || meeting.what != what))
        die("%s with mask %08x while lanes %08x wait in %s with mask %08x", name, mask,
            meeting.arrived, what_names[(int)meeting.what], meeting.mask);
    unsigned side = meeting.turn % 2;
    meeting.what = what;
    meeting.mask = mask;
    meeting.deposits[side][lane()] = mine;
    meeting.arrived |= bit;
    if (what == Collective::barrier)
        happens_before(&meeting.order[side]);
    if (meeting.arrived == mask) {
        meeting.arrived = 0;
        meeting.turn++;
        for (unsigned i = 0; i < lanes; i++)
            if ((mask & ~bit) >> i & 1)
                make_ready(first + i);
    } else {
        wait_as(State::in_warp, name);
    }
    if (what == Collective::barrier)
        happens_after(&meeting.order[side]);
    return meeting.deposits[side].data();
}

float half_of(uint32_t pair, unsigned which)
{
    return std::bit_cast<float>(which ? pair & 0xFFFF0000u : pair << 16);
}

unsigned shuffle_source(Shuffle kind, unsigned by, unsigned width)
{
    unsigned me = lane(), first = me & ~(width - 1), last = first + width - 1;
    switch (kind) {
    case Shuffle::up:
        return me < first + by ? me : me - by;
    case Shuffle::down:
        return me + by > last ? me : me + by;
    case Shuffle::exclusive_or:
        return (me ^ by) > last ? me : me ^ by;
    default:
        return first + (by & (width - 1));
    }
}

} // namespace

uint64_t shuffle(unsigned mask, Shuffle kind, uint64_t value, int by, int width)
{
    if (width < 1 || width > 32 || (width & (width - 1)))
        die("a shuffle of width %d; it is a power of two up to 32", width);
    Deposit mine = {{(uint32_t)value, (uint32_t)(value >> 32)}};
    const Deposit *all = meet(mask, Collective::shuffle, mine);
    unsigned source = shuffle_source(kind, (unsigned)by, (unsigned)width);
    if (source >= lanes || !(mask >> source & 1))
        die("a shuffle reads lane %u, which is outside the mask %08x", source, mask);
    return all[source].words[0] | (uint64_t)all[source].words[1] << 32;
}

unsigned ballot(unsigned mask, bool predicate)
{
    const Deposit *all = meet(mask, Collective::ballot, {{predicate}});
    unsigned votes = 0;
    for (unsigned i = 0; i < lanes; i++)
        if (mask >> i & 1)
            votes |= all[i].words[0] << i;
    return votes;
}

void warp_barrier(unsigned mask)
{
    meet(mask, Collective::barrier, {});
}

/* mma.m16n8k16, fragments as the PTX ISA lays them out: lane 4g + t holds of A rows g and g + 8,
 * columns 2t, 2t + 1 and 8 more; of B rows 2t, 2t + 1 and 8 more of column g; of D columns 2t and
 * 2t + 1 of rows g and g + 8. Products are added in order of k. */
void multiply_tile(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    const Deposit *all = meet(~0u, Collective::tile, {{a[0], a[1], a[2], a[3], b[0], b[1]}});
    for (unsigned i = 0; i < 4; i++) {
        unsigned row = lane() / 4 + i / 2 * 8, column = lane() % 4 * 2 + i % 2;
        float sum = d[i];
        for (unsigned k = 0; k < 16; k++) {
            const Deposit &of_a = all[row % 8 * 4 + k % 8 / 2];
            const Deposit &of_b = all[column * 4 + k % 8 / 2];
            sum += half_of(of_a.words[row / 8 + k / 8 * 2], k % 2) *
                   half_of(of_b.words[4 + k / 8], k % 2);
        }
        d[i] = sum;
    }
}

/* ldmatrix.x4: of matrix m, lane 4g + t gets elements 2t and 2t + 1 of row g; transposed: of column
 * g. */
void load_matrices(uint32_t r[4], const void *row, bool transposed)
{
    if ((uintptr_t)row % 16 != 0)
        die("ldmatrix: the row at %p is not at a multiple of 16 bytes", row);
    if (!in_shared(row, 16))
        die("ldmatrix: the row at %p is not in shared memory", row);
    Deposit mine;
    reads(row, 16);
    copy_unseen(mine.words, row, 16);
    const Deposit *all = meet(~0u, Collective::matrices, mine);
    unsigned g = lane() / 4, t = lane() % 4;
    for (unsigned m = 0; m < 4; m++)
        if (transposed) {
            uint32_t low = all[m * 8 + 2 * t].words[g / 2] >> g % 2 * 16 & 0xFFFFu;
            uint32_t high = all[m * 8 + 2 * t + 1].words[g / 2] >> g % 2 * 16 & 0xFFFFu;
            r[m] = low | high << 16;
        } else {
            r[m] = all[m * 8 + g].words[t];
        }
}

/* The bytes arrive as late as they may, at the wait; until then the destination holds poison. Both
 * count as writes of this thread. */
void copy_async(void *to, const void *from, bool valid)
{
    if ((uintptr_t)to % 16 != 0 || (valid && (uintptr_t)from % 16 != 0))
        die("cp.async from %p to %p: both must be at multiples of 16 bytes", from, to);
    if (!in_shared(to, 16))
        die("cp.async to %p, which is not in shared memory", to);
    writes(to, 16);
    fill_unseen(to, block.poison, 16);
    block.thread->copies.push_back({to, valid ? from : nullptr, block.thread->committed});
}

void copy_async_commit()
{
    block.thread->committed++;
}

void copy_async_wait(int left)
{
    Thread &thread = *block.thread;
    auto arrived = [&](const AsyncCopy &copy) { return copy.group < thread.committed - left; };
    for (const AsyncCopy &copy : thread.copies) {
        if (!arrived(copy))
            continue;
        writes(copy.to, 16);
        if (copy.from) {
            reads(copy.from, 16);
            copy_unseen(copy.to, copy.from, 16);
        } else {
            fill_unseen(copy.to, 0, 16);
        }
    }
    std::erase_if(thread.copies, arrived);
}

} // namespace cudasim
