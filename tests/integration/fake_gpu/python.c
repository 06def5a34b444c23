/* A fake python for a fake image, linked statically: prints the document that was put there for what it is asked to
 * train on (/canned/ACCELERATOR-RANKS.json), with the seed that it was given, or hangs where /canned/hang says so.
 * It trains nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SEED "\"@SEED@\""

static const char *option(int count, char **arguments, const char *name)
{
    for (int i = 1; i + 1 < count; i++)
        if (!strcmp(arguments[i], name))
            return arguments[i + 1];
    return "";
}

int main(int count, char **arguments)
{
    static char text[1 << 22];
    char path[256], *rest = text, *found;
    FILE *file;

    if (!access("/canned/hang", F_OK))
        for (;;)
            pause();
    snprintf(path, sizeof path, "/canned/%s-%s.json", option(count, arguments, "--accelerator"),
             option(count, arguments, "--ranks"));
    if (!(file = fopen(path, "r"))) {
        fprintf(stderr, "nothing is canned at %s\n", path);
        return 1;
    }
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    for (; (found = strstr(rest, SEED)); rest = found + strlen(SEED)) {
        fwrite(rest, 1, found - rest, stdout);
        fputs(option(count, arguments, "--seed"), stdout);
    }
    fputs(rest, stdout);
    return 0;
}
