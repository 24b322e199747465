/* What the machine's processors did, from /proc. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "load.h"

int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

double own_cpu_s(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (double)used.tv_sec + (double)used.tv_nsec / 1e9;
}

/* Of all threads of a process, from schedstat: /proc/PID/stat counts in ticks of 10 ms. */
double cpu_s_of(int pid)
{
    char path[300];
    double sum_ns = 0;
    struct dirent *task;
    DIR *tasks;
    if (pid <= 0)
        return 0;
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    tasks = opendir(path);
    if (tasks == NULL)
        die("process %d is gone", pid);
    while ((task = readdir(tasks)) != NULL) {
        unsigned long long ns;
        FILE *file;
        if (task->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/proc/%d/task/%s/schedstat", pid, task->d_name);
        file = fopen(path, "r");
        if (file == NULL)
            continue; /* the thread has ended meanwhile */
        if (fscanf(file, "%llu", &ns) == 1)
            sum_ns += (double)ns;
        fclose(file);
    }
    closedir(tasks);
    return sum_ns / 1e9;
}

/* Of all processors together, since the machine's start: whatever was not idle. */
double busy_cpu_s(void)
{
    unsigned long long user, nice, system, idle, iowait, irq, softirq, steal;
    FILE *file = fopen("/proc/stat", "r");
    if (file == NULL || fscanf(file, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system,
                               &idle, &iowait, &irq, &softirq, &steal) != 8)
        die("/proc/stat cannot be read");
    fclose(file);
    return (double)(user + nice + system + irq + softirq + steal) / (double)sysconf(_SC_CLK_TCK);
}

void pause_ms(int ms)
{
    struct timespec time = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&time, NULL);
}
