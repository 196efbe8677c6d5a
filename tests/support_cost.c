#include "tests/support_cost.h"

const struct weir_cost test_cost = {.struct_bytes = sizeof test_cost,
                                    .read_bytes_per_s = 2e9,
                                    .write_bytes_per_s = 1e9,
                                    .to_device_bytes_per_s = 1e10,
                                    .to_host_bytes_per_s = 1e10,
                                    .update_bytes_per_s = 1e10,
                                    .device_update_bytes_per_s = 1e10,
                                    .compute_flops_per_s = 1e10,
                                    .latency_s = 1e-4,
                                    .update_on_compute = true};

const struct weir_cost test_cost_slow_cores = {.struct_bytes = sizeof test_cost_slow_cores,
                                               .read_bytes_per_s = 2e9,
                                               .write_bytes_per_s = 1e9,
                                               .to_device_bytes_per_s = 1e10,
                                               .to_host_bytes_per_s = 1e10,
                                               .update_bytes_per_s = 1e6,
                                               .device_update_bytes_per_s = 1e10,
                                               .link_update_bytes_per_s = 1e10,
                                               .compute_flops_per_s = 1e10,
                                               .latency_s = 1e-4};
