/*
 * weir: trains models larger than the device by moving them through it on a plan.
 *
 * A training step is the same tensors in the same order every time. Record it once dry, let weir
 * lay it out, then run the same loop for real:
 *
 *     weir_open(&run, &options);
 *     weir_block_add(run, tensors, n, &layer[i]);  weir_kept_add(run, &kept, &x[i]);
 *     step(run, true);                 // begin dry, want, done ...: records, moves nothing
 *     weir_layout(run);                // plans, proves, makes slabs and extents
 *     weir_block_load(...);            // fill the weights
 *     while (training) step(run, false);
 *     weir_close(run);
 *
 * want makes blocks and kept tensors usable on the compute stream, done says that all work on them
 * is queued. All calls on a run come from one thread at a time. Bits never depend on the budgets.
 *
 * Where work is queued outside this tree: on device "host", by the calling thread after
 * weir_want_wait. Views are valid from their want to its done, and what was wanted to READ is not
 * written: neither is looked for.
 *
 * ARG and STATE: nothing was changed, the call may be made again. IO, CORRUPT, DEVICE, COMM, and
 * NOSPACE in the run's own files: the run is lost, every further call returns the same, and what is
 * left is weir_close; a checkpoint's files that cannot be written or read do not count.
 */
#ifndef WEIR_WEIR_H
#define WEIR_WEIR_H

#include <weir/types.h>

WEIR_API_BEGIN

enum weir_status weir_open(weir_run **out, const struct weir_options *options) WEIR_MUST_CHECK;
/* Waits for what is in flight; pending updates are lost unless flushed or saved. NULL is fine. */
void weir_close(weir_run *run);

/* Tensors wanted together. Trained ones first, then frozen ones (else WEIR_ERR_ARG).
 * pre, also of kept: no layout yet, outside steps */
enum weir_status weir_block_add(weir_run *run, const struct weir_tensor *tensors,
                                size_t tensor_count, uint32_t *id) WEIR_MUST_CHECK;
enum weir_status weir_kept_add(weir_run *run, const struct weir_kept *kept,
                               uint32_t *id) WEIR_MUST_CHECK;
/* Elements from a view's start to the tensor's; the same in weight, gradient and state. UINT64_MAX
 * if there is no such block or tensor. */
uint64_t weir_block_offset(const weir_run *run, uint32_t block, size_t tensor);

/* Of a recorded key; outside its dry step. Measures rates if none were given. */
enum weir_status weir_predict(weir_run *run, const char *key,
                              struct weir_prediction *out) WEIR_MUST_CHECK;

/* Plan all keys recorded so far, prove the plans, make slabs and extents (weights and state 0).
 * Keys recorded later are planned into what is left, by another call. Recording a key again before
 * its layout replaces it. NOMEM says which budget, or this machine, is short of how many bytes.
 * pre: outside steps */
enum weir_status weir_layout(weir_run *run) WEIR_MUST_CHECK;

/* Elements [first, first + count) of one tensor. fp32 values fill the residual; bf16 values clear
 * it; moments stay. Both finish the update that the block is owed first. Values that would not be
 * finite are ARG. pre: laid out, outside steps */
enum weir_status weir_block_load(weir_run *run, uint32_t block, size_t tensor,
                                 enum weir_dtype dtype, const void *values, uint64_t first,
                                 uint64_t count) WEIR_MUST_CHECK;
enum weir_status weir_block_store(weir_run *run, uint32_t block, size_t tensor,
                                  enum weir_dtype dtype, void *values, uint64_t first,
                                  uint64_t count) WEIR_MUST_CHECK;

weir_stream *weir_compute_stream(weir_run *run);
weir_device *weir_compute_device(weir_run *run);

/* key: 1 to 100 bytes. Real: pre: recorded and laid out. */
enum weir_status weir_step_begin(weir_run *run, const char *key, bool dry) WEIR_MUST_CHECK;
/* Blocks until the transfers are issued, never until they have finished. Wants of a held block
 * nest. DIVERGED, here and below: not what the plan expects, naming both; nothing was changed, go
 * on with the recorded call or abort. */
enum weir_status weir_want(weir_run *run, const struct weir_use *uses, size_t count,
                           struct weir_view *views) WEIR_MUST_CHECK;
/* Make the views usable by the calling CPU thread; host device only. */
enum weir_status weir_want_wait(weir_run *run) WEIR_MUST_CHECK;
/* Device memory until all of the innermost want is done. Dry: NULL. */
enum weir_status weir_scratch(weir_run *run, uint64_t bytes, void **out) WEIR_MUST_CHECK;
/* Arithmetic that the caller queues here: the planner's clock. Heard when dry. */
enum weir_status weir_work(weir_run *run, double flops) WEIR_MUST_CHECK;
/* Copy the caller's bytes (all of the kept tensor) in or out, in order on the compute stream.
 * put: bytes may be reused at return. get: bytes are filled when weir_step_end returns.
 * pre: wanted and not yet done, put with NEW or CHANGE; not an optional tensor. Dry: bytes unused.
 */
enum weir_status weir_put(weir_run *run, uint32_t kept, const void *bytes) WEIR_MUST_CHECK;
enum weir_status weir_get(weir_run *run, uint32_t kept, void *bytes) WEIR_MUST_CHECK;
enum weir_status weir_done(weir_run *run, const uint32_t *ids, size_t count) WEIR_MUST_CHECK;
/* update NULL: evaluation, which drops gradients; report NULL: none. What counts is the real step's
 * update, not the dry one's. Waits until every transfer is complete. */
enum weir_status weir_step_end(weir_run *run, const struct weir_update *update,
                               struct weir_report *report) WEIR_MUST_CHECK;
/* Drop the step: weights as at its beginning, but where WRITE wrote. Dry: the key is forgotten. */
enum weir_status weir_step_abort(weir_run *run) WEIR_MUST_CHECK;
/* Finish all pending updates. pre: laid out, outside steps */
enum weir_status weir_flush(weir_run *run) WEIR_MUST_CHECK;

WEIR_API_END
#endif
