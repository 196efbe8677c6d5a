/*
 * The system calls on files, but for those of the I/O engines, so that tests can make the Nth one
 * fail. Each returns 0 or an errno.
 */
#ifndef WEIR_CORE_FILE_H
#define WEIR_CORE_FILE_H

#include <stddef.h>
#include <stdint.h>

enum weir_file_call {
    WEIR_FILE_OPEN,
    WEIR_FILE_READ,
    WEIR_FILE_WRITE,
    WEIR_FILE_SYNC,
    WEIR_FILE_RENAME,
    WEIR_FILE_CALL_COUNT,
};

/* open(2) with O_CLOEXEC added. */
int weir_file_open(const char *path, int flags, unsigned mode, int *fd);
/* From offset; fewer than byte_count only at the file's end. */
int weir_file_read(int fd, void *bytes, size_t byte_count, uint64_t offset, size_t *got);
/* All of it, at offset; EINTR and short writes go on. */
int weir_file_write(int fd, const void *bytes, size_t byte_count, uint64_t offset);
int weir_file_sync(int fd);
enum weir_file_rename {
    WEIR_FILE_NEW,      /* `to` must not exist; on any file system */
    WEIR_FILE_EXCHANGE, /* both exist and change places; EINVAL: not on this one (NFS, FUSE) */
    WEIR_FILE_REPLACE,  /* a file takes the place of another; on any file system */
};
/* Grow the file to byte_count and take the space, where the file system can. EFBIG beyond the
 * process's limit of file sizes. */
int weir_file_reserve(int fd, uint64_t byte_count);
int weir_file_rename(const char *from, const char *to, enum weir_file_rename how);

/* Tests: the nth call from now (1 = the next) of this kind returns os_errno instead, once; 0: off.
 * Returns how many such calls were made since it was last set. */
uint64_t weir_file_fail_at(enum weir_file_call call, uint64_t nth, int os_errno);
/* The nth and every later one. */
uint64_t weir_file_fail_from(enum weir_file_call call, uint64_t nth, int os_errno);

#endif
