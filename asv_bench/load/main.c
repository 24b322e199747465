/* The load generator as a program, with the servers that a load is compared with.
 *
 *     load produce|fetch [...]                         as options.c says
 *     load serve-echo|serve-sink|serve-source [...]
 *
 * Servers print the port that they listen on, and run until SIGTERM or until whoever started
 * them is gone.
 */
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>

#include "load.h"

static void serve(const char *mode)
{
    if (strcmp(mode, "serve-echo") == 0)
        serve_echo();
    else if (strcmp(mode, "serve-sink") == 0)
        serve_sink();
    else if (strcmp(mode, "serve-source") == 0)
        serve_source();
    else
        die("produce, fetch, serve-echo, serve-sink or serve-source?");
}

int main(int argc, char **argv)
{
    if (argc < 2 || strncmp(argv[1], "serve-", 6) != 0)
        return load_main(argc, argv);
    crc_init();
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    read_options(argc - 1, argv + 1);
    serve(argv[1]);
    return 0;
}
