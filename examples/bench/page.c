#include "examples/bench/report.h"

#include <string.h>

extern const unsigned char page_html[]; /* page.html, made an array by CMake; ends with 0 */
#define MARK "@REPORT@"

enum weir_status page_write(struct replace *file, const char *text)
{
    const char *page = (const char *)page_html, *mark = strstr(page, MARK);
    WEIR_TRY(replace_write(file, page, (size_t)(mark - page)));
    WEIR_TRY(replace_write(file, text, strlen(text)));
    return replace_write(file, mark + strlen(MARK), strlen(mark + strlen(MARK)));
}
