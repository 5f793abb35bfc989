// SPDX-License-Identifier: Apache-2.0
// A library of Fabric Manager for tests of the structures: two partitions of two GPUs, in the memory of the process.
//
// Layouts and codes are those of the Fabric Manager User Guide. With -DOLD, only version 1 of the connection is known.
// Fabric Manager "runs" while the file at the address of the connection exists.

#include <string.h>
#include <unistd.h>

enum {
    BADPARAM = -1, UNINITIALIZED = -4, VERSION_MISMATCH = -6, IN_USE = -7, CONNECTION_NOT_VALID = -9,
    FROM_THE_FUTURE = -77,
};

typedef unsigned int u32;

#define VERSION(type, number) ((u32)sizeof(type) | (number) << 24)

typedef struct { u32 version; char address[256]; u32 timeout_ms, is_unix; } connect_v1;
typedef struct { u32 version; char address[256]; u32 timeout_ms, is_unix, type; } connect_v2;
typedef struct { u32 physical_id; char uuid[80]; char pci[32]; u32 links, most_links, rate; } gpu_t;
typedef struct { u32 id, active, gpus; gpu_t gpu[16]; } partition_t;
typedef struct { u32 version, count, most; partition_t partition[64]; } partitions_t;
typedef struct { u32 version, count, ids[64]; } activated_t;
typedef struct { char uuid[80]; char pci[32]; u32 ports, port[64]; } failed_t;
typedef struct { u32 version, gpus, switches; failed_t gpu[16], nvswitch[12]; } failures_t;
typedef struct { u32 id, gpus, physical_ids[16]; } impossible_t;
typedef struct { u32 version, count; impossible_t partition[64]; } unsupported_t;

_Static_assert(sizeof(gpu_t) == 128 && sizeof(partition_t) == 2060, "the layouts of the guide");

static int initialized, connections, active[2];

int fmLibInit(void) {
    if (initialized) return IN_USE;
    initialized = 1;
    return 0;
}

int fmLibShutdown(void) {
    initialized = 0;
    return 0;
}

int fmConnect(connect_v2 *params, void **handle) {
    if (!initialized) return UNINITIALIZED;
#ifdef OLD
    if (params->version != VERSION(connect_v1, 1)) return VERSION_MISMATCH;
#else
    if (params->version != VERSION(connect_v2, 2)) return VERSION_MISMATCH;
    if (params->type != 2) return BADPARAM;
#endif
    if (!params->is_unix || !params->timeout_ms || connections) return BADPARAM;
    if (access(params->address, F_OK)) return CONNECTION_NOT_VALID;
    connections++;
    *handle = &connections;
    return 0;
}

int fmDisconnect(void *handle) {
    if (handle != &connections) return BADPARAM;
    connections--;
    return 0;
}

int fmGetSupportedFabricPartitions(void *handle, partitions_t *list) {
    if (handle != &connections || list->version != VERSION(partitions_t, 1)) return VERSION_MISMATCH;
    list->count = 2;
    list->most = 15;
    for (u32 i = 0; i < 2; i++) {
        partition_t *one = &list->partition[i];
        one->id = 4 + i;
        one->active = active[i];
        one->gpus = 2;
        for (u32 k = 0; k < 2; k++) {
            one->gpu[k].physical_id = 2 * i + 2 - k;  // the higher one first
            strcpy(one->gpu[k].uuid, "GPU-0");
            one->gpu[k].links = one->gpu[k].most_links = 18;
        }
    }
    return 0;
}

static int change(void *handle, u32 id, int from, int refusal) {
    if (handle != &connections || id < 4 || id > 5) return id == 99 ? FROM_THE_FUTURE : BADPARAM;
    if (active[id - 4] != from) return refusal;
    active[id - 4] = !from;
    return 0;
}

int fmActivateFabricPartition(void *handle, u32 id) { return change(handle, id, 0, IN_USE); }

int fmDeactivateFabricPartition(void *handle, u32 id) { return change(handle, id, 1, UNINITIALIZED); }

int fmSetActivatedFabricPartitions(void *handle, activated_t *list) {
    if (handle != &connections || list->version != VERSION(activated_t, 1)) return VERSION_MISMATCH;
    active[0] = active[1] = 0;
    for (u32 i = 0; i < list->count; i++) active[list->ids[i] - 4] = 1;
    return 0;
}

int fmGetNvlinkFailedDevices(void *handle, failures_t *list) {
    if (handle != &connections || list->version != VERSION(failures_t, 1)) return VERSION_MISMATCH;
    list->gpus = 2;
    list->switches = 1;
    strcpy(list->gpu[0].uuid, "GPU-0");
    strcpy(list->gpu[0].pci, "00000000:3B:00.0");
    strcpy(list->gpu[1].pci, "00010000:01:00.0");
    list->gpu[1].ports = 1;
    list->gpu[1].port[0] = 7;
    strcpy(list->nvswitch[11].uuid, "SWITCH");
    return 0;
}

int fmGetUnsupportedFabricPartitions(void *handle, unsupported_t *list) {
    if (handle != &connections || list->version != VERSION(unsupported_t, 1)) return VERSION_MISMATCH;
    list->count = 1;
    list->partition[0] = (impossible_t){.id = 2, .gpus = 4, .physical_ids = {4, 3, 2, 1}};
    return 0;
}
