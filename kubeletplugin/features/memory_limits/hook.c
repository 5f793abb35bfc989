// SPDX-License-Identifier: Apache-2.0
/* The createRuntime hook of containers with a limited share of a GPU's memory:

       dra-memory-limits SOCKET CLAIM-UID DEVICE

   The container runtime runs it on the host when the container's cgroup and first process exist, before the entrypoint
   starts, with the OCI state on stdin. It tells the plugin which cgroup the container has, and waits until the plugin
   has set the limit. If it fails, the runtime does not start the container, and reports what is on stderr.

   The plugin may be restarting, so the program tries again until its time limit. One request is one line:

       1 CLAIM-UID DEVICE CGROUP

   and so is the answer: "ok", "later TEXT" (the program tries again), or "error TEXT". */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#ifndef SECONDS
#define SECONDS 20 /* longer than a restart of the plugin */
#endif
enum { PAUSE_MS = 100 };

static char state[1 << 20];    /* annotations can be large */
static char cgroups[1 << 16];
static char request[1 << 13];
static char answer[1 << 12];
static char problem[1 << 12];
static int64_t deadline;

static void fail(const char *format, ...) {
    va_list arguments;
    fputs("GPU memory limit: ", stderr);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static int64_t left_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t left = deadline - ((int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000);
    return left > 0 ? left : 0;
}

/* Wait until `fd` is ready. 0 if that takes too long, with errno. */
static int ready(int fd, short events) {
    struct pollfd one = {.fd = fd, .events = events};
    int found;
    do found = poll(&one, 1, (int)left_ms());
    while (found < 0 && errno == EINTR);
    if (found == 0) errno = ETIMEDOUT;
    return found > 0;
}

/* Read to the end, or to the end of a line if `line`. The bytes read, or -1 with errno; EFBIG if there are more. */
static ssize_t read_all(int fd, char *to, size_t size, int line) {
    size_t got = 0;
    while (got < size - 1) {
        if (!ready(fd, POLLIN)) return -1;
        ssize_t more = read(fd, to + got, size - 1 - got);
        if (more < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (more < 0) return -1;
        got += (size_t)more;
        to[got] = 0;
        if (more == 0 || (line && memchr(to, '\n', got))) return (ssize_t)got;
    }
    errno = EFBIG;
    return -1;
}

static const char *skip_space(const char *s) {
    return s + strspn(s, " \t\r\n");
}

/* The member "pid" of the outermost JSON object, 0 if there is none. Strings are skipped as a whole, and so nothing in
   an annotation can be mistaken for it. */
static long pid_of(const char *s) {
    int depth = 0;
    for (; *s; s++) {
        if (*s == '{' || *s == '[') depth++;
        if (*s == '}' || *s == ']') depth--;
        if (*s != '"') continue;
        const char *begin = ++s;
        while (*s && *s != '"') s += s[0] == '\\' && s[1] ? 2 : 1;
        if (!*s) return 0;
        const char *colon = skip_space(s + 1);
        if (depth != 1 || *colon != ':' || s - begin != 3 || memcmp(begin, "pid", 3)) continue;
        const char *number = skip_space(colon + 1);
        size_t digits = strspn(number, "0123456789");
        const char *after = skip_space(number + digits);
        return digits > 0 && digits < 10 && (*after == ',' || *after == '}') ? atol(number) : 0;
    }
    return 0;
}

/* The path of a process's cgroup of version 2, which has the line "0::PATH". */
static const char *cgroup_of(long pid) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/cgroup", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read_all(fd, cgroups, sizeof cgroups, 0) < 0) fail("cannot read %s: %s", path, strerror(errno));
    close(fd);
    for (char *line = cgroups; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (!strncmp(line, "0::", 3)) {
            line[strcspn(line, "\n")] = 0;
            return line + 3;
        }
    fail("%s has no line 0::, so the node has no cgroup version 2, which limits need", path);
    return NULL;
}

/* Send the request and read the answer. Returns 0 if the plugin cannot be reached or leaves, with errno. */
static int ask(const struct sockaddr_un *address) {
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), answered = 0;
    if (fd < 0) fail("no socket: %s", strerror(errno));
    if (connect(fd, (const struct sockaddr *)address, sizeof *address) == 0) {
        size_t sent = 0, size = strlen(request);
        while (sent < size && ready(fd, POLLOUT)) {
            ssize_t more = send(fd, request + sent, size - sent, MSG_NOSIGNAL);
            if (more < 0 && errno != EINTR && errno != EAGAIN) break;
            if (more > 0) sent += (size_t)more;
        }
        ssize_t got = sent == size ? read_all(fd, answer, sizeof answer, 1) : -1;
        answered = got > 0 && answer[got - 1] == '\n';
        if (got >= 0 && !answered) errno = ECONNRESET; /* the plugin ended meanwhile */
    }
    int error = errno;
    close(fd);
    errno = error;
    return answered;
}

int main(int argc, char **argv) {
    struct timespec now;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    clock_gettime(CLOCK_MONOTONIC, &now);
    deadline = (int64_t)(now.tv_sec + SECONDS) * 1000 + now.tv_nsec / 1000000;
    if (argc != 4) fail("usage: dra-memory-limits SOCKET CLAIM-UID DEVICE, with the OCI state on stdin");
    if (strlen(argv[1]) >= sizeof address.sun_path) fail("the path of the socket is too long: %s", argv[1]);
    strcpy(address.sun_path, argv[1]);
    if (read_all(STDIN_FILENO, state, sizeof state, 0) < 0) fail("cannot read the OCI state: %s", strerror(errno));
    long pid = pid_of(state);
    if (!pid) fail("the OCI state on stdin has no pid");
    int size = snprintf(request, sizeof request, "1 %s %s %s\n", argv[2], argv[3], cgroup_of(pid));
    if (size < 0 || (size_t)size >= sizeof request) fail("the path of the container's cgroup is too long");
    for (;;) {
        int answered = ask(&address);
        if (answered) answer[strcspn(answer, "\n")] = 0;
        if (answered && !strcmp(answer, "ok")) return 0;
        if (answered && !strncmp(answer, "error ", 6)) fail("%s", answer + 6);
        if (answered && strncmp(answer, "later ", 6)) fail("the plugin answers %s", answer);
        /* The last try has little time left, and says less than an answer before it. */
        if (answered) strcpy(problem, answer + 6);
        else if (errno != ETIMEDOUT || !*problem) snprintf(problem, sizeof problem, "%s", strerror(errno));
        if (left_ms() <= PAUSE_MS) break;
        poll(NULL, 0, PAUSE_MS);
    }
    fail("the driver's plugin did not set it within %d s (%s, %s)", SECONDS, argv[1], problem);
}
