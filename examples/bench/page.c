#include "examples/bench/report.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

extern const unsigned char page_html[]; /* page.html, made an array by CMake; ends with 0 */
#define MARK "@REPORT@"

enum weir_status page_write(FILE *file, const char *text)
{
    const char *page = (const char *)page_html, *mark = strstr(page, MARK);
    if (fwrite(page, 1, (size_t)(mark - page), file) != (size_t)(mark - page) ||
        fputs(text, file) < 0 || fputs(mark + strlen(MARK), file) < 0)
        return weir_fail_errno(WEIR_ERR_IO, errno, "the page is not written");
    return WEIR_OK;
}
