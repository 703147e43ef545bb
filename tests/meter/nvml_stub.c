/* A stub of the NVML library for the real bindings to load.
 *
 * It shows which calls are made and how errors are translated, not how a GPU behaves. The state of its GPUs is
 * in the file STUB_FILE, which tests and other processes map too; ../support/nvml_stub.py has the same layout.
 */
#include <fcntl.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6,
       INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15 };

typedef struct {
    char uuid[64];
    char mig[64];        /* its only MIG instance; empty: none */
    char name[64];
    uint32_t cap_mw, least_mw, most_mw, draw_mw;
    uint32_t clock_mhz;  /* locked clock; 0: not locked */
    uint32_t lost, denied, counterless;
    double energy_mj;    /* up to at_s */
    double at_s;
    uint64_t sets;       /* number of caps set */
    uint32_t mig_mode;   /* 1: the GPU is split into MIG instances */
    uint32_t capless;    /* 1: it has no power limit */
    uint32_t reasons;    /* bits of slowdowns */
    uint32_t pid, other_pid; /* compute processes; 0: none */
    uint32_t mem_mib;
    uint32_t renewed_ms; /* period of the energy counter; 0: exact */
    uint32_t pad;
} Gpu;

typedef struct {
    uint32_t count, pad;
    Gpu gpu[4];
} Box;

static Box *box;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static uint32_t power_mw(const Gpu *g) { return g->draw_mw < g->cap_mw ? g->draw_mw : g->cap_mw; }

static void account(Gpu *g) {
    double now = now_s();
    if (g->at_s > 0) g->energy_mj += (now - g->at_s) * power_mw(g);
    g->at_s = now;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (box) return OK;
    const char *path = getenv("STUB_FILE");
    int file = path ? open(path, O_RDWR) : -1;
    if (file < 0) return UNINITIALIZED;
    void *at = mmap(NULL, sizeof(Box), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (at == MAP_FAILED) return UNINITIALIZED;
    box = at;
    return OK;
}

int nvmlShutdown(void) { return OK; }

int nvmlSystemGetDriverVersion(char *text, unsigned size) { return snprintf(text, size, "stub 1.0"), OK; }

int nvmlDeviceGetCount_v2(unsigned *count) { return *count = box->count, OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    if (index >= box->count) return INVALID;
    *handle = &box->gpu[index];
    return OK;
}

/* The handle of a MIG instance is the address of its name. */
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    for (unsigned i = 0; i < box->count; i++) {
        Gpu *g = &box->gpu[i];
        if (!strcmp(uuid, g->uuid)) return *handle = g, OK;
        if (*g->mig && !strcmp(uuid, g->mig)) return *handle = g->mig, OK;
    }
    return NOT_FOUND;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *part, void **handle) {
    for (unsigned i = 0; i < box->count; i++)
        if (part == box->gpu[i].mig) return *handle = &box->gpu[i], OK;
    return INVALID;
}

int nvmlDeviceGetUUID(Gpu *g, char *text, unsigned size) { return snprintf(text, size, "%s", g->uuid), OK; }

int nvmlDeviceGetName(Gpu *g, char *text, unsigned size) { return snprintf(text, size, "%s", g->name), OK; }

int nvmlDeviceGetPowerUsage(Gpu *g, unsigned *mw) {
    if (g->lost) return GPU_IS_LOST;
    return *mw = power_mw(g), OK;
}

int nvmlDeviceGetTotalEnergyConsumption(Gpu *g, uint64_t *mj) {
    if (g->lost) return GPU_IS_LOST;
    if (g->counterless) return NOT_SUPPORTED;
    account(g);
    double since_s = g->renewed_ms ? fmod(g->at_s, 1e-3 * g->renewed_ms) : 0.0;
    double renewed_mj = g->energy_mj - since_s * power_mw(g);
    return *mj = renewed_mj > 0 ? (uint64_t)renewed_mj : 0, OK;
}

int nvmlDeviceGetPowerManagementLimit(Gpu *g, unsigned *mw) {
    if (g->lost) return GPU_IS_LOST;
    if (g->capless) return NOT_SUPPORTED;
    return *mw = g->cap_mw, OK;
}

int nvmlDeviceGetPowerManagementLimitConstraints(Gpu *g, unsigned *least, unsigned *most) {
    if (g->lost) return GPU_IS_LOST;
    if (g->capless) return NOT_SUPPORTED;
    return *least = g->least_mw, *most = g->most_mw, OK;
}

int nvmlDeviceSetPowerManagementLimit(Gpu *g, unsigned mw) {
    if (g->lost) return GPU_IS_LOST;
    if (g->capless) return NOT_SUPPORTED;
    if (g->denied) return NO_PERMISSION;
    if (mw < g->least_mw || mw > g->most_mw) return INVALID;
    account(g);
    g->cap_mw = mw;
    g->sets++;
    return OK;
}

int nvmlDeviceSetGpuLockedClocks(Gpu *g, unsigned least, unsigned most) {
    if (g->lost) return GPU_IS_LOST;
    if (g->denied) return NO_PERMISSION;
    if (least != most) return INVALID;
    return g->clock_mhz = most, OK;
}

int nvmlDeviceResetGpuLockedClocks(Gpu *g) {
    if (g->denied) return NO_PERMISSION;
    return g->clock_mhz = 0, OK;
}

int nvmlDeviceGetTemperature(Gpu *g, int sensor, unsigned *celsius) {
    if (g->lost) return GPU_IS_LOST;
    if (sensor != 0) return INVALID;
    return *celsius = 41, OK;
}

int nvmlDeviceGetMigMode(Gpu *g, unsigned *current, unsigned *pending) {
    if (!*g->mig && !g->mig_mode) return NOT_SUPPORTED;
    return *current = *pending = 1, OK;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(Gpu *g, unsigned long long *reasons) {
    return *reasons = g->reasons, OK;
}

typedef struct {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
} Process;

int nvmlDeviceGetComputeRunningProcesses_v3(Gpu *g, unsigned *count, Process *found) {
    unsigned pids[2], here = 0, room = found ? *count : 0;
    if (g->pid) pids[here++] = g->pid;
    if (g->other_pid) pids[here++] = g->other_pid;
    *count = here;
    if (!here) return OK;
    if (room < here) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < here; i++) found[i] = (Process){pids[i], 1 << 20, ~0u, ~0u};
    return OK;
}

int nvmlDeviceGetMemoryInfo(Gpu *g, unsigned long long *memory) {
    memory[0] = (unsigned long long)g->mem_mib << 20;
    memory[1] = memory[0], memory[2] = 0;
    return OK;
}
