/* Intel AMX on a CPU without it: loading this library makes the kernel's signal for an unknown
 * instruction carry out the tile instructions that gpurbf uses, one by one, as the Intel 64
 * manual (volume 2, chapters 3 to 5) defines them. For tests: a trap costs about a microsecond.
 *
 * Strict where the hardware is: tiles must be configured in the thread that uses them, sizes are
 * those of the configuration, three operands must be three tiles. What it cannot do and what the
 * manual forbids ends the process, always by the signal for an unknown instruction. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

enum { TILES = 8, ROWS = 16, BYTES = 64 };

static _Thread_local struct {
    uint8_t palette;
    uint16_t columns[TILES]; /* bytes of a row */
    uint8_t rows[TILES];
    uint8_t data[TILES][ROWS][BYTES];
} unit;

/* Configurations, loads, products, stores, releases, loads of rows that are not aligned: of all
 * threads. */
static _Atomic unsigned long counted[6];

/* Registers of the context by their number in an instruction. */
static const int general[16] = {
    REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
    REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15,
};

struct instruction {
    unsigned prefix, opcode; /* prefix: 0 none, 1 66, 2 F3, 3 F2 */
    unsigned reg, rm, vvvv;  /* registers; rm is one only if there is no address */
    int in_memory;
    uint8_t *address;
    int64_t stride;
    unsigned length;
};

/* 1 if the bytes at p are a VEX instruction of map 0F38 with a ModRM byte. */
static int decode(const uint8_t *p, const greg_t *registers, struct instruction *found)
{
    if (p[0] != 0xC4 || (p[1] & 0x1F) != 2 || (p[2] & 0x84) != 0) /* W = 0, L = 0 */
        return 0;
    unsigned r = (~p[1] >> 7 & 1) << 3, x = (~p[1] >> 6 & 1) << 3, b = (~p[1] >> 5 & 1) << 3;
    found->prefix = p[2] & 3;
    found->vvvv = ~p[2] >> 3 & 15;
    found->opcode = p[3];
    unsigned mod = p[4] >> 6, rm = p[4] & 7;
    found->reg = r | (p[4] >> 3 & 7);
    found->rm = b | rm;
    found->in_memory = mod != 3;
    found->length = 5;
    found->stride = 0;
    if (!found->in_memory)
        return 1;
    int64_t address = 0;
    int displaced = mod == 1 ? 1 : mod == 2 ? 4 : 0;
    if (rm == 4) {
        uint8_t sib = p[found->length++];
        unsigned index = x | (sib >> 3 & 7), base = b | (sib & 7);
        if (index != 4)
            found->stride = (int64_t)registers[general[index]] << (sib >> 6);
        if ((sib & 7) == 5 && mod == 0)
            displaced = 4;
        else
            address = registers[general[base]];
    } else if (rm == 5 && mod == 0) {
        return 0; /* relative to the instruction: no compiler does so here */
    } else {
        address = registers[general[b | rm]];
    }
    if (displaced == 1)
        address += *(const int8_t *)(p + found->length);
    if (displaced == 4) {
        int32_t displacement;
        memcpy(&displacement, p + found->length, 4);
        address += displacement;
    }
    found->length += displaced;
    found->address = (uint8_t *)address;
    return 1;
}

static int configure(const uint8_t *memory)
{
    if (memory[0] != 1)
        return 0;
    memset(&unit, 0, sizeof unit);
    unit.palette = 1;
    for (int t = 0; t < TILES; t++) {
        memcpy(&unit.columns[t], memory + 16 + 2 * t, 2);
        unit.rows[t] = memory[48 + t];
        if (unit.columns[t] > BYTES || unit.rows[t] > ROWS)
            return 0;
    }
    return 1;
}

static int usable(unsigned t) { return t < TILES && unit.palette && unit.rows[t]; }

static void load(unsigned t, const uint8_t *address, int64_t stride)
{
    memset(unit.data[t], 0, sizeof unit.data[t]);
    for (int row = 0; row < unit.rows[t]; row++)
        memcpy(unit.data[t][row], address + row * stride, unit.columns[t]);
}

static void store(unsigned t, uint8_t *address, int64_t stride)
{
    for (int row = 0; row < unit.rows[t]; row++)
        memcpy(address + row * stride, unit.data[t][row], unit.columns[t]);
}

/* TDPBSUD: sums of four products of signed bytes of a and unsigned bytes of b. */
static int dot(unsigned total, unsigned a, unsigned b)
{
    if (!usable(total) || !usable(a) || !usable(b) || total == a || total == b || a == b)
        return 0;
    if (unit.columns[a] / 4 != unit.rows[b] || unit.rows[total] != unit.rows[a] ||
        unit.columns[total] != unit.columns[b])
        return 0;
    for (int m = 0; m < unit.rows[total]; m++)
        for (int k = 0; k < unit.columns[a] / 4; k++)
            for (int n = 0; n < unit.columns[total] / 4; n++) {
                uint32_t sum; /* wraps, as the instruction does */
                memcpy(&sum, unit.data[total][m] + 4 * n, 4);
                for (int i = 0; i < 4; i++)
                    sum += (uint32_t)((int)(int8_t)unit.data[a][m][4 * k + i] *
                                      (int)unit.data[b][k][4 * n + i]);
                memcpy(unit.data[total][m] + 4 * n, &sum, 4);
            }
    return 1;
}

static int execute(const struct instruction *i)
{
    enum { NONE, PF3 = 2, PF2 };
    int plain = i->opcode == 0x49 && !i->in_memory && i->rm == 0;
    if (i->opcode == 0x49 && i->in_memory && i->prefix == NONE && i->reg == 0) {
        counted[0]++;
        return configure(i->address);
    }
    if (plain && i->prefix == NONE && i->reg == 0) {
        counted[4]++;
        memset(&unit, 0, sizeof unit); /* TILERELEASE */
        return 1;
    }
    if (plain && i->prefix == PF2 && usable(i->reg)) {
        memset(unit.data[i->reg], 0, sizeof unit.data[0]); /* TILEZERO */
        return 1;
    }
    if (i->opcode == 0x4B && i->in_memory && usable(i->reg)) {
        if (i->prefix == PF2) {
            counted[1]++;
            counted[5] += (uintptr_t)i->address % BYTES != 0 || i->stride % BYTES != 0;
            load(i->reg, i->address, i->stride);
            return 1;
        }
        if (i->prefix == PF3) {
            counted[3]++;
            store(i->reg, i->address, i->stride);
            return 1;
        }
    }
    if (i->opcode == 0x5E && !i->in_memory && i->prefix == PF3) {
        counted[2]++;
        return dot(i->reg, i->rm, i->vvvv);
    }
    return 0;
}

static void trapped(int number, siginfo_t *info, void *context)
{
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    struct instruction found;
    (void)info;
    if (decode((const uint8_t *)registers[REG_RIP], registers, &found) && execute(&found))
        registers[REG_RIP] += found.length;
    else
        signal(number, SIG_DFL); /* once more, and for good */
}

__attribute__((constructor)) static void install(void)
{
    struct sigaction action = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGILL, &action, 0);
}

unsigned long count(int what) { return counted[what]; }
