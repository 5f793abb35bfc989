// SPDX-License-Identifier: Apache-2.0
// An NVML for tests of the real gateway: the calls that it makes, with canned answers.
//
// GPU 0 is an H100 that can be split. GPU 1 is lost. GPU 2 answers with what a newer driver may say. Layouts of
// structures and signatures are those of NVML's API reference. With -DOLD_DRIVER, calls that came later are left out.
// With -DVERSION="..." it is of another driver. The environment variable KERNEL_MODULE names the version of the driver's
// kernel module, should that be another one than the library's: then the library is of no use.

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    LIB_RM_VERSION_MISMATCH = 18,
    IN_USE = 19,
    INSUFFICIENT_RESOURCES = 23,
    VERSION_MISMATCH = 25,
    FROM_THE_FUTURE = 777,
    UNKNOWN = 999,
};

#ifndef VERSION
#define VERSION "570.158.01"
#endif

enum { GPUS = 3, INSTANCES = 7 };

typedef unsigned int u32;
typedef unsigned long long u64;

typedef struct { u32 start, size; } placement_t;
typedef struct gpu gpu_t;

typedef struct {
    int used;
    gpu_t *gpu;
    u32 id, profile;
    placement_t placement;
    int filled;  // has its compute instance
} instance_t;

struct gpu {
    u32 index;
    u32 compute_mode;
    u32 mig_current, mig_pending;
    instance_t instances[INSTANCES];
    instance_t *mig_device;  // not NULL: this handle is a MIG device of it
};

static int initialized;
static gpu_t gpus[GPUS];
static gpu_t mig_devices[INSTANCES];  // the MIG device in each instance of GPU 0

static int mismatched(void) {
    const char *module = getenv("KERNEL_MODULE");
    return module && strcmp(module, VERSION) != 0;
}

#define REQUIRE(handle) \
    if (!initialized) return UNINITIALIZED; \
    if (!(handle)) return INVALID_ARGUMENT

static int usable(gpu_t *gpu) {
    REQUIRE(gpu);
    return gpu->index == 1 ? GPU_IS_LOST : SUCCESS;
}

#define REQUIRE_GPU(gpu) \
    do { int code = usable(gpu); if (code) return code; } while (0)

// The library and the system

int nvmlInitWithFlags(u32 flags) {
    if (flags != 1) return INVALID_ARGUMENT;  // the gateway accepts a node without GPUs
    if (mismatched()) return LIB_RM_VERSION_MISMATCH;
    for (u32 i = 0; i < GPUS; i++) gpus[i].index = i;
    initialized++;
    return SUCCESS;
}

int nvmlShutdown(void) {
    if (!initialized) return UNINITIALIZED;
    initialized--;
    return SUCCESS;
}

const char *nvmlErrorString(int code) { return code == FROM_THE_FUTURE ? "something new" : "an error"; }

int nvmlSystemGetDriverVersion(char *text, u32 size) {
    if (!initialized) return UNINITIALIZED;
    if (mismatched()) return UNKNOWN;
    strncpy(text, VERSION, size);
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    if (!initialized) return UNINITIALIZED;
    *version = 12080;
    return SUCCESS;
}

// GPUs

