/* A fake libnvidia-ml.so.1: the functions that nvidia-ml-py calls, answering from the file that FAKE_NVML names.
 *
 *   init 18                                      what nvmlInit answers, when it is not success
 *   driver 580.95.05
 *   cuda 13000
 *   gpu GPU-1111|NVIDIA H200|9.0|143771|14|0     uuid, name, compute capability, MiB, brand, MIG mode
 *                                                0 MiB is a GPU that shares the host's memory
 *   mig MIG-2222|NVIDIA H200 MIG 1g.18gb|18144   a slice of the gpu above
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 16

struct part { char uuid[96], name[96]; unsigned long long mib; };
struct gpu {
    char uuid[96], name[96];
    int major, minor, brand, mig;
    unsigned long long mib;
    int parts;
    struct part part[MOST];
};
struct memory { unsigned long long total, free, used; };

static int answer, cuda, gpus;
static char driver[80];
static struct gpu gpu[MOST];

static void load(void)
{
    const char *path = getenv("FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512];

    answer = 9, cuda = gpus = 0;
    if (!file)
        return;
    answer = 0;
    while (fgets(line, sizeof line, file)) {
        struct gpu *g = &gpu[gpus];
        struct part *p = gpus ? &gpu[gpus - 1].part[gpu[gpus - 1].parts] : NULL;

        sscanf(line, "init %d", &answer);
        sscanf(line, "driver %79s", driver);
        sscanf(line, "cuda %d", &cuda);
        if (sscanf(line, "gpu %95[^|]|%95[^|]|%d.%d|%llu|%d|%d", g->uuid, g->name, &g->major, &g->minor, &g->mib,
                   &g->brand, &g->mig) == 7)
            g->parts = 0, gpus++;
        if (p && sscanf(line, "mig %95[^|]|%95[^|]|%llu", p->uuid, p->name, &p->mib) == 3)
            gpu[gpus - 1].parts++;
    }
    fclose(file);
}

/* A handle is a struct gpu, or a struct part: which one is told by where it points to. */
static struct gpu *whole(void *handle)
{
    for (int i = 0; i < gpus; i++)
        if (handle == &gpu[i])
            return &gpu[i];
    return NULL;
}

static int text(const char *from, char *to, unsigned size)
{
    snprintf(to, size, "%s", from);
    return 0;
}

int nvmlInitWithFlags(unsigned flags) { (void)flags; load(); return answer; }
int nvmlInit_v2(void) { load(); return answer; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { (void)code; return "fake"; }
int nvmlSystemGetDriverVersion(char *to, unsigned size) { return text(driver, to, size); }
int nvmlSystemGetCudaDriverVersion(int *version) { *version = cuda; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = gpus; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle)
{
    if (index >= (unsigned)gpus)
        return 2;
    *handle = &gpu[index];
    return 0;
}
int nvmlDeviceGetUUID(void *handle, char *to, unsigned size)
{
    struct gpu *g = whole(handle);
    return text(g ? g->uuid : ((struct part *)handle)->uuid, to, size);
}
int nvmlDeviceGetName(void *handle, char *to, unsigned size)
{
    struct gpu *g = whole(handle);
    return text(g ? g->name : ((struct part *)handle)->name, to, size);
}
int nvmlDeviceGetMemoryInfo(void *handle, struct memory *memory)
{
    struct gpu *g = whole(handle);
    if (g && !g->mib)
        return 3;
    memory->total = (g ? g->mib : ((struct part *)handle)->mib) << 20;
    memory->free = memory->total, memory->used = 0;
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor)
{
    *major = whole(handle)->major, *minor = whole(handle)->minor;
    return 0;
}
int nvmlDeviceGetBrand(void *handle, int *brand) { *brand = whole(handle)->brand; return 0; }
int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending)
{
    if (whole(handle)->mig < 0)
        return 3;
    *current = *pending = whole(handle)->mig;
    return 0;
}
int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) { (void)handle; *count = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **part)
{
    struct gpu *g = whole(handle);
    if (index >= (unsigned)g->parts)
        return 6;
    *part = &g->part[index];
    return 0;
}
