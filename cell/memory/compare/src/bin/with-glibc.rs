//! Runs the workloads on glibc's allocator.

#[global_allocator]
static ALLOCATOR: std::alloc::System = std::alloc::System;

fn main() {
    isola_memory_compare::main(|_| {});
}