int nvmlDeviceGetCount_v2(u32 *count) {
    if (!initialized) return UNINITIALIZED;
    *count = GPUS;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(u32 index, gpu_t **gpu) {
    if (!initialized) return UNINITIALIZED;
    if (index >= GPUS) return INVALID_ARGUMENT;
    *gpu = &gpus[index];
    return SUCCESS;
}

static void uuid_of(gpu_t *gpu, char *text) {
    if (gpu->mig_device) {
        strcpy(text, "MIG-00000000-0000-0000-0000-00000000000x");
        text[39] = (char)('0' + gpu->mig_device->id);
    } else {
        strcpy(text, "GPU-00000000-0000-0000-0000-00000000000x");
        text[39] = (char)('0' + gpu->index);
    }
}

int nvmlDeviceGetHandleByUUID(const char *uuid, gpu_t **gpu) {
    char text[96];
    if (!initialized) return UNINITIALIZED;
    for (u32 i = 0; i < GPUS; i++) {
        uuid_of(&gpus[i], text);
        if (!strcmp(text, uuid)) { *gpu = &gpus[i]; return SUCCESS; }
    }
    for (u32 i = 0; i < INSTANCES; i++) {
        if (!mig_devices[i].mig_device) continue;
        uuid_of(&mig_devices[i], text);
        if (!strcmp(text, uuid)) { *gpu = &mig_devices[i]; return SUCCESS; }
    }
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(gpu_t *gpu, char *text, u32 size) {
    REQUIRE_GPU(gpu);
    if (size < 41) return INSUFFICIENT_SIZE;
    uuid_of(gpu, text);
    return SUCCESS;
}

int nvmlDeviceGetMinorNumber(gpu_t *gpu, u32 *minor) {
    REQUIRE_GPU(gpu);
    *minor = gpu->index + 4;
    return SUCCESS;
}

int nvmlDeviceGetName(gpu_t *gpu, char *text, u32 size) {
    REQUIRE_GPU(gpu);
    if (gpu->index == 2) return FROM_THE_FUTURE;
    strncpy(text, "NVIDIA H100 80GB HBM3", size);
    return SUCCESS;
}

int nvmlDeviceGetBrand(gpu_t *gpu, u32 *brand) {
    REQUIRE_GPU(gpu);
    *brand = gpu->index == 2 ? 99 : 14;
    return SUCCESS;
}

int nvmlDeviceGetArchitecture(gpu_t *gpu, u32 *architecture) {
    REQUIRE_GPU(gpu);
    *architecture = 9;
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(gpu_t *gpu, int *major, int *minor) {
    REQUIRE_GPU(gpu);
    *major = 9;
    *minor = 1;
    return SUCCESS;
}

typedef struct { u64 total, free, used; } memory_t;

int nvmlDeviceGetMemoryInfo(gpu_t *gpu, memory_t *memory) {
    REQUIRE_GPU(gpu);
    if (gpu->index == 2) return NOT_SUPPORTED;
    memory->total = 81559ULL << 20;
    memory->free = 1;
    memory->used = 2;
    return SUCCESS;
}

typedef struct {
    char bus_id_legacy[16];
    u32 domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} pci_t;

int nvmlDeviceGetPciInfo_v3(gpu_t *gpu, pci_t *pci) {
    REQUIRE_GPU(gpu);
    memset(pci, 0, sizeof *pci);
    pci->domain = 0x10;
    pci->bus = 0x3b;
    pci->device = 0x1c;
    pci->device_id = 0x233010DE;
    pci->subsystem_id = 0x16C110DE;
    strcpy(pci->bus_id, "00000010:3B:1C.0");
    return SUCCESS;
}

int nvmlDeviceGetModuleId(gpu_t *gpu, u32 *id) {
    REQUIRE_GPU(gpu);
    if (gpu->index == 2) return NOT_SUPPORTED;
    *id = 7;
    return SUCCESS;
}

typedef struct { u32 version, value; } addressing_mode_t;

#ifndef OLD_DRIVER
int nvmlDeviceGetAddressingMode(gpu_t *gpu, addressing_mode_t *mode) {
    REQUIRE_GPU(gpu);
    if (mode->version != (sizeof *mode | 1 << 24)) return VERSION_MISMATCH;
    mode->value = gpu->index == 2 ? 7 : 2;
    return SUCCESS;
}
#endif

int nvmlDeviceGetVirtualizationMode(gpu_t *gpu, u32 *mode) {
    REQUIRE_GPU(gpu);
    *mode = gpu->index == 2 ? 9 : 1;
    return SUCCESS;
}

// vGPU types: 1100 and 1106 of whole GPUs, and 1150, which is a part of a MIG instance

typedef struct { u32 version, mode; } vgpu_mode_t;
typedef struct { u32 version, size, count, *ids, mode; } vgpu_placements_t;

int nvmlDeviceGetSupportedVgpus(gpu_t *gpu, u32 *count, u32 *types) {
    REQUIRE_GPU(gpu);
    if (*count < 3) {
        *count = 3;
        return INSUFFICIENT_SIZE;
    }
    types[0] = 1100, types[1] = 1150, types[2] = 1106;
    return SUCCESS;
}

int nvmlVgpuTypeGetName(u32 type, char *name, u32 *size) {
    if (*size < 64) return INSUFFICIENT_SIZE;
    strcpy(name, type == 1100 ? "NVIDIA L40S-1Q" : "NVIDIA RTX Pro 6000 Blackwell DC-24Q");
    return SUCCESS;
}

int nvmlVgpuTypeGetFramebufferSize(u32 type, u64 *bytes) {
    *bytes = (type == 1100 ? 1ull : 24ull) << 30;
    return SUCCESS;
}

int nvmlVgpuTypeGetMaxInstances(gpu_t *gpu, u32 type, u32 *count) {
    REQUIRE_GPU(gpu);
    *count = type == 1100 ? 32 : 2;
    return SUCCESS;
}

#ifndef OLD_DRIVER
int nvmlVgpuTypeGetGpuInstanceProfileId(u32 type, u32 *profile) {
    *profile = type == 1150 ? 19 : 0xFFFFFFFF;
    return SUCCESS;
}

int nvmlDeviceGetVgpuHeterogeneousMode(gpu_t *gpu, vgpu_mode_t *mode) {
    REQUIRE_GPU(gpu);
    if (mode->version != 0x1000008) return VERSION_MISMATCH;
    mode->mode = gpu->index == 0;
    return SUCCESS;
}

int nvmlDeviceGetVgpuTypeSupportedPlacements(gpu_t *gpu, u32 type, vgpu_placements_t *found) {
    REQUIRE_GPU(gpu);
    if (found->version != 0x2000020) return VERSION_MISMATCH;
    if (found->mode != 0 || found->count < 2) return INSUFFICIENT_SIZE;
    found->count = 2;
    found->size = type == 1100 ? 1 : 24;
    found->ids[0] = type == 1100 ? 47 : 24;
    found->ids[1] = 0;
    return SUCCESS;
}
#endif

int nvmlDeviceGetNvLinkState(gpu_t *gpu, u32 link, u32 *active) {
    REQUIRE_GPU(gpu);
    if (gpu->index == 2) return NOT_SUPPORTED;
    if (link >= 12) return INVALID_ARGUMENT;
    *active = link != 3;
    return SUCCESS;
}

int nvmlDeviceGetP2PStatus(gpu_t *gpu, gpu_t *other, u32 what, u32 *status) {
    REQUIRE_GPU(gpu);
    if (!other || gpu == other) return INVALID_ARGUMENT;
    if (what != 2) return INVALID_ARGUMENT;  // NVML_P2P_CAPS_INDEX_NVLINK
    *status = gpu->index == 2 ? 5 : 0;       // NOT_SUPPORTED one way, OK the other, which no board would say
    return SUCCESS;
}

typedef struct {
    u32 version;
    unsigned char cluster_uuid[16];
    int status;
    u32 clique;
    unsigned char state, padding[3];
    u32 health;
} fabric_t;

int nvmlDeviceGetGpuFabricInfoV(gpu_t *gpu, fabric_t *fabric) {
    REQUIRE_GPU(gpu);
    if (fabric->version != (sizeof *fabric | 2 << 24)) return VERSION_MISMATCH;
    memset(fabric->padding, 0xAA, sizeof fabric->padding);  // whatever was there
    for (int i = 0; i < 16; i++) fabric->cluster_uuid[i] = (unsigned char)(gpu->index ? 0 : 0x10 + i);
    fabric->status = 0;
    fabric->clique = 5;
    fabric->state = gpu->index ? 9 : 3;
    fabric->health = 0x1;
    return SUCCESS;
}

typedef struct { u32 pid; u64 memory; u32 gpu_instance, compute_instance; } process_t;

int nvmlDeviceGetComputeRunningProcesses_v3(gpu_t *gpu, u32 *count, process_t *processes) {
    REQUIRE_GPU(gpu);
    if (gpu->index == 2) { *count = 0; return SUCCESS; }
    if (*count < 2) { *count = 2; return INSUFFICIENT_SIZE; }
    *count = 2;
    for (u32 i = 0; i < 2; i++) processes[i] = (process_t){41 + i, 1, ~0u, ~0u};
    return SUCCESS;
}

// Health

int nvmlDeviceGetRemappedRows(gpu_t *gpu, u32 *correctable, u32 *uncorrectable, u32 *pending, u32 *failed) {
    REQUIRE_GPU(gpu);
    if (gpu->index) return NOT_SUPPORTED;
    *correctable = 4;
    *uncorrectable = 3;
    *pending = 1;
    *failed = 0;
    return SUCCESS;
}

int nvmlDeviceGetRetiredPagesPendingStatus(gpu_t *gpu, u32 *pending) {
    REQUIRE_GPU(gpu);
    if (!gpu->index) return NOT_SUPPORTED;
    *pending = 1;
    return SUCCESS;
}

typedef struct {
    u32 id, scope;
    long long timestamp, latency;
    u32 type;
    int code;
    union { double as_double; u32 as_u32; u64 as_u64; } value;
} field_t;

int nvmlDeviceGetFieldValues(gpu_t *gpu, int count, field_t *fields) {
    REQUIRE_GPU(gpu);
    for (int i = 0; i < count; i++) {
        memset(&fields[i].value, 0xAA, sizeof fields[i].value);  // whatever was there
#ifdef OLD_DRIVER
        fields[i].code = INVALID_ARGUMENT;
#else
        fields[i].code = fields[i].id == 230 ? SUCCESS : INVALID_ARGUMENT;  // NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
        fields[i].type = 1;
        fields[i].value.as_u32 = gpu->index == 2 ? 99 : 4;
#endif
    }
    return SUCCESS;
}

int nvmlDeviceGetComputeMode(gpu_t *gpu, u32 *mode) {
    REQUIRE_GPU(gpu);
    *mode = gpu->compute_mode;
    return SUCCESS;
}

int nvmlDeviceSetComputeMode(gpu_t *gpu, u32 mode) {
    REQUIRE_GPU(gpu);
    if (gpu->mig_current) return NOT_SUPPORTED;
    if (mode > 3) return INVALID_ARGUMENT;
    gpu->compute_mode = mode;
    return SUCCESS;
}

#ifndef OLD_DRIVER
typedef struct { const char *cgroup; u64 soft, hard; } set_limits_t;
typedef struct { const char *cgroup; u64 soft, hard, used; } limits_t;

static char limited[256];
static u64 soft_limit, hard_limit = ~0ULL;

int nvmlDeviceSetMemoryLimits_v1(gpu_t *gpu, const set_limits_t *limits) {
    REQUIRE_GPU(gpu);
    if (limits->soft > limits->hard) return INVALID_ARGUMENT;
    strncpy(limited, limits->cgroup, sizeof limited - 1);
    soft_limit = limits->soft;
    hard_limit = limits->hard;
    return SUCCESS;
}

int nvmlDeviceGetMemoryLimits_v1(gpu_t *gpu, limits_t *limits) {
    REQUIRE_GPU(gpu);
    int is_limited = !strcmp(limited, limits->cgroup);
    limits->soft = is_limited ? soft_limit : 0;
    limits->hard = is_limited ? hard_limit : ~0ULL;
    limits->used = 7;
    return SUCCESS;
}
#endif

// MIG

int nvmlDeviceGetMigMode(gpu_t *gpu, u32 *current, u32 *pending) {
    REQUIRE_GPU(gpu);
    if (gpu->index) return NOT_SUPPORTED;
    *current = gpu->mig_current;
    *pending = gpu->mig_pending;
    return SUCCESS;
}

int nvmlDeviceSetMigMode(gpu_t *gpu, u32 mode, int *activation) {
    REQUIRE_GPU(gpu);
    if (gpu->index) return NOT_SUPPORTED;
    gpu->mig_pending = mode;
    *activation = mode ? SUCCESS : IN_USE;  // switching off waits for a reset here
    if (mode) gpu->mig_current = mode;
    return SUCCESS;
}

typedef struct {
    u32 id, p2p, slices, instances, multiprocessors, copy, decoders, encoders, jpeg, ofa;
    u64 memory_mib;
} profile_t;

typedef struct {
    u32 version;
    u32 id, p2p, slices, instances, multiprocessors, copy, decoders, encoders, jpeg, ofa;
    u64 memory_mib;
    char name[96];
} profile_v2_t;

static const profile_t profiles[] = {
    {19, 0, 1, 7, 16, 1, 2, 3, 4, 5, 9984},
    {14, 0, 2, 3, 32, 2, 2, 0, 2, 0, 20096},
};

static int profile_of(gpu_t *gpu, u32 constant, const profile_t **found) {
    REQUIRE_GPU(gpu);
    if (gpu->index || constant > 17) return INVALID_ARGUMENT;
    if (constant > 1) return NOT_SUPPORTED;
    *found = &profiles[constant];
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceProfileInfo(gpu_t *gpu, u32 constant, profile_t *info) {
    const profile_t *found;
    int code = profile_of(gpu, constant, &found);
    if (!code) *info = *found;
    return code;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetGpuInstanceProfileInfoV(gpu_t *gpu, u32 constant, profile_v2_t *info) {
    const profile_t *found;
    int code = profile_of(gpu, constant, &found);
    if (code) return code;
    if (info->version != (sizeof *info | 2 << 24)) return VERSION_MISMATCH;
    info->id = found->id;
    info->slices = found->slices;
    info->instances = found->instances;
    info->multiprocessors = found->multiprocessors;
    info->copy = found->copy;
    info->decoders = found->decoders;
    info->encoders = found->encoders;
    info->jpeg = found->jpeg;
    info->ofa = found->ofa;
    info->memory_mib = found->memory_mib;
    strcpy(info->name, constant ? "MIG 2g.20gb" : "MIG 1g.10gb");
    return SUCCESS;
}
#endif

int nvmlDeviceGetGpuInstancePossiblePlacements_v2(gpu_t *gpu, u32 profile, placement_t *placements, u32 *count) {
    REQUIRE_GPU(gpu);
    if (!gpu->mig_current) return NOT_SUPPORTED;
    u32 there_are = profile == 19 ? 7 : profile == 14 ? 3 : 0;
    if (placements && *count < there_are) return INSUFFICIENT_SIZE;
    for (u32 i = 0; placements && i < there_are; i++) {
        placements[i] = profile == 19 ? (placement_t){i, 1} : (placement_t){2 * i, 2};
    }
    *count = there_are;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(gpu_t *gpu, u32 *count) {
    REQUIRE_GPU(gpu);
    *count = gpu->mig_current ? INSTANCES : 0;
    return SUCCESS;
}

int nvmlDeviceGetGpuInstances(gpu_t *gpu, u32 profile, instance_t **found, u32 *count) {
    REQUIRE_GPU(gpu);
    if (!gpu->mig_current) return NOT_SUPPORTED;
    *count = 0;
    for (u32 i = 0; i < INSTANCES; i++) {
        if (gpu->instances[i].used && gpu->instances[i].profile == profile) found[(*count)++] = &gpu->instances[i];
    }
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceById(gpu_t *gpu, u32 id, instance_t **found) {
    REQUIRE_GPU(gpu);
    for (u32 i = 0; i < INSTANCES; i++) {
        if (gpu->instances[i].used && gpu->instances[i].id == id) { *found = &gpu->instances[i]; return SUCCESS; }
    }
    return NOT_FOUND;
}

typedef struct { gpu_t *gpu; u32 id, profile; placement_t placement; } instance_info_t;

int nvmlGpuInstanceGetInfo(instance_t *instance, instance_info_t *info) {
    REQUIRE(instance);
    if (!instance->used) return NOT_FOUND;
    *info = (instance_info_t){instance->gpu, instance->id, instance->profile, instance->placement};
    return SUCCESS;
}

int nvmlDeviceCreateGpuInstanceWithPlacement(gpu_t *gpu, u32 profile, const placement_t *place, instance_t **made) {
    REQUIRE_GPU(gpu);
    if (!gpu->mig_current) return NOT_SUPPORTED;
    instance_t *free_one = NULL;
    for (u32 i = INSTANCES; i-- > 0;) {
        instance_t *one = &gpu->instances[i];
        if (!one->used) { free_one = one; continue; }
        if (one->placement.start < place->start + place->size && place->start < one->placement.start + one->placement.size)
            return INSUFFICIENT_RESOURCES;
    }
    if (!free_one) return INSUFFICIENT_RESOURCES;
    *free_one = (instance_t){1, gpu, (u32)(free_one - gpu->instances) + 1, profile, *place, 0};
    *made = free_one;
    return SUCCESS;
}

int nvmlGpuInstanceDestroy(instance_t *instance) {
    REQUIRE(instance);
    if (!instance->used) return NOT_FOUND;
    if (instance->filled) return IN_USE;
    instance->used = 0;
    return SUCCESS;
}

typedef struct { u32 id, slices, instances, multiprocessors, copy, decoders, encoders, jpeg, ofa; } compute_profile_t;

int nvmlGpuInstanceGetComputeInstanceProfileInfo(instance_t *instance, u32 constant, u32 engine, compute_profile_t *info) {
    REQUIRE(instance);
    if (engine != 0) return INVALID_ARGUMENT;
    u32 slices = constant + 1;
    if (slices > (instance->profile == 19 ? 1u : 2u)) return NOT_SUPPORTED;
    *info = (compute_profile_t){.id = constant + 20, .slices = slices, .instances = 3 - slices};
    return SUCCESS;
}

int nvmlGpuInstanceCreateComputeInstance(instance_t *instance, u32 profile, instance_t **made) {
    REQUIRE(instance);
    if (profile < 20) return INVALID_ARGUMENT;
    if (instance->filled) return INSUFFICIENT_RESOURCES;
    instance->filled = (int)profile;
    gpu_t *device = &mig_devices[instance->id - 1];
    *device = (gpu_t){.index = instance->gpu->index, .mig_device = instance};
    *made = instance;
    return SUCCESS;
}

int nvmlGpuInstanceGetComputeInstances(instance_t *instance, u32 profile, instance_t **found, u32 *count) {
    REQUIRE(instance);
    *count = instance->filled && (u32)instance->filled == profile;
    if (*count) found[0] = instance;
    return SUCCESS;
}

typedef struct { gpu_t *device; instance_t *instance; u32 id, profile; placement_t placement; } compute_info_t;

int nvmlComputeInstanceGetInfo_v2(instance_t *compute, compute_info_t *info) {
    REQUIRE(compute);
    if (!compute->filled) return NOT_FOUND;
    *info = (compute_info_t){&mig_devices[compute->id - 1], compute, 0, (u32)compute->filled, {0, 1}};
    return SUCCESS;
}

int nvmlComputeInstanceDestroy(instance_t *compute) {
    REQUIRE(compute);
    if (!compute->filled) return NOT_FOUND;
    compute->filled = 0;
    mig_devices[compute->id - 1].mig_device = NULL;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(gpu_t *gpu, u32 index, gpu_t **device) {
    REQUIRE_GPU(gpu);
    if (gpu->index || !mig_devices[index].mig_device) return NOT_FOUND;
    *device = &mig_devices[index];
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(gpu_t *device, u32 *id) {
    REQUIRE_GPU(device);
    if (!device->mig_device) return INVALID_ARGUMENT;
    *id = device->mig_device->id;
    return SUCCESS;
}

int nvmlDeviceGetComputeInstanceId(gpu_t *device, u32 *id) {
    REQUIRE_GPU(device);
    if (!device->mig_device) return INVALID_ARGUMENT;
    *id = 0;
    return SUCCESS;
}

// Events: one XID of GPU 0, then an error that nobody knows yet, then silence.

typedef struct { u64 registered; int waits; } events_t;
typedef struct { gpu_t *gpu; u64 type, data; u32 gpu_instance, compute_instance; } event_t;

int nvmlEventSetCreate(events_t **events) {
    if (!initialized) return UNINITIALIZED;
    *events = calloc(1, sizeof **events);
    return SUCCESS;
}

int nvmlDeviceGetSupportedEventTypes(gpu_t *gpu, u64 *types) {
    REQUIRE_GPU(gpu);
    *types = gpu->index == 2 ? 0 : 0x1 | 0x8 | 0x10;
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(gpu_t *gpu, u64 types, events_t *events) {
    REQUIRE_GPU(gpu);
    if (!types || types & ~(0x1ULL | 0x8 | 0x10)) return NOT_SUPPORTED;
    events->registered = types;
    return SUCCESS;
}

int nvmlEventSetWait_v2(events_t *events, event_t *event, u32 timeout) {
    REQUIRE(events);
    char byte = 0;
    if (timeout != 250) {  // a socket to somebody who wants to know when the call is inside, and says when it may end
        if (write((int)timeout, &byte, 1) != 1 || read((int)timeout, &byte, 1) != 1) return INVALID_ARGUMENT;
        return TIMEOUT;
    }
    switch (events->waits++) {
    case 0:
        *event = (event_t){&gpus[0], events->registered, 79, 3, 0};
        return SUCCESS;
    case 1:
        return FROM_THE_FUTURE;
    default:
        return TIMEOUT;
    }
}

int nvmlEventSetFree(events_t *events) {
    REQUIRE(events);
    free(events);
    return SUCCESS;
}
